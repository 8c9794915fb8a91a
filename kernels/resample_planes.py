"""A crop to the size that the network wants, straight from a JPEG's planes: the `fast` fidelity.

Resizing and converting colours are linear up to rounding, so their order may change. Here every plane is resized at its
own resolution (plane_weights.py), and colours are converted at the output's size: nothing is upsampled, no image of the
crop's size is written, and of a plane at half the resolution a quarter of the samples is read. From unscaled planes the
result differs from the exact one (resample.py) by 0.33 of 255 in the mean (photographs), which rounding makes.

planes: uint8, C-contiguous, each a part of its component. frame: int64 (components, 7): top, left, width, height,
h_expand, v_expand, scale: as upsample.py's, where the size is the component's true one, unscaled; scale is the
logarithm to base 2 of what the plane was scaled down by (idct_scaled.py), and top and left count the plane's own
samples: where its upper left one stands in the scaled component. vertical, horizontal: resample_weights.Axis, in_size
the crop's size and source_start minus the crop's place: where the image begins, counted from the crop.

First comes the vertical pass, a block of 16 output rows at a time, to 8 bits; the block is transposed to columns of 16
bytes for the horizontal one; colours are converted, and the result is transposed back. It all fits the first cache.
The vectors are plane_passes.py's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpuload.kernels.compile import on_demand
from gpuload.kernels.jpeg_header import GREY, YCBCR
from gpuload.kernels.plane_passes import (
    MOST_NARROW,
    NARROW_BITS,
    ROWS,
    column,
    grey,
    rgb,
    vertical_row,
    wide_column,
    ycc,
)
from gpuload.kernels.plane_weights import PlaneAxis, fill_plane_weights, plane_axis, sample_limit, samples_read
from gpuload.kernels.resample import columns_from_rows, int32_view, lines, rows_from_columns, store_row
from gpuload.kernels.resample_weights import AXIS, BITS, HAMMING, LANCZOS, coefficients_reference, tap_limit
from gpuload.kernels.upsample import interpolates
from numba import njit, types

_WIDE = 32  # bytes that columns_from_rows takes at a time


def planes_reference(
    planes: list[np.ndarray], frame: np.ndarray, color: int, vertical: Any, horizontal: Any, kind: int
) -> np.ndarray:
    """NumPy reference: planes that hold all of their components -> uint8 (vertical.out_size, horizontal.out_size, 3).

    Every plane is upsampled as real numbers, the crop cut out and resized along either axis.
    """
    resized = []
    for plane, (_, _, width, height, h_expand, v_expand, scale) in zip(planes, frame.tolist(), strict=True):
        smooth = scale == 0 and interpolates(h_expand, v_expand, width)
        pixels = plane.astype(np.float64)
        for axis, expand, size, vital in ((0, v_expand, height, vertical), (1, h_expand, width, horizontal)):
            pixels = np.moveaxis(pixels, axis, 0)[: -(-size >> scale)]
            if smooth and expand == 2:
                before, after = np.concatenate([pixels[:1], pixels[:-1]]), np.concatenate([pixels[1:], pixels[-1:]])
                pixels = np.stack([0.75 * pixels + 0.25 * before, 0.75 * pixels + 0.25 * after], 1)
                pixels = pixels.reshape(-1, pixels.shape[-1])
            else:
                pixels = pixels.repeat(expand << scale, axis=0)
            pixels = pixels[-vital.source_start :][: vital.in_size]
            firsts, weights = coefficients_reference(vital.in_size, vital.out_size, kind)
            rows = [np.tensordot(w, pixels[f : f + len(w)], 1) for f, w in zip(firsts, weights, strict=True)]
            pixels = np.moveaxis(np.stack(rows) / (1 << BITS), 0, axis)
            pixels = np.clip(np.rint(pixels) if axis == 0 else pixels, 0, 255)
        resized.append(pixels)
    if color == YCBCR:
        luma, blue, red = resized[0], resized[1] - 128, resized[2] - 128
        resized = [luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue]
    return np.clip(np.rint(np.stack((resized * 3)[:3], axis=-1)), 0, 255).astype(np.uint8)


class _Layout(NamedTuple):
    """Where each piece of the scratch memory begins, in bytes; a part for each component, with four tables, the first
    at 0, and a block of outputs."""

    limit_v: int
    limit_h: int
    bounds_h: int
    weights_v: int
    weights_h: int
    resized: int
    part: int
    rows: int
    row_stride: int
    columns: int
    colors: int
    block: int
    block_stride: int
    pixels: int
    samples: int
    total: int


@njit(nogil=True)
def _layout(frame, vertical, horizontal, height, width, kind):
    limit_v, limit_h, widest = np.int64(0), np.int64(0), np.int64(0)
    for c in range(frame.shape[0]):
        down, along = plane_axis(frame, c, 0, 0), plane_axis(frame, c, 1, 0)
        span = samples_read(horizontal, along, kind, width)
        limit_v = max(limit_v, sample_limit(vertical, down, kind))
        limit_h = max(limit_h, sample_limit(horizontal, along, kind))
        widest = max(widest, span.stop - span.start)
    bounds_h = lines(8 * height)
    weights_v = bounds_h + lines(8 * width)
    weights_h = weights_v + lines(4 * height * limit_v)
    resized = weights_h + lines(4 * width * limit_h)
    part = resized + lines(2 * ROWS * (width + 1))  # colours are converted two at a time
    rows = frame.shape[0] * part
    row_stride, block_stride = lines(widest), lines(3 * width)
    columns = rows + ROWS * row_stride
    colors = columns + ROWS * (row_stride + limit_h)  # terms of weight 0 reach beyond the row
    block = colors + ROWS * (block_stride + 3)
    pixels = block + ROWS * block_stride
    most = max(tap_limit(vertical.in_size, vertical.out_size, kind),
               tap_limit(horizontal.in_size, horizontal.out_size, kind))  # fmt: skip
    samples = pixels + lines(8 * most)
    return _Layout(
        limit_v, limit_h, bounds_h, weights_v, weights_h, resized, part, rows, row_stride, columns, colors, block,
        block_stride, pixels, samples, samples + lines(8 * max(limit_v, limit_h)) + 64,
    )  # fmt: skip


class _Part(NamedTuple):
    """A component's tables begin at `tables`, its block of outputs at `resized`; its samples at an address, `stride`
    apart; `columns` of them are read, by as many as `taps` at a time."""

    tables: int
    resized: int
    source: int
    stride: int
    columns: int
    taps: int
    wide_v: bool
    wide_h: bool


@njit(nogil=True)
def _part(plane, frame, c, tables, vertical, horizontal, height, width, kind, scratch, at):
    """Component c's, whose tables begin at `tables`; they are filled if that is its own place."""
    down, along = plane_axis(frame, c, 0, plane.shape[0]), plane_axis(frame, c, 1, plane.shape[1])
    columns = samples_read(horizontal, along, kind, width)
    source = np.int64(plane.ctypes.data) + columns.start - along.start
    along = PlaneAxis(columns.start, along.held, along.size, along.pixels, along.smooth)
    wide_v = sample_limit(vertical, down, kind) > MOST_NARROW
    wide_h = sample_limit(horizontal, along, kind) > MOST_NARROW
    bounds_h = int32_view(scratch, tables + at.bounds_h, width, 2)
    if tables == at.part * c:
        pixels = scratch[at.pixels : at.samples].view(np.float64)
        samples = scratch[at.samples : at.samples + 8 * max(at.limit_v, at.limit_h)].view(np.float64)
        weights_v = int32_view(scratch, tables + at.weights_v, height, at.limit_v)
        weights_h = int32_view(scratch, tables + at.weights_h, width, at.limit_h)
        bits = BITS if wide_v else NARROW_BITS
        bounds_v = int32_view(scratch, tables, height, 2)
        fill_plane_weights(vertical, down, kind, bits, pixels, samples, bounds_v, weights_v)
        bits = BITS if wide_h else NARROW_BITS
        fill_plane_weights(horizontal, along, kind, bits, pixels, samples, bounds_h, weights_h)
    taps = np.int64(0)
    for i in range(width):
        taps = max(taps, np.int64(bounds_h[i, 1]))
    count = columns.stop - columns.start
    return _Part(tables, at.part * c + at.resized, source, np.int64(plane.shape[1]), count, taps, wide_v, wide_h)


