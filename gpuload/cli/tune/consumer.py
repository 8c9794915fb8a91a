"""Who takes the batches: steps of a given length with jitter, or those that a script was seen to take.

Owns what a step is and how one is spent in place of a GPU's; recording a script's is script.py's.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ConfigError

DRAWS = 997
"""Steps before they repeat."""


@dataclass(frozen=True)
class Consumer:
    """steps_s: how long steps are, in turn, over and over. cpu_s: what of each takes a core. what: for people."""

    steps_s: tuple[float, ...]
    cpu_s: float
    what: str

    @property
    def mean_s(self) -> float:
        return sum(self.steps_s) / len(self.steps_s)

    @property
    def array(self) -> np.ndarray:
        return np.asarray(self.steps_s)

    def steps(self) -> Iterator[float]:
        """For ever."""
        return itertools.cycle(self.steps_s)

    def spend(self, step_s: float) -> None:
        """Take as long as one step, and as much of a core; as a GPU's step, without Python's lock."""
        until_s = time.perf_counter() + step_s
        if self.cpu_s:
            computed_s = time.thread_time() + self.cpu_s
            while time.thread_time() < computed_s:
                hashlib.sha256(_WORK)
        left_s = until_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


_WORK = bytes(1 << 16)
"""Hashed without Python's lock, in about 50 us."""

TAKES_AT_ONCE = Consumer((0.0,), 0.0, "a consumer that only takes")


def timed(step_ms: float, jitter: float) -> Consumer:
    """Steps of this mean, log-normal with a standard deviation of `jitter` times it. They take no core, as a GPU's."""
    if not (math.isfinite(step_ms) and step_ms >= 0):
        raise ConfigError(f"--step-ms {step_ms}: give the milliseconds of a training step")
    if not 0 <= jitter <= 2:
        raise ConfigError(f"--jitter {jitter}: give the standard deviation of a step over its mean, 0 to 2")
    sigma = math.sqrt(math.log1p(jitter**2))
    times = np.random.default_rng(0).lognormal(-(sigma**2) / 2, sigma, DRAWS) * step_ms / 1000
    return Consumer(tuple(times.tolist()), 0.0, f"a step of {step_ms:g} ms, {jitter:.0%} jitter")


def recorded(steps_s: Sequence[float], cpu_s: float, script: str) -> Consumer:
    """The steps of a script, in the order in which they were taken."""
    found = Consumer(tuple(steps_s), cpu_s, "")
    return Consumer(found.steps_s, cpu_s, f"{script}: {len(steps_s)} steps of {1000 * found.mean_s:.1f} ms on average, "
                                          f"{1000 * cpu_s:.1f} ms of a core each")  # fmt: skip
