"""The loop on its thread: whoever waits for what it does hears of its end, whenever that comes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time

import numpy as np
import pytest

from gpuload.core.refs import whole_files
from gpuload.fetch.event_loop import EventLoop
from gpuload.fetch.remote import RemoteReader


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    """No session to close."""


def ended(future: concurrent.futures.Future[None]) -> bool:
    """Whether it was cancelled; a future that hangs is none."""
    try:
        future.result(timeout=5)
    except concurrent.futures.CancelledError:
        return True
    return False


def test_what_is_begun_is_answered_and_cancelled_at_the_end():
    events = EventLoop(threads=2, at_end=nothing)

    async def answer() -> int:
        return await events.on_a_thread(lambda: 7)

    waiting = events.begin(forever())
    assert events.call(answer()) == 7 and not waiting.done()
    events.close()
    events.close()
    assert ended(waiting) and not events.thread.is_alive() and not events._begun


def test_nothing_is_begun_while_it_is_closed():
    closing = threading.Event()

    async def slowly() -> None:
        closing.set()
        await asyncio.sleep(0.3)

    events = EventLoop(threads=1, at_end=slowly)
    thread = threading.Thread(target=events.close)
    thread.start()
    assert closing.wait(5)
    with pytest.raises(RuntimeError, match="closed"):
        events.begin(forever())
    thread.join(5)
    with pytest.raises(RuntimeError, match="closed"):
        events.call(forever())


def test_what_becomes_a_task_while_it_ends_is_cancelled_too():
    late: list[concurrent.futures.Future[None]] = []

    async def begins() -> None:
        late.append(asyncio.run_coroutine_threadsafe(forever(), asyncio.get_running_loop()))

    EventLoop(threads=1, at_end=begins).close()
    assert ended(late[0])


@pytest.mark.filterwarnings("ignore:coroutine 'forever' was never awaited:RuntimeWarning")
def test_what_came_too_late_to_become_a_task_is_cancelled():
    events = EventLoop(threads=1, at_end=nothing)
    stopped = threading.Event()
    events.loop.call_soon_threadsafe(lambda: (events.loop.stop(), stopped.wait(5)))
    late = events.begin(forever())  # its turn would come behind the end
    stopped.set()
    assert ended(late)


def test_threads_that_begin_as_it_closes_all_hear_of_it():
    for _ in range(20):
        events = EventLoop(threads=1, at_end=nothing)
        outcomes: list[str] = []

        def read(events: EventLoop = events, outcomes: list[str] = outcomes) -> None:
            try:
                while True:
                    events.begin(asyncio.sleep(0)).result(timeout=5)
            except RuntimeError:
                outcomes.append("refused")
            except concurrent.futures.CancelledError:
                outcomes.append("cancelled")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        events.close()
        for thread in threads:
            thread.join(10)
        assert len(outcomes) == 4


@pytest.mark.filterwarnings("ignore:coroutine 'forever' was never awaited:RuntimeWarning")
def test_a_loop_that_is_forgotten_ends():
    events = EventLoop(threads=1, at_end=nothing)
    thread, waiting = events.thread, events.begin(forever())
    del events
    gc.collect()
    assert ended(waiting)
    thread.join(5)
    assert not thread.is_alive()


def test_a_reader_that_is_forgotten_leaves_no_thread():
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/forgotten/1.bin", b"abc")
    reader = RemoteReader()
    assert reader.read(["memory://forgotten/1.bin"], whole_files(np.array([0]))).lengths.tolist() == [3]
    threads = [reader._events.thread, *reader._events._pool._threads]
    del reader
    gc.collect()
    for thread in threads:
        thread.join(5)
    assert len(threads) > 1 and not any(thread.is_alive() for thread in threads)
    fsspec.filesystem("memory").rm("/forgotten", recursive=True)
