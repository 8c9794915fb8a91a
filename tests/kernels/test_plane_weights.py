"""A plane's weights against the product of the two matrices that they stand for."""

from __future__ import annotations

import numpy as np
from gpuload.kernels.plane_weights import PlaneAxis, plane_weights, plane_weights_reference
from gpuload.kernels.resample_weights import BICUBIC, BILINEAR, BOX, HAMMING, LANCZOS, Axis, tap_limit
from hypothesis import example, given, settings
from hypothesis import strategies as st


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 60),
    pixels=st.sampled_from([1, 2, 3, 4, 8, 32]),
    smooth=st.booleans(),
    crop=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    out_size=st.integers(1, 90),
    out_start=st.floats(0, 1),
    kind=st.sampled_from([BILINEAR, BICUBIC, LANCZOS, BOX, HAMMING]),
    narrow=st.booleans(),
)
@example(1, 2, True, (0.0, 1.0), 5, 0.0, BICUBIC, True)
@example(60, 32, False, (0.1, 0.9), 1, 0.0, LANCZOS, False)
def test_weights_are_those_of_upsampling_and_resizing(
    size: int,
    pixels: int,
    smooth: bool,
    crop: tuple[float, float],
    out_size: int,
    out_start: float,
    kind: int,
    narrow: bool,
):
    bits = 14 if narrow else 22
    first, stop = sorted(int(share * (size * pixels - 1)) for share in crop)
    axis = Axis(stop + 1 - first, -first, out_size, int(out_start * (out_size - 1)))
    plane = PlaneAxis(0, size, size, pixels, int(smooth and pixels == 2))
    taps = tap_limit(axis.in_size, out_size, kind)
    limit = taps // pixels + 3
    count = out_size - axis.out_start
    bounds, weights = np.zeros((count, 2), np.int32), np.full((count, limit), 99, np.int32)
    most = plane_weights(axis, plane, kind, bits, np.empty(taps), np.empty(limit), bounds, weights)
    assert most == bounds[:, 1].max() <= limit
    dense = np.zeros((count, size))
    for row, (start, used), values in zip(dense, bounds, weights, strict=True):
        row[start : start + used] = values[:used]
        assert not values[used:].any()
    assert (weights.sum(axis=1) == 1 << bits).all()
    off = np.abs(dense / (1 << bits) - plane_weights_reference(axis, plane, kind))
    assert off.max() <= (limit + 2) / (1 << bits) + taps / (1 << 22)  # the reference's weights are rounded, too
