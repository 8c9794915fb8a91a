"""Step B: an epoch's ids as plans, and the first ones of the next epoch while this one still runs.

Owns which places and random keys go with which ids, and when a batch that was begun before its epoch is of use: its
plan must be the epoch's to the bit, and what its samples are must not have changed. Else it is thrown away unseen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuload.core.batch import BatchPlan
from gpuload.core.refs import as_ids
from gpuload.engine.flow import Flow
from gpuload.engine.work import Work
from gpuload.lookahead import Lookahead
from gpuload.resume import own_plan


@dataclass
class Planner:
    """Batch after batch of one epoch.

    epoch: the loader's. seed, key_epoch: of random keys. places: (first, count) -> places in the epoch of all ranks of
    this loader's samples first..first+count-1. single: an index is one sample and not a batch.
    """

    epoch: int
    seed: int
    key_epoch: int
    places: Callable[[int, int], np.ndarray]
    single: bool
    number: int = 0
    position: int = 0

    def plan(self, index: Any, after: int = 0) -> BatchPlan:
        """The next batch, of what the sampler gave. after: samples of the epoch that came before all that was asked."""
        ids = as_ids([index] if self.single else list(index))
        positions = self.places(after + self.position, len(ids))
        plan = BatchPlan(self.number, ids, positions, self.seed, self.key_epoch, self.single, self.epoch)
        self.skip(len(ids))
        return plan

    def skip(self, samples: int) -> None:
        """The next batch, of so many samples, is not asked for."""
        self.number += 1
        self.position += samples


def places_of(loader: Any) -> Callable[[int, int], np.ndarray]:
    """Where this rank's samples stand in the epoch that is about to begin."""
    ranks = own_plan(loader)
    if ranks is None:
        return loader.epoch_positions
    return lambda first, count: ranks.positions_of(first, first + count)


def own_batches(loader: Any, epoch: int, start: int) -> Iterator[Any]:
    """The ids of one epoch in gpuload's own order, batch by batch: of copies, as its sampler may be told of another
    epoch before they are asked for."""
    sampler, batches = copy.copy(loader.sampler), copy.copy(loader.batch_sampler)
    sampler.epoch, sampler.start = epoch, start
    if batches is None:
        return iter(sampler)
    batches.sampler = sampler
    return iter(batches)


def next_plans(loader: Any) -> Iterator[BatchPlan]:
    """The plans of the loader's next epoch, of a copy of its sampler, which is gpuload's own: nothing is drawn."""
    epoch = loader._next_epoch
    ranks = replace(loader.sampler.plan(), start=0)
    single = loader.batch_size is None
    planner = Planner(
        epoch, loader.key_seed, epoch, lambda first, count: ranks.positions_of(first, first + count), single
    )
    return map(planner.plan, own_batches(loader, epoch, 0))


@dataclass(eq=False)
class Ahead:
    """The first batches of the next epoch, behind the last ones of this one in their flow.

    work: what makes and counts them. most: how many at most, within the flow's depth. lookahead: of that epoch.
    """

    flow: Flow
    work: Work
    plans: Iterator[BatchPlan]
    most: int
    lookahead: Lookahead | None = None
    begun: list[tuple[BatchPlan, Any]] = field(default_factory=list)

    def go_on(self) -> None:
        """Begin as many as there is room for, and no sample of which nobody knows whether it will be the same."""
        while len(self.begun) < self.most and self.flow.undelivered < self.flow.depth:
            plan = next(self.plans, None)
            seen = None if plan is None else self.work.source.identity(plan.ids)
            if plan is None or seen is None:
                self.most = len(self.begun)
                return
            if self.lookahead is not None and not self.begun:
                self.lookahead.reach(0)
            self.begun.append((plan, seen))
            self.flow.put(plan, self.work)

    def are(self, plans: Sequence[BatchPlan]) -> bool:
        """Whether these plans, the epoch's first, are those that were begun, of the same samples."""
        return len(plans) == len(self.begun) and all(
            then.same_as(plan) and seen == self.work.source.identity(plan.ids)
            for plan, (then, seen) in zip(plans, self.begun, strict=True)
        )
