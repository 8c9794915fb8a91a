"""From what a batch costs to the setting that feeds a consumer: the bottleneck law, with the cores shared.

Owns the prediction of a rate and the choice of a setting within limits. The queue's depth is `depth.py`'s; where costs
come from, and whether a prediction came true, is `online.py`'s and `cli/tune/`'s.

Throughput is at most each stage's threads over its time a batch, and at most the cores over the CPU time that a batch
takes in all stages together (Denning and Buzen, The operational analysis of queueing network models, 1978). A stage
that waits for storage takes no core meanwhile, so more of its threads help until the link is full, which shows as a
longer time a batch: a model knows that only when it has been measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gpuload.core.setting import Setting
from gpuload.tune.depth import BATCHES, EMPTY_BOUND, RATE_BOUND, Pipeline, Point, least_depth, simulate
from gpuload.tune.limits import Limits

SPARE = (1.15, 1.5, 2.0, 3.0)
"""Threads are reckoned for so much more than is needed, the first that suffices: a stage that is busy all the time
makes all others wait, and one whose times vary much needs more."""


FED = 0.02
"""A consumer that waits for less of the time does not show how fast its loader is."""

COMPUTES = 0.8
"""Share of its time for which decoding must have a core to need no more threads than there are cores."""

MOST_OFF = 4.0
"""So many times slower, or faster, than the stages' times say may a loader be that is believed to be understood."""


@dataclass(frozen=True)
class Costs:
    """What one batch costs, measured; in seconds.

    fetch_s, decode_s: of one thread, without waiting for a core; float64, a value for each of some batches. decode_s
    is with finish_s, the part that a batch's last thread does alone. fetch_cpu_s, decode_cpu_s: what of it takes a
    core, on average. other_cpu_s: what else takes one for each batch, the consumer's own work. images: in a batch.
    tasks: in how many pieces a batch is decoded.
    """

    images: float
    fetch_s: np.ndarray
    decode_s: np.ndarray
    finish_s: float
    fetch_cpu_s: float
    decode_cpu_s: float
    other_cpu_s: float = 0.0
    tasks: float = math.inf

    @property
    def cpu_s(self) -> float:
        return self.fetch_cpu_s + self.decode_cpu_s + self.other_cpu_s

    def slower(self, factor: float) -> Costs:
        """All of it `factor` times as long."""
        times = ("fetch_s", "decode_s", "finish_s", "fetch_cpu_s", "decode_cpu_s", "other_cpu_s")
        return replace(self, **{name: getattr(self, name) * factor for name in times})


@dataclass(frozen=True)
class Bound:
    """What limits the rate, and to how many batches a second."""

    what: str
    batches_per_s: float


@dataclass(frozen=True)
class Prediction:
    """What is to be expected of a setting. empty, starved: see depth.Point. bound: what limits it."""

    setting: Setting
    images_per_s: float
    empty: float
    starved: float
    bound: Bound


def bounds(costs: Costs, setting: Setting, cores: float, step_s: np.ndarray) -> tuple[Bound, ...]:
    """All of them, the tightest first."""
    found = (
        Bound("storage", _over(setting.fetch_threads, float(np.mean(costs.fetch_s)))),
        Bound("decode threads", _over(setting.decode_threads, float(np.mean(costs.decode_s)))),
        Bound("cores", _over(cores, costs.cpu_s)),
        Bound("training step", _over(1.0, float(np.mean(step_s)))),
    )
    return tuple(sorted(found, key=lambda bound: bound.batches_per_s))


def _over(threads: float, seconds: float) -> float:
    return threads / seconds if seconds > 0 else math.inf


def pipeline(costs: Costs, setting: Setting, cores: float, step_s: np.ndarray) -> Pipeline:
    """The queue under this setting, decoding as fast as the cores that others leave it allow."""
    rate = bounds(costs, setting, cores, step_s)[0].batches_per_s
    if math.isinf(rate):
        rate = 0.0
    decode_s = float(np.mean(costs.decode_s))
    left = max(cores - rate * (costs.cpu_s - costs.decode_cpu_s), 0.05 * cores)
    computing = costs.decode_cpu_s / decode_s if decode_s > 0 else 0.0
    parallel = min(setting.decode_threads, left / computing) if computing > 0 else setting.decode_threads
    return Pipeline(
        fetch_s=costs.fetch_s,
        decode_s=costs.decode_s,
        step_s=step_s,
        fetch_threads=setting.fetch_threads,
        decode_rate=parallel,
        spread=max(1.0, costs.tasks),
        finish_s=costs.finish_s,
    )


