"""Why a full cache keeps what it has: who knows the order of the next epoch, and evicts by it, has no more hits.

Belady's rule, the optimum (L. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966), over
epochs that each take every chunk once in an order of their own: what disk_cache.py does not do, and why.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import pytest

CHUNKS, EPOCHS = 600, 8


@dataclass(frozen=True)
class Epochs:
    """Shares of an epoch's chunks: those that were in the cache, and those that were written into it."""

    hits: float
    writes: float


def belady(capacity: int, seed: int) -> Epochs:
    """Each chunk's next use is known; the one that is used last leaves, or does not come in."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(CHUNKS) for _ in range(EPOCHS + 1)]
    places = [np.argsort(order) for order in orders]
    next_use: dict[int, int] = {}
    by_use: list[tuple[int, int]] = []  # (-next use, chunk), some of them out of date
    hits = writes = 0
    for epoch, order in enumerate(orders[:-1]):
        counts = epoch > 1  # the cache is filled by then
        for chunk in order.tolist():
            use = (epoch + 1) * CHUNKS + int(places[epoch + 1][chunk])
            hit = chunk in next_use
            if not hit and len(next_use) == capacity:
                while next_use.get(by_use[0][1]) != -by_use[0][0]:
                    heapq.heappop(by_use)
                if -by_use[0][0] <= use:
                    continue
                del next_use[heapq.heappop(by_use)[1]]
            hits += counts and hit
            writes += counts and not hit
            next_use[chunk] = use
            heapq.heappush(by_use, (-use, chunk))
    return Epochs(hits / CHUNKS / (EPOCHS - 2), writes / CHUNKS / (EPOCHS - 2))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75])
def test_knowing_the_next_epochs_order_gives_no_more_hits_and_costs_writes(share):
    best = belady(int(share * CHUNKS), seed=0)
    assert best.hits <= share + 0.005  # what keeping gives: every chunk that is held is used once an epoch
    assert best.writes > 0.15  # of all data, each epoch; keeping writes nothing
