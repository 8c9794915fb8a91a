"""What `gpuload tune` saves is what an engine runs with; a loader that was given nothing finds it while it runs."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms

import gpuload
from gpuload.core.errors import ConfigError
from gpuload.core.setting import Setting
from gpuload.tune.settings_file import save_setting
from tests.augment.pictures import picture

RANDOM = transforms.Compose([transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


class Slow:
    """A data set far away: each batch of four takes as long as it is told."""

    def __init__(self, pause_s: float, *, thread_safe: bool = True, images: int = 1200):
        self.pause_s, self.encoded_thread_safe, self.images, self.transform = pause_s, thread_safe, images, RANDOM
        data = io.BytesIO()
        picture(20, 30).save(data, "jpeg", quality=90)
        self.data = data.getvalue()

    def __len__(self) -> int:
        return self.images

    def get_encoded(self, index: int) -> Any:
        time.sleep(self.pause_s)
        return gpuload.EncodedImage(self.data), index

    def __getitem__(self, index: int) -> Any:
        return self.transform(picture(20, 30)), index


def test_a_saved_setting_is_what_runs(tmp_path: Path):
    save_setting(tmp_path / "tuned.toml", Setting(5, 3, 9), ["made by a test"])
    for config in (tmp_path / "tuned.toml", str(tmp_path / "tuned.toml"), Setting(5, 3, 9)):
        loader = gpuload.DataLoader(Slow(0, images=40), 4, config=config, accelerate="require")
        batches = iter(loader)
        next(batches)
        assert loader.setting == Setting(5, 3, 9)
        assert [pool.size for pool in loader._wiring.engine._pools] == [5, 3]
        assert batches._flow.depth == 9 and loader._wiring.tuner is None
        assert len(list(batches)) == 9


def test_a_data_set_for_one_thread_is_read_by_one_whatever_the_setting():
    loader = gpuload.DataLoader(Slow(0, thread_safe=False, images=40), 4, config=Setting(5, 3, 9))
    next(iter(loader))
    assert loader.setting == Setting(1, 3, 9)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"config": Setting(1, 1, 2), "num_workers": 2}, "mutually exclusive"),
        ({"config": Setting(1, 1, 2), "prefetch_factor": 2}, "mutually exclusive"),
        ({"config": 5}, "config must be"),
        ({"config": Setting(0, 1, 2)}, "config: fetch_threads must be .*from 1, got 0"),
        ({"config": Setting(1, 1, 0)}, "config: depth must be .*from 1, got 0"),
        ({"config": Setting(1, 1.5, 2)}, "config: decode_threads must be .*got 1.5"),  # type: ignore[arg-type]
        ({"config": gpuload.Limits(Setting(0, 1, 2), Setting(2, 2, 2), 2)}, "Limits.least: fetch_threads"),
        ({"config": gpuload.Limits(Setting(3, 1, 2), Setting(2, 2, 2), 2)}, "is above"),
        ({"config": gpuload.Limits(Setting(1, 1, 2), Setting(2, 2, 2), 0)}, "Limits.cores"),
        ({"config": "nowhere.toml"}, "nowhere.toml.*gpuload tune"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told):
        gpuload.DataLoader(Slow(0), 4, **more)


def test_it_looks_within_the_limits_that_it_is_given():
    limits = gpuload.Limits(Setting(1, 1, 3), Setting(4, 2, 3), 2)
    loader = gpuload.DataLoader(Slow(0.002), 4, config=limits)
    assert loader.setting is None
    for _ in loader:
        assert loader.setting.depth == 3 and loader.setting.fetch_threads <= 4


def test_torchs_path_says_that_it_has_no_use_for_it():
    loader = gpuload.DataLoader(Slow(0), 4, config=Setting(1, 1, 2), accelerate=False)
    with pytest.warns(UserWarning, match="config='1 fetch threads.*without effect"):
        next(iter(loader))


def test_threads_that_wait_for_storage_become_more_and_no_batch_is_another():
    torch.manual_seed(2)
    tuned = gpuload.DataLoader(Slow(0.002), 4, seed=3, shuffle=True, accelerate="require")
    found = [(images.clone(), labels.clone()) for images, labels in tuned]
    assert tuned.setting.fetch_threads > 2
    fixed = gpuload.DataLoader(Slow(0), 4, seed=3, shuffle=True, num_workers=1)
    for (images, labels), (other, others) in zip(found, fixed, strict=True):
        assert torch.equal(images, other) and torch.equal(labels, others)


def test_explain_tells_the_tuners_story(capsys: pytest.CaptureFixture[str]):
    loader = gpuload.DataLoader(Slow(0.001, images=400), 4)
    for _ in loader:
        pass
    loader.explain()
    told = capsys.readouterr().out
    assert "tuner: " in told and "empty queue" in told


def test_what_the_user_gives_is_kept():
    given = gpuload.DataLoader(Slow(0.001, images=400), 4, num_workers=1)
    depth = gpuload.DataLoader(Slow(0.001, images=400), 4, prefetch_factor=3)
    for loader in (given, depth):
        for _ in loader:
            pass
    assert given.setting == Setting(2, 1, given.depth) and given._wiring.tuner is None
    assert depth.setting.depth == depth.depth and depth._wiring.tuner is not None


def test_what_was_found_holds_from_the_next_epochs_first_batch_on():
    limits = gpuload.Limits(Setting(1, 1, 9), Setting(2, 2, 20), 2)
    loader = gpuload.DataLoader(Slow(0, images=400), 4, config=limits)
    batches = iter(loader)
    next(batches)
    assert batches._flow.undelivered == 10
    loader._wiring.engine.apply(Setting(2, 2, 20))
    batches = iter(loader)
    next(batches)
    assert batches._flow.depth == 20 and batches._flow.undelivered == 21


def test_ids_are_pulled_no_further_ahead_by_a_depth_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch):
    loader = gpuload.DataLoader(Slow(0, images=1200), 4)
    batches = iter(loader)
    next(batches)
    asked = 0

    def batch(*_: Any) -> Setting | None:
        nonlocal asked
        asked += 1
        return None if asked % 30 else Setting(2, 2, 20 if asked % 60 else 4)

    monkeypatch.setattr(loader._wiring.tuner, "batch", batch)
    deepest = 0
    for _ in range(290):
        next(batches)
        deepest = max(deepest, batches._flow.outstanding)
    assert deepest == 21


def test_the_time_of_a_callback_is_no_wait():
    loader = gpuload.DataLoader(Slow(0, images=40), 4)
    loader.on_stats(lambda _: time.sleep(0.1), every_s=0.001)
    for _ in loader:
        time.sleep(0.01)
    tuner = loader._wiring.tuner
    assert sum(tuner._waits_s) < 0.1 < sum(tuner._steps_s)


def test_images_whose_size_the_data_says_are_held_within_the_memory_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuload.wiring.memory_budget", lambda: 100_000_000)
    data, file = Slow(0, images=24), io.BytesIO()
    picture(900, 700).save(file, "jpeg")
    data.data, data.transform = file.getvalue(), transforms.ToTensor()
    for more in ({}, {"collate_fn": list}):  # batches of 30 MB
        loader = gpuload.DataLoader(data, 4, **more)
        batches = iter(loader)
        assert loader._wiring.tuner.limits.most.depth > 30
        next(batches)
        assert loader._wiring.tuner.limits.most.depth == 3
