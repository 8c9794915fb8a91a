"""Threads that take tasks in the order given, and stop within two seconds from any state.

Owns thread life: daemon threads, started on first use, stopped when the pool is closed, when its owner is
garbage-collected (the threads hold only `_State`, never the owner), or at interpreter exit. After a fork the child
has no threads of its parent's: a pool knows the process it was made in.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuload.config import STOP_WAIT_S
from gpuload.engine.stats import Meter

Task = Callable[[], None]


@dataclass
class _State:
    """What threads share with their pool. Guarded by `wake`'s lock."""

    wake: threading.Condition = field(default_factory=threading.Condition)
    tasks: deque[Task] = field(default_factory=deque)
    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0
    stopping: bool = False
    pid: int = field(default_factory=os.getpid)


_LIVE: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class ThreadPool:
    """`threads` threads named `name`. meter: takes their waiting time. prepare: runs first in each thread.

    A task must not raise: it hands its errors to whoever waits for it.
    """

    def __init__(self, name: str, threads: int, *, meter: Meter, prepare: Task | None = None):
        self.name, self.size = name, threads
        self._meter, self._prepare = meter, prepare
        self._state = _State()
        self._finalizer = weakref.finalize(self, _stop, self._state)
        self._finalizer.atexit = False  # `_stop_all` below does it for all pools at once
        _LIVE.add(self)

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task: behind all others, or before them. Any thread. Ignored once closed."""
        state = self._state
        with state.wake:
            if state.stopping:
                return
            state.tasks.appendleft(task) if first else state.tasks.append(task)
            if state.idle:
                state.wake.notify()
            elif len(state.threads) < self.size:
                thread = threading.Thread(
                    target=_work,
                    args=(state, self._meter, self._prepare),
                    name=f"gpuload-{self.name}-{len(state.threads)}",
                    daemon=True,
                )
                state.threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Drop what is queued, let running tasks end, wait for the threads (at most STOP_WAIT_S)."""
        _stop(self._state)

    def __repr__(self) -> str:
        state = self._state
        return f"ThreadPool({self.name}, {len(state.threads)}/{self.size} threads, {len(state.tasks)} queued)"


def _work(state: _State, meter: Meter, prepare: Task | None) -> None:
    if prepare is not None:
        prepare()
    while True:
        began = time.perf_counter()
        with state.wake:
            state.idle += 1
            while not state.tasks and not state.stopping:
                state.wake.wait()
            state.idle -= 1
            if state.stopping:
                return
            task = state.tasks.popleft()
        meter.add(wait_s=time.perf_counter() - began)
        task()
        del task  # it may hold the last reference to a batch: not to be kept while waiting for the next


def _signal(state: _State) -> None:
    with state.wake:
        state.stopping = True
        state.tasks.clear()
        state.wake.notify_all()


def _join(state: _State, until: float) -> None:
    for thread in state.threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def _stop(state: _State) -> None:
    if state.pid != os.getpid():  # forked: those threads are the parent's, and its lock may be held for ever here
        return
    _signal(state)
    _join(state, time.monotonic() + STOP_WAIT_S)


@atexit.register
def _stop_all() -> None:
    states = [pool._state for pool in list(_LIVE) if pool._state.pid == os.getpid()]
    for state in states:
        _signal(state)
    until = time.monotonic() + STOP_WAIT_S
    for state in states:
        _join(state, until)
