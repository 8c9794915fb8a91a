"""A task's JPEGs made ready for the GPU in one call without the GIL: plans, segments, tables, and no byte too many.

What the GPU decodes of an image are the segments that its crop touches: from the seek point before the crop's left edge
to the right edge, row of MCUs by row, cut at seek points so that each segment is about as much work as the next. Their
bytes are copied piece by piece, pieces that overlap as one. An image that has no seek points, or whose job the GPU's
kernels don't make, is left to the CPU; which ones is a rule that depends on nothing measured (see `stage_images`).

    header -> plan -> seek points -> segments, bytes, tables -> IMAGE, with counts where its firsts will be

Owns what is written into the arrays of device_batch.py. Joining tasks to a batch is gpuload/decode/cuda_batch.py's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.decode_jpeg import LEAST_BYTES, NOT_BEGUN, OUTSIDE
from gpuload.kernels.device_batch import IMAGE, MOST_MCUS, SEGMENT
from gpuload.kernels.entropy import BIT, BYTE, PREDICTOR
from gpuload.kernels.jpeg_header import (
    AC_TABLE,
    BLOCKS_IN_MCU,
    COMPONENTS,
    DC_TABLE,
    HEADER_SIZE,
    HUFFMAN_SIZE,
    MCUS_HIGH,
    MCUS_WIDE,
    QUANT_TABLE,
    SCAN_START,
)
from gpuload.kernels.jpeg_plan import FLIP_H, FLIP_V, WINDOW, fits, planned, point_rows
from gpuload.kernels.resample_weights import BICUBIC, BILINEAR, BOX, tap_limit
from gpuload.kernels.seek_points import content_key, points_of
from numba import njit, types

STAGED, NO_POINTS, TOO_LARGE, OTHER_FILTER = 0, 10, 11, 12
"""What becomes of an image, beside decode_jpeg's OUTSIDE: staged; no usable seek points; more memory than it may take;
a filter whose weights need a sine, which no two libraries compute alike."""

SEGMENT_MCUS = 16
"""The least work of a segment, where points stand closer: each costs 20 bytes, 3% of its data then, and a start."""
MOST_SPACING = 1024
"""Farther apart, points don't spread an image over enough threads."""

ONE_BYTE_AHEAD = 2
"""Behind a segment stands the point's own byte, and behind that a stuffed zero if it is an 0xFF."""


def _word(field: str, size: int = 4) -> int:
    """The place of a field in an IMAGE that is seen as numbers of this size."""
    return int(IMAGE.fields[field][1]) // size  # type: ignore[index]


_FIRST_BLOCK, _FIRST_PIXEL, _FIRST_MIDDLE, _FIRST_ROW, _FIRST_WEIGHT = (
    _word(f"first_{name}", 8) for name in ("block", "pixel", "middle", "row", "weight")
)
_HEADER, _QUANT, _DC, _AC, _MCUS, _REGION = map(_word, ("header", "quant", "dc", "ac", "window", "region"))
_VERTICAL, _HORIZONTAL, _OUTPUTS, _TAPS = map(_word, ("vertical", "horizontal", "outputs", "taps"))
_RESAMPLED, _VERTICAL_FIRST, _SHOWN, _FLIPS = map(_word, ("resampled", "vertical_first", "shown", "flips"))
IMAGE_WORDS, IMAGE_LONGS = IMAGE.itemsize // 4, IMAGE.itemsize // 8
SEGMENT_WORDS, SEGMENT_HALVES = SEGMENT.itemsize // 4, SEGMENT.itemsize // 2

# Counts of what was written, as `stage_images` adds them up.
SEGMENTS, BYTES, TABLES, DEFINITIONS, QUANTS = range(5)
COUNTS = 5


class Found(NamedTuple):
    """Where a task's arrays end so far: `counts`, by the names above."""

    segments: Any
    halves: Any
    tables: Any
    definitions: Any
    quants: Any
    data: Any
    counts: Any


@njit(nogil=True)
def scan_end(data, at):
    """The offset behind the end-of-image marker that follows `at`; the size of the data where none does."""
    at = np.uint64(at)
    size = np.uint64(data.size)
    while at + np.uint64(1) < size:
        if data[at] == 0xFF and data[at + np.uint64(1)] == 0xD9:
            return np.int64(at) + 2
        at += np.uint64(1)
    return np.int64(size)


@njit(nogil=True)
def _same(a, b):
    for k in range(a.size):
        if a[k] != b[k]:
            return False
    return True


@njit(nogil=True)
def _table_number(definition, is_ac, found):
    """The number of a Huffman table among the task's, which gets it if it is new. One encoder's files share theirs."""
    size = np.int64(16)
    for length in range(16):
        size += np.int64(definition[length])
    size = min(size, HUFFMAN_SIZE)  # more is no code, and no image that has seek points has such a table
    count, end = found.counts[TABLES], found.counts[DEFINITIONS]
    for t in range(count):
        begin = np.int64(found.tables[t, 0])
        behind = np.int64(found.tables[t + 1, 0]) if t + 1 < count else end
        kept = found.definitions[begin:behind]
        if found.tables[t, 1] == is_ac and kept.size == size and _same(kept, definition):
            return t
    found.tables[count, 0], found.tables[count, 1] = end, is_ac
    for k in range(size):
        found.definitions[end + k] = definition[k]
    found.counts[TABLES], found.counts[DEFINITIONS] = count + 1, end + size
    return count


