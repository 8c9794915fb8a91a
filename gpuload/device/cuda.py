"""Batches on a GPU: made there or copied there on the loader's own stream, while the last step runs.

Owns the stream, the copies, what is launched, and their events. Rules (tests/device/test_cuda.py):
1. The consumer's current stream waits for the batch's event before the batch is handed over; nothing waits on the host.
2. Device memory is torch's, and `record_stream` ties it to the consumer's stream, so a freed batch is not
   reused while that stream may still read it. What only the loader's stream touches needs nothing: it is one stream.
3. Host memory under a copy is kept until the copy's event has happened, also when the loader is gone by then.
4. One copy takes all that a batch's job needs; rows that the CPU decoded follow, a copy a run of them.
5. What the GPU says of the images that it decoded comes back by a copy on the same stream. It is judged when the batch
   is handed over if the copy has happened by then, else before a later one is taken: at the latest when the epoch ends.
6. What a user's collate_fn did on its thread's current stream happens before what the loader's stream does with it.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpuload.core.batch import DeviceOutput, TensorSpec
from gpuload.core.errors import ConfigError, DeviceError, DeviceMemoryError
from gpuload.core.protocols import DeviceJob, Launcher
from gpuload.core.structure import map_leaves
from gpuload.device.host import (
    Device,
    HostDevice,
    ImageMemory,
    ImagePool,
    Judge,
    Made,
    Outgoing,
    image_bytes,
    page_locked,
    shaped_tensor,
)
from gpuload.device.memory import HostMemory
from gpuload.device.placing import runs_of_others


@dataclass(frozen=True)
class _Sent:
    """batch: with its tensors on the device, which are `here`; ready once `event` has happened."""

    batch: Any
    here: tuple[torch.Tensor, ...]
    event: Any
    verdicts: tuple[_Verdict, ...]


@dataclass(frozen=True)
class _Verdict:
    """What comes back of a job: status, int32 as bytes, is valid once `event` has happened."""

    event: Any
    status: torch.Tensor
    judge: Judge


class TorchRuntime:
    """What a CudaDevice asks of torch and the driver, for one GPU. tests/device/simulated.py stands for it without.

    launcher: given a stream's pointer, what runs kernels on it; None where no decoder stages anything.
    """

    allocate = staticmethod(page_locked)

    def __init__(self, device: torch.device, launcher: Callable[[int], Launcher] | None = None):
        self._device, self._launcher = device, launcher

    @property
    def memory_bytes(self) -> int:
        """All of the GPU's."""
        return int(torch.cuda.get_device_properties(self._device).total_memory)

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

    def is_here(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor.device == self._device

    def wait(self, event: Any) -> None:
        """Until it has happened: on the host, so at the end of an epoch only."""
        event.synchronize()

    def locked(self, host: torch.Tensor) -> torch.Tensor:
        return host if host.is_pinned() else host.pin_memory()

    def copy(self, host: torch.Tensor, stream: Any) -> torch.Tensor:
        """A page-locked tensor on the GPU, in memory of the stream's, copied when the stream comes to it."""
        with self._on(stream):
            return host.to(self._device, non_blocking=True)

    def copy_into(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Either way between a page-locked tensor and the GPU, or within the GPU."""
        with self._on(stream):
            target.copy_(source, non_blocking=True)

    def empty(self, nbytes: int, stream: Any) -> torch.Tensor:
        """uint8 (nbytes,) on the GPU, the stream's."""
        with self._on(stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def launch(
        self, job: DeviceJob, upload: torch.Tensor, scratch: torch.Tensor, images: torch.Tensor, stream: Any
    ) -> None:
        """What the job launches, on the stream."""
        assert self._launcher is not None
        launcher = self._launcher(stream.cuda_stream)
        job.launch(launcher, upload.data_ptr(), scratch.data_ptr(), output_of(images))

    @property
    def launches(self) -> bool:
        """Whether there are kernels to launch."""
        return self._launcher is not None

    def mixed(self, batch: Any, mix: Callable[..., Any], stream: Any) -> Any:
        """What `mix` makes of a batch that is here, on the stream."""
        assert self._launcher is not None
        with self._on(stream):
            return mix(batch, launch=self._launcher(stream.cuda_stream).launch)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def follow(self, stream: Any) -> None:
        """What `stream` is given from now on waits for what the calling thread's current one has."""
        stream.wait_stream(self.current_stream())

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        # The device first: going back to a stream of device 0, on which a new thread begins, makes a context there.
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield


_Copying = deque[tuple[Any, list[Any]]]
"""(event, what is read until it happens: memory under copies, and jobs, which may hold a decoder's), in order."""

_LINGERING: deque[_Copying] = deque(maxlen=64)
"""What was under way when its device was dropped: more than these few are long done."""

_LINGERING_LOCK = threading.Lock()


def _forget_done(copying: _Copying) -> None:
    while copying and copying[0][0].query():
        copying.popleft()


class CudaDevice:
    """device="cuda:N"."""

    ordered = True  # all of it goes through one stream

    def __init__(self, device: torch.device, *, keep: int, runtime: Any):
        self.name = str(device)
        self._runtime = runtime
        self._images = ImagePool(keep=keep, allocate=self._runtime.allocate)
        self._uploads = _Blocks(keep=keep, allocate=self._runtime.allocate)
        self._statuses = _Blocks(keep=keep, allocate=self._runtime.allocate)
        self._stream = self._runtime.new_stream()
        self._copying: _Copying = deque()
        weakref.finalize(self, _LINGERING.append, self._copying).atexit = False
        self._lock = threading.Lock()  # several decode threads may finish batches at once

    def image_memory(self, spec: TensorSpec, rows: int) -> ImageMemory:
        return self._images.take(spec, rows)

    @property
    def mixes(self) -> bool:
        return bool(self._runtime.launches)

    @property
    def memory_bytes(self) -> int:
        """All of the GPU's."""
        return int(self._runtime.memory_bytes)

    def complete(
        self, job: DeviceJob, memory: Callable[[], ImageMemory], spec: TensorSpec, keep: np.ndarray, judge: Judge
    ) -> Made:
        with self._wrapped():
            upload = self._uploads.take(job.upload_bytes)
            status = self._statuses.take(job.status.stop - job.status.start)
        job.write(upload.numpy())
        runs = runs_of_others(job.rows, keep)
        rows_here = memory().tensor if any(not run.from_batch for run in runs) else None
        runtime, stream = self._runtime, self._stream
        with self._lock, self._wrapped():
            self._let_go()
            there = runtime.copy(upload, stream)
            scratch = runtime.empty(job.scratch_bytes, stream)
            images = shaped_tensor(runtime.empty(image_bytes(spec) * len(keep), stream), spec, len(keep))
            runtime.launch(job, there, scratch, images, stream)
            if len(status):
                runtime.copy_into(status, scratch[job.status], stream)
            kept: list[Any] = [job, upload, status]
            for run in runs:
                rows, places = (slice(start, start + run.count) for start in (run.row, run.place))
                source = images if run.from_batch else rows_here
                assert source is not None
                kept.append(source[rows])
                runtime.copy_into(images[places], kept[-1], stream)
            event = runtime.recorded_event(stream)
            self._copying.append((event, kept))
        return Made(images, _Verdict(event, status, judge))

    def send(self, outgoing: Outgoing) -> _Sent:
        with self._lock, self._wrapped():
            self._let_go()
            kept: list[Any] = []
            here: list[torch.Tensor] = []

            def copy(leaf: Any) -> Any:
                if self._runtime.is_here(leaf):  # made by `complete`, or the user's collate_fn sent it
                    here.append(leaf)
                    return leaf
                if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
                    return leaf
                kept.append(self._runtime.locked(leaf))
                here.append(self._runtime.copy(kept[-1], self._stream))
                return here[-1]

            if outgoing.foreign:
                self._runtime.follow(self._stream)
            sent = map_leaves(copy, outgoing.batch)
            if outgoing.mix is not None:
                for tensor in here:  # some may be the user's, of another stream
                    self._runtime.record_stream(tensor, self._stream)
                sent = self._runtime.mixed(sent, outgoing.mix, self._stream)
                here.clear()
                map_leaves(lambda leaf: here.append(leaf) if self._runtime.is_here(leaf) else None, sent)
            event = self._runtime.recorded_event(self._stream)
            self._copying.append((event, kept))
        return _Sent(sent, tuple(here), event, outgoing.verdicts)

    def hand_over(self, sent: _Sent, unjudged: deque[_Verdict]) -> Any:
        for verdict in sent.verdicts:
            with self._wrapped():
                known = verdict.event.query()
            if known:
                verdict.judge(verdict.status.numpy().view(np.int32))
            else:
                unjudged.append(verdict)
        with self._wrapped():
            current = self._runtime.current_stream()
            current.wait_event(sent.event)
            for tensor in sent.here:
                self._runtime.record_stream(tensor, current)
        return sent.batch

    def judge(self, unjudged: deque[_Verdict], *, wait: bool) -> None:
        while unjudged:
            with self._wrapped():
                if wait:
                    self._runtime.wait(unjudged[0].event)
                elif not unjudged[0].event.query():
                    return
            verdict = unjudged.popleft()
            verdict.judge(verdict.status.numpy().view(np.int32))

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """What torch and CUDA raise, as errors that say what to do."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"{self.name} has no room for the batch that is asked for, and no other is ready or in the making: "
                f"lower batch_size, max_device_bytes or what the model takes: {error}"
            ) from error
        except RuntimeError as error:
            raise DeviceError(
                f"{self.name} did not take a batch: {type(error).__name__}: {error}. An error of CUDA stays until the "
                "process ends, and may be that of earlier work, the model's too: CUDA_LAUNCH_BLOCKING=1 shows whose"
            ) from error

    def _let_go(self) -> None:
        """Of host memory under copies that have happened. Under the lock."""
        _forget_done(self._copying)
        with _LINGERING_LOCK:
            for copying in _LINGERING:
                _forget_done(copying)


class _Blocks:
    """Page-locked blocks for one use: half as large again as the largest so far asked for."""

    def __init__(self, *, keep: int, allocate: Callable[[int], np.ndarray]):
        self._keep, self._allocate = keep, allocate
        self._pool: HostMemory | None = None

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8 (nbytes,), contents arbitrary."""
        pool = self._pool
        if pool is None or pool.nbytes < nbytes:  # as in ImagePool, the loser's block is dropped
            pool = self._pool = HostMemory(nbytes * 3 // 2, keep=self._keep, allocate=self._allocate)
        return torch.from_numpy(pool.take()[:nbytes])


def output_of(images: torch.Tensor) -> DeviceOutput:
    """Where a batch (n, 3, H, W) lies, whatever its layout."""
    size = images.element_size()
    n, c, y, x = (stride * size for stride in images.stride())
    return DeviceOutput(images.data_ptr(), images.shape[2], images.shape[3], (n, c, y, x))


_FORKED = (
    "this process was forked from one that had used CUDA, and CUDA does not work here. Start it by "
    'multiprocessing.get_context("spawn"), or make loaders before anything touches the GPU'
)


def resolve(device: Any) -> torch.device:
    """The torch device that `device=` means here and now: "auto" is the current GPU where one works, else the CPU.

    Raises ConfigError for a GPU that is not there.
    """
    forked = torch.cuda._is_in_bad_fork()
    if device == "auto":
        if forked:
            warnings.warn(f"batches go to the CPU: {_FORKED}", stacklevel=2)
        if forked or not torch.cuda.is_available():
            return torch.device("cpu")
        device = "cuda"
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return wanted
    if wanted.type != "cuda":
        raise ConfigError(f'device must be "auto", "cpu" or a CUDA device, got {device!r}')
    if forked:
        raise ConfigError(f"device={device!r} was asked for, but {_FORKED}")
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


def make_device(
    device: torch.device, *, keep: int, pinned: bool, launcher: Callable[[int], Launcher] | None = None
) -> Device:
    """The Device, with `keep` free blocks of image memory kept. launcher: as TorchRuntime's."""
    if device.type == "cuda":
        return CudaDevice(device, keep=keep, runtime=TorchRuntime(device, launcher))
    return HostDevice(keep=keep, pinned=pinned)
