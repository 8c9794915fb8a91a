"""gpuload's own order: a permutation that anyone can compute at any position, in O(1) memory.

A balanced Feistel network over the smallest power of four that holds the length, its round function Philox;
positions that land outside are walked on until they land inside ("cycle walking": Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002). Short lengths are sorted by random words instead.
Torch's samplers are torch's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.philox import philox, split

ORDERS = ("sequential", "shuffle")
_ROUNDS = 6
_SHORT = 256  # up to here the network is so narrow that 6 rounds visibly favour some permutations (tests/sampling)
_BLOCK = 1 << 14  # ids made at a time: 64 KiB a temporary stays in L2, and the per-call cost is spread over many


@dataclass(frozen=True)
class Order:
    """The order of one epoch. kind: "sequential" or "shuffle"; length: of the data set; seed, epoch: any ints."""

    kind: str
    length: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ORDERS:
            raise ConfigError(f"order must be one of {', '.join(map(repr, ORDERS))}, got {self.kind!r}")

    def ids(self, start: int, stop: int) -> np.ndarray:
        """Sample ids at positions start..stop-1: int64 (stop - start,)."""
        positions = np.arange(start, min(stop, self.length), dtype=np.int64)
        return positions if self.kind == "sequential" else permute(positions, self.length, self.seed, self.epoch)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.length, _BLOCK):
            yield from self.ids(start, start + _BLOCK).tolist()


def permute(positions: np.ndarray, length: int, seed: int, epoch: int) -> np.ndarray:
    """Where each position goes under the permutation of 0..length-1 that (seed, epoch) names. int64 (n,) both."""
    key = philox(
        np.array([*split(np.uint64(epoch % 2**64)), 0x6F726465, 0x72], np.uint32),
        np.array(split(np.uint64(seed % 2**64)), np.uint32),
    )
    if length <= _SHORT:
        return _sorted_by_chance(length, key)[positions]
    out = positions.astype(np.uint64)
    half = -(-(length - 1).bit_length() // 2)  # bits in each half of the Feistel block
    outside = np.ones(len(out), bool)
    while outside.any():
        out[outside] = _feistel(out[outside], half, key)
        outside = out >= np.uint64(length)
    return out.astype(np.int64)


def _sorted_by_chance(length: int, key: np.ndarray) -> np.ndarray:
    counter = np.zeros((length, 4), np.uint32)
    counter[:, 0] = np.arange(length)
    counter[:, 2:] = key[2:]
    words = philox(counter, key[:2]).astype(np.uint64)
    return np.argsort(words[:, 0] << np.uint64(32) | words[:, 1], kind="stable")


def _feistel(values: np.ndarray, half_bits: int, key: np.ndarray) -> np.ndarray:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = values >> shift, values & mask
    counter = np.zeros((len(values), 4), np.uint32)
    counter[:, 2:] = key[2:]
    for step in range(_ROUNDS):
        counter[:, 0] = right  # at most 32 bits: lengths below 2**63 have halves of at most 32
        counter[:, 1] = step
        left, right = right, left ^ (philox(counter, key[:2])[:, 0] & mask)
    return (left << shift) | right
