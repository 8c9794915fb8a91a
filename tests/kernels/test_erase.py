"""Erased rectangles against torchvision's own `erase`, on host memory and as the GPU's kernel does it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gpuload.kernels.erase import ERASED, erase, erase_on_device, erase_reference, items_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]
LAYOUTS = [torch.contiguous_format, torch.channels_last]
VALUE = [0.1, -1.7, 200.6]


def bits(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as kernels see it."""
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype.itemsize == 2 else tensor.numpy()


def batch_of(dtype: torch.dtype, layout: torch.memory_format, shape=(4, 3, 7, 11)) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8))
    return values.to(dtype).contiguous(memory_format=layout)


ROWS = np.array([3, 0, 1])
RECTANGLES = np.array([[2, 1, 4, 5], [0, 0, 11, 7], [10, 6, 1, 1]], np.int32)


def erased_by_torchvision(batch: torch.Tensor) -> torch.Tensor:
    out, value = batch.clone(), torch.tensor(VALUE)[:, None, None]
    for number, (row, (left, top, width, height)) in enumerate(zip(ROWS, RECTANGLES.tolist(), strict=True)):
        function = (v1.erase, v2.erase)[number % 2]
        out[row] = function(out[row], top, left, height, width, value)
    return out


def values_of(dtype: torch.dtype) -> np.ndarray:
    """VALUE as torch stores it in an image of this type."""
    return bits(torch.empty(3, dtype=dtype).copy_(torch.tensor(VALUE)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pixels_are_torchvisions(dtype: torch.dtype, layout: torch.memory_format):
    batch = batch_of(dtype, layout)
    expected = erased_by_torchvision(batch)
    reference = bits(batch.clone()).copy()
    erase(bits(batch), ROWS, RECTANGLES, values_of(dtype))
    assert torch.equal(batch, expected)
    erase_reference(reference, ROWS, RECTANGLES, values_of(dtype))
    assert np.array_equal(reference, bits(expected))


rectangle = st.tuples(st.integers(-5, 20), st.integers(-5, 20), st.integers(0, 20), st.integers(0, 20))


def covered(batch: np.ndarray, rows: list[int], rectangles: list[tuple[int, int, int, int]]) -> np.ndarray:
    """Which pixels lie in a rectangle of their row: bool (n, H, W), asked pixel by pixel."""
    n, _, height, width = batch.shape
    inside = np.zeros((n, height, width), bool)
    for row, (left, top, wide, high) in zip(rows, rectangles, strict=True):
        for y, x in np.ndindex(height, width):
            inside[row, y, x] |= top <= y < top + high and left <= x < left + wide
    return inside


@settings(max_examples=60, deadline=None)
@given(data=st.data(), height=st.integers(1, 12), width=st.integers(1, 12), reversed_too=st.booleans())
def test_what_lies_outside_an_image_is_left_out(data: st.DataObject, height: int, width: int, reversed_too: bool):
    rectangles = data.draw(st.lists(rectangle, max_size=4))
    rows = data.draw(st.lists(st.integers(0, 2), min_size=len(rectangles), max_size=len(rectangles)))
    around = np.full((5, 5, height + 2, width + 2), 7, np.float32)
    batch = around[1:4, 1:4, 1:-1, 1:-1]
    if reversed_too:
        batch = batch[:, :, ::-1, ::-1]
    expected = np.full(batch.shape, 7, np.float32)
    erase(
        batch, np.array(rows, np.int64), np.array(rectangles, np.int32).reshape(-1, 4), np.arange(3, dtype=np.float32)
    )
    inside = covered(batch, rows, rectangles)
    for c in range(3):
        expected[:, c][inside] = c
    assert np.array_equal(batch, expected)
    assert (around == 7).sum() == around.size - 3 * inside.sum(), "only its own part of the memory is written"


def test_rows_that_the_batch_does_not_have_are_left_out():
    batch = np.full((2, 3, 4, 4), 7, np.uint8)
    everything = np.tile(np.array([0, 0, 4, 4], np.int32), (3, 1))
    erase(batch, np.array([-1, 2, 1 << 40]), everything, np.zeros(3, np.uint8))
    assert (batch == 7).all()


@settings(max_examples=60, deadline=None)
@given(rectangles=st.lists(rectangle, max_size=5), height=st.integers(1, 12), width=st.integers(1, 12))
def test_items_name_each_erased_pixel_once(rectangles: list[tuple[int, int, int, int]], height: int, width: int):
    rows, nowhere = np.arange(len(rectangles)) * 2, np.full(len(rectangles), -1)
    boxes = np.array(rectangles, np.int32).reshape(-1, 4)
    items = items_of(rows, boxes, height, width)
    assert np.array_equal(items_of(np.append(nowhere, rows), np.tile(boxes, (2, 1)), height, width), items)
    inside = covered(np.empty((10, 3, height, width)), rows.tolist(), rectangles)
    named = np.zeros(inside.shape, int)
    for this, following in zip(items[:-1], items[1:], strict=True):
        for pixel in range(following["first"] - this["first"]):
            y, x = divmod(pixel, int(this["width"]))
            named[this["row"], this["top"] + y, this["left"] + x] += 1
    assert np.array_equal(named, inside.astype(int))
    assert items["first"][-1] == inside.sum()


ANYWHERE = pytest.mark.parametrize(
    "where", [pytest.param("cpu", marks=pytest.mark.full), pytest.param("cuda", marks=pytest.mark.gpu)]
)


def launch_on(where: str) -> Callable[..., None]:
    """The GPU's kernels: as g++ compiles them for host memory, or on a GPU on torch's current stream."""
    if where == "cpu":
        from tests.kernels.host_cuda import host_kernels

        return host_kernels().launch
    from gpuload.kernels.cuda_launch import cuda_kernels

    kernels = cuda_kernels(torch.cuda.current_device(), int(str(torch.version.cuda).split(".")[0]))
    return partial(kernels.launch, stream=torch.cuda.current_stream().cuda_stream)


@ANYWHERE
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gpus_kernel_erases_the_same(where: str, dtype: torch.dtype, layout: torch.memory_format):
    batch, launch = batch_of(dtype, layout), launch_on(where)
    expected, there = erased_by_torchvision(batch), batch.to(where)
    strides = np.array(there.stride()) * dtype.itemsize
    for kept in (slice(None), slice(0)):  # then nothing more
        items = items_of(ROWS[kept], RECTANGLES[kept], 7, 11)
        upload = torch.from_numpy(items.view(np.uint8)).to(where)
        erase_on_device(launch, items, upload.data_ptr(), values_of(dtype), there.data_ptr(), tuple(strides.tolist()))
        assert torch.equal(there.cpu(), expected)


@pytest.mark.full
def test_the_gpus_table_of_contents_is_laid_out_as_here():
    program = "".join(
        f"static_assert(__builtin_offsetof(Erased, {name}) == {ERASED.fields[name][1]});" for name in ERASED.names or ()
    )
    text = (ROOT / "kernels/erase.cu").read_text()
    struct = "typedef long long i64; typedef int i32; " + text[text.index("struct Erased") : text.index("};") + 2]
    program = f"{struct} static_assert(sizeof(Erased) == {ERASED.itemsize}); {program}"
    done = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], input=program, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_gpus_kernels_stay_within_their_memory():
    """This file's and test_mix.py's, under sanitizers for memory and undefined behaviour, in a process of its own."""
    from tests.kernels.host_cuda import sanitized_environment

    files = [str(Path(__file__).with_name(name)) for name in ("test_erase.py", "test_mix.py")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "full",
        "-k",
        "the_gpus_kernel_",
        *files,
    ]
    done = subprocess.run(command, cwd=ROOT, env=sanitized_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
