"""Rows of `python -m bench.fidelity` for which networks are trained: on exact pixels, on fast ones, several seeds each.

The task is which photograph a random crop is a part of, as in exemplar networks: any folder of photographs will do, the
number of crops is unlimited, and small differences between pixels could matter. Crops are made so small that nearly
all of them are decoded at a fraction of their size. A seed sets the weights and the order; the two fidelities get the
same ones, and the same crops in other pixels. Every network is judged on crops that it has not seen, in both pixels.

Owns the task, the training and the sums; pixels are the loader's.

Source: Dosovitskiy et al., Discriminative Unsupervised Feature Learning with Convolutional Neural Networks, 2014.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn
from torchvision.transforms import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop

from gpuload import DataLoader, ShardDataset

FIDELITIES = ("exact", "fast")


@dataclass(frozen=True)
class Task:
    """side: of a crop in pixels. views, checks: crops of each photograph to learn from and to be judged on."""

    side: int = 32
    views: int = 40
    checks: int = 10
    epochs: int = 4
    seeds: int = 8
    batch_size: int = 128
    rate: float = 2e-3


QUICK = Task(views=4, checks=2, epochs=2, seeds=2, batch_size=8)


@dataclass(frozen=True)
class Crops:
    """pixels: uint8 (n, 3, side, side); photographs: int64 (n,), which one each is of."""

    pixels: torch.Tensor
    photographs: torch.Tensor


@dataclass(frozen=True)
class Judged:
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Losses:
    """judged: (trained on, judged on) -> of each seed. differing: share of the crops whose pixels differ."""

    judged: dict[tuple[str, str], list[Judged]] = field(default_factory=dict)
    differing: float = 0.0

    def lines(self) -> Iterator[tuple[dict[str, Any], str]]:
        """What to write down and what to print of each way, then of fast against exact."""
        for (trained, on), each in self.judged.items():
            found: dict[str, Any] = {"case": f"loss-{trained}-{on}", "seeds": len(each)}
            for name in ("loss", "accuracy"):
                found |= _summary(name, [getattr(judged, name) for judged in each])
            shown = (
                f"trained on {trained + ',':<6} judged on {on:<5}  "
                f"loss {found['loss']:.4f} +- {found['loss_spread']:.4f}  "
                f"accuracy {found['accuracy']:.2%} +- {found['accuracy_spread']:.2%}"
            )
            yield found, shown
        exact, fast = self.judged["exact", "exact"], self.judged["fast", "fast"]
        found = {"case": "loss-difference", "seeds": len(exact), "differing_crops": self.differing}
        for name in ("loss", "accuracy"):
            found |= _summary(name, [getattr(f, name) - getattr(e, name) for e, f in zip(exact, fast, strict=True)])
        shown = (
            f"fast less exact, seed by seed     loss {found['loss']:+.4f} +- {found['loss_spread']:.4f}  "
            f"accuracy {found['accuracy']:+.2%} +- {found['accuracy_spread']:.2%}; "
            f"{len(exact)} seeds, {self.differing:.1%} of crops differ"
        )
        yield found, shown


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: fmean(values), f"{name}_spread": stdev(values)}


def crops(shards: Sequence[str], fidelity: str, *, side: int, epochs: range) -> Crops:
    """One crop of each photograph an epoch; the same crops in either fidelity."""
    transform = Compose([RandomResizedCrop(side), RandomHorizontalFlip(), PILToTensor()])
    count = len(ShardDataset(list(shards)))
    loader: DataLoader = DataLoader(
        ShardDataset(list(shards), transform=transform, label=range(count)), batch_size=64, device="cpu", seed=1,
        order="sequential", fidelity=fidelity, entropy_index="read", accelerate="require",
    )  # fmt: skip
    batches = []
    for epoch in epochs:
        loader.set_epoch(epoch)
        batches += [(pixels.clone(), photographs.clone()) for pixels, photographs in loader]
    return Crops(torch.cat([pixels for pixels, _ in batches]), torch.cat([photographs for _, photographs in batches]))


def network(photographs: int, side: int) -> nn.Module:
    """Three convolutions of stride 2 and a linear layer, seconds of training on one core. side: a multiple of 8."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels_in, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (side // 8) ** 2, photographs))


def values_of(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.float() / 127.5 - 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Layers this small are not sooner done by two threads, and on a busy machine those wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def train(seen: Crops, task: Task, seed: int) -> nn.Module:
    """A network that has seen all crops `epochs` times; weights and order are the seed's."""
    torch.manual_seed(seed)
    model = network(int(seen.photographs.max()) + 1, task.side)
    order = torch.Generator().manual_seed(seed)
    steps = task.epochs * (len(seen.photographs) // task.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=task.rate, total_steps=steps)
    for _ in range(task.epochs):
        for rows in torch.randperm(len(seen.photographs), generator=order).split(task.batch_size):
            if len(rows) < task.batch_size:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(values_of(seen.pixels[rows])), seen.photographs[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@_one_thread()
@torch.no_grad()
def judge(model: nn.Module, unseen: Crops) -> Judged:
    scores = torch.cat([model(values_of(pixels)) for pixels in unseen.pixels.split(1024)])
    loss = nn.functional.cross_entropy(scores, unseen.photographs)
    return Judged(float(loss), float((scores.argmax(1) == unseen.photographs).float().mean()))


def compare_losses(shards: Sequence[str], task: Task) -> Losses:
    """Networks of either fidelity and every seed, judged on the pixels of both."""
    seen, unseen = (
        {fidelity: crops(shards, fidelity, side=task.side, epochs=epochs) for fidelity in FIDELITIES}
        for epochs in (range(task.views), range(task.views, task.views + task.checks))
    )
    judged: dict[tuple[str, str], list[Judged]] = {(one, on): [] for one in FIDELITIES for on in FIDELITIES}
    for seed in range(task.seeds):
        for fidelity in FIDELITIES:
            model = train(seen[fidelity], task, seed)
            for on in FIDELITIES:
                judged[fidelity, on].append(judge(model, unseen[on]))
    differing = (seen["exact"].pixels != seen["fast"].pixels).flatten(1).any(1).float().mean()
    return Losses(judged, float(differing))
