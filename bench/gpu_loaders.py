"""The loaders of the proof on a GPU, and the marks of an epoch: what all its sections build and run alike.

Owns construction and the consumer's loop, whose figures (bench's measure.py) are those of `gpuload bench`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torchvision import transforms as t

from gpuload import DataLoader, ShardDataset
from gpuload.cli.bench.measure import Epoch
from gpuload.cli.bench.subjects import MEAN, STD

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

CROPS: Mapping[str, Sequence[Any]] = {
    "train": (t.RandomResizedCrop(224), t.RandomHorizontalFlip()),
    "eval": (t.Resize(256), t.CenterCrop(224)),
}


def transform(crop: str, *, uint8: bool = False) -> Any:
    """ImageNet's usual one; uint8: pixels as they are, not normalised."""
    return t.Compose([*CROPS[crop], *((t.PILToTensor(),) if uint8 else (t.ToTensor(), t.Normalize(MEAN, STD)))])


def shards(folder: Path, crop: str, *, uint8: bool = False) -> ShardDataset:
    """The made images as shards, or a folder of photographs."""
    return ShardDataset(str(folder), transform=transform(crop, uint8=uint8))


def loader(dataset: Any, *, threads: int, **options: Any) -> Any:
    """gpuload's, on the accelerated path or not at all."""
    return DataLoader(dataset, num_workers=threads, accelerate="require", **options)


def images_of(batch: Any) -> torch.Tensor:
    """The images of a batch, which is a tensor or begins with one."""
    return batch if isinstance(batch, torch.Tensor) else batch[0]


def on_gpu_share(decoders: Mapping[str, int]) -> float:
    """Which share of the images the GPU decoded, by `stats().decoders`: 0 to 1."""
    total = sum(decoders.values())
    return sum(count for name, count in decoders.items() if "GPU" in name) / total if total else 0.0


def synchronise() -> None:
    """Wait until what the current stream was given is done: only then is a batch really there.

    Asleep, as `blocking` asks: a wait that spins would be counted among the CPU seconds that batches cost.
    """
    if torch.cuda.is_available():
        event = torch.cuda.Event(blocking=True)
        event.record()
        event.synchronize()


def timed_epoch(batches: Any) -> Epoch:
    """One epoch with nothing behind it: a wait is the time in `next()` and until the batch is there."""
    clock = time.perf_counter
    arrivals_s: list[float] = []
    waits_s: list[float] = []
    images: list[int] = []
    started_s = ended_s = clock()
    iterator = iter(batches)
    while True:
        asked_s = clock()
        batch = next(iterator, None)
        if batch is None:
            return Epoch(started_s, arrivals_s, waits_s, images, ended_s)
        synchronise()
        arrivals_s.append(clock())
        waits_s.append(arrivals_s[-1] - asked_s)
        images.append(len(images_of(batch)))
        del batch
        ended_s = clock()


def cpu_s() -> float:
    """Seconds of CPU that this process, all its threads and its living child processes have taken so far."""
    return time.process_time() + sum(_children_s(os.getpid()))


def _children_s(pid: int) -> Iterator[float]:
    """CPU seconds of the processes that `pid` started, worker processes for one, while they live."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:  # it has just ended
            continue
        fields = text.rpartition(")")[2].split()  # a name may hold spaces and parentheses
        if int(fields[1]) == pid:
            yield (int(fields[11]) + int(fields[12])) / TICKS_PER_S
