"""How deep must the queue be? The chance that the consumer finds it empty, for each depth, by simulation.

Owns the simulation of one epoch's batches through fetching, decoding and the consumer, and the least depth that
suffices. Where its times come from is the caller's: measured ones, of which it draws with a fixed seed.

Method: with a bounded queue each batch's times follow from those of the batches before it, so no event list is
needed. It is Lindley's recursion (The theory of queues with a single server, 1952) for a tandem with blocking: a G/G/c
queue, a G/G/1 queue with the oldest first, a consumer, and at most `depth` batches before it. A batch is let in when
batch n - depth is taken, read when one of c threads is free, decoded in the time that older batches leave idle, and
taken when it is ready and the consumer asks. Draws are independent: a burst longer than a batch is not seen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

EMPTY_BOUND = 0.01
"""An empty queue once in a hundred batches: a twentieth of it would be lost in a step's own jitter, and costs depth."""

RATE_BOUND = 0.01
"""Where the loader is slower than its consumer no depth prevents waiting: the least is sought that is this near to the
fastest."""

BATCHES = 2000
"""Simulated batches: of a chance of 1% the standard error is 0.2%, and a depth takes 4 ms."""


@dataclass(frozen=True)
class Pipeline:
    """What is simulated. fetch_s, decode_s, step_s: measured times of a batch, in seconds, float64 (any number,).

    fetch_threads: batches read at once. decode_s: of one thread; decode_rate: how many threads' worth is done at once.
    spread: how many threads can work on one batch. finish_s: its last part, which one thread does.
    """

    fetch_s: np.ndarray
    decode_s: np.ndarray
    step_s: np.ndarray
    fetch_threads: int
    decode_rate: float
    spread: float = math.inf
    finish_s: float = 0.0


@dataclass(frozen=True)
class Point:
    """One depth. empty: share of steps that had to wait for their batch; starved: share of the time spent waiting."""

    depth: int
    empty: float
    starved: float
    batches_per_s: float


def simulate(pipeline: Pipeline, depth: int, *, batches: int = BATCHES, seed: int = 0) -> Point:
    """`batches` batches, after as many as it takes to fill the queue four times."""
    skipped = 4 * depth + pipeline.fetch_threads
    total = batches + skipped
    draw = np.random.default_rng(seed)
    fetch_s, decode_s, step_s = (
        draw.choice(times, total).tolist() for times in (pipeline.fetch_s, pipeline.decode_s, pipeline.step_s)
    )
    rate, alone = pipeline.decode_rate, min(pipeline.decode_rate, pipeline.spread)
    free_s = [0.0] * pipeline.fetch_threads  # when each fetch thread is free, a heap
    idle = _Idle()
    taken_s: list[float] = []
    asks_s = began_s = waited_s = 0.0
    empty = 0
    for n in range(total):
        let_in_s = taken_s[n - depth] if n >= depth else 0.0
        fetched_s = max(let_in_s, free_s[0]) + fetch_s[n]
        heapq.heapreplace(free_s, fetched_s)
        decoded_s = idle.fill(fetched_s, decode_s[n] / rate, forget_before_s=let_in_s)
        ready_s = max(decoded_s, fetched_s + decode_s[n] / alone) + pipeline.finish_s
        if n == skipped:
            began_s, waited_s, empty = asks_s, 0.0, 0
        if ready_s > asks_s:
            waited_s += ready_s - asks_s
            empty += 1
        taken_s.append(max(ready_s, asks_s))
        asks_s = taken_s[n] + step_s[n]
    span_s = max(asks_s - began_s, 1e-12)
    return Point(depth, empty / batches, waited_s / span_s, batches / span_s)


class _Idle:
    """When the decode threads have nothing to do: gaps between the work they were given, oldest batch first."""

    def __init__(self) -> None:
        self._gaps = [[0.0, math.inf]]

    def fill(self, from_s: float, work_s: float, *, forget_before_s: float) -> float:
        """When `work_s` is done that may begin at `from_s`. No later batch asks for time before `forget_before_s`."""
        gaps = self._gaps
        while gaps[0][1] <= forget_before_s:
            del gaps[0]
        at = 0
        while True:
            gap = gaps[at]
            begin_s, end_s = max(gap[0], from_s), gap[1]
            if end_s <= begin_s:
                at += 1
                continue
            done_s = begin_s + work_s
            before = [[gap[0], begin_s]] if begin_s > gap[0] else []
            if done_s <= end_s:
                gaps[at : at + 1] = [*before, *([[done_s, end_s]] if done_s < end_s else [])]
                return done_s
            work_s -= end_s - begin_s
            gaps[at : at + 1] = before
            at += len(before)


def curve(pipeline: Pipeline, depths: Sequence[int], *, batches: int = BATCHES) -> tuple[Point, ...]:
    """The same draws at each depth."""
    return tuple(simulate(pipeline, depth, batches=batches) for depth in depths)


def least_depth(pipeline: Pipeline, lowest: int, highest: int, *, batches: int = BATCHES) -> Point:
    """The least depth of lowest..highest with a chance of an empty queue under EMPTY_BOUND.

    Where none has it: the least whose rate is within RATE_BOUND of the highest's.
    """
    tried: dict[int, Point] = {}

    def at(depth: int) -> Point:
        if depth not in tried:
            tried[depth] = simulate(pipeline, depth, batches=batches)
        return tried[depth]

    best = at(highest)
    if best.empty < EMPTY_BOUND:
        return at(_least(lowest, highest, lambda depth: at(depth).empty < EMPTY_BOUND))
    bound = best.batches_per_s * (1 - RATE_BOUND)
    return at(_least(lowest, highest, lambda depth: at(depth).batches_per_s >= bound))


def _least(lowest: int, highest: int, suffices: Callable[[int], bool]) -> int:
    """The least that suffices, where more suffices, too, and `highest` does. Tries few beyond twice of it."""
    low, high = lowest, lowest
    while high < highest and not suffices(high):
        low, high = high + 1, min(2 * high, highest)
    while low < high:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    return high
