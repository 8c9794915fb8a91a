"""The inverse DCT at 1/2, 1/4 or 1/8 of the size: what a crop that shrinks as much needs, for a fraction of the work.

Of a block's 8x8 coefficients only the n x n lowest count, n = 8 >> scale, and become n x n samples by the n-point
transform that belongs to them: as if every frequency that the smaller plane cannot hold had been filtered away.

    plane[n r + y, n c + x] = clamp(1/8 sum_vu t[v, y] t[u, x] dequantised[v, u] + 128)
    t[0, x] = 1,  t[k, x] = sqrt(2) cos((2x + 1) k pi / 2n)

For n = 2 all of t is 1 and -1. Against the mean of each 2x2, 4x4 or 8x8 pixels (which is what libjpeg's own reduced
transforms give) this keeps what resizing needs: an image resized from it differs by a tenth to a third less from one
resized from all its pixels. A block takes 4.5 ns at 1/2 where the whole transform takes 29. Fixed point with 13 bits;
products with `quant` wrap to 16 bits, as idct.py's do.

coefficients: int16, flat, 64 a block, natural order. quant: uint16 (64,), natural order. plane: uint8, C-contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpuload.kernels.compile import on_demand
from gpuload.kernels.idct import clamped
from gpuload.kernels.simd import Memory, Vector, inner, vector_code

_BITS, _EXTRA_BITS = 13, 2
_FIRST_SHIFT, _SECOND_SHIFT = _BITS - _EXTRA_BITS, _BITS + _EXTRA_BITS + 3
_COS_1, _COS_3 = 10703, 4433  # sqrt(2) cos(pi/8) and sqrt(2) cos(3 pi/8), in 13 bits
_BLOCKS = 4  # at a time: 16 lanes

_QUARTERS = 0, 7, 10, 16
"""Samples, in quarters of one, that a plane scaled by 1/2, 1/4 or 1/8 must still have for an output.

