"""A GPU that runs nothing before it must, and gives memory out again: every rule of CudaDevice that is broken shows.

Stands for `gpuload.device.cuda.TorchRuntime`, with CPU tensors for device memory. A stream is a list of operations
that are carried out only when another stream, or the test by `read`, needs them. Memory belongs to the stream that it
was allocated on, as torch's does: once the last tensor over it is gone, it is filled with garbage and given to the next
who asks, when that stream, and those named by `record_stream`, have come to that point. What runs later knows nothing
but addresses, so whoever lets memory go too early reads garbage, or what somebody else wrote. A copy whose host memory
has been let go fails, and a launch whose job has. Every way to make the host wait fails, but for the one at an epoch's
end. Kernels are those of tests/kernels/host_cuda.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gpuload.core.structure import map_leaves
from gpuload.device.cuda import output_of
from gpuload.device.memory import pageable

GARBAGE = 0xCD
ALIGNMENT = 128
"""Of device memory, at least, as of torch's."""


class HostWaitedError(AssertionError):
    """The code under test made the CPU wait for the GPU."""


@dataclass(eq=False)
class SimulatedStream:
    name: str
    operations: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0

    def advance(self, to: int) -> None:
        while self.done < to:
            operation = self.operations[self.done]
            self.done += 1
            operation()

    def wait_event(self, event: SimulatedEvent) -> None:
        self.operations.append(lambda: event.stream.advance(event.position))

    def synchronize(self) -> None:
        raise HostWaitedError(f"synchronize of stream {self.name}")


@dataclass(eq=False)
class SimulatedEvent:
    stream: SimulatedStream
    position: int

    def query(self) -> bool:
        return self.stream.done >= self.position

    def synchronize(self) -> None:
        raise HostWaitedError("synchronize of an event")


