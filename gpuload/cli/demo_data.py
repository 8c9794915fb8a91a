"""A data set of JPEGs like ImageNet's, recut from photographs that two common packages ship in their wheels.

Owns which photographs, the sizes, and the JPEG quality that gives ImageNet's bits per pixel. Nothing is downloaded;
what was made is kept and found again. Packing and training are demo.py's.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from gpuload.core.errors import MissingDependencyError

PHOTOGRAPHS: Mapping[str, Sequence[tuple[str, str]]] = {
    "astronaut": [("skimage", "data/astronaut.png")],
    "cat": [("skimage", "data/chelsea.png")],
    "coffee": [("skimage", "data/coffee.png")],
    "flower": [("sklearn", "datasets/images/flower.jpg")],
    "galaxies": [("skimage", "data/hubble_deep_field.jpg")],
    "motorcycle": [("skimage", "data/motorcycle_left.png"), ("skimage", "data/motorcycle_right.png")],
    "rocket": [("skimage", "data/rocket.jpg")],
    "temple": [("sklearn", "datasets/images/china.jpg")],
}
"""Class -> (package, file in it). All lie in the wheels of scikit-image and scikit-learn."""

SIZES = (
    *[(500, 375)] * 6, *[(500, 333)] * 3, *[(375, 500)] * 2, (333, 500), (500, 500), (400, 300), (640, 480), (800, 600),
)  # fmt: skip
"""(width, height): the common sizes of ImageNet's photographs at about their frequency; 0.21 megapixels on average."""

BITS_PER_PIXEL = 4.4
"""ImageNet's mean over its sample photographs: 110 KB for 0.2 megapixels."""

SUBSAMPLINGS = (0, 0, 0, 2)
"""Pillow's names for 4:4:4, three of four images, and 4:2:0: about ImageNet's mixture."""

IMAGES_PER_CLASS = 80


@dataclass(frozen=True)
class Made:
    """What the data set is. bytes, megapixels: means over its images; qualities: JPEG quality by class."""

    images: int
    classes: int
    bytes: float
    megapixels: float
    qualities: Mapping[str, int]

    @property
    def bits_per_pixel(self) -> float:
        return 8 * self.bytes / (1e6 * self.megapixels)

    def __str__(self) -> str:
        low, high = min(self.qualities.values()), max(self.qualities.values())
        return (
            f"{self.images} JPEGs in {self.classes} classes recut from photographs in scikit-image and scikit-learn: "
            f"on average {self.megapixels:.2f} megapixels, {self.bytes / 1000:.0f} kB, {self.bits_per_pixel:.1f} "
            f"bit/pixel (JPEG quality {low} to {high}, 3 of 4 without chroma subsampling), as ImageNet's are"
        )


def make(folder: Path, *, tell: Callable[[str], None], images_per_class: int = IMAGES_PER_CLASS) -> Made:
    """Class folders of JPEGs below `folder`, made once; a folder half made by a killed run is begun anew.

    The same on every machine with the same Pillow. Raises MissingDependencyError without the two packages.
    """
    statement = folder / "made.json"
    if statement.exists():
        return Made(**json.loads(statement.read_text()))
    photographs = {name: [_open(*where) for where in files] for name, files in PHOTOGRAPHS.items()}
    shutil.rmtree(folder, ignore_errors=True)
    tell(f"cutting {images_per_class * len(photographs)} JPEGs from {len(photographs)} photographs")
    qualities = {name: _quality(shots) for name, shots in photographs.items()}
    sizes_bytes: list[int] = []
    pixels: list[int] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as pool:
        for number, (name, shots) in enumerate(photographs.items()):
            (folder / "images" / name).mkdir(parents=True)
            cuts = [_Cut(number, i, SIZES[i % len(SIZES)]) for i in range(images_per_class)]
            encode = _Encoder(shots, qualities[name])
            for cut, data in zip(cuts, pool.map(encode, cuts), strict=True):
                (folder / "images" / name / f"{cut.index:04d}.jpg").write_bytes(data)
                sizes_bytes.append(len(data))
                pixels.append(cut.size[0] * cut.size[1])
    made = Made(len(pixels), len(photographs), statistics.mean(sizes_bytes), statistics.mean(pixels) / 1e6, qualities)
    statement.write_text(json.dumps(asdict(made)))
    return made


def _open(package: str, file: str) -> Image.Image:
    spec = importlib.util.find_spec(package)
    path = Path(spec.submodule_search_locations[0]) / file if spec and spec.submodule_search_locations else None
    if path is None or not path.exists():
        raise MissingDependencyError(
            f"the demo recuts photographs that scikit-image and scikit-learn ship; {package}/{file} is not there: "
            "pip install 'gpuload[demo]', or give your own images with --data"
        )
    with Image.open(path) as image:
        return image.convert("RGB")


@dataclass(frozen=True)
class _Cut:
    """Image `index` of class `number`, `size` (width, height) pixels."""

    number: int
    index: int
    size: tuple[int, int]


@dataclass(frozen=True)
class _Encoder:
    """Cuts to JPEG bytes, at one quality."""

    shots: Sequence[Image.Image]
    quality: int

    def __call__(self, cut: _Cut) -> bytes:
        draw = np.random.default_rng((cut.number, cut.index))
        shot = self.shots[cut.index % len(self.shots)]
        (width, height), (out_w, out_h) = shot.size, cut.size
        largest = min(width / out_w, height / out_h)
        scale = largest * draw.uniform(0.6, 0.95)
        box_w, box_h = scale * out_w, scale * out_h
        left, top = draw.uniform(0, width - box_w), draw.uniform(0, height - box_h)
        image = shot.resize(cut.size, Image.Resampling.LANCZOS, box=(left, top, left + box_w, top + box_h))
        out = io.BytesIO()
        image.save(out, "JPEG", quality=self.quality, subsampling=SUBSAMPLINGS[int(draw.integers(len(SUBSAMPLINGS)))])
        return out.getvalue()


def _quality(shots: Sequence[Image.Image]) -> int:
    """The JPEG quality at which a few cuts of a photograph come nearest to BITS_PER_PIXEL."""
    cuts = [_Cut(0, i, size) for i, size in enumerate(SIZES[::2])]
    pixels = sum(cut.size[0] * cut.size[1] for cut in cuts)

    def distance(quality: int) -> float:
        encode = _Encoder(shots, quality)
        return 8 * sum(len(encode(cut)) for cut in cuts) / pixels - BITS_PER_PIXEL

    low, high = 75, 100
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if distance(middle) < 0 else (low, middle)
    return min((low, high), key=lambda quality: abs(distance(quality)))
