"""The GPU's kernels, ready to be launched on a stream: compiled once a process and device.

Owns what the user is told where that can't be: kernels know no extras and no arguments of DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuload.core.errors import MissingDependencyError
from gpuload.core.protocols import Launcher

if TYPE_CHECKING:
    from gpuload.kernels.cuda_launch import CudaKernels


@dataclass(frozen=True)
class StreamLauncher:
    """core.protocols.Launcher on one stream. stream: its cudaStream_t, as a number."""

    kernels: CudaKernels
    stream: int

    def launch(self, name: str, items: int, *arguments: int) -> None:
        self.kernels.launch(name, items, *arguments, stream=self.stream)


def launcher_on(device: int, cuda_major: int) -> Callable[[int], Launcher]:
    """Given a stream's number, what launches on it. device: CUDA's index. cuda_major: what torch was built for.

    Raises MissingDependencyError where the GPU's kernels cannot be compiled: what runs them is missing or doesn't fit.
    """
    from gpuload.kernels.cuda_launch import GpuKernelsError, cuda_kernels  # here: CuPy and numba-cuda are optional

    try:
        # In a thread of its own: some versions of numba-cuda leave the device that they compile for current.
        with ThreadPoolExecutor(1) as compiling:
            kernels = compiling.submit(cuda_kernels, device, cuda_major).result()
    except GpuKernelsError as error:
        raise MissingDependencyError(
            f"JPEGs cannot be decoded on the GPU: {error}. max_device_bytes=0 decodes them on the CPU"
        ) from error
    return lambda stream: StreamLauncher(kernels, stream)
