"""A GPU that runs nothing before it must: every rule of CudaDevice that is broken shows in the values or as an error.

Stands for `gpuload.device.cuda.TorchRuntime`, with CPU tensors for device memory. A stream is a list of operations
that are carried out only when another stream, or the test by `read`, needs them. Memory holds garbage until then; a
copy whose source has been let go fails. Every way to make the host wait fails, but for the one at an epoch's end.
Kernels are those of tests/kernels/host_cuda.py, on the memory that stands for the device's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    allocate: Any = staticmethod(pageable)
    _here: dict[int, torch.Tensor] = field(default_factory=dict)
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

    def is_here(self, tensor: Any) -> bool:
        if not isinstance(tensor, torch.Tensor):
            return False
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self._here

    def wait(self, event: SimulatedEvent) -> None:
        event.stream.advance(event.position)
        self.waits += 1

    def locked(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def empty(self, nbytes: int, stream: SimulatedStream) -> torch.Tensor:
        if (failure := self.fails()) is not None:
            raise failure
        there = torch.full((nbytes + ALIGNMENT,), GARBAGE, dtype=torch.uint8)
        self._here[there.untyped_storage().data_ptr()] = there  # for good: no address is used twice
        return there[-there.data_ptr() % ALIGNMENT :][:nbytes]

    def copy(self, host: torch.Tensor, stream: SimulatedStream) -> torch.Tensor:
        there = self.empty(host.nbytes, stream).view(host.dtype)
        there = torch.as_strided(there, host.shape, host.stride())
        self.copy_into(there, host, stream)
        return there

    def copy_into(self, target: torch.Tensor, source: torch.Tensor, stream: SimulatedStream) -> None:
        ends = [weakref.ref(end) if not self.is_here(end) else lambda end=end: end for end in (target, source)]

        def run() -> None:
            into, out_of = (end() for end in ends)
            assert into is not None and out_of is not None, "host memory was let go before the copy"
            into.copy_(out_of)

        stream.operations.append(run)
        self.copies += 1

    def launch(
        self, job: Any, upload: torch.Tensor, scratch: torch.Tensor, images: torch.Tensor, stream: SimulatedStream
    ) -> None:
        # The job may be forgotten and its memory given to the next one: both are a later operation's on this stream.
        output = output_of(images)
        stream.operations.append(lambda: job.launch(self.launcher, upload.data_ptr(), scratch.data_ptr(), output))

    launches = True

    def mixed(self, batch: Any, mix: Callable[..., Any], stream: SimulatedStream) -> Any:
        def launch(name: str, items: int, *arguments: int) -> None:
            stream.operations.append(lambda: self.launcher.launch(name, items, *arguments))

        mixed = mix(batch, launch=launch)
        for leaf in (leaf for tree in (batch, mixed) for leaf in _tensors(tree)):
            self._here[leaf.untyped_storage().data_ptr()] = leaf
        return mixed

    def record_stream(self, tensor: torch.Tensor, stream: SimulatedStream) -> None:
        self.recorded.add((tensor.data_ptr(), stream.name))

    # What a test does as the consumer

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a kernel on the calling thread's current stream finds in `tensor`."""
        stream = self.current_stream()
        stream.advance(len(stream.operations))
        assert (tensor.data_ptr(), stream.name) in self.recorded, "record_stream was not called for the reading stream"
        return tensor.clone()


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_leaves(lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None, tree)
    return found
