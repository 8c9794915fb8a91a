"""A training loop whose every wait is written down: a tiny network, or ResNet-18 where a GPU makes that sensible.

Owns the models, the loop and its clock. The loader is handed in, so that both loaders meet the same loop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuload.config import default_threads
from gpuload.core.errors import ConfigError

MODELS = ("tiny", "resnet18")


@dataclass(frozen=True)
class Training:
    """Step by step: seconds waited, seconds at work, the loss, and the wall time at which the step ended."""

    waits_s: Sequence[float]
    steps_s: Sequence[float]
    losses: Sequence[float]
    at_s: Sequence[float]
    resident_steps_s: Sequence[float] = ()
    """The same step on one batch of random numbers that lies in memory already, the loader at rest; () if not asked."""

    @property
    def inflation(self) -> float | None:
        """How much longer a step is beside the loader than on resident data: 1 where the loader takes nothing from it.

        By the means: what a loader puts between a step's kernels is part of it. None where it was not measured.
        """
        if not self.resident_steps_s or len(self.steps_s) < 2:
            return None
        return statistics.fmean(self.steps_s[1:]) / statistics.fmean(self.resident_steps_s)

    @property
    def waited(self) -> float:
        """Share of the time spent waiting, 0 to 1, the first step left out."""
        waits_s, steps_s = sum(self.waits_s[1:]), sum(self.steps_s[1:])
        return waits_s / (waits_s + steps_s) if waits_s + steps_s else 0.0


def train(
    loader: Any, *, device: str, model: str, classes: int, steps: int, seed: int, limit_s: float,
    resident_steps: int = 0,
) -> Training:  # fmt: skip
    """Trains from scratch for `steps` steps over as many epochs as that takes, or until `limit_s` have passed.

    Same seed, same initial weights. On CUDA the forward pass runs under autocast (float16 with a gradient scaler).
    resident_steps: how many steps on resident data are timed afterwards.
    """
    import torch

    if device == "cpu":  # half of the cores for the network: its idle threads spin, and the loader needs the others
        torch.set_num_threads(max(1, default_threads() // 2))
    step = _Step(device, model, classes, seed)
    waits_s: list[float] = []
    steps_s: list[float] = []
    losses: list[float] = []
    at_s: list[float] = []
    clock = time.perf_counter
    started_s = clock()
    while len(losses) < steps and clock() - started_s < limit_s:
        iterator = iter(loader)
        before = len(losses)
        while len(losses) < steps and clock() - started_s < limit_s:
            asked_s = clock()
            batch = next(iterator, None)
            if batch is None:
                break
            images, labels = batch
            got_s = clock()
            losses.append(step(images, labels.long()))
            done_s = clock()
            waits_s.append(got_s - asked_s)
            steps_s.append(done_s - got_s)
            at_s.append(done_s - started_s)
        del iterator
        if len(losses) == before:
            raise ConfigError("the loader gave no batch to train on; is the data set smaller than one batch?")
    resident_s = _resident_steps_s(step, images, labels.long(), resident_steps) if resident_steps else ()
    return Training(waits_s, steps_s, losses, at_s, resident_s)


class _Step:
    """Forward, backward and the optimiser's step of a new network; returns the loss, so the GPU has done it all."""

    def __init__(self, device: str, model: str, classes: int, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.network = {"tiny": _tiny, "resnet18": _resnet18}[model](classes).to(device)
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=3e-3 if model == "tiny" else 1e-3)
        self.criterion = torch.nn.CrossEntropyLoss()
        self.scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
        self.autocast = torch.autocast(device, enabled=device == "cuda")

    def __call__(self, images: Any, labels: Any) -> float:
        with self.autocast:
            loss = self.criterion(self.network(images), labels)
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return float(loss.item())


def _resident_steps_s(step: _Step, images: Any, labels: Any, count: int) -> list[float]:
    """Seconds of `count` steps on random numbers of a batch's shape, the first two left out: what was ahead settles."""
    import torch

    noise = torch.randn_like(images)
    steps_s = []
    for _ in range(count + 2):
        began_s = time.perf_counter()
        step(noise, labels)
        steps_s.append(time.perf_counter() - began_s)
    return steps_s[2:]


def _tiny(classes: int) -> Any:
    """~12 thousand parameters on a quarter of the resolution: one CPU core takes a batch of 64 in 20 ms."""
    from torch import nn

    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Conv2d(3, 24, 4, stride=4),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, classes),
    )


def _resnet18(classes: int) -> Any:
    from torchvision.models import resnet18

    return resnet18(num_classes=classes)
