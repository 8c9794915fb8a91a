"""Resampling weights for a component's plane at its own resolution: what upsampling it and resizing that would weigh.

Both are linear, so they are one sum: the weight of a sample is what its pixels have in Pillow's filter, all told.

    weight[i, s] = sum_x share[s, x] filter[i, x]         x: pixels of the crop; filter: resample_weights.py's

share is 1 for the pixels that a sample stands for; where libjpeg interpolates between two samples (upsample.py), 3/4
for the nearer one and 1/4 for the further one. So siting, a crop that begins within a sample, and what counts at the
edges of crop and image are as exact as the pixels have them, and nothing is upsampled. A plane from a scaled IDCT has
samples that stand for 2, 4 or 8 times as many pixels each way.

Weights are rounded to multiples of 2^-bits and then add up to exactly 1, so that a flat image stays flat.
Owns one axis of one plane. Leaves the sums to resample_planes.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from gpuload.kernels.compile import on_demand
from gpuload.kernels.resample_weights import (
    AXIS,
    BITS,
    Axis,
    Span,
    coefficients_reference,
    output_taps,
    source_span,
    tap_limit,
)
from gpuload.kernels.simd import inner
from gpuload.kernels.upsample import interpolates
from numba import types


class PlaneAxis(NamedTuple):
    """One axis of a plane: `held` samples from `start` on, of a component that has `size` of them.

    pixels: of the image that a sample stands for; smooth: 1 where libjpeg interpolates, else 0.
    """

    start: int
    held: int
    size: int
    pixels: int
    smooth: int


def plane_weights_reference(axis: Axis, plane: PlaneAxis, kind: int) -> np.ndarray:
    """NumPy reference: the weights of all samples of the plane for each output from out_start on, as real numbers."""
    share = np.zeros((plane.size * plane.pixels, plane.size))
    for x in range(len(share)):
        near = x // plane.pixels
        far = min(max(near + (1 if x % 2 else -1), 0), plane.size - 1) if plane.smooth else near
        share[x, near] += 0.75
        share[x, far] += 0.25
    filters = np.zeros((axis.out_size, len(share)))
    for row, first, weights in zip(filters, *coefficients_reference(axis.in_size, axis.out_size, kind), strict=True):
        start = first - axis.source_start
        row[start : start + len(weights)] = np.array(weights) / (1 << BITS)
    return (filters @ share)[axis.out_start :, plane.start : plane.start + plane.held]


@inner
def plane_axis(frame, c, across, count):
    """The vertical (across 0) or horizontal (1) axis of component c, whose plane holds `count` samples that way."""
    scale = frame[c, 6]
    expand = frame[c, 4 if across else 5]
    smooth = scale == 0 and expand == 2 and interpolates(frame[c, 4], frame[c, 5], frame[c, 2])
    size = (frame[c, 2 if across else 3] + (1 << scale) - 1) >> scale
    return PlaneAxis(frame[c, across], np.int64(count), size, expand << scale, np.int64(1 if smooth else 0))


@inner
def _first(plane, x):
    """The first sample that pixel x takes."""
    if not plane.smooth:
        return x // plane.pixels
    return max((x - 1) >> 1, 0)


@inner
def _last(plane, x):
    if not plane.smooth:
        return x // plane.pixels
    return min((x + 1) >> 1, plane.size - 1)


@inner
def samples_read(axis, plane, kind, count):
    """The samples of the component that `count` outputs from out_start read. axis.source_start: minus the crop's."""
    span = source_span(axis, kind, count)
    first, last = span.start - axis.source_start, span.stop - 1 - axis.source_start
    return Span(_first(plane, first), _last(plane, last) + 1)


@inner
def sample_limit(axis, plane, kind):
    """The most samples that an output takes: the length of a row of weights."""
    return tap_limit(axis.in_size, axis.out_size, kind) // plane.pixels + (3 if plane.pixels > 1 else 0)


@inner
def _gather(plane, taps, x, pixels, samples):
    """The weights in `pixels`, of taps.number pixels from x on, summed by sample; returns how many these are."""
    first = _first(plane, x)
    samples[:] = 0.0
    if plane.smooth:
        for k in range(taps.number):
            near = (x + k) >> 1
            far = min(near + 1, plane.size - 1) if (x + k) & 1 else max(near - 1, 0)
            samples[near - first] += 0.75 * pixels[k]
            samples[far - first] += 0.25 * pixels[k]
    else:
        s, ahead = np.int64(0), plane.pixels - x % plane.pixels
        for k in range(taps.number):
            samples[s] += pixels[k]
            ahead -= 1
            if ahead == 0:
                ahead = plane.pixels
                s += 1
    return _last(plane, x + taps.number - 1) + 1 - first


@inner
def fill_plane_weights(axis, plane, kind, bits, pixels, samples, bounds, weights):
    """bounds[i]: first sample (in the plane) and number of samples of output out_start + i; weights[i]: theirs, then
    zeros. Returns the largest of these numbers.

    bounds: int32 (n, 2); weights: int32 (n, sample_limit); to work in, pixels and samples: float64, tap_limit and
    sample_limit of them.
    """
    one, most, limit = np.int64(1) << bits, np.int64(0), weights.shape[1]
    samples = samples[:limit]
    for i in range(bounds.shape[0]):
        taps = output_taps(axis, kind, i, pixels)
        x = taps.first - axis.source_start
        count = _gather(plane, taps, x, pixels, samples)
        missing, largest, share = one, np.int64(0), one / taps.total
        for k in range(limit):  # as often every time: a loop whose end is a surprise costs more than a few zeros
            value = np.int32(np.floor(samples[k] * share + 0.5))
            weights[i, k] = value
            missing -= value
            largest = k if value > weights[i, largest] else largest
        weights[i, largest] += missing
        bounds[i, 0], bounds[i, 1] = _first(plane, x) - plane.start, count
        most = max(most, count)
    return most


PLANE_AXIS: Any = numba.typeof(PlaneAxis(0, 1, 1, 1, 0))
_INTS, _FLOATS = types.int32[:, ::1], types.float64[::1]


@on_demand([types.int64(AXIS, PLANE_AXIS, types.int64, types.int64, _FLOATS, _FLOATS, _INTS, _INTS)])
def plane_weights(axis, plane, kind, bits, pixels, samples, bounds, weights):
    """`fill_plane_weights` for Python."""
    return fill_plane_weights(axis, plane, kind, bits, pixels, samples, bounds, weights)
