"""A task's JPEGs in one call without the GIL: from encoded bytes to the batch's memory, image by image.

    header -> tables -> a row of MCUs: entropy, IDCT -> ... -> upsample, colour -> resample, flip, look up, store

Rows of MCUs go through the entropy decoder and the IDCT one at a time, so that coefficients never leave the first-level
cache. With seek points each row is entered next to the crop's left edge; without them the scan is walked from its
start, and only as far as the crop needs: what follows is searched for markers, which is all that could make Pillow
refuse it. An image in which anything is wrong is left alone and its status says so; Pillow has the last word on it.

    headers   int32 (n, HEADER_SIZE), quant uint16 (n, 4, 64), huffman uint8 (n, 8, 272): as `parse_header` fills them
    jobs      int32 (n, JOB_SIZE)    crop x, y, w, h; size after resampling w, h; window x, y, w, h; flips: 0 or 1
    places    int64 (n,)             row of `out` of each image
    out       uint8 (rows, 3, H, W, size), any strides: the batch, an element as its bytes (see resample.py)
    fixed, learned, base, size       the entropy index, see `points_of`; seek: NO_POINTS, READ or LEARN
    keys      uint64 (n,), record_sizes int64 (n,), records uint8: what was learned. Image i's record may take
                                     record_limits[i] bytes, and lies behind those that the images before it may take
    pixels    uint8 (H, W, 3)        empty, or the memory of the one image in `out` where nothing is to be looked up or
                                     flipped: where nothing is resampled either, pixels are made in place
    status    int64 (n,)             `DONE`; why an image was left: an anomaly of entropy.py or one of REASONS

Owns the order of the steps, and the division of a thread's scratch memory among them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gpuload.kernels.color import gray_region_to_rgb, region_to_rgb
from gpuload.kernels.compile import kernel
from gpuload.kernels.entropy import (
    BYTE,
    LAYOUT_SIZE,
    POINT_SIZE,
    TOP,
    decode_mcus,
    lay_out,
    sound_tail,
)
from gpuload.kernels.huffman import kept_table
from gpuload.kernels.idct import idct_rows
from gpuload.kernels.jpeg_header import (
    AC_TABLE,
    BLOCKS_IN_MCU,
    COLOR,
    COMPONENTS,
    DC_TABLE,
    H_MAX,
    HEIGHT,
    MCUS_HIGH,
    MCUS_WIDE,
    QUANT_TABLE,
    RESTART_INTERVAL,
    SCAN_START,
    V_MAX,
    WIDTH,
    YCBCR,
    H,
    V,
    parse_header,
)
from gpuload.kernels.resample import resize_store, scratch_bytes, store
from gpuload.kernels.resample_weights import Axis, source_span, vertical_first
from gpuload.kernels.seek_points import FINEST_SPACING, content_key, pack, points_of
from numba import njit, types

JOB_SIZE = 12
_CROP, _SIZE, _WINDOW, _FLIP_H, _FLIP_V = 0, 4, 6, 10, 11

DONE = 0
NOT_BEGUN, MORE_SCRATCH, BAD_TABLE, BAD_TAIL, OUTSIDE = -1, -2, -3, -4, -5
REASONS = {
    NOT_BEGUN: "not begun",
    MORE_SCRATCH: "more scratch memory is needed",
    BAD_TABLE: "a Huffman table that is no code",
    BAD_TAIL: "a marker behind the decoded part of the scan, or no end-of-image marker",
    OUTSIDE: "a crop that reaches beyond its image, or a size that the kernels do not make",
}
"""What a negative status means; positive ones are entropy.ANOMALIES'."""

NO_POINTS, READ, LEARN = 0, 1, 2
"""Whether seek points are used, and made where there are none."""
LEAST_BYTES = 4096
"""Files that are smaller are decoded sooner than their points pay."""

LONGEST_SIDE = 65535  # of what the resampling kernel makes


class _Region(NamedTuple):
    """Pixels [top, bottom) x [left, right) of the image, and the MCUs that they take."""

    left: int
    top: int
    right: int
    bottom: int
    mcu_left: int
    mcu_top: int
    mcus_wide: int
    mcus_high: int


