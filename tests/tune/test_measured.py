"""A window's counters to the costs of a batch, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuload.core.setting import Setting
from gpuload.engine.stats import StageStats
from gpuload.tune.cores import core_wait_s
from gpuload.tune.measured import Window, costs_of, stages_named

BEGAN = (
    StageStats("fetch", items=320, busy_s=1.0, cpu_s=0.1, tasks=10),
    StageStats("decode", items=320, busy_s=2.0, cpu_s=2.0, tasks=40),
    StageStats("finish", items=320, busy_s=0.1, cpu_s=0.1, tasks=10),
)
ENDED = (
    StageStats("fetch", items=960, busy_s=5.0, cpu_s=0.5, tasks=30),
    StageStats("decode", items=960, busy_s=6.4, cpu_s=4.0, tasks=120),
    StageStats("finish", items=960, busy_s=0.3, cpu_s=0.3, tasks=30),
)


def window(**changes) -> Window:
    return dataclasses.replace(Window((0.1,) * 20, (0.02,) * 20, 640, BEGAN, ENDED, Setting(2, 2, 4)), **changes)


def test_times_are_those_between_the_two_looks():
    found = costs_of(window())
    assert found.images == 32 and found.tasks == 4
    assert np.mean(found.fetch_s) == pytest.approx(4.0 / 20) and found.fetch_cpu_s == pytest.approx(0.4 / 20)
    assert np.mean(found.decode_s) == pytest.approx(4.6 / 20) and found.finish_s == pytest.approx(0.2 / 20)
    assert found.decode_cpu_s == pytest.approx(2.2 / 20)


def test_waiting_for_a_core_is_taken_off_each_stage_by_the_cores_that_it_used():
    found = costs_of(window(core_wait_s=1.3))  # half a second for each second of a core
    assert np.mean(found.fetch_s) == pytest.approx((4.0 - 0.2) / 20)
    assert np.mean(found.decode_s) == pytest.approx((4.4 - 1.0 + 0.2) / 20)  # finish never waited: it used all its time


def test_a_stage_costs_at_least_the_core_that_it_used():
    found = costs_of(window(core_wait_s=100.0))
    assert np.mean(found.decode_s) == pytest.approx(2.2 / 20) and np.mean(found.fetch_s) == pytest.approx(0.4 / 20)


def test_rates_and_waits():
    assert window().images_per_s == pytest.approx(640 / 2.4) and window().starved == pytest.approx(2 / 2.4)


def test_the_spread_is_that_of_the_quantiles_with_the_windows_mean():
    slow = dataclasses.replace(ENDED[0], p50_s=0.1, p90_s=0.3, p99_s=0.9)
    found = costs_of(window(ended=(slow, *ENDED[1:])))
    assert np.mean(found.fetch_s) == pytest.approx(0.2)
    assert np.quantile(found.fetch_s, 0.9) / np.quantile(found.fetch_s, 0.5) == pytest.approx(3.0, rel=0.1)


def test_a_window_in_which_no_task_ended_has_the_costs_so_far():
    found = costs_of(window(began=ENDED, ended=ENDED))
    assert np.mean(found.fetch_s) == pytest.approx(32 * 5.0 / 960)


def test_alike_and_unlike():
    assert not window().unlike(window())
    assert window(images=320).unlike(window()) and window().unlike(window(images=320))
    waiting = window(waits_s=(0.118,) * 20, steps_s=(0.002,) * 20)
    assert waiting.unlike(window()) and not window().unlike(waiting)
    jittery = window(waits_s=(0.0, 0.3) * 10, images=400)
    assert not jittery.unlike(window(waits_s=(0.15,) * 20))


def test_windows_that_follow_one_another_are_one():
    middle = tuple(dataclasses.replace(one, items=640, busy_s=1.5 * one.busy_s) for one in BEGAN)
    first, second = window(ended=middle, core_wait_s=0.5), window(began=middle, core_wait_s=0.8, images=320)
    joined = Window.joined([first, second])
    assert (joined.began, joined.ended, joined.images) == (BEGAN, ENDED, 960)
    assert len(joined.waits_s) == len(joined.steps_s) == 40 and joined.core_wait_s == pytest.approx(1.3)


def test_stages_come_in_their_order_and_none_is_missing():
    found = stages_named((ENDED[1], StageStats("other"), ENDED[0]))
    assert found == (ENDED[0], ENDED[1], StageStats("finish"))


def test_waiting_for_a_core_is_the_sum_over_threads(tmp_path):
    for thread, content in (("1", "5 2000000000 7\n"), ("2", "5 500000000 7\n"), ("3", ""), ("4", "gone")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(content)
    (tmp_path / "5").mkdir()
    assert core_wait_s(tmp_path) == 2.5 and core_wait_s(tmp_path / "nothing") == 0.0
