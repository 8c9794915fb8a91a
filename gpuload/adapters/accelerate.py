"""Hugging Face Accelerate: what `accelerator.prepare(loader)` and `skip_first_batches` return goes on being gpuload's.

Accelerate does not iterate the loader that it is given. It reads its attributes and builds torch's own class from them,
inside an adapter that moves batches to their device, and does so again to skip batches; an `__iter__` of ours is never
called. The one place where all of this passes is the adapter's constructor. `keep`, called when a gpuload loader is
about to be prepared, makes that constructor build gpuload's class where the batches come from a loader of ours, and
leave everything else as it was.

Which rank gets which batch stays Accelerate's (BatchSamplerShard), and so does the number of the epoch (`iteration`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import DataLoader as TorchDataLoader

from gpuload.core.errors import ConfigError, MissingDependencyError
from gpuload.loader import DataLoader
from gpuload.order_sampler import OrderSampler
from gpuload.resume import sampler_chain

_kept: weakref.WeakSet[DataLoader] = weakref.WeakSet()

_DECIDED = {"order", "shard", "even"}  # the batch sampler carries it out
_OURS = (
    inspect.signature(DataLoader).parameters.keys() - inspect.signature(TorchDataLoader).parameters.keys() - _DECIDED
)


def keep(loader: DataLoader) -> None:
    """What Accelerate builds from `loader` from now on is a gpuload loader. Nothing happens without Accelerate."""
    module = sys.modules.get("accelerate.data_loader")
    if module is None:
        return
    if loader.shard is not None:
        raise ConfigError(
            f"shard={loader.shard!r} and accelerator.prepare would divide the data set twice: "
            "leave shard out, or do not prepare the loader"
        )
    _kept.add(loader)
    adapter = getattr(module, "DataLoaderAdapter", None)
    if adapter is None:  # else this AttributeError would read as "no such property", and the slow path would be silent
        raise MissingDependencyError("accelerator.prepare keeps a gpuload loader from accelerate 0.34 on: update it")
    if not hasattr(adapter.__init__, "__wrapped__"):
        adapter.__init__ = _building(adapter.__init__)


def _building(init: Callable[..., None]) -> Callable[..., None]:
    """DataLoaderAdapter.__init__, with gpuload's class in torch's or torchdata's place where the source is ours."""

    @functools.wraps(init)
    def __init__(
        self: Any, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **kwargs: Any
    ) -> None:
        batches = kwargs.get("sampler") if batch_sampler is None else batch_sampler
        source = _source(batches)
        if source is None:
            init(self, dataset, use_stateful_dataloader, batch_sampler, **kwargs)
            return
        if source.seed is None:
            _share_drawn_seed(batches)
        own = {name: getattr(source, name) for name in _OURS}
        self.use_stateful_dataloader = use_stateful_dataloader
        self.base_dataloader = Kept(self, dataset, batch_sampler=batch_sampler, **kwargs, **own)
        self.dl_state_dict = self.base_dataloader.state_dict()

    return __init__


def _source(batches: Any) -> DataLoader | None:
    """The loader of ours whose batches these are, however often Accelerate has wrapped its batch sampler."""
    for sampler in sampler_chain(batches):
        for loader in _kept:
            if sampler is loader._index_sampler:
                return loader
    return None


def _share_drawn_seed(batches: Any) -> None:
    """Rank 0's for all: parts of orders that each rank drew for itself would be no whole."""
    from accelerate.utils import broadcast_object_list

    for sampler in sampler_chain(batches):
        if isinstance(sampler, OrderSampler):
            sampler.seed = broadcast_object_list([sampler.seed])[0]


class Kept(DataLoader[Any]):
    """The loader inside one of Accelerate's adapters: in that one's epoch, and aware of which batches its rank has."""

    def __init__(self, adapter: Any, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._adapter: Callable[[], Any] = weakref.ref(adapter)
        self._met_ranks = True  # Accelerate divides
        _kept.add(self)  # `skip_first_batches` builds another from this one

    def __iter__(self) -> Any:
        adapter = self._adapter()
        if adapter is not None:
            if self._resumed is not None:
                adapter.iteration = self._resumed.epoch
            self.set_epoch(adapter.iteration)
            # Accelerate tells two levels, and skipping makes it three.
            for sampler in sampler_chain(self._index_sampler):
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(adapter.iteration)
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Counts whole rounds where rank 0 deals one batch to each rank: a part of a round was not handed over."""
        state = super().state_dict()
        adapter, dealt = self._adapter(), 1
        if isinstance(adapter, sys.modules["accelerate.data_loader"].DataLoaderDispatcher):
            dealt = 1 if getattr(adapter, "split_batches", True) else adapter.state.num_processes
        return state | {"batches": state["batches"] // dealt * dealt}

    def epoch_positions(self, first: int, count: int) -> np.ndarray:
        """As DataLoader's. Accelerate deals batches, or pieces of one, to the ranks in turn, and may skip some."""
        rows, world, rank, pieces, skipped = 1, 1, 0, 1, 0
        for sampler in sampler_chain(self._index_sampler):
            rows = getattr(sampler, "batch_size", None) or rows
            skipped += getattr(sampler, "skip_batches", 0)
            if hasattr(sampler, "process_index"):
                world, rank = sampler.num_processes, sampler.process_index
                pieces = world if sampler.split_batches else 1
        rows //= pieces
        batch, row = np.divmod(skipped * rows + np.arange(first, first + count), rows)
        return (batch * world + rank) * rows + row

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_adapter": _nobody}


def _nobody() -> None:
    """The adapter of a copy that came from a pickle."""
