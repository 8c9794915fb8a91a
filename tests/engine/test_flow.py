"""The flow of one epoch under seeded interleavings: order, bounds, errors in every step, cancelling at any moment."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuload.core.errors import DeviceMemoryError, EpochCancelledError, GpuloadError
from gpuload.engine.flow import Flow, InlineFlow, WaitTimeoutError
from gpuload.engine.work import Finished
from tests.engine.fakes import FakeWork, Running, eventually, plan, running

BATCHES = 12


class Jitter:
    """Sleeps up to a millisecond at each step, as its seed says, and fails where it is told to."""

    def __init__(self, seed: int, broken: dict[tuple[str, int], BaseException] | None = None):
        self._random, self._lock, self._broken = random.Random(seed), threading.Lock(), broken or {}

    def __call__(self, step: str, number: int) -> None:
        with self._lock:
            pause_s = self._random.choice((0, 0, 0.0002, 0.001))
        time.sleep(pause_s)
        if (step, number) in self._broken:
            raise self._broken[step, number]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_every_batch_comes_once_whole_and_in_order(seed: int, in_order: bool):
    draw = random.Random(seed)
    work = FakeWork(Jitter(seed), rows_per_task=draw.choice((1, 2, 4, 99)))
    run = running(work, depth=draw.randint(1, 5), in_order=in_order, threads=draw.randint(1, 4))
    plans = [plan(number, rows=draw.choice((0, 1, 3, 7))) for number in range(BATCHES)]
    for item in plans:
        run.flow.put(item)
    taken = [run.flow.take(20) for _ in range(BATCHES)]
    numbers = [finished.number for finished in taken]
    assert (numbers if in_order else sorted(numbers)) == list(range(BATCHES))
    for finished in taken:
        assert finished.sent == plans[finished.number].ids.tolist()
    assert run.flow.outstanding == run.flow.ready == run.flow.nbytes == 0
    with pytest.raises(IndexError):
        run.flow.take(20)
    run.close()


def test_a_late_batch_holds_back_the_others_only_in_order():
    gate = threading.Event()
    work = FakeWork(lambda step, number: (gate.wait(20), None)[1] if (step, number) == ("decode", 0) else None)
    run = running(work, depth=3, in_order=False, threads=4)
    for number in range(3):
        run.flow.put(plan(number))
    assert sorted(run.flow.take(20).number for _ in range(2)) == [1, 2]
    gate.set()
    assert run.flow.take(20).number == 0
    run.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_devices_batches_are_finished_in_turn(seed: int):
    work = FakeWork(Jitter(seed))
    run = running(work, depth=5, threads=4)
    run.flow.in_turn = True
    plans = [plan(number, rows=seed % 4) for number in range(BATCHES)]
    for item in plans:
        run.flow.put(item)
    assert [run.flow.take(20).sent for _ in range(BATCHES)] == [item.ids.tolist() for item in plans]
    assert [number for step, number in work.steps if step == "finish"] == list(range(BATCHES))
    run.close()


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_batch_without_room_waits_for_an_older_one(seed: int, in_order: bool):
    """The device holds two batches that are not taken; who asks for more is refused, and asks again."""
    jitter, taken, held, lock = Jitter(seed), [], set(), threading.Lock()

    def during(step: str, number: int) -> None:
        jitter(step, number)
        if step == "finish":
            with lock:
                if len(held - set(taken)) == 2:
                    raise DeviceMemoryError("no room")
                held.add(number)

    work = FakeWork(during)
    run = running(work, depth=5, in_order=in_order, threads=4)
    run.flow.in_turn = in_order
    for number in range(BATCHES):
        run.flow.put(plan(number))
    for _ in range(BATCHES):
        finished = run.flow.take(20)
        assert finished.error is None
        taken.append(finished.number)
    assert sorted(taken) == list(range(BATCHES)) and run.flow.outstanding == 0
    assert not in_order or taken == sorted(taken)
    assert 1 <= run.flow.depth <= 5
    run.close()


@pytest.mark.parametrize("in_order", [True, False])
def test_room_for_two_is_enough_for_a_loop_that_drops_a_batch_when_it_has_the_next(in_order: bool):
    """The memory of the batch before comes back after `take` has returned: who is refused is tried again later, too."""

    class Memory:
        pass

    alive: weakref.WeakSet[Memory] = weakref.WeakSet()
    lock = threading.Lock()

    @dataclass(eq=False)
    class Full(FakeWork):
        def finish(self, filling: Any) -> Finished:
            with lock:
                if len(alive) >= 2:
                    raise DeviceMemoryError("no room")
                memory = Memory()
                alive.add(memory)
            return replace(super().finish(filling), sent=memory)

    run = running(Full(), depth=4, in_order=in_order)
    run.flow.in_turn = in_order
    for number in range(BATCHES):
        run.flow.put(plan(number))
    held: Any = None
    for _ in range(BATCHES):
        finished = run.flow.take(20)
        assert finished.error is None
        time.sleep(0.002)  # a retry that `take` began is refused meanwhile
        held = finished.sent
        del finished
    assert held is not None
    run.close()


def test_a_batch_without_room_beside_no_other_fails_alone():
    def during(step: str, number: int) -> None:
        if (step, number) == ("finish", 1):
            raise DeviceMemoryError("no room")

    run = running(FakeWork(during), depth=3)
    run.flow.in_turn = True
    for number in range(3):
        run.flow.put(plan(number))
    assert run.flow.take(20).error is None
    assert isinstance(run.flow.take(20).error, DeviceMemoryError)
    assert run.flow.take(20).error is None
    run.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_batches_are_undelivered(depth: int):
    work = FakeWork()
    run = running(work, depth=depth)
    for number in range(BATCHES):
        run.flow.put(plan(number))
    for taken in range(BATCHES):
        left = BATCHES - taken
        assert eventually(lambda left=left: run.flow.ready == min(depth, left))  # type: ignore
        begun = {number for step, number in list(work.steps) if step == "fetch"}
        assert len(begun) == min(BATCHES, taken + depth)
        assert run.flow.take(20).number == taken
    run.close()


@pytest.mark.parametrize("seed", range(4))
def test_encoded_bytes_ahead_stay_within_the_bound(seed: int):
    work = FakeWork(Jitter(seed), nbytes=dict.fromkeys(range(40), 100))
    run = running(work, depth=30, max_bytes=350)
    for number in range(40):
        run.flow.put(plan(number))
    assert [run.flow.take(20).number for _ in range(40)] == list(range(40))
    # Sizes are learned from what has been read: before that, one batch for each of the two fetch threads.
    assert 100 <= max(work.ahead.values()) <= 350
    run.close()


def test_batches_larger_than_the_bound_pass_one_at_a_time():
    work = FakeWork(Jitter(3), nbytes={number: 5000 if number % 3 else 40 for number in range(BATCHES)})
    run = running(work, depth=6, max_bytes=1000)
    for number in range(BATCHES):
        run.flow.put(plan(number))
    assert [run.flow.take(20).number for _ in range(BATCHES)] == list(range(BATCHES))
    assert max(work.ahead.values()) <= 1000 + 2 * 5000  # sizes are learned: one surprise for each fetch thread
    assert max(nbytes for number, nbytes in work.ahead.items() if number > 2) <= 5000
    run.close()


def test_the_oldest_batch_is_decoded_first_although_it_was_read_last():
    """Rule 3: batch 1 is read at once, batch 0 later; then batch 0's rows go before what is left of batch 1's."""
    read_1, decoding = threading.Event(), threading.Event()

    def during(step: str, number: int) -> None:
        if (step, number) == ("fetch", 0):
            assert decoding.wait(20)
        if (step, number) == ("decode", 1):
            decoding.set()
            assert read_1.wait(20)

    work = FakeWork(during)
    run = running(work, depth=2, threads=1)
    run.flow.put(plan(0, rows=6))
    run.flow.put(plan(1, rows=6))
    assert eventually(lambda: len(run.pools[1]._state.tasks) == 5)  # two of batch 1, three of batch 0
    read_1.set()
    assert [run.flow.take(20).number for _ in range(2)] == [0, 1]
    assert [number for step, number in work.steps if step == "decode"] == [1, 0, 0, 0, 1, 1]
    run.close()


@pytest.mark.parametrize("step", ["fetch", "decode", "finish"])
@pytest.mark.parametrize("seed", range(3))
def test_an_error_stands_in_its_batchs_place_and_costs_no_other(step: str, seed: int):
    broken: dict[tuple[str, int], BaseException] = {
        (step, n): ValueError(f"{step} {n}") for n in (0, 4, 5, BATCHES - 1)
    }
    run = running(FakeWork(Jitter(seed, broken), rows_per_task=1), depth=4)
    for number in range(BATCHES):
        run.flow.put(plan(number))
    for number in range(BATCHES):
        finished = run.flow.take(20)
        assert finished.number == number
        if (step, number) in broken:
            assert finished.error is broken[step, number] and finished.sent is None
        else:
            assert finished.error is None and finished.sent == plan(number).ids.tolist()
    assert eventually(lambda: run.flow.nbytes == 0)
    assert all(thread.is_alive() for pool in run.pools for thread in pool._state.threads)
    run.close()


@pytest.mark.parametrize("step", ["fetch", "decode", "finish"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_what_is_not_an_exception_reaches_the_consumer_too(step: str, kind: type[BaseException]):
    """A user's sys.exit() in a decode thread must not leave the training loop waiting for ever."""
    error = kind("from the user's code")
    run = running(FakeWork(Jitter(0, {(step, 1): error})))
    for number in range(3):
        run.flow.put(plan(number))
    assert run.flow.take(20).error is None
    assert run.flow.take(20).error is error
    assert run.flow.take(20).error is None
    run.close()


