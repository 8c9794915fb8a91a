"""Upsampling against its NumPy reference, and the reference against Pillow, at all sizes and ratios."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.idct import idct_reference
from gpuload.kernels.upsample import (
    end_sample,
    first_sample,
    holds,
    interpolates,
    upsample_reference,
    upsample_row,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.jpeg_writer import photograph

RATIOS = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3), (4, 1), (1, 4), (4, 2), (2, 4)]


def samples_of(width: int, height: int) -> np.ndarray:
    return np.random.default_rng([width, height]).integers(0, 256, (height, width), dtype=np.uint8)


def padded(samples: np.ndarray) -> np.ndarray:
    """In whole blocks, and beyond the true size what must not be read."""
    height, width = samples.shape
    plane = np.full((-(-height // 8) * 8, -(-width // 8) * 8), 201, np.uint8)
    plane[:height, :width] = samples
    return plane


@settings(max_examples=150, deadline=None)
@given(
    ratio=st.sampled_from(RATIOS),
    width=st.integers(1, 75),
    height=st.integers(1, 6),
    data=st.data(),
)
def test_any_part_of_any_row_from_the_whole_plane_or_from_just_what_it_needs(
    ratio: tuple[int, int], width: int, height: int, data: st.DataObject
):
    h, v = ratio
    samples = samples_of(width, height)
    expected = upsample_reference(samples, h, v)
    y = data.draw(st.integers(0, height * v - 1))
    x0 = data.draw(st.integers(0, width * h - 1))
    x1 = data.draw(st.integers(x0 + 1, width * h))
    smooth = interpolates(h, v, width)
    top, left = first_sample(y, v, smooth), first_sample(x0, h, smooth)
    part = samples[top : end_sample(y + 1, v, smooth, height), left : end_sample(x1, h, smooth, width)].copy()
    for plane, at_y, at_x in ((padded(samples), 0, 0), (part, top, left)):
        out = np.full(x1 - x0 + 3, 113, np.uint8)
        shape = np.array([at_y, at_x, width, height, h, v])
        assert holds(plane, shape, y, y + 1, x0, x1)
        upsample_row(plane, shape, y, x0, x1, out)
        assert np.array_equal(out[:-3], expected[y, x0:x1]) and (out[-3:] == 113).all()


def test_a_plane_that_does_not_hold_a_region_is_found_out():
    plane = samples_of(20, 6)
    good = {"top": 0, "left": 0, "width": 20, "height": 6, "h": 2, "v": 2, "y0": 3, "y1": 4, "x0": 0, "x1": 40}
    wrong = [
        {"top": 1},  # row 0 of the samples is needed as context
        {"top": 1, "y0": 0},
        {"top": -1},
        {"left": 1},
        {"left": -3},
        {"width": 21, "x1": 41},  # the plane ends before
        {"width": 19},
        {"width": 65536},
        {"height": 0},
        {"height": 7, "y1": 12},
        {"y1": 13},
        {"y1": 3},
        {"y0": -1},
        {"x0": -1},
        {"x0": 40},
        {"x1": 41},
        {"x1": 2**62},
        {"h": 0},
        {"h": 5},
        {"v": -1},
    ]
    for change in ({}, *wrong):
        numbers = [*{**good, **change}.values()]
        assert holds(plane, np.array(numbers[:6]), *numbers[6:]) == (not change), change


@pytest.mark.parametrize("sampling", [(2, 1), (1, 2), (2, 2), (3, 1), (1, 3), (4, 1), (4, 2), (2, 4)])
def test_the_reference_is_pillows(sampling: tuple[int, int]):
    """Components that are RGB already come out of Pillow as they were upsampled."""
    h, v = sampling
    for width, height in [(1, 1), (2, 3), (3, 2), (4, 5), (5, 4), (6, 7), (7, 1), (1, 9), (19, 17), (33, 31), (70, 16)]:
        image = photograph(width, height, (sampling, (1, 1), (1, 1)), 90, is_ycc=False)
        pixels = image.pillow()
        for c in (1, 2):
            true_width, true_height = image.true_size(c)
            samples = idct_reference(image.coefficients[c], image.quant[c])[:true_height, :true_width]
            assert np.array_equal(upsample_reference(samples, h, v)[:height, :width], pixels[:, :, c]), (width, height)
