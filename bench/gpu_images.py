"""Photograph-like JPEGs for the proof on a GPU, out of nothing: no download, and no package that ships photographs.

A JPEG's bits follow from how detail falls with frequency: so a canvas is a sum of noise at ever coarser scales, each
stronger than the one before and all together as strong as a photograph's, with weaker chroma. Images are cut from it at
ImageNet's usual sizes, at the quality that gives ImageNet's 110 KB on average, three of four without chroma
subsampling. Owns these, tar shards of the same, and an image of a camera's size. The same on every machine with the
same Pillow.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from gpuload.cli.demo_data import SIZES, SUBSAMPLINGS

QUALITY = 93
CANVAS = (1800, 1400)
COARSEST = 8  # the coarsest noise has one value every 2 ** 8 pixels
FINEST_LEVELS, GROWTH = 4.4, 1.4
"""Standard deviation of the finest noise, in levels, and what each octave gains on it: 62 levels in all."""

CHROMA = 0.4
"""Of the strength of luma."""

CLASSES = 8
SHARD_IMAGES = 256
LARGE = (8192, 6144)
"""50 megapixels."""


@dataclass(frozen=True)
class Made:
    """folder: class folders of JPEGs. shards: the folder of tar shards that hold the same. bytes: their mean."""

    folder: Path
    shards: Path
    images: int
    bytes: float


def make(folder: Path, *, images: int, threads: int) -> Made:
    """`images` JPEGs below `folder`, which must not hold any yet."""
    with ThreadPoolExecutor(threads) as pool:
        canvases = list(pool.map(canvas, range(CLASSES)))
        files = list(pool.map(lambda i: jpeg(canvases[i % CLASSES], (i,)), range(images)))
    classes = folder / "classes"
    for label in range(CLASSES):
        (classes / f"class{label}").mkdir(parents=True)
    for i, data in enumerate(files):
        (classes / f"class{i % CLASSES}" / f"{i:05d}.jpg").write_bytes(data)
    (folder / "shards").mkdir()
    for first in range(0, images, SHARD_IMAGES):
        path = folder / "shards" / f"{first // SHARD_IMAGES:03d}.tar"
        _write_shard(path, files, range(first, min(first + SHARD_IMAGES, images)))
    return Made(classes, folder / "shards", images, sum(map(len, files)) / images)


def canvas(seed: int, size: tuple[int, int] = CANVAS) -> Image.Image:
    """Noise with a photograph's spectrum: (width, height) RGB."""
    draw = np.random.default_rng(seed)
    levels = np.full((3, size[1], size[0]), 128, np.float32)
    for octave in range(COARSEST + 1):
        coarse = (max(2, size[1] >> octave), max(2, size[0] >> octave))
        for c, strength in enumerate((1.0, CHROMA, CHROMA)):
            noise = Image.fromarray(draw.standard_normal(coarse, np.float32))
            smooth = np.asarray(noise.resize(size, Image.Resampling.BICUBIC))
            levels[c] += FINEST_LEVELS * GROWTH**octave * strength * smooth
    planes = [Image.fromarray(plane) for plane in np.clip(levels, 0, 255).astype(np.uint8)]
    return Image.merge("YCbCr", planes).convert("RGB")


def jpeg(source: Image.Image, seed: Sequence[int]) -> bytes:
    """One image cut from a canvas."""
    draw = np.random.default_rng(seed)
    width, height = SIZES[int(draw.integers(len(SIZES)))]
    left, top = int(draw.integers(source.width - width + 1)), int(draw.integers(source.height - height + 1))
    out = io.BytesIO()
    cut = source.crop((left, top, left + width, top + height))
    cut.save(out, "JPEG", quality=QUALITY, subsampling=SUBSAMPLINGS[int(draw.integers(len(SUBSAMPLINGS)))])
    return out.getvalue()


def large_jpeg(path: Path, size: tuple[int, int] = LARGE) -> None:
    """A camera's image, 4:2:0: one canvas side by side with itself."""
    tile, whole = canvas(CLASSES), Image.new("RGB", size)
    for top in range(0, size[1], tile.height):
        for left in range(0, size[0], tile.width):
            whole.paste(tile, (left, top))
    whole.save(path, quality=QUALITY, subsampling=2)


def _write_shard(path: Path, files: Sequence[bytes], numbers: range) -> None:
    """A WebDataset shard: 00000.jpg, 00000.cls, 00001.jpg..."""
    with tarfile.open(path, "w") as archive:
        for i in numbers:
            for name, data in ((f"{i:05d}.jpg", files[i]), (f"{i:05d}.cls", str(i % CLASSES).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
