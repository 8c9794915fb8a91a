"""Loaders run for a while under a consumer, and what came of it: a rate, its waits, the costs of a batch.

Owns the clock around a real loader. What to run is search.py's; what the counters mean is `tune/measured.py`'s.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.cli.tune.consumer import TAKES_AT_ONCE, Consumer
from gpuload.config import default_threads
from gpuload.core.errors import ConfigError
from gpuload.core.setting import Setting
from gpuload.sources import understand
from gpuload.tune.cores import core_wait_s
from gpuload.tune.limits import Limits
from gpuload.tune.measured import Window, costs_of, stages_named
from gpuload.tune.model import Costs

LEAST_BATCHES = 30
"""Of one run: fewer say nothing of a p99, nor of a chance of 1%."""


@dataclass(frozen=True)
class Tuned:
    """What is to be tuned: a data set, its batches, and gpuload's other arguments."""

    dataset: Any
    batch_size: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def loader(self, config: Setting | Limits | None, **more: Any) -> Any:
        """A loader whose epoch does not end, in a fixed random order. config: as DataLoader's."""
        from gpuload.loader import DataLoader

        given = {"accelerate": "require", "config": config, **self.options, **more}
        return DataLoader(self.dataset, self.batch_size, sampler=Endless(len(self.dataset)), **given)

    @property
    def default(self) -> Setting:
        """What a loader of this data begins with. One fetch thread: its source allows no more."""
        source = understand(self.dataset).open_source()
        source.close()
        return Setting(source.fetch_threads, default_threads(), self.loader(None).depth)

    @property
    def repeats(self) -> bool:
        """Whether a run of the least length sees samples twice."""
        return len(self.dataset) < LEAST_BATCHES * self.batch_size


@dataclass(frozen=True)
class Endless:
    """A sampler: random permutations of `samples` ids, one after the other."""

    samples: int

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[int]:
        if not self.samples:
            raise ConfigError("the data set holds no sample: there is nothing to measure")
        draw = np.random.default_rng(0)
        return itertools.chain.from_iterable(draw.permutation(self.samples).tolist() for _ in itertools.count())


@dataclass(frozen=True)
class Run:
    """One loader under one consumer. batch_bytes: of a finished batch. resident_bytes: of the process, at the end.

    cpu_s: of the process, over the window.
    """

    setting: Setting
    window: Window
    cpu_s: float
    batch_bytes: int
    resident_bytes: int

    @property
    def images_per_s(self) -> float:
        return self.window.images_per_s

    @property
    def starved(self) -> float:
        return self.window.starved

    @property
    def step_s(self) -> np.ndarray:
        """The consumer's steps as they were: on a busy machine they are longer than it was told."""
        return np.asarray(self.window.steps_s)

    def wait_s(self, share: float) -> float:
        """The wait that this share of steps does not exceed."""
        return float(np.quantile(self.window.waits_s, share))

    def costs(self, consumer: Consumer) -> Costs:
        """A batch's; what else took a core than the stages and the consumer's own step is with it."""
        found = costs_of(self.window)
        other_s = self.cpu_s / len(self.window.waits_s) - found.fetch_cpu_s - found.decode_cpu_s
        return replace(found, other_cpu_s=max(0.0, other_s, consumer.cpu_s))


class Session:
    """One loader and its consumer, for as long as it is asked: `take` some batches, `measure` for a while, `close`."""

    def __init__(self, loader: Any, consumer: Consumer = TAKES_AT_ONCE):
        self._loader, self._consumer = loader, consumer
        self._batches, self._steps = iter(loader), consumer.steps()

    @property
    def setting(self) -> Setting:
        """How the loader runs now."""
        return self._loader.setting or Setting(1, 1, 1)

    def take(self, batches: int) -> None:
        for _ in range(batches):
            self._batch = next(self._batches)
            self._consumer.spend(next(self._steps))

    def fill(self) -> None:
        """Take the batches that were waiting, and as many as it takes until they come as they are made."""
        self.take(self.setting.depth + self.setting.fetch_threads + 2)

    def rest(self, limit_s: float = 10.0) -> None:
        """Wait until the loader has made all that it may, and takes no core from another that is measured."""
        until_s = time.perf_counter() + limit_s
        while self._loader.stats().ready < self.setting.depth and time.perf_counter() < until_s:
            time.sleep(0.02)

    def measure(self, seconds: float) -> Run:
        """For `seconds`, and at least LEAST_BATCHES. After `take`."""
        batch_bytes, images = tensor_bytes(self._batch), 0
        waits_s: list[float] = []
        steps_s: list[float] = []
        began = stages_named(self._loader.stats().stages)
        cpu_s, core_s, asked_s = time.process_time(), core_wait_s(), time.perf_counter()
        until_s = asked_s + seconds
        while asked_s < until_s or len(waits_s) < LEAST_BATCHES:
            self._batch = next(self._batches)
            got_s = time.perf_counter()
            waits_s.append(got_s - asked_s)
            images += _images(self._batch)
            self._consumer.spend(next(self._steps))
            asked_s = time.perf_counter()
            steps_s.append(asked_s - got_s)
        ended = stages_named(self._loader.stats().stages)
        window = Window(tuple(waits_s), tuple(steps_s), images, began, ended, self.setting, core_wait_s() - core_s)
        return Run(self.setting, window, time.process_time() - cpu_s, batch_bytes, resident_bytes())

    def close(self) -> None:
        """Stop the loader's threads."""
        del self._batches, self._loader


def run(loader: Any, consumer: Consumer = TAKES_AT_ONCE, *, seconds: float) -> Run:
    """Takes batches for `seconds`, and at least LEAST_BATCHES, after those that fill the queue."""
    session = Session(loader, consumer)
    session.fill()
    return session.measure(seconds)


def alone(tuned: Tuned, *, seconds: float, **more: Any) -> Run:
    """One thread does everything, so that no stage waits for a core or for another one."""
    return run(tuned.loader(None, num_workers=0, **more), seconds=seconds)


def tensor_bytes(batch: Any) -> int:
    """Of all tensors in a batch."""
    return sum(leaf.nbytes for leaf in _leaves(batch) if hasattr(leaf, "nbytes"))


def _images(batch: Any) -> int:
    return next(len(leaf) for leaf in _leaves(batch) if hasattr(leaf, "nbytes") and leaf.ndim)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0
