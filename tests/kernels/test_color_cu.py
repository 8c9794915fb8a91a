"""color.cu on this processor: regions of many images in one launch against the NumPy references of whole images."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from gpuload.kernels.color import ycc_to_rgb_reference
from gpuload.kernels.jpeg_header import GREY, RGB, YCBCR
from gpuload.kernels.upsample import upsample_reference

from tests.kernels.host_cuda import address, header_of, host_kernels, images_of

pytestmark = pytest.mark.full  # needs g++

SAMPLINGS = {
    "grey": ((1, 1),),
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "three to one": ((3, 1), (1, 1), (1, 1)),
    "one to four down": ((1, 4), (1, 1), (1, 1)),
    "4:4:4, two blocks each": ((2, 1), (2, 1), (2, 1)),
    "more chroma than luma": ((1, 1), (2, 2), (2, 2)),
    "every component its own way": ((2, 1), (1, 2), (2, 2)),
    "two thirds of a row group": ((1, 4), (1, 2), (1, 1)),
}


class Shown(NamedTuple):
    """Pixels [top, bottom) x [left, right) of an image of noise, of which those MCUs are decoded that they need."""

    width: int
    height: int
    sampling: str
    color: int
    left: int
    top: int
    right: int
    bottom: int


def components_of(image: Shown) -> list[np.ndarray]:
    """Samples of each component at its true size."""
    generator = np.random.default_rng([image.width, image.height])
    factors = SAMPLINGS[image.sampling]
    h_max, v_max = (max(of) for of in zip(*factors, strict=True))
    sizes = [(-(-image.height * v // v_max), -(-image.width * h // h_max)) for h, v in factors]
    return [generator.integers(0, 256, size, dtype=np.uint8) for size in sizes]


def expected(image: Shown) -> np.ndarray:
    factors = SAMPLINGS[image.sampling]
    h_max, v_max = (max(of) for of in zip(*factors, strict=True))
    whole = [
        upsample_reference(samples, h_max // h, v_max // v)[: image.height, : image.width]
        for samples, (h, v) in zip(components_of(image), factors, strict=True)
    ]
    pixels = ycc_to_rgb_reference(*whole) if image.color == YCBCR else np.stack((whole * 3)[:3], axis=-1)
    return pixels[image.top : image.bottom, image.left : image.right]


def window_of(image: Shown) -> tuple[int, int, int, int]:
    """The MCUs, left, top, wide, high, that hold the region and a sample of every component around it."""
    sides = zip(*SAMPLINGS[image.sampling], strict=True)
    out = []
    for factors, first, end, size in zip(
        sides, (image.left, image.top), (image.right, image.bottom), (image.width, image.height), strict=True
    ):
        of = max(factors)
        start, stop = max(first - of, 0) // (8 * of), min(-(-(end + of) // (8 * of)), -(-size // (8 * of)))
        out.append((start, stop - start))
    return out[0][0], out[1][0], out[0][1], out[1][1]


def planes_of(image: Shown) -> np.ndarray:
    """What transform_blocks leaves: the window's part of each component, in whole MCUs, noise beyond the true size."""
    left, top, wide, high = window_of(image)
    parts = []
    for samples, (h, v) in zip(components_of(image), SAMPLINGS[image.sampling], strict=True):
        padded = np.random.default_rng(1).integers(0, 256, (8 * v * (top + high), 8 * h * (left + wide)), np.uint8)
        height, width = min(len(samples), len(padded)), min(samples.shape[1], padded.shape[1])
        padded[:height, :width] = samples[:height, :width]
        parts.append(padded[8 * v * top :, 8 * h * left :].ravel())
    return np.concatenate([*parts, np.full(64, 77, np.uint8)])  # and the block that nobody wants


def to_rgb(shown: list[Shown | None]) -> list[np.ndarray]:
    """The regions of all images, (h, w, 4), by one launch; None: an image without pixels and blocks."""
    planes = [planes_of(image) if image else np.zeros(0, np.uint8) for image in shown]
    fields = []
    for image, samples in zip(shown, planes, strict=True):
        region = image[4:] if image else (0, 0, 0, 0)
        values: dict[str, Any] = {
            "first_block": samples.size // 64,
            "first_pixel": (region[2] - region[0]) * (region[3] - region[1]),
            "region": region,
        }
        if image:
            values["header"] = header_of(image.width, image.height, SAMPLINGS[image.sampling], image.color)
            values["window"] = window_of(image)
        fields.append(values)
    images, everything = images_of(fields), np.concatenate(planes)
    count = int(images["first_pixel"][-1])
    pixels = np.full((count, 4), 113, np.uint8)
    host_kernels().launch("to_rgb", count, len(shown), count, address(images), address(everything), address(pixels))
    parts = np.split(pixels, images["first_pixel"][1:-1])
    return [part.reshape(image.bottom - image.top, -1, 4) for part, image in zip(parts, shown, strict=True) if image]


def assert_right(shown: list[Shown | None]) -> None:
    for pixels, image in zip(to_rgb(shown), [image for image in shown if image], strict=True):
        assert np.array_equal(pixels[..., :3], expected(image)), image
        assert (pixels[..., 3] == 0).all()


def color_of(sampling: str) -> int:
    return GREY if len(SAMPLINGS[sampling]) == 1 else YCBCR


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_whole_images_of_every_size(sampling: str):
    color = color_of(sampling)
    sizes = [(width, 1 + width * 7 % 40) for width in range(1, 41)] + [
        (1 + height * 12 % 40, height) for height in range(1, 41)
    ]
    assert_right([Shown(width, height, sampling, color, 0, 0, width, height) for width, height in sizes])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_regions_anywhere_in_an_image(sampling: str):
    width, height, color = 97, 71, color_of(sampling)
    boxes = [(96, 0, 97, 71), (0, 70, 97, 71), (47, 31, 48, 32), (16, 8, 48, 24), (33, 17, 64, 48)]
    generator = np.random.default_rng(7)
    for _ in range(40):
        left, top = int(generator.integers(0, width)), int(generator.integers(0, height))
        boxes.append((left, top, int(generator.integers(left + 1, width + 1)), int(generator.integers(top + 1, 72))))
    assert_right([Shown(width, height, sampling, color, *box) for box in boxes])


def test_images_of_all_kinds_and_none_in_one_launch():
    shown: list[Shown | None] = [None]
    for i, sampling in enumerate(SAMPLINGS):
        color = RGB if sampling in ("4:4:4", "4:2:0", "more chroma than luma") else color_of(sampling)
        shown.append(Shown(50 + i, 41 - i, sampling, color, i, 2 * i % 13, 40 + i, 30 - i))
        shown += [None] * (i % 3)
    assert_right(shown)


def test_every_pair_of_chroma_values():
    """A 4:4:4 image of 256 x 256 with all of them, at some levels of luma."""
    blue, red = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    header, pixels = header_of(256, 256, SAMPLINGS["4:4:4"], YCBCR), np.zeros((256, 256, 4), np.uint8)
    box = {"header": header, "window": (0, 0, 32, 32), "region": (0, 0, 256, 256)}
    images = images_of([box | {"first_block": 3 * 1024 + 1, "first_pixel": 65536}])
    for level in (0, 1, 73, 128, 200, 254, 255):
        luma = np.full((256, 256), level, np.uint8)
        planes = np.concatenate([luma.ravel(), blue.ravel(), red.ravel(), np.zeros(64, np.uint8)])
        host_kernels().launch("to_rgb", 65536, 1, 65536, address(images), address(planes), address(pixels))
        assert np.array_equal(pixels[..., :3], ycc_to_rgb_reference(luma, blue, red))
