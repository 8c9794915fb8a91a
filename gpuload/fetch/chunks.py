"""Which chunks of its file a row lies in, and which of them are worth reading whole.

Owns the arithmetic of a cache. Pure. Keeping chunks is cache_store.py's, reading them cached.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WHOLE_SHARE = 0.25
"""Of a chunk, from which on it is read whole at once. Below, what is wanted is read by itself and the chunk follows in
the background: a full shuffle's first batch must not wait for 8 MB an image."""

CHUNK = np.dtype(
    [
        ("file", np.int32),  # row in the list of files
        ("number", np.int64),  # from the file's beginning
        ("length", np.int64),  # bytes; the last one of a file is shorter
        ("wanted", np.int64),  # bytes of the rows that lie in it
    ]
)


@dataclass(frozen=True)
class Spans:
    """chunks: CHUNK (m,), those that rows lie in, by file and number. first, stop: int64 (n,): row i lies in
    chunks[first[i]:stop[i]]; nowhere, first == stop, where its file is not cached or ends before it does."""

    chunks: np.ndarray
    first: np.ndarray
    stop: np.ndarray


def spans(refs: np.ndarray, sizes: np.ndarray, *, chunk_bytes: int) -> Spans:
    """refs: SAMPLE_REF (n,). sizes: int64, one a file: bytes, -1 for a file that is not cached."""
    size = sizes[refs["file"]]
    begin, end = refs["offset"], refs["offset"] + refs["length"]
    inside = (refs["length"] > 0) & (begin >= 0) & (end <= size)
    low, high = begin // chunk_bytes, -(-end // chunk_bytes)
    counts = np.where(inside, high - low, 0)
    rows = np.repeat(np.arange(len(refs)), counts)
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + low[rows]
    touched = np.empty(len(rows), [("file", np.int32), ("number", np.int64)])
    touched["file"], touched["number"] = refs["file"][rows], numbers
    named, place = np.unique(touched, return_inverse=True)
    chunks = np.zeros(len(named), CHUNK)
    chunks["file"], chunks["number"] = named["file"], named["number"]
    starts = chunks["number"] * chunk_bytes
    chunks["length"] = np.minimum(sizes[chunks["file"]] - starts, chunk_bytes)
    overlap = np.minimum(end[rows], (numbers + 1) * chunk_bytes) - np.maximum(begin[rows], numbers * chunk_bytes)
    np.add.at(chunks["wanted"], place, overlap)
    first = np.zeros(len(refs), np.int64)
    touches = counts > 0
    first[touches] = place[(np.cumsum(counts) - counts)[touches]]
    return Spans(chunks, first, first + counts)


def worth_whole(chunks: np.ndarray) -> np.ndarray:
    """Which of these CHUNKs (m,) are read whole at once: bool (m,)."""
    return chunks["wanted"] >= WHOLE_SHARE * chunks["length"]
