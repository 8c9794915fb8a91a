"""The next epoch's first batches are begun while this one ends, and thrown away unseen where anything has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.fetch.local import LocalReader
from gpuload.planning import Ahead
from tests.augment.pictures import picture
from tests.engine.fakes import FakeWork, eventually, plan, running

RANDOM = transforms.Compose([transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
IMAGES, BATCH = 40, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for i in range(IMAGES):
        (root / f"class{i % 3}").mkdir(exist_ok=True)
        picture(20 + i, 31 - i % 7).save(root / f"class{i % 3}" / f"{i:02d}.jpg", quality=90)
    return root


def loader_of(data: Any, **more: Any) -> gpuload.DataLoader:
    options: dict[str, Any] = {"order": "shuffle", "seed": 3, "num_workers": 2, "device": "cpu"}
    return gpuload.DataLoader(data, BATCH, **{**options, "accelerate": "require", **more})


def values(batches: Any) -> list[list[torch.Tensor]]:
    return [[part.clone() for part in batch] for batch in batches]


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) for first, second in zip(one, two, strict=True) for a, b in zip(first, second, strict=True)
    )


def ahead_of(loader: Any) -> Ahead | None:
    return loader._wiring._ahead


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were read, in the order of the reads."""
    found: list[str] = []
    lock = threading.Lock()
    read = LocalReader.read

    def noted(self: LocalReader, files: Any, refs: np.ndarray) -> Any:
        with lock:
            found.extend(Path(files[at]).name for at in refs["file"].tolist())
        return read(self, files, refs)

    monkeypatch.setattr(LocalReader, "read", noted)
    yield found


def test_an_epochs_first_batches_are_read_before_it_begins_and_not_again(folder: Path, reads: list[str]):
    data = ImageFolder(str(folder), RANDOM)
    loader = loader_of(data)
    values(loader)
    ahead = ahead_of(loader)
    assert ahead is not None and len(ahead.begun) == 2  # prefetch_factor
    assert eventually(lambda: ahead.flow.undelivered == 2 and len(reads) == IMAGES + 2 * BATCH)
    time.sleep(0.05)
    assert len(reads) == IMAGES + 2 * BATCH  # no more than that
    second = values(loader)
    assert eventually(lambda: len(reads) == 2 * IMAGES + 2 * BATCH)  # those, and the third epoch's: nothing twice
    fresh = loader_of(ImageFolder(str(folder), RANDOM))
    fresh.set_epoch(1)
    assert same(second, values(fresh))


def test_a_rank_and_persistent_workers_go_ahead_too(folder: Path):
    for more in ({"shard": (1, 3)}, {"persistent_workers": True}, {"prefetch_factor": 1}, {"seed": None}):
        options = {"seed": 5, **more}
        torch.manual_seed(8)
        loader = loader_of(ImageFolder(str(folder), RANDOM), **options)
        values(loader)
        ahead = ahead_of(loader)
        assert ahead is not None and ahead.begun
        second = values(loader)
        assert ahead.flow.work is ahead.work  # it was used
        torch.manual_seed(8)
        fresh = loader_of(ImageFolder(str(folder), RANDOM), **options)
        fresh.set_epoch(1)
        assert same(second, values(fresh))


def relabel(loader: Any) -> None:
    loader.dataset.samples[:] = [(path, 7) for path, _ in loader.dataset.samples]


def shorten(loader: Any) -> None:
    del loader.dataset.samples[20:]


def transform(loader: Any) -> None:
    loader.dataset.transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])


def seed(loader: Any) -> None:
    loader.seed = loader.sampler.seed = 11


def policy(loader: Any) -> None:
    loader.on_error = "skip"


