"""What happened when, one event a task: kept only where a trace is asked for.

Owns the bound on their number and NVTX ranges; writing them to a file is `report/trace.py`'s. Any thread may add: a
list's append is one step.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

CONSUMER = "consumer"
"""The thread of what the training loop does, in the events: a track of its own, whatever its name is."""

COUNT_PERIOD_S = 0.001
"""Queue lengths are told at most a thousand times a second: what is shorter is seen in the tasks."""


class Span(NamedTuple):
    """A task, a wait or a step, from began_s to ended_s (perf_counter)."""

    name: str
    thread: str
    began_s: float
    ended_s: float
    batch: int
    images: int
    nbytes: int


class Lengths(NamedTuple):
    """Queue lengths at a moment: planned, decode, finish, ready, as in QueuePoint."""

    at_s: float
    lengths: tuple[int, ...]


class Ranges(Protocol):
    """Ranges that a profiler shows on the thread which opens and closes them; torch.cuda.nvtx is one."""

    def range_push(self, msg: str) -> object: ...
    def range_pop(self) -> object: ...


@dataclass(eq=False)
class Events:
    """most: how many are kept in all; whoever takes some makes no room. ranges: told of each task's begin and end."""

    most: int
    ranges: Ranges | None = None
    kept: int = 0
    _found: list[Span | Lengths] = field(default_factory=list)
    _counted_at: float = 0.0

    @property
    def full(self) -> bool:
        """Nothing is kept any more."""
        return self.kept >= self.most

    def begin(self, name: str, batch: int) -> None:
        """A task begins on this thread."""
        if self.ranges is not None:
            self.ranges.range_push(f"gpuload {name} {batch}")

    def end(self, name: str, began_s: float, ended_s: float, batch: int, images: int, nbytes: int) -> None:
        """It ended, on the thread on which it began."""
        if self.ranges is not None:
            self.ranges.range_pop()
        self._keep(Span(name, threading.current_thread().name, began_s, ended_s, batch, images, nbytes))

    def consumer(self, name: str, began_s: float, ended_s: float, batch: int, images: int = 0) -> None:
        """The training loop waited for this batch, or worked on it."""
        self._keep(Span(name, CONSUMER, began_s, ended_s, batch, images, 0))

    def count(self, now: float, lengths: tuple[int, ...]) -> None:
        """The queues' lengths are these now. Called under the queues' lock."""
        if now - self._counted_at >= COUNT_PERIOD_S:
            self._counted_at = now
            self._keep(Lengths(now, lengths))

    def _keep(self, event: Span | Lengths) -> None:
        if not self.full:
            self.kept += 1  # two threads at once may count one: the bound is not to the event
            self._found.append(event)

    def take(self) -> list[Span | Lengths]:
        """What was found since the last time, and forget it."""
        found = self._found.copy()
        del self._found[: len(found)]  # what another thread has added since then stays
        return found