@njit(nogil=True)
def _resize_block(part, top, rows, height, width, scratch, at):
    """Output rows from `top` on of one component, to columns of 16 bits in its part."""
    bounds_v = int32_view(scratch, part.tables, height, 2)
    bounds_h = int32_view(scratch, part.tables + at.bounds_h, width, 2)
    weights_v = int32_view(scratch, part.tables + at.weights_v, height, at.limit_v)
    weights_h = int32_view(scratch, part.tables + at.weights_h, width, at.limit_h)
    base = np.int64(scratch.ctypes.data)
    for k in range(rows):
        y = top + k
        source, row = part.source + np.int64(bounds_v[y, 0]) * part.stride, at.rows + k * at.row_stride
        taps = np.int64(bounds_v[y, 1])
        vertical_row(scratch, row, source, part.stride, taps, weights_v, y, part.columns, part.wide_v)
    for x in range(0, part.columns, _WIDE):
        columns_from_rows(scratch, at.columns + ROWS * x, base + at.rows + x, at.row_stride)
    for i in range(width):
        source, target = base + at.columns + ROWS * np.int64(bounds_h[i, 0]), part.resized + 2 * ROWS * i
        terms = np.int64(bounds_h[i, 1])
        if part.wide_h:
            wide_column(scratch, target, source, part.taps, terms, weights_h, at.limit_h * i)
        else:
            column(scratch, target, source, part.taps, terms, weights_h, at.limit_h * i)


