"""C. Which byte ranges to read for a batch: neighbouring samples of a file become one read.

Owns the merging and the layout of the flat buffer that the ranges land in. Pure: opens nothing. Reading is
reader.py's, which is also the first to know how long a whole file is (`with_sizes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuload.core.refs import WHOLE_FILE

RANGE = np.dtype(
    [
        ("file", np.int32),  # row in the list of files
        ("offset", np.int64),  # first byte in the file
        ("length", np.int64),  # bytes; WHOLE_FILE until its size is known
        ("at", np.int64),  # where the range lands in the flat buffer
        ("first", np.int64),  # it serves the batch's rows `rows[first:stop]`
        ("stop", np.int64),
        ("whole", np.bool_),  # the file itself, whatever its size
    ]
)


@dataclass(frozen=True)
class ReadPlan:
    """Ranges to read, and where each row of the batch lies once they have landed.

    ranges: RANGE (m,), in order of file and offset. rows: int64 (n,), the batch's rows grouped by range.
    offsets, lengths: int64 (n,), of each row in the flat buffer of `total_bytes`.
    """

    ranges: np.ndarray
    rows: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    total_bytes: int


def coalesce(refs: np.ndarray, *, gap_bytes: int, max_range_bytes: int) -> ReadPlan:
    """Merge SAMPLE_REFs (n,) whose distance in a file is at most `gap_bytes` into ranges of at most `max_range_bytes`.

    A sample longer than that is a range of its own; so is each whole file. Overlapping samples, and the same one
    twice, may share a range. Raises ValueError for a negative offset, or a negative length other than WHOLE_FILE.
    """
    files, starts, lengths = refs["file"], refs["offset"], refs["length"]
    if len(refs) and (starts.min() < 0 or lengths.min() < WHOLE_FILE):
        bad = int(np.argmax((starts < 0) | (lengths < WHOLE_FILE)))
        raise ValueError(f"row {bad} is no byte range of a file: offset {starts[bad]}, length {lengths[bad]}")
    rows = np.lexsort((starts, files))
    files, starts, whole = files[rows], starts[rows], lengths[rows] == WHOLE_FILE
    ends = starts + np.where(whole, 0, lengths[rows])

    breaks = np.ones(len(rows), np.bool_)
    # The distance is taken from the row before, not from the furthest end so far: where rows overlap, a range may
    # begin too early and some bytes are read twice, which is right and rare.
    breaks[1:] = (files[1:] != files[:-1]) | (starts[1:] - ends[:-1] > gap_bytes) | whole[1:] | whole[:-1]
    _break_long_runs(breaks, starts, ends, max_range_bytes)

    first = np.flatnonzero(breaks)
    ranges = np.zeros(len(first), RANGE)
    ranges["file"], ranges["offset"], ranges["first"] = files[first], starts[first], first
    ranges["stop"] = np.append(first[1:], len(rows)) if len(first) else first
    ranges["whole"] = whole[first]
    if len(first):
        ranges["length"] = np.maximum.reduceat(ends, first) - starts[first]
        ranges["length"][ranges["whole"]] = WHOLE_FILE
        ranges["offset"][ranges["whole"]] = 0
    return _lay_out(ranges, rows, refs)


def with_sizes(plan: ReadPlan, sizes: np.ndarray) -> ReadPlan:
    """The plan once the sizes of its whole files are known. sizes: int64, one a whole range, in their order."""
    whole = plan.ranges["whole"]
    ranges, lengths, offsets = plan.ranges.copy(), plan.lengths.copy(), plan.offsets.copy()
    ranges["length"][whole] = sizes
    ranges["at"][whole] = plan.total_bytes + np.cumsum(sizes) - sizes
    rows = plan.rows[ranges["first"][whole]]
    lengths[rows], offsets[rows] = sizes, ranges["at"][whole]
    return replace(
        plan, ranges=ranges, lengths=lengths, offsets=offsets, total_bytes=plan.total_bytes + int(np.sum(sizes))
    )


def _break_long_runs(breaks: np.ndarray, starts: np.ndarray, ends: np.ndarray, max_range_bytes: int) -> None:
    first = np.flatnonzero(breaks)
    if not len(first):
        return
    stop = np.append(first[1:], len(breaks))
    long = np.maximum.reduceat(ends, first) - starts[first] > max_range_bytes
    for head, tail in zip(first[long].tolist(), stop[long].tolist(), strict=True):
        begin, furthest = starts[head], ends[head]
        for row in range(head + 1, tail):
            furthest = max(furthest, ends[row])
            if furthest - begin > max_range_bytes:
                breaks[row] = True
                begin, furthest = starts[row], ends[row]


def _lay_out(ranges: np.ndarray, rows: np.ndarray, refs: np.ndarray) -> ReadPlan:
    known = np.maximum(ranges["length"], 0)
    ranges["at"] = np.cumsum(known) - known
    served = ranges["stop"] - ranges["first"]
    offsets = np.empty(len(rows), np.int64)
    offsets[rows] = refs["offset"][rows] + np.repeat(ranges["at"] - ranges["offset"], served)
    offsets[refs["length"] == WHOLE_FILE] = 0
    lengths = np.maximum(refs["length"], 0)
    return ReadPlan(ranges, rows, offsets, lengths, int(known.sum()))
