"""The queue's simulation against an engine of single events, a Markov chain and Lindley's own recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.setting import Setting
from gpuload.tune.depth import EMPTY_BOUND, Pipeline, _Idle, _least, curve, least_depth, simulate
from tests.tune.event_engine import EventEngine


def drawn(pipeline: Pipeline, depth: int, batches: int) -> list[list[float]]:
    """The same draws as simulate's."""
    draw = np.random.default_rng(0)
    total = batches + 4 * depth + pipeline.fetch_threads
    return [draw.choice(times, total).tolist() for times in (pipeline.fetch_s, pipeline.decode_s, pipeline.step_s)]


def times(rng: np.random.Generator, mean_s: float, sigma: float) -> np.ndarray:
    return mean_s * rng.lognormal(-(sigma**2) / 2, sigma, 300)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6), fetch_threads=st.integers(1, 8), depth=st.integers(1, 12),
    fetch=st.floats(0.001, 0.1), decode=st.floats(0.001, 0.03), sigma=st.floats(0.0, 1.0),
)  # fmt: skip
def test_one_decode_thread_gives_the_events_of_an_engine_batch_by_batch(
    seed, fetch_threads, depth, fetch, decode, sigma
):
    rng = np.random.default_rng(seed)
    flow = Pipeline(times(rng, fetch, sigma), times(rng, decode, sigma / 2), times(rng, 0.02, 0.2), fetch_threads, 1.0)
    found = simulate(flow, depth, batches=300)
    fetch_s, decode_s, step_s = drawn(flow, depth, 300)
    # so many pieces that the oldest batch is decoded first at any moment, as in the simulation
    engine = EventEngine(
        Setting(fetch_threads, 1, depth), fetch_s.__getitem__, decode_s.__getitem__, step_s.__getitem__, tasks=16
    )
    skip = 4 * depth + fetch_threads
    engine.run(len(step_s) - depth - fetch_threads)
    assert found.empty == pytest.approx(engine.empty(skip), abs=0.05)
    assert found.starved == pytest.approx(engine.starved(skip), abs=0.03)
    assert found.batches_per_s == pytest.approx(engine.batches_per_s(skip), rel=0.02)


@pytest.mark.parametrize("fetch_threads, decode_threads, tasks", [(2, 2, 4), (8, 2, 8), (4, 4, 2), (6, 4, 1)])
@pytest.mark.parametrize("load", [0.6, 0.9, 1.2])
def test_the_curve_is_that_of_an_engine_with_several_threads(fetch_threads, decode_threads, tasks, load):
    rng = np.random.default_rng(1)
    step_s = times(rng, 0.02, 0.3)
    fetch_s, decode_s = (
        times(rng, 0.5 * load * 0.02 * fetch_threads, 0.6),
        times(rng, load * 0.02 * decode_threads, 0.2),
    )
    flow = Pipeline(fetch_s, decode_s, step_s, fetch_threads, float(decode_threads), spread=tasks)
    for depth in (2, 4, 8, 16):
        found = simulate(flow, depth)
        draws = drawn(flow, depth, 2000)
        engine = EventEngine(Setting(fetch_threads, decode_threads, depth), *(one.__getitem__ for one in draws), tasks)
        engine.run(2000)
        assert found.starved == pytest.approx(engine.starved(100), abs=0.05), depth
        assert found.batches_per_s == pytest.approx(engine.batches_per_s(100), rel=0.06), depth


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("load", [0.5, 0.9, 1.1])
def test_exponential_times_give_the_chance_of_a_markov_chain(depth, load):
    """Batches ready, 0 to depth; made at rate 1 / load, taken at rate 1 while there are any."""
    rng = np.random.default_rng(2)
    many = 200_000
    flow = Pipeline(np.zeros(1), load * rng.exponential(size=many), rng.exponential(size=many), 1, 1.0)
    found = simulate(flow, depth, batches=40_000)
    # states: the consumer waits (-1), or steps with 0..depth batches ready
    up, down = 1 / load, 1.0
    generator = np.zeros((depth + 2, depth + 2))
    for state in range(depth + 2):
        if state <= depth:
            generator[state, state + 1] = up
        if state >= 1:
            generator[state, state - 1] = down
    generator -= np.diag(generator.sum(axis=1))
    system = np.vstack([generator.T, np.ones(depth + 2)])
    share = np.linalg.lstsq(system, np.append(np.zeros(depth + 2), 1.0), rcond=None)[0]
    assert found.starved == pytest.approx(share[0], abs=0.01)
    assert found.empty == pytest.approx(share[1] / share[1:].sum(), abs=0.015)


def test_a_queue_without_end_follows_lindleys_recursion():
    rng = np.random.default_rng(3)
    flow = Pipeline(np.zeros(1), times(rng, 0.019, 0.4), times(rng, 0.02, 0.4), 1, 1.0)
    depth = 10**4
    found = simulate(flow, depth, batches=1000)
    _, decode_s, step_s = drawn(flow, depth, 1000)
    ready_s = np.cumsum(decode_s)
    asks_s, waits = 0.0, []
    for made_s, takes_s in zip(ready_s, step_s, strict=True):
        waits.append(max(0.0, made_s - asks_s))
        asks_s = max(asks_s, made_s) + takes_s
    assert found.empty == pytest.approx(np.mean(np.array(waits[4 * depth + 1 :]) > 0), abs=1e-9)


def test_the_least_depth_is_the_first_of_the_whole_curve_that_suffices():
    rng = np.random.default_rng(4)
    for mean_s in (0.012, 0.016, 0.019):
        flow = Pipeline(times(rng, 0.03, 0.5), times(rng, mean_s, 0.3), times(rng, 0.02, 0.3), 4, 1.0)
        enough = [point.depth for point in curve(flow, range(1, 65)) if point.empty < EMPTY_BOUND]
        assert enough and least_depth(flow, 1, 64).depth == enough[0]


def test_a_loader_that_is_too_slow_gets_the_least_depth_that_is_about_as_fast_as_the_deepest():
    flow = Pipeline(np.full(1, 0.08), np.full(1, 0.001), np.full(1, 0.01), 4, 1.0)
    found = least_depth(flow, 1, 64)
    assert found.depth == 5 and found.batches_per_s == pytest.approx(50, rel=0.01)


@settings(derandomize=True)
@given(lowest=st.integers(1, 20), more=st.integers(0, 50), threshold=st.integers(0, 70))
def test_the_search_finds_the_least_with_few_tries(lowest, more, threshold):
    highest, tried = lowest + more, []

    def suffices(depth: int) -> bool:
        tried.append(depth)
        return depth >= min(threshold, highest)

    assert _least(lowest, highest, suffices) == max(lowest, min(threshold, highest))
    assert len(tried) <= 2 * math.log2(highest + 1) + 3 and all(lowest <= depth <= highest for depth in tried)


@settings(derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=30))
def test_idle_time_is_given_to_the_oldest_second_by_second(batches):
    """By brute force: whole seconds, each taken by the first batch that may use it."""
    idle, used = _Idle(), set()
    for begin, work in batches:
        free = [second for second in range(begin, 400) if second not in used][:work]
        used |= set(free)
        done = idle.fill(float(begin), float(work), forget_before_s=0.0)
        assert done == (free[-1] + 1 if free else pytest.approx(done))
