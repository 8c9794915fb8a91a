"""timm's transforms are classes of its own; gpuload knows those that have an equal in torchvision.

Reference: timm's own classes, on the same images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.adapters.timm import as_torchvision
from tests.conformance.sample_data import COUNT
from tests.frameworks.samples import assert_accelerated, tiny_model

pytestmark = pytest.mark.full

TRAINING = {
    "plain": {"color_jitter": None},
    "erasing": {"color_jitter": None, "re_prob": 0.3},
    "erasing by noise": {"color_jitter": None, "re_prob": 0.3, "re_mode": "pixel"},
    "colour jitter": {},
    "rand augment": {"auto_augment": "rand-m9-mstd0.5"},
    "bicubic": {"color_jitter": None, "interpolation": "bicubic"},
}


def test_evaluation_gives_timms_pixels(root):
    from timm.data import create_transform

    data = ImageFolder(str(root), transform=create_transform(16))
    loader = gpuload.DataLoader(data, batch_size=5, device="cpu")
    got = list(loader)
    assert_accelerated(loader, COUNT)
    assert loader.plan().specs, "fused to the end"
    for (mine, labels), (theirs, expected) in zip(got, TorchDataLoader(data, batch_size=5), strict=True):
        assert torch.equal(mine, theirs) and torch.equal(labels, expected)


@pytest.mark.parametrize("options", TRAINING.values(), ids=TRAINING.keys())
def test_a_training_step_as_timms_script_does_it(root, options):
    from timm.data import create_transform

    data = ImageFolder(str(root), transform=create_transform(16, is_training=True, **options))
    loader = gpuload.DataLoader(data, batch_size=5, shuffle=True, drop_last=True, accelerate="require", device="cpu")
    model = tiny_model()
    for inputs, labels in loader:
        assert inputs.shape == (5, 3, 16, 16) and inputs.dtype == torch.float32
        torch.nn.functional.cross_entropy(model(inputs), labels % 2).backward()
    assert_accelerated(loader, COUNT // 5 * 5)


def test_what_has_no_equal_is_named(root):
    from timm.data import create_transform

    transform = create_transform(16, is_training=True, interpolation="random")
    plan = gpuload.DataLoader(ImageFolder(str(root), transform=transform)).plan()
    assert not plan.accelerated and "RandomResizedCropAndInterpolation" in plan.reasons[0]
    several = create_transform(16, is_training=True, color_jitter=None, re_prob=0.3, re_count=2)
    plan = gpuload.DataLoader(ImageFolder(str(root), transform=several)).plan()
    assert plan.accelerated and any("RandomErasing" in note and "as given" in note for note in plan.notes)


def test_a_transform_without_timms_classes_is_left_alone():
    import timm.data  # noqa: F401 - from then on its classes are looked for

    chain = transforms.Compose([transforms.Resize(9), transforms.ToTensor()])
    assert as_torchvision(chain) is chain
    assert as_torchvision(None) is None


def test_the_crops_and_boxes_have_timms_distribution(tmp_path: Path):
    """Two-sample Kolmogorov-Smirnov: mean colours of crops of a gradient, and how much is erased."""
    from timm.data import create_transform

    ramp = np.linspace(0, 255, 64 * 48, dtype=np.float64).astype(np.uint8).reshape(48, 64)
    image = Image.fromarray(np.stack([ramp, ramp.T.reshape(48, 64), 255 - ramp], -1))
    mine, theirs = [], []
    theirs_transform = create_transform(
        16, is_training=True, color_jitter=None, re_prob=0.5, mean=(-1,) * 3, std=(1,) * 3
    )
    mine_transform = as_torchvision(theirs_transform)
    assert all("timm" not in type(step).__module__ for step in mine_transform.transforms)
    torch.manual_seed(1)
    import random

    random.seed(1)
    for _ in range(1500):
        mine.append(described(mine_transform(image)))
        theirs.append(described(theirs_transform(image)))
    for column in range(2):
        a, b = np.array(mine)[:, column], np.array(theirs)[:, column]
        assert distance(a, b) < 1.95 * np.sqrt(2 / len(a)), "beyond 0.1% of equal distributions"


def described(pixels: torch.Tensor) -> tuple[float, float]:
    """Mean of what is left of the first channel, and the share of what was erased: zeros, where pixels are 1 to 2."""
    kept = pixels[0][pixels[0] != 0]
    return float(kept.mean()), 1 - len(kept) / pixels[0].numel()


def distance(a: np.ndarray, b: np.ndarray) -> float:
    at = np.sort(np.concatenate([a, b]))
    return float(
        np.abs(np.searchsorted(np.sort(a), at, "right") - np.searchsorted(np.sort(b), at, "right")).max() / len(a)
    )
