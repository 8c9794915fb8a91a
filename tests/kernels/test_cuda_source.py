"""The .cu files as a device's compiler takes them: for which chips, with how many registers; and their memory, checked.

NVRTC needs no driver and no device; its assembler reports what each kernel takes. On this processor g++'s sanitizers
check every access of the tests beside this one: kernels that write where they may not are found here, not on a card.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gpuload.kernels import cuda_source
from gpuload.kernels.cuda_source import BLOCK, NAMES, OPTIONS, source

from tests.kernels.host_cuda import sanitized_environment

TARGETS = ["sm_80", "sm_90", "sm_100"]
ROOT = Path(__file__).resolve().parents[2]

REGISTERS = {
    # A block of coefficients takes 32, a pass over one row 16 more beside its sums, addresses the rest: 24 warps of a
    # multiprocessor's 64, each with 8 loads of a line under way, which covers the memory's latency.
    "transform_blocks": 80,
    # Three components' addresses and samples: 40 warps.
    "to_rgb": 48,
    # Doubles, and few threads: what fits does not matter, as long as nothing spills.
    "fill_weights": 48,
    # Three sums, and addresses: 48 warps.
    "first_pass": 40,
    **{f"store_{size}": 40 for size in (1, 2, 4, 8)},
    # Little but addresses: all 64 warps.
    **{f"erase_{size}": 32 for size in (1, 2, 4, 8)},
    **{f"cut_{size}": 32 for size in (1, 2, 4, 8)},
    **{f"mix_{dtype}": 32 for dtype in ("float16", "bfloat16", "float32", "float64", "names")},
}


def test_each_text_is_whole_and_each_file_is_known():
    folder = Path(cuda_source.__file__).parent
    assert {path.stem for path in folder.glob("*.cu")} == NAMES.keys()
    for name in NAMES:
        text = source(name)
        assert "#include" not in text and text.count("struct Image {") == 1
    kernels = [kernel for held in NAMES.values() for kernel in held]
    assert len(set(kernels)) == len(kernels) and set(kernels) == REGISTERS.keys()


def test_a_block_is_whole_warps():
    assert BLOCK % 32 == 0 and f"-DBLOCK={BLOCK}" in OPTIONS


class Compiled(NamedTuple):
    ptx: str
    log: str  # the assembler's


@cache
def nvrtc() -> Any:
    """The newest among the wheels. It looks for its second library where the system does: that one is loaded first."""
    import nvidia

    found = [path for base in nvidia.__path__ for path in Path(base).glob("*/lib/libnvrtc.so.*")]
    assert found, "no NVRTC: pip install nvidia-cuda-nvrtc"
    path = max(found, key=lambda path: int(path.suffix[1:]))
    for builtins in path.parent.glob(f"libnvrtc-builtins.so.{path.suffix[1:]}*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(path))


def text_of(program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    assert getattr(nvrtc(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc(), f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.value.decode()


@cache
def compiled(name: str, target: str) -> Compiled:
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}", "--ptxas-options=-v")]
    program = ctypes.c_void_p()
    text = source(name).encode()
    assert nvrtc().nvrtcCreateProgram(ctypes.byref(program), text, f"{name}.cu".encode(), 0, None, None) == 0
    failed = nvrtc().nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = text_of(program, "ProgramLog")
    assert not failed and "warning" not in log, log
    out = Compiled(text_of(program, "PTX"), log)
    nvrtc().nvrtcDestroyProgram(ctypes.byref(program))
    return out


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_keep_to_their_registers_and_use_no_local_memory(name: str, target: str):
    log = compiled(name, target).log
    parts = re.split(r"Compiling entry function '(\w+)' for '" + target + "'", log)[1:]
    kernels = dict(zip(parts[::2], parts[1::2], strict=True))
    assert kernels.keys() == set(NAMES[name])
    for kernel, report in kernels.items():
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report, report
        registers = re.search(r"Used (\d+) registers", report)
        assert registers and int(registers[1]) <= REGISTERS[kernel], report


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_accesses_are_to_global_memory_and_as_wide_as_meant(name: str):
    ptx = compiled(name, "sm_90").ptx
    assert not re.findall(r"\b(?:ld|st)\.(?!global|param)\S+", ptx)
    if name == "idct":
        assert ptx.count("ld.global.nc.v4.u32") == 16  # a block and its table
        assert ptx.count("st.global.v2.u32") == 16  # 8 rows, whether all the same or not
    if name == "color":
        assert not re.findall(r"\bst\.global\.(?!u32)\S+", ptx)


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_weights_are_multiplied_and_added_one_by_one(target: str):
    ptx = compiled("resample", target).ptx
    assert "fma.rn.f64" not in ptx and "mul.rn.f64" in ptx and "add.rn.f64" in ptx and "div.rn.f64" in ptx


# ---- every access checked, in a process of its own


def sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=sanitized_environment(), capture_output=True, text=True
    )


@pytest.mark.full
def test_no_kernel_leaves_its_arrays_or_what_c_defines():
    files = [f"tests/kernels/test_{name}_cu.py" for name in ("idct", "color", "resample")]
    done = sanitized("-m", "pytest", "-q", "-m", "full", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.full
@pytest.mark.parametrize(
    "short, report",
    [
        ({}, ""),
        ({"planes": 1}, "READ of size 1"),
        ({"pixels": 1}, "WRITE of size 4"),
    ],
)
def test_what_leaves_an_array_is_reported(short: dict[str, int], report: str):
    """The check above would see it: arrays that lack a few bytes."""
    done = sanitized("-c", _TO_RGB, *(str(short.get(name, 0)) for name in ("planes", "pixels")))
    if report:
        assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr and report in done.stderr, done.stderr
    else:
        assert done.returncode == 0 and not done.stderr, done.stderr


_TO_RGB = """
import sys
import numpy as np
from tests.kernels.host_cuda import address, header_of, host_kernels, images_of

box = {"header": header_of(8, 8, ((1, 1),), 0), "window": (0, 0, 1, 1), "region": (0, 0, 8, 8)}
arrays = [
    images_of([box | {"first_block": 1, "first_pixel": 64}] * 3),
    np.zeros(64 * 3, np.uint8)[int(sys.argv[1]) :].copy(),
    np.zeros(256 * 3, np.uint8)[int(sys.argv[2]) :].copy(),
]
host_kernels().launch("to_rgb", 192, 3, 192, *map(address, arrays))
"""