@dataclass(eq=False)
class _Block:
    """Device memory. raw: all of it, which outlives every tensor. readers: streams named by record_stream."""

    raw: torch.Tensor
    stream: SimulatedStream
    readers: set[SimulatedStream] = field(default_factory=set)

    def same(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor over the block that does not keep it."""
        begin = tensor.data_ptr() - self.raw.data_ptr()
        nbytes = (self.raw.numel() - begin) // tensor.itemsize * tensor.itemsize
        elements = self.raw[begin : begin + nbytes].view(tensor.dtype)
        return torch.as_strided(elements, tensor.shape, tensor.stride())


@dataclass(eq=False)
class SimulatedGpu:
    """recorded: (data_ptr, stream) of every record_stream. copies: how many were asked for. waits: of the host.

    fails: asked at every allocation; what it returns is raised.
    """

    launcher: Any = None
    fails: Callable[[], Exception | None] = lambda: None
    waits: int = 0
    streams: list[SimulatedStream] = field(default_factory=list)
    recorded: set[tuple[int, str]] = field(default_factory=set)
    copies: int = 0
    reused: int = 0
    allocate: Any = staticmethod(pageable)
    memory_bytes: int = 1 << 34
    _blocks: list[_Block] = field(default_factory=list)
    _free: list[_Block] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)  # what is freed may be found so while memory is being given out
    _current: threading.local = field(default_factory=threading.local)

    def new_stream(self) -> SimulatedStream:
        self.streams.append(SimulatedStream(f"stream {len(self.streams)}"))
        return self.streams[-1]

    def current_stream(self) -> SimulatedStream:
        if not hasattr(self._current, "stream"):
            self._current.stream = self.new_stream()
        return self._current.stream

    def recorded_event(self, stream: SimulatedStream) -> SimulatedEvent:
        return SimulatedEvent(stream, len(stream.operations))

    def follow(self, stream: SimulatedStream) -> None:
        stream.wait_event(self.recorded_event(self.current_stream()))

    def is_here(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and self._block(tensor) is not None

    def wait(self, event: SimulatedEvent) -> None:
        event.stream.advance(event.position)
        self.waits += 1

    def locked(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def empty(self, nbytes: int, stream: SimulatedStream) -> torch.Tensor:
        """Of memory that was freed on this stream, where there is any that is large enough: the last first."""
        if (failure := self.fails()) is not None:
            raise failure
        with self._lock:
            fitting = [free for free in self._free if free.stream is stream and free.raw.numel() >= nbytes + ALIGNMENT]
            if fitting:
                block = fitting[-1]
                self._free.remove(block)
                block.readers.clear()
                self.reused += 1
            else:
                block = _Block(torch.full((nbytes + ALIGNMENT,), GARBAGE, dtype=torch.uint8), stream)
                self._blocks.append(block)
        owner: Any = _Owner(block.raw.numpy())
        weakref.finalize(owner, self._freed, block)
        there = torch.from_numpy(np.asarray(owner))
        return there[-there.data_ptr() % ALIGNMENT :][:nbytes]

    def _freed(self, block: _Block) -> None:
        """Whoever read it must have been named, or be done: else it reads garbage from here on."""
        ends = [(stream, len(stream.operations)) for stream in block.readers]

        def spoil() -> None:
            for stream, position in ends:
                stream.advance(position)
            block.raw.fill_(GARBAGE)

        with self._lock:
            block.stream.operations.append(spoil)
            self._free.append(block)

    def copy(self, host: torch.Tensor, stream: SimulatedStream) -> torch.Tensor:
        there = self.empty(max(1, host.numel()) * host.itemsize, stream).view(host.dtype)
        there = torch.as_strided(there, host.shape, host.stride())
        self.copy_into(there, host, stream)
        return there

    def copy_into(self, target: torch.Tensor, source: torch.Tensor, stream: SimulatedStream) -> None:
        ends = [self._end(target), self._end(source)]

        def run() -> None:
            into, out_of = (end() for end in ends)
            assert into is not None and out_of is not None, "host memory was let go before the copy"
            into.copy_(out_of)

        stream.operations.append(run)
        self.copies += 1

    def launch(
        self, job: Any, upload: torch.Tensor, scratch: torch.Tensor, images: torch.Tensor, stream: SimulatedStream
    ) -> None:
        output, addresses, held = output_of(images), (upload.data_ptr(), scratch.data_ptr()), weakref.ref(job)

        def run() -> None:
            alive = held()
            assert alive is not None, "the job was let go before its launches: a decoder's memory may have gone with it"
            alive.launch(self.launcher, *addresses, output)

        stream.operations.append(run)

    launches = True

    def mixed(self, batch: Any, mix: Callable[..., Any], stream: SimulatedStream) -> Any:
        """What mix allocates is torch's, on the host: it stands for memory of the stream's from here on."""

        def launch(name: str, items: int, *arguments: int) -> None:
            stream.operations.append(lambda: self.launcher.launch(name, items, *arguments))

        mixed = mix(batch, launch=launch)

        def adopted(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and not self.is_here(leaf):
                self._blocks.append(_Block(_bytes_of(leaf), stream))
            return leaf

        return map_leaves(adopted, mixed)

    def record_stream(self, tensor: torch.Tensor, stream: SimulatedStream) -> None:
        self.recorded.add((tensor.data_ptr(), stream.name))
        block = self._block(tensor)
        assert block is not None, "record_stream of memory that is not the device's does nothing"
        block.readers.add(stream)

    def _block(self, tensor: torch.Tensor) -> _Block | None:
        """The block in which a tensor lies."""
        at = tensor.data_ptr()
        return next((b for b in self._blocks if b.raw.data_ptr() <= at < b.raw.data_ptr() + b.raw.numel()), None)

    def _end(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
        """One end of a copy, when it runs: host memory only if it is still held."""
        block = self._block(tensor)
        if block is None:
            return weakref.ref(tensor)
        same = block.same(tensor)
        return lambda: same

    # What a test does as the consumer

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a kernel on the calling thread's current stream finds in `tensor`."""
        stream = self.current_stream()
        stream.advance(len(stream.operations))
        assert (tensor.data_ptr(), stream.name) in self.recorded, "record_stream was not called for the reading stream"
        return tensor.clone()


class _Owner:
    """Dies with the last tensor over a block, as no array would: NumPy shortens chains of array bases."""

    def __init__(self, block: np.ndarray):
        self._block = block
        self.__array_interface__ = block.__array_interface__


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
