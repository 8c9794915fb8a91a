"""The GPU path's kernels, compiled for one device and launched on any stream from any thread.

Two compilers make them: Numba those whose scalar code the CPU shares (decode_segments.py), NVRTC, through CuPy, those
in CUDA C++ (cuda_source.py). Both are started here, when a device is first used, so that nothing is compiled in the
middle of an epoch; and both are hidden here: a kernel is a name, a number of items and integers. Owns what must be
installed for it, and the words for what is not; leaves streams, memory and their order to the caller.

    threads a block   Numba's: THREADS; CUDA C++'s: cuda_source.BLOCK
    blocks            items divided by that, rounded up: a thread whose number is too high returns at once

1. A launch makes its device current for its own time, by pushing the device's primary context, which is torch's too,
   and popping it again. Setting and restoring the runtime's current device would make a context, and take half a
   gigabyte, on the device that a new thread is on by default.
   (test_cuda_launch.py::test_any_thread_launches_on_its_own_stream)
2. No launch waits: arguments are integers, and streams are taken over without asking them anything.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NamedTuple

import numba
from gpuload.kernels import cuda_source
from gpuload.kernels.decode_segments import cuda_entries

THREADS = 64
"""Threads a block of Numba's kernels. A block's registers are free only when its slowest thread is done, and segments
differ in length: small blocks hand them on sooner. With 71 registers 14 of them fit a multiprocessor; at 32 threads a
block, twice as many would, and no thread more."""

LEAST_BLOCKS = 128
"""With fewer blocks Numba warns that they leave the device idle, as the last batch's may; empty ones cost nothing."""

MOST_BLOCKS = (1 << 31) - 1

PATIENCE_S = 5.0

DRIVERS = {12: 525, 13: 580}
"""The oldest driver for each CUDA major."""


class GpuKernelsError(RuntimeError):
    """The GPU kernels cannot be made or launched; the message says what to install or change."""


@dataclass(frozen=True)
class Installed:
    """What this machine has: versions, or "" and 0 where there is none. driver: 1000 times CUDA's major + 10 minor."""

    cupy: str
    cupy_major: int
    numba_cuda: str
    bindings_major: int
    driver: int
    simulator: bool


