"""What the loader did and where the time went: counters that stages add to, and the immutable snapshot.

Owns the meters (one a stage, one lock each, touched once a task and never once an image) and `Stats`,
which `loader.stats()` returns and `print` shows. Drawing it is `report/`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuload.core.wording import counts, percent, rate, size


@dataclass(frozen=True)
class StageStats:
    """One stage since the epoch's start.

    threads: how many run it. items: images it finished. busy_s, wait_s: seconds summed over its threads,
    at work and waiting for work. bytes: what it took in.
    """

    name: str
    threads: int = 0
    items: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Stats:
    """A snapshot of the current (or last) epoch of one loader.

    path: "accelerated" or "torch"; reasons: why torch's. elapsed_s: from the first request to the last batch handed
    over. images_per_s: images / elapsed_s. first_batch_s: wait for the first batch, None before it.
    consumer_wait_s: seconds the training loop stood in `next()`; starved: its share of elapsed_s, 0 to 1,
    the first batch's wait included. ready: batches finished and not yet handed over. bytes_in_flight: encoded
    bytes read and not yet decoded. decoders: images by decoder. errors: bad samples by kind, since the loader
    was made; error_file: where each is listed. gpu_utilisation (0 to 1), gpu_memory_bytes: by NVML, None without.
    """

    path: str
    reasons: tuple[str, ...] = ()
    epoch: int = 0
    elapsed_s: float = 0.0
    images: int = 0
    batches: int = 0
    images_per_s: float = 0.0
    first_batch_s: float | None = None
    consumer_wait_s: float = 0.0
    starved: float = 0.0
    ready: int = 0
    bytes_in_flight: int = 0
    stages: tuple[StageStats, ...] = ()
    decoders: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    error_file: str | None = None
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None

    def __str__(self) -> str:
        return _text(self)


def _text(stats: Stats) -> str:
    """The verdict first, then where the time went, then what went wrong; aligned, plain ASCII."""
    lines = [
        f"gpuload epoch {stats.epoch} ({stats.path}): {stats.images} images in {stats.elapsed_s:.2f} s, "
        f"{rate(stats.images_per_s)} images/s, starved {percent(stats.starved)}",
        "first batch "
        + ("not yet" if stats.first_batch_s is None else f"{stats.first_batch_s:.2f} s")
        + f"   ready {stats.ready}   in flight {size(stats.bytes_in_flight)}",
    ]
    lines += [f"not accelerated: {reason}" for reason in stats.reasons]
    if stats.gpu_utilisation is not None:
        memory = "" if stats.gpu_memory_bytes is None else f"   GPU memory {size(stats.gpu_memory_bytes)}"
        lines.append(f"GPU busy {percent(stats.gpu_utilisation)}{memory}")
    if stats.stages:
        lines += _stage_lines(stats.stages)
    if stats.decoders:
        lines.append(f"decoded by   {counts(stats.decoders)}")
    if stats.errors:
        where = f"   listed in {stats.error_file}" if stats.error_file else ""
        lines.append(f"errors       {counts(stats.errors)}{where}")
    return "\n".join(lines)


def _stage_lines(stages: tuple[StageStats, ...]) -> list[str]:
    width = max(12, *(len(stage.name) for stage in stages))
    head = f"{'stage':<{width}} {'threads':>7} {'images':>9} {'busy':>9} {'waiting':>9} {'us/image':>9} {'read':>9}"
    rows = [head]
    for stage in stages:
        each = f"{1e6 * stage.busy_s / stage.items:.0f}" if stage.items else "-"
        rows.append(
            f"{stage.name:<{width}} {stage.threads:>7} {stage.items:>9} {stage.busy_s:>7.2f} s {stage.wait_s:>7.2f} s "
            f"{each:>9} {size(stage.bytes) if stage.bytes else '-':>9}"
        )
    return rows


class Meter:
    """Adds up one stage's work. Thread-safe; touched once a task."""

    def __init__(self, name: str, threads: int = 0):
        self.name, self.threads = name, threads
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from zero: a new epoch."""
        with self._lock:
            self._items, self._bytes, self._busy_s, self._wait_s = 0, 0, 0.0, 0.0

    def add(self, *, items: int = 0, nbytes: int = 0, busy_s: float = 0.0, wait_s: float = 0.0) -> None:
        with self._lock:
            self._items += items
            self._bytes += nbytes
            self._busy_s += busy_s
            self._wait_s += wait_s

    def snapshot(self) -> StageStats:
        with self._lock:
            return StageStats(self.name, self.threads, self._items, self._busy_s, self._wait_s, self._bytes)


class Consumer:
    """What the training loop saw of one epoch: its waits, written by its own thread only."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.last = self.started
        self.first_batch_s: float | None = None
        self.wait_s = 0.0
        self.images = self.batches = 0

    def received(self, asked_at: float, images: int) -> None:
        """A batch of `images` images was asked for at `asked_at` (perf_counter) and has now been handed over."""
        self.last = time.perf_counter()
        if self.first_batch_s is None:
            self.first_batch_s = self.last - self.started
        self.wait_s += self.last - asked_at
        self.images += images
        self.batches += 1
