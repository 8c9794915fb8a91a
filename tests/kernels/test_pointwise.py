"""The store kernel against its NumPy reference: all element types, layouts, strides and mirrors."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.pointwise import lookup_store, lookup_store_reference
from hypothesis import given, settings
from hypothesis import strategies as st

TYPES = [np.uint8, np.uint16, np.float32, np.float64]
FLIPS = [(False, False), (True, False), (False, True), (True, True)]


def table_of(dtype: type) -> np.ndarray:
    """(3, 256), every entry of a channel its own value."""
    generator = np.random.default_rng(5)
    if np.dtype(dtype).kind == "u":
        high = min(int(np.iinfo(dtype).max), 65535) + 1
        return np.stack([generator.permutation(high)[:256] for _ in range(3)]).astype(dtype)
    return generator.standard_normal((3, 256)).astype(dtype)


def image_of(height: int, width: int) -> np.ndarray:
    return np.random.default_rng([height, width]).integers(0, 256, (height, width, 3), dtype=np.uint8)


def empty(dtype: type, height: int, width: int) -> np.ndarray:
    return np.full((3, height, width), 113, dtype)


def expected(image: np.ndarray, table: np.ndarray, flip_h: bool, flip_v: bool) -> np.ndarray:
    """Pixel by pixel, from the formula in the kernel's file."""
    height, width, _ = image.shape
    out = np.empty((3, height, width), table.dtype)
    for c, y, x in np.ndindex(out.shape):
        row, column = height - 1 - y if flip_v else y, width - 1 - x if flip_h else x
        out[c, y, x] = table[c, image[row, column, c]]
    return out


@pytest.mark.parametrize(("flip_h", "flip_v"), FLIPS)
def test_the_reference_is_the_formula(flip_h: bool, flip_v: bool):
    image, table = image_of(4, 7), table_of(np.float32)
    out = empty(np.float32, 4, 7)
    lookup_store_reference(image, table, flip_h, flip_v, out)
    assert np.array_equal(out, expected(image, table, flip_h, flip_v))


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(TYPES),
    flips=st.sampled_from(FLIPS),
    height=st.integers(1, 23),
    width=st.integers(1, 41),
    channels_last=st.booleans(),
)
def test_any_size_type_layout_and_mirror(
    dtype: type, flips: tuple[bool, bool], height: int, width: int, channels_last: bool
):
    image, table = image_of(height, width), table_of(dtype)
    out = empty(dtype, height, width)
    if channels_last:
        out = np.full((height, width, 3), 113, dtype).transpose(2, 0, 1)
    reference = out.copy()
    lookup_store(image, table, *flips, out)
    lookup_store_reference(image, table, *flips, reference)
    assert np.array_equal(out, reference)


BASE = image_of(20, 33)
VIEWS = {
    "whole": BASE,
    "a region": BASE[3:17, 5:30],
    "mirrored": BASE[::-1, ::-1],
    "every second row and column": BASE[::2, 1::2],
    "channels first in memory": np.ascontiguousarray(BASE.transpose(2, 0, 1)).transpose(1, 2, 0),
    "columns first in memory": np.asfortranarray(BASE),
    "one column": BASE[:, 4:5],
    "one pixel": BASE[7:8, 4:5],
    "of four channels": np.dstack([BASE, BASE[:, :, :1]])[:, :, :3],
    "repeated by a stride of zero": np.broadcast_to(BASE[:1], BASE.shape),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", TYPES)
def test_images_of_any_strides(view: str, dtype: type):
    image, table = VIEWS[view], table_of(dtype)
    for writeable in (True, False):
        pixels = image.view()
        pixels.flags.writeable = writeable and image.flags.writeable
        for flips in FLIPS:
            out, reference = empty(dtype, *image.shape[:2]), empty(dtype, *image.shape[:2])
            lookup_store(pixels, table, *flips, out)
            lookup_store_reference(image, table, *flips, reference)
            assert np.array_equal(out, reference)


@pytest.mark.parametrize("dtype", TYPES)
def test_only_its_own_part_of_the_batch_is_written(dtype: type):
    image, table = image_of(5, 9), table_of(dtype)
    batch: np.ndarray = np.full((3, 3, 5, 9), 113, dtype)
    wide: np.ndarray = np.full((3, 7, 13), 113, dtype)
    for out, around in ((batch[1], batch), (wide[:, 1:6, 2:11], wide)):
        lookup_store(image, table, True, False, out)
        assert np.array_equal(out, expected(image, table, True, False))
        out[:] = 113
        assert (around == 113).all()


@pytest.mark.parametrize("name", ["image", "table", "out"])
def test_types_it_was_not_compiled_for_are_refused_and_not_converted(name: str):
    arguments = {"image": image_of(2, 2), "table": table_of(np.float32), "out": empty(np.float32, 2, 2)}
    arguments[name] = arguments[name].astype(np.int64)
    with pytest.raises(TypeError, match="No matching definition"):
        lookup_store(arguments["image"], arguments["table"], False, False, arguments["out"])
