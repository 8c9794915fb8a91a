"""An event loop on a daemon thread, and the few threads for what cannot wait on it.

Owns starting and ending them, from any state: closed, forgotten, at the interpreter's exit, after a fork; and that
whoever waits for what was begun hears of the end, whenever that comes (tests/fetch/test_event_loop.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import select
import selectors
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gpuload.core.threads import DaemonPool

Answer = TypeVar("Answer")


class EventLoop:
    """at_end: awaited when the loop ends, for its sessions. A new object works after a fork, this one does not."""

    def __init__(self, *, threads: int, at_end: Callable[[], Awaitable[None]]):
        self._selector = selectors.DefaultSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._pool = DaemonPool(threads=threads, name="gpuload-fsspec")
        self._begun: set[concurrent.futures.Future[Any]] = set()
        self.thread = threading.Thread(target=_run, args=(self.loop, self._begun), name="gpuload-fetch", daemon=True)
        self.thread.start()
        _here.add(self)
        self._pid = os.getpid()
        self._closed = False
        self._finalizer = weakref.finalize(self, _stop, self.loop, self.thread, at_end, self._pid)

    @property
    def usable(self) -> bool:
        return not self._closed and os.getpid() == self._pid

    def begin(self, coroutine: Coroutine[Any, Any, Answer]) -> concurrent.futures.Future[Answer]:
        """Its future, which is cancelled where the loop ends. Raises RuntimeError once that is closed."""
        try:
            if not self.usable:
                raise RuntimeError("the reader is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        if self.loop.is_closed():  # since then, and nobody looks at what is begun any more
            future.cancel()
        return future

    def call(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Its result, waited for by the calling thread. Raises RuntimeError where the loop ends meanwhile."""
        future = self.begin(coroutine)
        try:
            while True:
                concurrent.futures.wait([future], timeout=1.0)
                if future.done():
                    return future.result()
                if not self.thread.is_alive():
                    raise RuntimeError("the reader was closed while it was reading")
        except concurrent.futures.CancelledError:
            raise RuntimeError("the reader was closed while it was reading") from None
        finally:
            future.cancel()

    def soon(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop call it; nothing happens once the loop is closed."""
        if self.usable and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(work, *arguments)

    async def on_a_thread(self, call: Callable[[], Any]) -> Any:
        """What `call` returns, on one of the threads."""
        answer: asyncio.Future[Any] = self.loop.create_future()

        def run() -> None:
            try:
                result, error = call(), None
            except Exception as raised:
                result, error = None, raised
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(_settle, answer, result, error)

        if not self._pool.submit(run):
            raise RuntimeError("the reader is closed")
        return await answer

    def close(self) -> None:
        """Cancel what is under way, end the threads: within 2 s. Idempotent; of a parent's loop nothing is touched."""
        usable, self._closed = self.usable, True
        if usable:
            self._finalizer()
            self._pool.close(timeout_s=0.3)


_here: weakref.WeakSet[EventLoop] = weakref.WeakSet()
_of_parent: list[EventLoop] = []


def _leave_to_parent() -> None:
    """In a forked child: parent and child share the epoll, where a connection that the child collects would be crossed
    out for the parent, too, who would wait for it for ever; and whatever complains of it has no loop to tell.
    """
    for events in _here:
        if events.loop.is_closed():
            continue
        events.loop.set_exception_handler(lambda *_: None)
        if hasattr(select, "epoll"):
            with select.epoll() as nobodys:
                os.dup2(nobodys.fileno(), events._selector.fileno(), inheritable=False)
        _of_parent.append(events)  # a TLS connection that is collected says goodbye, for the parent as well
    _here.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():  # cancelled, or given up after its time-out
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _run(loop: asyncio.AbstractEventLoop, begun: set[concurrent.futures.Future[Any]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
        while begun:  # what came too late to become a task of the loop
            begun.pop().cancel()


def _stop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, at_end: Callable[[], Awaitable[None]], pid: int
) -> None:
    """End the loop: at `close`, when its owner is forgotten, and at exit, where open sessions are complained of."""
    if os.getpid() != pid or not thread.is_alive() or loop.is_closed():
        return
    loop.call_soon_threadsafe(lambda: loop.create_task(_end(loop, at_end)))
    if thread is not threading.current_thread():
        thread.join(1.5)


async def _end(loop: asyncio.AbstractEventLoop, at_end: Callable[[], Awaitable[None]]) -> None:
    await _cancel_others()
    try:
        await asyncio.wait_for(at_end(), 0.4)
    except Exception:  # any library's: the sockets end with their loop
        pass
    finally:
        await _cancel_others()  # of a thread that was about to begin one
        loop.stop()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=0.4) if others else None
