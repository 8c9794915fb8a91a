"""Where an epoch stands, as a value of a few KB from which another process goes on: `state_dict` and its way back.

What counts is what was handed over; what was prefetched is made again. gpuload's own order is known at any position.
torch's samplers, and a user's, are known by what they did: the random states at the epoch's start are kept, and the
sampler is run again without data for as many batches as were delivered. Owns the state's form, what is compared before
one is accepted, and the replay; which batch comes when is the iterators' and the samplers'.

    state   version, epoch, batches (delivered, in order), also (numbers beyond those, with in_order=False), key_epoch
            and base_seed (of random keys), rng (at the epoch's start), sampler_epoch, order_seed, setup (what must be
            the same, by name)

Exact on the accelerated path. On torch's the order is exact, and random transforms in worker processes are other draws,
as with torch itself: its workers' generators begin anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, ConcatDataset, IterableDataset

from gpuload.core.errors import ConfigError
from gpuload.dataset import ShardDataset
from gpuload.mixed import MixedDataset
from gpuload.order_sampler import OrderSampler
from gpuload.sampling.ranks import RankPlan

VERSION = 1
_NAMES = 64  # of samples, evenly spread, whose names stand for a data set
_LONGEST = 400  # characters of a description that is kept as it is


@dataclass(frozen=True)
class RandomStates:
    """torch's default generator, the loader's own and the sampler's own, compressed; 2.6 KB each."""

    default: bytes
    own: bytes | None
    samplers: bytes | None

    @classmethod
    def now(cls, loader: Any) -> RandomStates:
        own, samplers = (None if g is None else _packed(g.get_state()) for g in _generators(loader))
        return cls(_packed(torch.get_rng_state()), own, samplers)

    @contextlib.contextmanager
    def again(self, loader: Any) -> Iterator[None]:
        """As it was then. Afterwards the default generator is what it was before; the loader's own goes on."""
        before = torch.get_rng_state()
        for generator, then in zip(_generators(loader), (self.own, self.samplers), strict=True):
            if generator is not None and then is not None:
                generator.set_state(_unpacked(then))
        torch.set_rng_state(_unpacked(self.default))
        try:
            yield
        finally:
            torch.set_rng_state(before)


def sampler_chain(sampler: Any) -> Iterator[Any]:
    """A sampler, of batches or not, and what it draws from, to the innermost: frameworks wrap one in another."""
    while sampler is not None:
        yield sampler
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner


def _generators(loader: Any) -> tuple[torch.Generator | None, torch.Generator | None]:
    """The loader's, and the first one that a sampler has of its own."""
    have = (getattr(sampler, "generator", None) for sampler in sampler_chain(loader._index_sampler))
    found = next((generator for generator in have if generator is not None), None)
    if not isinstance(found, torch.Generator) or found is loader.generator:
        found = None
    return loader.generator, found


def _packed(state: torch.Tensor) -> bytes:
    return zlib.compress(state.numpy().tobytes(), 1)


def _unpacked(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.decompress(data)), dtype=torch.uint8)


@dataclass(frozen=True)
class Resumed:
    """A state that was accepted: from where the next epoch goes on."""

    epoch: int
    batches: int
    also: frozenset[int]
    key_epoch: int | None
    base_seed: int | None
    random: RandomStates | None
    sampler_epoch: int | None
    position: int

    @classmethod
    def none(cls) -> Resumed:
        """From the epoch's beginning."""
        return cls(0, 0, frozenset(), None, None, None, None, 0)


@dataclass
class Progress:
    """What an iterator has handed over of its epoch. The iterator's: `key_epoch`, `base_seed`, `took`, `ended`."""

    epoch: int
    random: RandomStates | None
    sampler_epoch: int | None
    resumed: Resumed
    key_epoch: int = 0
    base_seed: int = 0
    batches: int = 0
    also: set[int] = field(default_factory=set)
    over: bool = False
    plan: RankPlan | None = None  # own_plan as the epoch began: the sampler may be told of another meanwhile
    setup: dict[str, Any] | None = None

    @classmethod
    def begun(cls, loader: Any, resumed: Resumed | None) -> Progress:
        """Of the epoch that `loader` is about to begin."""
        resumed = resumed or Resumed.none()
        random, plan = resumed.random, own_plan(loader)
        if random is None and plan is None:  # gpuload's own order is known without
            random = RandomStates.now(loader)
        epoch = getattr(_epoch_sampler(loader), "epoch", None)
        return cls(loader.epoch, random, epoch, resumed, batches=resumed.batches, also=set(resumed.also), plan=plan)

    def took(self, number: int) -> None:
        """Batch `number` of the epoch was handed over, or its error raised, or nothing was left of it."""
        self.also.add(number)
        while self.batches in self.also:
            self.also.remove(self.batches)
            self.batches += 1


