"""Data that no folder of photographs holds, made of one: images of a camera's size, and shards of tiny ones.

Owns how they are made; the same photographs give the same files. Both keep what matters to a decoder: a photograph's
detail and frequencies, at the size that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gpuload.cli.pack import pack

QUALITY = 90
MOSAIC = (4000, 3000)
TILE = (500, 375)
"""About the photographs' own size: enlarged ones would be smooth, and cheap to decode."""

CLASSES = 10


def mosaics(photos: Sequence[Path], folder: Path, *, count: int, size: tuple[int, int] = MOSAIC) -> None:
    """`count` JPEGs of `size` (width, height), 4:2:0, each of other photographs side by side."""
    folder.mkdir(parents=True)
    places = [(x, y) for y in range(0, size[1], TILE[1]) for x in range(0, size[0], TILE[0])]
    for number in range(count):
        canvas = Image.new("RGB", size)
        chosen = np.random.default_rng(number).integers(0, len(photos), len(places)).tolist()
        for place, choice in zip(places, chosen, strict=True):
            canvas.paste(ImageOps.fit(Image.open(photos[choice]).convert("RGB"), TILE), place)
        canvas.save(folder / f"{number:02d}.jpg", quality=QUALITY, subsampling="4:2:0")


def tiny_shards(photos: Sequence[Path], folder: Path, *, count: int, side: int = 32) -> Path:
    """Tar shards of `count` JPEGs of `side` x `side`, parts of photographs made small. Returns the shards' folder."""
    for label in range(CLASSES):
        (folder / "images" / f"class{label}").mkdir(parents=True)
    draw, each = np.random.default_rng(0), -(-count // len(photos))
    for number in range(count):
        if number % each == 0:
            photo = Image.open(photos[number // each]).convert("RGB")
        part = int(min(photo.size) * draw.uniform(0.4, 1.0))
        x, y = (int(draw.integers(0, room - part + 1)) for room in photo.size)
        small = photo.resize((side, side), Image.Resampling.BILINEAR, (x, y, x + part, y + part), reducing_gap=2.0)
        small.save(folder / "images" / f"class{number % CLASSES}" / f"{number:06d}.jpg", quality=QUALITY)
    pack(str(folder / "images"), str(folder / "shards"), format="tar", shard_size="8MB")
    return folder / "shards"
