"""Meters, gauges and the consumer's clock against NumPy and a simulation that keeps every moment."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import numpy as np
import pytest

from gpuload.engine import meters
from gpuload.engine.events import Events, Lengths, Span
from gpuload.engine.meters import Consumer, Gauge, Histogram, Meter, thinned
from gpuload.engine.stats import QueuePoint


class Clock:
    """perf_counter, thread_time and process_time of the meters, as the test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 100.0
        for name in ("perf_counter", "thread_time", "process_time"):
            monkeypatch.setattr(meters, name, lambda: self.now)

    def passes(self, time_s: float) -> None:
        self.now += time_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000, 20_000])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_quantiles_are_within_5_percent_of_numpys(count: int, spread: float):
    durations = np.exp(np.random.default_rng(count).normal(math.log(0.004), spread, count)).clip(1e-6, 1e4)
    histogram = Histogram()
    for duration in durations.tolist():
        histogram.add(duration)
    found = histogram.quantiles()
    assert found is not None
    expected = np.quantile(durations, [0.5, 0.9, 0.99], method="inverted_cdf")
    np.testing.assert_allclose([found.p50, found.p90, found.p99], expected, rtol=0.05)
    assert found.p50 <= found.p90 <= found.p99 <= found.most == durations.max()


def test_no_duration_is_too_short_or_too_long_for_a_histogram():
    histogram = Histogram()
    assert histogram.quantiles() is None
    size = len(histogram._counts)
    for duration in (0.0, 1e-12, 1e-6, 1e6):
        histogram.add(duration)
    found = histogram.quantiles()
    assert found is not None and found.p50 < 2e-6 and found.most == 1e6 and len(histogram._counts) == size


def test_a_task_is_counted_with_its_time_and_one_that_fails_without_its_images(clock: Clock):
    meter = Meter("decode", 2)
    for time_s in (0.001, 0.002, 0.003):
        with meter.task(7, items=4) as task:
            clock.passes(time_s)
            task.nbytes = 100
    with pytest.raises(ValueError), meter.task(8, items=4, nbytes=50):
        clock.passes(0.01)
        raise ValueError
    meter.add(wait_s=0.5)
    found = meter.snapshot()
    assert (found.name, found.threads, found.items, found.bytes, found.tasks) == ("decode", 2, 12, 350, 4)
    assert found.busy_s == pytest.approx(0.016) and found.cpu_s == pytest.approx(0.016) and found.wait_s == 0.5
    assert found.p50_s == pytest.approx(0.002, rel=0.05) and found.p99_s == pytest.approx(0.01, rel=0.05)


def test_threads_are_counted_for_as_long_as_they_are_there(clock: Clock):
    meter = Meter("decode", 2)
    clock.passes(1)
    meter.threads = 2
    meter.threads = 5
    clock.passes(1)
    meter.threads = 1
    clock.passes(4)
    assert meter.snapshot().thread_s == 2 + 5 + 4 and meter.snapshot().threads == 1
    for since, until, thread_s in ((100.5, 102, 6), (101.5, 104, 4.5), (103, 200, 3), (99, 100, 0), (105.5, 105, 0)):
        assert meter.snapshot(since, until).thread_s == thread_s
    assert len(meter._threads_from) == 3


