"""Epochs: what iterators give and how they end, data sets that change, several iterators and loaders at once."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms

from tests.conformance.harness import REQUIRED, Make, Raised, Route, assert_same, attempt, named, outcomes, train
from tests.conformance.sample_data import COUNT, Counting, Encoded, Plain, Sized, image_folder, small

ANY = {"device": "cpu", "decoder": "native"}

KINDS: dict[str, Callable[[Path], Any]] = {
    "tensors": lambda root: TensorDataset(torch.arange(COUNT * 2.0).view(COUNT, 2), torch.arange(COUNT)),
    "list": lambda root: [(float(i), str(i)) for i in range(COUNT)],
    "plain": lambda root: Plain(_files(root)),
    "folder": image_folder,
    "subset": lambda root: Subset(image_folder(root), [5, 2, 2, 17, 23, 0, 8]),
    "subset of a subset": lambda root: Subset(Subset(image_folder(root), range(3, 20)), [16, 1, 4]),
    "encoded": lambda root: Encoded(_files(root)),
    "subset of encoded": lambda root: Subset(Encoded(_files(root)), [5, 2, 2, 17]),
}


def _files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.glob("*/*.jpg"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 5},
        {"batch_size": 5, "drop_last": True},
        {"batch_size": COUNT},
        {"batch_size": 1000},
        {"batch_size": 1000, "drop_last": True},
        {"batch_size": None},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 7, "shuffle": True},
        {"batch_size": 7, "shuffle": True, "num_workers": 0},
        {"batch_size": 7, "shuffle": True, "num_workers": 1},
    ],
    ids=named,
)
def test_every_kind_of_data(images: Path, kind: str, arguments: dict[str, Any]):
    taken = "torch" if kind in ("tensors", "list", "plain") else "accelerated"
    data = KINDS[kind](images)

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(data, **arguments)
        return len(loader), [list(loader) for _ in range(2)]

    assert_same(scenario, taken=taken, **({} if taken == "torch" else REQUIRED))


def test_concatenated_data(images: Path):
    """Whether a ConcatDataset is understood or not, its batches are torch's."""
    data: Any = ConcatDataset([image_folder(images), Subset(image_folder(images), [3, 1])])
    assert_same(lambda DataLoader: list(DataLoader(data, batch_size=9)), taken=None, **ANY)


every_worker_count = pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=["automatic", "0", "1"]
)


@every_worker_count
def test_iterators_end_and_stay_ended(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=9, **workers)
        iterator = iter(loader)
        assert iter(iterator) is iterator
        seen = [next(iterator), len(iterator), list(iterator), len(iterator)]
        return seen, [attempt(lambda: next(iterator)) for _ in range(3)], next(iterator, "default")

    route.same(scenario)


@every_worker_count
def test_iterators_do_not_pickle_or_copy(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        iterator = iter(DataLoader(route.data, batch_size=9, **workers))
        tried = [attempt(lambda: pickle.dumps(iterator)), attempt(lambda: copy.deepcopy(iterator))]
        assert all(isinstance(t, Raised) for t in tried)
        return [(type(t.error), t.error.args[0]) for t in tried], list(iterator)

    route.same(scenario)


@every_worker_count
def test_leaving_an_epoch_early(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=2, shuffle=True, **workers)
        seen = []
        for stop in (0, 3, 1):
            for i, batch in enumerate(loader):
                seen.append(batch)
                if i == stop:
                    break
        return seen, train(loader, 1)

    route.same(scenario)


@every_worker_count
def test_interleaved_iterators_of_one_loader(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=6, shuffle=True, **workers)
        a, b = iter(loader), iter(loader)
        seen = [next(a), next(b), next(b), next(a), torch.rand(1)]
        c = iter(loader)
        return seen, next(c), outcomes(b), outcomes(a), outcomes(c)

    route.same(scenario)


@every_worker_count
def test_two_loaders_at_once(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        first = DataLoader(route.data, batch_size=6, shuffle=True, **workers)
        second = DataLoader(route.built(files=route.encoded[3:]), batch_size=5, shuffle=True, **workers)
        seen = list(zip(first, second, strict=False))
        for batch in first:
            seen.append((batch, next(iter(second))))
        return seen

    route.same(scenario)


@every_worker_count
def test_a_validation_loader_inside_a_training_epoch(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        training = DataLoader(route.data, batch_size=8, shuffle=True, **workers)
        validation = DataLoader(route.built(), batch_size=11, **workers)
        return [(batch, torch.rand(1), list(validation)) for batch in training]

    route.same(scenario)


def test_a_loader_as_the_dataset_of_an_enumerate_and_zip_with_itself(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=10, shuffle=True)
        return list(enumerate(zip(loader, loader, strict=True))), [*map(type, loader)]

    route.same(scenario)


def test_batches_belong_to_the_caller(route: Route):
    """Writing into one batch shows in no other, nor in the next epoch."""

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.built(), batch_size=4)
        seen = []
        for images, labels in loader:
            seen.append((images.clone(), labels.clone()))
            images.fill_(-5)
            labels.zero_()
            seen.append((images.flatten()[:3], labels))
        return seen, list(loader)

    route.same(scenario)


def test_iteration_in_another_thread(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=7, shuffle=True)
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.extend(loader))
        thread.start()
        thread.join()
        return seen

    route.same(scenario)


def test_loaders_and_iterators_are_collected(route: Route):
    def scenario(DataLoader: Make) -> Any:
        data = route.built()
        loader = DataLoader(data, batch_size=4)
        iterator = iter(loader)
        next(iterator)
        watched = weakref.ref(iterator), weakref.ref(data)
        del iterator
        gc.collect()
        return [watched[0]() is None, watched[1]() is data]

    route.same(scenario)


# What changes between epochs is seen by the next one, and `len` is live.


def test_growing_and_shrinking_data(route: Route):
    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:5])
        loaders = [DataLoader(data, batch_size=3), DataLoader(data, batch_size=3, shuffle=True, drop_last=True)]
        seen: list[Any] = []
        for size in (5, 11, 24, 4, 0, 6):
            data.files[:] = route.encoded[:size]
            seen += [(len(loader), attempt(partial(list, loader))) for loader in loaders]
        return seen

    route.same(scenario)


