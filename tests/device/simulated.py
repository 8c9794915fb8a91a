"""A GPU that runs nothing before it must: every rule of CudaDevice that is broken shows in the values or as an error.

Stands for `gpuload.device.cuda.TorchRuntime`, with CPU tensors for device memory. A stream is a list of operations
that are carried out only when another stream, or the test by `read`, needs them. A copy's target holds garbage until
then; a copy whose source has been let go fails. Every way to make the host wait fails.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gpuload.device.memory import pageable

GARBAGE = 0xCD


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
    """recorded: (data_ptr, stream) of every record_stream. copies: how many were asked for."""

    streams: list[SimulatedStream] = field(default_factory=list)
    recorded: set[tuple[int, str]] = field(default_factory=set)
    copies: int = 0
    allocate: Any = staticmethod(pageable)
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

    def locked(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def copy(self, host: torch.Tensor, stream: SimulatedStream) -> torch.Tensor:
        there = torch.empty_like(host)
        there.untyped_storage().fill_(GARBAGE)
        source, kept = weakref.ref(host), there

        def run() -> None:
            alive = source()
            assert alive is not None, "host memory was let go before the copy from it"
            kept.copy_(alive)

        stream.operations.append(run)
        self.copies += 1
        return there

    def record_stream(self, tensor: torch.Tensor, stream: SimulatedStream) -> None:
        self.recorded.add((tensor.data_ptr(), stream.name))

    # What a test does as the consumer

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a kernel on the calling thread's current stream finds in `tensor`."""
        stream = self.current_stream()
        stream.advance(len(stream.operations))
        assert (tensor.data_ptr(), stream.name) in self.recorded, "record_stream was not called for the reading stream"
        return tensor.clone()