def test_threads_that_add_at_once_lose_nothing():
    meter = Meter("decode", 8)

    def work() -> None:
        for _ in range(2000):
            meter.add(items=3, nbytes=5, busy_s=0.25, cpu_s=0.125, wait_s=0.5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        some = meter.snapshot()
        assert some.items == 3 * some.tasks and some.bytes == 5 * some.tasks and some.busy_s == some.tasks / 4
    found = meter.snapshot()
    assert (found.tasks, found.items, found.busy_s, found.cpu_s, found.wait_s) == (16_000, 48_000, 4000, 2000, 8000)


QUEUES = ("planned", "tasks", "waiting", "ready")


@pytest.mark.parametrize("seed", range(6))
def test_a_gauge_is_the_simulation_that_keeps_every_moment(seed: int, clock: Clock):
    """Lengths as an array over ticks of a millisecond: means, shares of zero and history are those of the array."""
    draw, gauge = random.Random(seed), Gauge()
    now = dict.fromkeys((*QUEUES, "making"), 0)
    ticks: list[dict[str, int]] = []
    for _ in range(draw.choice((30, 3000))):
        change = {name: draw.choice((-1, 0, 0, 1)) for name in now}
        change = {name: max(by, -now[name]) for name, by in change.items()}
        gauge.add(**change)
        now = {name: now[name] + change[name] for name in now}
        long = draw.choice((0, 1, 1, 2, 9))
        ticks += [now] * long
        clock.passes(0.001 * long)
    found = gauge.snapshot(clock.now)
    lengths = {name: np.array([tick[name] for tick in ticks]) for name in now}
    for name, share in zip(QUEUES, (found.planned, found.decode, found.finish, found.ready), strict=True):
        assert share.mean == pytest.approx(lengths[name].mean()), name
        assert share.empty == pytest.approx((lengths[name] == 0).mean()), name
    assert found.blocked == pytest.approx(((lengths["ready"] > 0) & (lengths["making"] == 0)).mean())
    assert len(found.history) < 240
    start = 0
    for point in found.history:
        end = round(1000 * point.at_s)
        assert end > start
        assert point.ready == pytest.approx(lengths["ready"][start:end].mean())
        assert point.decode == pytest.approx(lengths["tasks"][start:end].mean())
        start = end
    longest = np.diff([0, *(point.at_s for point in found.history)]).max()
    assert len(ticks) - start <= 1000 * longest + 9  # nothing but the end is missing


def test_a_gauge_counts_until_it_is_asked_or_stopped(clock: Clock):
    gauge = Gauge()
    gauge.add(making=1)
    clock.passes(1)
    gauge.add(making=-1, ready=1)
    clock.passes(1)
    halfway = gauge.snapshot(clock.now)
    assert (halfway.ready.mean, halfway.ready.empty, halfway.blocked) == (0.5, 0.5, 0.5)
    clock.passes(2)
    assert gauge.snapshot(101.0) == halfway  # the past stays as it was told
    gauge.stop()
    stopped = gauge.snapshot(clock.now)
    clock.passes(100)
    gauge.add(ready=-1)
    gauge.stop()
    assert gauge.snapshot(clock.now) == stopped and stopped.ready.mean == stopped.blocked == 0.75


def test_a_new_epoch_begins_with_what_lies_in_the_queues(clock: Clock):
    gauge = Gauge()
    assert gauge.snapshot(clock.now).ready.mean == 0  # no time has passed
    gauge.add(ready=2)
    clock.passes(1)
    gauge.restart()
    clock.passes(1)
    gauge.add(ready=-2)
    clock.passes(3)
    found = gauge.snapshot(clock.now)
    assert (found.ready.mean, found.ready.empty, found.blocked) == (0.5, 0.75, 0.25)
    assert found.history[0].at_s == 1


def test_two_points_become_one_by_their_times():
    points = [QueuePoint(1, 0, 4, 0, 1), QueuePoint(4, 4, 0, 0, 1)]
    assert thinned(points) == [QueuePoint(4, 3, 1, 0, 1)]
    points += [QueuePoint(5, 1, 1, 1, 1), QueuePoint(6, 3, 1, 1, 1)]
    assert thinned(points) == [QueuePoint(4, 3, 1, 0, 1), QueuePoint(6, 2, 1, 1, 1)]


def test_the_consumers_waits_and_steps(clock: Clock):
    consumer = Consumer()
    for wait_s, step_s in ((1.0, 0.25), (0.5, 0.25), (0.125, 0.25), (0.125, 4.0)):
        asked_at = clock.now
        clock.passes(wait_s)
        consumer.received(asked_at, 8)
        clock.passes(0.0625)
        consumer.resumes()  # what was drawn in between is no step of the user's
        clock.passes(step_s)
    assert (consumer.first_batch_s, consumer.wait_s, consumer.images, consumer.batches) == (1.0, 1.75, 32, 4)
    assert consumer.last - consumer.started == pytest.approx(1.75 + 3 * 0.25 + 4 * 0.0625)
    waits, steps = consumer.waits.quantiles(), consumer.steps.quantiles()
    assert waits is not None and steps is not None
    assert waits.p50 == pytest.approx(0.125, rel=0.05) and waits.most == 0.5  # the first batch's is told by itself
    assert steps.most == steps.p50 == 0.25  # the last has not ended


def test_events_are_kept_up_to_the_bound_and_ranges_open_and_close_around_each_task(clock: Clock):
    told: list[Any] = []

    class Ranges:
        def range_push(self, msg: str) -> None:
            told.append(msg)

        def range_pop(self) -> None:
            told.append("end")

    events = Events(3, Ranges())
    meter, consumer = Meter("fetch", 1, events), Consumer(events)
    with meter.task(0, items=2, nbytes=9):
        clock.passes(1)
    with pytest.raises(KeyError), meter.task(1, items=2):
        clock.passes(1)
        raise KeyError
    consumer.received(clock.now, 2)
    here = threading.current_thread().name
    assert not told[4:] and told == ["gpuload fetch 0", "end", "gpuload fetch 1", "end"]
    with meter.task(2, items=2):
        clock.passes(1)
    assert events.take() == [
        Span("fetch", here, 100, 101, 0, 2, 9),
        Span("fetch", here, 101, 102, 1, 0, 0),
        Span("wait", "consumer", 102, 102, 0, 2, 0),
    ]
    assert events.full and events.take() == [] and meter.snapshot().tasks == 3


def test_queue_lengths_are_noted_at_most_once_a_millisecond(clock: Clock):
    events = Events(100)
    gauge = Gauge(events)
    for _ in range(40):
        gauge.add(planned=1)
        clock.passes(0.0003)
    noted = events.take()
    assert len(noted) == 10 and all(isinstance(event, Lengths) for event in noted)
    assert noted[-1].lengths[0] == 37  # type: ignore[union-attr]
