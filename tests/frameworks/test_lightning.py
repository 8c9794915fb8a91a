"""Lightning makes loaders anew from their attributes, injects its sampler, and keeps their states in checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler

import gpuload
from tests.conformance.sample_data import COUNT
from tests.frameworks.samples import assert_accelerated, cropped, fingerprint, images, tiny_model

pytestmark = pytest.mark.full


def recorder() -> Any:
    """A LightningModule that writes down the batches it is given."""
    import lightning

    class Recorder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_model()
            self.given: list[list[int]] = []
            self.prints: list[list[float]] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            inputs, numbers = batch
            self.given.append(numbers.tolist())
            self.prints.append(fingerprint(inputs))
            return torch.nn.functional.cross_entropy(self.model(inputs.float()), numbers % 2)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Recorder()


def make_trainer(out: Path, callbacks: Any = (), **options: Any) -> Any:
    import lightning

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu", default_root_dir=out, callbacks=list(callbacks), **({"devices": 1} | quiet | options)
    )


def fit(out: Path, loader: Any, callbacks: Any = (), ckpt_path: Any = None, **options: Any) -> Any:
    module = recorder()
    trainer = make_trainer(out, callbacks, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on num_workers and logging
        trainer.fit(module, loader, ckpt_path=ckpt_path)
    return module


def test_an_epoch_through_fit_is_accelerated_and_torchs(root, tmp_path):
    torch.manual_seed(2)
    expected = fit(
        tmp_path, TorchDataLoader(images(root), batch_size=5, shuffle=True), max_epochs=2, enable_checkpointing=False
    )
    torch.manual_seed(2)
    loader = gpuload.DataLoader(images(root), batch_size=5, shuffle=True)
    got = fit(tmp_path, loader, max_epochs=2, enable_checkpointing=False)
    assert_accelerated(loader, COUNT)
    assert got.given == expected.given
    assert got.prints == expected.prints


def checkpoint(out: Path, **when: Any) -> Any:
    from lightning.pytorch.callbacks import ModelCheckpoint

    return ModelCheckpoint(dirpath=out, save_top_k=-1, filename="{step}", **when)


@pytest.mark.parametrize("own", [{}, {"seed": 9}], ids=["torch's order", "own order"])
@pytest.mark.parametrize("step", [1, 3, 5, 7])
def test_a_checkpoint_after_any_step_goes_on_with_the_next(root, tmp_path, own, step):
    def make() -> Any:
        return gpuload.DataLoader(images(root, cropped()), batch_size=5, shuffle=True, **own)

    torch.manual_seed(2)
    whole = fit(tmp_path, make(), [checkpoint(tmp_path, every_n_train_steps=1)], max_epochs=2)
    assert sorted(sum(whole.given[:5], [])) == sorted(sum(whole.given[5:], [])) == list(range(COUNT))
    loader = make()
    rest = fit(tmp_path, loader, max_epochs=2, ckpt_path=tmp_path / f"step={step}.ckpt", enable_checkpointing=False)
    assert_accelerated(loader, COUNT - max(0, step - 5) * 5)
    left = -step % 5  # of the epoch that is resumed; how torch shuffles the next is not in Lightning's checkpoints
    same = slice(0, None if own else left)
    assert rest.given[same] == whole.given[step:][same]
    assert rest.prints[same] == whole.prints[step:][same]
    assert sorted(sum(rest.given[-5 if step <= 5 else 0 :], [])) == sorted(sum(whole.given[max(step, 5) :], []))


def data_module(root: Path) -> Any:
    """Its loader is made in a hook, where Lightning writes down what constructors are given."""
    import lightning

    class Data(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            return gpuload.DataLoader(images(root), batch_size=3, shuffle=True, dtype=torch.float64, device="cpu")

    return Data()


def rank_program(root: Path) -> dict[str, Any]:
    """What this rank is given with Lightning's own sampler, by class."""
    import tempfile

    told: dict[str, Any] = {}
    for kind in (TorchDataLoader, gpuload.DataLoader):
        with tempfile.TemporaryDirectory() as out:
            own = {"dtype": torch.float64, "device": "cpu"} if kind is gpuload.DataLoader else {}
            loader = kind(images(root), batch_size=3, shuffle=True, **own)
            trainer = make_trainer(Path(out), strategy="ddp", devices=2, max_epochs=2, enable_checkpointing=False)
            module = recorder()
            trainer.fit(module, loader)
        told[kind.__module__.split(".")[0]] = [module.given, module.prints]
        used = trainer.train_dataloader
        assert isinstance(used.sampler, DistributedSampler) and type(used) is kind and used is not loader
        if kind is gpuload.DataLoader:
            assert used.dtype is torch.float64 and used.device == "cpu"
            assert_accelerated(used, COUNT // 2)
    options = {"strategy": "ddp", "devices": 2, "max_epochs": 2, "enable_checkpointing": False}
    with tempfile.TemporaryDirectory() as out:
        module, trainer = recorder(), make_trainer(Path(out), **options)
        trainer.fit(module, data_module(root))
    used = trainer.train_dataloader
    assert type(used) is gpuload.DataLoader and used.dtype is torch.float64
    assert_accelerated(used, COUNT // 2)
    told["in a hook"] = [module.given]
    with tempfile.TemporaryDirectory() as out:
        loader = gpuload.DataLoader(images(root), batch_size=3, shuffle=True, seed=1, shard="auto")
        with pytest.raises(gpuload.ConfigError, match="twice.*use_distributed_sampler=False"):
            make_trainer(Path(out), **options).fit(recorder(), loader)
        module = recorder()
        make_trainer(Path(out), **options, use_distributed_sampler=False).fit(module, loader)
    assert_accelerated(loader, COUNT // 2)
    told["shard"] = [module.given]
    torch.distributed.destroy_process_group()
    return told


def test_with_lightnings_distributed_sampler_each_rank_is_given_what_torchs_loader_would_give(launch):
    ranks = launch(2, "test_lightning", "rank_program")
    for told in ranks:
        (given, prints), (expected, expected_prints) = told["gpuload"], told["torch"]
        assert given == expected == told["in a hook"][0]
        assert torch.allclose(torch.tensor(sum(prints, [])), torch.tensor(sum(expected_prints, [])), rtol=1e-6)
    for way in ranks[0]:
        for epoch in (slice(0, 4), slice(4, 8)):
            assert sorted(sum((sum(told[way][0][epoch], []) for told in ranks), [])) == list(range(COUNT)), way
