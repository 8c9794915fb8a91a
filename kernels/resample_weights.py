"""Pillow's resampling weights, to the last bit: which pixels an output reads, and how much of each.

Along an axis of n pixels that becomes m, output i is centred on source position (i + 1/2) n/m. Its taps are the pixels
that lie within the filter's reach of it, which is the filter's support, times n/m when shrinking. Weights are doubles,
divided by their sum and rounded to multiples of 2^-22, in Pillow's order of operations: every rounding counts.

Hamming's are those of the formula; Pillow's are not, in the last bit, at some sizes: one pixel in ten thousand, by 1.

Owns the weights, what is known of an axis, and which axis comes first in which Pillow. The passes are resample's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from gpuload.kernels.compile import on_demand
from gpuload.kernels.simd import inner
from numba import njit, types

LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = 1, 2, 3, 4, 5
"""The filters, by Pillow's own numbers."""

HORIZONTAL_FIRST, TALL_VERTICAL_FIRST, SHRINKING_VERTICAL_FIRST = 0, 1, 2
"""The rules that versions of Pillow follow: up to 12.1, 12.2 and 12.3, from 13."""

BITS = 22
HALF = 1 << (BITS - 1)
_HAMMING = float(np.float32(0.54)), float(np.float32(0.46))  # single precision in Pillow, and it shows


class Axis(NamedTuple):
    """One axis of a resize: in_size pixels become out_size.

    source_start: where the source array begins, in pixels of that axis: a decoder need not hand over what no tap
    reads. out_start: the first output wanted (a centre crop after the resize wants a window).
    """

    in_size: int
    source_start: int
    out_size: int
    out_start: int


class Span(NamedTuple):
    """Pixels start to stop - 1."""

    start: int
    stop: int


@njit(nogil=True)
def vertical_first(rule, in_height, in_width, out_height, out_width):
    """Whether a Pillow that follows `rule` resizes along the vertical axis first."""
    if rule == SHRINKING_VERTICAL_FIRST:
        return in_height > out_height and in_height - out_height > 2 * (in_width - out_width)
    return rule == TALL_VERTICAL_FIRST and in_height > 100 * in_width and out_height < in_height


def coefficients_reference(in_size: int, out_size: int, kind: int) -> tuple[list[int], list[list[int]]]:
    """First tap and weights of every output, in multiples of 2^-22."""
    pi, (a, b) = math.pi, _HAMMING

    def sinc(x: float) -> float:
        return math.sin(x * pi) / (x * pi) if x else 1.0

    support, weight = {
        BOX: (0.5, lambda x: float(-0.5 < x <= 0.5)),
        BILINEAR: (1.0, lambda x: max(0.0, 1.0 - abs(x))),
        HAMMING: (1.0, lambda x: sinc(abs(x)) * (a + b * math.cos(abs(x) * pi)) if abs(x) < 1 else 0.0),
        BICUBIC: (2.0, _bicubic),
        LANCZOS: (3.0, lambda x: sinc(x) * sinc(x / 3) if -3 <= x < 3 else 0.0),
    }[kind]
    scale = in_size / out_size
    stretch = max(scale, 1.0)
    firsts, weights = [], []
    for i in range(out_size):
        centre = (i + 0.5) * scale
        first = max(0, int(centre - support * stretch + 0.5))
        stop = min(in_size, int(centre + support * stretch + 0.5))
        row = [weight((k - centre + 0.5) * (1.0 / stretch)) for k in range(first, stop)]
        total = 0.0
        for value in row:  # in this order: `sum` of Python 3.12 is compensated
            total += value
        scaled = [value / (total or 1.0) * (1 << BITS) for value in row]
        firsts.append(first)
        weights.append([int(value - 0.5 if value < 0 else value + 0.5) for value in scaled])
    return firsts, weights


def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2.0 else 0.0


@inner
def _support(kind):
    if kind == LANCZOS:
        return 3.0
    if kind == BICUBIC:
        return 2.0
    return 0.5 if kind == BOX else 1.0


