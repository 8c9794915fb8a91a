"""The scaled inverse DCT against its reference and against means of the exact plane."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.idct import idct_reference
from gpuload.kernels.idct_scaled import component_scale, idct_scaled, idct_scaled_reference
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.jpeg_writer import photograph


def scaled(coefficients: np.ndarray, quant: np.ndarray, scale: int) -> np.ndarray:
    high, wide, _ = coefficients.shape
    plane = np.full((high * 8 >> scale, wide * 8 >> scale), 113, np.uint8)
    assert idct_scaled(coefficients.reshape(-1), 0, wide, high, quant, plane, 0, scale)
    return plane


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(np.int64) - other)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    high=st.integers(1, 4),
    wide=st.integers(1, 11),
    scale=st.integers(1, 3),
    limit=st.sampled_from([1, 30, 1000, 32767]),
    quant_limit=st.sampled_from([1, 20, 255, 65535]),
)
def test_any_coefficients_give_what_the_reference_gives(
    seed: int, high: int, wide: int, scale: int, limit: int, quant_limit: int
):
    generator = np.random.default_rng(seed)
    coefficients = generator.integers(-limit, limit + 1, (high, wide, 64)).astype(np.int16)
    quant = generator.integers(1, quant_limit + 1, 64).astype(np.uint16)
    off = difference(scaled(coefficients, quant, scale), idct_scaled_reference(coefficients, quant, scale))
    assert off.max() <= (2 if limit * quant_limit > 1 << 14 else 1)
    assert off.sum() <= 0.1 * off.size + 2


@pytest.mark.parametrize(("scale", "mean", "most"), [(1, 2.0, 60), (2, 2.0, 60), (3, 0.2, 1)])
def test_it_is_near_the_mean_of_the_pixels_that_a_sample_stands_for(scale: int, mean: float, most: int):
    image = photograph(160, 96, ((1, 1),), 90)
    coefficients = (image.coefficients[0] / 4).astype(np.int16)  # nothing is clipped: the mean would mean nothing
    exact = idct_reference(coefficients, image.quant[0]).astype(np.float64)
    n = 1 << scale
    means = exact.reshape(96 // n, n, 160 // n, n).mean(axis=(1, 3))
    off = difference(scaled(coefficients, image.quant[0], scale), np.rint(means).astype(np.int64))
    assert off.mean() <= mean and off.max() <= most


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_a_flat_block_stays_what_it_is(scale: int):
    coefficients = np.zeros((1, 7, 64), np.int16)
    coefficients[0, :, 0] = [-3000, -1024, -8, 0, 4, 1015, 3000]
    expected = np.array([0, 0, 127, 128, 129, 255, 255]).repeat(8 >> scale)
    assert np.array_equal(scaled(coefficients, np.ones(64, np.uint16), scale), np.tile(expected, (8 >> scale, 1)))


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_rows_of_blocks_go_where_they_are_told_and_nothing_else_is_written(scale: int):
    image = photograph(72, 40, ((1, 1),), 80)
    coefficients, quant, n = image.coefficients[0], image.quant[0], 8 >> scale
    whole = scaled(coefficients, quant, scale)
    plane = np.full((n * 5 + 3, n * 9 + 5), 113, np.uint8)
    expected = plane.copy()
    assert idct_scaled(coefficients.reshape(-1), 9, 9, 2, quant, plane, n + 2, scale)
    expected[n + 2 : 3 * n + 2, : 9 * n] = whole[n : 3 * n]
    assert np.array_equal(plane, expected)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 0},
        {"scale": 4},
        {"first": -1},
        {"first": 1},
        {"wide": -1},
        {"wide": 4},
        {"high": 3},
        {"high": -1},
        {"top": -1},
        {"top": 1},
        {"quant": np.ones(63, np.uint16)},
    ],
)
def test_what_has_no_room_is_refused(change: dict):
    plane = np.full((8, 12), 113, np.uint8)
    arguments = {
        "coefficients": np.ones(6 * 64, np.int16),
        "first": 0,
        "wide": 3,
        "high": 2,
        "quant": np.ones(64, np.uint16),
        "plane": plane,
        "top": 0,
        "scale": 1,
        **change,
    }
    assert not idct_scaled(*arguments.values())
    assert (plane == 113).all()


def test_a_component_is_scaled_only_where_samples_to_spare_remain():
    cases = [(1, 1, 0), (3.4, 1, 0), (3.5, 1, 1), (9.9, 1, 1), (10, 1, 2), (31.9, 1, 2), (32, 1, 3), (90, 1, 3)]
    cases += [(6.9, 2, 0), (7, 2, 1), (14, 4, 1)]
    for shrinking, expand, expected in cases:
        size = round(shrinking * 100)
        assert component_scale(size, 9 * size, 100, 100, 1, expand) == expected
        assert component_scale(9 * size, size, 100, 100, expand, 1) == expected
