"""Pools of threads: the order of tasks, how many run, waiting time, and every way to stop."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import warnings
import weakref
from functools import partial

import pytest

from gpuload.engine.meters import Meter
from gpuload.engine.threads import ThreadPool, close_pools
from tests.engine.fakes import eventually, exit_code


@pytest.fixture
def pool():
    made = ThreadPool("test", 3, meter=Meter("test"))
    yield made
    made.close()


def named(pool: ThreadPool) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(f"gpuload-{pool.name}-")]


def test_tasks_run_by_rank_and_within_a_rank_as_they_came():
    pool = ThreadPool("ranks", 1, meter=Meter("test"))
    gate, ran, done = threading.Event(), [], threading.Event()
    pool.submit(lambda: (gate.wait(10), None)[1], rank=0)
    for name, rank in [("c", 7), ("d", 7), ("a", 2), ("e", 9), ("b", 2)]:
        pool.submit(lambda name=name: ran.append(name), rank=rank)
    pool.submit(done.set, rank=10)
    gate.set()
    assert done.wait(10)
    assert ran == ["a", "b", "c", "d", "e"]
    pool.close()


def test_a_burst_starts_a_thread_for_each_task_up_to_the_size(pool: ThreadPool):
    first = threading.Event()
    pool.submit(first.set, rank=0)
    assert first.wait(10) and eventually(lambda: pool._state.idle == 1)
    together = threading.Barrier(3)
    met = []
    for _ in range(3):  # one thread is idle: were it the only one to be woken, the three would never meet
        pool.submit(lambda: met.append(together.wait(10)), rank=1)
    assert eventually(lambda: sorted(met) == [0, 1, 2])
    for _ in range(20):
        pool.submit(lambda: None, rank=2)
    assert len(named(pool)) == 3


def test_prepare_runs_once_in_each_thread():
    prepared = []
    pool = ThreadPool("prepared", 2, meter=Meter("test"), prepare=lambda: prepared.append(threading.get_ident()))
    together, met = threading.Barrier(2), []
    for _ in range(2):
        pool.submit(lambda: met.append((together.wait(10), threading.get_ident())), rank=0)
    assert eventually(lambda: len(met) == 2)
    pool.close()
    assert sorted(prepared) == sorted(ident for _, ident in met)


def test_waiting_time_goes_to_the_meter_of_the_epoch_and_not_from_before_it(pool: ThreadPool):
    pool.submit(lambda: None, rank=0)
    assert eventually(lambda: pool._state.idle == 1)
    threading.Event().wait(0.3)  # idle between two epochs
    second = Meter("second")
    pool.measure(second)
    ran = threading.Event()
    pool.submit(ran.set, rank=0)
    assert ran.wait(10)
    assert eventually(lambda: second.snapshot().wait_s > 0)
    assert second.snapshot().wait_s < 0.3


def test_close_drops_the_queue_lets_tasks_end_and_refuses_more(pool: ThreadPool):
    begun, ended, late = threading.Event(), threading.Event(), []

    def task() -> None:
        begun.set()
        threading.Event().wait(0.05)
        ended.set()

    single = ThreadPool("single", 1, meter=Meter("test"))
    single.submit(task, rank=0)
    single.submit(lambda: late.append(1), rank=0)
    assert begun.wait(10)
    single.close()
    assert ended.is_set() and not named(single)
    single.submit(lambda: late.append(2), rank=0)
    single.close()
    assert late == []


def test_several_pools_are_waited_for_together_and_only_once():
    release = threading.Event()
    pools = [ThreadPool(f"stuck{i}", 1, meter=Meter("test")) for i in range(3)]
    for pool in pools:
        pool.submit(lambda: (release.wait(30), None)[1], rank=0)
    assert eventually(lambda: all(p._state.idle == 0 and not p._state.tasks for p in pools))
    waited: list[float] = []
    for thread in (t for pool in pools for t in pool._state.threads):
        join = thread.join
        thread.join = lambda timeout=None, join=join: (waited.append(timeout), join(timeout))[1]  # type: ignore
    close_pools(*pools)
    assert len(waited) == 3 and sum(waited) < 2.5  # what the first leaves of two seconds is all that the others get
    close_pools(*pools)
    assert len(waited) == 3
    release.set()


def test_a_pool_that_is_forgotten_ends_its_threads():
    pool = ThreadPool("forgotten", 2, meter=Meter("test"))
    ran = threading.Event()
    pool.submit(ran.set, rank=0)
    assert ran.wait(10)
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("gpuload-forgotten")])


def test_a_task_is_let_go_when_it_has_run(pool: ThreadPool):
    class Held:
        def __call__(self) -> None:
            ran.set()

    ran, held = threading.Event(), Held()
    gone = weakref.ref(held)
    pool.submit(held, rank=0)
    del held
    assert ran.wait(10)
    assert eventually(lambda: gone() is None)


def test_closing_from_one_of_its_own_threads_waits_for_nobody(pool: ThreadPool):
    """As a finalizer does when a garbage collection runs there while a colleague waits for what it holds."""
    lock, closed = threading.Lock(), threading.Event()
    holds, colleague = threading.Event(), threading.Event()

    def closes() -> None:
        with lock:
            holds.set()
            colleague.wait(10)
            pool.close()
            closed.set()

    def waits() -> None:
        holds.wait(10)
        colleague.set()
        with lock:
            assert closed.is_set()

    pool.submit(closes, rank=0)
    pool.submit(waits, rank=0)
    assert closed.wait(10)
    assert eventually(lambda: not named(pool))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_neither_waits_nor_touches_the_parents_lock(pool: ThreadPool):
    ran = threading.Event()
    pool.submit(ran.set, rank=0)
    assert ran.wait(10)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._state.wake:
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(7)
    code = exit_code(child)
    release.set()
    holder.join()
    assert code == 7


def test_where_the_system_gives_no_thread_the_first_submit_says_so_and_later_ones_make_do(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
):
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(lambda: None, rank=0)
    monkeypatch.setattr(threading.Thread, "start", start)
    gate, ran = threading.Event(), threading.Event()
    pool.submit(lambda: (gate.wait(10), None)[1], rank=0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.submit(ran.set, rank=1)
    gate.set()
    assert ran.wait(10)
    pool.close()


def test_a_thread_whose_preparation_fails_says_so_and_works():
    def prepare() -> None:
        raise RuntimeError("can't start new thread")

    pool, ran = ThreadPool("unprepared", 1, meter=Meter("test"), prepare=prepare), threading.Event()
    with pytest.warns(UserWarning, match="gpuload-unprepared-0 works unprepared: can't start new thread"):
        pool.submit(ran.set, rank=0)
        assert ran.wait(10)
    pool.close()


def test_where_warnings_are_errors_a_thread_whose_preparation_fails_works_and_it_is_logged(caplog):
    def prepare() -> None:
        raise RuntimeError("can't start new thread")

    pool, ran = ThreadPool("unprepared", 1, meter=Meter("test"), prepare=prepare), threading.Event()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.submit(ran.set, rank=0)
        assert ran.wait(10)
    pool.close()
    assert "works unprepared" in caplog.text


def test_what_is_closed_beside_the_pools_frees_the_threads_that_wait_for_it():
    """Were it closed after them, the thread would not end within the time."""
    begun, dead_server = threading.Event(), threading.Event()
    pool = ThreadPool("reading", 1, meter=Meter("test"))

    def read() -> None:
        begun.set()
        dead_server.wait(30)

    pool.submit(read, rank=0)
    assert begun.wait(10)
    close_pools(pool, beside=(dead_server.set,))
    assert not named(pool)


def test_pools_and_what_is_closed_beside_them_have_one_deadline():
    release, waited = threading.Event(), list[float]()
    pool = ThreadPool("stuck", 1, meter=Meter("test"))
    pool.submit(lambda: (release.wait(30), None)[1], rank=0)
    assert eventually(lambda: pool._state.idle == 0 and not pool._state.tasks)
    join = threading.Thread.join

    def timed(self: threading.Thread, timeout: float | None = None) -> None:
        waited.append(float("inf") if timeout is None else timeout)
        join(self, timeout)

    threading.Thread.join = timed  # type: ignore
    try:
        close_pools(pool, beside=[lambda: (release.wait(30), None)[1]] * 2)
    finally:
        threading.Thread.join = join  # type: ignore
    release.set()
    assert len(waited) == 3
    assert sum(waited) < 2.5  # what one leaves of two seconds is all that the others get


def test_where_there_is_no_thread_to_close_in_it_is_closed_here(pool: ThreadPool, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    closed: list[int] = []
    close_pools(pool, beside=(lambda: closed.append(threading.get_ident()),))
    assert closed == [threading.get_ident()]


def test_a_pool_grows_and_shrinks_and_loses_no_task():
    pool = ThreadPool("test", 1, meter=Meter("test"))
    done: list[int] = []
    lock = threading.Lock()

    def task(number: int) -> None:
        time.sleep(0.0005)
        with lock:
            done.append(number)

    draw, submitted = random.Random(3), 0
    for size in (1, 4, 2, 8, 1, 3, 1, 6):
        pool.resize(size)
        for _ in range(draw.randint(5, 40)):
            pool.submit(partial(task, submitted), rank=submitted)
            submitted += 1
        time.sleep(draw.random() * 0.01)
        assert len(pool._state.threads) <= 8
    assert eventually(lambda: sorted(done) == list(range(submitted)))
    pool.resize(2)
    assert eventually(lambda: len(pool._state.threads) <= 2)
    threads = list(pool._state.threads)
    pool.close()
    assert not any(thread.is_alive() for thread in threads)


def test_a_pool_that_grew_runs_as_many_at_once():
    pool, gate, running_now = ThreadPool("test", 1, meter=Meter("test")), threading.Event(), []
    for number in range(2):
        pool.submit(lambda: (running_now.append(1), gate.wait(20)), rank=number)
    assert eventually(lambda: len(running_now) == 1)
    pool.submit(lambda: (running_now.append(1), gate.wait(20)), rank=2)
    pool.resize(3)
    assert eventually(lambda: len(running_now) == 3)
    gate.set()
    pool.close()
