"""gpuload's own order as a torch sampler: this rank's ids of an epoch, one after another, from any position on.

Owns what a loader must remember between epochs (seed, epoch, where to go on) and the live length of the data set.
Orders are `sampling/order.py`'s, their division between ranks `sampling/ranks.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from gpuload.sampling.order import Order
from gpuload.sampling.ranks import Rank, RankPlan

_CHUNK = 1 << 14  # ids made at a time, once the epoch is under way: the first batch's come alone, to be early


class OrderSampler(Sampler[int]):
    """dataset: anything with a length, looked at anew each epoch. shard: which rank of how many this is; None: of one.

    batch_size, even, drop_last: as for RankPlan; without a batch size each rank takes one position at a time. The
    last batch of a rank is as long as is left, so that torch's BatchSampler of the same batch_size makes the plan's
    batches. `start`: global position from which the epoch of the next iteration goes on; set_epoch puts it back to 0.
    """

    def __init__(
        self,
        dataset: Any,
        order: str,
        seed: int,
        *,
        shard: Rank | None = None,
        batch_size: int | None = 1,
        even: str = "pad",
        drop_last: bool = False,
    ):
        self.dataset, self.order, self.seed = dataset, order, seed
        self.shard, self.batch_size, self.even, self.drop_last = shard or Rank(), batch_size, even, drop_last
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, from its beginning."""
        if epoch != self.epoch:  # told again of the epoch that it is in, as Lightning does, it goes on where it is
            self.epoch, self.start = epoch, 0

    def plan(self) -> RankPlan:
        """How the ranks divide what an iteration begun now would give."""
        return RankPlan(
            len(self.dataset),
            self.batch_size or 1,
            self.shard.world,
            self.shard.rank,
            self.even,
            self.drop_last,
            self.start,
        )

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """The samples at global positions of this epoch, those past its end from its beginning again: int64 (n,)."""
        order = Order(self.order, len(self.dataset), self.seed, self.epoch)
        return order.at(_wrapped(positions, order.length))

    def __len__(self) -> int:
        return replace(self.plan(), start=0).samples

    def __iter__(self) -> Iterator[int]:
        plan = self.plan()
        order = Order(self.order, plan.length, self.seed, self.epoch)
        first, size = 0, min(max(self.batch_size or 1, 64), _CHUNK)
        while first < plan.samples:
            positions = plan.positions_of(first, first + size)
            yield from order.at(_wrapped(positions, plan.length)).tolist()
            first, size = first + size, min(2 * size, _CHUNK)


def _wrapped(positions: np.ndarray, length: int) -> np.ndarray:
    """Those past the end of the epoch from its beginning again."""
    return positions % length if len(positions) and positions.max() >= length else positions  # dividing is slow