@inner
def _sinc(x):
    if x == 0.0:
        return 1.0
    x = x * math.pi
    return math.sin(x) / x


@inner
def _weight(kind, x):
    if kind == LANCZOS:
        return _sinc(x) * _sinc(x / 3.0) if -3.0 <= x < 3.0 else 0.0
    if kind == BOX:
        return 1.0 if -0.5 < x <= 0.5 else 0.0
    x = abs(x)
    if kind == BICUBIC:
        if x < 1.0:
            return (1.5 * x - 2.5) * x * x + 1.0
        return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 if x < 2.0 else 0.0
    if x >= 1.0:
        return 0.0
    if kind == HAMMING:
        return _sinc(x) * (_HAMMING[0] + _HAMMING[1] * math.cos(x * math.pi))
    return 1.0 - x


@inner
def tap_limit(in_size, out_size, kind):
    """The most taps that an output has: the length of a row of weights."""
    return 2 * np.int64(math.ceil(_support(kind) * max(in_size / out_size, 1.0))) + 1


@inner
def source_span(axis, kind, count):
    """The pixels of the axis that `count` outputs from out_start read."""
    scale = axis.in_size / axis.out_size
    reach = _support(kind) * max(scale, 1.0)
    first = (axis.out_start + 0.5) * scale
    last = (axis.out_start + count - 1 + 0.5) * scale
    return Span(max(np.int64(first - reach + 0.5), 0), min(np.int64(last + reach + 0.5), axis.in_size))


class Taps(NamedTuple):
    """An output's taps: `number` pixels from `first` on; `total` is the sum of their weights."""

    first: int
    number: int
    total: float


@inner
def output_taps(axis, kind, i, work):
    """The taps of output out_start + i, in pixels of the axis; into work their weights, to be divided by `total`."""
    scale = axis.in_size / axis.out_size
    stretch = max(scale, 1.0)
    reach, shrink = _support(kind) * stretch, 1.0 / stretch
    centre = (axis.out_start + i + 0.5) * scale
    first = max(np.int64(centre - reach + 0.5), 0)
    count = min(min(np.int64(centre + reach + 0.5), axis.in_size) - first, work.size)
    total = 0.0
    for k in range(count):
        work[k] = _weight(kind, (k + first - centre + 0.5) * shrink)
        total += work[k]
    return Taps(first, count, total if total != 0.0 else 1.0)


@njit(nogil=True)
def fill_coefficients(axis, kind, work, bounds, weights):
    work = work[: weights.shape[1]]
    for i in range(bounds.shape[0]):
        taps = output_taps(axis, kind, i, work)
        for k in range(taps.number):
            value = work[k] / taps.total
            weights[i, k] = np.int32(value * (1 << BITS) + (-0.5 if value < 0.0 else 0.5))
        for k in range(taps.number, weights.shape[1]):
            weights[i, k] = 0
        bounds[i, 0] = taps.first - axis.source_start
        bounds[i, 1] = taps.number


AXIS: Any = numba.typeof(Axis(1, 0, 1, 0))


@on_demand([numba.typeof(Span(1, 2))(AXIS, types.int64, types.int64)])
def pixels_read(axis, kind, count):
    """`source_span` for Python."""
    return source_span(axis, kind, count)


@on_demand([types.void(AXIS, types.int64, types.float64[::1], types.int32[:, ::1], types.int32[:, ::1])])
def resample_coefficients(axis, kind, work, bounds, weights):
    """bounds[i]: first tap (in the source array) and number of taps of output out_start + i; weights[i]: the taps'
    weights, then zeros. bounds: int32 (n, 2); weights: int32 (n, tap_limit); work: float64 (tap_limit,)."""
    if weights.shape[1] < tap_limit(axis.in_size, axis.out_size, kind) or work.size < weights.shape[1]:
        raise ValueError("weights and work must have room for tap_limit taps")
    fill_coefficients(axis, kind, work, bounds, weights)
