"""The model's bounds by hand, its choices against all settings by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.setting import Setting
from gpuload.tune.limits import Limits
from gpuload.tune.model import Costs, bounds, calibrated, choose, pipeline, predict, suffices

ZERO = np.zeros(1)


def costs(fetch_s: float, decode_s: float, *, fetch_cpu_s: float = 0.0, waits: float = 0.0, **more) -> Costs:
    """waits: share of the decode time in which no core is taken."""
    return Costs(32, np.full(3, fetch_s), np.full(3, decode_s), 0.0, fetch_cpu_s, (1 - waits) * decode_s, **more)


def allowed(fetch: int = 64, decode: int = 8, depth: int = 64, cores: float = 2) -> Limits:
    return Limits(Setting(1, 1, 2), Setting(fetch, decode, depth), cores)


def test_bounds_are_threads_over_time_and_cores_over_all_cpu_time():
    found = bounds(costs(0.1, 0.02, fetch_cpu_s=0.005, other_cpu_s=0.001), Setting(4, 3, 8), 2, np.full(5, 0.05))
    by_name = {bound.what: bound.batches_per_s for bound in found}
    assert by_name == pytest.approx({"storage": 40, "decode threads": 150, "cores": 2 / 0.026, "training step": 20})
    assert [bound.what for bound in found] == ["training step", "storage", "cores", "decode threads"]


@pytest.mark.parametrize("decode_threads, expected", [(1, 50), (2, 100), (4, 100), (8, 100)])
def test_decode_threads_beyond_the_cores_bring_nothing(decode_threads, expected):
    found = predict(costs(0.001, 0.02), Setting(2, decode_threads, 16), allowed(), ZERO)
    assert found.images_per_s == pytest.approx(32 * expected, rel=0.03)


def test_what_waits_takes_threads_beyond_the_cores():
    found = predict(costs(0.001, 0.02, waits=0.9), Setting(2, 8, 32), allowed(), ZERO)
    assert found.images_per_s == pytest.approx(32 * 400, rel=0.05)


def test_cores_that_others_take_are_missing_in_decoding():
    found = predict(costs(0.001, 0.02, other_cpu_s=0.02), Setting(2, 4, 16), allowed(), ZERO)
    assert found.images_per_s == pytest.approx(32 * 2 / 0.04, rel=0.03)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    fetch=st.floats(0.001, 0.2), decode=st.floats(0.001, 0.1), step=st.floats(0.0, 0.05),
    waits=st.sampled_from([0.0, 0.3, 0.6, 0.9]), cores=st.integers(1, 8),
    most=st.tuples(st.integers(1, 16), st.integers(1, 16), st.integers(2, 24)),
)  # fmt: skip
def test_a_choice_is_within_limits_and_about_as_fast_as_any_setting(fetch, decode, step, waits, cores, most):
    limits = Limits(Setting(1, 1, 2), Setting(*most), cores)
    batch, step_s = costs(fetch, decode, waits=waits), np.full(1, step)
    found = choose(batch, limits, step_s)
    assert limits.clipped(found.setting) == found.setting
    threads = (sorted({1, min(2, high), high // 2 or 1, high}) for high in most[:2])
    rates = [
        predict(batch, Setting(one, two, most[2]), limits, step_s).images_per_s
        for one, two in itertools.product(*threads)
    ]
    assert found.images_per_s >= 0.95 * max(rates)


def test_a_fed_consumer_gets_few_threads_and_the_least_depth():
    found = choose(costs(0.04, 0.01), allowed(), np.full(1, 0.03))
    assert suffices(found) and found.setting.fetch_threads == 2 and found.setting.depth <= 4
    assert found.bound.what == "training step"


def test_what_is_chosen_for_a_slow_link_lets_all_its_threads_be_busy():
    found = choose(costs(0.4, 0.001), allowed(), np.full(1, 0.02))
    assert suffices(found) and found.setting.fetch_threads >= 20 and found.setting.depth > 20


def test_no_cost_at_all_is_no_error():
    found = choose(Costs(1, ZERO, ZERO, 0.0, 0.0, 0.0), allowed(), ZERO)
    assert found.setting.fetch_threads == 1 and found.starved == 0.0
    assert pipeline(Costs(1, ZERO, ZERO, 0.0, 0.0, 0.0), found.setting, 2, ZERO).decode_rate > 0


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7, 3.0])
def test_calibrated_costs_give_the_rate_that_was_measured(factor):
    setting, batch = Setting(4, 2, 8), costs(0.05, 0.03)
    true = predict(batch.slower(factor), setting, allowed(), ZERO)
    found = calibrated(batch, setting, allowed(), ZERO, true.images_per_s, true.starved)
    assert predict(found, setting, allowed(), ZERO).images_per_s == pytest.approx(true.images_per_s, rel=0.02)


def test_a_fed_consumer_calibrates_nothing():
    setting, batch, step_s = Setting(4, 2, 8), costs(0.05, 0.03), np.full(1, 0.1)
    assert calibrated(batch, setting, allowed(), step_s, 320.0, 0.001) is batch
