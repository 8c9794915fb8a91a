"""Threads that never keep a process alive: a small pool of daemons, started when first needed.

Owns starting and ending them, and one use of them: the same question about many things, answered as they come
(`ask_all`). What runs on them is the caller's. `concurrent.futures` is not used
because the interpreter waits for its threads at exit, and one that is blocked on a dead mount or a server that hangs
would never let it go.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

Task = Callable[[], None]
Answer = TypeVar("Answer")


class DaemonPool:
    """At most `threads` daemon threads taking tasks in order. Any thread may call; a task must not raise."""

    def __init__(self, *, threads: int, name: str):
        self._limit, self._name = threads, name
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._tasks, self._threads)

    def submit(self, task: Task) -> bool:
        """Run `task` on a thread of the pool; False, and nothing is run, once the pool is closed."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < self._limit:
                number = len(self._threads)
                # The thread knows the queue and not the pool: a forgotten pool is collected, and its threads end.
                thread = threading.Thread(target=_run, args=(self._tasks,), name=f"{self._name}-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._tasks.put(task)
            return True

    def close(self, *, timeout_s: float = 1.0) -> None:
        """Ask the threads to end after their current tasks, and wait for them for at most `timeout_s`."""
        with self._lock:
            self._closed = True
        self._finalizer()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def __repr__(self) -> str:
        alive = sum(t.is_alive() for t in self._threads)
        return f"DaemonPool({self._name!r}, threads={alive}/{self._limit})"


def _run(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # what it holds (a batch's buffer) must not live until the next task comes


def _end(tasks: queue.SimpleQueue[Task | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        tasks.put(None)


@dataclass(frozen=True)
class Answered(Generic[Answer]):
    """What became of item `number`."""

    number: int
    _value: Answer | None
    _error: Exception | None

    def get(self) -> Answer:
        """The answer. Raises what asking raised."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # there is one where there is no error


def ask_all(ask: Callable[..., Answer], items: Sequence[Any], *, threads: int, name: str) -> Iterator[Answered[Answer]]:
    """ask(item) of every item on at most `threads` daemons, in the order of completion.

    Whoever leaves early (an error, Ctrl-C) waits for nobody: what is queued is dropped, what runs has nobody to tell.
    """
    answers: queue.SimpleQueue[Answered[Answer]] = queue.SimpleQueue()
    left = threading.Event()

    def task(number: int) -> None:
        if left.is_set():
            return
        try:
            answers.put(Answered(number, ask(items[number]), None))
        except Exception as error:  # raised where the answer is wanted
            answers.put(Answered(number, None, error))

    pool = DaemonPool(threads=min(threads, len(items)), name=name)
    try:
        for number in range(len(items)):
            pool.submit(partial(task, number))
        for _ in items:
            yield answers.get()
    finally:
        left.set()
        pool.close(timeout_s=0)
