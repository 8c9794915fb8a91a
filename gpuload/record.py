"""What `loader.stats()` speaks of: the loader's current or last epoch, on either path.

Owns putting the snapshot together from the consumer's clock, the flow and the meters; holds no iterator, so that
watching an epoch does not keep it alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gpuload.device.nvml import gpu_status
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.engine import Engine
from gpuload.engine.flow import Flow, InlineFlow
from gpuload.engine.stats import Consumer, Stats


@dataclass
class EpochRecord:
    """One epoch. engine, flow: None on torch's path."""

    bad: BadSamples
    device: torch.device
    number: int = 0
    engine: Engine | None = None
    flow: Flow | InlineFlow | None = None
    consumer: Consumer = field(default_factory=Consumer)

    def stats(self) -> Stats:
        """The snapshot."""
        consumer, flow = self.consumer, self.flow
        elapsed_s = consumer.last - consumer.started
        decoders: Mapping[str, int] = {}
        stages: tuple[Any, ...] = ()
        if self.engine is not None:
            stages = tuple(meter.snapshot() for meter in self.engine.work.meters.all())
            decoders = dict(self.engine.work.decoders)
        gpu = gpu_status(self.device.index or 0) if self.device.type == "cuda" else None
        return Stats(
            path="accelerated" if self.engine is not None else "torch",
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