def test_an_error_keeps_neither_the_batch_nor_itself():
    error = ValueError("in one of the rows")
    work = FakeWork(Jitter(0, {("decode", 0): error}))
    fillings = []
    fill = work.fill
    work.fill = lambda *args: (made := fill(*args), fillings.append(weakref.ref(made)))[0]  # type: ignore
    run = running(work)
    gc.disable()
    try:
        run.flow.put(plan(0))
        kept = run.flow.take(20).error
        assert kept is error
        assert eventually(lambda: fillings[0]() is None), "the error's traceback holds the batch"
    finally:
        gc.enable()
    run.close()


def test_the_traceback_of_an_error_shows_the_users_code():
    def broken_by_the_user(step: str, number: int) -> None:
        raise ValueError("here")

    run = running(FakeWork(broken_by_the_user))
    run.flow.put(plan(0))
    error = run.flow.take(20).error
    assert error is not None
    names, frame = [], error.__traceback__
    while frame is not None:
        names.append(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    assert names[-1] == "broken_by_the_user"
    run.close()


def test_waiting_ends_after_the_timeout_and_the_batch_still_comes():
    gate = threading.Event()
    run = running(FakeWork(lambda step, number: (gate.wait(20), None)[1]))
    run.flow.put(plan(0))
    with pytest.raises(WaitTimeoutError):
        run.flow.take(0.02)
    gate.set()
    assert run.flow.take(20).number == 0
    run.close()


@pytest.mark.parametrize("seed", range(10))
def test_cancelling_at_any_moment_ends_everything(seed: int):
    draw = random.Random(seed)
    work = FakeWork(Jitter(seed))
    run = running(work, depth=draw.randint(1, 4))
    for number in range(BATCHES):
        run.flow.put(plan(number))
    for _ in range(draw.randint(0, 3)):
        run.flow.take(20)
    time.sleep(draw.random() * 0.004)
    run.flow.cancel()
    run.flow.cancel()
    assert run.flow.outstanding == run.flow.ready == run.flow.nbytes == 0
    with pytest.raises(EpochCancelledError):
        run.flow.take(20)
    run.flow.put(plan(99))  # a consumer that did not notice
    with pytest.raises(EpochCancelledError):
        run.flow.take(20)
    assert eventually(lambda: all(not p._state.tasks and p._state.idle == len(p._state.threads) for p in run.pools))
    assert ("fetch", 99) not in work.steps
    assert run.flow.nbytes == 0
    run.close()


def test_cancelling_wakes_a_consumer_that_waits():
    gate, seen = threading.Event(), []
    run = running(FakeWork(lambda step, number: (gate.wait(20), None)[1]))
    run.flow.put(plan(0))

    def consume() -> None:
        try:
            run.flow.take(None)
        except EpochCancelledError as error:
            seen.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    run.flow.cancel()
    consumer.join(20)
    gate.set()
    assert len(seen) == 1
    run.close()


def test_two_consumers_share_the_batches():
    run = running(FakeWork(Jitter(5)), depth=2)
    for number in range(BATCHES):
        run.flow.put(plan(number))
    taken: list[int] = []

    def consume() -> None:
        while True:
            try:
                taken.append(run.flow.take(20).number)
            except IndexError:
                return

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(30)
    assert sorted(taken) == list(range(BATCHES))
    run.close()


def test_two_flows_on_the_same_threads_do_not_disturb_each_other():
    run = running(FakeWork(Jitter(1)), depth=2)
    other = FakeWork(Jitter(2))
    second = type(run.flow)(other, 1, *run.pools, 3, 1 << 20)  # type: ignore[arg-type]
    for number in range(BATCHES):
        run.flow.put(plan(number))
        second.put(plan(number, rows=2))
    for number in range(5):
        assert run.flow.take(20).number == second.take(20).number == number
    run.flow.cancel()
    assert [second.take(20).number for _ in range(5, BATCHES)] == list(range(5, BATCHES))
    run.close()


@pytest.mark.parametrize("step", ["fetch", "decode", "finish"])
def test_the_inline_flow_raises_what_the_pooled_one_hands_over(step: str):
    error = ValueError(step)
    flow = InlineFlow(FakeWork(Jitter(0, {(step, 1): error})), 0)  # type: ignore[arg-type]
    for number in range(3):
        flow.put(plan(number))
    assert flow.take(None).sent == plan(0).ids.tolist()
    with pytest.raises(ValueError) as caught:
        flow.take(None)
    assert caught.value is error
    assert flow.take(None).sent == plan(2).ids.tolist()
    with pytest.raises(IndexError):
        flow.take(None)


def test_the_inline_flow_makes_a_batch_when_it_is_taken_and_none_once_cancelled():
    work = FakeWork()
    flow = InlineFlow(work, 0)  # type: ignore[arg-type]
    flow.put(plan(0))
    assert work.steps == [] and flow.outstanding == 1
    flow.cancel()
    assert flow.outstanding == 0
    flow.put(plan(1))
    with pytest.raises(EpochCancelledError):
        flow.take(None)
    assert work.steps == []


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def without_threads(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """As under a limit on processes that is reached, for these pools."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        (no_thread if self.name.split("-")[1] in names else start)(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("pool", ["fetch", "decode"])
def test_where_the_system_gives_no_thread_every_batch_says_so_and_nobody_waits_for_ever(
    pool: str, monkeypatch: pytest.MonkeyPatch
):
    run = running(FakeWork(), depth=3)
    without_threads(monkeypatch, (pool,))
    for number in range(BATCHES):
        run.flow.put(plan(number))
    for number in range(BATCHES):
        finished = run.flow.take(20)
        assert finished.number == number
        assert isinstance(finished.error, RuntimeError)
        assert "can't start new thread" in str(finished.error) and "num_workers=0" in str(finished.error)
    assert run.flow.outstanding == run.flow.nbytes == 0
    monkeypatch.undo()
    run.flow.put(plan(BATCHES))  # threads can be had again
    assert run.flow.take(20).sent == plan(BATCHES).ids.tolist()
    run.close()


def test_very_many_batches_without_a_thread_exhaust_no_stack(monkeypatch: pytest.MonkeyPatch):
    run = running(FakeWork(), depth=5000)
    for number in range(4000):
        run.flow._planned.append((run.flow.work, plan(number)))
    without_threads(monkeypatch, ("fetch",))
    run.flow.put(plan(4000))
    assert all(isinstance(run.flow.take(20).error, RuntimeError) for _ in range(4001))
    run.close()


def test_an_error_inline_keeps_the_variables_of_its_frames_for_the_debugger():
    def broken_by_the_user(step: str, number: int) -> None:
        seen = f"{step} {number}"
        raise ValueError(seen)

    flow = InlineFlow(FakeWork(broken_by_the_user), 0)  # type: ignore[arg-type]
    flow.put(plan(7))
    with pytest.raises(ValueError) as caught:
        flow.take(None)
    frame = caught.tb
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert frame.tb_frame.f_locals["seen"] == "fetch 7"


def flows(work: FakeWork) -> list[tuple[Flow | InlineFlow, Running | None]]:
    run = running(work)
    return [(run.flow, run), (InlineFlow(work, 0), None)]  # type: ignore[arg-type]


@pytest.mark.parametrize("empty", [(), (0,), (1, 3), (0, 1, 2, 3)])
def test_an_epoch_of_which_nothing_is_left_says_so_at_its_end_and_once(empty: tuple[int, ...]):
    for flow, run in flows(FakeWork(empty=frozenset(empty))):
        for number in range(4):
            flow.put(plan(number))
        assert [flow.take(20).empty for _ in range(4)] == [number in empty for number in range(4)]
        if len(empty) == 4:
            with pytest.raises(GpuloadError, match='epoch 0 delivered nothing.*"skip" left out every.* 4 batches'):
                flow.check_delivered()
        flow.check_delivered()
        if run is not None:
            run.close()


@pytest.mark.parametrize("step", ["fetch", "finish"])
def test_an_epoch_of_which_something_was_raised_has_said_what_was_wrong(step: str):
    work = FakeWork(Jitter(0, {(step, 1): ValueError("seen by the consumer")}), empty=frozenset((0, 2)))
    for flow, run in flows(work):
        for number in range(3):
            flow.put(plan(number))
        for _ in range(3):
            try:
                flow.take(20)
            except ValueError:
                assert run is None
        flow.check_delivered()
        if run is not None:
            run.close()


def test_an_epoch_without_batches_is_no_loss():
    for flow, run in flows(FakeWork()):
        flow.check_delivered()
        if run is not None:
            run.close()


@pytest.mark.parametrize("seed", range(4))
def test_depth_that_changes_in_mid_flow_bounds_what_is_let_in_from_then_on(seed: int):
    draw = random.Random(seed)
    run = running(FakeWork(Jitter(seed)), depth=2, threads=3)
    for number in range(40):
        run.flow.put(plan(number))
    for number in range(40):
        assert run.flow.take(20).number == number
        before = len(run.flow._active)
        depth = draw.randint(1, 6)
        run.flow.deepen(depth)
        assert len(run.flow._active) <= max(depth, before)
    run.close()


def test_a_device_that_had_no_room_gets_no_more_than_it_took():
    refused: list[int] = []

    def during(step: str, number: int) -> None:
        if step == "finish" and number == 2 and not refused:
            refused.append(number)
            raise DeviceMemoryError("no room")

    run = running(FakeWork(during), depth=4)
    run.flow.in_turn = True
    for number in range(12):
        run.flow.put(plan(number))
    assert eventually(lambda: bool(refused))
    run.flow.deepen(9)
    assert run.flow.depth == 3
    assert [run.flow.take(20).number for _ in range(12)] == list(range(12))
    run.close()