@njit(nogil=True)
def _quant_number(table, found):
    count = found.counts[QUANTS]
    for t in range(count):
        if _same(found.quants[t], table):
            return t
    for k in range(64):
        found.quants[count, k] = table[k]
    found.counts[QUANTS] = count + 1
    return count


@njit(nogil=True)
def _copy(found, data, start, end):
    """data[start:end] behind the task's bytes; returns what to add to an offset in data to have the one there."""
    at = found.counts[BYTES]
    target = found.data[at : at + end - start]
    for k in range(np.uint64(end - start)):
        target[k] = data[np.uint64(start) + k]
    found.counts[BYTES] = at + end - start
    return at - start


@njit(nogil=True)
def _stage_segments(number, data, header, region, points, spacing, found):
    """Cut the region's rows of MCUs into segments, and copy their bytes."""
    wide = np.int64(header[MCUS_WIDE])
    total = wide * np.int64(header[MCUS_HIGH])
    count = (total + spacing - 1) // spacing
    step = (SEGMENT_MCUS + spacing - 1) // spacing
    begun = found.counts[SEGMENTS]
    start, stop = np.int64(0), np.int64(-1)  # of the piece that is not copied yet
    first_of_piece = begun
    for row in range(region.mcu_top, region.mcu_top + region.mcus_high):
        first = row * wide + region.mcu_left
        end = first + region.mcus_wide
        k = first // spacing
        behind = (end + spacing - 1) // spacing  # the first point that no MCU of the row stands behind
        from_byte = np.int64(points[k, BYTE])
        if behind < count:
            to_byte = min(np.int64(points[behind, BYTE]) + ONE_BYTE_AHEAD, data.size)
        else:
            to_byte = scan_end(data, points[count - 1, BYTE])
        if from_byte > stop:
            if stop >= 0:
                _move(found, first_of_piece, _copy(found, data, start, stop))
            start, first_of_piece = from_byte, found.counts[SEGMENTS]
        stop = max(stop, to_byte)
        while k * spacing < end:
            s = found.counts[SEGMENTS]
            found.segments[s, 0], found.segments[s, 1] = points[k, BYTE], k * spacing
            found.halves[s, 4], found.halves[s, 5] = number, min((k + step) * spacing, end) - k * spacing
            for c in range(3):
                found.halves[s, 6 + c] = points[k, PREDICTOR + c] & 0xFFFF
            found.halves[s, 9] = points[k, BIT]
            found.counts[SEGMENTS] = s + 1
            k += step
    _move(found, first_of_piece, _copy(found, data, start, stop))


@njit(nogil=True)
def _move(found, first, distance):
    """Segments from `first` on lie in a piece that was just copied."""
    for s in range(first, found.counts[SEGMENTS]):
        found.segments[s, 0] = np.int64(found.segments[s, 0]) + distance


@njit(nogil=True)
def _scratch_bytes(blocks, pixels, middle, weights):
    """What one image takes of the arrays that kernels pass on, about: its tables are left out."""
    return (128 + 1 + 64) * blocks + 4 * (pixels + middle + weights)


