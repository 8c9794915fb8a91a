"""What the loader did and where the time went, as values: the immutable snapshot that `loader.stats()` returns.

Owns what the figures mean and their text; counting is `meters.py`'s, judging `verdict.py`'s, drawing `report/`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuload.core.wording import counts, percent, rate, size

if TYPE_CHECKING:
    from gpuload.engine.verdict import Verdict


@dataclass(frozen=True)
class Quantiles:
    """Of many durations, in seconds, each within 5%; `most` is exact."""

    p50: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True)
class StageStats:
    """One stage since the epoch's start.

    threads: how many run it, 0 for finishing, which the decode threads do, and for all with num_workers=0. items:
    images it finished, in so many tasks. busy_s, wait_s: seconds summed over its threads, at work and waiting for work;
    cpu_s: of those at work, on a CPU; thread_s: of all the time that they were there. bytes: what it took in. p50_s,
    p90_s, p99_s: a task's seconds of one thread. queue: mean length of the queue before it (batches, for decode tasks);
    empty: share of the time in which there was nothing in it. Both are 0 with num_workers=0, which has no queues.
    """

    name: str
    threads: int = 0
    items: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    bytes: int = 0
    tasks: int = 0
    cpu_s: float = 0.0
    thread_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    queue: float = 0.0
    empty: float = 0.0


@dataclass(frozen=True)
class QueuePoint:
    """Mean lengths of the queues in the time up to `at_s`, seconds after the epoch's start.

    planned: batches before fetch; decode: tasks before decode; finish: batches whose turn to be finished has not come;
    ready: batches before the consumer.
    """

    at_s: float
    planned: float
    decode: float
    finish: float
    ready: float


@dataclass(frozen=True)
class QueueStats:
    """A queue since the epoch's start: its mean length, and the share of the time in which it was empty."""

    mean: float
    empty: float


@dataclass(frozen=True)
class Queues:
    """All queues of an epoch, named as in QueuePoint. blocked, history: as in Stats."""

    planned: QueueStats
    decode: QueueStats
    finish: QueueStats
    ready: QueueStats
    blocked: float
    history: tuple[QueuePoint, ...]


_NONE = QueueStats(0.0, 0.0)
NO_QUEUES = Queues(_NONE, _NONE, _NONE, _NONE, blocked=0.0, history=())


