"""Arguments, their errors in torch's order, the attributes that follow from them, and which of these may change."""

from __future__ import annotations

import inspect
import multiprocessing
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import gpuload
from tests.conformance.harness import Make, Route, attempt, attributes, named, outcomes
from tests.conformance.sample_data import Counting, Sized

ORDER = [3, 1, 2]
BATCHES = [[0, 1], [2]]


def test_signature_starts_as_torchs():
    theirs = inspect.signature(TorchDataLoader.__init__).parameters
    ours = inspect.signature(gpuload.DataLoader.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].kind is parameter.kind, name
        assert ours[name].default == parameter.default, name
    added = list(ours.values())[len(theirs) :]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is not p.empty for p in added)


BAD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "negative workers": {"num_workers": -1},
    "workers as text": {"num_workers": "auto"},
    "workers as None": {"num_workers": None},
    "negative timeout": {"timeout": -1},
    "timeout as text": {"timeout": "1"},
    "prefetch without workers": {"num_workers": 0, "prefetch_factor": 2},
    "negative prefetch": {"num_workers": 1, "prefetch_factor": -1},
    "persistent without workers": {"num_workers": 0, "persistent_workers": True},
    "sampler and shuffle": {"sampler": ORDER, "shuffle": True},
    "batch_sampler and batch_size": {"batch_sampler": BATCHES, "batch_size": 2},
    "batch_sampler and batch_size None": {"batch_sampler": BATCHES, "batch_size": None},
    "batch_sampler and shuffle": {"batch_sampler": BATCHES, "shuffle": True},
    "batch_sampler and sampler": {"batch_sampler": BATCHES, "sampler": ORDER},
    "batch_sampler and drop_last": {"batch_sampler": BATCHES, "drop_last": True},
    "no batches and drop_last": {"batch_size": None, "drop_last": True},
    "batch_size 0": {"batch_size": 0},
    "batch_size -3": {"batch_size": -3},
    "batch_size as float": {"batch_size": 2.5},
    "batch_size as bool": {"batch_size": True},
    "batch_size as text": {"batch_size": "4"},
    "drop_last as text": {"drop_last": "yes"},
    "drop_last as int": {"drop_last": 1},
    "no such start method": {"num_workers": 1, "multiprocessing_context": "bogus"},
    "context of another kind": {"num_workers": 1, "multiprocessing_context": 5},
    "context without workers": {"num_workers": 0, "multiprocessing_context": "fork"},
    "no such argument": {"wokers": 3},
    "two errors: workers before timeout": {"num_workers": -1, "timeout": -1},
    "two errors: timeout before prefetch": {"timeout": -1, "num_workers": 0, "prefetch_factor": 2},
    "two errors: prefetch before persistent": {"num_workers": 0, "prefetch_factor": 2, "persistent_workers": True},
    "two errors: persistent before sampler": {
        "num_workers": 0,
        "persistent_workers": True,
        "sampler": ORDER,
        "shuffle": True,
    },
    "two errors: context before sampler": {
        "num_workers": 1,
        "multiprocessing_context": "bogus",
        "sampler": ORDER,
        "shuffle": True,
    },
    "two errors: sampler before batch_sampler": {"sampler": ORDER, "shuffle": True, "batch_sampler": BATCHES},
    "two errors: batch_size before drop_last": {"batch_size": 0, "drop_last": "yes"},
}


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_arguments_raise_torchs_error(route: Route, arguments: dict[str, Any]):
    assert attempt(lambda: TorchDataLoader(route.data, **arguments)).error is not None
    route.same(lambda DataLoader: DataLoader(route.data, **arguments))


def test_wrong_counts_of_arguments(fallback: Route):
    fallback.same(lambda DataLoader: DataLoader())
    fallback.same(lambda DataLoader: DataLoader(fallback.data, *range(13)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_datasets_that_are_none(fallback: Route, shuffle: bool):
    fallback.same(lambda DataLoader: outcomes(iter(DataLoader(5, shuffle=shuffle))))
    fallback.same(lambda DataLoader: outcomes(iter(DataLoader(None, shuffle=shuffle))))
    fallback.same(lambda DataLoader: len(DataLoader(object(), shuffle=shuffle)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"shuffle": 1},
        {"shuffle": False},
        {"sampler": ORDER},
        {"batch_sampler": BATCHES},
        {"sampler": ORDER, "batch_sampler": BATCHES},
    ],
    ids=named,
)
def test_iterable_datasets_refuse_an_order(fallback: Route, arguments: dict[str, Any]):
    fallback.same(lambda DataLoader: list(DataLoader(Counting(3), **arguments)))


def test_positional_arguments_mean_what_they_do_in_torch(route: Route):
    generator = torch.Generator().manual_seed(4)

    def scenario(DataLoader: Make) -> Any:
        generator.manual_seed(4)
        loader = DataLoader(route.data, 5, True, None, None, 0, list, False, True, 0, None, None, generator)
        return attributes(loader), list(loader), generator

    route.same(scenario)


GOOD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "batches": {"batch_size": 4, "drop_last": True},
    "shuffle": {"shuffle": True},
    "shuffle as int": {"shuffle": 1},
    "sampler": {"sampler": ORDER, "batch_size": 2},
    "batch_sampler": {"batch_sampler": BATCHES},
    "batch_sampler and drop_last False": {"batch_sampler": BATCHES, "drop_last": False, "shuffle": False},
    "no batches": {"batch_size": None},
    "no workers": {"num_workers": 0},
    "one worker": {"num_workers": 1},
    "workers and prefetch": {"num_workers": 2, "prefetch_factor": 3},
    "persistent": {"num_workers": 1, "persistent_workers": True},
    "prefetch 0": {"num_workers": 1, "prefetch_factor": 0},
    "timeout": {"num_workers": 1, "timeout": 2.5},
    "pinned": {"pin_memory": True},
    "pinned somewhere": {"pin_memory": True, "pin_memory_device": "cuda"},
    "any order": {"num_workers": 1, "in_order": False},
    "collate": {"collate_fn": list},
    "bool workers": {"num_workers": True},
}


