"""The engine as a list of events, by another method than the tuner's: threads, tasks and a queue, one event at a time.

The reference for `tune/depth.py`, and the world in which `tune/online.py` is tried without a clock: a setting may
change in mid-run, a link may be full, times may change.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpuload.core.setting import Setting
from gpuload.engine.stats import StageStats


@dataclass
class EventEngine:
    """fetch_s, decode_s, step_s: a batch's times by its number. tasks: pieces of a batch's decoding.

    link: how many batches the storage reads at once, None for any number; the others wait for their turn.
    """

    setting: Setting
    fetch_s: Callable[[int], float]
    decode_s: Callable[[int], float]
    step_s: Callable[[int], float]
    tasks: int = 4
    link: int | None = None
    images: int = 32
    now_s: float = 0.0
    asked_s: list[float] = field(default_factory=list)
    got_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._events: list = []
        self._order = itertools.count()
        self._let_in = self._taken = self._reading = self._decoding = 0
        self._left: dict[int, int] = {}
        self._decodable: list = []
        self._ready: set[int] = set()
        self._asking = False
        self._link_free_s = [0.0] * (self.link or 0)
        self._busy = {"fetch": 0.0, "decode": 0.0}
        self._items = {"fetch": 0, "decode": 0}
        self._times: dict[str, list[float]] = {"fetch": [], "decode": []}

    def stages(self) -> tuple[StageStats, ...]:
        """As the loader's counters: decoding takes a core all the time, reading a twentieth of it."""
        fetch = StageStats(
            "fetch", items=self._items["fetch"], busy_s=self._busy["fetch"], cpu_s=0.05 * self._busy["fetch"],
            tasks=self._items["fetch"] // self.images, **self._quantiles("fetch"),
        )  # fmt: skip
        decode = StageStats(
            "decode", items=self._items["decode"], busy_s=self._busy["decode"], cpu_s=self._busy["decode"],
            tasks=self._items["decode"] * self.tasks // self.images, **self._quantiles("decode"),
        )  # fmt: skip
        return (fetch, decode, StageStats("finish", items=self._items["decode"]))

    def _quantiles(self, stage: str) -> dict[str, float]:
        times = self._times[stage] or [0.0]
        return {f"p{share}_s": float(np.quantile(times, share / 100)) for share in (50, 90, 99)}

    def run(self, batches: int, after: Callable[[EventEngine], Setting | None] = lambda engine: None) -> None:
        """Until the consumer took so many more. after: called with each batch in its hands, as the loader calls."""
        until = self._taken + batches
        if not self.asked_s:
            self._ask()
        while self._taken < until:
            self._admit()
            if self._asking and self._taken in self._ready:
                self._ready.remove(self._taken)
                self._taken += 1
                self._asking = False
                self.got_s.append(self.now_s)
                setting = after(self)
                if setting is not None:
                    self.setting = setting
                self._at(self.step_s(self._taken - 1), self._ask)
                continue
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, delay_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), happen))

    def _ask(self) -> None:
        self._asking = True
        self.asked_s.append(self.now_s)

    def _admit(self) -> None:
        while self._let_in - self._taken < self.setting.depth and self._reading < self.setting.fetch_threads:
            number = self._let_in
            self._let_in, self._reading = number + 1, self._reading + 1
            takes_s = self.fetch_s(number)
            if self.link is not None:
                begin_s = max(self.now_s, heapq.heappop(self._link_free_s))
                takes_s += begin_s - self.now_s
                heapq.heappush(self._link_free_s, self.now_s + takes_s)
            self._at(takes_s, lambda number=number, takes_s=takes_s: self._fetched(number, takes_s))
        while self._decodable and self._decoding < self.setting.decode_threads:
            number, _ = heapq.heappop(self._decodable)
            self._decoding += 1
            takes_s = self.decode_s(number) / self.tasks
            self._at(takes_s, lambda number=number, takes_s=takes_s: self._decoded(number, takes_s))

    def _fetched(self, number: int, took_s: float) -> None:
        self._reading -= 1
        self._busy["fetch"] += took_s
        self._items["fetch"] += self.images
        self._times["fetch"].append(took_s)
        self._left[number] = self.tasks
        for piece in range(self.tasks):
            heapq.heappush(self._decodable, (number, piece))

    def _decoded(self, number: int, took_s: float) -> None:
        self._decoding -= 1
        self._busy["decode"] += took_s
        self._items["decode"] += self.images // self.tasks
        self._times["decode"].append(took_s)
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._ready.add(number)

    def empty(self, skip: int) -> float:
        """Share of steps that had to wait, without the first `skip`."""
        waits = [got > asked for asked, got in zip(self.asked_s, self.got_s, strict=False)][skip:]
        return sum(waits) / len(waits)

    def starved(self, first: int, last: int | None = None) -> float:
        """Share of the time of these batches spent waiting."""
        asked, got = self.asked_s[first:last], self.got_s[first:last]
        waited_s = sum(got_s - asked_s for asked_s, got_s in zip(asked, got, strict=False))
        return waited_s / (got[-1] - asked[0])

    def batches_per_s(self, first: int, last: int | None = None) -> float:
        got = self.got_s[first:last]
        return (len(got) - 1) / (got[-1] - got[0])
