"""Generated images and the data sets over them that the conformance suite loads.

Every data set here gives torch's class and gpuload's the same samples; `Encoded` differs from `Plain` only by
the method that lets gpuload take it over.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpuload

CLASSES = ("ant", "bee", "cat")
COUNT = 24
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write_images(root: Path) -> None:
    """COUNT files of odd sizes: baseline 4:2:0 and 4:4:4, progressive, grey, CMYK and one PNG that says .jpg."""
    generator = np.random.default_rng(7)
    for i in range(COUNT):
        width, height = 17 + (i * 13) % 46, 19 + (i * 29) % 38
        coarse = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        options: dict[str, Any] = {"quality": 88, "subsampling": (2, 0, 1)[i % 3], "progressive": i % 7 == 3}
        if i == 10:
            image = image.convert("L")
        elif i == 13:
            image = image.convert("CMYK")
        folder = root / CLASSES[i % len(CLASSES)]
        folder.mkdir(exist_ok=True)
        with open(folder / f"{i:03d}.jpg", "wb") as file:
            image.save(file, "PNG" if i == 16 else "JPEG", **({} if i == 16 else options))


def small() -> transforms.Compose:
    """Deterministic, gives every image one size: float32 (3, 15, 13)."""
    return transforms.Compose(
        [transforms.Resize(17), transforms.CenterCrop((15, 13)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )


def image_folder(root: Path) -> ImageFolder:
    return ImageFolder(str(root), transform=small())


def pair(number: int, image: Any) -> Any:
    return image, number % 3


class Plain(Dataset):
    """Map-style: sample i is build(i, finished image). broken: index -> the exception that reading it raises."""

    def __init__(
        self,
        files: Sequence[bytes],
        build: Callable[[int, Any], Any] = pair,
        transform: Callable[[Any], Any] | None = None,
        broken: Mapping[int, Callable[[], BaseException]] | None = None,
    ):
        self.files, self.build, self.broken = list(files), build, dict(broken or {})
        self.transform = transform or small()

    def __len__(self) -> int:
        return len(self.files)

    def encoded(self, i: int) -> bytes:
        if i in self.broken:
            raise self.broken[i]()
        return self.files[i]

    def __getitem__(self, i: int) -> Any:
        image = Image.open(io.BytesIO(self.encoded(i))).convert("RGB")
        return self.build(int(i), self.transform(image))


class Encoded(Plain):
    """The same samples, which gpuload may decode itself."""

    def get_encoded(self, i: int) -> Any:
        return self.build(int(i), gpuload.EncodedImage(self.encoded(i)))


class Counting(IterableDataset):
    """0 .. count - 1, split between the workers of a loader; it has no length."""

    def __init__(self, count: int):
        self.count = count

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(first, self.count, step))


class Sized(Counting):
    """A `Counting` that claims a length, rightly or not."""

    def __init__(self, count: int, claimed: int):
        super().__init__(count)
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed

    def __repr__(self) -> str:
        return "Sized"


class Wandering(Sampler):
    """Draws every id when it is asked for, from each of the three global generators."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            drawn = int(torch.randint(self.count, ())) + random.randrange(self.count) + np.random.randint(self.count)
            yield int(drawn % self.count)


class Eager(Sampler):
    """Draws the whole order inside `__iter__`, so that how often that is called shows in the generator."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        return iter(torch.randperm(self.count).tolist())


class Breaking(Sampler):
    """Yields `good` ids, then raises."""

    def __init__(self, good: int):
        self.good = good

    def __len__(self) -> int:
        return self.good + 5

    def __iter__(self):
        yield from range(self.good)
        raise RuntimeError("the sampler broke")
