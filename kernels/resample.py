"""A crop to the size that the network wants, bit for bit what Pillow's `resize` gives, stored straight into the batch.

Pillow resizes 8-bit images in two passes, one along each axis, with an 8-bit image in between:

    out[i] = clip((2^21 + sum_k weight[i, k] * source[first[i] + k]) >> 22)          32-bit integers

Which axis comes first shows in the last bit (`resample_weights.vertical_first`). A pass along an axis whose size stays
the same has weights of 1 and 0 and changes nothing, so what Pillow skips is not skipped here.

source: uint8 (h, w, 3), pixels contiguous, rows at any distance: all of the image that is resized or a part of it
(`Axis.source_start`). out: (3, H, W), any strides: a window of the resized image, mirrored, through a table of 256
elements a channel. Elements are only moved, so one kernel serves every type: both come as bytes, table uint8
(3, 256, size), out uint8 (3, H, W, size), size 1, 2, 4 or 8. The rows of the last pass are stored a block at a time,
while they are in the first-level cache: the RGB image is never written.

A vector is 16 bytes of a row, as 32-bit lanes, times one weight: that is the vertical pass. The horizontal one is the
same on a block of 16 rows that was transposed to columns of 16 bytes and is transposed back. The transposing takes a
quarter of that pass; gathering each pixel's taps and adding across lanes instead took 1.7 times as long in all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.resample_weights import (
    AXIS,
    BITS,
    HALF,
    HAMMING,
    LANCZOS,
    Axis,
    coefficients_reference,
    fill_coefficients,
    source_span,
    tap_limit,
)
from gpuload.kernels.simd import Memory, Vector, splat, vector_code
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

_ROWS = 16  # of a block: as many as a vector has lanes
_WIDE = 32  # bytes of each row that are transposed at a time


def resize_reference(source: np.ndarray, height: int, width: int, kind: int, vertical_first: bool) -> np.ndarray:
    """NumPy reference of both passes. source: uint8 (h, w, 3); returns uint8 (height, width, 3)."""
    for axis in (0, 1) if vertical_first else (1, 0):
        lines = np.moveaxis(source, axis, 0).astype(np.int64)
        firsts, weights = coefficients_reference(lines.shape[0], (height, width)[axis], kind)
        out = [np.tensordot(w, lines[f : f + len(w)], 1) for f, w in zip(firsts, weights, strict=True)]
        source = np.moveaxis(np.clip((np.stack(out) + HALF) >> BITS, 0, 255).astype(np.uint8), 0, axis)
    return source


# ---- vectors. What is read may be the source or the scratch memory, so it comes as an address.


_I32, _I64 = ir.IntType(32), ir.IntType(64)


def bytes_at(builder: Any, address: Any) -> Memory:
    return Memory(builder, builder.inttoptr(address, ir.IntType(8).as_pointer()))


def _emit_columns(vectors: int) -> Any:
    """target[at ...] = the weighted sum of `taps` rows, `stride` apart; 16 * vectors bytes of them."""

    def columns(target, at, source, stride, taps, weights, first_weight):
        builder, rows = target.builder, bytes_at(target.builder, source)
        half = ir.Constant(ir.VectorType(_I32, 16), [HALF] * 16)
        totals = [cgutils.alloca_once_value(builder, half) for _ in range(vectors)]
        with cgutils.for_range(builder, taps) as loop:
            weight = builder.load(builder.gep(weights.data, [builder.add(first_weight, loop.index)]))
            weight = splat(builder, weight, 16, 32)
            row = builder.mul(stride, loop.index)
            for v, total in enumerate(totals):
                pixels = rows.load(row, 16, 8, 16 * v).widen(32, signed=False)
                builder.store((Vector(builder, builder.load(total)) + pixels * weight).value, total)
        for v, total in enumerate(totals):
            target.store(at, (Vector(builder, builder.load(total)) >> BITS).clamp(0, 255).narrow(8), 16 * v)

    return vector_code(columns)


_columns_16, _columns_48, _columns_64 = _emit_columns(1), _emit_columns(3), _emit_columns(4)


def _transposed(rows: list[Vector]) -> list[Vector]:
    """16 vectors of 32 bytes, either half by itself: byte i of half h of vector j changes places with byte j of i's."""
    low = [half + k for half in (0, 16) for i in range(8) for k in (i, i + 32)]
    for _ in range(4):  # each round moves one bit of the row's number to the place of a bit of the column's
        pairs = list(zip(rows[:8], rows[8:], strict=True))
        rows = [one.pick(other, [k + part for k in low]) for one, other in pairs for part in (0, 8)]
    return rows


