"""Colour against its reference, and the whole way from coefficients to pixels against Pillow, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.color import (
    gray_region_to_rgb,
    gray_to_rgb_row,
    region_to_rgb,
    rgb_to_rgb_row,
    ycc_pixel,
    ycc_to_rgb_reference,
    ycc_to_rgb_row,
)
from gpuload.kernels.idct import idct_region
from gpuload.kernels.upsample import end_sample, first_sample, interpolates
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.jpeg_writer import Jpeg, photograph

SAMPLINGS = {
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "three to one": ((3, 1), (1, 1), (1, 1)),
    "one to four down": ((1, 4), (1, 1), (1, 1)),
    "4:4:4, two blocks each": ((2, 1), (2, 1), (2, 1)),
    "more chroma than luma": ((1, 1), (2, 2), (2, 2)),
    "every component its own way": ((2, 1), (1, 2), (2, 2)),
    "two thirds of a row group": ((1, 4), (1, 2), (1, 1)),
}


def rows_of(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(count).integers(0, 256, (3, count), dtype=np.uint8))  # type: ignore[return-value]


def test_every_pair_of_chroma_values_and_every_luma_that_matters():
    red, blue = (grid.ravel() for grid in np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8)))
    for level in (0, 1, 73, 128, 200, 254, 255):
        luma = np.full(blue.size, level, np.uint8)
        out = np.zeros((blue.size, 3), np.uint8)
        ycc_to_rgb_row(luma, blue, red, out)
        assert np.array_equal(out, ycc_to_rgb_reference(luma, blue, red))


def test_one_pixel_at_a_time_is_the_same():
    luma, blue, red = rows_of(4000)
    out = np.zeros((4000, 3), np.uint8)
    for pixel in range(4000):
        ycc_pixel(luma[pixel], blue[pixel], red[pixel], out[pixel])
    assert np.array_equal(out, ycc_to_rgb_reference(luma, blue, red))


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 100])
def test_rows_of_any_length_and_nothing_beyond_them(count: int):
    first, second, third = rows_of(count)
    plain = np.stack([first, second, third], axis=-1)
    cases = [
        (ycc_to_rgb_row, (first, second, third), ycc_to_rgb_reference(first, second, third)),
        (rgb_to_rgb_row, (first, second, third), plain),
        (gray_to_rgb_row, (first,), np.stack([first] * 3, axis=-1)),
    ]
    for convert, rows, expected in cases:
        out = np.full((count + 5, 3), 113, np.uint8)
        convert(*rows, out)
        assert np.array_equal(out[:count], expected) and (out[count:] == 113).all()
        short = np.full((count // 2 + 1, 3), 113, np.uint8)
        convert(*rows, short[:-1])
        assert np.array_equal(short[:-1], expected[: count // 2]) and (short[-1] == 113).all()


def decoded(image: Jpeg, region: tuple[int, int, int, int] | None = None) -> np.ndarray:
    """The region (y0, y1, x0, x1) of an image, or all of it, by the kernels.

    Of a region's blocks only those are transformed that it needs, and its planes begin where they do.
    """
    y0, y1, x0, x1 = region or (0, image.height, 0, image.width)
    planes, frame = [], []
    for c, (h, v) in enumerate(image.sampling):
        width, height = image.true_size(c)
        h_expand, v_expand = image.h_max // h, image.v_max // v
        smooth = interpolates(h_expand, v_expand, width)
        top, left = first_sample(y0, v_expand, smooth) // 8, first_sample(x0, h_expand, smooth) // 8
        bottom = -(-end_sample(y1, v_expand, smooth, height) // 8)
        right = -(-end_sample(x1, h_expand, smooth, width) // 8)
        blocks = np.ascontiguousarray(image.coefficients[c][top:bottom, left:right])
        last = np.ascontiguousarray(image.last[c][top:bottom, left:right])
        plane = np.full((8 * (bottom - top), 8 * (right - left)), 113, np.uint8)
        idct_region(blocks, last, image.quant[c], plane, 0, bottom - top, 0, right - left)
        planes.append(plane)
        frame.append([8 * top, 8 * left, width, height, h_expand, v_expand])
    out = np.full((y1 - y0 + 2, x1 - x0 + 3, 3), 113, np.uint8)
    shapes, rows = np.array(frame, np.int64), np.empty((3, x1 - x0), np.uint8)
    if len(planes) == 1:
        assert gray_region_to_rgb(planes[0], shapes[0], y0, y1, x0, x1, rows, out, 1, 2)
    else:
        assert region_to_rgb(*planes, shapes, image.is_ycc, y0, y1, x0, x1, rows, out, 1, 2)
    inside = out[1:-1, 2:-1].copy()
    out[1:-1, 2:-1] = 113
    assert (out == 113).all()
    return inside


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_whole_images_are_pillows_at_every_size(sampling: str):
    for size in range(1, 41):
        width, height = (size, 1 + size * 7 % 40) if size % 2 else (1 + size * 11 % 40, size)
        image = photograph(width, height, SAMPLINGS[sampling], 1 + size * 37 % 100)
        assert np.array_equal(decoded(image), image.pillow()), (width, height)


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [1, 10, 40, 60, 85, 95, 100])
def test_whole_images_are_pillows_at_every_quality(sampling: str, quality: int):
    image = photograph(83, 67, SAMPLINGS[sampling], quality)
    assert np.array_equal(decoded(image), image.pillow())


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (16, 16), (40, 3), (61, 37)])
def test_grey_images_and_rgb_ones_are_pillows(size: tuple[int, int]):
    grey = photograph(*size, ((1, 1),), 80)
    assert np.array_equal(decoded(grey), grey.pillow())
    for sampling in ("4:4:4", "4:2:0"):
        plain = photograph(*size, SAMPLINGS[sampling], 80, is_ycc=False)
        assert np.array_equal(decoded(plain), plain.pillow())


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_region_is_the_same_part_of_the_whole(sampling: str):
    image = photograph(97, 71, SAMPLINGS[sampling], 90)
    whole = decoded(image)
    generator = np.random.default_rng(7)
    regions = [(0, 71, 96, 97), (70, 71, 0, 97), (31, 32, 47, 48), (8, 24, 16, 48)]
    for _ in range(40):
        y0, x0 = int(generator.integers(0, 71)), int(generator.integers(0, 97))
        regions.append((y0, int(generator.integers(y0 + 1, 72)), x0, int(generator.integers(x0 + 1, 98))))
    for y0, y1, x0, x1 in regions:
        assert np.array_equal(decoded(image, (y0, y1, x0, x1)), whole[y0:y1, x0:x1]), (y0, y1, x0, x1)


LIMITS = st.sampled_from([-(2**62), -1, 0, 1, 7, 8, 16, 17, 2**31, 2**62])


@settings(max_examples=300, deadline=None)
@given(
    numbers=st.lists(LIMITS, min_size=6, max_size=6),
    shape=st.lists(LIMITS, min_size=6, max_size=6),
    at=st.integers(0, 5),
)
def test_numbers_that_do_not_fit_are_refused_and_nothing_outside_is_written(
    numbers: list[int], shape: list[int], at: int
):
    """Any region, target and frame: the answer may be False, but the bytes around the target stay."""
    plane = np.full((16, 16), 50, np.uint8)
    frame = np.array([[0, 0, 16, 16, 1, 1]] * 3, np.int64)
    frame[at % 3, at] = shape[at]
    rows = np.empty((3, 16), np.uint8)
    around = np.full(3 * 17 * 17 + 512, 113, np.uint8)
    out = around[256:-256].reshape(17, 17, 3)
    region_to_rgb(plane, plane, plane, frame, True, *numbers[:4], rows, out, *numbers[4:])
    gray_region_to_rgb(plane, frame[at % 3], *numbers[:4], rows, out, *numbers[4:])
    assert (around[:256] == 113).all() and (around[-256:] == 113).all()