def installed() -> Installed:
    """Asks the packages; imports CuPy, touches no device."""
    cupy_version, cupy_major, driver = "", 0, 0
    try:
        import cupy
    except ImportError:
        pass
    else:
        cupy_version = cupy.__version__
        cupy_major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        driver = cupy.cuda.runtime.driverGetVersion()
    bindings = _version("cuda-bindings")
    return Installed(
        cupy_version,
        cupy_major,
        _version("numba-cuda"),
        int(bindings.split(".")[0]) if bindings else 0,
        driver,
        os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"),
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def problem(found: Installed, cuda_major: int) -> str:
    """Why the kernels cannot be made beside a torch of this CUDA major, and what to do; "" where they can."""
    install = f"pip install 'gpuload[cuda{cuda_major}]'"
    if not found.cupy:
        return f"CuPy is missing: {install}"
    if not found.numba_cuda:
        return f"numba-cuda is missing: {install}"
    if found.simulator:
        return "NUMBA_ENABLE_CUDASIM is set, and Numba would simulate the GPU: unset it"
    if found.cupy_major != cuda_major:
        return (
            f"CuPy {found.cupy} is for CUDA {found.cupy_major} and torch for CUDA {cuda_major}: "
            f"pip uninstall cupy-cuda{found.cupy_major}x, then {install}"
        )
    if found.bindings_major not in (0, cuda_major):
        return (
            f"numba-cuda {found.numba_cuda} stands on cuda-bindings for CUDA {found.bindings_major} and torch is for "
            f"CUDA {cuda_major}: {install}"
        )
    if found.driver == 0:
        return "there is no NVIDIA driver: nvidia-smi must list the GPU (in a container: start it with --gpus all)"
    if found.driver // 1000 < cuda_major:
        return (
            f"the NVIDIA driver is for CUDA {found.driver // 1000}.{found.driver % 1000 // 10} and torch for CUDA "
            f"{cuda_major}: update the driver to {DRIVERS.get(cuda_major, 'a newer one')}, or install torch for "
            f"CUDA {found.driver // 1000} and gpuload[cuda{found.driver // 1000}]"
        )
    return ""


def cure(error: BaseException, found: Installed, cuda_major: int) -> str:
    """What to do about an error met while compiling, as far as its text tells."""
    text = str(error).lower()
    if "ptx" in text and "unsupported" in text or "unsupported toolchain" in text:
        linker = "nvidia-nvjitlink" + ("-cu12" if cuda_major == 12 else "")
        return f"the compiler is newer than the driver: update the driver, or pip install -U {linker}"
    if isinstance(error, (ImportError, AttributeError)):
        return f"numba-cuda {found.numba_cuda} does not fit numba {numba.__version__}: pip install -U numba-cuda numba"
    return f"if CUDA itself works (nvidia-smi, torch), renew what compiles: pip install -U 'gpuload[cuda{cuda_major}]'"


def blocks_for(items: int, threads: int) -> int:
    """The grid that has a thread for every item."""
    blocks = -(-items // threads)
    if not 0 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"{items} items in blocks of {threads} threads: a launch has 0 to {MOST_BLOCKS} blocks")
    return blocks


class _Foreign:
    """A stream of somebody else, for CuPy: the CUDA stream protocol."""

    def __init__(self, pointer: int):
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


class _Stream(NamedTuple):
    """One stream as each library has it."""

    numba: Any
    cupy: Any


class CudaKernels:
    """All kernels of the GPU path, compiled for a device; safe to use from several threads at once.

    device: its index, as torch counts. cuda_major: of the CUDA that torch is built for. Raises GpuKernelsError where
    something is missing, of another CUDA major, or doesn't compile.
    """

    def __init__(self, device: int, cuda_major: int):
        began = time.perf_counter()
        found = installed()
        trouble = problem(found, cuda_major)
        if trouble:
            raise GpuKernelsError(f"the GPU kernels cannot be made: {trouble}")
        self.device = device
        self._streams: dict[int, _Stream] = {}
        try:
            self._compile()
        except Exception as error:
            raise GpuKernelsError(
                f"the GPU kernels cannot be made for device {device}: {type(error).__name__}: {error}. "
                f"What to do: {cure(error, found, cuda_major)}"
            ) from error
        took = time.perf_counter() - began
        if took > PATIENCE_S:
            logging.getLogger("gpuload").warning(
                "compiling gpuload's GPU kernels took %.0f s; once a process and device", took
            )

    def _compile(self) -> None:
        import cupy
        from numba import cuda

        self._cupy, self._cuda = cupy, cuda
        self._context = cuda.gpus[self.device]
        self._numba_kernels: dict[str, Any] = {}
        self._cupy_kernels: dict[str, Any] = {}
        with self._context:
            for name, entry in cuda_entries().items():
                signature = f"void({', '.join(entry.arguments * ['int64'])})"
                # One function has nothing to be optimised with at link time; so this is the PTX that tests assemble.
                self._numba_kernels[name] = cuda.jit(signature, lto=False)(entry.function)
            for file, names in cuda_source.NAMES.items():
                module = cupy.RawModule(code=cuda_source.source(file), options=cuda_source.OPTIONS)
                for name in names:
                    self._cupy_kernels[name] = module.get_function(name)
                    self._cupy_kernels[name].compile()

    def launch(self, name: str, items: int, *arguments: int, stream: int) -> None:
        """Run a kernel for each of `items`, behind what `stream` (a cudaStream_t, 0: the default one) already has.

        arguments: all that the kernel takes, its item count among them. Raises GpuKernelsError where CUDA refuses,
        which may be for an error of an earlier launch.
        """
        if items == 0:
            return
        numbers = tuple(map(int, arguments))  # a NumPy integer of four bytes would be passed as four bytes
        numba_kernel: Any = self._numba_kernels.get(name)
        cupy_kernel: Any = self._cupy_kernels.get(name)
        if numba_kernel is None and cupy_kernel is None:
            raise ValueError(f"no kernel is named {name!r}")
        grid = blocks_for(items, THREADS if numba_kernel else cuda_source.BLOCK)
        try:
            with self._context:
                known = self._streams.get(stream) or self._take_over(stream)
                if numba_kernel:
                    numba_kernel[max(LEAST_BLOCKS, grid), THREADS, known.numba](*numbers)
                else:
                    with known.cupy:
                        cupy_kernel((grid,), (cuda_source.BLOCK,), numbers)
        except Exception as error:
            raise GpuKernelsError(
                f"device {self.device} did not take {name} for {items} items: {type(error).__name__}: {error}"
            ) from error

    def _take_over(self, stream: int) -> _Stream:
        cuda, cupy = self._cuda, self._cupy
        if stream == 0:
            known = _Stream(cuda.legacy_default_stream(), cupy.cuda.Stream.null)
        elif hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
            known = _Stream(cuda.external_stream(stream), cupy.cuda.Stream.from_external(_Foreign(stream)))
        else:
            known = _Stream(cuda.external_stream(stream), cupy.cuda.ExternalStream(stream, self.device))
        # Of two threads' the first stays: Numba keeps a launch's configuration by the stream's identity.
        return self._streams.setdefault(stream, known)

    def __repr__(self) -> str:
        count = len(self._numba_kernels) + len(self._cupy_kernels)
        return f"CudaKernels(device={self.device}, {count} kernels, {len(self._streams)} streams)"


_made: dict[int, CudaKernels] = {}
_making = threading.Lock()


def cuda_kernels(device: int, cuda_major: int) -> CudaKernels:
    """The kernels of a device, compiled when first asked for."""
    with _making:
        if device not in _made:
            _made[device] = CudaKernels(device, cuda_major)
        return _made[device]