@vector_code
def columns_from_rows(target, at, source, stride):
    """32 bytes of each of 16 rows, `stride` apart: 32 columns of 16 bytes, one after the other."""
    rows = bytes_at(target.builder, source)
    offsets = [target.builder.mul(stride, _I64(k)) for k in range(_ROWS)]
    for k, column in enumerate(_transposed([rows.load(offset, _WIDE, 8) for offset in offsets])):
        for h, half in enumerate(column.halves()):
            target.store(at, half, 16 * (k + 16 * h))


@vector_code
def rows_from_columns(target, at, source, stride):
    """The way back: 32 columns of 16 bytes become 32 bytes of each of 16 rows, `stride` apart."""
    columns = bytes_at(target.builder, source)
    halves = [columns.load(_I64(0), 16, 8, 16 * k) for k in range(_WIDE)]
    joined = [one.pick(other, range(_WIDE)) for one, other in zip(halves[:16], halves[16:], strict=True)]
    for k, row in enumerate(_transposed(joined)):
        target.store(target.builder.add(at, target.builder.mul(stride, _I64(k))), row)


@vector_code
def _move_byte(target, at, source):
    target.store(at, bytes_at(target.builder, source).load(_I64(0), 1, 8))


def _emit_look_up(size: int) -> Any:
    """A row of `count` pixels through the table to the target: pixels `stride`, channels `plane` bytes apart.

    mirror: 0 or 1. Where a channel's elements lie side by side, 4 pixels are read as two words and stored as a vector
    for each channel: single bytes and elements, one access each, took 1.7 times as long. Writes go upwards even when
    mirrored: downwards they took 40 us longer into memory outside the caches.
    """

    def look_up(pixels, at, mirror, table, target, plane, stride, count):
        builder, kind = pixels.builder, ir.IntType(8 * size)
        entries, out = bytes_at(builder, table), bytes_at(builder, target)
        mirrored = builder.icmp_signed("!=", mirror, _I64(0))

        def word(first: Any, of: int, ahead: int, bits: int) -> Any:
            """Bits of the `of` pixels that go to places first ...: a mirrored row is read, not written, backwards."""
            back = builder.sub(builder.sub(count, _I64(of)), first)
            place = builder.mul(builder.select(mirrored, back, first), _I64(3))
            pointer = builder.gep(pixels.data, [builder.add(at, builder.add(place, _I64(ahead)))])
            value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, _I64)

        def element(channel: int, byte: Any) -> Any:
            place = builder.add(builder.mul(byte, _I64(size)), _I64(256 * size * channel))
            return builder.load(builder.bitcast(builder.gep(entries.data, [place]), kind.as_pointer()), align=1)

        def put(value: Any, channel: int, place: Any) -> None:
            place = builder.add(place, builder.mul(plane, _I64(channel)))
            pointer = builder.bitcast(builder.gep(out.data, [place]), value.type.as_pointer())
            builder.store(value, pointer, align=1)

        side_by_side = builder.icmp_signed("==", stride, _I64(size))
        fours = builder.select(side_by_side, builder.ashr(count, _I64(2)), _I64(0))
        with cgutils.for_range(builder, fours) as loop:
            first = builder.shl(loop.index, _I64(2))
            words = word(first, 4, 0, 64), word(first, 4, 8, 32)
            bytes_ = [builder.and_(builder.lshr(words[k // 8], _I64(8 * (k % 8))), _I64(255)) for k in range(12)]
            for channel in range(3):
                four = ir.Constant(ir.VectorType(kind, 4), ir.Undefined)
                for k in range(4):
                    four = builder.insert_element(four, element(channel, bytes_[3 * k + channel]), _I32(k))
                turned = Vector(builder, four).pick(Vector(builder, four), [3, 2, 1, 0]).value
                put(builder.select(mirrored, turned, four), channel, builder.mul(first, _I64(size)))
        done = builder.shl(fours, _I64(2))
        with cgutils.for_range(builder, builder.sub(count, done)) as loop:
            k = builder.add(done, loop.index)
            for channel in range(3):
                put(element(channel, word(k, 1, channel, 8)), channel, builder.mul(k, stride))

    return vector_code(look_up)


_look_up_1, _look_up_2, _look_up_4, _look_up_8 = (_emit_look_up(size) for size in (1, 2, 4, 8))


# ---- passes


@njit(nogil=True)
def _row_of_columns(scratch, at, source, stride, taps, weights, y, count):
    """Row y of the vertical pass, `count` bytes, from rows that begin at `source`; no byte beyond is read."""
    first_weight = weights.shape[1] * y
    if count < 16:
        for x in range(count):
            total = np.int64(HALF)
            for k in range(taps):
                _move_byte(scratch, at + x, source + k * stride + x)
                total += np.int64(scratch[at + x]) * np.int64(weights[y, k])
            scratch[at + x] = min(max(total >> BITS, 0), 255)
        return
    x = np.int64(0)
    while x + 64 <= count:
        _columns_64(scratch, at + x, source + x, stride, taps, weights, first_weight)
        x += 64
    while x < count:  # the last 16 overlap those before
        x = min(x, count - 16)
        _columns_16(scratch, at + x, source + x, stride, taps, weights, first_weight)
        x += 16


@njit(nogil=True)
def _block_of_rows(scratch, at, at_stride, source, stride, rows, row_bytes, bounds, taps, weights, columns, resized):
    """The horizontal pass over a block of 16 rows; in an image of fewer `rows`, the others have no meaning.

    Every pixel takes as many taps (a row of weights ends in zeros), so that the loop's end is no surprise.
    columns, resized: places for the transposed block before and after.
    """
    if rows == _ROWS and row_bytes >= _WIDE:
        x = np.int64(0)
        while x < row_bytes:  # the last 32 bytes overlap those before
            x = min(x, row_bytes - _WIDE)
            columns_from_rows(scratch, columns + _ROWS * x, source + x, stride)
            x += _WIDE
    else:
        for y in range(rows):
            for x in range(row_bytes):
                _move_byte(scratch, columns + _ROWS * x + y, source + y * stride + x)
    base = np.int64(scratch.ctypes.data)
    for i in range(bounds.shape[0]):
        first = base + columns + 3 * _ROWS * bounds[i, 0]
        _columns_48(scratch, resized + 3 * _ROWS * i, first, 3 * _ROWS, taps, weights, weights.shape[1] * i)
    for x in range(0, 3 * bounds.shape[0], _WIDE):
        rows_from_columns(scratch, at + x, base + resized + _ROWS * x, at_stride)


@njit(nogil=True)
def store_row(scratch, at, mirror, table, target, plane, stride, size, count):
    if size == 1:
        _look_up_1(scratch, at, mirror, table, target, plane, stride, count)
    elif size == 2:
        _look_up_2(scratch, at, mirror, table, target, plane, stride, count)
    elif size == 4:
        _look_up_4(scratch, at, mirror, table, target, plane, stride, count)
    else:
        _look_up_8(scratch, at, mirror, table, target, plane, stride, count)


@njit(nogil=True)
def store(source, table, flip_h, flip_v, out):
    """out[c, y, x] = table[c, source[y', x', c]]: what `resize_store` does where nothing is resized. Checks nothing."""
    table_at, out_at = np.int64(table.ctypes.data), np.int64(out.ctypes.data)
    mirror = 1 if flip_h else 0
    height, stride = source.shape[0], source.strides[0]
    pixels = source.reshape(-1)
    for y in range(height):
        target = out_at + (height - 1 - y if flip_v else y) * out.strides[1]
        store_row(pixels, y * stride, mirror, table_at, target, out.strides[0], out.strides[2], out.shape[3],
                   source.shape[1])  # fmt: skip


# ---- both passes and the store


class _Layout(NamedTuple):
    """Where each piece of the scratch memory begins, in bytes; the bounds of the vertical axis are the first."""

    taps_v: int
    taps_h: int
    bounds_h: int
    weights_v: int
    weights_h: int
    work: int
    columns: int
    resized: int
    block: int
    block_stride: int
    middle: int
    middle_stride: int
    total: int


@njit(nogil=True)
def lines(size):
    return (size + 63) // 64 * 64


@njit(nogil=True)
def _layout(vertical, horizontal, height, width, kind, vertical_first):
    rows, columns = source_span(vertical, kind, height), source_span(horizontal, kind, width)
    taps_v = tap_limit(vertical.in_size, vertical.out_size, kind)
    taps_h = tap_limit(horizontal.in_size, horizontal.out_size, kind)
    row_stride, block_stride = lines(3 * (columns.stop - columns.start)), lines(3 * width)
    bounds_h = lines(8 * height)
    weights_v = bounds_h + lines(8 * width)
    weights_h = weights_v + lines(4 * height * taps_v)
    work = weights_h + lines(4 * width * taps_h)
    columns_at = work + lines(8 * max(taps_v, taps_h))
    resized = columns_at + _ROWS * row_stride + 3 * _ROWS * lines(taps_h)  # taps of weight 0 reach beyond the row
    block = resized + _ROWS * block_stride
    middle = block + _ROWS * block_stride
    middle_stride = row_stride if vertical_first else block_stride
    middle_rows = _ROWS + (height if vertical_first else rows.stop - rows.start)  # whole blocks are read or written
    return _Layout(
        taps_v, taps_h, bounds_h, weights_v, weights_h, work, columns_at, resized, block, block_stride, middle,
        middle_stride, middle + middle_rows * middle_stride + 64,
    )  # fmt: skip


@njit(nogil=True)
def int32_view(scratch, at, rows, columns):
    return scratch[at : at + 4 * rows * columns].view(np.int32).reshape(rows, columns)


@njit(nogil=True)
def _check(source, vertical, horizontal, kind, table, out):
    height, width = out.shape[1], out.shape[2]
    if not LANCZOS <= kind <= HAMMING:
        raise ValueError("the filter must be one of resample_weights'")
    for axis, count in ((vertical, height), (horizontal, width)):
        if not 0 < axis.in_size <= 65535 or axis.out_start < 0 or not axis.out_start + count <= axis.out_size <= 65535:
            raise ValueError("an axis must have 1 to 65535 pixels before and after, and out must lie within the latter")
    size = out.shape[3]
    if not (size == 1 or size == 2 or size == 4 or size == 8) or (size > 1 and out.strides[3] != 1):
        raise ValueError("an element of out must have 1, 2, 4 or 8 bytes, contiguous")
    if out.shape[0] != 3 or table.shape[0] != 3 or table.shape[1] != 256 or table.shape[2] != size:
        raise ValueError("out must have 3 channels, and table 256 elements of out's size for each")
    if source.shape[2] != 3 or source.strides[2] != 1 or (source.shape[1] > 1 and source.strides[1] != 3):
        raise ValueError("source must have 3 channels, contiguous, and contiguous pixels in a row")
    if source.shape[0] > 1 and source.strides[0] < 3 * source.shape[1]:
        raise ValueError("the rows of source must neither overlap nor be in reverse order")


@njit(nogil=True)
def _passes_and_store(source, vertical, horizontal, kind, vertical_first, table, flip_h, flip_v, scratch, out):
    height, width, size = out.shape[1], out.shape[2], out.shape[3]
    rows, columns = source_span(vertical, kind, height), source_span(horizontal, kind, width)
    top, left = rows.start - vertical.source_start, columns.start - horizontal.source_start
    count, row_bytes = rows.stop - rows.start, 3 * (columns.stop - columns.start)
    if top < 0 or left < 0 or top + count > source.shape[0] or 3 * left + row_bytes > 3 * source.shape[1]:
        raise ValueError("source lacks rows or columns that the outputs read: see source_span")
    at = _layout(vertical, horizontal, height, width, kind, vertical_first)
    if scratch.size < at.total:
        raise ValueError("scratch is smaller than scratch_bytes says")
    scratch = scratch[-np.int64(scratch.ctypes.data) % 64 :]
    base, stride = np.int64(scratch.ctypes.data), np.int64(source.strides[0])
    origin = np.int64(source.ctypes.data) + top * stride + 3 * left

    bounds_v, weights_v = int32_view(scratch, 0, height, 2), int32_view(scratch, at.weights_v, height, at.taps_v)
    bounds_h = int32_view(scratch, at.bounds_h, width, 2)
    weights_h = int32_view(scratch, at.weights_h, width, at.taps_h)
    work = scratch[at.work : at.work + 8 * max(at.taps_v, at.taps_h)].view(np.float64)
    down = Axis(vertical.in_size, rows.start, vertical.out_size, vertical.out_start)
    along = Axis(horizontal.in_size, columns.start, horizontal.out_size, horizontal.out_start)
    fill_coefficients(down, kind, work, bounds_v, weights_v)
    fill_coefficients(along, kind, work, bounds_h, weights_h)
    most = np.int64(0)
    for i in range(width):
        most = max(most, np.int64(bounds_h[i, 1]))

    middle, across = base + at.middle, at.middle_stride
    if vertical_first:
        for y in range(height):
            first, taps = origin + bounds_v[y, 0] * stride, np.int64(bounds_v[y, 1])
            _row_of_columns(scratch, at.middle + y * across, first, stride, taps, weights_v, y, row_bytes)
    else:
        for y in range(0, count, _ROWS):
            y = max(min(y, count - _ROWS), 0)  # the last block overlaps the one before
            _block_of_rows(scratch, at.middle + y * across, across, origin + y * stride, stride, min(count, _ROWS),
                           row_bytes, bounds_h, most, weights_h, at.columns, at.resized)  # fmt: skip

    table_at, out_at = np.int64(table.ctypes.data), np.int64(out.ctypes.data)
    mirror = 1 if flip_h else 0
    for top in range(0, height, _ROWS):
        count = min(_ROWS, height - top)
        if vertical_first:
            _block_of_rows(scratch, at.block, at.block_stride, middle + top * across, across, _ROWS, across, bounds_h,
                           most, weights_h, at.columns, at.resized)  # fmt: skip
        else:
            for k in range(count):
                first, taps = middle + bounds_v[top + k, 0] * across, np.int64(bounds_v[top + k, 1])
                row = at.block + k * at.block_stride
                _row_of_columns(scratch, row, first, across, taps, weights_v, top + k, at.block_stride)
        for k in range(count):
            target = out_at + (height - 1 - top - k if flip_v else top + k) * out.strides[1]
            row = at.block + k * at.block_stride
            store_row(scratch, row, mirror, table_at, target, out.strides[0], out.strides[2], size, width)


@kernel([types.int64(AXIS, AXIS, types.int64, types.int64, types.int64, types.boolean)])
def scratch_bytes(vertical, horizontal, height, width, kind, vertical_first):
    """The scratch memory that `resize_store` needs for an out of height x width, in bytes."""
    return _layout(vertical, horizontal, height, width, kind, vertical_first).total


_IMAGE, _TABLE = (types.Array(types.uint8, 3, layout, readonly=True) for layout in "AC")
_OUT = types.Array(types.uint8, 4, "A")
_BOOL, _INT = types.boolean, types.int64


@kernel([types.void(_IMAGE, AXIS, AXIS, _INT, _BOOL, _TABLE, _BOOL, _BOOL, types.uint8[::1], _OUT)])
def resize_store(source, vertical, horizontal, kind, vertical_first, table, flip_h, flip_v, scratch, out):
    """Resize, flip, look up, store: out[c, y, x] = table[c, resized[vertical.out_start + y', ... + x', c]].

    source must hold what `source_span` names of either axis; scratch, uint8 of `scratch_bytes` or more, has no
    meaning before or after. ValueError, before anything is written, for sizes that do not fit.
    """
    _check(source, vertical, horizontal, kind, table, out)
    if out.size:
        _passes_and_store(source, vertical, horizontal, kind, vertical_first, table, flip_h, flip_v, scratch, out)
