"""Which samples an epoch will ask for, told to a source that reads better for knowing: remote shards, block order.

Owns when what is told: a window of the order at a time, one further than the batches that were planned, so that the
next is on its way while this one is taken. Reading, and what it costs to be told in vain, is the source's: nothing
depends on it but speed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, SequentialSampler

from gpuload.resume import own_plan
from gpuload.sampling.order import BLOCK_SIZE, BLOCKS_IN_WINDOW

WINDOW = BLOCK_SIZE * BLOCKS_IN_WINDOW
"""Places of the order in which a block order shuffles; all ranks together take them."""

Expect = Callable[[np.ndarray], object]
"""ids -> what holds the source to them until it is forgotten."""


class Lookahead:
    """places: (first, stop) -> where in the epoch this rank's samples first..stop-1 stand. ids: places -> samples."""

    def __init__(
        self,
        expect: Expect,
        total: int,
        places: Callable[[int, int], np.ndarray],
        ids: Callable[[np.ndarray], np.ndarray],
    ):
        self._expect, self._total, self._places, self._ids = expect, total, places, ids
        self._last = self._told = 0  # where the last window that was told begins, and where it ends
        self._held: list[object] = []

    def reach(self, samples: int) -> None:
        """So many samples of this rank are planned. Consumer's thread."""
        while self._told < self._total and self._last <= samples:
            places = self._places(self._told, min(self._told + WINDOW, self._total))
            places = places[places // WINDOW == places[0] // WINDOW]
            self._held.append(self._expect(self._ids(places)))
            self._last, self._told = self._told, self._told + len(places)


def lookahead_of(loader: Any, source: Any, *, next_epoch: bool = False) -> Lookahead | None:
    """Of the epoch that begins, or of the one after it; None where its order is unknown, or of no use to the source.

    A source that has is one with `expect`: (int64 ids) -> object, on the consumer's thread; what it returns is kept as
    long as the epoch runs.
    """
    expect = getattr(source, "expect", None)
    if expect is None:
        return None
    if own_plan(loader) is not None:
        sampler = copy.copy(loader.sampler)
        if next_epoch:
            sampler.epoch, sampler.start = loader._next_epoch, 0
        ranks = sampler.plan()
        return Lookahead(expect, ranks.samples, ranks.positions_of, sampler.ids)
    if type(loader.sampler) is SequentialSampler and type(loader.batch_sampler) in (BatchSampler, type(None)):
        return Lookahead(expect, len(loader.sampler), np.arange, lambda places: places)
    return None