@pytest.mark.parametrize("arguments", GOOD_ARGUMENTS.values(), ids=GOOD_ARGUMENTS.keys())
def test_attributes_equal_torchs(route: Route, arguments: dict[str, Any]):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, **arguments)
        return attributes(loader), loader.multiprocessing_context, type(loader.num_workers) is bool, len(loader)

    route.same(scenario)


def test_attributes_with_processes_asked_for(fallback: Route, accelerated: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(accelerated.data, num_workers=2, multiprocessing_context="fork", worker_init_fn=print)
        return attributes(loader), loader.multiprocessing_context

    fallback.same(scenario)


def test_datapipes_are_wrapped(fallback: Route):
    def scenario(DataLoader: Make) -> Any:
        loaders = [DataLoader(IterableWrapper(range(9)), batch_size=2), DataLoader(SequenceWrapper(range(5)))]
        return [(type(loader.dataset), list(loader)) for loader in loaders]

    fallback.same(scenario)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_guarded_attributes_cannot_be_set(route: Route, name: str):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=3)
        same_value = attempt(lambda: setattr(loader, name, getattr(loader, name)))
        other_value = attempt(lambda: setattr(loader, name, None))
        return same_value, other_value, attributes(loader)

    route.same(scenario)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", 0),
        ("prefetch_factor", 7),
        ("pin_memory", False),
        ("timeout", 0),
        ("collate_fn", list),
        ("generator", None),
        ("in_order", False),
        ("worker_init_fn", None),
        ("pin_memory_device", "cpu"),
        ("note", "an attribute of the user's own"),
    ],
)
def test_other_attributes_can_be_set(route: Route, name: str, value: Any):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=7, num_workers=0)
        setattr(loader, name, value)
        return getattr(loader, name), list(loader)

    route.same(scenario)


def test_attributes_can_be_deleted_and_missing_ones_are_named(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data)
        loader.note = 1
        del loader.note
        return attempt(lambda: hasattr(loader, "note"))

    route.same(scenario)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("context", [None, "fork", "spawn", "bogus", 3, multiprocessing.get_context("fork")], ids=named)
def test_multiprocessing_context_can_be_set_later(accelerated: Route, num_workers: int, context: Any):
    """On an image folder, where a context that was set takes the loader off the accelerated route."""

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(accelerated.data, num_workers=num_workers)
        raised = attempt(lambda: setattr(loader, "multiprocessing_context", context))
        return raised, loader.multiprocessing_context

    if num_workers == 0 or context is None or context in ("bogus", 3):
        accelerated.same(scenario)
    else:
        Route("torch", accelerated.data, accelerated.kind, accelerated.encoded, {"device": "cpu"}).same(scenario)


def test_too_many_workers_warn(route: Route):
    route.same(lambda DataLoader: attributes(DataLoader(route.data, num_workers=5000)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_empty_datasets(route: Route, shuffle: bool):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.built(files=[]), batch_size=3, shuffle=shuffle)
        return len(loader), list(loader), outcomes(iter(loader))

    route.same(scenario)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 8, 24, 25, 100])
def test_len_counts_batches(route: Route, batch_size: int, drop_last: bool):
    route.same(lambda DataLoader: len(DataLoader(route.data, batch_size=batch_size, drop_last=drop_last)))


def test_len_is_the_index_samplers(route: Route):
    def scenario(DataLoader: Make) -> Any:
        loaders = [
            DataLoader(route.data, batch_size=None),
            DataLoader(route.data, batch_sampler=BATCHES),
            DataLoader(route.data, sampler=ORDER, batch_size=2, drop_last=True),
            DataLoader(route.data, batch_sampler=BatchSampler(SequentialSampler(range(11)), 4, False)),
            DataLoader(route.data, sampler=iter(ORDER)),
            DataLoader(route.data, batch_sampler=iter(BATCHES)),
        ]
        return [attempt(partial(len, loader)) for loader in loaders]

    route.same(scenario)


def test_len_of_iterable_datasets(fallback: Route):
    def scenario(DataLoader: Make) -> Any:
        loaders = [
            DataLoader(Sized(10, claimed=10), batch_size=3),
            DataLoader(Sized(10, claimed=10), batch_size=3, drop_last=True),
            DataLoader(Sized(10, claimed=10), batch_size=None),
            DataLoader(Counting(10)),
        ]
        return [attempt(partial(len, loader)) for loader in loaders]

    fallback.same(scenario)