class Replaying:
    """For an iterator of torch's kind: its sampler begins where a resumed epoch does.

    Between `replay_from` and the first `_next_index` nothing may ask the sampler. replayed_samples: what was skipped.
    """

    _to_skip: int
    replayed_samples: int
    _asked_ahead: list[Any]

    def replay_from(self, resumed: Resumed) -> None:
        self._to_skip, self.replayed_samples, self._asked_ahead = resumed.batches, 0, []

    def replay(self) -> None:
        """Now, while the random states are those of the epoch's start: also what the sampler draws when first asked."""
        with contextlib.suppress(StopIteration):
            self._asked_ahead = [self._next_index()]

    def _next_index(self) -> Any:
        if self._asked_ahead:
            return self._asked_ahead.pop()
        while self._to_skip:
            self._to_skip -= 1
            index = super()._next_index()  # type: ignore[misc]
            self.replayed_samples += len(list(index)) if self._auto_collation else 1  # type: ignore[attr-defined]
        return super()._next_index()  # type: ignore[misc]


def state_of(loader: Any, progress: Progress | None) -> dict[str, Any]:
    """The state of a loader, whose current or last epoch is `progress`; None: it has not begun any."""
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "state_dict: an IterableDataset knows its position, and nobody else does: keep its own state, or make it a "
            "map-style data set"
        )
    setup = setup_of(loader) if progress is None or progress.setup is None else progress.setup
    if progress is not None:
        progress.setup = setup  # Accelerate asks before every batch
    state = {"version": VERSION, "setup": setup, "order_seed": getattr(loader.sampler, "seed", None)}
    if progress is None or progress.over or progress.batches == _to_deliver(loader, progress.plan):
        epoch = loader._next_epoch if progress is None else progress.epoch + 1
        return state | {"epoch": epoch, "batches": 0, "also": []}
    if not loader.in_order and not loader.plan().accelerated:
        raise ConfigError("state_dict: with in_order=False torch's path does not say which batches were handed over")
    if (plan := progress.plan) is not None:
        return state | {
            "epoch": progress.epoch,
            "batches": 0,  # of the epoch's rest
            "also": sorted(number - progress.batches for number in progress.also),
            "position": plan.position_after(progress.batches),
            "key_epoch": progress.key_epoch,
            "base_seed": progress.base_seed if loader.key_seed is None else None,
        }
    assert progress.random is not None
    return state | {
        "epoch": progress.epoch,
        "batches": progress.batches,
        "also": sorted(progress.also),
        "key_epoch": progress.key_epoch,
        "base_seed": progress.base_seed if loader.key_seed is None else None,
        "rng": {"default": progress.random.default, "own": progress.random.own, "samplers": progress.random.samplers},
        "sampler_epoch": progress.sampler_epoch,
    }


def _to_deliver(loader: Any, plan: RankPlan | None) -> int | None:
    """After how many batches the epoch, or what was left of it, is over: on the rank that has most of them."""
    return _length(loader) if plan is None else len(replace(plan, rank=0))


