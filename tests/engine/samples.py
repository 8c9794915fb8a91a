"""Generated photographs, the data sets over them, and what promises are checked with: checksums and threads."""

from __future__ import annotations

import gc
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import gpuload
from gpuload.decode import dali
from tests.engine.fakes import eventually

COUNT = 37
CLASSES = ("ant", "bee", "cat")
needs_dali = pytest.mark.skipif(dali.available() is not None, reason="DALI is left out: it cannot be imported here")
DECODERS = ["native", "pillow", pytest.param("dali", marks=needs_dali)]


def jpeg(number: int, **options: Any) -> bytes:
    """An image of odd size with detail at every scale, as JPEG; options: Pillow's."""
    generator = np.random.default_rng(number)
    width, height = 33 + (number * 13) % 50, 35 + (number * 29) % 44
    coarse = Image.fromarray(generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((width, height))
    noise = generator.integers(-12, 13, (height, width, 3))
    image = Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8))
    return encoded(image, **{"quality": 88, "subsampling": (2, 0, 1)[number % 3], **options})


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write_folder(root: Path, count: int = COUNT) -> list[Path]:
    """An ImageFolder of `count` images; the paths in its order."""
    for number in range(count):
        path = root / CLASSES[number * 3 // count] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return sorted(root.glob("*/*.jpg"))


def write_tar(folder: Path, tar: Path) -> None:
    """The images of an ImageFolder as a WebDataset shard, in the same order with the same labels."""
    with tarfile.open(tar, "w") as archive:
        for number, path in enumerate(sorted(folder.glob("*/*.jpg"))):
            label = str(CLASSES.index(path.parent.name)).encode()
            for name, data in ((f"{number:03d}.cls", label), (f"{number:03d}.jpg", path.read_bytes())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def random_crop() -> Any:
    """Fused throughout, with random crops and flips: float32 (3, 24, 20)."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop((24, 20)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


def jittered() -> Any:
    """With random operations that gpuload does not know, run per sample."""
    return v2.Compose(
        [
            v2.RandomResizedCrop((24, 20)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.2),
            v2.RandAugment(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def fixed() -> Any:
    return transforms.Compose([transforms.Resize((24, 20)), transforms.ToTensor()])


class Numbered:
    """Sample i is (image, i), through get_encoded. during(i): runs in it, before the bytes are returned."""

    encoded_thread_safe = True

    def __init__(self, files: Iterable[bytes], transform: Any, during: Callable[[int], None] | None = None):
        self.files, self.transform, self.during = list(files), transform, during

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Any:
        with Image.open(io.BytesIO(self.files[i])) as image:
            return self.transform(image.convert("RGB")), i

    def get_encoded(self, i: int) -> Any:
        if self.during is not None:
            self.during(i)
        return gpuload.EncodedImage(self.files[i]), i


def loader_of(data: Any, **options: Any) -> gpuload.DataLoader:
    """An accelerated loader on the CPU with Pillow's pixels, unless options say otherwise."""
    return gpuload.DataLoader(data, **{"device": "cpu", "decoder": "pillow", "accelerate": "require", **options})


def folder_loader(root: Path, transform: Any, **options: Any) -> gpuload.DataLoader:
    return loader_of(ImageFolder(str(root), transform), **options)


def checksum(value: Any) -> str:
    """Of a tensor's or array's bits, in logical order, with its shape and type."""
    array = value
    if isinstance(value, torch.Tensor):
        array = (value.view(torch.int16) if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    array = np.asarray(array)
    return hashlib.sha256(f"{array.shape}{array.dtype}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()


def checksums(batches: Iterable[Any]) -> list[tuple[str, ...]]:
    return [tuple(checksum(leaf) for leaf in batch) for batch in batches]


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpuload")]


def no_threads_left() -> bool:
    """Whether all threads of loaders that nobody can reach any more come to their end."""
    if not our_threads():
        return True
    gc.collect()
    return eventually(lambda: not our_threads())
