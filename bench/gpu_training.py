"""Does the GPU still wait when it trains, and what does the loader take from its steps?

A step is forward, backward and SGD of a torchvision network in bfloat16 autocast, channels_last, batches of 256. Two
loops with it, one after the other:

    waiting    the stream is synchronised before a step and behind it, so that time before it is waiting and nothing
               else: starved_pct, step_ms, and step_ms against the same loop on a resident batch of noise, which is what
               the loader's own kernels and copies take from the step
    flowing    nothing is synchronised until the end, as people train: images_per_s, and its ratio to the same loop on
               the resident batch

Owns the networks, the loops and their rows: ResNet-50 first, then ResNet-18 and AlexNet, which ask for more images a
second than most loaders have; gpuload's decoder on the GPU first, then its decoder on the CPU, then torch's loader.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torchvision import models

from bench.gpu_loaders import images_of, on_gpu_share, synchronise
from bench.gpu_section import Bench, Row
from bench.gpu_speed import CONTENDERS, indices_of, setting_of
from gpuload.cli.bench import subjects

CLASSES = 1000
STEPS = {"resnet50": 40, "resnet18": 80, "alexnet": 160}
"""Of each loop: 1 to 3 seconds on an H200. A slower GPU takes longer, and the section ends when its time does."""

WARM_STEPS = 8
LOADERS = ("gpuload native", "gpuload CPU", "torch")


@dataclass(frozen=True)
class Waits:
    """Of the waiting loop. steps_s, waits_s: one a step."""

    steps_s: Sequence[float]
    waits_s: Sequence[float]

    @property
    def starved(self) -> float:
        """Share of the time spent waiting, 0 to 1."""
        waited_s = sum(self.waits_s)
        return waited_s / (waited_s + sum(self.steps_s))

    @property
    def step_s(self) -> float:
        """The mean: a step in which a loader's kernels stand before the network's is as long as it is."""
        return sum(self.steps_s) / len(self.steps_s)


def rows(bench: Bench) -> Iterator[Row]:
    setting = setting_of(bench)
    count = len(subjects.labels(setting))
    resident: dict[str, Resident] = {}
    for name in LOADERS:
        for network, steps in STEPS.items():
            yield bench.tried(f"{network}, {name}", partial(trained, name, network, steps, setting, count, resident))
            gc.collect()


@dataclass(frozen=True)
class Resident:
    """What a network does with a batch that is there already."""

    step_s: float
    images_per_s: float


def trained(
    name: str, network: str, steps: int, setting: subjects.Setting, count: int, resident: dict[str, Resident]
) -> Row:
    """One network behind one loader, against itself on the resident batch, which is measured the first time."""
    step = Step(network, setting.device)
    if network not in resident:
        resident[network] = on_resident(step, steps, setting)
    loader = CONTENDERS[name](setting, indices_of(setting.batch_size * steps, count))
    batches = endless(loader)
    for batch in islice(batches, WARM_STEPS):
        step(batch)
    waits = waiting(step, batches, steps)
    rate = flowing(step, batches, steps)
    stats = getattr(loader, "stats", None)
    decoders = dict(stats().decoders) if stats is not None else {}
    alone = resident[network]
    return {
        "passed": None,
        "starved_pct": 100 * waits.starved,
        "step_ms": 1000 * waits.step_s,
        "resident_step_ms": 1000 * alone.step_s,
        "step_ratio_to_resident": waits.step_s / alone.step_s,
        "images_per_s": rate,
        "resident_images_per_s": alone.images_per_s,
        "rate_ratio_to_resident": rate / alone.images_per_s,
        "steps": steps,
        "batch_size": setting.batch_size,
        "gpu_share": on_gpu_share(decoders),
    }


def on_resident(step: Callable[[Any], None], steps: int, setting: subjects.Setting) -> Resident:
    """The same loops on noise that lies on the device."""
    shape = (setting.batch_size, 3, setting.size, setting.size)
    images = torch.randn(shape, device=setting.device)
    labels = torch.randint(CLASSES, (setting.batch_size,), device=setting.device)

    def batches() -> Iterator[Any]:
        while True:
            yield images, labels

    for batch in islice(batches(), WARM_STEPS):
        step(batch)
    return Resident(waiting(step, batches(), steps).step_s, flowing(step, batches(), steps))


def endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch. Raises RuntimeError where one is empty."""
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise RuntimeError("the loader gave no batch to train on")


def waiting(step: Callable[[Any], None], batches: Iterator[Any], steps: int) -> Waits:
    """`steps` steps, each begun when its batch is there and ended when the GPU has done it."""
    clock = time.perf_counter
    steps_s, waits_s = [], []
    synchronise()
    for _ in range(steps):
        asked_s = clock()
        batch = next(batches)
        synchronise()
        got_s = clock()
        step(batch)
        synchronise()
        steps_s.append(clock() - got_s)
        waits_s.append(got_s - asked_s)
    return Waits(steps_s, waits_s)


def flowing(step: Callable[[Any], None], batches: Iterator[Any], steps: int) -> float:
    """Images a second of `steps` steps that the host runs ahead of."""
    synchronise()
    began_s, images = time.perf_counter(), 0
    for batch in islice(batches, steps):
        step(batch)
        images += len(images_of(batch))
    synchronise()
    return images / (time.perf_counter() - began_s)


class Step:
    """One step of a torchvision network, from the same initial weights each time."""

    def __init__(self, network: str, device: str):
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self._device = device
        self.model = getattr(models, network)(num_classes=CLASSES).to(device, memory_format=torch.channels_last)
        self._optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._criterion = torch.nn.CrossEntropyLoss()

    def __call__(self, batch: Any) -> None:
        images, labels = batch
        with torch.autocast(self._device, dtype=torch.bfloat16):
            loss = self._criterion(self.model(images.to(memory_format=torch.channels_last)), labels)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()
