"""Hugging Face's Trainer makes torch's loader unless get_train_dataloader is overridden, and resumes by skipping."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import gpuload
from tests.conformance.sample_data import COUNT, Encoded
from tests.frameworks.samples import assert_accelerated, cropped, fingerprint, tiny_model
from tests.frameworks.test_accelerate import forget_accelerator

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def transformers_as_installed(monkeypatch):
    """Seen from this checkout's root, `kernels/` looks like Hugging Face's package of that name."""
    monkeypatch.setitem(sys.modules, "kernels", None)
    yield
    forget_accelerator()


def named(number: int, image: Any) -> dict[str, Any]:
    return {"pixel_values": image, "labels": number % 2, "numbers": number}


class Classifier(torch.nn.Module):
    """As Trainer wants its models, and it writes down what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_model()
        self.given: list[list[int]] = []
        self.prints: list[list[float]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor, numbers: torch.Tensor) -> dict[str, Any]:
        self.given.append(numbers.tolist())
        self.prints.append(fingerprint(pixel_values))
        logits = self.model(pixel_values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def train(root: Path, out: Path, kind: Any, resume_from: Path | None = None, **options: Any) -> Any:
    """Two epochs of 5 steps, or what is left of them. Returns the trainer."""
    import transformers

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            given = options or {"sampler": self._get_train_sampler()}
            self.loader = self.accelerator.prepare(kind(self.train_dataset, self._train_batch_size, **given))
            return self.loader

    files = [path.read_bytes() for path in sorted(root.glob("*/*.jpg"))]
    arguments = transformers.TrainingArguments(
        str(out), num_train_epochs=2, per_device_train_batch_size=5, save_steps=1, seed=5, use_cpu=True,
        report_to=[], disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
    )  # fmt: skip
    torch.manual_seed(1)
    trainer = Trainer(Classifier(), arguments, train_dataset=Encoded(files, build=named, transform=cropped()))
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return trainer


def test_training_is_accelerated_in_the_order_that_torchs_loader_gives(root, tmp_path):
    got = train(root, tmp_path / "ours", gpuload.DataLoader)
    assert_accelerated(got.loader, COUNT)
    forget_accelerator()
    expected = train(root, tmp_path / "torch", TorchDataLoader)
    assert got.model.given == expected.model.given and len(got.model.given) == 10


@pytest.mark.parametrize("step", [3, 5, 7])
def test_a_resumed_training_is_given_the_rest(root, tmp_path, step):
    options = {"shuffle": True, "seed": 12}
    whole = train(root, tmp_path, gpuload.DataLoader, **options).model
    forget_accelerator()
    resumed = train(root, tmp_path, gpuload.DataLoader, tmp_path / f"checkpoint-{step}", **options)
    assert resumed.model.given == whole.given[step:]
    assert resumed.model.prints == whole.prints[step:]
    assert isinstance(resumed.loader, gpuload.DataLoader) and resumed.loader.plan().accelerated


def test_the_loader_of_a_resumed_epoch_is_accelerated(root, tmp_path, monkeypatch):
    """The one that skips is Trainer's own and seen nowhere else."""
    import transformers.trainer

    skipping, skip = [], transformers.trainer.skip_first_batches
    monkeypatch.setattr(
        transformers.trainer, "skip_first_batches", lambda *args: skipping.append(skip(*args)) or skipping[-1]
    )
    options = {"shuffle": True, "seed": 12}
    train(root, tmp_path, gpuload.DataLoader, **options)
    forget_accelerator()
    train(root, tmp_path, gpuload.DataLoader, tmp_path / "checkpoint-3", **options)
    (loader,) = skipping
    assert_accelerated(loader, COUNT - 15)
