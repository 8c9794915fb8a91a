"""Runs of a loader without a clock: the engine of single events in place of the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gpuload.cli.tune import search as module
from gpuload.cli.tune.consumer import Consumer, timed
from gpuload.cli.tune.measure import Run
from gpuload.cli.tune.search import Found
from gpuload.core.setting import Setting
from gpuload.tune.measured import Window
from tests.tune.event_engine import EventEngine

BATCH_BYTES = 32 * 3 * 64 * 64 * 4


@dataclass
class TunedWorld:
    """Stands in for a `Tuned`: its loaders are settings, and `run` makes the events. Times of a batch, in seconds."""

    fetch_s: float
    decode_s: float
    link: int | None = None
    dataset: Any = None
    repeats: bool = False
    runs: list[Setting] = field(default_factory=list)

    @property
    def default(self) -> Setting:
        return Setting(2, 2, 3)

    def loader(self, setting: Setting) -> Setting:
        return setting

    def run(self, setting: Setting, consumer: Consumer | None = None, *, seconds: float) -> Run:
        self.runs.append(setting)
        steps_s = (0.0,) if consumer is None else consumer.steps_s
        noise = np.random.default_rng(len(self.runs)).lognormal(-0.02, 0.2, (2, 1024)).tolist()
        engine = EventEngine(
            setting,
            lambda n: self.fetch_s * noise[0][n % 1024],
            lambda n: self.decode_s * noise[1][n % 1024],
            lambda n: steps_s[n % len(steps_s)],
            link=self.link,
        )
        engine.run(100)
        began, first = engine.stages(), len(engine.got_s)
        engine.run(300)
        got, asked = np.array(engine.got_s[first - 1 :]), np.array(engine.asked_s[first - 1 : first + 300])
        window = Window(
            tuple((got[1:] - asked[1:]).tolist()), tuple((asked[1:] - got[:-1]).tolist()), 300 * engine.images,
            began, engine.stages(), setting,
        )  # fmt: skip
        cpu_s = sum(one.cpu_s for one in engine.stages()) - sum(one.cpu_s for one in began)
        return Run(setting, window, cpu_s, BATCH_BYTES, 0)


def found_in(
    world: TunedWorld, monkeypatch: pytest.MonkeyPatch, *, step_ms: float, cores: int = 2, **more: Any
) -> Found:
    """What the search finds in such a world."""
    monkeypatch.setattr(module, "run", world.run)
    monkeypatch.setattr(
        module, "alone", lambda tuned, *, seconds, decoder: world.run(Setting(1, 1, 1), seconds=seconds)
    )
    monkeypatch.setattr(module, "default_threads", lambda: cores)
    tuned: Any = world
    return module.search(tuned, timed(step_ms, 0.1), **{"memory_bytes": 1 << 30, **more})
