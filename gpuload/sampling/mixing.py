"""Several data sets in given proportions: which of them, and which of its samples, stands at each position.

A pure function of (lengths, weights, seed, position), in memory that does not grow with the mixture. The data sets are
the leaves of a binary tree, and each inner node hands every arrival to one of its two sides: the first `t` arrivals
leave round(t * share) to the left. So the number that a leaf was given before any position is known without counting,
and what a node hands on never strays from its share by more than a half. Positions are then shuffled in windows,
so that a batch sees no regular pattern. Who reads the samples is `gpuload/mixed.py`'s business.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.sampling.order import permute, permute_in_windows

WINDOW = 1024
"""Consecutive positions, from a multiple of it on, among which the data sets of a mixture are shuffled."""

_MIXED, _WALKED = 4, 5  # streams of random numbers beside those of order.py


@dataclass(frozen=True)
class Drawn:
    """What stands at some positions. part: int64 (n,), which data set. sample: int64 (n,), which of its samples."""

    part: np.ndarray
    sample: np.ndarray


@dataclass(frozen=True)
class _Node:
    """Inner node of the tree: sides are data sets (0..parts-1) or inner nodes (from `parts` on)."""

    left: int
    right: int
    left_share: float


@dataclass(frozen=True)
class Mixture:
    """lengths: of the data sets; weights: how often each is drawn, in any unit; length: of an epoch of the mixture.

    Before any multiple of WINDOW, and in the whole epoch, a data set has its share of the positions to within half a
    sample where there are two, to within one where there are three, and to within two where there are more. Each is
    walked in shuffled order, and in another one each time it is used up. A weight of 0 leaves a data set out.
    """

    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or len(self.lengths) != len(self.weights):
            raise ConfigError(f"a mixture needs one weight a data set, got {len(self.weights)} for {len(self.lengths)}")
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights) or not any(self.weights):
            raise ConfigError(f"weights must be finite, at least 0 and not all 0, got {list(self.weights)}")
        for number, (length, weight) in enumerate(zip(self.lengths, self.weights, strict=True)):
            if weight and not length:
                raise ConfigError(f"data set {number} of the mixture has no samples, and a weight of {weight:g}")
        if self.length < 0:
            raise ConfigError(f"the length of a mixture is at least 0, got {self.length}")
        _ = self._root  # now: before Python 3.12 cached properties share a lock, which a fork may find held for ever

    @classmethod
    def of_all(cls, lengths: tuple[int, ...], weights: tuple[float, ...], seed: int = 0) -> Mixture:
        """The shortest one, in whole windows, in which every sample of every data set (of a weight above 0) comes."""
        total = sum(cls(lengths, weights, 0).weights)
        needed = [(length + 2) * total / weight for length, weight in zip(lengths, weights, strict=True) if weight]
        return cls(lengths, weights, math.ceil(max(needed) / WINDOW) * WINDOW, seed)

    def at(self, positions: np.ndarray) -> Drawn:
        """positions: int64 (n,), each in 0..length-1, in any order."""
        places = permute_in_windows(positions, self.length, WINDOW, self.seed, 0, stream=_MIXED)
        drawn = self._handed(places)
        for number, length in enumerate(self.lengths):
            rows = np.flatnonzero(drawn.part == number)
            rounds, walked = np.divmod(drawn.sample[rows], max(1, length))
            for again in np.unique(rounds).tolist():
                now = rounds == again
                drawn.sample[rows[now]] = permute(walked[now], length, self.seed, again, stream=_WALKED + number)
        return drawn

    def _handed(self, places: np.ndarray) -> Drawn:
        """Which data set each place is handed to; instead of a sample, how many places it was handed before."""
        parts, count = len(self.lengths), places.astype(np.int64)
        at = np.full(len(places), self._root)
        for number, node in reversed(list(enumerate(self._nodes, parts))):  # parents come after their sides
            rows = np.flatnonzero(at == number)
            arrived = count[rows]
            to_left = _rounded(arrived, node.left_share)
            left = _rounded(arrived + 1, node.left_share) > to_left
            at[rows] = np.where(left, node.left, node.right)
            count[rows] = np.where(left, to_left, arrived - to_left)
        return Drawn(at, count)

    @cached_property
    def _nodes(self) -> tuple[_Node, ...]:
        """Huffman's tree: the two lightest are joined until one is left, which keeps roundings from adding up."""
        heap = [(weight, number) for number, weight in enumerate(self.weights) if weight]
        heapq.heapify(heap)
        nodes: list[_Node] = []
        while len(heap) > 1:
            (light, left), (heavy, right) = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, len(self.lengths) + len(nodes)))
            nodes.append(_Node(left, right, light / (light + heavy)))
        return tuple(nodes)

    @cached_property
    def _root(self) -> int:
        if self._nodes:
            return len(self.lengths) + len(self._nodes) - 1
        return next(number for number, weight in enumerate(self.weights) if weight)


def _rounded(arrivals: np.ndarray, share: float) -> np.ndarray:
    return np.floor(arrivals * share + 0.5).astype(np.int64)
