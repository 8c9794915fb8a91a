"""What the speed and training sections make of their clocks; their loops, on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bench import gpu_speed, gpu_training
from bench.gpu_loaders import cpu_s, timed_epoch
from bench.gpu_section import Bench
from bench.gpu_speed import BATCH, CONTENDERS, OURS, Running, flat, indices_of, pass_images, summary


def test_a_pass_is_whole_batches_longer_than_the_first_burst_and_bounded():
    for rate, workers in ((50.0, 1), (700.0, 16), (40_000.0, 16), (1e9, 16)):
        images = pass_images(rate, workers=workers)
        assert images % BATCH == 0 and images >= BATCH * (2 * workers + 8)
        assert images <= max(gpu_speed.MOST_IMAGES, BATCH * (2 * workers + 8))
    assert pass_images(40_000, workers=1) == 187 * BATCH  # 1.2 seconds


def test_a_pass_takes_every_image_about_as_often():
    assert indices_of(7, 3) == [0, 1, 2, 0, 1, 2, 0]


def test_files_go_through_one_tensor_and_come_apart_again():
    data, lengths, labels = flat([(b"abc", 1), (b"defgh", 2)])
    assert [bytes(part.tolist()) for part in data.split(lengths)] == [b"abc", b"defgh"]
    assert labels.tolist() == [1, 2]


def test_ratios_are_of_each_round_and_figures_are_medians():
    ours = Running(OURS, images_per_s=[100.0, 200.0, 90.0], cpu_s_per_image=[1e-4, 3e-4, 2e-4])
    rates = {OURS: ours.images_per_s, "dali": [50.0, 50.0, 90.0], "torch": [10.0, 10.0], "torchvision GPU": []}
    row = summary(ours, rates)
    assert (row["images_per_s"], row["low"], row["high"], row["rounds"]) == (100.0, 90.0, 200.0, 3)
    assert row["ratio_to_dali"] == 2.0 and row["ratio_to_torch"] == 15.0 and "ratio_to_torchvision_gpu" not in row
    assert row["cpu_ms_per_image"] == pytest.approx(0.2)
    assert "ratio_to_torch" not in summary(Running("dali", images_per_s=[1.0], cpu_s_per_image=[1.0]), rates)


def test_what_is_absent_is_left_out_and_what_fails_is_an_error():
    assert summary(Running("dali", reason="absent: pip install"), {})["left_out"] == "absent: pip install"
    assert summary(Running("dali"), {})["left_out"] == "no time left"
    entrant = Running("torch")
    entrant.attempt(lambda: [][0])
    entrant.attempt(lambda: pytest.fail("a loader that failed is not asked again"))
    row = summary(entrant, {})
    assert row["passed"] is None and row["error"].startswith("IndexError")
    assert summary(Running(OURS, reason="IndexError: x"), {})["passed"] is False


def test_our_loaders_run_on_the_cpu_as_the_section_runs_them(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_speed, "CONTENDERS", {OURS: CONTENDERS[OURS], "gpuload CPU": CONTENDERS["gpuload CPU"]})
    monkeypatch.setattr(gpu_speed, "ROUNDS", 2)
    monkeypatch.setattr(gpu_speed, "FIRST_IMAGES", 24)
    monkeypatch.setattr(gpu_speed, "pass_images", lambda rate, workers: 40)
    setting = gpu_speed.subjects.Setting(gpu_speed.look_at(str(bench.shards)), "cpu", 2, 8, 32)
    monkeypatch.setattr(gpu_speed, "setting_of", lambda bench: setting)
    rows = list(gpu_speed.rows(bench))
    assert [(row["row"], row.get("round")) for row in rows] == [
        (OURS, 0), ("gpuload CPU", 0), ("gpuload CPU", 1), (OURS, 1), (OURS, None), ("gpuload CPU", None)
    ]  # fmt: skip
    assert all(row["passed"] is None and row["images_per_s"] > 0 for row in rows)
    assert sum(rows[-2]["decoders"].values()) == 40


def test_an_epochs_marks_have_an_entry_a_batch():
    batches = [(torch.zeros(3, 1), None), (torch.zeros(2, 1), None)]
    epoch = timed_epoch(batches)
    assert list(epoch.images) == [3, 2] and len(epoch.arrivals_s) == len(epoch.waits_s) == 2
    assert epoch.started_s <= epoch.arrivals_s[0] <= epoch.arrivals_s[1] <= epoch.ended_s


def test_cpu_seconds_grow_with_work():
    before_s = cpu_s()
    math.factorial(20_000)
    assert cpu_s() > before_s


# ---- training


def test_starved_is_the_share_of_waits():
    waits = gpu_training.Waits(steps_s=[0.3, 0.5], waits_s=[0.1, 0.1])
    assert waits.starved == pytest.approx(0.2) and waits.step_s == pytest.approx(0.4)


def test_both_loops_make_as_many_steps_as_asked_over_as_many_epochs_as_that_takes():
    seen: list[int] = []

    def step(batch: Any) -> None:
        seen.append(int(batch[0][0, 0]))

    batches = gpu_training.endless([(torch.full((4, 1), number), None) for number in range(3)])
    waits = gpu_training.waiting(step, batches, 4)
    assert len(waits.steps_s) == len(waits.waits_s) == 4
    assert gpu_training.flowing(step, batches, 4) > 0
    assert seen == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_loader_without_batches_is_an_error_and_not_a_loop_for_ever():
    with pytest.raises(RuntimeError, match="no batch"):
        next(gpu_training.endless([]))


def test_a_step_learns():
    step = gpu_training.Step("alexnet", "cpu")
    batch = (torch.randn(2, 3, 64, 64), torch.tensor([1, 2]))
    before = [parameter.clone() for parameter in step.model.parameters()]
    step(batch)
    assert any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
    assert all(bool(parameter.isfinite().all()) for parameter in step.model.parameters())


def test_every_loader_that_trains_is_a_contender():
    assert set(gpu_training.LOADERS) <= set(CONTENDERS)
    assert list(gpu_training.STEPS)[0] == "resnet50"
