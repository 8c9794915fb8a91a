"""What `loader.stats()` speaks of: the loader's current or last epoch, on either path.

Owns putting the snapshot together from the consumer's clock, the flow and its meters, and when the progress line is
drawn; holds no iterator, so that watching an epoch does not keep it alive. In a forked child it speaks of the consumer
alone: the rest is behind locks that a thread of the parent may have held.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gpuload.device.nvml import gpu_status
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.stats import Consumer, Stats
from gpuload.report.progress import INTERVAL_S, ProgressLine

if TYPE_CHECKING:
    from gpuload.engine.flow import Flow, InlineFlow


@dataclass
class EpochRecord:
    """One epoch. flow: None on torch's path, and then reasons say why. line: where it is shown, None for nowhere."""

    bad: BadSamples
    device: torch.device
    number: int = 0
    flow: Flow | InlineFlow | None = None
    line: ProgressLine | None = None
    reasons: tuple[str, ...] = ()
    consumer: Consumer = field(default_factory=Consumer)
    pid: int = field(default_factory=os.getpid)
    _drawn_at: float = 0.0

    def received(self, asked_at: float, images: int) -> None:
        """A batch of `images` images, asked for at `asked_at` (perf_counter), goes to the consumer now."""
        self.consumer.received(asked_at, images)
        if self.line is not None and self.consumer.last - self._drawn_at >= INTERVAL_S:
            self._drawn_at = self.consumer.last
            self.line.update(self.stats())

    def ended(self) -> None:
        """No batch follows. Idempotent; called when the epoch is over or its iterator is gone."""
        line, self.line = self.line, None
        if line is not None and self.pid == os.getpid():
            if self.consumer.batches:
                line.update(self.stats())
            line.close()

    def stats(self) -> Stats:
        """The snapshot."""
        consumer = self.consumer
        flow = self.flow if self.pid == os.getpid() else None
        elapsed_s = consumer.last - consumer.started
        decoders: Mapping[str, int] = {}
        stages: tuple[Any, ...] = ()
        if flow is not None:
            stages = tuple(meter.snapshot() for meter in flow.work.meters.all())
            decoders = dict(flow.work.decoders)
        gpu = gpu_status(self.device.index or 0) if self.device.type == "cuda" else None
        return Stats(
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
            ready=flow.ready if flow is not None else 0,
            bytes_in_flight=flow.nbytes if flow is not None else 0,
            stages=stages,
            decoders=decoders,
            errors=self.bad.counts(),
            error_file=self.bad.path,
            gpu_utilisation=gpu.utilisation if gpu is not None else None,
            gpu_memory_bytes=gpu.memory_bytes if gpu is not None else None,
        )


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
    line = ProgressLine(_length(loader), sys.stderr) if loader.progress else None
    record = EpochRecord(loader.bad_samples, device, number, flow, line, reasons)
    if line is not None:
        weakref.finalize(iterator, record.ended).atexit = False
    loader.begin_record(record)
    return record


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a sampler, or a data set, without a length
        return None
