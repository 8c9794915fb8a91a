"""Which samples come, in which order, and what that draws from which generator: bit for bit as torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import (
    DataLoader as TorchDataLoader,
)

import gpuload
from tests.conformance.harness import Make, Route, attempt, outcomes, train
from tests.conformance.sample_data import COUNT, Breaking, Eager, Wandering

WORKERS: list[dict[str, int]] = [{}, {"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 2}]
"""Left out (automatic in gpuload, none in torch), none, and one: processes are dear, so two only where they matter."""

every_worker_count = pytest.mark.parametrize("workers", WORKERS, ids=["automatic", "0", "1"])


def counterpart(
    DataLoader: Make, route: Route, workers: dict[str, int], rows: int, shared: bool = True
) -> dict[str, int]:
    """The workers with which torch pulls ids as far ahead as gpuload does.

    Where num_workers is left out, gpuload pulls `depth` + 1 batches of `rows` ids ahead from the first next() on. That
    shows only in a generator that the sampler shares with somebody (`shared`): there it is what one torch worker does.
    """
    if workers or not shared or route.name != "accelerated" or DataLoader is not TorchDataLoader:
        return workers
    return {"num_workers": 1, "prefetch_factor": gpuload.DataLoader(route.data, batch_size=rows).depth + 1}


def seeded(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "random": lambda data: RandomSampler(data),
    "random, fewer": lambda data: RandomSampler(data, num_samples=10),
    "random, more": lambda data: RandomSampler(data, num_samples=61),
    "replacement": lambda data: RandomSampler(data, replacement=True, num_samples=70),
    "own generator": lambda data: RandomSampler(data, generator=seeded()),
    "replacement, own generator": lambda data: RandomSampler(data, True, 70, seeded()),
    "subset": lambda data: SubsetRandomSampler([1, 3, 5, 7, 20, 3]),
    "subset, own generator": lambda data: SubsetRandomSampler(range(2, 19), seeded()),
    "weighted": lambda data: WeightedRandomSampler(torch.rand(COUNT, generator=seeded()).tolist(), 30),
    "weighted, own generator": lambda data: WeightedRandomSampler([1.0, 5.0, 0.0, 2.0], 3, False, seeded()),
    "list": lambda data: [4, 4, 0, 19],
    "range": lambda data: range(20, 3, -3),
    "array": lambda data: np.array([3, 1, 2], np.int32),
    "tensor": lambda data: torch.tensor([3, 1, 2]),
    "lazy global draws": lambda data: Wandering(COUNT),
    "eager global draws": lambda data: Eager(COUNT),
}


@every_worker_count
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_while_training_draws_too(route: Route, name: str, workers: dict[str, int]):
    """Two epochs, with what the sampler and its generator are left with."""

    def scenario(DataLoader: Make) -> Any:
        sampler = SAMPLERS[name](route.data)
        pulled = counterpart(DataLoader, route, workers, 7, shared=name == "lazy global draws")
        loader = DataLoader(route.data, batch_size=7, sampler=sampler, **pulled)
        return train(loader), getattr(sampler, "generator", None)

    route.same(scenario)


@every_worker_count
@pytest.mark.parametrize("with_generator", [False, True])
def test_shuffle_over_epochs(route: Route, with_generator: bool, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        generator = seeded() if with_generator else None
        pulled = counterpart(DataLoader, route, workers, 5, shared=with_generator)
        loader = DataLoader(route.data, batch_size=5, shuffle=True, generator=generator, **pulled)
        return train(loader, 3, generator)

    route.same(scenario)


@every_worker_count
def test_generator_without_shuffle_gives_the_base_seed(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        generator = seeded()
        return train(DataLoader(route.data, batch_size=9, generator=generator, **workers), 2, generator), generator

    route.same(scenario)


@every_worker_count
def test_one_generator_for_sampler_and_loader(route: Route, workers: dict[str, int]):
    """Replacement draws 32 ids at a time, so that the state between batches shows how far ahead ids are pulled."""

    def scenario(DataLoader: Make) -> Any:
        generator = seeded()
        sampler = RandomSampler(range(COUNT), replacement=True, num_samples=100, generator=generator)
        pulled = counterpart(DataLoader, route, workers, 10)
        loader = DataLoader(route.data, batch_size=10, sampler=sampler, generator=generator, **pulled)
        return train(loader, 2, generator)

    route.same(scenario)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_distributed_sampler(route: Route, rank: int, drop_last: bool):
    def scenario(DataLoader: Make) -> Any:
        sampler: Any = DistributedSampler(route.data, num_replicas=5, rank=rank, seed=9, drop_last=drop_last)
        loader = DataLoader(route.data, batch_size=2, sampler=sampler)
        seen = [len(loader)]
        for epoch in (0, 1, 1, 7):
            sampler.set_epoch(epoch)
            seen += list(loader)
        return seen

    route.same(scenario)


def test_set_epoch_between_epochs_is_seen_with_workers(route: Route):
    """Work ahead over the epoch's end would use the old epoch's number."""

    def scenario(DataLoader: Make) -> Any:
        sampler: Any = DistributedSampler(route.data, num_replicas=2, rank=1)
        loader = DataLoader(route.data, batch_size=5, sampler=sampler, num_workers=2, persistent_workers=True)
        seen = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen += list(loader)
        return seen

    route.same(scenario)


class Odd:
    """A batch sampler of the user's own: batches of changing sizes, ids of changing types."""

    def __iter__(self) -> Iterator[Any]:
        yield [0]
        yield (5, 6, 7)
        yield np.array([2, 9])
        yield torch.tensor([3, 3])
        yield range(4, 8)
        yield [np.int64(1), torch.tensor(2), True, -1]