On mosaics of photographs, 12 megapixels and sharper than a camera's, the mean error and its 99.9th percentile are then,
in bilinear, 0.52 and 7 of 255 at 1/2, 0.52 and 5 at 1/4, below 0.57 and 3 at 1/8; with one sample and a half they are
0.75 and 12, 1.03 and 14, 1.77 and 15.
"""


def idct_scaled_reference(coefficients: np.ndarray, quant: np.ndarray, scale: int) -> np.ndarray:
    """NumPy reference, in floating point: (blocks_high, blocks_wide, 64) -> the whole plane."""
    n = 8 >> scale
    k, x = np.arange(n)[:, None], np.arange(n)
    basis = np.cos((2 * x + 1) * k * np.pi / (2 * n)) * np.where(k == 0, 1.0, np.sqrt(2))
    high, wide, _ = coefficients.shape
    blocks = (coefficients * quant.astype(np.int16)).reshape(high, wide, 8, 8)[:, :, :n, :n]  # int16 * int16 wraps
    columns = np.einsum("rcvu,vy->rcyu", blocks.astype(np.float64), basis)
    if scale == 1:  # kept in 16 bits, two of them fractional; for larger scales there are no two passes
        columns = np.clip(columns, -8192, 8191.75)
    samples = np.einsum("rcyu,ux->rycx", columns, basis) / 8
    return np.clip(np.floor(samples + 128.5), 0, 255).reshape(n * high, n * wide).astype(np.uint8)


def _transform(shift: int, x0: Vector, x1: Vector, x2: Vector, x3: Vector) -> list[Vector]:
    """Four points, of 32 bits, in both directions the same way."""
    half = 1 << (shift - 1)
    plus, minus = ((x0 + x2) << _BITS) + half, ((x0 - x2) << _BITS) + half
    outer, inner_ = x1 * _COS_1 + x3 * _COS_3, x1 * _COS_3 - x3 * _COS_1
    return [v >> shift for v in (plus + outer, minus + inner_, minus - inner_, plus - outer)]


def _transposed(rows: list[Vector]) -> list[Vector]:
    """Each 4x4 of four vectors: lane 4b + i of vector j changes places with lane 4b + j of vector i."""
    lanes = rows[0].lanes
    for _ in range(2):  # each round moves one bit of the row's number to the place of a bit of the column's
        low = [4 * b + k + which for b in range(lanes // 4) for k in (0, 1) for which in (0, lanes)]
        pairs = list(zip(rows[:2], rows[2:], strict=True))
        rows = [one.pick(other, [k + part for k in low]) for one, other in pairs for part in (0, 2)]
    return rows


def _joined(parts: list[Vector]) -> Vector:
    while len(parts) > 1:
        both = range(2 * parts[0].lanes)
        parts = [one.pick(other, both) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _emit(
    blocks: int, coefficients: Memory, block: Any, quant: Memory, plane: Memory, corner: Any, stride: Any
) -> None:
    """Blocks side by side to 4x4 samples each, their lanes end to end."""
    builder, zero = coefficients.builder, block.type(0)
    rows = []
    for v in range(4):
        raw = _joined([coefficients.load(block, 4, 16, 64 * b + 8 * v) for b in range(blocks)])
        factor = quant.load(zero, 4, 16, 8 * v)
        rows.append((raw * factor.pick(factor, [*range(4)] * blocks)).widen(32, signed=True))
    columns = [row.clamp(-32768, 32767) for row in _transform(_FIRST_SHIFT, *rows)]
    samples = _transform(_SECOND_SHIFT, *_transposed(columns))
    for y, row in enumerate(_transposed([(lane.clamp(-128, 127) + 128).narrow(8) for lane in samples])):
        plane.store(builder.add(corner, builder.mul(stride, stride.type(y))), row)


@vector_code
def _four_blocks(coefficients: Memory, block: Any, quant: Memory, plane: Memory, corner: Any, stride: Any) -> None:
    _emit(_BLOCKS, coefficients, block, quant, plane, corner, stride)


@vector_code
def _one_block(coefficients: Memory, block: Any, quant: Memory, plane: Memory, corner: Any, stride: Any) -> None:
    _emit(1, coefficients, block, quant, plane, corner, stride)


@inner
def scale_for(in_height, in_width, out_height, out_width, h_expand, v_expand):
    """The scale, 0 to 3, at which a component suffices for a crop that is resized; expand: pixels a sample each way."""
    for scale in range(3, 0, -1):
        least = _QUARTERS[scale] << scale
        if 4 * in_height >= least * v_expand * out_height and 4 * in_width >= least * h_expand * out_width:
            return scale
    return 0


@inner
def _half(coefficients, first, wide, quant, plane, corner, stride):
    if wide < _BLOCKS:
        for c in range(wide):
            _one_block(coefficients, 64 * (first + c), quant, plane, corner + 4 * c, stride)
        return
    c = np.int64(0)
    while c < wide:
        c = min(c, wide - _BLOCKS)  # the last four overlap those before
        _four_blocks(coefficients, 64 * (first + c), quant, plane, corner + 4 * c, stride)
        c += _BLOCKS


@inner
def _dequantised(coefficients, quant, at, k):
    return np.int64(np.int16(np.int64(coefficients[at + np.uint64(k)]) * np.int64(quant[np.uint64(k)])))


@inner
def _quarter(coefficients, first, wide, quant, plane, top):
    above, below = plane[top], plane[top + 1]
    for c in range(wide):
        at, x = np.uint64(64 * (first + c)), np.uint64(2 * c)
        mean, right = _dequantised(coefficients, quant, at, 0), _dequantised(coefficients, quant, at, 1)
        down, both = _dequantised(coefficients, quant, at, 8), _dequantised(coefficients, quant, at, 9)
        middle = mean + 128 * 8 + 4
        above[x] = clamped((middle + right + down + both) >> 3, 0, 255)
        above[x + np.uint64(1)] = clamped((middle - right + down - both) >> 3, 0, 255)
        below[x] = clamped((middle + right - down - both) >> 3, 0, 255)
        below[x + np.uint64(1)] = clamped((middle - right - down + both) >> 3, 0, 255)


@inner
def _eighth(coefficients, first, wide, quant, plane, top):
    row = plane[top]
    for c in range(wide):
        level = _dequantised(coefficients, quant, np.uint64(64 * (first + c)), 0)
        row[np.uint64(c)] = clamped((level + 128 * 8 + 4) >> 3, 0, 255)


@inner
def idct_scaled_rows(coefficients, first, wide, high, quant, plane, top, scale):
    """`high` rows of `wide` blocks, the first of them number `first`, to the plane's rows from `top` on.

    scale: 1, 2 or 3: a block gives 8 >> scale samples each way. False, and nothing is written, where one of the arrays
    has no room for that.
    """
    n = 8 >> scale
    if not 1 <= scale <= 3 or wide < 0 or high < 0 or first < 0 or top < 0 or quant.size != 64:
        return False
    if 64 * (first + wide * high) > coefficients.size or top + n * high > plane.shape[0] or n * wide > plane.shape[1]:
        return False
    stride = np.int64(plane.shape[1])
    for r in range(high):
        block, row = first + r * wide, top + n * r
        if scale == 1:
            _half(coefficients, block, wide, quant, plane, row * stride, stride)
        elif scale == 2:
            _quarter(coefficients, block, wide, quant, plane, row)
        else:
            _eighth(coefficients, block, wide, quant, plane, row)
    return True


@on_demand(["int64(int64, int64, int64, int64, int64, int64)"])
def component_scale(in_height, in_width, out_height, out_width, h_expand, v_expand):
    """`scale_for` for Python."""
    return scale_for(in_height, in_width, out_height, out_width, h_expand, v_expand)


_INPUTS = "Array(int16, 1, 'C', readonly=True), int64, int64, int64, Array(uint16, 1, 'C', readonly=True)"


@on_demand([f"boolean({_INPUTS}, uint8[:, ::1], int64, int64)"])
def idct_scaled(coefficients, first, wide, high, quant, plane, top, scale):
    """`idct_scaled_rows` for Python."""
    return idct_scaled_rows(coefficients, first, wide, high, quant, plane, top, scale)
