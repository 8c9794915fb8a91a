"""num_workers and what hangs on it: processes where they are asked for, threads elsewhere, time limits, forks."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

import gpuload
from tests.conformance.harness import (
    REQUIRED,
    Make,
    Raised,
    Route,
    assert_same,
    attempt,
    in_forked_child,
    named,
    outcomes,
    train,
)
from tests.conformance.sample_data import COUNT, Counting, Eager, Sized, Wandering, image_folder

CPU = {"device": "cpu", "decoder": "native"}


class Witness(Dataset):
    """Each sample tells which worker made it, with which seeds and draws."""

    def __init__(self, count: int = 8):
        self.count, self.note = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        worker = get_worker_info()
        where = (-1, 0) if worker is None else (worker.id, worker.num_workers)
        return i, where, self.note, torch.initial_seed() % 2**31, torch.rand(2), random.random(), np.random.rand()


def set_note(worker_id: int) -> None:
    worker = get_worker_info()
    assert worker is not None
    worker.dataset.note = 100 + worker_id  # type: ignore[attr-defined]


def refuse_to_start(worker_id: int) -> None:
    raise RuntimeError("this worker will not start")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "worker_init_fn": set_note},
        {"num_workers": 1, "worker_init_fn": refuse_to_start},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 0, "worker_init_fn": refuse_to_start},
    ],
    ids=named,
)
def test_the_fallback_route_has_torchs_workers(fallback: Route, arguments: dict[str, Any]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(Witness(), batch_size=2, shuffle=True, **arguments)
        return [outcomes(iter(loader)) for _ in range(2)]

    fallback.same(scenario)


@pytest.mark.parametrize("arguments", [{"worker_init_fn": set_note}, {"multiprocessing_context": "fork"}], ids=named)
def test_processes_that_are_asked_for_are_given(images: Path, arguments: dict[str, Any]):
    """An image folder that would be accelerated, and is not: the argument's effect inside the worker is seen."""

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(image_folder(images), batch_size=9, shuffle=True, num_workers=1, **arguments)
        return train(loader)

    assert_same(scenario, taken="torch", **CPU)


@pytest.mark.parametrize("arguments", [{"worker_init_fn": set_note}, {"multiprocessing_context": "fork"}], ids=named)
def test_processes_cannot_be_had_where_acceleration_is_required(images: Path, arguments: dict[str, Any]):
    def take_a_batch() -> Any:
        return next(iter(gpuload.DataLoader(image_folder(images), num_workers=1, **arguments, **REQUIRED)))

    with pytest.raises(gpuload.NotAcceleratedError, match=next(iter(arguments))):
        take_a_batch()


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(1, 1), (1, 4), (2, 2), (1, 50)])
@pytest.mark.parametrize("sampler", [Wandering, Eager])
def test_ids_are_pulled_as_far_ahead_as_torch_pulls_them(
    route: Route, sampler: Any, num_workers: int, prefetch_factor: int
):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(
            route.data,
            batch_size=3,
            sampler=sampler(COUNT),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
        )
        iterator = iter(loader)
        seen = [torch.rand(1), next(iterator), torch.rand(1)]
        return seen, train(loader, 1), torch.rand(1), next(iterator)

    route.same(scenario)


def test_persistent_workers(route: Route):
    """One iterator object; the base seed is drawn once; each `iter` starts the epoch anew, also in its middle."""

    def scenario(DataLoader: Make) -> Any:
        generator = torch.Generator().manual_seed(2)
        loader = DataLoader(
            route.data, batch_size=5, shuffle=True, num_workers=2, persistent_workers=True, generator=generator
        )
        first = iter(loader)
        seen = [next(first), generator.get_state()]
        again = iter(loader)
        assert again is first
        seen += [list(again), generator.get_state(), attempt(lambda: next(first)), attempt(lambda: next(first))]
        seen += train(loader, 2, generator)
        return seen, iter(loader) is first, next(first)

    route.same(scenario)


@pytest.mark.parametrize("sampler", [Wandering, Eager])
def test_persistent_workers_with_global_draws(route: Route, sampler: Any):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=7, sampler=sampler(COUNT), num_workers=1, persistent_workers=True)
        next(iter(loader))
        return train(loader, 2), torch.rand(1)

    route.same(scenario)