@njit(nogil=True)
def _region(header, left, top, right, bottom):
    h, v = np.int64(header[H_MAX]), np.int64(header[V_MAX])
    # An upsampled pixel reads one sample more on each side: that covers as many pixels as an MCU has blocks there.
    mcu_left, mcu_top = max(left - h, 0) // (8 * h), max(top - v, 0) // (8 * v)
    mcu_right = min((right + h + 8 * h - 1) // (8 * h), np.int64(header[MCUS_WIDE]))
    mcu_bottom = min((bottom + v + 8 * v - 1) // (8 * v), np.int64(header[MCUS_HIGH]))
    return _Region(left, top, right, bottom, mcu_left, mcu_top, mcu_right - mcu_left, mcu_bottom - mcu_top)


@njit(nogil=True)
def _lines(size):
    return (size + 63) // 64 * 64


class _Scratch(NamedTuple):
    """Where each piece of the scratch memory begins, in bytes; the coefficients of a row of MCUs are the first."""

    last: int
    planes: int
    pixels: int
    rows: int
    passes: int
    points: int
    total: int


@njit(nogil=True)
def _divided(header, region, passes_bytes, seek):
    blocks = region.mcus_wide * np.int64(header[BLOCKS_IN_MCU])
    wide = region.right - region.left
    last = _lines(128 * (blocks + 1))
    planes = last + _lines(blocks + 1)
    pixels = planes + 64 * blocks * region.mcus_high
    rows = pixels + _lines(3 * wide * (region.bottom - region.top))
    passes = rows + _lines(3 * wide)
    points = passes + _lines(passes_bytes + 64)
    total = points + 4 * POINT_SIZE * (_point_rows(header) if seek else 0)
    return _Scratch(last, planes, pixels, rows, passes, points, total)


@njit(nogil=True)
def _point_rows(header):
    """Rows for a seek point every FINEST_SPACING MCUs."""
    return (np.int64(header[MCUS_WIDE]) * np.int64(header[MCUS_HIGH]) + FINEST_SPACING - 1) // FINEST_SPACING


@njit(nogil=True)
def _plane(header, region, c, scratch, start):
    """Component c of the region: uint8 (rows, columns), within scratch from `start` on."""
    rows = 8 * region.mcus_high * np.int64(header[V + c])
    columns = 8 * region.mcus_wide * np.int64(header[H + c])
    return scratch[start : start + rows * columns].reshape(rows, columns)


@njit(nogil=True)
def _decode_planes(data, header, quant, region, layout, tables, spacing, record, points, scratch, at):
    """Entropy decoding and IDCT of the region, row of MCUs by row, to its planes in scratch; a status.

    points: enter each row by them, if spacing isn't 0; leave one in them every `record` MCUs, if that isn't 0: the scan
    is then walked to its end, and is known to be sound.
    """
    blocks = region.mcus_wide * np.int64(header[BLOCKS_IN_MCU])
    coefficients, last = scratch[: 128 * (blocks + 1)].view(np.int16), scratch[at.last : at.last + blocks + 1]
    point = np.zeros(POINT_SIZE, np.int32)
    point[BYTE] = header[SCAN_START]
    wide = np.int64(header[MCUS_WIDE])
    total = wide * np.int64(header[MCUS_HIGH])
    mcu = np.int64(0)
    for row in range(region.mcus_high):
        layout[TOP] = region.mcu_top + row
        first = (region.mcu_top + row) * wide + region.mcu_left
        if spacing and mcu <= first - first % spacing:
            mcu = first - first % spacing
            point[:] = points[mcu // spacing]
        end = first + region.mcus_wide
        status = decode_mcus(data, layout, tables, point, mcu, end, record, points, coefficients, last)
        if status:
            return status
        mcu = end
        block, start = np.int64(0), at.planes
        for c in range(header[COMPONENTS]):
            h, v = np.int64(header[H + c]), np.int64(header[V + c])
            plane = _plane(header, region, c, scratch, start)
            table = quant[header[QUANT_TABLE + c]]
            idct_rows(coefficients, block, region.mcus_wide * h, v, last, table, plane, 8 * v * row)
            block += region.mcus_wide * h * v
            start += plane.size
    if mcu == total or spacing:
        return np.int64(DONE)
    if record:
        return decode_mcus(data, layout, tables, point, mcu, total, record, points, coefficients, last)
    sound = sound_tail(data, point[BYTE], header[RESTART_INTERVAL] != 0)
    return np.int64(DONE if sound else BAD_TAIL)


@njit(nogil=True)
def _to_rgb(header, region, scratch, at, pixels):
    """The region's planes to pixels, uint8 (h, w, 3)."""
    count = np.int64(header[COMPONENTS])
    frame = np.empty((3, 6), np.int64)
    h_max, v_max = np.int64(header[H_MAX]), np.int64(header[V_MAX])
    for c in range(count):
        h, v = np.int64(header[H + c]), np.int64(header[V + c])
        frame[c, 0], frame[c, 1] = 8 * region.mcu_top * v, 8 * region.mcu_left * h
        frame[c, 2] = (np.int64(header[WIDTH]) * h + h_max - 1) // h_max
        frame[c, 3] = (np.int64(header[HEIGHT]) * v + v_max - 1) // v_max
        frame[c, 4], frame[c, 5] = h_max // h, v_max // v
    left, top, right, bottom = region.left, region.top, region.right, region.bottom
    rows = scratch[at.rows : at.rows + 3 * (right - left)].reshape(3, right - left)
    luma = _plane(header, region, 0, scratch, at.planes)
    if count == 1:
        return gray_region_to_rgb(luma, frame[0], top, bottom, left, right, rows, pixels, 0, 0)
    blue = _plane(header, region, 1, scratch, at.planes + luma.size)
    red = _plane(header, region, 2, scratch, at.planes + luma.size + blue.size)
    is_ycc = header[COLOR] == YCBCR
    return region_to_rgb(luma, blue, red, frame, is_ycc, top, bottom, left, right, rows, pixels, 0, 0)


class _Plan(NamedTuple):
    """What a job comes to: outputs [top, bottom) x [left, right) of the resampled crop, from pixels of the region."""

    region: _Region
    vertical: Axis
    horizontal: Axis
    left: int
    top: int
    right: int
    bottom: int
    resampled: bool
    vertical_first: bool


@njit(nogil=True)
def _planned(header, job, kind, rule):
    """The plan of a job that fits its image: see `_fits`."""
    x, y, w, h = np.int64(job[0]), np.int64(job[1]), np.int64(job[2]), np.int64(job[3])
    wide, high = np.int64(job[_SIZE]), np.int64(job[_SIZE + 1])
    left, top = max(np.int64(job[_WINDOW]), 0), max(np.int64(job[_WINDOW + 1]), 0)
    right = min(np.int64(job[_WINDOW]) + np.int64(job[_WINDOW + 2]), wide)
    bottom = min(np.int64(job[_WINDOW + 1]) + np.int64(job[_WINDOW + 3]), high)
    if wide == w and high == h:
        region = _region(header, x + left, y + top, x + right, y + bottom)
        axis = Axis(np.int64(1), np.int64(0), np.int64(1), np.int64(0))
        return _Plan(region, axis, axis, left, top, right, bottom, False, False)
    zero = np.int64(0)
    rows = source_span(Axis(h, zero, high, top), kind, bottom - top)
    columns = source_span(Axis(w, zero, wide, left), kind, right - left)
    region = _region(header, x + columns.start, y + rows.start, x + columns.stop, y + rows.stop)
    vertical, horizontal = Axis(h, rows.start, high, top), Axis(w, columns.start, wide, left)
    first = vertical_first(rule, h, w, high, wide)
    return _Plan(region, vertical, horizontal, left, top, right, bottom, True, first)


@njit(nogil=True)
def _fits(header, job):
    """Whether the crop lies in the image and something of the window in what becomes of it."""
    for i in range(_FLIP_H):
        if not -(1 << 28) < job[i] < 1 << 28:
            return False
    if job[0] < 0 or job[1] < 0 or job[2] < 1 or job[3] < 1:
        return False
    if job[0] + job[2] > header[WIDTH] or job[1] + job[3] > header[HEIGHT]:
        return False
    for axis in range(2):
        size, start, count = job[_SIZE + axis], job[_WINDOW + axis], job[_WINDOW + 2 + axis]
        if not (0 < size <= LONGEST_SIDE and count > 0 and start < size and start + count > 0):
            return False
    return True


@njit(nogil=True)
def _window(job, plan, table, fill, out):
    """The part of out (3, H, W, size) that the plan's outputs go to; what lies beside it is filled."""
    high, wide = np.int64(job[_WINDOW + 3]), np.int64(job[_WINDOW + 2])
    height, width = plan.bottom - plan.top, plan.right - plan.left
    if height < high or width < wide:
        for c in range(3):
            for y in range(high):
                for x in range(wide):
                    for k in range(out.shape[3]):
                        out[c, y, x, k] = table[c, fill[c], k]
    y, x = plan.top - job[_WINDOW + 1], plan.left - job[_WINDOW]
    if job[_FLIP_V]:
        y = high - y - height
    if job[_FLIP_H]:
        x = wide - x - width
    return out[:, y : y + height, x : x + width]


@njit(nogil=True)
def _tables(header, huffman, words, image, kept, tables, rows):
    """Into rows (6,): the places of the components' DC tables, then of their AC tables; False if one is no code."""
    for c in range(header[COMPONENTS]):
        for ac in range(2):
            number = 4 * ac + np.int64(header[(AC_TABLE if ac else DC_TABLE) + c])
            place = kept_table(huffman[number], words[number], ac == 1, image, kept, tables)
            if place < 0:
                return False
            rows[3 * ac + c] = place
    return True


class _Outcome(NamedTuple):
    status: int
    scratch: int  # bytes that the image needs
    record: int  # bytes of what was learned


@njit(nogil=True)
def _decode(
    data, header, quant, huffman, words, job, kind, rule, table, fill, out, pixels, image, kept, tables, fixed, learned,
    base, size, seek, key, record, scratch,
):  # fmt: skip
    """One image to its place. image: as `kept_table` wants it; key: of the image, 0: neither look for points nor keep
    them; record: room for what is learned."""
    outside = _Outcome(np.int64(OUTSIDE), np.int64(0), np.int64(0))
    if not _fits(header, job) or out.shape[1] != job[_WINDOW + 3] or out.shape[2] != job[_WINDOW + 2]:
        return outside
    plan = _planned(header, job, kind, rule)
    region, height, width = plan.region, plan.bottom - plan.top, plan.right - plan.left
    passes = np.int64(0)
    if plan.resampled:
        passes = scratch_bytes(plan.vertical, plan.horizontal, height, width, kind, plan.vertical_first)
    at = _divided(header, region, passes, key != 0)
    if scratch.size < at.total:
        return _Outcome(np.int64(MORE_SCRATCH), at.total, np.int64(0))
    rows, layout = np.zeros(6, np.int32), np.empty(LAYOUT_SIZE, np.int32)
    if not _tables(header, huffman, words, image, kept, tables, rows):
        return _Outcome(np.int64(BAD_TABLE), at.total, np.int64(0))
    lay_out(header, rows, np.array([region.mcu_left, region.mcu_top, region.mcus_wide, 1], np.int32), layout)
    points, spacing, mcus = (
        scratch[at.points : at.total].view(np.int32).reshape(-1, POINT_SIZE),
        np.int64(0),
        np.int64(0),
    )
    if key:
        mcus = np.int64(header[MCUS_WIDE]) * np.int64(header[MCUS_HIGH])
        spacing = points_of(fixed, learned, base, size, key, mcus, np.int64(header[COMPONENTS]),
                            np.int64(header[SCAN_START]), data.size, points)  # fmt: skip
    learn = FINEST_SPACING if key and seek == LEARN and not spacing else 0
    status = _decode_planes(data, header, quant, region, layout, tables, spacing, learn, points, scratch, at)
    if status:
        return _Outcome(status, at.total, np.int64(0))
    packed = np.int64(0)
    if learn:
        packed = pack(points, points.shape[0], FINEST_SPACING, mcus, np.int64(header[COMPONENTS]), data.size,
                      record.size, key, record)  # fmt: skip
    wide, high = region.right - region.left, region.bottom - region.top
    if pixels.size and not plan.resampled and pixels.shape[0] == high and pixels.shape[1] == wide:
        done = _to_rgb(header, region, scratch, at, pixels)
        return _Outcome(np.int64(DONE), at.total, packed) if done else outside
    source = scratch[at.pixels : at.pixels + 3 * wide * high].reshape(high, wide, 3)
    if not _to_rgb(header, region, scratch, at, source):
        return outside
    target = _window(job, plan, table, fill, out)
    flip_h, flip_v = job[_FLIP_H] != 0, job[_FLIP_V] != 0
    if plan.resampled:
        resize_store(source, plan.vertical, plan.horizontal, kind, plan.vertical_first, table, flip_h, flip_v,
                     scratch[at.passes : at.points], target)  # fmt: skip
    else:
        store(source, table, flip_h, flip_v, target)
    return _Outcome(np.int64(DONE), at.total, packed)


_DATA = types.Array(types.uint8, 1, "C", readonly=True)
_I64, _I32, _U8, _U16, _U64 = types.int64, types.int32, types.uint8, types.uint16, types.uint64
_HEADERS = (types.int32[:, ::1], types.uint16[:, :, ::1], types.uint8[:, :, ::1])


@kernel([types.void(_DATA, _I64[::1], _I64[::1], *_HEADERS, _I64[::1])])
def read_headers(data, offsets, lengths, headers, quant, huffman, verdicts):
    """`parse_header` of each image, which lies in data at its offset, and what it returned."""
    for i in range(offsets.size):
        file = data[offsets[i] : offsets[i] + lengths[i]]
        verdicts[i] = parse_header(file, headers[i], quant[i], huffman[i])


_WORDS, _JOBS = types.uint64[:, :, ::1], types.int32[:, ::1]
_SLOTS = types.Array(types.uint64, 2, "C", readonly=True)
_TABLE, _BATCH = types.Array(types.uint8, 3, "C", readonly=True), types.Array(types.uint8, 5, "A")


@kernel(
    [
        types.int64(
            _DATA, _I64[::1], _I64[::1], *_HEADERS, _WORDS, _JOBS, _I64[::1], _I64, _I64, _TABLE, _I64[::1], _BATCH,
            types.uint8[:, :, ::1], types.uint64[:, ::1], types.int32[::1], _SLOTS, _SLOTS, _I64, _I64, _I64,
            _U64[::1], _I64[::1], _I64[::1], _U8[::1], _U8[::1], _U8[::1], _I64[::1],
        )
    ]
)  # fmt: skip
def decode_images(
    data, offsets, lengths, headers, quant, huffman, words, jobs, places, kind, rule, table, fill, out, pixels, kept,
    tables, fixed, learned, base, size, seek, keys, record_limits, record_sizes, records, scratch, stop, status,
):  # fmt: skip
    """Decode each image whose status is NOT_BEGUN; returns 0, or the scratch memory that the next one needs.

    kind, rule: the filter and the order of passes (resample_weights.py). table: uint8 (3, 256, size); fill: (3,), what
    is looked up outside an image. words: huffman as uint64. kept, tables: a thread's own (huffman.py). stop: (1,); once
    it isn't 0 no image is begun.
    """
    limits_end = np.int64(0)
    for i in range(offsets.size):
        record = records[limits_end : limits_end + record_limits[i]]
        limits_end += record_limits[i]
        if status[i] != NOT_BEGUN:
            continue
        if stop[0]:
            break
        kept[-1, 1] += np.uint64(1)
        file = data[offsets[i] : offsets[i] + lengths[i]]
        keys[i] = content_key(file) if seek and file.size >= LEAST_BYTES else np.uint64(0)
        done = _decode(file, headers[i], quant[i], huffman[i], words[i], jobs[i], kind, rule, table, fill,
                       out[places[i]], pixels, kept[-1, 1], kept, tables, fixed, learned, base, size, seek, keys[i],
                       record, scratch)  # fmt: skip
        if done.status == MORE_SCRATCH:
            return done.scratch
        status[i], record_sizes[i] = done.status, done.record
    return 0
