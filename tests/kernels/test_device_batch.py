"""A batch's layouts are the same for NumPy, Numba and C++: every field at its place, every number with its meaning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from gpuload.kernels import jpeg_header, resample_weights
from gpuload.kernels.cuda_source import OPTIONS
from gpuload.kernels.device_batch import IMAGE, MOST_IMAGES, MOST_MCUS, SEGMENT, TABLE

from tests.kernels.host_cuda import SHIM

KERNELS = Path(jpeg_header.__file__).parent

MEMBERS = {
    "window": ("mcu_left", "mcu_top", "mcus_wide", "mcus_high"),
    "region": ("region.left", "region.top", "region.right", "region.bottom"),
    "vertical": tuple(f"vertical.{name}" for name in resample_weights.Axis._fields),
    "horizontal": tuple(f"horizontal.{name}" for name in resample_weights.Axis._fields),
    "outputs": ("outputs.left", "outputs.top", "outputs.right", "outputs.bottom"),
    "taps": ("taps_v", "taps_h"),
    "shown": ("shown_left", "shown_top"),
    "flips": ("flip_h", "flip_v"),
    "_": ("unused",),
}
"""What C++ calls the elements of a field of IMAGE, where not the field's name with an index."""


def offsets_of_image() -> dict[str, int]:
    """By the C++ expression of each number of an IMAGE: its offset."""
    out = {}
    for name in IMAGE.names or ():
        dtype, offset = IMAGE.fields[name][:2]  # type: ignore[index]
        element, count = dtype.base, int(np.prod(dtype.shape, dtype=int))
        members = MEMBERS.get(name) or ([f"{name}[{i}]" for i in range(count)] if dtype.shape else [name])
        assert len(members) == count, name
        out.update({member: offset + i * element.itemsize for i, member in enumerate(members)})
    return out


def numbers_of(expressions: list[str], file: str, folder: Path) -> list[int]:
    """What C++ expressions come to behind the text of a kernel file."""
    lines = "".join(f'printf("%lld\\n", (long long)({expression}));' for expression in expressions)
    text = f'{SHIM.read_text()}\n#include <cstddef>\n#include <cstdio>\n#include "{file}"\nint main() {{ {lines} }}'
    command = ["g++", *OPTIONS, "-w", "-I", str(KERNELS), "-x", "c++", "-", "-o", str(folder / "numbers")]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in subprocess.run([folder / "numbers"], capture_output=True, check=True).stdout.split()]


@pytest.mark.full
def test_an_image_is_the_same_in_cpp(tmp_path: Path):
    offsets = offsets_of_image()
    expressions = ["sizeof(Image)", *(f"offsetof(Image, {member})" for member in offsets)]
    expressions += [f"sizeof(Image::{name})" for name in IMAGE.names or () if name not in MEMBERS]
    sizes = [IMAGE[name].itemsize for name in IMAGE.names or () if name not in MEMBERS]
    assert numbers_of(expressions, "image.cuh", tmp_path) == [IMAGE.itemsize, *offsets.values(), *sizes]


@pytest.mark.full
def test_numbers_with_names_mean_the_same_in_cpp(tmp_path: Path):
    names = ["WIDTH", "HEIGHT", "COMPONENTS", "COLOR", "H_MAX", "V_MAX", "H", "V", "GREY", "YCBCR", "RGB"]
    assert numbers_of(names, "image.cuh", tmp_path) == [getattr(jpeg_header, name) for name in names]
    names = ["BILINEAR", "BICUBIC", "BOX", "BITS"]
    assert numbers_of(names, "resample.cu", tmp_path) == [getattr(resample_weights, name) for name in names]


def test_all_structs_are_laid_out_as_compilers_do():
    """Fields at multiples of their size, no gap that a compiler would put elsewhere: rows of an array stay aligned."""
    for dtype in (IMAGE, SEGMENT, TABLE):
        names = list(dtype.names or ())
        aligned = np.dtype([(name, dtype[name]) for name in names], align=True)
        assert aligned.itemsize == dtype.itemsize and aligned.fields == dtype.fields


def test_what_a_segment_can_name():
    assert np.iinfo(SEGMENT["image"]).max == MOST_IMAGES - 1
    assert np.iinfo(SEGMENT["count"]).max == MOST_MCUS
    assert IMAGE["header"].shape == (jpeg_header.HEADER_SIZE,)