CHANGES: dict[str, Callable[[Any], None]] = {
    "labels": relabel,
    "fewer samples": shorten,
    "another transform": transform,
    "another seed": seed,
    "another policy": policy,
    "another epoch": lambda loader: loader.set_epoch(7),
    "back to its beginning": lambda loader: loader.set_epoch(0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_begun_is_thrown_away_unseen_where_something_changed(folder: Path, name: str):
    loader = loader_of(ImageFolder(str(folder), RANDOM))
    values(loader)
    ahead = ahead_of(loader)
    assert ahead is not None and len(ahead.begun) == 2
    CHANGES[name](loader)
    second = values(loader)
    assert ahead.flow.cancelled or loader._wiring.engine.work is not ahead.work
    assert ahead.flow.work is not ahead.work  # nothing of it was taken
    fresh = loader_of(ImageFolder(str(folder), RANDOM))
    fresh.set_epoch(1)
    CHANGES[name](fresh)
    assert same(second, values(fresh))


def test_one_label_that_changes_is_enough(folder: Path):
    loader = loader_of(ImageFolder(str(folder), RANDOM))
    values(loader)
    ahead = ahead_of(loader)
    assert ahead is not None
    sample = int(ahead.begun[1][0].ids[2])
    loader.dataset.samples[sample] = (loader.dataset.samples[sample][0], 99)
    second = values(loader)
    assert ahead.flow.cancelled and second[1][1][2] == 99


def test_the_same_samples_with_other_crops_are_other_batches(folder: Path):
    data = ImageFolder(str(folder), RANDOM)
    loader = loader_of(data, order="sequential")
    values(loader)
    ahead = ahead_of(loader)
    assert ahead is not None
    loader.set_epoch(4)
    later = values(loader)
    fresh = loader_of(data, order="sequential")
    fresh.set_epoch(4)
    assert ahead.flow.cancelled and same(later, values(fresh))


def test_a_loaded_state_throws_it_away(folder: Path):
    loader = loader_of(ImageFolder(str(folder), RANDOM))
    reference = values(loader_of(ImageFolder(str(folder), RANDOM)))
    states = [loader.state_dict() for _ in loader]
    loader.load_state_dict(states[2])
    assert same(values(loader), reference[3:])


def test_a_subset_and_a_shorter_epoch_than_is_begun(folder: Path):
    data = Subset(ImageFolder(str(folder), RANDOM), [3, 1, 4, 15, 9])
    loader = loader_of(data, prefetch_factor=4)
    epochs = [values(loader) for _ in range(3)]
    for number, epoch in enumerate(epochs):
        fresh = loader_of(data)
        fresh.set_epoch(number)
        assert same(epoch, values(fresh)) and len(epoch) == 2


class Encoded:
    """A data set that only its own code can read."""

    encoded_thread_safe = True

    def __init__(self, inner: ImageFolder):
        self.inner, self.transform = inner, inner.transform

    def __len__(self) -> int:
        return len(self.inner)

    def get_encoded(self, index: int) -> Any:
        path, target = self.inner.samples[index]
        return gpuload.EncodedImage(Path(path).read_bytes()), target

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@pytest.mark.parametrize("name", ["get_encoded", "target_transform", "an op of the user's", "torch's order", "inline"])
def test_nothing_is_begun_where_the_users_code_could_see_it(folder: Path, name: str):
    data: Any = ImageFolder(str(folder), RANDOM)
    more: dict[str, Any] = {}
    if name == "get_encoded":
        data = Encoded(data)
    elif name == "target_transform":
        data.target_transform = lambda label: label + 1
    elif name == "an op of the user's":
        data.transform = transforms.Compose([*RANDOM.transforms, transforms.Lambda(lambda image: image * 2)])
    elif name == "torch's order":
        more = {"order": None, "seed": None, "shuffle": True}
    else:
        more = {"num_workers": 0}
    loader = loader_of(data, **more)
    values(loader)
    ahead = ahead_of(loader)
    assert ahead is None or not ahead.begun
    values(loader)


def test_an_iterator_that_is_over_stays_over_and_one_that_is_left_takes_its_work_along(folder: Path):
    loader = loader_of(ImageFolder(str(folder), RANDOM))
    batches = iter(loader)
    values(batches)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)
    begun = ahead_of(loader)
    assert begun is not None and not begun.flow.cancelled
    second = iter(loader)
    next(second)
    assert begun.flow.work is begun.work  # what was begun is taken over at the first next
    del second
    assert begun.flow.cancelled


def test_two_iterators_that_end_one_after_the_other_leave_one(folder: Path):
    loader = loader_of(ImageFolder(str(folder), RANDOM))
    one, two = iter(loader), iter(loader)
    values(one)
    first = ahead_of(loader)
    values(two)
    second = ahead_of(loader)
    assert first is not None and second is not None and first is not second and first.flow.cancelled
    third = values(loader)
    fresh = loader_of(ImageFolder(str(folder), RANDOM))
    fresh.set_epoch(2)
    assert same(third, values(fresh))


def test_a_bad_image_that_is_found_early_is_raised_in_its_own_epoch(tmp_path: Path):
    (tmp_path / "a").mkdir()
    for i in range(12):
        picture(20, 20).save(tmp_path / "a" / f"{i:02d}.jpg")
    loader = loader_of(ImageFolder(str(tmp_path), RANDOM))
    fresh = loader_of(loader.dataset)
    fresh.set_epoch(1)
    bad = next(iter(fresh.sampler))
    Path(loader.dataset.samples[bad][0]).write_bytes(b"no image")
    raised, batches = 0, iter(loader)
    for _ in range(3):
        try:
            next(batches)
        except gpuload.SampleError:
            raised += 1
    with pytest.raises(StopIteration):
        next(batches)
    ahead = ahead_of(loader)
    assert raised == 1 and ahead is not None
    assert eventually(lambda: all(batch.finished for batch in ahead.flow._active))
    assert sum(loader.stats().errors.values()) == 1  # what is found early is counted when its turn comes
    with pytest.raises(gpuload.SampleError, match=f"{bad:02d}.jpg"):
        next(iter(loader))


def test_the_next_epochs_batches_wait_for_their_turn_within_the_bounds():
    work, following = FakeWork(), FakeWork()
    run = running(work, depth=3)
    for number in range(2):
        run.flow.put(plan(number))
    for number in range(4):
        run.flow.put(plan(number), following)  # type: ignore[arg-type]
    assert eventually(lambda: run.flow.ready == 2 and ("finish", 0) in following.steps)
    assert run.flow.undelivered == 6 and run.flow.outstanding == 2
    assert {number for _, number in following.steps} == {0}  # three in all
    assert [run.flow.take(20).number for _ in range(2)] == [0, 1]
    with pytest.raises(IndexError):
        run.flow.take(20)
    run.flow.turn(following, 1)  # type: ignore[arg-type]
    assert run.flow.outstanding == 4
    assert [run.flow.take(20).number for _ in range(4)] == [0, 1, 2, 3]
    assert {step for step, _ in work.steps} == {"fetch", "decode", "finish"}
    run.close()


@pytest.mark.parametrize("more", [{"num_workers": 2}, {}])
def test_an_iterator_keeps_its_epoch_whatever_its_loader_is_told_before_the_first_batch(folder: Path, more: Any):
    def made() -> Any:
        return gpuload.DataLoader(
            ImageFolder(str(folder), RANDOM), BATCH, order="shuffle", seed=3, device="cpu", **more
        )

    loader, fresh = made(), made()
    reference = [values(fresh), values(fresh)]
    one, two = iter(loader), iter(loader)
    loader.set_epoch(9)
    assert same(values(one), reference[0]) and same(values(two), reference[1])


def test_a_state_of_a_resumed_epoch_stays_right_when_the_next_epoch_is_told(folder: Path):
    reference = values(loader_of(ImageFolder(str(folder), RANDOM)))
    first, second = (loader_of(ImageFolder(str(folder), RANDOM)) for _ in range(2))
    batches = iter(first)
    for _ in range(3):
        next(batches)
    second.load_state_dict(first.state_dict())
    batches = iter(second)
    for _ in range(2):
        next(batches)
    second.set_epoch(1)
    third = loader_of(ImageFolder(str(folder), RANDOM))
    third.load_state_dict(second.state_dict())
    assert same(values(third), reference[5:])
