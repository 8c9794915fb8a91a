"""What `loader.stats()` speaks of: the loader's current or last epoch, on either path.

Owns putting the snapshot together from the consumer's clock, the flow and its meters, and who is told of it and when:
the progress line, callbacks, the trace. Holds no iterator, so that watching an epoch does not keep it alive. In a
forked child it speaks of the consumer alone: the rest is behind locks that a thread of the parent may have held.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gpuload.config import default_threads
from gpuload.core.errors import ConfigError
from gpuload.device.nvml import GpuStatus, gpu_status
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.meters import Consumer
from gpuload.engine.stats import Stats
from gpuload.report.progress import INTERVAL_S, ProgressLine
from gpuload.report.trace import TraceFile

if TYPE_CHECKING:
    from gpuload.engine.flow import Flow, InlineFlow


class View(Protocol):
    """Where an epoch is shown. Consumer's thread; `close` once, perhaps while the iterator is collected."""

    def update(self, stats: Stats) -> None: ...
    def close(self) -> None: ...


@dataclass
class Watcher:
    """Somebody who wants to be told every `every_s` seconds, and at an epoch's end."""

    callback: Callable[[Stats], object]
    every_s: float
    told_at: float = field(default_factory=perf_counter)


def watcher(callback: Callable[[Stats], object], every_s: float) -> Watcher:
    """Raises ConfigError for what can't be called, or not so often."""
    if not callable(callback):
        raise ConfigError(f"on_stats takes a function of one Stats, got {callback!r}")
    if not every_s > 0:
        raise ConfigError(f"every_s must be a number of seconds above 0, got {every_s!r}")
    return Watcher(callback, every_s)


