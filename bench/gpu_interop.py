"""A batch in other packages' hands: DLPack and __cuda_array_interface__, values equal and nothing copied.

The consumer's stream is a side stream, and the batch is behind work that still runs when it is handed on: whoever does
not wait for that stream reads too early. Owns these rows; a package that is absent is one that says so.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.gpu_loaders import images_of, loader, shards
from bench.gpu_section import Bench, Row

BATCH = 37


def rows(bench: Bench) -> Iterator[Row]:
    for name, package, read in (
        ("CuPy, DLPack", "cupy", cupy_dlpack),
        ("CuPy, __cuda_array_interface__", "cupy", cupy_interface),
        ("Numba, __cuda_array_interface__", "numba.cuda", numba_interface),
        ("JAX, DLPack", "jax.dlpack", jax_dlpack),
    ):
        yield bench.tried(name, partial(handed_on, bench, package, read))


@dataclass(frozen=True)
class Taken:
    """What another package read on the host, and where the batch lies for it."""

    values: np.ndarray
    address: int


def handed_on(bench: Bench, package: str, read: Callable[[Any, torch.Tensor], Taken]) -> Row:
    """Every batch of an epoch, in three types and both layouts."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take three quarters of the GPU's memory
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        return {"passed": None, "left_out": f"absent: {error}"}
    wrong = copied = count = 0
    for dtype in (torch.uint8, torch.float16, torch.float32):
        for layout in (torch.contiguous_format, torch.channels_last):
            dataset = shards(bench.shards, "eval", uint8=dtype is torch.uint8)
            both = partial(loader, dataset, threads=bench.threads, dtype=dtype, memory_format=layout, batch_size=BATCH)
            truth = [compact(images_of(batch), layout).numpy() for batch in both(device="cpu")]
            with torch.cuda.stream(torch.cuda.Stream()):
                for batch, true in zip(both(device="cuda"), truth, strict=True):
                    images = compact(behind_work(images_of(batch)), layout)
                    taken = read(module, images)
                    wrong += not np.array_equal(taken.values, true)
                    copied += taken.address != images.data_ptr()
                    count += 1
    return {"passed": wrong == 0 and copied == 0, "batches": count, "wrong": wrong, "copied": copied}


def compact(images: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """The same memory in the order in which it lies: Numba copies no other to the host, and JAX knows no other."""
    return images.permute(0, 2, 3, 1) if layout is torch.channels_last else images


def behind_work(images: torch.Tensor) -> torch.Tensor:
    """The same batch, once the current stream has multiplied matrices for some milliseconds and then put it back."""
    kept = images.clone(memory_format=torch.preserve_format)
    images.zero_()
    matrix = torch.ones(4096, 4096, device="cuda")
    for _ in range(4):
        matrix = matrix @ matrix.clamp(-1, 1)
    images.copy_(kept)
    return images


def cupy_dlpack(cupy: Any, images: torch.Tensor) -> Taken:
    with cupy.cuda.Stream(non_blocking=True):  # by DLPack's rule the giver makes this stream wait for its own
        array = cupy.from_dlpack(images)
        return Taken(array.get(), array.data.ptr)


def cupy_interface(cupy: Any, images: torch.Tensor) -> Taken:
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):  # torch's interface names no stream
        array = cupy.asarray(images)
        return Taken(array.get(), array.data.ptr)


def numba_interface(cuda: Any, images: torch.Tensor) -> Taken:
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    array = cuda.as_cuda_array(images)
    values = array.copy_to_host(stream=stream)
    stream.synchronize()
    return Taken(values, array.__cuda_array_interface__["data"][0])


def jax_dlpack(dlpack: Any, images: torch.Tensor) -> Taken:
    array = dlpack.from_dlpack(images)
    return Taken(np.asarray(array), array.unsafe_buffer_pointer())
