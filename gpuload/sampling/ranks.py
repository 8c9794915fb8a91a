"""Which places of an epoch's order each rank takes: a pure division, the same whoever computes it.

Owns the arithmetic of global batches and of their uneven end. Which sample stands at a place is `order.py`'s; which
rank this process is, and whether all ranks were asked the same, is `gpuload/ranks_here.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ConfigError

EVEN = ("pad", "drop", "exact")


@dataclass(frozen=True)
class Rank:
    """One of `world` processes that divide an epoch."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world}: ranks are numbered from 0 to world - 1")


@dataclass(frozen=True)
class RankPlan:
    """What one rank takes of positions start..length-1 of an epoch, in batches.

    Global batch j is the next world * batch_size positions, of which rank r takes the r-th batch_size. What is left at
    the end is divided equally: even="pad" repeats positions from the epoch's beginning until each rank has as many,
    "drop" leaves out what does not divide, "exact" does neither, so that ranks may differ by one sample and by one
    batch. drop_last: a last batch shorter than batch_size is left out.
    """

    length: int
    batch_size: int
    world: int = 1
    rank: int = 0
    even: str = "pad"
    drop_last: bool = False
    start: int = 0

    def __post_init__(self) -> None:
        Rank(self.rank, self.world)
        if self.even not in EVEN:
            raise ConfigError(f"even must be one of {', '.join(map(repr, EVEN))}, got {self.even!r}")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.start <= self.length:
            raise ConfigError(f"an epoch of {self.length} samples cannot go on from position {self.start}")

    def __len__(self) -> int:
        """Batches of this rank."""
        return -(-self.samples // self.batch_size)

    @property
    def global_batch(self) -> int:
        """Positions that all ranks together take at a time."""
        return self.batch_size * self.world

    @property
    def samples(self) -> int:
        """Samples of this rank, repeated ones too."""
        share = self._shares(self.rank + 1) - self._shares(self.rank)
        if self.drop_last and share < self.batch_size:
            share = 0
        return self._whole * self.batch_size + share

    def positions(self, batch: int) -> np.ndarray:
        """Places in the epoch's order of this rank's batch: int64 (n,), consecutive.

        Those from `length` on are repeats: position % length is where such a sample stands, while its random key
        is that of the position, so that a sample drawn twice is augmented twice differently.
        """
        return self.positions_of(batch * self.batch_size, (batch + 1) * self.batch_size)

    def positions_of(self, first: int, stop: int) -> np.ndarray:
        """Places of this rank's samples number first..stop-1, however they are batched: int64 (n,)."""
        numbers = np.arange(first, min(stop, self.samples), dtype=np.int64)
        if self.world == 1:
            return self.start + numbers
        batch, row = np.divmod(numbers, self.batch_size)
        first_row = np.where(batch < self._whole, self.rank * self.batch_size, self._shares(self.rank))
        return self.start + batch * self.global_batch + first_row + row

    def position_after(self, batches: int) -> int:
        """The first position that is still to come when every rank has taken so many batches: `start` of the rest."""
        return min(self.start + batches * self.global_batch, self.length)

    @property
    def _whole(self) -> int:
        """Global batches that are complete."""
        return (self.length - self.start) // self.global_batch

    def _shares(self, ranks: int) -> int:
        """Samples of the last, incomplete global batch that the first so many ranks take together."""
        rest = (self.length - self.start) % self.global_batch
        each, over = divmod(rest, self.world)
        if self.even == "pad":
            return ranks * (each + (over > 0))
        return ranks * each + (min(ranks, over) if self.even == "exact" else 0)
