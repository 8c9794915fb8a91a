"""A task's JPEGs in one call without the GIL: from encoded bytes to the batch's memory, image by image.

    header -> tables -> a row of MCUs: entropy, IDCT -> ... -> upsample, colour -> resample, flip, look up, store

Rows of MCUs go through the entropy decoder and the IDCT one at a time, so that coefficients never leave the first-level
cache. With seek points each row is entered next to the crop's left edge; without them the scan is walked from its
start, and only as far as the crop needs: what follows is searched for markers, which is all that could make Pillow
refuse it. An image in which anything is wrong is left alone and its status says so; Pillow has the last word on it.

    headers   int32 (n, HEADER_SIZE), quant uint16 (n, 4, 64), huffman uint8 (n, 8, 272): as `parse_header` fills them
    jobs      int32 (n, JOB_SIZE)    see jpeg_plan.py
    places    int64 (n,)             row of `out` of each image
    out       uint8 (rows, 3, H, W, size), any strides: the batch, an element as its bytes (see resample.py)
    fixed, learned, base, size       the entropy index, see `points_of`; seek: NO_POINTS, READ or LEARN
    keys      uint64 (n,), record_sizes int64 (n,), records uint8: what was learned. Image i's record may take
                                     record_limits[i] bytes, and lies behind those that the images before it may take;
                                     its size is FROM_POINTS where seek points were there and were used
    pixels    uint8 (H, W, 3)        empty, or the memory of the one image in `out` where nothing is to be looked up or
                                     flipped: where nothing is resampled either, pixels are made in place
    status    int64 (n,)             `DONE`; why an image was left: an anomaly of entropy.py or one of REASONS

Owns the order of the steps. Which pixels they need is jpeg_plan.py's; the last ones, for crops that shrink so much
that a fraction of the image suffices, are decode_scaled.py's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpuload.kernels.color import gray_region_to_rgb, region_to_rgb
from gpuload.kernels.compile import kernel
from gpuload.kernels.entropy import BYTE, LAYOUT_SIZE, POINT_SIZE, TOP, decode_mcus, lay_out, sound_tail
from gpuload.kernels.huffman import kept_table
from gpuload.kernels.idct import idct_rows
from gpuload.kernels.idct_scaled import scale_for
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
from gpuload.kernels.jpeg_plan import FLIP_H, FLIP_V, SIZE, WINDOW, divided, fits, plane_of, planned, window_of
from gpuload.kernels.resample import resize_store, scratch_bytes, store
from gpuload.kernels.seek_points import FINEST_SPACING, content_key, pack, points_of
from numba import njit, types

DONE = 0
NOT_BEGUN, MORE_SCRATCH, BAD_TABLE, BAD_TAIL, OUTSIDE, SCALED, NOT_LEARNED = -1, -2, -3, -4, -5, -6, -7
REASONS = {
    NOT_BEGUN: "not begun",
    MORE_SCRATCH: "more scratch memory is needed",
    BAD_TABLE: "a Huffman table that is no code",
    BAD_TAIL: "a marker behind the decoded part of the scan, or no end-of-image marker",
    OUTSIDE: "a crop that reaches beyond its image, or a size that the kernels do not make",
    SCALED: "a fraction of the image suffices: decode_scaled.py's",
    NOT_LEARNED: "decoded, but the scan is damaged behind the crop: it has no seek points",
}
"""What a negative status means; positive ones are entropy.ANOMALIES'."""

FROM_POINTS = -1
NO_POINTS, READ, LEARN = 0, 1, 2
"""Whether seek points are used, and made where there are none."""
LEAST_BYTES = 4096
"""Files that are smaller are decoded sooner than their points pay."""


# LLVM optimises a function together with all that it calls, and again with those that call it: a level less here is
# two seconds less at the first start.
_spelled_out = njit(nogil=True, inline="always")


class Image(NamedTuple):
    """One image of a task. words: huffman as uint64. key: 0 where no seek points are wanted; record: room for its own.

    number: not 0, another one for each image (`kept_table`).
    """

    data: Any
    header: Any
    quant: Any
    huffman: Any
    words: Any
    job: Any
    key: Any
    record: Any
    number: Any


