"""The inverse DCT against its NumPy reference and against Pillow, damaged and extreme coefficients included."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from gpuload.kernels.idct import idct_block, idct_reference, idct_region
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.jpeg_writer import ZIGZAG, Jpeg, photograph

ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


def blocks_of(seed: int, high: int, wide: int, last: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Random coefficients up to a zigzag index that varies from block to block, and those indices."""
    generator = np.random.default_rng(seed)
    end = generator.integers(0, last + 1, (high, wide))
    values = generator.integers(-limit, limit + 1, (high, wide, 64)).astype(np.int16)
    values[np.arange(64) > end[:, :, None]] = 0
    natural = np.zeros_like(values)
    natural[:, :, ZIGZAG] = values
    return natural, end.astype(np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    high=st.integers(1, 5),
    wide=st.integers(1, 7),
    last=st.sampled_from([0, 1, 5, 9, 10, 63]),
    limit=st.sampled_from([1, 30, 1000, 32767]),
    quant_limit=st.sampled_from([1, 20, 255, 65535]),
)
def test_any_coefficients_give_what_the_reference_gives(
    seed: int, high: int, wide: int, last: int, limit: int, quant_limit: int
):
    coefficients, end = blocks_of(seed, high, wide, last, limit)
    quant = np.random.default_rng(seed).integers(1, quant_limit + 1, 64).astype(np.uint16)
    expected = idct_reference(coefficients, quant)
    plane = np.zeros((8 * high, 8 * wide), np.uint8)
    idct_region(coefficients, end, quant, plane, 0, high, 0, wide)
    assert np.array_equal(plane, expected)
    out = np.zeros((8, 8), np.uint8)
    for r, c in np.ndindex(high, wide):
        idct_block(coefficients[r, c], quant, np.zeros(64, np.int32), out)
        assert np.array_equal(out, expected[8 * r : 8 * r + 8, 8 * c : 8 * c + 8])


def test_a_block_with_only_its_first_row_filled_wraps_and_does_not_saturate():
    """libjpeg-turbo's short cut for such blocks; it shows where a product with the table exceeds 13 bits."""
    coefficients = np.zeros((1, 3, 64), np.int16)
    coefficients[0, 0, 0] = coefficients[0, 1, 0] = coefficients[0, 2, 0] = 100
    coefficients[0, 1, 1] = 1
    coefficients[0, 2, 8] = 1
    quant = np.full(64, 90, np.uint16)  # 9000, times 4 beyond 16 bits
    plane = np.zeros((8, 24), np.uint8)
    idct_region(coefficients, np.array([[0, 1, 2]], np.uint8), quant, plane, 0, 1, 0, 3)
    assert np.array_equal(plane, idct_reference(coefficients, quant))
    assert (plane[:, :16] == 0).all() and (plane[:, 16:] == 255).all()


def test_the_reference_is_a_cosine_transform():
    coefficients, _ = blocks_of(3, 4, 4, 63, 40)
    quant = np.arange(1, 65, dtype=np.uint16) % 5 + 1
    k, x = np.arange(8)[:, None], np.arange(8)
    basis = np.cos((2 * x + 1) * k * np.pi / 16) * np.where(k == 0, np.sqrt(1 / 8), 1 / 2)
    blocks = (coefficients * quant.astype(np.int64)).reshape(4, 4, 8, 8)
    exact = np.einsum("rcvu,vy,ux->rycx", blocks, basis, basis).reshape(32, 32) + 128
    assert np.abs(idct_reference(coefficients, quant) - np.clip(exact, 0, 255)).max() <= 1


def test_a_rectangle_of_blocks_is_the_same_part_of_the_whole_and_nothing_else_is_written():
    coefficients, last = blocks_of(9, 6, 5, 63, 60)
    quant = np.full(64, 7, np.uint16)
    whole = idct_reference(coefficients, quant)
    for top, bottom, left, right in [(0, 6, 0, 5), (2, 4, 1, 5), (5, 6, 4, 5), (3, 3, 0, 5), (4, 2, 0, 5)]:
        plane = np.full((48, 40), 113, np.uint8)
        idct_region(coefficients, last, quant, plane, top, bottom, left, right)
        expected = np.full((48, 40), 113, np.uint8)
        part = np.s_[8 * top : 8 * bottom, 8 * left : 8 * right]
        expected[part] = whole[part]
        assert np.array_equal(plane, expected)


def test_what_lies_outside_the_arrays_is_left_out():
    coefficients, last = blocks_of(4, 3, 3, 63, 60)
    quant = np.full(64, 3, np.uint16)
    whole = idct_reference(coefficients, quant)
    around = np.full(24 * 24 + 64, 113, np.uint8)
    plane = around[: 24 * 24].reshape(24, 24)
    idct_region(coefficients, last, quant, plane, -5, 99, -(2**40), 2**40)
    assert np.array_equal(plane, whole) and (around[24 * 24 :] == 113).all()
    small = np.full((15, 17), 113, np.uint8)  # one whole block high, two wide
    idct_region(coefficients, last, quant, small, 0, 3, 0, 3)
    assert np.array_equal(small[:8, :16], whole[:8, :16])
    assert (small[8:] == 113).all() and (small[:, 16:] == 113).all()
    for wrong in (np.zeros(63, np.uint16), np.zeros(0, np.uint16)):
        idct_region(coefficients, last, wrong, small, 0, 3, 0, 3)


@pytest.mark.parametrize("quality", [1, 5, 20, 50, 75, 90, 100])
def test_grey_images_are_pillows(quality: int):
    image = photograph(61, 43, ((1, 1),), quality)
    plane = np.zeros((48, 64), np.uint8)
    idct_region(image.coefficients[0], image.last[0], image.quant[0], plane, 0, 6, 0, 8)
    assert np.array_equal(plane[:43, :61], image.pillow()[:, :, 0])


@pytest.mark.skipif(not ON_X86, reason="where 16 bits overflow, libjpeg-turbo's code for other processors differs")
@pytest.mark.parametrize("limit", [300, 2000, 16383])
@pytest.mark.parametrize("last", [0, 1, 5, 9, 63])
def test_coefficients_that_overflow_give_what_pillow_shows(limit: int, last: int):
    coefficients, end = blocks_of(limit + last, 4, 5, last, limit)
    quant = np.random.default_rng(last).integers(1, 256 if limit < 16383 else 65536, 64).astype(np.uint16)
    image = Jpeg(40, 32, ((1, 1),), (quant,), (coefficients,))
    plane = np.zeros((32, 40), np.uint8)
    idct_region(coefficients, end, quant, plane, 0, 4, 0, 5)
    assert np.array_equal(plane, image.pillow()[:, :, 0])