def resumed_from(loader: Any, state: Mapping[str, Any]) -> Resumed:
    """The state, if it is one of this loader's. Raises ConfigError that names what is wrong or different."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise ConfigError("load_state_dict: this is no state of a gpuload DataLoader")
    if state["version"] != VERSION:
        raise ConfigError(f"load_state_dict: a state of version {state['version']!r}, and this gpuload reads {VERSION}")
    try:
        mine, theirs = setup_of(loader), dict(state["setup"])
        rng = state.get("rng")
        resumed = Resumed(
            epoch=_whole(state["epoch"]),
            batches=_whole(state["batches"]),
            also=frozenset(map(_whole, state["also"])),
            key_epoch=state.get("key_epoch"),
            base_seed=state.get("base_seed"),
            random=None
            if rng is None
            else RandomStates(
                bytes(rng["default"]), rng["own"] and bytes(rng["own"]), rng["samplers"] and bytes(rng["samplers"])
            ),
            sampler_epoch=state.get("sampler_epoch"),
            position=_whole(state.get("position", 0)),
        )
        if resumed.random is not None:
            for packed in (resumed.random.default, resumed.random.own, resumed.random.samplers):
                assert packed is None or _unpacked(packed).numel() > 0
    except (KeyError, TypeError, ValueError, AssertionError, zlib.error) as error:
        raise ConfigError(f"load_state_dict: the state is damaged: {type(error).__name__}: {error}") from error
    may_differ = {"batch_size", "world"} if own_plan(loader) is not None and not resumed.also else set()
    names = sorted({*mine, *theirs} - may_differ)
    wrong = [name for name in names if mine.get(name) != theirs.get(name)]
    if wrong:
        told = "; ".join(f"{name} was {theirs.get(name)!r} and is {mine.get(name)!r}" for name in wrong)
        raise ConfigError(f"load_state_dict: the state is of another loader: {told}")
    length = mine["batches"]
    if resumed.position > mine["samples"]:
        raise ConfigError(f"load_state_dict: position {resumed.position} of an epoch of {mine['samples']} samples")
    if length is not None and resumed.batches > length:
        raise ConfigError(f"load_state_dict: {resumed.batches} batches were delivered of an epoch of {length}")
    return resumed


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def setup_of(loader: Any) -> dict[str, Any]:
    """What decides which batches come, by name; plain values."""
    plan = loader.plan()
    transform = "\n".join(map(str, plan.augments)) or getattr(loader.dataset, "transform", None)
    sampler = loader.batch_sampler if loader.batch_size is None else loader.sampler
    return {
        "dataset": _dataset_name(loader.dataset),
        "samples": len(loader.dataset),
        "batches": _length(loader) if own_plan(loader) is None else None,  # ranks may differ by one, and what is left
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": type(sampler).__name__,
        "order": loader.order,
        "seed": loader.seed,
        "even": loader.even,
        "world": loader.sampler.shard.world if isinstance(loader.sampler, OrderSampler) else None,
        "transform": _shortened(str(transform)),
        "path": "accelerated" if plan.accelerated else "torch",
        "decoder": plan.decoder,
        "fidelity": loader.fidelity,
        "dtype": str(loader.dtype),
        "batch_transform": _shortened(str(loader.batch_transform)),
    }


def own_plan(loader: Any) -> RankPlan | None:
    """The division of the epoch that began last, where the order is gpuload's own and torch's BatchSampler cuts it."""
    if isinstance(loader.sampler, OrderSampler) and type(loader.batch_sampler) in (BatchSampler, type(None)):
        return loader.sampler.plan()
    return None


def _dataset_name(dataset: Any) -> str:
    """Its class, and a digest of what some of its samples are called: the same wherever its root lies.

    What is no name (an image in memory, a user's own kind of indices) is left out: it may read differently in the next
    process, and a state must be this data set's there.
    """
    kind = type(dataset).__name__
    parts, inner = getattr(dataset, "datasets", None), getattr(dataset, "dataset", None)
    if isinstance(dataset, (MixedDataset, ConcatDataset)) and isinstance(parts, list):
        how = f" {_digest(repr((dataset.weights, dataset.seed)))}" if isinstance(dataset, MixedDataset) else ""
        return f"{kind}{how} of {', '.join(map(_dataset_name, parts))}"
    if inner is not None:  # Numbered, torch's Subset
        return f"{kind}{_chosen(getattr(dataset, 'indices', None))} of {_dataset_name(inner)}"
    samples = getattr(dataset, "samples", None)
    if isinstance(dataset, ShardDataset):
        names = ["/".join(part.rpartition("/")[2] for part in dataset.name(i)) for i in _spread(len(dataset))]
    elif isinstance(samples, list) and samples:
        root = os.path.expanduser(str(getattr(dataset, "root", "")))
        names = [_below(root, samples[i]) for i in _spread(len(samples))]
    else:
        return kind
    return f"{kind} {_digest(repr(names))}"


def _chosen(indices: Any) -> str:
    """A digest of some of a subset's indices; nothing where they are no sequence of whole numbers."""
    try:
        return " " + _digest(repr([operator.index(indices[i]) for i in _spread(len(indices))]))
    except (TypeError, LookupError):
        return ""


def _below(root: str, sample: Any) -> str:
    """The path of torchvision's (path, label), from the root on."""
    path = sample[0] if isinstance(sample, tuple) and sample else None
    return str(path).removeprefix(root).lstrip("/\\") if isinstance(path, (str, os.PathLike)) else ""


def _spread(length: int) -> range:
    return range(0, length, max(1, length // _NAMES))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... {_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a sampler without a length
        return None


def _epoch_sampler(loader: Any) -> Any:
    """The sampler that is told the epoch, torch's DistributedSampler and its like; None: there is none."""
    for sampler in (loader.sampler, loader.batch_sampler):
        if callable(getattr(sampler, "set_epoch", None)):
            return sampler
    return None


def tell_sampler(loader: Any, epoch: int | None) -> None:
    """A resumed epoch's number to the sampler that shuffles by it."""
    sampler = _epoch_sampler(loader)
    if sampler is not None and epoch is not None:
        sampler.set_epoch(epoch)