class Style(NamedTuple):
    """What is the same for all images: filter, order of passes, table, what is looked up beside an image, fidelity."""

    kind: int
    rule: int
    table: Any
    fill: Any
    fast: bool


class Index(NamedTuple):
    fixed: Any
    learned: Any
    base: int
    size: int
    seek: int


class Memory(NamedTuple):
    """A thread's own: built Huffman tables (huffman.py) and scratch."""

    kept: Any
    tables: Any
    scratch: Any


class Outcome(NamedTuple):
    status: int
    scratch: int  # bytes that the image needs
    record: int  # bytes of what was learned


@njit(nogil=True)
def frame_of(header, region):
    """What upsample.py calls a frame, int64 (3, 6), of the region's planes."""
    frame = np.empty((3, 6), np.int64)
    h_max, v_max = np.int64(header[H_MAX]), np.int64(header[V_MAX])
    for c in range(header[COMPONENTS]):
        h, v = np.int64(header[H + c]), np.int64(header[V + c])
        frame[c, 0], frame[c, 1] = 8 * region.mcu_top * v, 8 * region.mcu_left * h
        frame[c, 2] = (np.int64(header[WIDTH]) * h + h_max - 1) // h_max
        frame[c, 3] = (np.int64(header[HEIGHT]) * v + v_max - 1) // v_max
        frame[c, 4], frame[c, 5] = h_max // h, v_max // v
    return frame


