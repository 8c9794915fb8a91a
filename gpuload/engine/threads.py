"""Threads that take tasks by rank, and stop within two seconds from any state.

Owns thread life: daemon threads, started on first use, stopped when the pool is closed, when its owner is
garbage-collected (the threads hold only `_State`, never the owner), or at interpreter exit. Rules
(tests/engine/test_threads.py):
1. After a fork the child has no threads of its parent's, and perhaps a lock that nobody will release: a pool does
   nothing in a process that it was not made in.
2. A finalizer may run in the middle of any line, of one of the pool's own threads too: locks are re-entrant, and a
   thread waits neither for itself nor for its colleagues, who may wait for what it holds.
3. Stopping waits for STOP_WAIT_S once, however many pools there are and however often it is asked for. What else is
   closed with them has the same time and runs beside: it may be what a thread waits for (a read from a dead server).
4. A pool that shrinks loses its threads as they become idle; the task of which one was told is another's.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuload.config import STOP_WAIT_S
from gpuload.core.warned import warn_on_a_thread
from gpuload.engine.meters import Meter

Task = Callable[[], None]


@dataclass
class _State:
    """What threads share with their pool. Guarded by `wake`'s lock."""

    meter: Meter
    size: int
    measured_since: float = field(default_factory=time.perf_counter)
    wake: threading.Condition = field(default_factory=threading.Condition)
    tasks: list[tuple[int, int, Task]] = field(default_factory=list)  # a heap of (rank, arrival, task)
    arrivals: itertools.count[int] = field(default_factory=itertools.count)
    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0
    stopping: bool = False
    waited: bool = False
    pid: int = field(default_factory=os.getpid)


_LIVE: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class ThreadPool:
    """`threads` threads named `name`. meter: takes their waiting time. prepare: runs first in each thread.

    A task must not raise: it hands its errors to whoever waits for it.
    """

    def __init__(self, name: str, threads: int, *, meter: Meter, prepare: Task | None = None):
        self.name = name
        self._prepare = prepare
        self._state = _State(meter, threads)
        self._names = itertools.count()
        self._finalizer = weakref.finalize(self, _stop, (self._state,))
        self._finalizer.atexit = False  # `_stop_all` below does it for all pools at once
        _LIVE.add(self)

    @property
    def size(self) -> int:
        """How many threads it may have."""
        return self._state.size

    def resize(self, threads: int) -> None:
        """So many from now on: those too many end after the task that they are in."""
        state = self._state
        with state.wake:
            state.size = threads
            if not state.stopping:
                for _ in range(min(threads - len(state.threads), len(state.tasks) - state.idle)):
                    self._start_thread()
            state.wake.notify_all()

    def measure(self, meter: Meter) -> None:
        """From now on waiting time is `meter`'s: a new epoch."""
        with self._state.wake:
            self._state.meter, self._state.measured_since = meter, time.perf_counter()

    def submit(self, task: Task, *, rank: int) -> None:
        """Queue a task: before all of a higher rank, after those of the same. Any thread. Ignored once closed.

        Raises RuntimeError where the pool has no thread and the system gives it none.
        """
        state = self._state
        with state.wake:
            if state.stopping:
                return
            if len(state.tasks) >= state.idle and len(state.threads) < state.size:
                self._start_thread()
            heapq.heappush(state.tasks, (rank, next(state.arrivals), task))
            state.wake.notify()

    def _start_thread(self) -> None:
        state = self._state
        name = f"gpuload-{self.name}-{next(self._names)}"
        thread = threading.Thread(target=_work, args=(state, self._prepare), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more: those that there are do the work
            if not state.threads:
                raise RuntimeError(
                    f"{error}: the system refuses the first of gpuload's {self.name} threads. Raise the limit on "
                    "processes (ulimit -u, a container's pids limit), or pass num_workers=0"
                ) from error
        else:
            state.threads.append(thread)

    def close(self) -> None:
        """Drop what is queued, let running tasks end, wait for the threads (at most STOP_WAIT_S)."""
        close_pools(self)

    def __repr__(self) -> str:
        state = self._state
        return f"ThreadPool({self.name}, {len(state.threads)}/{self.size} threads, {len(state.tasks)} queued)"


def close_pools(*pools: ThreadPool, beside: Sequence[Task] = ()) -> None:
    """Close them all and run `beside`, each in a thread of its own, waiting no longer than for one pool."""
    _stop(tuple(pool._state for pool in pools), beside)


def _work(state: _State, prepare: Task | None) -> None:
    if prepare is not None:
        try:
            prepare()
        except Exception as error:  # a thread that ended here would leave its tasks to nobody
            warn_on_a_thread(f"{threading.current_thread().name} works unprepared: {error}", stacklevel=1)
    while True:
        began = time.perf_counter()
        with state.wake:
            state.idle += 1
            while not state.tasks and not state.stopping and len(state.threads) <= state.size:
                state.wake.wait()
            state.idle -= 1
            if state.stopping:
                return
            if len(state.threads) > state.size:
                state.threads.remove(threading.current_thread())
                state.wake.notify()  # it may have been woken for a task
                return
            task = heapq.heappop(state.tasks)[2]
            meter, began = state.meter, max(began, state.measured_since)
        meter.add(wait_s=time.perf_counter() - began)
        task()
        del task  # it may hold the last reference to a batch: not to be kept while waiting for the next


def _stop(states: tuple[_State, ...], beside: Sequence[Task] = ()) -> None:
    mine = [state for state in states if state.pid == os.getpid()]
    for state in mine:
        with state.wake:
            state.stopping = True
            state.tasks.clear()
            state.wake.notify_all()
    until = time.monotonic() + STOP_WAIT_S
    others = [thread for task in beside if (thread := _begun(task)) is not None]
    here = threading.current_thread()
    if any(here in state.threads for state in mine):
        return
    for state in mine:
        if not state.waited:
            state.waited = True
            others += state.threads
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))


def _begun(task: Task) -> threading.Thread | None:
    """A thread that runs `task`; None where there is none to be had and it has been run here."""
    thread = threading.Thread(target=task, name="gpuload-close", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        task()
        return None
    return thread


@atexit.register
def _stop_all() -> None:
    _stop(tuple(pool._state for pool in list(_LIVE)))
