"""Batches in host memory: pageable, or pinned for a copy that the user makes. Also the device protocol.

The loader calls `image_memory` when it starts to fill a batch and `send` when it is full, both on its own
threads; `hand_over` on the consumer's thread, once a batch, in the order of delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from gpuload.core.batch import TensorSpec
from gpuload.core.structure import map_leaves
from gpuload.device.memory import HostMemory, pageable

_BITS = {"float16": np.uint16, "bfloat16": np.uint16, "uint8": np.uint8, "float32": np.float32, "float64": np.float64}


@dataclass(frozen=True)
class ImageMemory:
    """The images of one batch while it is filled.

    array: (n, C, H, W) in logical order (channels_last is in the strides), 16-bit floats as uint16.
    tensor: torch's view of the same memory.
    """

    array: np.ndarray
    tensor: torch.Tensor


class Device(Protocol):
    """Where batches live. `name` is torch's, e.g. "cuda:0"."""

    name: str

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory: ...

    def send(self, batch: Any) -> Any:
        """The finished host batch on its way; what comes out goes to `hand_over`. Loader's threads."""
        ...

    def hand_over(self, sent: Any) -> Any:
        """The batch, ready for work on the consumer's current stream. Consumer's thread."""
        ...


class ImagePool:
    """Image memory for batches of up to `rows` images of one spec."""

    def __init__(self, *, rows: int, keep: int, allocate: Callable[[int], np.ndarray] = pageable):
        self._rows, self._keep, self._allocate = rows, keep, allocate
        self._pools: dict[TensorSpec, HostMemory] = {}

    def take(self, spec: TensorSpec, rows: int) -> ImageMemory:
        channels, height, width = spec.shape
        bits = np.dtype(_BITS[spec.dtype])
        per_image = channels * height * width * bits.itemsize
        pool = self._pools.get(spec)
        if pool is None:
            made = HostMemory(per_image * self._rows, keep=self._keep, allocate=self._allocate)
            pool = self._pools.setdefault(spec, made)
        block = pool.take() if rows <= self._rows else self._allocate(per_image * rows)
        flat = block[: per_image * rows].view(bits)
        tensor = torch.from_numpy(flat)
        if spec.dtype in ("float16", "bfloat16"):
            tensor = tensor.view(getattr(torch, spec.dtype))
        if spec.channels_last:
            array = flat.reshape(rows, height, width, channels).transpose(0, 3, 1, 2)
            return ImageMemory(array, tensor.view(rows, height, width, channels).permute(0, 3, 1, 2))
        return ImageMemory(flat.reshape(rows, *spec.shape), tensor.view(rows, *spec.shape))


class HostDevice:
    """device="cpu". pinned: batches lie in page-locked memory, so that `.to("cuda", non_blocking=True)` overlaps."""

    name = "cpu"

    def __init__(self, *, rows: int, keep: int, pinned: bool = False):
        self._pinned = pinned
        self._images = ImagePool(rows=rows, keep=keep, allocate=page_locked if pinned else pageable)

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory:
        return self._images.take(spec, rows)

    def send(self, batch: Any) -> Any:
        return map_leaves(_pinned, batch) if self._pinned else batch

    def hand_over(self, sent: Any) -> Any:
        return sent


def page_locked(nbytes: int) -> np.ndarray:
    """Page-locked memory, uint8 (nbytes,): what a GPU copies from without the CPU's help."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if isinstance(leaf, torch.Tensor) and not leaf.is_pinned() else leaf
