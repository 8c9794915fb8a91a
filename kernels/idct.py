"""From coefficients to samples: dequantisation and the 8x8 inverse DCT, bit for bit libjpeg-turbo's "islow".

    plane[8r + y, 8c + x] = clamp(IDCT(coefficients[r, c] * quant)[y, x] + 128)

Two passes of a one-dimensional transform (Loeffler, Ligtenberg and Moschytz, ICASSP 1989) in fixed point with
13-bit constants: down the columns, keeping 2 extra bits, then along the rows. Every sum of a pass fits 32 bits.
Damaged streams overflow 16 bits on the way, and there what libjpeg-turbo's x86 code does is what counts, for that is
what Pillow's users see: products with `quant` and the sums before a multiplication wrap to 16 bits, the first
pass saturates to 16 bits, unless rows 1 to 7 of the block are zero: then it wraps, too.

coefficients: int16 (blocks_high, blocks_wide, 64), natural order, index 8v + u. last: uint8 (blocks_high, blocks_wide),
highest zigzag index of a coefficient that isn't zero; too low a value costs right pixels, never memory.
quant: uint16 (64,), natural order. plane: uint8 (8 * blocks_high, 8 * blocks_wide). All C-contiguous.

Most blocks of photographs are short: 0 is a fill, and up to 9 only the upper left 4x4 coefficients count.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from gpuload.kernels.compile import on_demand
from gpuload.kernels.simd import Memory, Vector, inner, splat, vector_code

QUARTER_LAST = 9
"""The highest zigzag index up to which every coefficient lies in the upper left 4x4."""

_BITS, _EXTRA_BITS = 13, 2
_SHIFTS = (_BITS - _EXTRA_BITS, _BITS + _EXTRA_BITS + 3)
"""What the two passes shift away: the second one also the factor 8 of two unnormalised transforms."""

# sqrt(2) * cos(k * pi / 16) and their sums, in 13 bits: named by the first three digits, as in the literature.
_0_298, _0_390, _0_541, _0_765, _0_899, _1_175 = 2446, 3196, 4433, 6270, 7373, 9633
_1_501, _1_847, _1_961, _2_053, _2_562, _3_072 = 12299, 15137, 16069, 16819, 20995, 25172


def idct_reference(coefficients: np.ndarray, quant: np.ndarray) -> np.ndarray:
    """NumPy reference of `idct_region`: (blocks_high, blocks_wide, 64) -> the whole plane."""
    high, wide, _ = coefficients.shape
    rows = coefficients.reshape(high, wide, 8, 8)
    blocks = (rows * quant.astype(np.int16).reshape(8, 8)).astype(np.int64)  # int16 * int16 wraps
    columns = _pass_reference(np.moveaxis(blocks, 2, 0), _SHIFTS[0])
    saturated = np.clip(columns, -32768, 32767)
    flat = ~np.any(rows[:, :, 1:], axis=(2, 3))[:, :, None]
    wrapped = np.where(flat, columns.astype(np.int16), saturated)  # (y, high, wide, u)
    samples = _pass_reference(np.moveaxis(wrapped, 3, 0), _SHIFTS[1])  # (x, y, high, wide)
    return np.clip(samples + 128, 0, 255).transpose(2, 1, 3, 0).reshape(8 * high, 8 * wide).astype(np.uint8)


def _pass_reference(x: np.ndarray, shift: int) -> np.ndarray:
    """The transform along axis 0, in the manner of the paper: rotations, then butterflies."""

    def wrapped(values: np.ndarray) -> np.ndarray:
        return values.astype(np.int16).astype(np.int64)

    rotated = (x[2] + x[6]) * _0_541
    low, high = rotated - x[6] * _1_847, rotated + x[2] * _0_765
    plus, minus = wrapped(x[0] + x[4]) << _BITS, wrapped(x[0] - x[4]) << _BITS
    even = [plus + high, minus + low, minus - low, plus - high]

    z3, z4 = wrapped(x[7] + x[3]), wrapped(x[5] + x[1])
    z5 = (z3 + z4) * _1_175
    z1, z2 = (x[7] + x[1]) * -_0_899, (x[5] + x[3]) * -_2_562
    z3, z4 = z5 - z3 * _1_961, z5 - z4 * _0_390
    odd = [
        x[1] * _1_501 + z1 + z4,
        x[3] * _3_072 + z2 + z3,
        x[5] * _2_053 + z2 + z4,
        x[7] * _0_298 + z1 + z3,
    ]
    ends = [e + o for e, o in zip(even, odd, strict=True)]
    ends += [e - o for e, o in zip(even[::-1], odd[::-1], strict=True)]
    return (np.stack(ends) + (1 << shift - 1)) >> shift


def _transform(spare: int, shift: int, x0: Any, x1: Any, x2: Any, x3: Any, x4: Any, x5: Any, x6: Any, x7: Any) -> Any:
    """One pass on eight numbers, or eight vectors of them: `spare` is how many bits they have beyond 16."""
    plus, minus = ((x0 + x4) << spare >> spare) << _BITS, ((x0 - x4) << spare >> spare) << _BITS
    high, low = x2 * (_0_541 + _0_765) + x6 * _0_541, x2 * _0_541 + x6 * (_0_541 - _1_847)
    half = 1 << (shift - 1)
    e0, e1, e2, e3 = plus + high + half, minus + low + half, minus - low + half, plus - high + half

    z3, z4 = (x3 + x7) << spare >> spare, (x1 + x5) << spare >> spare
    y3, y4 = z3 * (_1_175 - _1_961) + z4 * _1_175, z3 * _1_175 + z4 * (_1_175 - _0_390)
    o0 = x1 * (_1_501 - _0_899) - x7 * _0_899 + y4
    o1 = x3 * (_3_072 - _2_562) - x5 * _2_562 + y3
    o2 = x5 * (_2_053 - _2_562) - x3 * _2_562 + y4
    o3 = x7 * (_0_298 - _0_899) - x1 * _0_899 + y3
    return (
        (e0 + o0) >> shift,
        (e1 + o1) >> shift,
        (e2 + o2) >> shift,
        (e3 + o3) >> shift,
        (e3 - o3) >> shift,
        (e2 - o2) >> shift,
        (e1 - o1) >> shift,
        (e0 - o0) >> shift,
    )


_transform_scalar = numba.njit(nogil=True)(_transform)


@numba.njit(nogil=True)
def clamped(value, low, high):
    """The nearest number to `value` within low..high."""
    return low if value < low else high if value > high else value


@numba.njit(nogil=True)
def idct_block(block, quant, workspace, out):
    """One block, scalar, as a GPU thread does it: int16 (64,), uint16 (64,), int32 (64,) to work in, uint8 (8, 8)."""
    rest = np.int64(0)
    for k in range(8, 64):
        rest |= np.int64(block[k])
    for k in range(64):
        workspace[k] = np.int16(np.int64(block[k]) * np.int64(quant[k]))
    if rest == 0:
        for u in range(8):
            value = np.int16(np.int64(workspace[u]) << _EXTRA_BITS)
            for k in range(u, 64, 8):
                workspace[k] = value
    else:
        for u in range(8):
            column = _transform_scalar(
                48,
                _SHIFTS[0],
                np.int64(workspace[u]),
                np.int64(workspace[u + 8]),
                np.int64(workspace[u + 16]),
                np.int64(workspace[u + 24]),
                np.int64(workspace[u + 32]),
                np.int64(workspace[u + 40]),
                np.int64(workspace[u + 48]),
                np.int64(workspace[u + 56]),
            )
            for y in range(8):
                workspace[8 * y + u] = clamped(column[y], -32768, 32767)
    for y in range(8):
        row = _transform_scalar(
            48,
            _SHIFTS[1],
            np.int64(workspace[8 * y]),
            np.int64(workspace[8 * y + 1]),
            np.int64(workspace[8 * y + 2]),
            np.int64(workspace[8 * y + 3]),
            np.int64(workspace[8 * y + 4]),
            np.int64(workspace[8 * y + 5]),
            np.int64(workspace[8 * y + 6]),
            np.int64(workspace[8 * y + 7]),
        )
        for x in range(8):
            out[y, x] = clamped(row[x] + 128, 0, 255)


def _transposed(rows: list[Vector]) -> list[Vector]:
    """Of 8 vectors of 8 lanes: three rounds of riffling the first four into the last four."""
    for _ in range(3):
        rows = [half for a, b in zip(rows[:4], rows[4:], strict=True) for half in a.zip(b).halves()]
    return rows


def _emit(size: int, coefficients: Memory, block: Any, quant: Memory, plane: Memory, corner: Any, stride: Any) -> None:
    """One block of which only the upper left size x size coefficients count: 8 columns, then 8 rows at a time."""
    builder, zero = coefficients.builder, block.type(0)
    raw = [coefficients.load(block, 8, 16, 8 * v) for v in range(size)]
    rows = [(row * quant.load(zero, 8, 16, 8 * v)).widen(32, signed=True) for v, row in enumerate(raw)]
    rest = raw[1]
    for row in raw[2:]:
        rest = rest | row
    wraps = 32 - 16 + _EXTRA_BITS  # a number that wrapped when multiplied by 4 saturates no more
    rows[0] = (rows[0] << wraps >> wraps).where_zero(rest, rows[0])
    rows += [rows[0].all(0)] * (8 - size)
    columns = [row.clamp(-32768, 32767).narrow(16) for row in _transform(16, _SHIFTS[0], *rows)]
    lanes = [column.widen(32, signed=True) for column in _transposed(columns)[:size]]
    lanes += [lanes[0].all(0)] * (8 - size)
    samples = [(lane.clamp(-128, 127) + 128).narrow(8) for lane in _transform(16, _SHIFTS[1], *lanes)]
    for y, row in enumerate(_transposed(samples)):
        plane.store(builder.add(corner, builder.mul(stride, stride.type(y))), row)


@vector_code
def _whole(coefficients: Memory, block: Any, quant: Memory, plane: Memory, corner: Any, stride: Any) -> None:
    _emit(8, coefficients, block, quant, plane, corner, stride)


@vector_code
def _quarter(coefficients: Memory, block: Any, quant: Memory, plane: Memory, corner: Any, stride: Any) -> None:
    _emit(4, coefficients, block, quant, plane, corner, stride)


@vector_code
def _fill(plane: Memory, corner: Any, stride: Any, value: Any) -> None:
    builder = plane.builder
    row = splat(builder, value, 8, 8)
    for y in range(8):
        plane.store(builder.add(corner, builder.mul(stride, stride.type(y))), row)


@inner
def _block(coefficients, number, last, quant, plane, corner, stride):
    """Block `number` of flat coefficients to the plane, its upper left sample at the offset `corner`."""
    if last > QUARTER_LAST:
        _whole(coefficients, 64 * number, quant, plane, corner, stride)
    elif last > 0:
        _quarter(coefficients, 64 * number, quant, plane, corner, stride)
    else:
        scaled = np.int16(np.int64(coefficients[np.uint64(64 * number)]) * np.int64(quant[0]))
        level = (np.int64(np.int16(np.int64(scaled) << _EXTRA_BITS)) + 16) >> 5
        _fill(plane, corner, stride, clamped(level + 128, 0, 255))


@inner
def idct_rows(coefficients, first, wide, high, last, quant, plane, top):
    """`high` rows of `wide` blocks, the first of them number `first` of flat coefficients and last, to the plane's
    rows from `top` on. Nothing is checked."""
    stride = np.int64(plane.shape[1])
    for r in range(high):
        for c in range(wide):
            number = first + r * wide + c
            _block(coefficients, number, last[np.uint64(number)], quant, plane, (top + 8 * r) * stride + 8 * c, stride)


_INPUTS = (
    "Array(int16, 3, 'C', readonly=True), Array(uint8, 2, 'C', readonly=True), Array(uint16, 1, 'C', readonly=True)"
)


@on_demand([f"void({_INPUTS}, uint8[:, ::1], int64, int64, int64, int64)"])
def idct_region(coefficients, last, quant, plane, top, bottom, left, right):
    """Blocks [top, bottom) x [left, right) of a component into the same blocks of its plane; others stay untouched.

    What lies outside any of the arrays is left out.
    """
    top, left = max(top, 0), max(left, 0)
    bottom = min(bottom, coefficients.shape[0], last.shape[0], plane.shape[0] // 8)
    right = min(right, coefficients.shape[1], last.shape[1], plane.shape[1] // 8)
    if coefficients.shape[2] != 64 or quant.size != 64:
        return
    flat, wide, stride = coefficients.reshape(-1), coefficients.shape[1], plane.shape[1]
    for r in range(top, bottom):
        for c in range(left, right):
            _block(flat, r * wide + c, last[r, c], quant, plane, r * 8 * stride + c * 8, stride)
