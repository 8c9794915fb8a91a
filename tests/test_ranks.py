"""Loaders that divide an epoch between ranks: in one process, a loader a rank, against the loader of one rank."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import SequentialSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.core.errors import ConfigError
from tests.augment.pictures import picture

IMAGES = 26
TRANSFORM = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for i in range(IMAGES):  # each in a class of its own: the label is the id
        (root / f"{i:02d}").mkdir()
        picture(20 + i, 31 - i % 7).save(root / f"{i:02d}" / "a.jpg", quality=90)
    return root


def rank_loader(folder: Path, rank: int, world: int, batch_size: int, **more: Any) -> Any:
    options: dict[str, Any] = {"num_workers": 1, "seed": 6, "order": "shuffle", "device": "cpu", **more}
    data = ImageFolder(str(folder), TRANSFORM)
    return gpuload.DataLoader(data, batch_size, shard=(rank, world), accelerate="require", **options)


def union(parts: list[Any]) -> list[tuple[int, bytes]]:
    """A global batch as one: (id, pixels) of each sample, in order."""
    return [
        (int(i), image.numpy().tobytes()) for images, labels in parts for image, i in zip(images, labels, strict=True)
    ]


def global_batches(folder: Path, world: int, batch_size: int, **more: Any) -> list[list[tuple[int, bytes]]]:
    ranks = [list(rank_loader(folder, rank, world, batch_size, **more)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1 or more.get("even") == "exact"
    longest = max(map(len, ranks))
    return [union([batches[j] for batches in ranks if j < len(batches)]) for j in range(longest)]


@pytest.mark.parametrize("order", ["shuffle", "block", "sequential"])
def test_the_union_of_a_global_batch_is_the_same_for_any_world_size(folder: Path, order: str):
    one = global_batches(folder, 1, 12, order=order)
    for world in (2, 3, 4, 6):
        several = global_batches(folder, world, 12 // world, order=order)
        assert several[:2] == one[:2]  # whole ones, pixels too; the last is divided, and padded
        assert {i for i, _ in several[2]} >= {i for i, _ in one[2]}


@pytest.mark.parametrize("even", ["pad", "drop", "exact"])
@pytest.mark.parametrize(("world", "batch_size"), [(4, 3), (3, 5), (27, 2), (5, 8)])
def test_an_uneven_end_is_padded_dropped_or_exact(folder: Path, even: str, world: int, batch_size: int):
    loaders = [rank_loader(folder, rank, world, batch_size, even=even) for rank in range(world)]
    batches = [list(loader) for loader in loaders]
    assert [len(loader) for loader in loaders] == list(map(len, batches))
    ids = sorted(i for rank in batches for _, labels in rank for i in labels.tolist())
    if even == "exact":
        assert ids == list(range(IMAGES))
    else:
        assert len({sum(len(labels) for _, labels in rank) for rank in batches}) == 1
        assert (set(ids) == set(range(IMAGES))) if even == "pad" else (len(set(ids)) == len(ids))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_at_another_world_size_the_rest_comes_once_with_the_same_pixels(folder: Path, data: st.DataObject):
    even = "exact"
    world, batch_size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    cut = data.draw(st.integers(0, IMAGES // (world * batch_size)))
    before, state = [], None
    for rank in range(world):
        loader = rank_loader(folder, rank, world, batch_size, even=even)
        iterator = iter(loader)
        before.append([next(iterator) for _ in range(cut)])
        mine = pickle.loads(pickle.dumps(loader.state_dict()))
        assert state in (None, mine)  # the same on every rank: one checkpoint serves all
        state = mine
    other_world, other_size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    after = []
    for rank in range(other_world):
        loader = rank_loader(folder, rank, other_world, other_size, even=even)
        loader.load_state_dict(state)
        after.append(list(loader))
    came = union([batch for rank in [*before, *after] for batch in rank])
    assert sorted(came) == sorted(union(list(rank_loader(folder, 0, 1, 4))))
    if world * batch_size == other_world * other_size:
        whole = global_batches(folder, 1, world * batch_size)
        resumed = [union([rank[j] for rank in after if j < len(rank)]) for j in range(max(map(len, after), default=0))]
        assert [sorted(batch) for batch in resumed] == [sorted(batch) for batch in whole[cut:]]


def test_three_samples_on_four_ranks(folder: Path):
    data = torch.utils.data.Subset(ImageFolder(str(folder), TRANSFORM), [0, 1, 2])
    loaders = [gpuload.DataLoader(data, 2, shard=(rank, 4), device="cpu") for rank in range(4)]
    labels = [[labels.tolist() for _, labels in loader] for loader in loaders]
    assert [sum(map(len, batches)) for batches in labels] == [1, 1, 1, 1]
    assert {i for batches in labels for batch in batches for i in batch} == {0, 1, 2}


def test_shard_auto_is_the_environments_rank(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    data = ImageFolder(str(folder), TRANSFORM)
    mine = [
        labels.tolist() for _, labels in gpuload.DataLoader(data, 3, shard="auto", seed=6, shuffle=True, device="cpu")
    ]
    assert mine == [labels.tolist() for _, labels in rank_loader(folder, 1, 3, 3)]


def test_the_whole_data_set_on_every_rank_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
):
    monkeypatch.setattr("gpuload.ranks_here._told", set())
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = ImageFolder(str(folder), TRANSFORM)
    list(gpuload.DataLoader(data, 9, device="cpu", sampler=torch.utils.data.SubsetRandomSampler(range(9))))
    list(rank_loader(folder, 0, 2, 9))
    assert not [w for w in recwarn.list if "whole data set" in str(w.message)]
    for _ in range(2):
        list(gpuload.DataLoader(data, 9, device="cpu", shuffle=True))
    assert len([w for w in recwarn.list if 'pass shard="auto"' in str(w.message)]) == 1


def test_what_cannot_be_divided_is_refused(folder: Path):
    data = ImageFolder(str(folder), TRANSFORM)
    with pytest.raises(ConfigError, match="shard=.*mutually exclusive with shuffle, sampler"):
        gpuload.DataLoader(data, 2, shard=(0, 2), sampler=SequentialSampler(data))
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        gpuload.DataLoader(data, 2, shard=(2, 2))
    with pytest.raises(ConfigError, match="shard must be"):
        gpuload.DataLoader(data, 2, shard="all")
