"""The counters behind `Stats`: what stages, queues and consumer add to while an epoch runs.

Owns fixed memory and cheap touches: a stage's once a task and never once an image (2.5 us, of which two readings of the
thread's CPU clock are 1.2), a queue's when it changes (0.5 us), the consumer's once a batch (1.3 us): 0.1% of a task of
5 ms. Rules (tests/engine/test_meters.py):
1. A Meter has a re-entrant lock of its own: the garbage collector may run under it, and a view that is closed then
   asks for stats. A Gauge has none: whoever owns the queues calls it under the lock that guards them.
2. A Consumer is written by one thread, and may be read by any, in a forked child too: it has no lock to be held there.
3. A snapshot is a value, and agrees with itself.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from dataclasses import astuple, replace
from itertools import accumulate
from time import perf_counter, process_time, thread_time
from types import TracebackType

from gpuload.engine.events import Events
from gpuload.engine.stats import Quantiles, QueuePoint, Queues, QueueStats, StageStats

_SHORTEST_S, _LONGEST_S, _RATIO = 1e-6, 1e4, 1.1
_BINS = math.ceil(math.log(_LONGEST_S / _SHORTEST_S) / math.log(_RATIO))
_SCALE = 1 / math.log(_RATIO)

_FIRST_PERIOD_S, _MOST_POINTS = 0.005, 240
"""A history begins with a point each 5 ms; at 240 points every two become one, and later ones are as long."""


class Histogram:
    """Durations, counted in log-spaced bins whose ends are 10% apart: a quantile is within 5%. No lock."""

    def __init__(self) -> None:
        self._counts = [0] * _BINS
        self._most = 0.0

    def add(self, duration_s: float) -> None:
        bin_ = int(math.log(duration_s / _SHORTEST_S) * _SCALE) if duration_s > _SHORTEST_S else 0
        self._counts[bin_ if bin_ < _BINS else _BINS - 1] += 1
        if duration_s > self._most:
            self._most = duration_s

    def quantiles(self) -> Quantiles | None:
        """None before the first. A quantile q is the least duration that a share q of all does not exceed."""
        counts, most = self._counts.copy(), self._most  # at once, since another thread may be adding
        up_to = list(accumulate(counts))
        if not up_to[-1]:
            return None

        def quantile(share: float) -> float:
            bin_ = bisect_left(up_to, math.ceil(share * up_to[-1]))
            return min(most, _SHORTEST_S * _RATIO ** (bin_ + 0.5))

        return Quantiles(quantile(0.5), quantile(0.9), quantile(0.99), most)


class Task:
    """One task of a stage, timed: `with meter.task(...) as task`. nbytes may be set while it runs.

    A task that raises has cost its time, and finished no image.
    """

    __slots__ = ("_began", "_cpu_began", "_meter", "batch", "items", "nbytes")

    def __init__(self, meter: Meter, batch: int, items: int, nbytes: int):
        self._meter, self.batch, self.items, self.nbytes = meter, batch, items, nbytes

    def __enter__(self) -> Task:
        if self._meter.events is not None:
            self._meter.events.begin(self._meter.name, self.batch)
        self._cpu_began = thread_time()
        self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        meter, ended = self._meter, perf_counter()
        busy_s, items = ended - self._began, 0 if kind else self.items
        meter.add(items=items, nbytes=self.nbytes, busy_s=busy_s, cpu_s=thread_time() - self._cpu_began)
        if meter.events is not None:
            meter.events.end(meter.name, self._began, ended, self.batch, items, self.nbytes)


class Meter:
    """Adds up one stage's work of one epoch. Thread-safe. threads: those that run it. events: where tasks are told."""

    def __init__(self, name: str, threads: int = 0, events: Events | None = None):
        self.name, self.events = name, events
        self._lock = threading.RLock()  # a finalizer that asks for stats may run while this thread has it
        self._threads_from = [(perf_counter(), threads)]  # as often as the tuner changes its mind, not more
        self._items, self._bytes, self._tasks = 0, 0, 0
        self._busy_s, self._cpu_s, self._wait_s = 0.0, 0.0, 0.0
        self._times = Histogram()

    @property
    def threads(self) -> int:
        """How many run the stage now; may be set at any time."""
        return self._threads_from[-1][1]

    @threads.setter
    def threads(self, threads: int) -> None:
        with self._lock:
            if threads != self._threads_from[-1][1]:
                self._threads_from.append((perf_counter(), threads))

    def task(self, batch: int, *, items: int, nbytes: int = 0) -> Task:
        """What times one task, on `items` images of that batch."""
        return Task(self, batch, items, nbytes)

    def add(
        self, *, items: int = 0, nbytes: int = 0, busy_s: float = 0.0, cpu_s: float = 0.0, wait_s: float = 0.0
    ) -> None:
        """What a thread did: waited so long, or worked so long on one task."""
        with self._lock:
            if items or busy_s:
                self._tasks += 1
                self._items += items
                self._bytes += nbytes
                self._busy_s += busy_s
                self._cpu_s += cpu_s
                self._times.add(busy_s)
            self._wait_s += wait_s

    def snapshot(self, since: float = -math.inf, until: float = math.inf) -> StageStats:
        """Without its queue, which is the Gauge's. since, until (perf_counter): between them thread_s is counted."""
        until = min(until, perf_counter())
        with self._lock:
            found = StageStats(
                self.name, self.threads, self._items, self._busy_s, self._wait_s, self._bytes, self._tasks, self._cpu_s
            )
            times = self._times.quantiles() or Quantiles(0.0, 0.0, 0.0, 0.0)
            starts = self._threads_from.copy()
        ends = [start for start, _ in starts[1:]] + [until]
        thread_s = sum(
            threads * max(0.0, min(end, until) - max(start, since))
            for (start, threads), end in zip(starts, ends, strict=True)
        )
        return replace(found, p50_s=times.p50, p90_s=times.p90, p99_s=times.p99, thread_s=thread_s)


