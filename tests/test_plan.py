"""Which path a loader takes and why, as a value and as what `explain()` prints; nothing is opened or started."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as v1
from torchvision.datasets import FakeData, ImageFolder

import gpuload
from gpuload.core.batch import TensorSpec
from gpuload.core.errors import ConfigError, GpuloadError
from gpuload.core.geometry import Resampling
from gpuload.decode import dali
from gpuload.plan import choose_decoder
from tests.augment.pictures import every_kind, write_folder

FUSED = v1.Compose([v1.Resize(20), v1.CenterCrop((16, 18)), v1.ToTensor()])
LOOSE = v1.Compose([v1.Resize(20), v1.ToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("kinds"), every_kind())


def loader(folder: Path, transform: Any = FUSED, **options: Any) -> Any:
    return gpuload.DataLoader(ImageFolder(folder, transform), **{"decoder": "pillow", "device": "cpu"} | options)


def test_images_of_one_size_are_stored_straight_into_the_batch(folder: Path):
    plan = loader(folder, batch_size=4).plan()
    assert plan.accelerated and plan.reasons == ()
    assert plan.specs == (TensorSpec((3, 16, 18), "float32"),)
    assert [augment.rest for augment in plan.augments] == [None] and plan.decoder == "pillow"


@pytest.mark.parametrize(
    ("transform", "options"),
    [
        (LOOSE, {}),
        (FUSED, {"batch_size": None}),
        (FUSED, {"collate_fn": list}),
        (v1.Compose([FUSED, v1.RandomErasing(value="random")]), {}),
    ],
    ids=["sizes differ", "single samples", "collate_fn", "an unknown operation"],
)
def test_else_samples_are_finished_one_by_one(folder: Path, transform: Any, options: dict[str, Any]):
    plan = loader(folder, transform, **options).plan()
    assert plan.accelerated and plan.specs == ()


@pytest.mark.parametrize(
    ("options", "dtype", "channels_last"),
    [
        ({"dtype": torch.bfloat16}, "bfloat16", False),
        ({"memory_format": torch.channels_last}, "float32", True),
        ({"memory_format": torch.contiguous_format, "dtype": torch.uint8}, "uint8", False),
    ],
)
def test_the_batch_is_of_the_type_and_layout_asked_for(
    folder: Path, options: dict[str, Any], dtype: str, channels_last: bool
):
    spec = loader(folder, **options).plan().specs[0]
    assert (spec.dtype, spec.channels_last) == (dtype, channels_last)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"accelerate": False}, "accelerate=False was given"),
        ({"num_workers": 1, "worker_init_fn": print}, "worker_init_fn was given, which asks for worker processes"),
        ({"num_workers": 1, "multiprocessing_context": "fork"}, "multiprocessing_context was given"),
    ],
)
def test_arguments_that_ask_for_torchs_path(folder: Path, options: dict[str, Any], reason: str):
    plan = loader(folder, **options).plan()
    assert not plan.accelerated and plan.understood is None and plan.specs == ()
    assert len(plan.reasons) == 1 and plan.reasons[0].startswith(reason)


def test_every_reason_is_named(folder: Path):
    dataset = FakeData(4, (3, 8, 8))
    plan = gpuload.DataLoader(dataset, accelerate=False, num_workers=2, worker_init_fn=print).plan()
    assert len(plan.reasons) == 3 and plan.reasons[2].startswith("FakeData is not a data set that gpuload knows")
    assert plan.steps == (("dataset[i], collate_fn", "2 worker processes", ""),)
    text = str(plan)
    assert text.startswith("gpuload: torch's own path, not accelerated\n  because accelerate=False was given\n")
    assert "  because FakeData is not" in text


def test_require_raises_the_reasons(folder: Path):
    transform = v1.Compose([v1.Grayscale(), v1.ToTensor()])
    with pytest.raises(gpuload.NotAcceleratedError, match="takes torch's path: the transform starts with Grayscale"):
        iter(loader(folder, transform, accelerate="require"))


def test_work_in_the_training_process_is_pointed_out(folder: Path):
    plan = gpuload.DataLoader(FakeData(4, (3, 8, 8))).plan()
    assert "does all work in the training loop's process" in plan.notes[0]
    assert loader(folder, accelerate=False).plan().notes == ()


def test_what_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]):
    transform = v1.Compose([v1.RandomResizedCrop((16, 18)), v1.RandomHorizontalFlip(), v1.ToTensor()])
    loader(folder, transform, num_workers=2, shuffle=True).explain()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "gpuload: accelerated"
    steps = [re.split("  +", line.strip()) for line in lines if line.strip()[0].isdigit()]
    assert steps == [
        ["1", "order", "the caller's thread", "ids from BatchSampler"],
        ["2", "read", "fetch threads", "encoded bytes"],
        ["3", "decode (pillow)", "2 threads", "H x W x 3 uint8"],
        [
            "4",
            "RandomResizedCrop(height=16, width=18, scale=(0.08, 1), ratio=(0.75, 1.33))",
            "2 threads",
            "16 x 18 x 3 uint8",
        ],
        ["5", "RandomHorizontalFlip(p=0.5)", "2 threads", "16 x 18 x 3 uint8"],
        ["6", "ToTensor", "2 threads", "3 x 16 x 18 float32"],
        ["7", "store into the batch", "2 threads, fused", "n x 3 x 16 x 18 float32, contiguous"],
        ["8", "hand over", "the caller's thread", "on cpu"],
    ]
    assert len({line.index(step[2]) for line, step in zip(lines[-8:], steps, strict=True)}) == 1, "columns line up"


def test_unknown_operations_are_named_in_step_and_note(folder: Path):
    text = str(loader(folder, v1.Compose([FUSED, v1.RandomErasing(value="random")]), num_workers=0).plan())
    assert "RandomErasing" in text and "the caller's thread, per sample" in text
    assert "note: RandomErasing: run as given, one sample at a time" in text


def test_planning_opens_and_starts_nothing(folder: Path):
    ours = loader(folder, num_workers=2)
    before = threading.active_count()
    assert str(ours.plan()) == str(ours.plan())
    assert threading.active_count() == before
    assert isinstance(ours, TorchDataLoader)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, "float32", torch.complex64])
def test_element_types_that_batches_cannot_have(folder: Path, dtype: Any):
    with pytest.raises(
        ConfigError, match=r"dtype must be torch.uint8, .float16, .bfloat16, .float32, .float64 or None"
    ):
        loader(folder, dtype=dtype).plan()


def test_the_decoder_asked_for_is_the_one_that_runs():
    assert choose_decoder("auto", Resampling()) == "native"
    for name in ("native", "pillow", *(() if dali.available() else ("dali",))):
        assert choose_decoder(name, Resampling()) == name


def test_dali_is_refused_where_it_cannot_resample():
    with pytest.raises(GpuloadError, match='decoder="dali": '):
        choose_decoder("dali", Resampling("hamming"))
