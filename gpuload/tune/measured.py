"""What a window of batches says: the stages' counters at its two ends, and the consumer's waits and steps between.

Owns turning counters into the costs of a batch. Counters add up over all threads, and a thread that was ready to run
and got no core counts as busy: that time is no cost of the stage's, since the model shares the cores itself. So it is
taken off again, each stage its part by the cores that it used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuload.core.setting import Setting
from gpuload.engine.stats import StageStats
from gpuload.tune.model import Costs

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
USUAL_SPREAD = (0.8, 1.0, 1.2, 1.5, 2.0)
"""A stage's times in parts of their median where they were not measured: a local disk's, and a decoder's on photographs
of many sizes."""

CHANGED = 0.3
"""A rate that is this much another is a change."""

WAITS_MORE = 0.1
"""So is this much more of the time spent waiting."""

DRAWS = 200
"""Values that stand for a distribution."""


@dataclass(frozen=True)
class Window:
    """Some batches on end under one setting. began, ended: the fetch, decode and finish counters.

    core_wait_s: how long threads stood ready without a core (cores.py).
    """

    waits_s: tuple[float, ...]
    steps_s: tuple[float, ...]
    images: int
    began: tuple[StageStats, ...]
    ended: tuple[StageStats, ...]
    setting: Setting
    core_wait_s: float = 0.0

    @classmethod
    def joined(cls, windows: Sequence[Window]) -> Window:
        """Windows that followed one another under one setting, as one."""
        return replace(
            windows[-1],
            waits_s=tuple(wait_s for one in windows for wait_s in one.waits_s),
            steps_s=tuple(step_s for one in windows for step_s in one.steps_s),
            images=sum(one.images for one in windows),
            began=windows[0].began,
            core_wait_s=sum(one.core_wait_s for one in windows),
        )

    @property
    def span_s(self) -> float:
        return max(sum(self.waits_s) + sum(self.steps_s), 1e-9)

    @property
    def images_per_s(self) -> float:
        return self.images / self.span_s

    @property
    def rate_error(self) -> float:
        """The standard error of the rate over the rate, from how batches followed one another."""
        apart_s = np.add(self.waits_s, self.steps_s)
        return float(apart_s.std() / math.sqrt(len(apart_s)) / max(apart_s.mean(), 1e-12))

    @property
    def starved(self) -> float:
        return sum(self.waits_s) / self.span_s

    def unlike(self, other: Window) -> bool:
        """Whether the rate is another, beyond the batches' jitter, or more of the time is spent waiting."""
        one, two = self.images_per_s, other.images_per_s
        other_rate = abs(one - two) > (CHANGED + 2 * self.rate_error) * max(one, two)
        return other_rate or self.starved > other.starved + WAITS_MORE


def costs_of(window: Window) -> Costs:
    """A batch's costs, by what each stage did in the window."""
    batch = window.images / len(window.waits_s)
    stages = list(zip(window.began, window.ended, strict=True))
    cpu_s = sum(ended.cpu_s - began.cpu_s for began, ended in stages)
    wait_a_cpu_s = max(0.0, window.core_wait_s) / cpu_s if cpu_s > 0 else 0.0
    fetch, decode, finish = (_Done.between(began, ended, wait_a_cpu_s) for began, ended in stages)
    decode_s = batch * (decode.cost_s + finish.cost_s)
    tasks = max(1.0, batch * decode.tasks_an_item)
    return Costs(
        images=batch,
        fetch_s=batch * fetch.cost_s * fetch.spread(),
        decode_s=decode_s * (1 + (decode.spread() - 1) / np.sqrt(tasks)),
        finish_s=batch * finish.cost_s,
        fetch_cpu_s=batch * fetch.cpu_s,
        decode_cpu_s=batch * (decode.cpu_s + finish.cpu_s),
        tasks=tasks,
    )


@dataclass(frozen=True)
class _Done:
    """What a stage did between two looks, an item. cost_s: of a thread that never waits for a core; cpu_s: with one."""

    cost_s: float
    cpu_s: float
    tasks_an_item: float
    last: StageStats

    @classmethod
    def between(cls, began: StageStats, ended: StageStats, wait_a_cpu_s: float) -> _Done:
        """wait_a_cpu_s: seconds that a thread waited for a core for each that it had one."""
        items = ended.items - began.items
        if not items:  # none ended in between, as where a batch takes longer than the window
            began, items = StageStats(ended.name), max(1, ended.items)
        busy_s, cpu_s = ended.busy_s - began.busy_s, ended.cpu_s - began.cpu_s
        alone_s = max(busy_s - cpu_s * wait_a_cpu_s, min(busy_s, cpu_s))
        return cls(alone_s / items, cpu_s / items, (ended.tasks - began.tasks) / items, ended)

    def spread(self) -> np.ndarray:
        """The distribution of its times, with a mean of 1."""
        last = self.last
        known = 0 < last.p50_s <= last.p90_s <= last.p99_s
        at = (0.8 * last.p50_s, last.p50_s, last.p90_s, last.p99_s, 1.2 * last.p99_s) if known else USUAL_SPREAD
        drawn = np.interp((np.arange(DRAWS) + 0.5) / DRAWS, QUANTILES, at)
        return drawn / drawn.mean()


def stages_named(stages: Sequence[StageStats]) -> tuple[StageStats, ...]:
    """fetch, decode and finish, in this order."""
    by_name = {stage.name: stage for stage in stages}
    return tuple(by_name.get(name, StageStats(name)) for name in ("fetch", "decode", "finish"))