def predict(costs: Costs, setting: Setting, limits: Limits, step_s: np.ndarray) -> Prediction:
    """What a loader under `setting` gives a consumer that takes `step_s` a batch (zeros: one that only takes)."""
    return _prediction(costs, setting, limits, step_s, simulate(pipeline(costs, setting, limits.cores, step_s),
                                                                setting.depth))  # fmt: skip


def _prediction(costs: Costs, setting: Setting, limits: Limits, step_s: np.ndarray, point: Point) -> Prediction:
    bound = bounds(costs, setting, limits.cores, step_s)[0]
    return Prediction(setting, costs.images * point.batches_per_s, point.empty, point.starved, bound)


def choose(costs: Costs, limits: Limits, step_s: np.ndarray, *, batches: int = BATCHES) -> Prediction:
    """The smallest setting within `limits` that keeps the consumer fed, or else gives the most images.

    A rate is aimed at that the consumer, the cores and the most threads allow; then each stage gets the threads that
    it takes, with SPARE, and the queue its least depth. batches: simulated for each depth that is tried.
    """
    aim = bounds(costs, limits.most, limits.cores, step_s)[0].batches_per_s
    cores = math.ceil(limits.cores)
    if math.isinf(aim):
        return predict(costs, limits.clipped(Setting(1, cores, 2)), limits, step_s)

    def threads(seconds: np.ndarray, spare: float) -> int:
        return max(1, math.ceil(spare * aim * float(np.mean(seconds)) - 1e-9))

    found: list[Prediction] = []
    for spare in SPARE:
        decode = max(cores, _waiting(costs, threads(costs.decode_s, spare)))
        setting = limits.clipped(Setting(threads(costs.fetch_s, spare), decode, limits.most.depth))
        if found and setting == replace(found[-1].setting, depth=limits.most.depth):
            break
        flow = pipeline(costs, setting, limits.cores, step_s)
        point = least_depth(flow, limits.least.depth, limits.most.depth, batches=batches)
        found.append(_prediction(costs, replace(setting, depth=point.depth), limits, step_s, point))
        if suffices(found[-1]):
            break
    enough = max(one.images_per_s for one in found) * (1 - RATE_BOUND)
    best = next(one for one in found if one.images_per_s >= enough)
    if suffices(best):
        return best
    # where every stage runs all the time a batch more pays: threads end the task that they began, simulated ones don't
    setting = limits.clipped(replace(best.setting, depth=best.setting.depth + 1))
    return predict(costs, setting, limits, step_s)


def _waiting(costs: Costs, threads: int) -> int:
    """So many decode threads where they wait for something; 0 where they compute, as more than cores don't help."""
    waits = costs.decode_cpu_s < COMPUTES * float(np.mean(costs.decode_s))
    return threads if waits else 0


def calibrated(
    costs: Costs, setting: Setting, limits: Limits, step_s: np.ndarray, images_per_s: float, starved: float
) -> Costs:
    """Costs by which the model gives what was measured under `setting`: so much slower, or faster, in all stages.

    What the model does not know (a lock, a cache, a neighbour on the machine) is spread over all alike. A consumer that
    was fed says nothing of how fast the loader could be: the costs are then as they are, or faster if they would not
    have fed it.
    """

    def rate(factor: float) -> float:
        return predict(costs.slower(factor), setting, limits, step_s).images_per_s

    if starved < FED and rate(1.0) >= images_per_s * (1 - FED):
        return costs
    low, high = 1 / MOST_OFF, MOST_OFF
    for _ in range(10):
        middle = math.sqrt(low * high)
        if rate(middle) > images_per_s:
            low = middle
        else:
            high = middle
    return costs.slower(math.sqrt(low * high))


def suffices(prediction: Prediction) -> bool:
    """Whether the consumer practically never waits."""
    return prediction.empty < EMPTY_BOUND
