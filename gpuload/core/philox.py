"""Philox4x32-10, vectorised: random numbers as a pure function of a counter and a key.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Whoever holds a
sample's key computes the same draws, on any thread, in any order. Owns no state.
"""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10
_STEPS = np.array([[step * weyl & 0xFFFFFFFF for step in range(ROUNDS)] for weyl in _WEYL], np.uint64)


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """One block of 4 random words per counter.

    counter: uint32 (..., 4). key: uint32 (..., 2), broadcast against the counter's leading axes.
    Returns uint32 (..., 4).
    """
    c0, c1, c2, c3 = np.moveaxis(counter, -1, 0).astype(np.uint64, order="C")  # word by word: half the time of strides
    k0, k1 = np.moveaxis(key, -1, 0).astype(np.uint64, order="C")
    steps = _STEPS.reshape(2, ROUNDS, *[1] * k0.ndim)
    for r0, r1 in zip(k0 + steps[0] & _LOW, k1 + steps[1] & _LOW, strict=True):
        a, b = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> _SHIFT) ^ c1 ^ r0, b & _LOW, (a >> _SHIFT) ^ c3 ^ r1, a & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def split(value: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) 32-bit words of 64-bit integers."""
    wide = np.asarray(value).astype(np.uint64)
    return (wide & _LOW).astype(np.uint32), (wide >> _SHIFT).astype(np.uint32)


def sample_keys(*, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The random key of each sample of an epoch: uint32 (n, 4), distinct for distinct (seed, epoch, position).

    seed, epoch: any Python ints, taken modulo 2**64. positions: int64 (n,), places in the epoch's order.
    """
    counter = np.empty((len(positions), 4), np.uint32)
    counter[:, 0], counter[:, 1] = split(positions)
    counter[:, 2], counter[:, 3] = split(np.uint64(epoch % 2**64))
    return philox(counter, np.array(split(np.uint64(seed % 2**64)), np.uint32))


def view_keys(keys: np.ndarray, view: int) -> np.ndarray:
    """The random keys of one of several views of each sample: uint32 (n, 4); those of view 0 are the sample's own.

    keys: uint32 (n, 4), from `sample_keys`. No counter of `uniforms` ends in this word, so no draw is made twice.
    """
    if view == 0:
        return keys
    counter = np.empty_like(keys)
    counter[:, :2], counter[:, 2], counter[:, 3] = keys[:, 2:], view, 0xFFFFFFFF
    return philox(counter, keys[:, :2])


def uniforms(keys: np.ndarray, *, stream: int, count: int) -> np.ndarray:
    """Draws of each sample for one purpose: float64 (n, count) in [0, 1), 32 random bits each.

    keys: uint32 (n, 4), from `sample_keys`. stream: which purpose (an operation's number): streams don't overlap.
    """
    blocks = -(-count // 4)
    counter = np.empty((len(keys), blocks, 4), np.uint32)
    counter[:, :, :2] = keys[:, None, 2:]
    counter[:, :, 2] = stream
    counter[:, :, 3] = np.arange(blocks, dtype=np.uint32)
    words = philox(counter, keys[:, None, :2])
    return words.reshape(len(keys), 4 * blocks)[:, :count] * 2.0**-32
