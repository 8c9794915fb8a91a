"""A loader as an object: subclasses, copies, pickles, and rebuilding from attributes as training frameworks do it."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

import gpuload
from tests.conformance.harness import (
    REQUIRED,
    Make,
    Route,
    attempt,
    attributes,
    differences,
    in_forked_child,
    named,
    observe,
    outcomes,
    train,
)
from tests.conformance.sample_data import COUNT, Encoded, Plain, image_folder


@pytest.fixture
def encoded(images: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(images.glob("*/*.jpg"))]


@pytest.fixture(params=["torch", "accelerated"])
def arguments(request: pytest.FixtureRequest, encoded: list[bytes]) -> dict[str, Any]:
    """Data of either kind, and for gpuload's class alone the options that its route takes (see `build`)."""
    kind = Encoded if request.param == "accelerated" else Plain
    return {"dataset": kind(encoded), "options": REQUIRED if kind is Encoded else {}}


def build(cls: type, arguments: dict[str, Any], **more: Any) -> Any:
    options = arguments["options"] if issubclass(cls, gpuload.DataLoader) else {}
    return cls(arguments["dataset"], **more, **options)


def both(arguments: dict[str, Any], scenario: Callable[[Any], Any]) -> None:
    """As `Route.same` for scenarios that need the class itself: the scenario builds loaders through `build`."""
    theirs, ours = observe(scenario, TorchDataLoader), observe(scenario, gpuload.DataLoader)
    found = list(differences(theirs, ours, "trace"))
    assert not found, "gpuload differs from torch:\n" + "\n".join(found)


def on_route(loader: Any, arguments: dict[str, Any]) -> bool:
    """Whether a gpuload loader is on its route (torch's is on none)."""
    if not isinstance(loader, gpuload.DataLoader):
        return True
    return loader.plan().accelerated is bool(arguments["options"])


def test_it_is_torchs_class():
    assert issubclass(gpuload.DataLoader, TorchDataLoader)
    assert gpuload.DataLoader is not TorchDataLoader
    assert gpuload.DataLoader.__name__ == "DataLoader"


def test_isinstance_and_weak_references(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data)
        other = DataLoader(route.data)
        return isinstance(loader, TorchDataLoader), weakref.ref(loader)() is loader, loader == other, bool(loader)

    route.same(scenario)


