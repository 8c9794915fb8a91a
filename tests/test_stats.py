"""stats() on both paths: figures that agree with each other and with the data, snapshots that stay as they are."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import pickle
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import gpuload
from gpuload import record
from gpuload.core.errors import ConfigError, SampleError
from gpuload.engine import meters
from gpuload.engine.badsamples import BadSamples
from tests.engine.fakes import eventually, exit_code
from tests.engine.samples import (
    COUNT,
    DECODERS,
    Numbered,
    fixed,
    folder_loader,
    jittered,
    jpeg,
    loader_of,
    random_crop,
    write_folder,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_folder(root)
    return root


def consistent(stats: Any) -> None:
    """What must hold of any snapshot, at any moment of either path."""
    assert 0 <= stats.starved <= 1 and 0 <= stats.consumer_wait_s <= stats.elapsed_s
    assert stats.images_per_s == pytest.approx(stats.images / stats.elapsed_s if stats.elapsed_s else 0)
    assert (stats.first_batch_s is None) == (stats.batches == 0)
    assert stats.first_batch_s is None or 0 < stats.first_batch_s <= stats.elapsed_s
    assert all(s.busy_s >= s.cpu_s * 0.5 >= 0 and s.wait_s >= 0 and s.items >= 0 for s in stats.stages)
    assert all(0 <= s.empty <= 1 and s.queue >= 0 and s.p50_s <= s.p90_s <= s.p99_s for s in stats.stages)
    assert all((s.tasks == 0) == (s.busy_s == 0) == (s.p50_s == 0) for s in stats.stages)
    assert 0 <= stats.blocked <= 1 and 0 <= stats.ready_empty <= 1 and stats.ready_mean >= 0
    assert (stats.wait_s is None) == (stats.step_s is None) == (stats.batches < 2)
    assert stats.wait_s is None or stats.wait_s.most <= stats.consumer_wait_s
    assert list(stats.history) == sorted(stats.history, key=lambda point: point.at_s)
    assert stats.verdict.sentence and stats.cpus >= 1 and all(map(math.isfinite, stats.scalars().values()))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("transform", [random_crop, jittered])
def test_an_epoch_counts_its_images_and_bytes_in_every_stage(folder: Path, threads: int, decoder: str, transform: Any):
    loader = folder_loader(folder, transform(), batch_size=5, num_workers=threads, decoder=decoder)
    size = sum(path.stat().st_size for path in folder.glob("*/*.jpg"))
    for _ in range(2):
        for _ in loader:
            consistent(loader.stats())
        stats = loader.stats()
        consistent(stats)
        assert (stats.path, stats.images, stats.batches) == ("accelerated", COUNT, len(loader))
        stages = {stage.name: stage for stage in stats.stages}
        assert {name: stage.items for name, stage in stages.items()} == dict.fromkeys(
            ("fetch", "decode", "finish"), COUNT
        )
        assert stages["fetch"].bytes == stages["decode"].bytes == size
        assert stages["decode"].threads == threads
        assert all(stage.busy_s > 0 for stage in stats.stages)
        assert sum(stats.decoders.values()) == COUNT and stats.decoders[decoder] > 0
        assert (stats.ready, stats.bytes_in_flight, dict(stats.errors), stats.error_file) == (0, 0, {}, None)
        assert stats.gpu_utilisation is None and stats.gpu_memory_bytes is None


def test_epochs_are_told_apart_even_where_the_last_one_was_broken_off(folder: Path):
    loader = folder_loader(folder, random_crop(), batch_size=5, num_workers=2, seed=1)
    for epoch in range(4):
        for number, _ in enumerate(loader):
            if epoch % 2 == 0 and number == 1:
                break
        stats = loader.stats()
        assert stats.epoch == epoch and stats.batches == (2 if epoch % 2 == 0 else 8)
    assert {stage.items for stage in stats.stages} == {COUNT}
    assert max(stage.wait_s for stage in stats.stages[:2]) <= 2 * stats.elapsed_s + 0.5


def test_what_lies_ahead_is_told_while_it_lies_there(folder: Path):
    gate = threading.Event()
    files = [jpeg(i) for i in range(12)]
    held = loader_of(
        Numbered(files, _gated(gate)), batch_size=3, num_workers=2, prefetch_factor=2
    )  # read, and not decoded before the gate opens
    iterator = iter(held)
    ahead = sum(map(len, files[: 3 * held.depth]))
    assert eventually(lambda: held.stats().bytes_in_flight == ahead)
    assert held.stats().ready == 0
    gate.set()
    assert eventually(lambda: held.stats().ready == held.depth)
    assert held.stats().bytes_in_flight == 0
    next(iterator)
    del iterator
    assert eventually(lambda: held.stats().bytes_in_flight == 0 and held.stats().ready == 0)


def test_queues_are_told_over_time():
    """A decode thread that waits for the test: its tasks queue up, and then all is finished and stands still."""
    gate = threading.Event()
    loader = loader_of(
        Numbered([jpeg(i) for i in range(12)], _gated(gate)), batch_size=3, num_workers=1, prefetch_factor=3
    )
    iterator = iter(loader)
    assert eventually(lambda: loader.stats().stage("decode").queue > 0.5)
    before = loader.stats()
    assert (before.blocked, before.ready_mean, before.ready_empty) == (0, 0, 1)
    gate.set()
    assert eventually(lambda: loader.stats().ready == 3)
    began = loader.stats()
    assert eventually(lambda: loader.stats().blocked > began.blocked)
    assert eventually(lambda: loader.stats().stage("decode").empty > began.stage("decode").empty)
    assert loader.stats().ready_mean > 0 and loader.stats().ready_empty < 1 and loader.stats().history
    for _ in iterator:
        pass
    after = loader.stats()
    consistent(after)
    assert after.ready == 0 and all(point.at_s <= after.elapsed_s + 1 for point in after.history)
    assert loader.stats() == after  # an epoch that is over stays as it was


@pytest.mark.parametrize("accelerate", ["require", False])
def test_whoever_wants_to_be_told_is_told_in_the_consumers_thread(folder: Path, accelerate: Any):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=0, accelerate=accelerate)
    told: list[tuple[int, int, threading.Thread]] = []
    often: list[int] = []
    loader.on_stats(lambda stats: told.append((stats.epoch, stats.batches, threading.current_thread())))
    loader.on_stats(lambda stats: often.append(stats.batches), every_s=1e-9)
    for epoch in range(2):
        iterator = iter(loader)
        assert len(list(iterator)) == 8
        assert list(iterator) == []  # it ends once, however often it is asked
        assert told == [(number, 8, threading.current_thread()) for number in range(epoch + 1)]
    assert often == [*range(1, 9), 8] * 2
    for callback, every_s in ((None, 10.0), (print, 0), (print, -1.0), (print, math.nan)):
        with pytest.raises(ConfigError):
            loader.on_stats(callback, every_s)  # type: ignore[arg-type]


def test_the_time_that_callbacks_take_is_no_step_of_the_users(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    for module in (meters, record):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    def callback(stats: Any) -> None:
        now[0] += 100

    epoch = record.EpochRecord(BadSamples(), torch.device("cpu"), watchers=[record.Watcher(callback, 5.0, told_at=0.0)])
    for _ in range(4):
        asked_at = now[0]
        now[0] += 4
        epoch.received(asked_at, 1)
        now[0] += 2
    stats = epoch.stats()
    assert stats.step_s is not None and stats.step_s.most == 2 and stats.consumer_wait_s == 16
    assert stats.elapsed_s == 16 + 3 * 2 + 100 * 3  # told at 10 s, and whenever 5 s had passed


def test_what_a_callback_raises_is_the_users(folder: Path):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=2)

    def callback(stats: Any) -> None:
        if stats.batches == 3:
            raise KeyError("mine")

    loader.on_stats(callback, every_s=1e-9)
    iterator = iter(loader)
    assert len([next(iterator), next(iterator)]) == 2
    with pytest.raises(KeyError, match="mine"):
        next(iterator)
    assert len(list(iterator)) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_holds_what_the_meters_count(folder: Path, tmp_path: Path, workers: int):
    path = tmp_path / "trace.json"
    loader = folder_loader(folder, random_crop(), batch_size=5, num_workers=workers, trace=path)
    counted = dict.fromkeys(("fetch", "decode", "finish"), 0.0)
    for _ in range(2):
        for _ in loader:
            pass
        for stage in loader.stats().stages:
            counted[stage.name] += stage.busy_s
    events = json.loads(path.read_text())["traceEvents"]
    for name, busy_s in counted.items():
        mine = [event for event in events if event["ph"] == "X" and event["name"] == name]
        assert sum(event["dur"] for event in mine) == pytest.approx(1e6 * busy_s, rel=1e-3)
        assert sum(event["args"]["images"] for event in mine) == 2 * COUNT
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    decoding = {names[event["tid"]] for event in events if event["name"] == "decode"}
    assert all(name.startswith("gpuload-decode" if workers else threading.current_thread().name) for name in decoding)
    assert [event["name"] for event in events].count("wait") == 16
    assert any(event["ph"] == "C" for event in events) == bool(workers)


def test_torchs_path_is_traced_as_far_as_it_is_seen(folder: Path, tmp_path: Path):
    path = tmp_path / "trace.json"
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=0, accelerate=False, trace=path)
    assert len(list(loader)) == 8
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sorted(names) == ["epoch 0", *["step"] * 7, *["wait"] * 8]
    with pytest.raises(ConfigError, match="can't be written"):
        folder_loader(folder, fixed(), trace=tmp_path / "nowhere" / "trace.json")


def test_a_loader_that_watches_and_traces_is_copied_without(folder: Path, tmp_path: Path):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=0, trace=str(tmp_path / "trace.json"))
    loader.on_stats(lambda stats: None)
    copy = pickle.loads(pickle.dumps(loader))
    assert len(list(copy)) == 8 and copy.watchers == [] and copy.trace_file is None


def _gated(gate: threading.Event) -> Any:
    chain = fixed()
    chain.transforms.append(lambda image: (gate.wait(20), image)[1])
    return chain


def test_a_slow_consumer_is_not_starved_and_a_fast_one_is():
    pause = threading.Event()
    data = Numbered([jpeg(i) for i in range(12)], fixed(), lambda i: (pause.wait(0.02), None)[1])
    loader = loader_of(data, batch_size=3, num_workers=1)
    for _ in loader:
        pass
    starved = loader.stats()
    assert starved.starved > 0.8 and starved.first_batch_s is not None and starved.first_batch_s > 0.04
    for number, _ in enumerate(loader):
        left = min(2, 3 - number)
        assert eventually(lambda left=left: loader.stats().ready == left)  # type: ignore
    assert loader.stats().starved < starved.starved


def test_snapshots_are_values(folder: Path):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    before = loader.stats()
    copy = dataclasses.replace(before, stages=tuple(before.stages), errors=dict(before.errors))
    for _ in iterator:
        pass
    assert before == copy and before.batches == 1 and loader.stats().batches == 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.images = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.stages[0].items = 3  # type: ignore[misc]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_torchs_path_is_measured_by_the_epoch_too(folder: Path, workers: int, persistent: bool):
    loader = gpuload.DataLoader(
        folder_loader(folder, fixed()).dataset,
        batch_size=5,
        num_workers=workers,
        persistent_workers=persistent,
        accelerate=False,
    )
    assert loader.stats().batches == 0
    for _ in range(2):
        for _ in loader:
            consistent(loader.stats())
        stats = loader.stats()
        assert (stats.path, stats.images, stats.batches, stats.stages) == ("torch", COUNT, 8, ())


@pytest.mark.parametrize("batch", [torch.zeros(4, 2), {"a": torch.zeros(4)}, [torch.zeros(4, 1), 3], (torch.zeros(4),)])
def test_torchs_path_counts_images_in_batches_of_any_structure(batch: Any):
    loader = gpuload.DataLoader([0] * 12, batch_size=4, collate_fn=lambda samples: batch)
    assert len(list(loader)) == 3
    assert loader.stats().images == 12


def test_errors_are_counted_by_kind_since_the_loader_was_made(folder: Path):
    files = [jpeg(i) for i in range(8)]
    files[3], files[6] = b"no image", files[6][:300]
    loader = loader_of(Numbered(files, fixed()), batch_size=4, num_workers=2, on_error="skip")
    for epoch in (1, 2):
        assert sum(len(numbers) for _, numbers in loader) == 6
        assert dict(loader.stats().errors) == {"UnidentifiedImageError": epoch, "OSError": epoch}
    path = Path(str(loader.stats().error_file))
    assert len(path.read_text().splitlines()) == 2  # each sample once, however many epochs
    path.unlink()


@pytest.mark.parametrize("progress", [True, "full"])
@pytest.mark.parametrize("accelerate", ["require", False])
def test_progress_prints_one_line_where_there_is_no_terminal(
    folder: Path, accelerate: Any, progress: Any, capfd: pytest.CaptureFixture[str]
):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=0, accelerate=accelerate, progress=progress)
    for epoch in (1, 2):
        for _ in loader:
            assert capfd.readouterr().err == ""
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1 and "batch 8/8" in lines[0] and "errors 0" in lines[0], epoch
    for _ in loader:
        break
    (line,) = capfd.readouterr().err.splitlines()
    assert "batch 1/8" in line
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=0, accelerate=accelerate)
    assert len(list(loader)) == 8 and capfd.readouterr().err == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_ask_although_the_parents_locks_are_held(folder: Path):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    flow, log = iterator._flow, loader.bad_samples
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with flow._change, log._lock, flow.work.meters.decode._lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        stats = loader.stats()
        log.add(SampleError("shard", 1, "", "in the child"), epoch=0, batch=0, policy="skip")
        os.unlink(str(log.path))
        os._exit(7 if stats.path == "accelerated" and stats.batches == 1 else 1)
    code = exit_code(child)
    release.set()
    holder.join()
    assert code == 7


def test_an_unused_loader_has_stats_too(folder: Path):
    consistent(folder_loader(folder, fixed()).stats())
    assert isinstance(gpuload.DataLoader([1]), TorchDataLoader) and gpuload.DataLoader([1]).stats().path == "torch"


def test_an_iterator_that_is_collected_under_a_meters_lock_closes_its_view(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=1, accelerate="require", progress=True)
    batches = iter(loader)
    next(batches)
    ring: list[Any] = [batches]
    ring.append(ring)  # as an error that is kept in its own frame: only the collector frees it
    gc.collect()
    del ring, batches
    quantiles, calls = meters.Histogram.quantiles, 0

    def collecting(self: meters.Histogram) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:  # the first two are the consumer's
            gc.collect()
        return quantiles(self)

    monkeypatch.setattr(meters.Histogram, "quantiles", collecting)
    asking = threading.Thread(target=loader.stats, daemon=True)
    asking.start()
    asking.join(10)
    assert not asking.is_alive() and "batch 1" in capfd.readouterr().err


def test_an_iterator_of_many_epochs_keeps_one_record_and_closes_the_view_of_a_broken_one(
    folder: Path, capfd: pytest.CaptureFixture[str]
):
    options: dict[str, Any] = {"batch_size": 5, "num_workers": 1, "persistent_workers": True, "progress": True}
    loader = folder_loader(folder, fixed(), accelerate="require", **options)
    records = []
    for _ in range(3):
        for _ in loader:
            pass
        records.append(weakref.ref(loader._record))
    gc.collect()
    assert [met() is not None for met in records] == [False, False, True]
    for _ in loader:
        break
    capfd.readouterr()
    next(iter(loader))
    assert "batch 1/8" in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_iterates_a_loader_of_persistent_workers_anew(folder: Path):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=1, persistent_workers=True, accelerate="require")
    assert len(list(loader)) == 8
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if len(list(loader)) == 8 else 3)
        finally:
            os._exit(4)
    assert exit_code(child, 60) == 0
    assert len(list(loader)) == 8


@pytest.mark.parametrize("accelerate", ["require", False])
def test_what_comes_between_iter_and_the_first_batch_is_no_wait_and_hides_none(folder: Path, accelerate: Any):
    loader = folder_loader(folder, fixed(), batch_size=2, num_workers=1, accelerate=accelerate)
    batches = iter(loader)
    time.sleep(1.5)  # a model is built
    began = time.perf_counter()
    for _ in batches:
        pass
    took_s = time.perf_counter() - began
    stats = loader.stats()
    assert stats.first_batch_s < 1 and stats.elapsed_s <= took_s
    assert stats.verdict.limit in ("unknown", "decode", "cpu", "unclear", "next", "depth", "fetch", "lock", "torch")