@dataclass(frozen=True)
class Stats:
    """A snapshot of the current (or last) epoch of one loader.

    path: "accelerated" or "torch"; reasons: why torch's. elapsed_s: from the first request to the last batch handed
    over. images_per_s: images / elapsed_s. first_batch_s: wait for the first batch, None before it.
    consumer_wait_s: seconds the training loop stood in `next()`; starved: its share of elapsed_s, 0 to 1,
    the first batch's wait included. wait_s: its waits for the batches after the first; step_s: its times between
    getting a batch and asking for the next. ready: batches finished and not yet handed over; ready_mean: the same over
    time; ready_empty: share of the time without any. blocked: share of the time in which all that was let in was
    finished and the stages stood still, since the consumer is slower. bytes_in_flight: encoded bytes read and not yet
    decoded. cache_hit_rate: share of the epoch's samples that came from the cache of remote shards, None without one;
    cache_stopped: why it does not grow any more, "" while it does. cpu_s: this process's CPU seconds in elapsed_s;
    cpus: how many it may use. decoders: images by decoder.
    errors: bad samples by kind, since the loader was made; error_file: where each is listed. history: queues over time.
    gpu_utilisation (0 to 1), gpu_memory_bytes, gpu_in_bytes_per_s, gpu_out_bytes_per_s (over PCIe): by NVML, None
    where it doesn't say.
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
    wait_s: Quantiles | None = None
    step_s: Quantiles | None = None
    ready: int = 0
    ready_mean: float = 0.0
    ready_empty: float = 0.0
    blocked: float = 0.0
    bytes_in_flight: int = 0
    cache_hit_rate: float | None = None
    cache_stopped: str = ""
    cpu_s: float = 0.0
    cpus: int = 1
    stages: tuple[StageStats, ...] = ()
    history: tuple[QueuePoint, ...] = field(default=(), repr=False)
    decoders: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    error_file: str | None = None
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_in_bytes_per_s: float | None = None
    gpu_out_bytes_per_s: float | None = None

    def stage(self, name: str) -> StageStats:
        """The stage "fetch", "decode" or "finish"; all zeros where it isn't measured."""
        return next((stage for stage in self.stages if stage.name == name), StageStats(name))

    def busy(self, name: str) -> float:
        """Share of their time, 0 to 1, in which the threads of "fetch" or "decode" (they finish, too) were at work."""
        stage = self.stage(name)
        busy_s = stage.busy_s + (self.stage("finish").busy_s if name == "decode" else 0.0)
        return min(1.0, busy_s / stage.thread_s) if stage.thread_s else 0.0

    @property
    def verdict(self) -> Verdict:
        """What limits the loader, as far as these figures prove it."""
        from gpuload.engine.verdict import judge

        return judge(self)

    def scalars(self, prefix: str = "gpuload/") -> dict[str, float]:
        """Flat names for writers of curves; what isn't known is left out.

        for name, value in loader.stats().scalars().items():
            writer.add_scalar(name, value, step)
        """
        found: dict[str, float | None] = {name: getattr(self, name) for name in _SCALARS}
        for name, times in (("wait", self.wait_s), ("step", self.step_s)):
            if times is not None:
                found |= {f"{name}_p50_s": times.p50, f"{name}_p99_s": times.p99}
        for stage in self.stages:
            found |= {f"{stage.name}/p50_s": stage.p50_s, f"{stage.name}/p99_s": stage.p99_s}
            found |= {f"{stage.name}/queue": stage.queue, f"{stage.name}/bytes": stage.bytes}
            if stage.threads:
                found[f"{stage.name}/busy"] = self.busy(stage.name)
        found["errors"] = sum(self.errors.values())
        return {prefix + name: float(value) for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


_SCALARS = (
    *("images", "batches", "images_per_s", "first_batch_s", "starved", "blocked", "ready", "bytes_in_flight"),
    *("cache_hit_rate", "cpu_s"),
    *("gpu_utilisation", "gpu_memory_bytes", "gpu_in_bytes_per_s", "gpu_out_bytes_per_s"),
)


def _lines(stats: Stats) -> list[str]:
    """The verdict first, then where the time went, then what went wrong; aligned, plain ASCII."""
    lines = [
        f"gpuload epoch {stats.epoch} ({stats.path}): {stats.images} images in {stats.elapsed_s:.2f} s, "
        f"{rate(stats.images_per_s)} images/s, starved {percent(stats.starved)}",
        *(text for text in (stats.verdict.sentence, stats.verdict.advice) if text),
        "first batch "
        + ("not yet" if stats.first_batch_s is None else f"{stats.first_batch_s:.2f} s")
        + f"   ready {stats.ready}   in flight {size(stats.bytes_in_flight)}",
    ]
    lines += [f"not accelerated: {reason}" for reason in stats.reasons]
    if stats.wait_s is not None and stats.step_s is not None:
        lines.append(f"a batch's wait {_spread(stats.wait_s)}   a step {_spread(stats.step_s)}")
    if gpu := gpu_text(stats):
        lines.append(gpu)
    if stats.stages:
        lines += _stage_lines(stats.stages)
    if stats.decoders:
        lines.append(f"decoded by   {counts(stats.decoders)}")
    if stats.errors:
        where = f"   listed in {stats.error_file}" if stats.error_file else ""
        lines.append(f"errors       {counts(stats.errors)}{where}")
    return lines


def milliseconds(duration_s: float) -> str:
    """Three digits that mean something: 0.05 ms, 6.1 ms, 1200 ms."""
    return f"{rate(1e3 * duration_s)} ms"


def _spread(times: Quantiles) -> str:
    return f"p50 {milliseconds(times.p50)}, p99 {milliseconds(times.p99)}, most {milliseconds(times.most)}"


def gpu_text(stats: Stats) -> str:
    """What NVML says, in a line; empty where it says nothing."""
    into, out = stats.gpu_in_bytes_per_s, stats.gpu_out_bytes_per_s
    return "   ".join(
        text
        for text in (
            "" if stats.gpu_utilisation is None else f"GPU busy {percent(stats.gpu_utilisation)}",
            "" if stats.gpu_memory_bytes is None else f"GPU memory {size(stats.gpu_memory_bytes)}",
            "" if into is None or out is None else f"PCIe {size(into)}/s in, {size(out)}/s out",
        )
        if text
    )


def _stage_lines(stages: tuple[StageStats, ...]) -> list[str]:
    width = max(12, *(len(stage.name) for stage in stages))
    titles = ("busy", "waiting", "us/image", "task p50", "task p99", "queue", "read")
    rows = [f"{'stage':<{width}} {'threads':>7} {'images':>9} " + " ".join(f"{title:>9}" for title in titles)]
    for stage in stages:
        each = f"{1e6 * stage.busy_s / stage.items:.0f}" if stage.items else "-"
        p50, p99 = (milliseconds(time_s) if stage.tasks else "-" for time_s in (stage.p50_s, stage.p99_s))
        rows.append(
            f"{stage.name:<{width}} {stage.threads:>7} {stage.items:>9} {stage.busy_s:>7.2f} s {stage.wait_s:>7.2f} s "
            f"{each:>9} {p50:>9} {p99:>9} {stage.queue:>9.1f} {size(stage.bytes) if stage.bytes else '-':>9}"
        )
    return rows