@njit(nogil=True)
def _convert_block(color, luma, blue, red, width, scratch, at):
    """The components' columns to RGB, 16 rows of it."""
    for i in range(0, width, 2):
        target, ahead = at.colors + 3 * ROWS * i, 2 * ROWS * i
        if color == GREY:
            grey(scratch, target, luma + ahead, luma + ahead, luma + ahead)
        elif color == YCBCR:
            ycc(scratch, target, luma + ahead, blue + ahead, red + ahead)
        else:
            rgb(scratch, target, luma + ahead, blue + ahead, red + ahead)
    colors = np.int64(scratch.ctypes.data) + at.colors
    for x in range(0, 3 * width, _WIDE):
        rows_from_columns(scratch, at.block + x, colors + ROWS * x, at.block_stride)


# ---- all of it


@njit(nogil=True)
def _holds(plane, frame, c, vertical, horizontal, kind, height, width):
    """Whether a plane has all samples that the outputs read."""
    if not (0 < frame[c, 2] < 65536 and 0 < frame[c, 3] < 65536 and 0 <= frame[c, 6] <= 3):
        return False
    if not (0 < frame[c, 4] <= 4 and 0 < frame[c, 5] <= 4):
        return False
    for across in range(2):
        axis, count = (horizontal, width) if across else (vertical, height)
        held = plane_axis(frame, c, across, plane.shape[across])
        span = samples_read(axis, held, kind, count)
        if held.start < 0 or span.start < held.start or span.stop > held.start + held.held:
            return False
        size = frame[c, 2 if across else 3] * frame[c, 4 if across else 5]
        if axis.source_start > 0 or axis.in_size - axis.source_start > size:
            return False
    return True


@njit(nogil=True)
def _fits(frame, color, vertical, horizontal, kind, table, out):
    count, size = (1 if color == GREY else 3), out.shape[3]
    if frame.shape[0] != count or frame.shape[1] != 7 or not LANCZOS <= kind <= HAMMING:
        return False
    for axis, outputs in ((vertical, out.shape[1]), (horizontal, out.shape[2])):
        inside = axis.out_start >= 0 and axis.out_start + outputs <= axis.out_size
        if not (0 < axis.in_size <= 65535 and inside and axis.out_size <= 65535):
            return False
    if not (size == 1 or size == 2 or size == 4 or size == 8) or (size > 1 and out.strides[3] != 1):
        return False
    return out.shape[0] == 3 and table.shape[0] == 3 and table.shape[1] == 256 and table.shape[2] == size


