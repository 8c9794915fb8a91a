"""gpuload's own order: a permutation that anyone can compute at any position, in O(1) memory.

A Feistel network over the smallest power of two that holds the length, its round function a keyed integer hash;
positions that land outside are walked on until they land inside ("cycle walking": Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002). Short lengths are sorted by random words instead. The block
order uses it three times: for a turn of the data, for the order of blocks and inside each window of them.
Who takes which position is `ranks.py`'s, mixing data sets `mixing.py`'s; torch's samplers are torch's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.philox import philox, split

ORDERS = ("sequential", "shuffle", "block")
BLOCK_SIZE = 72
"""Consecutive samples that `order="block"` keeps together: 8 MB of ImageNet's photographs, at which an object store
gives what it can (66-80 MiB/s in ranges of 110 KB, 195-306 in large ones)."""
BLOCKS_IN_WINDOW = 16
"""Blocks among which the samples of `order="block"` are shuffled: a batch of 256 draws from all 16, and 128 MB hold
them. bench/order.py measures what it does to a data set sorted by class."""

_ROUNDS = 6
_BLOCKS, _IN_WINDOWS, _TURN = 1, 2, 3  # streams: permutations of one epoch that have nothing to do with each other
_TWEAKED_BITS = 10  # the narrowest network where many short permutations are made at once
_SHORT = 256  # up to here the network is so narrow that 6 rounds visibly favour some permutations (tests/sampling)


@dataclass(frozen=True)
class Order:
    """The order of one epoch.

    kind: "sequential", "shuffle" or "block" (blocks of block_size neighbours in random order, samples shuffled among
    blocks_in_window of them); length: of the data set; seed, epoch: any ints.
    """

    kind: str
    length: int
    seed: int = 0
    epoch: int = 0
    block_size: int = BLOCK_SIZE
    blocks_in_window: int = BLOCKS_IN_WINDOW

    def __post_init__(self) -> None:
        if self.kind not in ORDERS:
            raise ConfigError(f"order must be one of {', '.join(map(repr, ORDERS))}, got {self.kind!r}")
        if self.block_size < 1 or self.blocks_in_window < 1:
            raise ConfigError(
                f"a block order needs at least 1 sample a block and 1 block a window, got {self.block_size} and "
                f"{self.blocks_in_window}"
            )

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Sample ids at positions, each in 0..length-1, in any order: int64 (n,) both."""
        if self.kind == "sequential" or not len(positions):
            return positions.astype(np.int64)
        if self.kind == "shuffle":
            return permute(positions, self.length, self.seed, self.epoch)
        return self._in_blocks(positions)

    def ids(self, start: int, stop: int) -> np.ndarray:
        """Sample ids at positions start..stop-1: int64 (stop - start,)."""
        return self.at(np.arange(start, min(stop, self.length), dtype=np.int64))

    def _in_blocks(self, positions: np.ndarray) -> np.ndarray:
        """The data, turned so that blocks begin elsewhere each epoch, is cut into blocks, and they are laid out in
        random order; a last, shorter one keeps the last place, so that each place is known without the others."""
        size, whole = self.block_size, self.length // self.block_size
        name = (self.seed, self.epoch)
        spread = permute_in_windows(positions, self.length, size * self.blocks_in_window, *name, stream=_IN_WINDOWS)
        place, row = np.divmod(spread, size)
        laid = place < whole
        place[laid] = permute(place[laid], whole, *name, stream=_BLOCKS)
        turn = permute(np.zeros(1, np.int64), self.length, *name, stream=_TURN)
        return (place * size + row + turn) % self.length


def permute_in_windows(
    positions: np.ndarray, length: int, window: int, seed: int, epoch: int, *, stream: int
) -> np.ndarray:
    """Each position's place within its own `window` consecutive ones, the last window shorter. int64 (n,) both."""
    windows, inside = np.divmod(positions, window)
    cut = length // window  # the window that is not whole
    for rows, size in [(windows < cut, window), (windows == cut, length - cut * window)]:
        if rows.any():
            inside[rows] = permute(inside[rows], size, seed, epoch, stream=stream, tweak=windows[rows])
    return windows * window + inside


def permute(
    positions: np.ndarray,
    length: int,
    seed: int,
    epoch: int,
    *,
    stream: int = 0,
    tweak: np.ndarray | None = None,
) -> np.ndarray:
    """Where each position goes under the permutation of 0..length-1 that (seed, epoch, stream) names. int64 (n,) both.

    tweak: int64 (n,), which of as many permutations as there are values each position is to go under.
    """
    counter = np.array(
        [[*split(np.uint64(epoch % 2**64)), 0x6F726465, stream << 8 | part] for part in (0, 1)], np.uint32
    )
    key = philox(counter, np.array(split(np.uint64(seed % 2**64)), np.uint32)).ravel()
    if tweak is None and length <= _SHORT:
        return _sorted_by_chance(length, key)[positions]
    bits = max(_TWEAKED_BITS if tweak is not None else 0, (length - 1).bit_length())
    keys = list(key[:_ROUNDS])
    if tweak is not None:
        moved = _mixed(tweak.astype(np.uint32) + key[_ROUNDS])
        keys = [moved + word for word in keys]
    out = _feistel(positions.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(out >= np.uint64(length))
    while len(outside):
        theirs = keys if tweak is None else [words[outside] for words in keys]
        out[outside] = walked = _feistel(out[outside], bits, theirs)
        outside = outside[walked >= np.uint64(length)]
    return out.astype(np.int64)


def _sorted_by_chance(length: int, key: np.ndarray) -> np.ndarray:
    counter = np.zeros((length, 4), np.uint32)
    counter[:, 0] = np.arange(length)
    counter[:, 2:] = key[2:4]
    words = philox(counter, key[:2]).astype(np.uint64)
    return np.argsort(words[:, 0] << np.uint64(32) | words[:, 1], kind="stable")


def _feistel(values: np.ndarray, bits: int, keys: list) -> np.ndarray:
    """A permutation of 0..2**bits-1, bits < 64. keys: one word a round, or one a round and value."""
    low = bits - bits // 2
    high_mask, low_mask, shift = np.uint32((1 << bits - low) - 1), np.uint32((1 << low) - 1), np.uint64(low)
    high, rest = (values >> shift).astype(np.uint32), values.astype(np.uint32) & low_mask
    for step in range(0, _ROUNDS, 2):
        high ^= _mixed(rest + keys[step]) & high_mask
        rest ^= _mixed(high + keys[step + 1]) & low_mask
    return high.astype(np.uint64) << shift | rest


def _mixed(words: np.ndarray) -> np.ndarray:
    """Each word, uint32, by a hash in which every bit moves every other; `words` is used up. Constants: C. Wellons,
    "Prospecting for hash functions", 2018 (lowbias32)."""
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x7FEB352D)
    words ^= words >> np.uint32(15)
    words *= np.uint32(0x846CA68B)
    words ^= words >> np.uint32(16)
    return words
