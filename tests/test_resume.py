"""A run that is cut anywhere and resumed elsewhere delivers what an uninterrupted one would have, to the bit."""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.core.errors import ConfigError
from tests.augment.pictures import picture

RANDOM = transforms.Compose([transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
PLAIN = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
IMAGES = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for i in range(IMAGES):
        (root / f"class{i % 3}").mkdir(exist_ok=True)
        picture(20 + i, 31 - i % 7).save(root / f"class{i % 3}" / f"{i:02d}.jpg", quality=90)
    return root


Sampler = Callable[[Any], dict[str, Any]]
SAMPLERS: dict[str, Sampler] = {
    "shuffle": lambda data: {"shuffle": True},
    "shuffle, a generator": lambda data: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "in order": lambda data: {},
    "own order": lambda data: {"order": "shuffle", "seed": 9},
    "own order, its seed drawn": lambda data: {"order": "shuffle"},
    "replacement": lambda data: {"sampler": RandomSampler(data, replacement=True, num_samples=50)},
    "weights": lambda data: {"sampler": WeightedRandomSampler([1.0 + i % 4 for i in range(len(data))], 30)},
    "distributed": lambda data: {"sampler": DistributedSampler(data, 3, 1, seed=4)},
    "batch sampler": lambda data: {
        "batch_sampler": BatchSampler(RandomSampler(data), 5, drop_last=False),
        "batch_size": 1,
    },
    "drop last": lambda data: {"shuffle": True, "drop_last": True},
}


def loader(folder: Path, name: str, transform: Any = RANDOM, **more: Any) -> Any:
    data = ImageFolder(str(folder), transform)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "accelerate": "require"}
    return gpuload.DataLoader(data, **{**options, **SAMPLERS[name](data), **more})


def same(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    return all(torch.equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("threads", [0, 2])
def test_the_rest_of_the_epoch_is_what_would_have_come(folder: Path, name: str, threads: int):
    torch.manual_seed(1)
    whole = loader(folder, name, num_workers=threads)
    for cut in (0, 1, min(3, len(whole) - 1)):
        iterator = iter(whole)
        before = [next(iterator) for _ in range(cut)]
        state = pickle.loads(pickle.dumps(whole.state_dict()))
        rest = list(iterator)
        torch.manual_seed(77)  # another process: nothing is as it was
        other = loader(folder, name, num_workers=threads)
        other.load_state_dict(state)
        drawn = torch.get_rng_state()
        resumed = list(other)
        assert same(resumed, rest) and len(before) + len(resumed) == len(whole)
        if "own" not in name:  # else it is drawn from as by any iterator
            assert torch.equal(drawn, torch.get_rng_state())


def test_the_epochs_after_a_resumed_one_are_those_that_would_have_come(folder: Path):
    for name in ("shuffle, a generator", "own order"):
        whole = loader(folder, name)
        iterator = iter(whole)
        next(iterator)
        state, rest, following = whole.state_dict(), list(iterator), [list(whole), list(whole)]
        other = loader(folder, name)
        other.load_state_dict(state)
        assert same(list(other), rest)
        assert all(same(list(other), epoch) for epoch in following)
        assert other.epoch == 2


def test_after_the_last_batch_the_next_epoch_follows_whoever_asked_for_more(folder: Path):
    """Lightning never asks for the end: it counts."""
    whole = loader(folder, "own order")
    iterator = iter(whole)
    for _ in range(len(whole)):
        next(iterator)
    state = whole.state_dict()
    other = loader(folder, "own order")
    other.load_state_dict(state)
    assert same(list(other), list(whole))


def test_at_an_epochs_end_the_next_one_follows(folder: Path):
    whole = loader(folder, "own order")
    list(whole)
    state = whole.state_dict()
    second = list(whole)
    other = loader(folder, "own order")
    other.load_state_dict(state)
    assert same(list(other), second)


def test_persistent_iterators_resume_in_a_later_epoch(folder: Path):
    for more in ({}, {"seed": 4}):
        torch.manual_seed(3)
        whole = loader(folder, "shuffle", persistent_workers=True, **more)
        list(whole)
        iterator = iter(whole)
        next(iterator), next(iterator)
        state, rest = whole.state_dict(), list(iterator)
        other = loader(folder, "shuffle", persistent_workers=True, **more)
        list(other)  # it has an iterator of its own already
        other.load_state_dict(state)
        assert same(list(other), rest)


def test_epochs_after_a_persistent_one_that_was_resumed_have_the_crops_that_would_have_come(folder: Path):
    def made() -> Any:
        return loader(folder, "in order", persistent_workers=True, generator=torch.Generator().manual_seed(8))

    whole = made()
    list(whole)
    iterator = iter(whole)
    next(iterator)
    state, rest, third = whole.state_dict(), list(iterator), list(whole)
    other = made()
    other.load_state_dict(state)
    assert same(list(other), rest) and same(list(other), third)


def test_nothing_that_came_before_is_read_again(folder: Path):
    read: list[int] = []

    class Recorded(torch.utils.data.Dataset):  # type: ignore[type-arg]
        transform = PLAIN

        def __init__(self) -> None:
            self.inner = ImageFolder(str(folder))

        def __len__(self) -> int:
            return len(self.inner)

        def get_encoded(self, i: int) -> Any:
            read.append(i)
            path, label = self.inner.samples[i]
            return gpuload.EncodedImage(Path(path).read_bytes()), label

    def made() -> Any:
        return gpuload.DataLoader(Recorded(), 4, num_workers=1, device="cpu", accelerate="require", prefetch_factor=2)

    iterator = iter(whole := made())
    next(iterator), next(iterator), next(iterator)
    state = whole.state_dict()
    list(iterator)
    read.clear()
    other = made()
    other.load_state_dict(state)
    list(other)
    assert sorted(read) == list(range(12, IMAGES))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_number_of_cuts_gives_every_id_once_and_the_same_pixels(folder: Path, data: st.DataObject):
    name = data.draw(st.sampled_from(["own order", "shuffle, a generator", "drop last"]))
    options = {"batch_size": data.draw(st.integers(1, 7)), "in_order": data.draw(st.booleans())}
    torch.manual_seed(data.draw(st.integers(0, 9)))
    expected = list(current := loader(folder, name, **options))
    state, got = None, []
    torch.manual_seed(0)
    if name == "drop last":
        options["generator"] = torch.Generator().manual_seed(2)
        expected = list(loader(folder, name, **{**options, "generator": torch.Generator().manual_seed(2)}))
    for _ in range(data.draw(st.integers(1, 4))):
        current = loader(folder, name, **{**options, "num_workers": data.draw(st.integers(0, 3))})
        if state is not None:
            current.load_state_dict(state)
        iterator = iter(current)
        for _ in range(data.draw(st.integers(0, 4))):
            batch = next(iterator, None)
            if batch is None:
                break
            got.append(batch)
        state = current.state_dict()
        if state["batches"] == 0 and state["epoch"] == 1:
            break
    else:
        current = loader(folder, name, **options)
        current.load_state_dict(state)
        got += list(current)
    if options["in_order"]:
        assert same(got, expected)
    else:
        assert sorted(map(as_text, got)) == sorted(map(as_text, expected))


def as_text(batch: Any) -> str:
    return repr([part.tolist() for part in batch])


@pytest.mark.parametrize("workers", [0, 2])
def test_on_torchs_path_the_order_goes_on(folder: Path, workers: int):
    data = ImageFolder(str(folder), PLAIN)

    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        return gpuload.DataLoader(data, 4, shuffle=True, num_workers=workers, accelerate=False)

    iterator = iter(whole := made(1))
    next(iterator), next(iterator)
    state, rest = whole.state_dict(), list(iterator)
    other = made(2)
    other.load_state_dict(state)
    assert same(list(other), rest) and other.stats().path == "torch"


def test_a_state_is_small_and_plain(folder: Path):
    whole = loader(folder, "shuffle, a generator")
    next(iter(whole))
    state = whole.state_dict()
    assert len(pickle.dumps(state)) < 10_000
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == state


DIFFERENT: dict[str, dict[str, Any]] = {
    "batch_size was 4 and is 5": {"batch_size": 5},
    "transform was .*RandomResizedCrop": {"transform": PLAIN},
    "seed was None and is 3": {"seed": 3},
    "drop_last was False and is True": {"drop_last": True},
    "decoder was 'native' and is 'pillow'": {"decoder": "pillow"},
    "path was 'accelerated' and is 'torch'": {"accelerate": False},
}


@pytest.mark.parametrize("told", DIFFERENT)
def test_a_state_of_another_loader_is_refused_with_the_difference(folder: Path, told: str):
    whole = loader(folder, "shuffle")
    next(iter(whole))
    other = loader(folder, "shuffle", **DIFFERENT[told])
    with pytest.raises(ConfigError, match=told):
        other.load_state_dict(whole.state_dict())


def test_a_state_of_another_data_set_is_refused(folder: Path, tmp_path: Path):
    whole = loader(folder, "shuffle")
    next(iter(whole))
    (tmp_path / "a").mkdir()
    picture(20, 30).save(tmp_path / "a" / "0.jpg")
    with pytest.raises(ConfigError, match=f"samples was {IMAGES} and is 1"):
        loader(tmp_path, "shuffle").load_state_dict(whole.state_dict())


def others(folder: Path, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Data sets of one class, length and structure that hold other samples."""
    for name in ("one", "two"):
        (tmp_path / name / "a").mkdir(parents=True)
        for i in range(IMAGES):
            shutil.copy(next((folder / "class0").iterdir()), tmp_path / name / "a" / f"{name}{i}.jpg")
    shards = [gpuload.ShardDataset(str(tmp_path / name), transform=RANDOM) for name in ("one", "two")]
    images = ImageFolder(str(folder), RANDOM)
    yield shards[0], shards[1]
    yield Subset(images, range(10)), Subset(images, range(10, 20))
    yield gpuload.Numbered(shards[0]), gpuload.Numbered(shards[1])
    yield gpuload.MixedDataset(shards, [1, 2], 20), gpuload.MixedDataset(shards, [2, 1], 20)
    yield gpuload.MixedDataset(shards, [1, 1], 20), gpuload.MixedDataset(shards[::-1], [1, 1], 20)


def test_a_state_of_other_samples_in_a_data_set_of_the_same_kind_is_refused(folder: Path, tmp_path: Path):
    for one, two in others(folder, tmp_path):
        whole = gpuload.DataLoader(one, 4, order="shuffle", seed=1)
        next(iter(whole))
        with pytest.raises(ConfigError, match="dataset was"):
            gpuload.DataLoader(two, 4, order="shuffle", seed=1).load_state_dict(whole.state_dict())
        gpuload.DataLoader(one, 4, order="shuffle", seed=1).load_state_dict(whole.state_dict())


def test_a_state_goes_where_the_same_shards_lie_elsewhere(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "moved" / "there")
    loaders = [
        gpuload.DataLoader(gpuload.ShardDataset(str(root), transform=RANDOM), 4, order="shuffle", seed=1)
        for root in (folder, tmp_path / "moved" / "there")
    ]
    next(iter(loaders[0]))
    loaders[1].load_state_dict(loaders[0].state_dict())


@pytest.mark.parametrize("damage", ["cut", "edited", "nothing", "version"])
def test_a_damaged_state_is_refused(folder: Path, damage: str):
    whole = loader(folder, "shuffle")
    next(iter(whole))
    state: Any = whole.state_dict()
    if damage == "cut":
        state["rng"]["default"] = state["rng"]["default"][:100]
    elif damage == "edited":
        state["batches"] = -3
    elif damage == "version":
        state["version"] = 99
    else:
        state = {}
    with pytest.raises(ConfigError, match="load_state_dict"):
        loader(folder, "shuffle").load_state_dict(state)


def test_set_epoch_to_another_epoch_leaves_the_state(folder: Path):
    whole = loader(folder, "own order")
    next(iter(whole))
    other = loader(folder, "own order")
    other.load_state_dict(whole.state_dict())
    other.set_epoch(0)  # the state's own: it stays
    assert len(list(other)) == len(whole) - 1
    other.load_state_dict(whole.state_dict())
    with pytest.warns(UserWarning, match="leaves the state"):
        other.set_epoch(5)
    assert len(list(other)) == len(whole)


def test_an_iterable_data_set_is_refused():
    class Numbers(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(5))

    with pytest.raises(ConfigError, match="IterableDataset"):
        gpuload.DataLoader(Numbers()).state_dict()


def test_a_sampler_that_is_replayed_is_asked_for_ids_alone():
    asked = []

    class Counting(SequentialSampler):
        def __iter__(self) -> Any:
            for i in super().__iter__():
                asked.append(i)
                yield i

    data = list(range(10))
    first = gpuload.DataLoader(data, 2, sampler=Counting(data))
    iterator = iter(first)
    next(iterator)
    other = gpuload.DataLoader(data, 2, sampler=Counting(data))
    other.load_state_dict(first.state_dict())
    asked.clear()
    assert [batch.tolist() for batch in other] == [[2, 3], [4, 5], [6, 7], [8, 9]]
    assert asked == list(range(10)) and np.all(np.diff(asked) == 1)


class InMemory:
    """Samples that are objects, with names that differ from process to process."""

    def __init__(self) -> None:
        self.samples: Any = [(object(), label) for label in range(12)]
        self.dataset, self.indices = list(range(12)), None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def test_what_is_no_name_does_not_tell_one_data_set_from_another():
    for indices in (None, [(0, 1)] * 12, {"train": 3}, ["a"] * 12, 5):
        for inner in (None, list(range(12))):
            one, two = InMemory(), InMemory()
            one.indices = two.indices = indices
            one.dataset = two.dataset = inner
            other = gpuload.DataLoader(two, 4)  # type: ignore[arg-type]
            loaded = gpuload.DataLoader(one, 4)  # type: ignore[arg-type]
            iterator = iter(loaded)
            next(iterator)
            other.load_state_dict(pickle.loads(pickle.dumps(loaded.state_dict())))
            assert [batch.tolist() for batch in other] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_root_may_be_written_in_several_ways(folder: Path):
    states = []
    for root in (str(folder), f"{folder}/", f"{folder}//", folder):
        made = gpuload.DataLoader(ImageFolder(root, RANDOM), 4, seed=1, shuffle=True)
        states.append(made.state_dict()["setup"]["dataset"])
    assert len(set(states)) == 1
