"""How far are DALI's pixels from Pillow's, on either device?

Command:  python -m bench.dali_distance [FOLDER] [--device cpu|cuda] [--size 224] [--epochs 3]
          FOLDER: JPEGs at any depth; $GPULOAD_DATA/photos where not given.
Machine:  printed first.
Result:   DALI 2.4, 334 ImageNet photographs, 2 epochs, on a CPU:
          bilinear   mean 0.163, 99.9% within 1, worst 14, 16.3% of the values differ
          bicubic    mean 0.178, 99.9% within 1, worst 18, 17.6%
          lanczos    mean 0.196, 99.9% within 3, worst 34, 19.0%
          On a GPU: not measured yet.
Explanation: on the CPU both decode by libjpeg-turbo, and only resampling differs: DALI computes it in floating point
          where Pillow rounds between its two passes, and repeats the edge where Pillow leaves out the taps that miss,
          which is where the few large differences are. On a GPU nvJPEG's IDCT and chroma come on top.

The same random crops as bytes, through whole loaders.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torchvision.transforms import Compose, InterpolationMode, PILToTensor, RandomResizedCrop

from bench.fidelity import difference
from gpuload import DataLoader, ShardDataset

FILTERS = ("bilinear", "bicubic", "lanczos")


def pairs(folder: Path, *, interpolation: str, size: int, device: str, epochs: int) -> Iterator[tuple]:
    """uint8 (n, 3, size, size) by DALI on the device and by Pillow, batch by batch."""
    crop = RandomResizedCrop(size, interpolation=InterpolationMode(interpolation))
    dataset = ShardDataset(str(folder), transform=Compose([crop, PILToTensor()]))
    loaders = [
        DataLoader(
            dataset, batch_size=64, seed=0, order="sequential", decoder=decoder, device=where, accelerate="require"
        )
        for decoder, where in (("dali", device), ("pillow", "cpu"))
    ]
    for epoch in range(epochs):
        for loader in loaders:
            loader.set_epoch(epoch)
        for (mine, *_), (exact, *_) in zip(*loaders, strict=True):
            yield mine.cpu().numpy(), exact.numpy()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("GPULOAD_DATA", ".")) / "photos")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args(arguments)
    print(f"{platform.machine()}, numpy {np.__version__}, {asked.device}, RandomResizedCrop({asked.size})")
    print(f"{'filter':<10} {'mean':>6} {'99.9%':>6} {'worst':>6} {'values that differ':>19}")
    for name in FILTERS:
        found = difference(
            pairs(asked.folder, interpolation=name, size=asked.size, device=asked.device, epochs=asked.epochs)
        )
        print(f"{name:<10} {found.mean:>6.3f} {found.p999:>6} {found.worst:>6} {found.values:>19.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