@dataclass
class EpochRecord:
    """One epoch. flow: None on torch's path, and then reasons say why. view: where it is shown, None for nowhere."""

    bad: BadSamples
    device: torch.device
    number: int = 0
    flow: Flow | InlineFlow | None = None
    view: View | None = None
    watchers: list[Watcher] = field(default_factory=list)
    trace: TraceFile | None = None
    reasons: tuple[str, ...] = ()
    consumer: Consumer = field(default_factory=Consumer)
    pid: int = field(default_factory=os.getpid)
    cpus: int = field(default_factory=default_threads)
    _drawn_at: float = 0.0
    _cached_before: Any = None  # what the cache had given when the epoch began
    _end: weakref.finalize | None = None  # closes the view with the iterator

    def __post_init__(self) -> None:
        self._cached_before = _cache_stats(self.flow)

    def asked(self, asked_at: float) -> None:
        """A batch is asked for. The epoch's clocks start with its first."""
        if self.consumer.begins(asked_at) and self.flow is not None:
            self.flow.restart_clock()

    def received(self, asked_at: float, images: int) -> None:
        """A batch of `images` images, asked for at `asked_at` (perf_counter), goes to the consumer now."""
        consumer = self.consumer
        consumer.received(asked_at, images)
        due = [watching for watching in self.watchers if consumer.last - watching.told_at >= watching.every_s]
        draw = self.view is not None and consumer.last - self._drawn_at >= INTERVAL_S
        if not due and not draw:
            return
        if draw and self.view is not None:
            self._drawn_at = consumer.last
            self.view.update(self.stats())
        self._tell(due)
        consumer.resumes()

    def _tell(self, watchers: list[Watcher]) -> None:
        for watching in watchers:
            watching.told_at = perf_counter()
            watching.callback(self.stats())

    def ended(self) -> None:
        """The epoch is over; no batch follows. Consumer's thread; idempotent, as next() may be called again."""
        if self.consumer.over:
            return
        self.consumer.over = True
        self.closed()
        if self.trace is not None:
            self.trace.epoch_ended(self.number, self.consumer.started, self.consumer.last)
        self._tell(self.watchers)

    def closes_with(self, iterator: Any) -> None:
        """The view is closed when the iterator is gone, or begins another epoch."""
        self._end = weakref.finalize(iterator, self.closed)
        self._end.atexit = False

    def closed(self) -> None:
        """Nothing more is shown. Idempotent; called when the epoch is over or its iterator is gone."""
        if self._end is not None:
            self._end.detach()  # an iterator that begins epoch after epoch would keep all their records
        view, self.view = self.view, None
        if view is not None and self.pid == os.getpid():
            if self.consumer.batches:
                view.update(self.stats())
            view.close()

    def stats(self) -> Stats:
        """The snapshot."""
        consumer, here = self.consumer, self.pid == os.getpid()
        elapsed_s = consumer.last - consumer.started
        gpu = gpu_status(self.device.index or 0) if here and self.device.type == "cuda" else None
        gpu = gpu or GpuStatus()
        found = Stats(
            path="accelerated" if self.flow is not None else "torch",
            reasons=self.reasons,
            epoch=self.number,
            elapsed_s=elapsed_s,
            images=consumer.images,
            batches=consumer.batches,
            images_per_s=consumer.images / elapsed_s if elapsed_s > 0 else 0.0,
            first_batch_s=consumer.first_batch_s,
            consumer_wait_s=consumer.wait_s,
            starved=min(1.0, consumer.wait_s / elapsed_s) if elapsed_s > 0 else 0.0,
            wait_s=consumer.waits.quantiles(),
            step_s=consumer.steps.quantiles(),
            cpu_s=consumer.cpu_s,
            cpus=self.cpus,
            errors=self.bad.counts(),
            error_file=self.bad.path,
            gpu_utilisation=gpu.utilisation,
            gpu_memory_bytes=gpu.memory_bytes,
            gpu_in_bytes_per_s=gpu.in_bytes_per_s,
            gpu_out_bytes_per_s=gpu.out_bytes_per_s,
        )
        return found if self.flow is None or not here else self._with_stages(found, self.flow)

    def _with_stages(self, found: Stats, flow: Flow | InlineFlow) -> Stats:
        consumer = self.consumer
        until = consumer.last if consumer.over else perf_counter()
        queues = flow.queues(until)
        before = {"fetch": queues.planned, "decode": queues.decode, "finish": queues.finish}
        stages = [meter.snapshot(consumer.started, until) for meter in flow.work.meters.all()]
        cache = _cache_stats(flow)
        return replace(
            found,
            cache_hit_rate=None if cache is None else cache.since(self._cached_before).hit_rate,
            cache_stopped="" if cache is None else cache.store.stopped,
            ready=flow.ready,
            ready_mean=queues.ready.mean,
            ready_empty=queues.ready.empty,
            blocked=queues.blocked,
            history=queues.history,
            bytes_in_flight=flow.nbytes,
            stages=tuple(replace(s, queue=before[s.name].mean, empty=before[s.name].empty) for s in stages),
            decoders=dict(flow.work.decoders),
        )


def _cache_stats(flow: Flow | InlineFlow | None) -> Any:
    """Of the source's cache; None where it has none."""
    stats = None if flow is None else getattr(flow.work.source, "cache_stats", None)
    return None if stats is None else stats()


def begin_record(
    loader: Any,
    iterator: Any,
    *,
    device: torch.device,
    number: int,
    flow: Flow | InlineFlow | None = None,
    reasons: tuple[str, ...] = (),
) -> EpochRecord:
    """The record of the epoch that `iterator` is about to begin; `loader.stats()` speaks of it from now on."""
    trace = loader.trace_file
    record = EpochRecord(
        bad=loader.bad_samples,
        device=device,
        number=number,
        flow=flow,
        view=_view(loader),
        watchers=loader.watchers,
        trace=trace,
        reasons=reasons,
        consumer=Consumer(None if trace is None else trace.events),
    )
    if (before := getattr(iterator, "record", None)) is not None:
        before.closed()
    if record.view is not None:
        record.closes_with(iterator)
    loader.begin_record(record)
    return record


def _view(loader: Any) -> View | None:
    if not loader.progress:
        return None
    if loader.progress == "full":
        from gpuload.report.live import live_view  # here, since what it draws with takes 0.1 s to import

        return live_view(_length(loader), sys.stderr)
    return ProgressLine(_length(loader), sys.stderr)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a sampler, or a data set, without a length
        return None
