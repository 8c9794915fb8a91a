"""What became of bad samples: counted by kind, listed in a file, and the policy for what a batch holds instead.

Owns the policy as a pure function and the log. Which error a sample has is decided where it happens.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping

import numpy as np

from gpuload.core.errors import SampleError


def rows_to_keep(rows: int, failed: set[int], policy: str) -> np.ndarray:
    """Which row of the batch stands at each place of what is delivered: int64 (m,).

    policy "skip": the good rows. "replace": every place keeps a row; a failed one takes the nearest good row
    before it, else the first good one after it. Empty where no row is good.
    """
    good = np.array([row for row in range(rows) if row not in failed], np.int64)
    if policy == "skip" or len(good) in (0, rows):
        return good
    return good[np.maximum(np.searchsorted(good, np.arange(rows), side="right") - 1, 0)]


class BadSamples:
    """The log of one loader. Thread-safe; the file is made with the first bad sample and holds a JSON object a line.

    Written through one descriptor opened for appending, so that a fork's lines don't tear its parent's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._path: str | None = None

    def add(self, error: SampleError, *, epoch: int, batch: int, policy: str) -> None:
        line = {
            "epoch": epoch,
            "batch": batch,
            "sample": error.sample,
            "shard": error.shard,
            "key": error.key,
            "kind": error.kind,
            "problem": error.problem,
            "policy": policy,
        }
        with self._lock:
            self._counts[error.kind] += 1
            if self._path is None:
                handle, self._path = tempfile.mkstemp(prefix=f"gpuload-bad-samples-{os.getpid()}-", suffix=".jsonl")
                os.close(handle)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    @property
    def path(self) -> str | None:
        """The file, None while there was no bad sample."""
        return self._path

    def counts(self) -> Mapping[str, int]:
        """Bad samples by kind since the loader was made."""
        with self._lock:
            return dict(self._counts)