def test_generic_alias(arguments: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        class Typed(cls[int]):
            pass

        return list(build(Typed, arguments, batch_size=9)), cls[int].__origin__ is cls, cls[str] == cls[str]

    both(arguments, scenario)
    alias: Any = gpuload.DataLoader
    assert isinstance(alias[int](arguments["dataset"]), gpuload.DataLoader)


def test_subclass_that_adds_to_iter_and_len(arguments: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        class Doubling(cls):
            def __iter__(self) -> Iterator[Any]:
                for batch in super().__iter__():
                    yield batch
                    yield batch

            def __len__(self) -> int:
                return 2 * super().__len__()

        loader = build(Doubling, arguments, batch_size=10, shuffle=True)
        assert on_route(loader, arguments)
        return list(loader), len(loader), attributes(loader)

    both(arguments, scenario)


def test_subclass_with_a_signature_of_its_own(arguments: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        class Short(cls):
            def __init__(self, data: Any, size: int, **options: Any):
                self.early = "set before torch's constructor"
                self.batch_size = 3
                super().__init__(data, batch_size=size, shuffle=True, **options)
                self.late = "set after it"

        options = arguments["options"] if issubclass(cls, gpuload.DataLoader) else {}
        loader = Short(arguments["dataset"], 7, **options)
        assert on_route(loader, arguments)
        forbidden = attempt(lambda: setattr(loader, "batch_size", 4))
        return loader.early, loader.late, loader.batch_size, list(loader), forbidden

    both(arguments, scenario)


def test_subclass_that_is_itself_named_dataloader(arguments: dict[str, Any]):
    """Its double-underscore names are mangled as torch's are."""

    def scenario(cls: Any) -> Any:
        class DataLoader(cls):
            def __init__(self, *args: Any, **kwargs: Any):
                super().__init__(*args, **kwargs)
                self.__mine = 5

            def mine(self) -> int:
                return self.__mine

        loader = build(DataLoader, arguments, batch_size=5, num_workers=1)
        guarded = [attempt(partial(setattr, loader, name, None)) for name in ("dataset", "sampler")]
        return loader.mine(), guarded, list(loader), loader.multiprocessing_context, attributes(loader)

    both(arguments, scenario)


def test_subclass_that_wraps_get_iterator(arguments: dict[str, Any]):
    """`_get_iterator` is private, yet a known place to hook in: what it returns is what `iter` gives."""

    def scenario(cls: Any) -> Any:
        class Hooked(cls):
            asked = 0

            def __iter__(self) -> Any:
                self.asked += 1
                return super().__iter__()

        loader = build(Hooked, arguments, batch_size=11)
        return [list(loader), list(loader), loader.asked]

    both(arguments, scenario)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "pickle, protocol 2": lambda loader: pickle.loads(pickle.dumps(loader, 2)),
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"batch_size": 5, "shuffle": True},
        {"batch_size": 5, "num_workers": 0},
        {"batch_size": 5, "num_workers": 1, "prefetch_factor": 3, "timeout": 30},
        {"batch_size": None},
        {"batch_sampler": [[1, 2], [3]]},
    ],
    ids=named,
)
@pytest.mark.parametrize("name", COPIES)
def test_copies_load_what_the_original_loads(arguments: dict[str, Any], name: str, more: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        loader = build(cls, arguments, **more)
        twin = COPIES[name](loader)
        assert type(twin) is cls
        assert on_route(twin, arguments)
        guarded = attempt(lambda: setattr(twin, "batch_size", 2))
        return list(twin), guarded, attributes(twin), list(loader)

    both(arguments, scenario)


@pytest.mark.parametrize("name", COPIES)
def test_copies_after_and_during_an_epoch(arguments: dict[str, Any], name: str):
    def scenario(cls: Any) -> Any:
        loader = build(cls, arguments, batch_size=5, shuffle=True)
        iterator = iter(loader)
        next(iterator)
        twin = COPIES[name](loader)
        list(iterator)
        return list(twin), list(COPIES[name](loader)), list(loader)

    both(arguments, scenario)


def test_deep_copies_have_their_own_generator(arguments: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        loader = build(cls, arguments, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(6))
        twin = copy.deepcopy(loader)
        return list(loader), list(twin), loader.generator, twin.generator

    both(arguments, scenario)


def test_a_persistent_iterator_keeps_a_loader_from_being_pickled(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.built(), batch_size=12, num_workers=1, persistent_workers=True)
        before = list(pickle.loads(pickle.dumps(loader)))
        iterator = iter(loader)
        return before, type(attempt(lambda: pickle.dumps(loader)).error), list(iterator)

    route.same(scenario)


def rebuilt(loader: Any, **changed: Any) -> Any:
    """Another loader of the same class from public attributes named as the constructor's parameters.

    It is what Lightning does to put in a sampler of its own.
    """
    known = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    known["multiprocessing_context"] = loader.multiprocessing_context
    parameters = inspect.signature(type(loader).__init__).parameters
    given = {name: known[name] for name in parameters if name in known}
    if given.get("batch_sampler") is not None:
        del given["batch_sampler"]
    return type(loader)(**{**given, **changed})


@pytest.mark.parametrize(
    "more",
    [
        {"batch_size": 5},
        {"batch_size": 5, "shuffle": True, "drop_last": True},
        {"batch_size": 5, "num_workers": 0},
        {"batch_size": 5, "num_workers": 1, "persistent_workers": True, "prefetch_factor": 3},
        {"batch_size": 5, "collate_fn": list, "generator": torch.Generator()},
        {"batch_size": None},
    ],
    ids=named,
)
def test_rebuilding_from_attributes(arguments: dict[str, Any], more: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        loader = build(cls, arguments, **more)
        again = rebuilt(rebuilt(loader))
        assert on_route(again, arguments)
        sampler: Any = DistributedSampler(arguments["dataset"], num_replicas=2, rank=1, seed=4)
        sharded = rebuilt(loader, sampler=sampler)
        assert on_route(sharded, arguments)
        return attributes(again), list(again), attributes(sharded), list(sharded)

    both(arguments, scenario)


def test_rebuilding_keeps_what_gpuload_adds(images: Path):
    loader = gpuload.DataLoader(
        image_folder(images),
        batch_size=5,
        device="cpu",
        decoder="native",
        on_error="skip",
        seed=3,
        accelerate="require",
        progress=False,
    )
    again = rebuilt(rebuilt(loader))
    for name in ("device", "dtype", "memory_format", "decoder", "on_error", "seed", "order", "accelerate", "progress"):
        assert getattr(again, name) == getattr(loader, name), name
    assert type(again.num_workers) is type(loader.num_workers)
    assert again.plan().accelerated


@pytest.mark.parametrize("name", [*COPIES, "rebuilt"])
def test_an_automatic_worker_count_survives(images: Path, name: str):
    """It equals torch's default and is told from a 0 that was asked for by its type."""
    copied = {**COPIES, "rebuilt": rebuilt}[name]
    automatic = gpuload.DataLoader(image_folder(images), batch_size=5, **REQUIRED)
    none = gpuload.DataLoader(image_folder(images), batch_size=5, num_workers=0, **REQUIRED)
    assert automatic.num_workers == none.num_workers == 0
    assert isinstance(automatic.num_workers, int)
    assert type(automatic.num_workers) is not int
    assert type(none.num_workers) is int
    assert type(copied(automatic).num_workers) is type(automatic.num_workers)
    assert type(copied(none).num_workers) is int
    assert type(pickle.loads(pickle.dumps(automatic.num_workers))) is type(automatic.num_workers)


def test_batch_samplers_can_be_rebuilt(arguments: dict[str, Any]):
    """As Lightning and Accelerate rebuild a batch sampler around another sampler."""

    def scenario(cls: Any) -> Any:
        loader = build(cls, arguments, batch_sampler=BatchSampler(SequentialSampler(range(COUNT)), 7, True))
        old = loader.batch_sampler
        new = type(old)(RandomSampler(range(COUNT)), old.batch_size, old.drop_last)
        sharded = build(cls, arguments, batch_sampler=new)
        return train(sharded, 2), len(sharded), sharded.batch_size, outcomes(iter(loader))

    both(arguments, scenario)


def test_loaders_can_be_handed_to_another_process(arguments: dict[str, Any]):
    def scenario(cls: Any) -> Any:
        loader = build(cls, arguments, batch_size=9)
        sent = pickle.dumps(loader)
        return in_forked_child(lambda: list(pickle.loads(sent))), list(loader)

    both(arguments, scenario)
