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
    batch: Any
    event: Any


class CudaDevice:
    """device="cuda:N". runtime: torch.cuda, or what stands for it in tests."""

    def __init__(self, device: torch.device, *, rows: int, keep: int, runtime: Any = torch.cuda):
        self.name = str(device)
        self._device, self._runtime = device, runtime
        self._images = ImagePool(rows=rows, keep=keep, allocate=page_locked if runtime is torch.cuda else _unlocked)
        self._stream = runtime.Stream(device=device)
        self._copying: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()  # several decode threads may finish batches at once

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory:
        return self._images.take(spec, rows)

    def send(self, batch: Any) -> _Sent:
        with self._lock, self._runtime.device(self._device), self._runtime.stream(self._stream):
            while self._copying and self._copying[0][0].query():
                self._copying.popleft()
            kept: list[torch.Tensor] = []

            def copy(leaf: Any) -> Any:
                if not isinstance(leaf, torch.Tensor):
                    return leaf
                pinned = leaf if leaf.is_pinned() or self._runtime is not torch.cuda else leaf.pin_memory()
                kept.append(pinned)
                return pinned.to(self._device, non_blocking=True)

            sent = map_leaves(copy, batch)
            event = self._runtime.Event()
            event.record(self._stream)
            self._copying.append((event, kept))
        return _Sent(sent, event)

    def hand_over(self, sent: _Sent) -> Any:
        current = self._runtime.current_stream(self._device)
        current.wait_event(sent.event)

        def mark(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(current)
            return leaf

        return map_leaves(mark, sent.batch)


def _unlocked(nbytes: int) -> Any:
    from gpuload.device.memory import pageable

    return pageable(nbytes)


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


def make_device(device: torch.device, *, rows: int, keep: int, pinned: bool) -> Device:
    """The Device for batches of up to `rows` images, with `keep` free blocks of image memory kept."""
    if device.type == "cuda":
        return CudaDevice(device, rows=rows, keep=keep)
    return HostDevice(rows=rows, keep=keep, pinned=pinned)
