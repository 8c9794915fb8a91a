"""stats() on both paths: figures that agree with each other and with the data, snapshots that stay as they are."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import gpuload
from gpuload.core.errors import SampleError
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
    assert all(s.busy_s >= 0 and s.wait_s >= 0 and s.items >= 0 for s in stats.stages)


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


@pytest.mark.parametrize("accelerate", ["require", False])
def test_progress_prints_one_line_where_there_is_no_terminal(
    folder: Path, accelerate: Any, capfd: pytest.CaptureFixture[str]
):
    loader = folder_loader(folder, fixed(), batch_size=5, num_workers=0, accelerate=accelerate, progress=True)
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