@_spelled_out
def scales_of(header, job):
    """At what part of its size each component suffices, int64 (3,): log2 of the divisor (idct_scaled.py)."""
    scales = np.zeros(3, np.int64)
    for c in range(header[COMPONENTS]):
        h_expand, v_expand = np.int64(header[H_MAX] // header[H + c]), np.int64(header[V_MAX] // header[V + c])
        scales[c] = scale_for(np.int64(job[3]), np.int64(job[2]), np.int64(job[SIZE + 1]), np.int64(job[SIZE]),
                              h_expand, v_expand)  # fmt: skip
    return scales


@njit(nogil=True)
def _tables(image, memory, rows):
    """Into rows (6,): the places of the components' DC tables, then of their AC tables; False if one is no code."""
    for c in range(image.header[COMPONENTS]):
        for ac in range(2):
            number = 4 * ac + np.int64(image.header[(AC_TABLE if ac else DC_TABLE) + c])
            definition, words = image.huffman[number], image.words[number]
            place = kept_table(definition, words, ac == 1, image.number, memory.kept, memory.tables)
            if place < 0:
                return False
            rows[3 * ac + c] = place
    return True


def each_with(wanted: int, passes_bytes: Any, transform: Any, finish: Any) -> Any:
    """What `decode_images` does for the images whose status is `wanted`, with the functions in which fidelities differ.

    passes_bytes(header, plan, kind, scales): how much scratch `finish` needs. transform(header, quant, region, row,
    coefficients, last, scratch, at, scales): the IDCT of a row of MCUs. finish(header, plan, job, style, scratch, at,
    scales, out, pixels): planes to the batch, False where that is impossible. Numba could not keep what it compiled if
    they were arguments.
    """

    @_spelled_out
    def decode_planes(image, region, layout, tables, spacing, record, points, scratch, at, scales):
        """Entropy decoding and IDCT of the region, row of MCUs by row, to its planes in scratch; a status.

        points: enter each row by them, if spacing isn't 0; leave one in them every `record` MCUs, if that isn't 0: the
        scan is then walked to its end. What is wrong only behind the region is judged as without that walk.
        """
        data, header = image.data, image.header
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
                for k in range(POINT_SIZE):  # Numba takes 2 s to compile the same as one assignment
                    point[k] = points[mcu // spacing, k]
            end = first + region.mcus_wide
            status = decode_mcus(data, layout, tables, point, mcu, end, record, points, coefficients, last)
            if status:
                return status
            mcu = end
            transform(header, image.quant, region, row, coefficients, last, scratch, at, scales)
        if mcu == total or spacing:
            return np.int64(DONE)
        behind = np.int64(point[BYTE])
        if record:
            if decode_mcus(data, layout, tables, point, mcu, total, record, points, coefficients, last) == DONE:
                return np.int64(DONE)
        if not sound_tail(data, behind, header[RESTART_INTERVAL] != 0):
            return np.int64(BAD_TAIL)
        return np.int64(NOT_LEARNED if record else DONE)

    @_spelled_out
    def decode(image, style, index, memory, out, pixels):
        """One image to its place."""
        header, job, data = image.header, image.job, image.data
        outside = Outcome(np.int64(OUTSIDE), np.int64(0), np.int64(0))
        if not fits(header, job) or out.shape[1] != job[WINDOW + 3] or out.shape[2] != job[WINDOW + 2]:
            return outside
        plan = planned(header, job, style.kind, style.rule)
        scales = np.zeros(3, np.int64)
        if style.fast and plan.resampled:
            scales = scales_of(header, job)
            if wanted != SCALED and (scales[0] or scales[1] or scales[2]):
                return Outcome(np.int64(SCALED), np.int64(0), np.int64(0))
        at = divided(header, plan.region, passes_bytes(header, plan, style.kind, scales), image.key != 0)
        scratch = memory.scratch
        if scratch.size < at.total:
            return Outcome(np.int64(MORE_SCRATCH), at.total, np.int64(0))
        rows, layout = np.zeros(6, np.int32), np.empty(LAYOUT_SIZE, np.int32)
        if not _tables(image, memory, rows):
            return Outcome(np.int64(BAD_TABLE), at.total, np.int64(0))
        region = plan.region
        window = np.empty(4, np.int32)
        window[0], window[1], window[2], window[3] = region.mcu_left, region.mcu_top, region.mcus_wide, 1
        lay_out(header, rows, window, layout)
        points = scratch[at.points : at.total].view(np.int32).reshape(-1, POINT_SIZE)
        mcus, components = np.int64(header[MCUS_WIDE]) * np.int64(header[MCUS_HIGH]), np.int64(header[COMPONENTS])
        spacing = np.int64(0)
        if image.key:
            spacing = points_of(index.fixed, index.learned, index.base, index.size, image.key, mcus, components,
                                np.int64(header[SCAN_START]), data.size, points)  # fmt: skip
        learn = FINEST_SPACING if image.key and index.seek == LEARN and not spacing else 0
        status = decode_planes(image, region, layout, memory.tables, spacing, learn, points, scratch, at, scales)
        if status and status != NOT_LEARNED:
            return Outcome(status, at.total, np.int64(0))
        packed = np.int64(FROM_POINTS if spacing else 0)
        if learn and status == DONE:
            packed = pack(points, points.shape[0], FINEST_SPACING, mcus, components, data.size, image.record.size,
                          image.key, image.record)  # fmt: skip
        if not finish(header, plan, job, style, scratch, at, scales, out, pixels):
            return outside
        return Outcome(np.int64(DONE), at.total, packed)

    @_spelled_out
    def each(
        data, offsets, lengths, headers, quant, huffman, words, jobs, places, style, index, memory, keys, record_limits,
        record_sizes, records, out, pixels, stop, status,
    ):  # fmt: skip
        limits_end = np.int64(0)
        for i in range(offsets.size):
            record = records[limits_end : limits_end + record_limits[i]]
            limits_end += record_limits[i]
            if status[i] != wanted:
                continue
            if stop[0]:
                break
            memory.kept[-1, 1] += np.uint64(1)
            file = data[offsets[i] : offsets[i] + lengths[i]]
            keys[i] = content_key(file) if index.seek and file.size >= LEAST_BYTES else np.uint64(0)
            image = Image(
                file, headers[i], quant[i], huffman[i], words[i], jobs[i], keys[i], record, memory.kept[-1, 1]
            )
            done = decode(image, style, index, memory, out[places[i]], pixels)
            if done.status == MORE_SCRATCH:
                return done.scratch
            status[i], record_sizes[i] = done.status, done.record
        return np.int64(0)

    return each


# ---- the steps of the exact fidelity


@_spelled_out
def _passes_bytes(header, plan, kind, scales):
    if not plan.resampled:
        return np.int64(0)
    height, width = plan.bottom - plan.top, plan.right - plan.left
    return scratch_bytes(plan.vertical, plan.horizontal, height, width, kind, plan.vertical_first)


@_spelled_out
def _transform(header, quant, region, row, coefficients, last, scratch, at, scales):
    """A row of MCUs to the planes: their 8x8 samples a block."""
    block, start = np.int64(0), at.planes
    for c in range(header[COMPONENTS]):
        h, v = np.int64(header[H + c]), np.int64(header[V + c])
        plane = plane_of(header, region, c, scratch, start)
        idct_rows(
            coefficients, block, region.mcus_wide * h, v, last, quant[header[QUANT_TABLE + c]], plane, 8 * v * row
        )
        block += region.mcus_wide * h * v
        start += plane.size


@njit(nogil=True)
def _to_rgb(header, region, scratch, at, pixels):
    """The region's planes to pixels, uint8 (h, w, 3)."""
    frame = frame_of(header, region)
    left, top, right, bottom = region.left, region.top, region.right, region.bottom
    rows = scratch[at.rows : at.rows + 3 * (right - left)].reshape(3, right - left)
    luma = plane_of(header, region, 0, scratch, at.planes)
    if header[COMPONENTS] == 1:
        return gray_region_to_rgb(luma, frame[0], top, bottom, left, right, rows, pixels, 0, 0)
    blue = plane_of(header, region, 1, scratch, at.planes + luma.size)
    red = plane_of(header, region, 2, scratch, at.planes + luma.size + blue.size)
    is_ycc = header[COLOR] == YCBCR
    return region_to_rgb(luma, blue, red, frame, is_ycc, top, bottom, left, right, rows, pixels, 0, 0)


@_spelled_out
def _finish(header, plan, job, style, scratch, at, scales, out, pixels):
    """Planes to pixels, to the batch."""
    region = plan.region
    wide, high = region.right - region.left, region.bottom - region.top
    if pixels.size and not plan.resampled and pixels.shape[0] == high and pixels.shape[1] == wide:
        return _to_rgb(header, region, scratch, at, pixels)
    source = scratch[at.pixels : at.pixels + 3 * wide * high].reshape(high, wide, 3)
    if not _to_rgb(header, region, scratch, at, source):
        return False
    target = window_of(job, plan, style.table, style.fill, out)
    flip_h, flip_v = job[FLIP_H] != 0, job[FLIP_V] != 0
    if plan.resampled:
        resize_store(source, plan.vertical, plan.horizontal, style.kind, plan.vertical_first, style.table, flip_h,
                     flip_v, scratch[at.passes : at.points], target)  # fmt: skip
    else:
        store(source, style.table, flip_h, flip_v, target)
    return True


_each = each_with(NOT_BEGUN, _passes_bytes, _transform, _finish)


# ---- for Python


_DATA = types.Array(types.uint8, 1, "C", readonly=True)
_I64, _U8, _U64 = types.int64, types.uint8, types.uint64
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

SIGNATURE = types.int64(
    _DATA, _I64[::1], _I64[::1], *_HEADERS, _WORDS, _JOBS, _I64[::1], _I64, _I64, _TABLE, _I64[::1], types.boolean,
    _BATCH, types.uint8[:, :, ::1], types.uint64[:, ::1], types.int32[::1], _U8[::1], _SLOTS, _SLOTS, _I64, _I64, _I64,
    _U64[::1], _I64[::1], _I64[::1], _U8[::1], _U8[::1], _I64[::1],
)  # fmt: skip


@kernel([SIGNATURE])
def decode_images(
    data, offsets, lengths, headers, quant, huffman, words, jobs, places, kind, rule, table, fill, fast, out, pixels,
    kept, tables, scratch, fixed, learned, base, size, seek, keys, record_limits, record_sizes, records, stop, status,
):  # fmt: skip
    """Decode each image whose status is NOT_BEGUN; returns 0, or the scratch memory that the next one needs.

    kind, rule: the filter and the order of passes (resample_weights.py). table: uint8 (3, 256, size); fill: (3,), what
    is looked up outside an image. fast: leave images of which a fraction suffices to decode_scaled.py. words: huffman
    as uint64. kept, tables: a thread's own (huffman.py). stop: (1,); once it isn't 0 no image is begun.
    """
    style, index = Style(kind, rule, table, fill, fast), Index(fixed, learned, base, size, seek)
    memory = Memory(kept, tables, scratch)
    return _each(
        data, offsets, lengths, headers, quant, huffman, words, jobs, places, style, index, memory, keys, record_limits,
        record_sizes, records, out, pixels, stop, status,
    )  # fmt: skip
