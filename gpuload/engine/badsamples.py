"""What became of bad samples: counted by kind, listed in a file, and the policy for what a batch holds instead.

Owns the policy as a pure function, the log, and that an error kept does not keep a batch. Which error a sample has is
decided where it happens.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import traceback
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Mapping
from types import FrameType

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


def forget_locals(error: BaseException) -> None:
    """Drop the variables of the frames that `error` and its causes came through, as far as they have ended.

    They hold the batch's bytes and images, and by way of those the error itself: without this a batch would live
    for as long as someone keeps the error, and then until the next garbage collection. A frame also keeps its callers.
    """
    for met in _chain(error):
        if met.__traceback__ is not None:
            traceback.clear_frames(met.__traceback__)
            _clear_callers(met.__traceback__.tb_frame)


def forget_frames(error: BaseException) -> None:
    """The same for an error that nobody will be shown."""
    for met in _chain(error):
        met.__traceback__ = None


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        met = todo.pop()
        if met is not None and not any(met is other for other in found):
            found.append(met)
            todo += (met.__cause__, met.__context__)
    return found


def _clear_callers(frame: FrameType) -> None:
    caller = frame.f_back
    while caller is not None:
        try:
            caller.clear()
        except RuntimeError:  # still running, and so are its own callers
            return
        caller = caller.f_back


class BadSamples:
    """The log of one loader. Thread-safe; the file is made with the first bad sample and holds a JSON object a line.

    A sample is listed once, when it is met first, and counted each time. The first one that is left out or replaced is
    told by a warning (`tell`): a run that goes on must not be taken for one without bad samples. The file stays when
    loader and process are gone, for whoever repairs the data; removing it is the user's.

    Opened for appending and written a line at a time, so that a fork's lines don't tear its parent's. Where it cannot
    be written a warning says so, once; the counts go on.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # as a Meter's
        self._counts: Counter[str] = Counter()
        self._path: str | None = None
        self._unwritable = self._told = False
        self._untold: deque[str] = deque()
        self._listed: set[int] = set()  # hashes: a data set may be bad throughout, and its names long
        _LOGS.add(self)

    def add(self, error: SampleError, *, epoch: int, batch: int, policy: str) -> None:
        """Count the sample, and list it if it is a new one. policy: what is done about it. `tell` must follow."""
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
        identity = hash((str(error.shard), str(error.sample), str(error.key)))
        with self._lock:
            self._counts[error.kind] += 1
            if not self._unwritable and identity not in self._listed:
                self._listed.add(identity)
                self._write(json.dumps(line, default=repr) + "\n")  # keys and samples are whatever the data set says
            tell, self._told = policy != "raise" and not self._told, self._told or policy != "raise"
            if tell:
                listed = f" and listed in {self._path}" if self._path else ""
                done = "left out" if policy == "skip" else "replaced by a neighbour"
                self._untold.append(
                    f"bad samples are {done} (on_error={policy!r}). The first is {error.where}: {error.problem}. This "
                    f"is said once a loader; all are counted in stats().errors{listed}"
                )

    def tell(self) -> None:
        """Warn of what nobody was told yet. Consumer's thread.

        A message whose warning is raised has been told: whoever asks again hears of the next one.
        """
        while self._untold:
            warnings.warn(self._untold.popleft(), stacklevel=5)  # the line that asked the loader for a batch

    def _write(self, line: str) -> None:
        try:
            if self._path is None:
                handle, self._path = tempfile.mkstemp(prefix=f"gpuload-bad-samples-{os.getpid()}-", suffix=".jsonl")
                os.close(handle)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            self._unwritable = True
            self._untold.append(f"bad samples are counted but no longer listed: {error}")

    @property
    def path(self) -> str | None:
        """The file, None while there was no bad sample."""
        return self._path

    def counts(self) -> Mapping[str, int]:
        """Bad samples by kind since the loader was made."""
        with self._lock:
            return dict(self._counts)


_LOGS: weakref.WeakSet[BadSamples] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child, where nobody will release a lock that a thread of the parent held."""
    for log in list(_LOGS):
        log._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
