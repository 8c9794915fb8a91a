"""A Work whose steps sleep, fail and count as a test tells them, so that a flow's rules can be watched.

Its batches hold no pixels: what is checked is which step ran when, how many were under way, and what came out.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuload.core.batch import BatchPlan, EncodedBatch
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.flow import Flow
from gpuload.engine.meters import Meter
from gpuload.engine.threads import ThreadPool
from gpuload.engine.work import Finished


def plan(number: int, rows: int = 6) -> BatchPlan:
    ids = np.arange(number * 100, number * 100 + rows)
    return BatchPlan(number, ids, ids)


@dataclass(eq=False)
class FakeFilling:
    plan: BatchPlan
    encoded: EncodedBatch
    decoded: list[int] = field(default_factory=list)


def nothing(step: str, number: int) -> None:
    """Neither waits nor fails."""


@dataclass(eq=False)
class FakeWork:
    """What Flow asks of a Work. during(step, batch): runs in "fetch", "decode", "finish"; may sleep, wait or raise.

    nbytes: of a batch's encoded data, by number. ahead: by number, most of the flow's bytes while it was decoded.
    """

    during: Callable[[str, int], None] = nothing
    nbytes: Mapping[int, int] = field(default_factory=dict)
    rows_per_task: int = 2
    steps: list[tuple[str, int]] = field(default_factory=list)
    ahead: dict[int, int] = field(default_factory=dict)
    fillings: list[FakeFilling] = field(default_factory=list)
    flow: Flow | None = None
    empty: frozenset[int] = frozenset()  # batches of which every sample is left out
    bad: BadSamples = field(default_factory=BadSamples)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def decoder(self) -> Any:
        return SimpleNamespace(rows_per_task=lambda encoded: self.rows_per_task)

    def fetch(self, batch: BatchPlan) -> EncodedBatch:
        self._step("fetch", batch.number)
        data = np.zeros(self.nbytes.get(batch.number, 10), np.uint8)
        return EncodedBatch(data, np.zeros(len(batch), np.int64), np.zeros(len(batch), np.int64))

    def fill(self, batch: BatchPlan, encoded: EncodedBatch, stop: np.ndarray | None = None) -> FakeFilling:
        return FakeFilling(batch, encoded)

    def decode(self, filling: FakeFilling, rows: range) -> None:
        if self.flow is not None:
            with self._lock:
                self.ahead[filling.plan.number] = max(self.ahead.get(filling.plan.number, 0), self.flow.nbytes)
        self._step("decode", filling.plan.number)
        with self._lock:
            filling.decoded += rows

    def finish(self, filling: FakeFilling) -> Finished:
        self._step("finish", filling.plan.number)
        assert sorted(filling.decoded) == list(range(len(filling.plan)))
        if filling.plan.number in self.empty:
            return Finished(filling.plan.number, 0, empty=True)
        return Finished(filling.plan.number, len(filling.plan), sent=filling.plan.ids.tolist())

    def _step(self, step: str, number: int) -> None:
        with self._lock:
            self.steps.append((step, number))
        self.during(step, number)


@dataclass
class Running:
    """A flow on two pools of its own, closed at the end of the test."""

    flow: Flow
    pools: tuple[ThreadPool, ThreadPool]

    def close(self) -> None:
        self.flow.cancel()
        for pool in self.pools:
            pool.close()


def running(work: FakeWork, *, depth: int = 3, max_bytes: int = 1 << 20, in_order: bool = True, threads: int = 3):
    pools = ThreadPool("fetch", 2, meter=Meter("fetch")), ThreadPool("decode", threads, meter=Meter("decode"))
    flow = Flow(work, 0, *pools, depth, max_bytes, in_order)  # type: ignore[arg-type]
    work.flow = flow
    return Running(flow, pools)


def exit_code(child: int, within_s: float = 30.0) -> int | str:
    """How a forked child ended; "hung" where it had to be killed."""
    ended = [0, 0]

    def has_ended() -> bool:
        ended[:] = os.waitpid(child, os.WNOHANG)
        return ended[0] != 0

    if eventually(has_ended, within_s):
        return os.waitstatus_to_exitcode(ended[1])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    """Whether `condition` comes true; the time is for a machine that is busy with other things."""
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True