class _Queue:
    """A length over time: its integral, and the time at zero."""

    __slots__ = ("area", "empty_s", "length")

    def __init__(self, length: int = 0):
        self.length, self.area, self.empty_s = length, 0.0, 0.0

    def share(self, long_s: float) -> QueueStats:
        return QueueStats(self.area / long_s, self.empty_s / long_s) if long_s > 0 else QueueStats(0.0, 0.0)


class Gauge:
    """The lengths of one epoch's queues over time: means, time at zero, a history in fixed memory.

    planned: batches put and not let in. making: let in and not finished. tasks: decode tasks that no thread has begun.
    waiting: decoded batches whose turn to be finished has not come. ready: finished and not taken.
    """

    def __init__(self, events: Events | None = None):
        self._events, self._making, self._stopped = events, 0, False
        self._begin((0, 0, 0, 0))

    def restart(self) -> None:
        """An epoch begins: time counts from now, and what lies in the queues stays there."""
        self._begin(tuple(queue.length for queue in self._queues))

    def _begin(self, lengths: tuple[int, ...]) -> None:
        self._queues = self._planned, self._tasks, self._waiting, self._ready = tuple(map(_Queue, lengths))
        self._began = self._since = self._point_at = perf_counter()
        self._blocked_s, self._period_s, self._areas_then = 0.0, _FIRST_PERIOD_S, [0.0] * len(lengths)
        self._points: list[QueuePoint] = []

    def add(self, *, planned: int = 0, making: int = 0, tasks: int = 0, waiting: int = 0, ready: int = 0) -> None:
        """So many more, or fewer, in each. Nothing after `stop`."""
        if self._stopped:
            return
        self._pass(perf_counter())
        self._making += making
        self._planned.length += planned
        self._tasks.length += tasks
        self._waiting.length += waiting
        self._ready.length += ready
        if self._events is not None:
            self._events.count(self._since, tuple(queue.length for queue in self._queues))

    def stop(self) -> None:
        """Everything was dropped: time counts no longer."""
        if not self._stopped:
            self._pass(perf_counter())
            self._stopped = True

    def _pass(self, now: float) -> None:
        """Until now the lengths were as they are."""
        passed_s = now - self._since
        if passed_s <= 0:
            return
        self._since = now
        for queue in self._queues:
            if queue.length:
                queue.area += queue.length * passed_s
            else:
                queue.empty_s += passed_s
        if self._ready.length and not self._making:
            self._blocked_s += passed_s
        if now - self._point_at >= self._period_s:
            self._mark(now)

    def _mark(self, now: float) -> None:
        areas, long_s = [queue.area for queue in self._queues], now - self._point_at
        means = [(area - then) / long_s for area, then in zip(areas, self._areas_then, strict=True)]
        self._points.append(QueuePoint(now - self._began, *means))
        self._point_at, self._areas_then = now, areas
        if len(self._points) == _MOST_POINTS:
            self._points, self._period_s = thinned(self._points), 2 * self._period_s

    def snapshot(self, until: float) -> Queues:
        """From the start to `until` (perf_counter), or to the last change where that came later."""
        if not self._stopped:
            self._pass(until)
        long_s = self._since - self._began
        planned, tasks, waiting, ready = (queue.share(long_s) for queue in self._queues)
        blocked = self._blocked_s / long_s if long_s > 0 else 0.0
        return Queues(planned, tasks, waiting, ready, blocked, tuple(self._points))


def thinned(points: list[QueuePoint]) -> list[QueuePoint]:
    """Every two points as one: the means over both of their times."""
    merged, start_s = [], 0.0
    for one, two in zip(points[::2], points[1::2], strict=True):
        weight = (one.at_s - start_s) / (two.at_s - start_s)
        means = [weight * a + (1 - weight) * b for a, b in zip(astuple(one), astuple(two), strict=True)]
        merged.append(QueuePoint(two.at_s, *means[1:]))
        start_s = two.at_s
    return merged


class Consumer:
    """What the training loop saw of one epoch, told by its own thread."""

    def __init__(self, events: Events | None = None) -> None:
        self.events = events
        self.started = self.last = perf_counter()
        self._cpu_started = process_time()
        self.cpu_s = 0.0
        self.first_batch_s: float | None = None
        self.wait_s = 0.0
        self.images = self.batches = 0
        self.over = self.asked = False
        self.waits, self.steps = Histogram(), Histogram()

    def begins(self, asked_at: float) -> bool:
        """A batch is asked for; whether it is the first: time counts from here on, whatever came after iter()."""
        if self.asked:
            return False
        self.asked = True
        self.started = self.last = asked_at
        self._cpu_started = process_time()
        return True

    def received(self, asked_at: float, images: int) -> None:
        """A batch of `images` images was asked for at `asked_at` (perf_counter) and has now been handed over."""
        now = perf_counter()
        if self.first_batch_s is None:
            self.first_batch_s = now - self.started
        else:
            self.waits.add(now - asked_at)
            self.steps.add(asked_at - self.last)
            if self.events is not None:
                self.events.consumer("step", self.last, asked_at, self.batches - 1)
        if self.events is not None:
            self.events.consumer("wait", asked_at, now, self.batches, images)
        self.last = now
        self.cpu_s = process_time() - self._cpu_started
        self.wait_s += now - asked_at
        self.images += images
        self.batches += 1

    def resumes(self) -> None:
        """What came since the last batch was gpuload's own doing: the next step begins now."""
        self.last = perf_counter()
