"""The inner loops of the `fast` fidelity: sums of weighted samples in 16 bits, and colours from such sums.

A lane has 16 bits: (sample - 128) * 2^8 times weight * 2^14, of which the high half counts: one instruction, for twice
the lanes of the exact path's 32-bit products. Both passes over a plane took 44 us with those and take 20. What is left
out of a product is half of the last bit in the mean, and that is added again. Sums of more than MOST_NARROW terms keep
32 bits and weights of 2^-22 (`wide`): each term has a rounding error, and many terms have small weights.

A sum has FRACTION fractional bits. The vertical pass rounds it to a byte; the horizontal one works on columns of ROWS
bytes (a transposed block) and leaves columns of 16-bit sums, from which the colours are computed.
Owns the vectors; leaves geometry and memory to resample_planes.py, which proves that every offset is inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpuload.kernels.jpeg_header import GREY, RGB, YCBCR
from gpuload.kernels.resample import bytes_at
from gpuload.kernels.resample_weights import BITS
from gpuload.kernels.simd import Memory, Vector, splat, vector_code
from llvmlite import ir
from numba import njit
from numba.core import cgutils

ROWS = 16  # of a block
NARROW_BITS = 14  # of a weight in 16 bits: it may be 1, and more than 1
MOST_NARROW = 48
FRACTION = 6  # bits, of 16: a sharp filter's overshoot wants the rest
_I64 = ir.IntType(64)


def _sum(
    lanes: int, wide: bool, source: Any, stride: Any, taps: Any, terms: Any, weights: Memory, first_weight: Any
) -> Vector:
    """The weighted sum of `taps` rows of bytes, `stride` apart, of which `terms` count, with 6 fractional bits."""
    builder = weights.builder
    rows, bits = bytes_at(builder, source), 32 if wide else 16
    sum_type = ir.VectorType(ir.IntType(bits), lanes)
    start = _I64(1 << (BITS - FRACTION - 1))
    if not wide:
        start = builder.add(builder.ashr(terms, _I64(1)), _I64(128 << FRACTION))
    total = cgutils.alloca_once_value(builder, splat(builder, start, lanes, bits).value)
    with cgutils.for_range(builder, taps) as loop:
        place = builder.gep(weights.data, [builder.add(first_weight, loop.index)])
        weight = splat(builder, builder.load(builder.bitcast(place, ir.IntType(bits).as_pointer())), lanes, bits)
        pixels = rows.load(builder.mul(stride, loop.index), lanes, 8)
        if wide:
            product = pixels.widen(32, signed=False) * weight
        else:  # the high halves of 16-bit products, which is one instruction; as a zip, lest LLVM sees 32 bits in it
            pairs = pixels.all(0).zip(pixels - 128).value
            centred = Vector(builder, builder.bitcast(pairs, sum_type)).widen(32, signed=True)
            product = (centred * weight.widen(32, signed=True) >> 16).narrow(16)
        builder.store((Vector(builder, builder.load(total)) + product).value, total)
    result = Vector(builder, builder.load(total))
    return (result >> BITS - FRACTION).narrow(16) if wide else result


def _rounded(value: Vector) -> Vector:
    return ((value + (1 << FRACTION - 1)) >> FRACTION).clamp(0, 255).narrow(8)


def _emit_row(lanes: int, wide: bool) -> Any:
    """target[at ...] = as many samples of the vertical pass as there are lanes."""

    def row(target, at, source, stride, taps, weights, first_weight):
        target.store(at, _rounded(_sum(lanes, wide, source, stride, taps, taps, weights, first_weight)))

    return vector_code(row)


def _emit_column(wide: bool) -> Any:
    """target[at ...] = an output's column of the horizontal pass, 16 bits a row."""

    def column(target, at, source, taps, terms, weights, first_weight):
        target.store(at, _sum(ROWS, wide, source, _I64(ROWS), taps, terms, weights, first_weight))

    return vector_code(column)


_row_1, _row_16, _row_64 = (_emit_row(lanes, False) for lanes in (1, 16, 64))
_wide_row_1, _wide_row_16 = (_emit_row(lanes, True) for lanes in (1, 16))
column, wide_column = _emit_column(False), _emit_column(True)


def _emit_colors(color: int) -> Any:
    """Two outputs of every component, at luma, blue and red, to six columns of bytes: R, G, B, R, G, B.

    Factors of 16 bits are what is missing to whole ones, as in color.py.
    """

    def colors(target, at, luma, blue, red):
        def component(address: Any) -> Vector:
            return target.load(address, 2 * ROWS, 16).clamp(0, 255 << FRACTION)

        def times(value: Vector, factor: float) -> Vector:
            return (value.widen(32, signed=True) * round(factor * (1 << 16)) >> 16).narrow(16)

        if color == GREY:
            channels = [component(luma)] * 3
        elif color == YCBCR:
            y, b, r = component(luma), component(blue) - (128 << FRACTION), component(red) - (128 << FRACTION)
            green = y - r - times(b, 0.344136) + times(r, 0.285864)
            channels = [y + r + times(r, 0.402), green, y + b + b - times(b, 0.228)]
        else:
            channels = [component(address) for address in (luma, blue, red)]
        for c, channel in enumerate(channels):
            for k, half in enumerate(_rounded(channel).halves()):
                target.store(at, half, ROWS * (3 * k + c))

    return vector_code(colors)


grey, ycc, rgb = (_emit_colors(color) for color in (GREY, YCBCR, RGB))


@njit(nogil=True)
def vertical_row(scratch, at, source, stride, taps, weights, y, count, wide):
    """Row y of the vertical pass, `count` samples, from rows that begin at `source`; no byte beyond is read."""
    first_weight, x = np.int64(weights.shape[1]) * y, np.int64(0)
    if count < 16:
        for x in range(count):
            if wide:
                _wide_row_1(scratch, at + x, source + x, stride, taps, weights, first_weight)
            else:
                _row_1(scratch, at + x, source + x, stride, taps, weights, first_weight)
        return
    while not wide and x + 64 <= count:
        _row_64(scratch, at + x, source + x, stride, taps, weights, first_weight)
        x += 64
    while x < count:  # the last 16 overlap those before
        x = min(x, count - 16)
        if wide:
            _wide_row_16(scratch, at + x, source + x, stride, taps, weights, first_weight)
        else:
            _row_16(scratch, at + x, source + x, stride, taps, weights, first_weight)
        x += 16
