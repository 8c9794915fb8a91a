"""The controller in a world of events: it settles, stays, reacts, keeps its limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.setting import Setting
from gpuload.tune import online
from gpuload.tune.limits import Limits
from gpuload.tune.online import OnlineTuner
from tests.tune.event_engine import EventEngine

START = Setting(2, 2, 4)


@pytest.fixture(autouse=True)
def cores_for_all(monkeypatch):
    """In a world of events nobody waits for a core."""
    monkeypatch.setattr(online, "core_wait_s", lambda: 0.0)


def allowed(fetch: int = 64, decode: int = 2, depth: int = 64) -> Limits:
    return Limits(Setting(1, 1, 2), Setting(fetch, decode, depth), 2)


class World:
    """An engine under a tuner. Times a batch are log-normal with this spread."""

    def __init__(self, fetch: float, decode: float, step: float, *, limits=None, spread=0.2, link=None, seed=0):
        rng = np.random.default_rng(seed)
        self.fetch, self.decode, self.step = fetch, decode, step
        noise = rng.lognormal(-(spread**2) / 2, spread, (3, 4096)).tolist()
        self.engine = EventEngine(
            START,
            lambda n: self.fetch * noise[0][n % 4096],
            lambda n: self.decode * noise[1][n % 4096],
            lambda n: self.step * noise[2][n % 4096],
            link=link,
        )
        self.limits = limits or allowed()
        self.tuner = OnlineTuner(START, self.limits)
        self.settings: list[tuple[int, Setting]] = []

    def run(self, batches: int) -> None:
        self.engine.run(batches, self._after)

    def _after(self, engine: EventEngine) -> Setting | None:
        found = self.tuner.batch(engine.asked_s[-1], engine.got_s[-1], engine.images, engine.stages)
        if found is not None:
            self.settings.append((len(engine.got_s), found))
        return found

    def best_fixed(self) -> float:
        """Batches a second of the best setting of a grid, each run by itself."""
        most = self.limits.most
        grid = itertools.product(
            {2, 4, 8, 16, 32, most.fetch_threads}, {most.decode_threads}, {4, 8, 16, 40, most.depth}
        )
        rates = []
        for values in grid:
            setting = self.limits.clipped(Setting(*values))
            engine = EventEngine(
                setting, self.engine.fetch_s, self.engine.decode_s, self.engine.step_s, link=self.engine.link
            )
            engine.run(600)
            rates.append(engine.batches_per_s(250, 600))
        return max(rates)


PIPELINES = {
    "slow storage": {"fetch": 0.08, "decode": 0.01, "step": 0.012},
    "very slow storage": {"fetch": 0.4, "decode": 0.005, "step": 0.02},
    "jittery storage": {"fetch": 0.06, "decode": 0.01, "step": 0.02, "spread": 0.8},
    "full link": {"fetch": 0.05, "decode": 0.01, "step": 0.004, "link": 4},
    "slow decode": {"fetch": 0.002, "decode": 0.1, "step": 0.02},
    "only takes": {"fetch": 0.02, "decode": 0.01, "step": 0.0},
    "shallow": {"fetch": 0.02, "decode": 0.01, "step": 0.015, "limits": allowed(depth=4)},
}


@pytest.mark.parametrize("name", PIPELINES)
def test_settles_within_200_batches_near_the_best_fixed_setting_and_stays(name):
    world = World(**PIPELINES[name])
    world.run(200)
    assert world.tuner.settled
    world.run(1000)
    assert [
        number for number, _ in world.settings if number > (400 if "jittery" in name or "very" in name else 200)
    ] == []
    assert world.engine.batches_per_s(250, 600) >= 0.95 * world.best_fixed()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    fetch=st.floats(0.0005, 0.3), decode=st.floats(0.0005, 0.1), step=st.floats(0.0, 0.05), spread=st.floats(0, 0.5),
    link=st.sampled_from([1, 3, 8, None]), seed=st.integers(0, 99),
    most=st.tuples(st.integers(2, 40), st.integers(2, 6), st.integers(4, 40)),
)  # fmt: skip
def test_never_beyond_its_limits_and_quiet_in_the_end(fetch, decode, step, spread, link, seed, most):
    limits = Limits(Setting(1, 1, 2), Setting(*most), 2)
    world = World(fetch, decode, step, limits=limits, spread=spread, link=link, seed=seed)
    world.run(1200)
    assert all(limits.clipped(setting) == setting for _, setting in world.settings)
    assert sum(number > 600 for number, _ in world.settings) <= 3  # one more look, and what it tried taken back
    assert world.tuner.changes == len(world.settings) <= 15


def test_a_consumer_that_is_fed_is_left_alone():
    world = World(fetch=0.01, decode=0.01, step=0.03)
    world.run(500)
    assert world.settings == [] and world.tuner.settled


def test_storage_that_becomes_slow_is_answered_within_200_batches():
    world = World(fetch=0.002, decode=0.01, step=0.012)
    world.run(300)
    assert world.settings == []
    world.fetch = 0.08
    world.run(200)
    assert world.engine.setting.fetch_threads >= 7
    before = len(world.settings)
    world.run(300)
    assert len(world.settings) == before and world.engine.starved(550) < 0.02


def test_a_trial_that_brings_nothing_is_taken_back_and_not_tried_again():
    world = World(fetch=0.08, decode=0.002, step=0.004, link=2)
    world.run(1000)
    tried = [setting for _, setting in world.settings]
    assert len(set(tried)) >= len(tried) - tried.count(START) and world.engine.setting.fetch_threads <= 4


def test_knobs_that_the_user_gave_stay():
    limits = Limits(Setting(1, 2, 4), Setting(64, 2, 4), 2)
    world = World(fetch=0.08, decode=0.01, step=0.012, limits=limits)
    world.run(400)
    assert {(setting.decode_threads, setting.depth) for _, setting in world.settings} == {(2, 4)}
    assert world.engine.setting.fetch_threads > 2


def test_counters_that_start_again_with_an_epoch_are_no_change():
    world = World(fetch=0.01, decode=0.01, step=0.03)
    world.run(150)
    world.tuner.begin_epoch()
    other = World(fetch=0.01, decode=0.01, step=0.03)
    other.tuner = world.tuner
    other.run(100)
    assert world.settings == other.settings == []


def test_explain_shows_costs_the_story_and_the_curve():
    world = World(**PIPELINES["slow storage"])
    assert "nothing measured yet" in world.tuner.explain()
    world.run(300)
    told = world.tuner.explain()
    assert str(world.engine.setting) in told and "settled" in told and "kept" in told
    here = next(line for line in told.splitlines() if line.endswith("<- now"))
    assert int(here.split()[0]) == world.engine.setting.depth
    assert float(here.split()[1].rstrip("%")) <= 2