def test_an_image_folder_that_changes(images: Path):
    def scenario(DataLoader: Make) -> Any:
        data = image_folder(images)
        loader = DataLoader(data, batch_size=9)
        seen: list[Any] = [list(loader)]
        data.samples.append((data.samples[0][0], 77))
        seen += [len(loader), list(loader)]
        data.samples = data.imgs = data.samples[5:9]
        seen += [len(loader), list(loader)]
        data.samples[1] = (data.samples[2][0], 5)
        return [*seen, list(loader)]

    assert_same(scenario, taken="accelerated", **REQUIRED)


def test_a_subset_that_changes(images: Path):
    def scenario(DataLoader: Make) -> Any:
        data = Subset(image_folder(images), [1, 2, 3])
        loader = DataLoader(data, batch_size=2)
        seen: list[Any] = [list(loader)]
        data.indices = [7, 9, 20, 4, 4]
        return [*seen, len(loader), list(loader)]

    assert_same(scenario, taken="accelerated", **REQUIRED)


@pytest.mark.parametrize("kind", ["folder", "subset", "encoded"])
def test_a_transform_that_changes(images: Path, kind: str):
    """Progressive resizing; then a transform that nobody has seen before."""

    def scenario(DataLoader: Make) -> Any:
        data = KINDS[kind](images)
        owner = data.dataset if kind == "subset" else data
        loader = DataLoader(data, batch_size=9)
        seen: list[Any] = [list(loader)]
        for size in (8, 11):
            owner.transform = transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])
            seen.append(list(loader))
        owner.transform = transforms.Compose([*small().transforms, lambda x: x.sum()])
        return [*seen, list(loader)]

    assert_same(scenario, taken=None, **ANY)


def test_an_image_folders_own_loader_that_changes(images: Path):
    def scenario(DataLoader: Make) -> Any:
        data = image_folder(images)
        loader = DataLoader(data, batch_size=9)
        seen: list[Any] = [list(loader)]
        original = data.loader
        data.loader = lambda path: original(path).rotate(90)
        return [*seen, list(loader)]

    assert_same(scenario, taken=None, **ANY)


def test_data_that_shrinks_in_mid_epoch(route: Route):
    def scenario(DataLoader: Make) -> Any:
        data = route.built()
        iterator = iter(DataLoader(data, batch_size=5, num_workers=0))
        seen = [next(iterator)]
        del data.files[12:]
        return seen, outcomes(iterator)

    route.same(scenario)


def test_a_transform_that_changes_in_mid_epoch(images: Path):
    """With workers it counts from the next epoch on: torch's hold a copy, gpuload's plan is made in `iter`."""

    def scenario(DataLoader: Make) -> Any:
        data = image_folder(images)
        loader = DataLoader(data, batch_size=5, num_workers=1)
        iterator = iter(loader)
        seen = [next(iterator)]
        data.transform = transforms.Compose([transforms.Resize((9, 9)), transforms.ToTensor()])
        return seen, list(iterator), list(loader)

    assert_same(scenario, taken="accelerated", **REQUIRED)


def test_settings_that_change(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=6, shuffle=True, num_workers=1)
        seen: list[Any] = [list(loader)]
        loader.num_workers = 0
        seen.append(list(loader))
        loader.collate_fn = list
        seen.append(list(loader))
        loader.batch_sampler.batch_size = 11
        seen += [len(loader), list(loader)]
        loader.batch_sampler.drop_last = True
        seen += [len(loader), list(loader)]
        loader.batch_sampler.sampler = range(4, 20)
        seen += [len(loader), list(loader)]
        loader.generator = torch.Generator().manual_seed(3)
        return seen, list(loader), loader.generator

    route.same(scenario)


def test_a_generator_that_is_seeded_anew(route: Route):
    def scenario(DataLoader: Make) -> Any:
        generator = torch.Generator()
        loader = DataLoader(route.data, batch_size=6, shuffle=True, generator=generator)
        seen = []
        for seed in (1, 2, 1):
            generator.manual_seed(seed)
            seen.append(list(loader))
        return seen

    route.same(scenario)


def test_pinned_memory_without_an_accelerator(route: Route):
    def scenario(DataLoader: Make) -> Any:
        plain = list(DataLoader(route.data, batch_size=9, pin_memory=True))
        named = list(DataLoader(route.data, batch_size=9, pin_memory=True, pin_memory_device="cuda"))
        unused = list(DataLoader(route.data, batch_size=9, pin_memory_device="cuda"))
        return plain, named, unused

    route.same(scenario)


def test_iterable_data(fallback: Route):
    def scenario(DataLoader: Make) -> Any:
        loaders = [
            DataLoader(Counting(10), batch_size=3),
            DataLoader(Counting(10), batch_size=3, drop_last=True),
            DataLoader(Counting(10), batch_size=None),
            DataLoader(Counting(10), batch_size=4, shuffle=False, collate_fn=list),
            DataLoader(Counting(0)),
        ]
        return [outcomes(iter(loader)) for loader in loaders]

    fallback.same(scenario)


def test_iterable_data_that_is_longer_than_it_said(fallback: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(Sized(10, claimed=3), batch_size=2)
        before = list(loader)
        return before, len(loader), list(loader)

    fallback.same(scenario)