def test_persistent_workers_keep_the_data_of_their_start(fallback: Route):
    """torch's processes hold a copy."""

    def scenario(DataLoader: Make) -> Any:
        data = Witness(4)
        loader = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)
        seen = [list(loader)]
        data.note = 5
        return [*seen, list(loader)]

    fallback.same(scenario)


def test_persistent_workers_and_errors(route: Route):
    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:9], broken={5: lambda: ValueError("five")})
        loader = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)
        return [outcomes(iter(loader)) for _ in range(2)]

    route.same(scenario)


def test_in_order_false_gives_the_same_batches(route: Route):
    """In whatever order: compared by their contents' order."""

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=5, shuffle=True, num_workers=2, in_order=False)
        return [sorted(loader, key=lambda batch: float(batch[0].double().sum())) for _ in range(2)]

    route.same(scenario)


@pytest.mark.parametrize("arguments", [{"num_workers": 0, "timeout": 1}, {"num_workers": 0, "timeout": 0.5}], ids=named)
def test_a_timeout_needs_workers(route: Route, arguments: dict[str, Any]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=5, **arguments)
        return attempt(lambda: iter(loader)), len(loader), loader.timeout

    route.same(scenario)


def test_a_timeout_that_is_not_reached(route: Route):
    route.same(lambda DataLoader: list(DataLoader(route.data, batch_size=5, num_workers=1, timeout=60)))


def test_a_timeout_that_is_reached(route: Route):
    """The first sample waits until the loader has given up; the batch still comes to whoever asks again."""
    gate = threading.Event()

    def waiting(i: int, image: Any) -> Any:
        if i == 0:
            gate.wait(1.5)
        return image, i

    def scenario(DataLoader: Make) -> Any:
        gate.clear()
        data = route.built(waiting, files=route.encoded[:5])
        iterator = iter(DataLoader(data, batch_size=3, num_workers=1, timeout=0.25))
        first = attempt(lambda: next(iterator))
        gate.set()
        later = [seen for seen in outcomes(iterator) if not isinstance(seen, Raised)]
        return first, later

    route.same(scenario)


def test_iterable_data_is_split_by_worker(fallback: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(Counting(11), batch_size=2, num_workers=2)
        odd = DataLoader(Counting(11), batch_size=None, num_workers=2, prefetch_factor=1, drop_last=False)
        return [list(loader), outcomes(iter(odd))]

    fallback.same(scenario)


def test_iterable_data_that_is_longer_than_it_said_with_workers(fallback: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(Sized(9, claimed=4), batch_size=2, num_workers=1)
        return len(loader), list(loader)

    fallback.same(scenario)


# Forks: another loader's workers start while this one's threads run, and a child uses what its parent made.


@pytest.mark.parametrize("workers", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=["automatic", "0", "1"])
def test_forked_workers_of_another_loader_during_an_epoch(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        other = TorchDataLoader(route.built(files=route.encoded[:8]), batch_size=4, num_workers=1)
        loader = DataLoader(route.data, batch_size=9, shuffle=True, **workers)
        return [(batch, list(other)) for batch in loader]

    route.same(scenario)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=["automatic", "0", "1"])
@pytest.mark.parametrize("started", [False, True], ids=["before the epoch", "in mid-epoch"])
def test_a_forked_child_iterates_the_loader_itself(route: Route, started: bool, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=9, **workers)
        iterator = iter(loader) if started else iter(())
        first = next(iterator, None)
        return first, in_forked_child(lambda: list(loader)), list(iterator), list(loader)

    route.same(scenario)


class Nested(Dataset):
    """A data set that loads its samples with a loader of its own, inside the worker of another one."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return [images.mean() + i for images, _ in self.inner]


def test_a_loader_inside_another_loaders_worker(route: Route):
    def scenario(DataLoader: Make) -> Any:
        inner = DataLoader(route.data, batch_size=9, num_workers=0)
        outside = list(inner)
        return outside, list(TorchDataLoader(Nested(inner), batch_size=None, num_workers=1))

    route.same(scenario)
