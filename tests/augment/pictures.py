"""Small images of every kind that a JPEG loader meets, generated, each of its own odd size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZES = ((37, 29), (24, 61), (83, 41), (50, 50), (33, 47), (64, 23), (45, 58))


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Content of low and high frequencies, so that a filter, a shift by a pixel and a mirror all show."""
    generator = np.random.default_rng([seed, width, height])
    coarse = Image.fromarray(generator.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + generator.integers(-40, 41, (height, width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    with io.BytesIO() as out:
        image.save(out, format, **({"quality": 90} | options if format == "JPEG" else options))
        return out.getvalue()


def every_kind() -> dict[str, bytes]:
    """Name -> file: subsamplings, progressive, grey, CMYK, EXIF rotation, a PNG, none smaller than 23 pixels."""
    turned = Image.Exif()
    turned[0x0112] = 6
    w = iter(SIZES)
    return {
        "444": encoded(picture(*next(w)), subsampling=0),
        "420": encoded(picture(*next(w)), subsampling=2),
        "422 progressive": encoded(picture(*next(w)), subsampling=1, progressive=True),
        "grey": encoded(picture(*next(w), mode="L")),
        "cmyk": encoded(picture(*next(w), mode="CMYK")),
        "turned": encoded(picture(*next(w)), exif=turned),
        "png": encoded(picture(*next(w)), "PNG"),
    }


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    """As ImageFolder reads it: two classes, every file named .jpg, in the order given."""
    for number, (name, data) in enumerate(files.items()):
        folder = root / ("ant" if number < len(files) // 2 else "bee")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02d} {name}.jpg").write_bytes(data)
    return root
