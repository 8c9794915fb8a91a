"""gpuload's own arguments and what becomes of them, where torch's class has no counterpart to compare with."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, DistributedSampler, TensorDataset
from torchvision import transforms

import gpuload
from tests.augment.pictures import encoded, picture

FILES = [encoded(picture(20 + n, 31 - n)) for n in range(10)]
TRANSFORM = transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])


class Encoded(Dataset):
    transform = TRANSFORM

    def __len__(self) -> int:
        return len(FILES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(gpuload.decode_jpeg(FILES[index], size=(16, 16))).permute(2, 0, 1) / 255, index

    def get_encoded(self, index: int) -> Any:
        return gpuload.EncodedImage(FILES[index]), index


class Relabelled(Encoded):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = super().__getitem__(index)
        return image, label + 100


def labels(loader: Any) -> list[int]:
    return [label for _, batch in loader for label in batch.tolist()]


def test_a_subclass_that_changes_samples_below_get_encoded_means_what_it_says():
    loader = gpuload.DataLoader(Relabelled(), batch_size=4)
    assert labels(loader) == labels(TorchDataLoader(Relabelled(), batch_size=4)) == list(range(100, 110))
    assert "Relabelled overrides __getitem__ but not get_encoded" in loader.plan().reasons
    assert gpuload.DataLoader(Encoded(), batch_size=4).plan().accelerated


def test_a_batch_size_far_beyond_the_data_takes_memory_for_the_data():
    (batch,) = gpuload.DataLoader(Encoded(), batch_size=10**9, accelerate="require")
    assert batch[0].shape == (10, 3, 16, 16) and batch[1].tolist() == list(range(10))


def test_an_order_without_a_seed_follows_torchs_generator():
    def order(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return labels(gpuload.DataLoader(Encoded(), batch_size=3, order="shuffle"))

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == list(range(10))
    generator = torch.Generator().manual_seed(5)
    given = labels(gpuload.DataLoader(Encoded(), batch_size=3, order="shuffle", generator=generator))
    torch.manual_seed(7)  # of no account where a generator is given
    generator = torch.Generator().manual_seed(5)
    assert labels(gpuload.DataLoader(Encoded(), batch_size=3, order="shuffle", generator=generator)) == given


def test_arguments_without_effect_on_torchs_path_are_said_once():
    data = TensorDataset(torch.arange(4))
    loader = gpuload.DataLoader(data, batch_size=2, dtype=torch.float16, on_error="skip")
    with pytest.warns(UserWarning, match=r"dtype=torch.float16, on_error='skip': without effect.*TensorDataset"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
        list(gpuload.DataLoader(data, batch_size=2))
    assert any("without effect on this path: dtype=torch.float16" in note for note in loader.plan().notes)


def test_what_asks_for_processes_is_said_once(caplog: pytest.LogCaptureFixture):
    loader = gpuload.DataLoader(Encoded(), batch_size=4, worker_init_fn=print)
    for _ in range(2):
        assert labels(loader) == list(range(10))
    assert [record.getMessage() for record in caplog.records] == [
        "not accelerated: worker_init_fn was given, which asks for worker processes"
    ]
    list(gpuload.DataLoader(Encoded(), batch_size=4, worker_init_fn=print, accelerate=False))
    assert len(caplog.records) == 1


def test_stats_say_why_a_loader_takes_torchs_path():
    loader = gpuload.DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    assert "TensorDataset" in loader.stats().reasons[0]
    list(loader)
    assert "TensorDataset" in loader.stats().reasons[0] and "not accelerated: TensorDataset" in str(loader.stats())
    accelerated = gpuload.DataLoader(Encoded(), batch_size=4)
    list(accelerated)
    assert accelerated.stats().reasons == ()


def test_the_epoch_reaches_a_distributed_sampler_and_is_counted_in_stats():
    sampler: DistributedSampler = DistributedSampler(Encoded(), num_replicas=2, rank=1, seed=3)
    loader = gpuload.DataLoader(Encoded(), batch_size=2, sampler=sampler)
    reference: DistributedSampler = DistributedSampler(Encoded(), num_replicas=2, rank=1, seed=3)
    for epoch in (0, 4, 5):
        loader.set_epoch(epoch)
        reference.set_epoch(epoch)
        assert labels(loader) == list(reference)
        assert loader.stats().epoch == epoch
    list(loader)
    assert loader.stats().epoch == 6


def test_an_order_of_ours_under_several_ranks_says_that_it_divides_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("gpuload.ranks_here._told", set())
    with pytest.warns(UserWarning, match="each of the 4 ranks will be given the whole data set.*DistributedSampler"):
        iter(gpuload.DataLoader(Encoded(), order="shuffle", seed=1))
    injected: DistributedSampler = DistributedSampler(Encoded(), num_replicas=4, rank=2, shuffle=False)
    assert labels(gpuload.DataLoader(Encoded(), order="shuffle", seed=1, sampler=injected)) == [2, 6, 0]


def test_without_torchvision_a_transform_takes_torchs_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    real = __import__("importlib").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "torchvision" else real(name, *a))
    (reason,) = gpuload.DataLoader(Encoded(), batch_size=4).plan().reasons
    assert reason.startswith("torchvision is not installed")


def test_a_data_set_read_from_one_thread_is_pointed_out():
    assert any("encoded_thread_safe" in note for note in gpuload.DataLoader(Encoded()).plan().notes)


def test_samples_finished_one_by_one_equal_a_batch():
    whole = torch.cat([batch for batch, _ in gpuload.DataLoader(Encoded(), batch_size=4)])
    single = torch.stack([image for image, _ in gpuload.DataLoader(Encoded(), batch_size=None)])
    assert torch.equal(whole, single)
