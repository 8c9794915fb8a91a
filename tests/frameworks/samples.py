"""Data whose batches say which samples they hold, and the smallest model that trains on them.

A batch is (images, numbers). Frameworks are compared by it: what a rank or a resumed run was given can be written down
and laid beside what it would have been given with torch's class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import transforms

from tests.conformance.sample_data import Encoded, small

SIZE = 12


def numbered(number: int, image: Any) -> Any:
    return image, number


def cropped() -> transforms.Compose:
    """Random: float32 (3, SIZE, SIZE)."""
    return transforms.Compose(
        [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )


def images(root: Path, transform: Callable[[Any], Any] | None = None) -> Encoded:
    """The images below `root`, each with its number."""
    files = [path.read_bytes() for path in sorted(root.glob("*/*.jpg"))]
    return Encoded(files, build=numbered, transform=transform or small())


def tiny_model() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))


def fingerprint(batch: torch.Tensor) -> list[float]:
    """One exact number an image: equal for equal pixels, and for no others that a test would confuse."""
    flat = batch.double().flatten(1)
    return (flat * torch.arange(1, flat.shape[1] + 1, dtype=torch.float64)).sum(1).tolist()


def assert_accelerated(loader: Any, images: int) -> None:
    """The current or last epoch of `loader` came from gpuload's decoders."""
    stats = loader.stats()
    assert stats.path == "accelerated", stats
    assert sum(stats.decoders.values()) >= images > 0, stats  # what is decoded ahead counts
    assert stats.images == images, stats
