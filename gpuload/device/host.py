"""Batches in host memory: pageable, or pinned for a copy that the user makes. Also the device protocol.

The loader calls `image_memory` when it starts to fill a batch and `send` when it is full, both on its own
threads; `hand_over` on the consumer's thread, once a batch, in the order of delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from gpuload.core.batch import TensorSpec
from gpuload.core.protocols import DeviceJob
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


Judge = Callable[[np.ndarray], None]
"""Told a job's status, int32 (k,); raises what the consumer gets."""


@dataclass(frozen=True)
class Made:
    """Images that a device is making. verdict: what it will say of them, for `Outgoing`."""

    images: torch.Tensor
    verdict: Any


@dataclass(frozen=True)
class Outgoing:
    """A collated batch: on the host, but for images that the device makes and what a user's collate_fn sent there.

    mix: (batch, launch=) -> the batch as it is to be delivered, made on the device; None: nothing is to be mixed there.
    verdicts: what the device will say of the images that it makes.
    foreign: a user's function collated it, and may have used the device on the calling thread's current stream.
    """

    batch: Any
    mix: Callable[..., Any] | None = None
    verdicts: tuple[Any, ...] = ()
    foreign: bool = False


class Device(Protocol):
    """Where batches live. `name` is torch's, e.g. "cuda:0". ordered: work is done in the order in which it is sent.

    mixes: whether it carries out an Outgoing's mix; else that is done before.
    """

    name: str
    ordered: bool

    @property
    def mixes(self) -> bool: ...

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory: ...

    def complete(
        self, job: DeviceJob, memory: Callable[[], ImageMemory], spec: TensorSpec, keep: np.ndarray, judge: Judge
    ) -> Made:
        """The images of a batch of which `job` makes some rows on the device. Only where a decoder staged some.

        memory: gives the other rows, on the host. keep: the row at each place of the batch. May be called again after
        DeviceMemoryError, as `send`.
        """
        ...

    def send(self, outgoing: Outgoing) -> Any:
        """The batch on its way; what comes out goes to `hand_over`. Loader's threads."""
        ...

    def hand_over(self, sent: Any, unjudged: deque[Any]) -> Any:
        """The batch, ready for work on the consumer's current stream. Consumer's thread.

        unjudged: takes the verdict if it isn't known yet; if it is, and bad, that is raised in place of the batch.
        """
        ...

    def judge(self, unjudged: deque[Any], *, wait: bool) -> None:
        """Raise what has become known of batches that were handed over. wait: for all of it, at an epoch's end."""
        ...


class ImagePool:
    """Image memory, a pool a spec. Its blocks are as large as the largest batch so far: nobody need say beforehand."""

    def __init__(self, *, keep: int, allocate: Callable[[int], np.ndarray] = pageable):
        self._keep, self._allocate = keep, allocate
        self._pools: dict[TensorSpec, HostMemory] = {}

    def take(self, spec: TensorSpec, rows: int) -> ImageMemory:
        nbytes = image_bytes(spec) * rows
        pool = self._pools.get(spec)
        if pool is None or pool.nbytes < nbytes:  # two threads may both make one: the loser's block is simply dropped
            pool = self._pools[spec] = HostMemory(nbytes, keep=self._keep, allocate=self._allocate)
        return shaped(torch.from_numpy(pool.take()[:nbytes]), spec, rows)


def image_bytes(spec: TensorSpec) -> int:
    """Bytes of one image."""
    channels, height, width = spec.shape
    return channels * height * width * np.dtype(_BITS[spec.dtype]).itemsize


def shaped(memory: torch.Tensor, spec: TensorSpec, rows: int) -> ImageMemory:
    """`rows` images over a tensor of bytes: uint8 (rows * image_bytes(spec),)."""
    channels, height, width = spec.shape
    array = memory.numpy().view(_BITS[spec.dtype])
    if spec.channels_last:
        array = array.reshape(rows, height, width, channels).transpose(0, 3, 1, 2)
    return ImageMemory(array.reshape(rows, *spec.shape), shaped_tensor(memory, spec, rows))


def shaped_tensor(memory: torch.Tensor, spec: TensorSpec, rows: int) -> torch.Tensor:
    """The same as a tensor alone, wherever the bytes are."""
    channels, height, width = spec.shape
    tensor = memory.view(getattr(torch, spec.dtype))
    if spec.channels_last:
        return tensor.view(rows, height, width, channels).permute(0, 3, 1, 2)
    return tensor.view(rows, *spec.shape)


class HostDevice:
    """device="cpu". pinned: batches lie in page-locked memory, so that `.to("cuda", non_blocking=True)` overlaps.

    Pinned memory is torch's own: its allocator knows of the copies that a user starts, and gives a block out again
    only when they are done; a pool of ours would not (tests/device/test_memory.py).
    """

    name = "cpu"
    ordered = False
    mixes = False

    def __init__(self, *, keep: int, pinned: bool = False):
        self._pinned = pinned
        self._images = ImagePool(keep=keep)

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory:
        if self._pinned:
            return shaped(torch.empty(image_bytes(spec) * rows, dtype=torch.uint8, pin_memory=True), spec, rows)
        return self._images.take(spec, rows)

    def complete(
        self, job: DeviceJob, memory: Callable[[], ImageMemory], spec: TensorSpec, keep: np.ndarray, judge: Judge
    ) -> Made:
        raise NotImplementedError("nothing is staged for the host")

    def send(self, outgoing: Outgoing) -> Any:
        return map_leaves(_pinned, outgoing.batch) if self._pinned else outgoing.batch

    def hand_over(self, sent: Any, unjudged: deque[Any]) -> Any:
        return sent

    def judge(self, unjudged: deque[Any], *, wait: bool) -> None:
        pass


def page_locked(nbytes: int) -> np.ndarray:
    """Page-locked memory, uint8 (nbytes,): what a GPU copies from without the CPU's help."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if isinstance(leaf, torch.Tensor) and not leaf.is_pinned() else leaf
