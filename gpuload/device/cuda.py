"""Batches on a GPU: copied from page-locked memory on the loader's own stream while the last step runs.

Owns the stream, the copies and their events. Three rules (tests/device/test_cuda.py):
1. The consumer's current stream waits for the batch's event before the batch is handed over; nothing waits on the host.
2. Device memory is torch's, and `record_stream` ties it to the consumer's stream, so a freed batch is not
   reused while that stream may still read it.
3. Host memory under a copy is kept until the copy's event has happened.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from gpuload.core.batch import TensorSpec
from gpuload.core.errors import ConfigError
from gpuload.core.structure import map_leaves
from gpuload.device.host import Device, HostDevice, ImageMemory, ImagePool, page_locked


@dataclass(frozen=True)
class _Sent:
    """batch: with its tensors on the device, which are `copied`; ready once `event` has happened."""

    batch: Any
    copied: tuple[torch.Tensor, ...]
    event: Any


class TorchRuntime:
    """What a CudaDevice asks of torch and the driver, for one GPU. tests/device/simulated.py stands for it without."""

    allocate = staticmethod(page_locked)

    def __init__(self, device: torch.device):
        self._device = device

    def new_stream(self) -> Any:
        return torch.cuda.Stream(device=self._device)

    def current_stream(self) -> Any:
        """The stream on which the calling thread's work goes now."""
        return torch.cuda.current_stream(self._device)

    def recorded_event(self, stream: Any) -> Any:
        """An event that happens once the stream has done what it was given so far."""
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def locked(self, host: torch.Tensor) -> torch.Tensor:
        return host if host.is_pinned() else host.pin_memory()

    def copy(self, host: torch.Tensor, stream: Any) -> torch.Tensor:
        """A page-locked tensor on the GPU, in memory of the stream's, copied when the stream comes to it."""
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            return host.to(self._device, non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


class CudaDevice:
    """device="cuda:N"."""

    def __init__(self, device: torch.device, *, keep: int, runtime: Any = None):
        self.name = str(device)
        self._runtime = runtime or TorchRuntime(device)
        self._images = ImagePool(keep=keep, allocate=self._runtime.allocate)
        self._stream = self._runtime.new_stream()
        self._copying: deque[tuple[Any, list[torch.Tensor]]] = deque()
        self._lock = threading.Lock()  # several decode threads may finish batches at once

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory:
        return self._images.take(spec, rows)

    def send(self, batch: Any) -> _Sent:
        with self._lock:
            while self._copying and self._copying[0][0].query():
                self._copying.popleft()
            kept: list[torch.Tensor] = []
            copied: list[torch.Tensor] = []

            def copy(leaf: Any) -> Any:
                if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":  # the user's collate_fn sent it
                    return leaf
                kept.append(self._runtime.locked(leaf))
                copied.append(self._runtime.copy(kept[-1], self._stream))
                return copied[-1]

            sent = map_leaves(copy, batch)
            event = self._runtime.recorded_event(self._stream)
            self._copying.append((event, kept))
        return _Sent(sent, tuple(copied), event)

    def hand_over(self, sent: _Sent) -> Any:
        current = self._runtime.current_stream()
        current.wait_event(sent.event)
        for tensor in sent.copied:
            self._runtime.record_stream(tensor, current)
        return sent.batch


def resolve(device: Any) -> torch.device:
    """The torch device that `device=` means here and now: "auto" is the current GPU where one works, else the CPU.

    Raises ConfigError for a GPU that is not there.
    """
    if device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        device = "cuda"
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return wanted
    if wanted.type != "cuda":
        raise ConfigError(f'device must be "auto", "cpu" or a CUDA device, got {device!r}')
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={device!r} was asked for, but torch finds no usable CUDA GPU. Check `nvidia-smi` and that torch "
            'is a CUDA build (`torch.version.cuda`), or pass device="auto" to use the CPU where there is none'
        )
    index = wanted.index if wanted.index is not None else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise ConfigError(f"device={device!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
    rank = os.environ.get("LOCAL_RANK", "0")
    if wanted.index is None and index == 0 and rank not in ("", "0"):
        warnings.warn(
            f"LOCAL_RANK is {rank} but the current CUDA device is 0, so this rank's batches go to GPU 0; call "
            f"torch.cuda.set_device({rank}) before iterating, or pass device=",
            stacklevel=2,
        )
    return torch.device("cuda", index)


def make_device(device: torch.device, *, keep: int, pinned: bool) -> Device:
    """The Device, with `keep` free blocks of image memory kept."""
    if device.type == "cuda":
        return CudaDevice(device, keep=keep)
    return HostDevice(keep=keep, pinned=pinned)
