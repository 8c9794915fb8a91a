"""idct.cu on this processor: blocks of many images in one launch against the NumPy reference of idct.py."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.idct import idct_reference
from gpuload.kernels.jpeg_header import GREY, YCBCR

from tests.kernels.host_cuda import address, header_of, host_kernels, images_of
from tests.kernels.jpeg_writer import ZIGZAG

pytestmark = pytest.mark.full  # needs g++

SAMPLINGS = [
    ((1, 1),),
    ((1, 1), (1, 1), (1, 1)),
    ((2, 1), (1, 1), (1, 1)),
    ((2, 2), (1, 1), (1, 1)),
    ((1, 2), (1, 1), (1, 1)),
    ((4, 1), (1, 1), (1, 1)),
    ((2, 1), (1, 2), (2, 2)),
]
WINDOWS = [(1, 1), (3, 2), (2, 5), (7, 1), (1, 4), (5, 3), (2, 2)]  # MCUs, wide and high
JUNK = 113


def blocks_of(generator: np.random.Generator, count: int, last: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (count, 64) in natural order up to a zigzag index that varies, and the index of the last one."""
    values = generator.integers(-limit, limit + 1, (count, 64)).astype(np.int16)
    values[np.arange(64) > generator.integers(0, last + 1, (count, 1))] = 0
    found = np.where(values != 0, np.arange(64), 0).max(axis=1).astype(np.uint8)
    natural = np.zeros_like(values)
    natural[:, ZIGZAG] = values
    return natural, found


def transform(images: np.ndarray, quant: np.ndarray, coefficients: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The planes, all in one; each array is as large as the kernel may reach, no larger."""
    blocks = int(images["first_block"][-1])
    assert coefficients.shape == (blocks, 64) and last.shape == (blocks,)
    planes = np.full(64 * blocks, JUNK, np.uint8)
    host_kernels().launch(
        "transform_blocks", blocks, len(images) - 1, blocks, address(images), address(quant), address(coefficients),
        address(last), address(planes),
    )  # fmt: skip
    return planes


def batch_of() -> tuple[np.ndarray, list[tuple[int, int, int, int]]]:
    """Images of all samplings, with empty ones among them; (quant row, first block, blocks high, wide) a component."""
    fields, components, first, row = [], [], 0, 0
    for sampling, (wide, high) in zip(SAMPLINGS, WINDOWS, strict=True):
        header = header_of(3 + 8 * wide, 5 + 8 * high, sampling, GREY if len(sampling) == 1 else YCBCR)
        quant = [row + c for c in range(len(sampling))] + [0] * (3 - len(sampling))
        parts = [(high * v, wide * h) for h, v in sampling]
        count = sum(rows * columns for rows, columns in parts) + 1
        fields += [{"header": header, "quant": quant, "window": (2, 1, wide, high), "first_block": count}]
        fields += [{}] * (wide % 3)  # without a single block
        for c, (rows, columns) in enumerate(parts):
            components.append((row + c, first, rows, columns))
            first += rows * columns
        first, row = first + 1, row + len(sampling)
    return images_of(fields), components


@pytest.mark.parametrize("limit", [1, 30, 1000, 32767])
@pytest.mark.parametrize("last", [0, 1, 5, 9, 10, 63])
@pytest.mark.parametrize("quant_limit", [1, 20, 255, 65535])
def test_blocks_of_many_images_are_the_references(limit: int, last: int, quant_limit: int):
    generator = np.random.default_rng([limit, last, quant_limit])
    images, components = batch_of()
    coefficients, ends = blocks_of(generator, int(images["first_block"][-1]), last, limit)
    quant = generator.integers(1, quant_limit + 1, (sum(len(s) for s in SAMPLINGS), 64)).astype(np.uint16)
    planes = transform(images, quant, coefficients, ends)
    for row, first, high, wide in components:
        part = np.s_[first : first + high * wide]
        expected = idct_reference(coefficients[part].reshape(high, wide, 64), quant[row])
        assert np.array_equal(planes.reshape(-1, 64)[part].reshape(8 * high, 8 * wide), expected)
    written = np.concatenate([np.arange(first, first + high * wide) for _, first, high, wide in components])
    assert (np.delete(planes.reshape(-1, 64), written, axis=0) == JUNK).all()


def test_a_later_last_than_is_true_changes_nothing():
    generator = np.random.default_rng(5)
    images, _ = batch_of()
    coefficients, ends = blocks_of(generator, int(images["first_block"][-1]), 12, 300)
    quant = generator.integers(1, 60, (sum(len(s) for s in SAMPLINGS), 64)).astype(np.uint16)
    expected = transform(images, quant, coefficients, ends)
    assert np.array_equal(transform(images, quant, coefficients, np.full_like(ends, 63)), expected)


def test_one_filled_row_wraps_and_does_not_saturate_and_any_other_saturates():
    """Where a product with the table exceeds 13 bits: libjpeg-turbo's short cut for such blocks shows."""
    coefficients = np.zeros((4, 64), np.int16)
    coefficients[:3, 0] = 100
    coefficients[1, 1] = 1
    coefficients[2, 8] = 1
    quant = np.full((1, 64), 90, np.uint16)  # 9000, times 4 beyond 16 bits
    header = header_of(24, 8, ((1, 1),), GREY)
    images = images_of([{"header": header, "window": (0, 0, 3, 1), "first_block": 4}])
    plane = transform(images, quant, coefficients, np.array([0, 1, 2, 0], np.uint8))[:192].reshape(8, 24)
    assert (plane[:, :16] == 0).all() and (plane[:, 16:] == 255).all()
    assert np.array_equal(plane, idct_reference(coefficients[None, :3], quant[0]))


def test_what_damaged_data_may_leave_stays_within_its_blocks():
    """Any coefficients, any `last`: every block gets samples, none goes elsewhere (see also test_cuda_source.py)."""
    generator = np.random.default_rng(8)
    images, components = batch_of()
    blocks = int(images["first_block"][-1])
    coefficients = generator.integers(-32768, 32768, (blocks, 64)).astype(np.int16)
    quant = np.full((sum(len(s) for s in SAMPLINGS), 64), 65535, np.uint16)
    planes = transform(images, quant, coefficients, generator.integers(0, 256, blocks).astype(np.uint8))
    written = np.concatenate([np.arange(first, first + high * wide) for _, first, high, wide in components])
    assert (np.delete(planes.reshape(-1, 64), written, axis=0) == JUNK).all()
