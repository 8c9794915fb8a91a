"""The GPU path's kernels on this machine's processor: the same sources, called as a launch on a device is.

g++ compiles each .cu file behind cuda_on_host.h; what is Numba on the device is its own loop for the CPU. Addresses are
those of host memory. With GPULOAD_SANITIZED=1 the compiler adds its checks for memory and undefined behaviour: then
libasan must be preloaded (`sanitized_environment`), and the first fault ends the process.

Owns the build, which is kept by its sources' hash, and what tests of single kernels need to call one: images whose
fields they set. What to launch on what is their business.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gpuload.kernels import decode_segments
from gpuload.kernels.cuda_source import BLOCK, NAMES, OPTIONS, source
from gpuload.kernels.device_batch import IMAGE
from gpuload.kernels.jpeg_header import (
    BLOCKS_IN_MCU,
    COLOR,
    COMPONENTS,
    H_MAX,
    HEADER_SIZE,
    HEIGHT,
    MCUS_HIGH,
    MCUS_WIDE,
    V_MAX,
    WIDTH,
    H,
    V,
)

SHIM = Path(__file__).parent / "cuda_on_host.h"
_FLAGS = ("-shared", "-fPIC", "-O2", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas", "-Werror")
_CHECKS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def _text(name: str) -> str:
    """The whole C++ of a .cu file, and for each kernel a function that runs all threads of a launch."""
    entries = "".join(
        f'extern "C" long long host_{kernel}(const long long* arguments, long long count, long long blocks, '
        f"long long threads) {{ return run_on_host({kernel}, arguments, count, blocks, threads); }}\n"
        for kernel in NAMES[name]
    )
    return f'{SHIM.read_text()}\n#line 1 "{name}.cu"\n{source(name)}\n{entries}'


def _built(name: str, sanitized: bool) -> Path:
    text = _text(name)
    command = ["g++", *OPTIONS, *_FLAGS, *(_CHECKS if sanitized else ()), "-x", "c++", "-"]
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(repr((text, command, compiler)).encode()).hexdigest()[:20]
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    library = base / "gpuload" / "host-cuda" / f"{name}-{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # another process may be building the same
            made = Path(folder) / library.name
            # Without the sanitizers' runtime, which g++ must not find preloaded.
            environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
            done = subprocess.run([*command, "-o", str(made)], input=text, capture_output=True, text=True,
                                  env=environment)  # fmt: skip
            assert done.returncode == 0, done.stderr
            made.replace(library)
    return library


class HostKernels:
    """Launches on host memory, one after the other: a `Launcher` of decode/device_job.py."""

    def __init__(self, sanitized: bool = False):
        self._sanitized = sanitized
        self._files = {kernel: name for name, kernels in NAMES.items() for kernel in kernels}
        self._entries: dict[str, Any] = {}

    def _entry(self, kernel: str) -> Any:
        """The function that runs a kernel; all those of its file are built with it."""
        if kernel not in self._entries:
            name = self._files[kernel]
            library = ctypes.CDLL(str(_built(name, self._sanitized)))
            for held in NAMES[name]:
                entry = getattr(library, f"host_{held}")
                entry.argtypes = [ctypes.POINTER(ctypes.c_int64), *3 * [ctypes.c_int64]]
                entry.restype = ctypes.c_int64
                self._entries[held] = entry
        return self._entries[kernel]

    def launch(self, name: str, items: int, *arguments: int) -> None:
        """All threads of a launch for `items`; arguments, int64 all, are passed to the kernel as they are."""
        if items == 0:
            return
        if name not in self._files:
            getattr(decode_segments, name)(*arguments)
            return
        words = (ctypes.c_int64 * len(arguments))(*(int(argument) for argument in arguments))
        wanted = self._entry(name)(words, len(words), -(-items // BLOCK), BLOCK)
        if wanted != len(words):
            raise TypeError(f"{name} takes {wanted} arguments, not {len(words)}")


@cache
def host_kernels() -> HostKernels:
    """The process's own. g++ must be there: nothing is skipped."""
    return HostKernels(sanitized=os.environ.get("GPULOAD_SANITIZED") == "1")


def sanitized_environment() -> dict[str, str]:
    """For a process whose `host_kernels` are to be checked. What is never freed, Python's own, is no fault."""
    paths = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {
        "GPULOAD_SANITIZED": "1",
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONMALLOC": "malloc",
    }


# ---- images


def header_of(width: int, height: int, sampling: Sequence[tuple[int, int]], color: int) -> np.ndarray:
    """Of a header (jpeg_header.py) what kernels read, int32 (HEADER_SIZE,). sampling: (h, v) of each component."""
    header = np.full(HEADER_SIZE, -1, np.int32)
    h_max, v_max = (max(factors) for factors in zip(*sampling, strict=True))
    header[WIDTH], header[HEIGHT], header[COMPONENTS], header[COLOR] = width, height, len(sampling), color
    header[H_MAX], header[V_MAX], header[BLOCKS_IN_MCU] = h_max, v_max, sum(h * v for h, v in sampling)
    header[MCUS_WIDE], header[MCUS_HIGH] = -(-width // (8 * h_max)), -(-height // (8 * v_max))
    for c, (h, v) in enumerate(sampling):
        header[H + c], header[V + c] = h, v
    return header


def images_of(fields: Sequence[dict[str, Any]]) -> np.ndarray:
    """IMAGE (n + 1,) with these fields and nothing in others; a `first_...` is given as the image's own count."""
    images = np.zeros(len(fields) + 1, IMAGE)
    for i, values in enumerate(fields):
        for name, value in values.items():
            images[name][i] = value
    for name in (name for name in IMAGE.names or () if name.startswith("first_")):
        images[name][1:] = np.cumsum(images[name][:-1])
        images[name][0] = 0
    return images


def address(array: np.ndarray) -> int:
    """Of its first element; the array must outlive the launch and be contiguous, or the kernel know its strides."""
    return array.ctypes.data
