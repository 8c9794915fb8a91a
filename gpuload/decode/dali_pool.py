"""Which call has which DALI pipeline: made when first needed, one call's at a time, none left at exit or in a fork.

Owns that and nothing of what they compute, so that it serves the CPU's decoder and the GPU's.

1. A pipeline is used by one call at a time; calls beyond `allowed` wait
   (test_more_callers_than_threads_wait_their_turn).
2. A forked child has none of DALI's threads: the pool that it inherits is closed and its pipelines are leaked, a new
   one works (test_a_forked_child_starts_clean).
3. At exit calls in flight are waited for, and no other begins (test_the_interpreter_exits_quietly).
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from gpuload.core.errors import EpochCancelledError
from gpuload.decode.dali_pipeline import DaliPipeline

EXIT_WAIT_S = 1.0  # for calls in flight when the interpreter exits: a task of photographs takes some 20 ms


class DaliPool:
    """make: a new pipeline. allowed: how many calls run at once."""

    def __init__(self, make: Callable[[], DaliPipeline], *, allowed: int):
        self._make = make
        self._state = threading.Condition()  # over the next four, and while a pipeline is built
        self._allowed, self._running = allowed, 0
        self._idle: list[DaliPipeline] = []
        self._closed = False
        self._pipelines: weakref.WeakSet[DaliPipeline] = weakref.WeakSet()
        _pools.add(self)
        # DALI's own exit handler shuts pipelines down under running calls; this one is registered later, so runs first
        self._exit = partial(_finish_calls, weakref.ref(self))
        atexit.register(self._exit)

    def __str__(self) -> str:
        return "closed" if self._closed else f"{len(self._idle)} pipelines idle"

    @contextmanager
    def lease(self) -> Iterator[DaliPipeline]:
        """A pipeline for one call. After any exception it is in an unknown state and is not used again."""
        with self._state:
            self._state.wait_for(lambda: self._running < self._allowed or self._closed)
            if self._closed:
                raise EpochCancelledError("this DALI decoder is closed; make a new one")
            pipeline = self._idle.pop() if self._idle else self._make()
            self._pipelines.add(pipeline)
            self._running += 1
        sound = False
        try:
            yield pipeline
            sound = True
        finally:
            with self._state:
                self._running -= 1
                if sound and not self._closed:
                    self._idle.append(pipeline)
                self._state.notify_all()

    def close(self) -> None:
        """Free the pipelines; a call in flight frees its own when it ends."""
        atexit.unregister(self._exit)
        with self._state:
            self._closed = True
            idle, self._idle = self._idle, []
            self._state.notify_all()
        idle.clear()

    def disinherit(self) -> None:
        """In a forked child: become closed without touching what only the parent's threads can finish."""
        for pipeline in list(self._pipelines):
            pipeline.disown()
        self._state, self._closed, self._running, self._idle = threading.Condition(), True, 0, []

    def finish_calls(self) -> None:
        """Wait for running calls and let no other begin; their threads are daemons that end with the process."""
        with self._state:
            self._allowed = 0
            self._state.wait_for(lambda: self._running == 0, EXIT_WAIT_S)


_pools: weakref.WeakSet[DaliPool] = weakref.WeakSet()


def _disinherit_all() -> None:
    for pool in list(_pools):
        pool.disinherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disinherit_all)


def _finish_calls(reference: weakref.ref[DaliPool]) -> None:
    pool = reference()
    if pool is not None:
        pool.finish_calls()