@njit(nogil=True)
def planes_scratch_bytes(frame, vertical, horizontal, height, width, kind):
    """The scratch memory that `planes_store` needs for an out of height x width, in bytes."""
    return _layout(frame, vertical, horizontal, height, width, kind).total


@njit(nogil=True)
def _same(frame, c, plane, other):
    """Whether component c and its plane have the geometry of the component before."""
    for k in range(frame.shape[1]):
        if frame[c, k] != frame[c - 1, k]:
            return False
    return plane.shape[0] == other.shape[0] and plane.shape[1] == other.shape[1]


@njit(nogil=True)
def planes_store(luma, blue, red, frame, color, vertical, horizontal, kind, table, flip_h, flip_v, scratch, out):
    """Resize, convert, flip, look up, store: out[c, y, x] = table[c, resized[vertical.out_start + y', ... + x', c]].

    color: jpeg_header's; of a grey image blue and red mean nothing. scratch: uint8, of planes_scratch_bytes or more.
    table, out: resample.resize_store's. False, and nothing is written, where the arrays do not hold what that takes.
    """
    height, width, size = out.shape[1], out.shape[2], out.shape[3]
    if not _fits(frame, color, vertical, horizontal, kind, table, out):
        return False
    if out.size == 0:
        return True
    if not _holds(luma, frame, 0, vertical, horizontal, kind, height, width):
        return False
    if color != GREY and not (_holds(blue, frame, 1, vertical, horizontal, kind, height, width)
                              and _holds(red, frame, 2, vertical, horizontal, kind, height, width)):  # fmt: skip
        return False
    at = _layout(frame, vertical, horizontal, height, width, kind)
    if scratch.size < at.total:
        return False
    scratch = scratch[-np.int64(scratch.ctypes.data) % 64 :]
    part0 = _part(luma, frame, 0, 0, vertical, horizontal, height, width, kind, scratch, at)
    part1, part2 = part0, part0
    if color != GREY:
        tables = part0.tables if _same(frame, 1, luma, blue) else at.part
        part1 = _part(blue, frame, 1, tables, vertical, horizontal, height, width, kind, scratch, at)
        tables = part1.tables if _same(frame, 2, blue, red) else 2 * at.part
        part2 = _part(red, frame, 2, tables, vertical, horizontal, height, width, kind, scratch, at)
    table_at, out_at = np.int64(table.ctypes.data), np.int64(out.ctypes.data)
    mirror = 1 if flip_h else 0
    for top in range(0, height, ROWS):
        rows = min(ROWS, height - top)
        _resize_block(part0, top, rows, height, width, scratch, at)
        if color != GREY:
            _resize_block(part1, top, rows, height, width, scratch, at)
            _resize_block(part2, top, rows, height, width, scratch, at)
        _convert_block(color, part0.resized, part1.resized, part2.resized, width, scratch, at)
        for k in range(rows):
            target = out_at + (height - 1 - top - k if flip_v else top + k) * out.strides[1]
            row = at.block + k * at.block_stride
            store_row(scratch, row, mirror, table_at, target, out.strides[0], out.strides[2], size, width)
    return True


_PLANE, _TABLE = types.uint8[:, ::1], types.Array(types.uint8, 3, "C", readonly=True)
_INT, _BOOL, _FRAME = types.int64, types.boolean, types.int64[:, ::1]


@on_demand([_INT(_FRAME, AXIS, AXIS, _INT, _INT, _INT)])
def scratch_bytes(frame, vertical, horizontal, height, width, kind):
    """`planes_scratch_bytes` for Python."""
    return planes_scratch_bytes(frame, vertical, horizontal, height, width, kind)


@on_demand(
    [
        _BOOL(
            _PLANE, _PLANE, _PLANE, _FRAME, _INT, AXIS, AXIS, _INT, _TABLE, _BOOL, _BOOL, types.uint8[::1],
            types.Array(types.uint8, 4, "A"),
        )
    ]
)  # fmt: skip
def resize_planes(luma, blue, red, frame, color, vertical, horizontal, kind, table, flip_h, flip_v, scratch, out):
    """`planes_store` for Python."""
    return planes_store(luma, blue, red, frame, color, vertical, horizontal, kind, table, flip_h, flip_v, scratch, out)
