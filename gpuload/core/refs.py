"""Where the encoded bytes of a sample lie: a struct array, never one Python object a sample.

Owns the dtype and its constructor. Reading is `fetch/`'s, making the tables is `shards/`'s.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

SAMPLE_REF = np.dtype([("file", np.int32), ("offset", np.int64), ("length", np.int64)])
"""`file`: row in the source's list of URLs; `offset`, `length`: bytes. `length` -1: the whole file."""

WHOLE_FILE = -1


def as_ids(indices: Sequence[Any]) -> np.ndarray:
    """Dataset indices as int64 (n,), or as object (n,) where one is no integer, or none of 64 bits."""
    try:
        return np.array([operator.index(index) for index in indices], np.int64)
    except (TypeError, OverflowError):
        ids = np.empty(len(indices), object)
        for row, index in enumerate(indices):
            ids[row] = index
        return ids


def whole_files(files: np.ndarray) -> np.ndarray:
    """References to entire files. files: int (n,), rows in the source's list of URLs."""
    refs = np.empty(len(files), SAMPLE_REF)
    refs["file"] = files
    refs["offset"] = 0
    refs["length"] = WHOLE_FILE
    return refs