@njit(nogil=True)
def _stage(number, data, header, quant, huffman, job, kind, rule, index, points, most_bytes, words, longs, found):
    """One image: STAGED, or why not."""
    plan = planned(header, job, kind, rule)
    if plan.resampled and kind != BILINEAR and kind != BICUBIC and kind != BOX:
        return OTHER_FILTER
    key = content_key(data) if data.size >= LEAST_BYTES else np.uint64(0)
    mcus = np.int64(header[MCUS_WIDE]) * np.int64(header[MCUS_HIGH])
    if key == np.uint64(0) or points.shape[0] < point_rows(header):
        return NO_POINTS
    fixed, learned, base, size = index
    components = np.int64(header[COMPONENTS])
    spacing = points_of(fixed, learned, base, size, key, mcus, components, np.int64(header[SCAN_START]), data.size,
                        points)  # fmt: skip
    region = plan.region
    if spacing == 0 or spacing > MOST_SPACING or region.mcus_wide + spacing > MOST_MCUS:
        return NO_POINTS
    region_high, region_wide = region.bottom - region.top, region.right - region.left
    high, wide = plan.bottom - plan.top, plan.right - plan.left
    blocks = region.mcus_wide * region.mcus_high * np.int64(header[BLOCKS_IN_MCU]) + 1
    pixels, middle, rows, weights, taps_v, taps_h = region_high * region_wide, 0, 0, 0, 0, 0
    if plan.resampled:
        middle = high * region_wide if plan.vertical_first else region_high * wide
        taps_v = tap_limit(plan.vertical.in_size, plan.vertical.out_size, kind)
        taps_h = tap_limit(plan.horizontal.in_size, plan.horizontal.out_size, kind)
        rows = high + wide
        weights = high * (taps_v + 2) + wide * (taps_h + 2)
    if _scratch_bytes(blocks, pixels, middle, weights) > most_bytes:
        return TOO_LARGE
    longs[_FIRST_BLOCK], longs[_FIRST_PIXEL], longs[_FIRST_MIDDLE] = blocks, pixels, middle
    longs[_FIRST_ROW], longs[_FIRST_WEIGHT] = rows, weights
    for k in range(HEADER_SIZE):
        words[_HEADER + k] = header[k]
    for c in range(components):
        words[_QUANT + c] = _quant_number(quant[header[QUANT_TABLE + c]], found)
        words[_DC + c] = _table_number(huffman[header[DC_TABLE + c]], 0, found)
        words[_AC + c] = _table_number(huffman[4 + header[AC_TABLE + c]], 1, found)
    _put(words, _MCUS, region.mcu_left, region.mcu_top, region.mcus_wide, region.mcus_high)
    _put(words, _REGION, region.left, region.top, region.right, region.bottom)
    _put(words, _OUTPUTS, plan.left, plan.top, plan.right, plan.bottom)
    _put(words, _VERTICAL, plan.vertical.in_size, plan.vertical.source_start, plan.vertical.out_size,
         plan.vertical.out_start)  # fmt: skip
    _put(words, _HORIZONTAL, plan.horizontal.in_size, plan.horizontal.source_start, plan.horizontal.out_size,
         plan.horizontal.out_start)  # fmt: skip
    words[_TAPS], words[_TAPS + 1] = taps_v, taps_h
    words[_RESAMPLED], words[_VERTICAL_FIRST] = plan.resampled, plan.vertical_first
    words[_SHOWN], words[_SHOWN + 1] = job[WINDOW], job[WINDOW + 1]
    words[_FLIPS], words[_FLIPS + 1] = job[FLIP_H], job[FLIP_V]
    _stage_segments(number, data, header, region, points, spacing, found)
    return STAGED


@njit(nogil=True)
def _put(words, at, a, b, c, d):
    words[at], words[at + 1], words[at + 2], words[at + 3] = a, b, c, d


_DATA = types.Array(types.uint8, 1, "C", readonly=True)
_I64, _I32 = types.int64, types.int32
_SLOTS = types.Array(types.uint64, 2, "C", readonly=True)


@kernel(
    [
        types.void(
            _DATA, _I64[::1], _I64[::1], _I32[:, ::1], types.uint16[:, :, ::1], types.uint8[:, :, ::1], _I32[:, ::1],
            _I64, _I64, _I64, _I64, _SLOTS, _SLOTS, _I64, _I64, _I64, _I32[:, ::1], _I32[:, ::1], _I64[:, ::1],
            types.uint32[:, ::1], types.uint16[:, ::1], types.uint32[:, ::1], types.uint8[::1], types.uint16[:, ::1],
            types.uint8[::1], _I64[::1], types.uint8[::1], _I64[::1],
        )  # fmt: skip
    ]
)
def stage_images(
    data, offsets, lengths, headers, quant, huffman, jobs, kind, rule, height, width, fixed, learned, base, size,
    most_bytes, points, words, longs, segments, halves, tables, definitions, quants, pieces, counts, stop, status,
):  # fmt: skip
    """Stage each image whose status is NOT_BEGUN, and write down what became of it.

    data to jobs, kind, rule, fixed to size, stop: as decode_jpeg.decode_images'. height, width: of the batch's images.
    most_bytes: of device memory that one image may take. points: int32 (the most point_rows of these images, 5).
    words, longs: IMAGE (n,) as int32 and int64; an image's firsts become its own counts. segments, halves: SEGMENT as
    uint32 and uint16, `room_for` says how many. tables: TABLE (6 n,) as uint32; definitions: uint8 (6 n * 272,);
    quants: uint16 (3 n, 64); pieces: uint8 (the sum of lengths,). counts: int64 (5,), zeros: how much was filled.
    """
    found = Found(segments, halves, tables, definitions, quants, pieces, counts)
    for i in range(offsets.size):
        if status[i] != NOT_BEGUN:
            continue
        if stop[0]:
            break
        job, header = jobs[i], headers[i]
        if not fits(header, job) or job[WINDOW + 2] != width or job[WINDOW + 3] != height:
            status[i] = OUTSIDE
            continue
        file = data[offsets[i] : offsets[i] + lengths[i]]
        status[i] = _stage(i, file, header, quant[i], huffman[i], job, kind, rule, (fixed, learned, base, size), points,
                           most_bytes, words[i], longs[i], found)  # fmt: skip


def room_for(headers: np.ndarray) -> int:
    """The most segments that images with these headers, int32 (n, HEADER_SIZE), can have."""
    wide, high = (headers[:, at].astype(np.int64) for at in (MCUS_WIDE, MCUS_HIGH))
    return int((high * (wide // SEGMENT_MCUS + 2)).sum())
