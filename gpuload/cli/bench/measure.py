"""Arrival times of batches to the figures in the table: pure functions, no clock and no loader.

Owns what each figure means. Who ran what when is `worker.py`'s and `run.py`'s.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Epoch:
    """One pass over a loader, in seconds of one monotonic clock.

    started_s: before `iter()`. arrivals_s: when each batch was in the consumer's hands. waits_s: how long the consumer
    stood in `next()` for it. images: images in each batch. ended_s: after the last step.
    """

    started_s: float
    arrivals_s: Sequence[float]
    waits_s: Sequence[float]
    images: Sequence[int]
    ended_s: float


@dataclass(frozen=True)
class Spread:
    """Median and range of one figure over the rounds."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[0], ordered[-1])


def images_per_s(epoch: Epoch, *, workers: int) -> float:
    """Steady rate: the first `workers` batches are left out.

    They are made side by side and arrive as one burst: a window that opened at the first of them and closed at the
    last of a later burst would count one burst too many, which flatters whoever makes whole batches in parallel.
    """
    opened = _warm_up(epoch, workers)
    span_s = epoch.arrivals_s[-1] - epoch.arrivals_s[opened]
    return sum(epoch.images[opened + 1 :]) / span_s


def first_batch_s(epoch: Epoch) -> float:
    """From before `iter()` until the first batch is there."""
    return epoch.arrivals_s[0] - epoch.started_s


def starved(epoch: Epoch, *, workers: int) -> float:
    """Share of wall time that the consumer stood in `next()`, 0 to 1, without the first 2 x `workers` batches.

    The window opens when the last of those has arrived, so it holds the steps and waits of all later ones.
    """
    opened = _warm_up(epoch, 2 * workers)
    span_s = epoch.ended_s - epoch.arrivals_s[opened]
    return sum(epoch.waits_s[opened + 1 :]) / span_s


def wait_p99_s(epoch: Epoch, *, workers: int) -> float:
    """The wait that 99 of 100 batches stay below, without the first 2 x `workers`; the longest of fewer than 100."""
    waits_s = sorted(epoch.waits_s[_warm_up(epoch, 2 * workers) + 1 :])
    return waits_s[max(0, math.ceil(0.99 * len(waits_s)) - 1)]


def first_pass_images_per_s(epoch: Epoch, *, samples: int) -> float:
    """From before `iter()` until every sample may have come once: what later passes read lies in the page cache."""
    counted = list(itertools.accumulate(epoch.images))
    last = next((i for i, images in enumerate(counted) if images >= samples), len(counted) - 1)
    return counted[last] / (epoch.arrivals_s[last] - epoch.started_s)


def boundary_s(before: Epoch, after: Epoch) -> float:
    """From the last batch of one epoch to the first batch of the next."""
    return after.arrivals_s[0] - before.ended_s


def _warm_up(epoch: Epoch, batches: int) -> int:
    count = len(epoch.arrivals_s)
    if count < 3:
        raise ValueError(f"an epoch of {count} batches has no steady state to measure; ask for more images a round")
    return min(max(1, batches), count // 2) - 1


def step_s(torch_images_per_s: float, *, batch_size: int, appetite: float) -> float:
    """How long the timed step is: a GPU that takes `appetite` times as many images/s as torch's loader makes."""
    return batch_size / (appetite * torch_images_per_s)


def round_images(torch_images_per_s: float, *, batch_size: int, workers: int, round_s: float) -> int:
    """Images in a round: about `round_s` seconds of torch's loader, in whole batches, enough for a steady state."""
    batches = max(4 * workers + 4, 12, round(torch_images_per_s * round_s / batch_size))
    return batches * batch_size


def rotations(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Who runs when: every loader once a round, and each round begins with another one."""
    return [[names[(start + i) % len(names)] for i in range(len(names))] for start in range(rounds)]