@every_worker_count
@pytest.mark.parametrize(
    "make_batches",
    [
        lambda: [[0, 2], [], [1]],
        lambda: [[0, 2, 4], [1], [20, 21, 22, 23]],
        lambda: iter([[3, 1], [2]]),
        lambda: ([i, i + 1] for i in range(4)),
        lambda: BatchSampler(Wandering(20), 6, True),
        lambda: BatchSampler(range(9), 4, False),
        Odd,
    ],
    ids=["with an empty batch", "list", "iterator", "generator", "BatchSampler, global draws", "BatchSampler", "class"],
)
def test_batch_samplers(route: Route, make_batches: Callable[[], Any], workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_sampler=make_batches(), **workers)
        return [outcomes(iter(loader)) for _ in range(2)], loader.batch_size, loader.drop_last

    route.same(scenario)


@pytest.mark.parametrize(
    "ids",
    [
        [0, -1, 23, -24],
        [3, 24, 5, 6],
        [3, -25, 5, 6],
        [1, 10**9, 2, 3],
        [1, 2**70, 2, 3],
        [np.int8(3), np.uint64(4), np.int64(-2), 1],
        [torch.tensor(7), torch.tensor(7, dtype=torch.int32), torch.tensor([2]), 0],
        [True, False, True, 2],
    ],
    ids=["negative", "too large", "too small", "far too large", "beyond int64", "numpy", "tensors", "bools"],
)
def test_ids_of_every_kind(route: Route, ids: list[Any]):
    def scenario(DataLoader: Make) -> Any:
        batched = DataLoader(route.data, sampler=ids, batch_size=2, num_workers=0)
        single = DataLoader(route.data, sampler=ids, batch_size=None, num_workers=0)
        return outcomes(iter(batched)), outcomes(iter(single))

    route.same(scenario)


@pytest.mark.parametrize("ids", [[1.0, 2.0], ["1", "2"], [None, 3], [(1, 2), 3]], ids=str)
def test_ids_that_are_no_numbers(route: Route, ids: list[Any]):
    route.same(lambda DataLoader: outcomes(iter(DataLoader(route.data, sampler=ids, num_workers=0))))


@every_worker_count
@pytest.mark.parametrize("good", [0, 4, 11])
def test_samplers_that_raise_in_mid_epoch(route: Route, good: int, workers: dict[str, int]):
    """torch raises where it asks for the next ids, be it in `iter` or one batch before they are due, and goes on."""

    def scenario(DataLoader: Make) -> Any:
        iterator = attempt(lambda: iter(DataLoader(route.data, sampler=Breaking(good), batch_size=2, **workers)))
        return outcomes(iterator) if hasattr(iterator, "__next__") else iterator

    route.same(scenario)


def test_samplers_that_cannot_iterate(route: Route):
    def scenario(DataLoader: Make) -> Any:
        class Silent:
            def __iter__(self) -> Iterator[int]:
                raise LookupError("no order today")

        loaders = [DataLoader(route.data, sampler=sampler) for sampler in (5, Silent())]
        return [attempt(partial(list, loader)) for loader in loaders]

    route.same(scenario)


@every_worker_count
def test_peeking_draws_what_torch_draws(route: Route, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=4, shuffle=True, **workers)
        peeks = [next(iter(loader)) for _ in range(3)]
        return peeks, train(loader, 1), torch.rand(1)

    route.same(scenario)


def test_iterators_that_are_never_asked_draw_what_torch_draws(route: Route):
    def scenario(DataLoader: Make) -> Any:
        generator = seeded()
        loader = DataLoader(route.data, batch_size=4, sampler=Eager(COUNT), generator=generator, num_workers=0)
        iterators = [iter(loader) for _ in range(3)]
        return torch.rand(1), generator, list(iterators[1])

    route.same(scenario)


def test_constructing_draws_nothing(route: Route):
    route.same(lambda DataLoader: attempt(lambda: len(DataLoader(route.data, shuffle=True, num_workers=2))))
