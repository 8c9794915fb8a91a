"""The reference decoder against Pillow and torchvision themselves, and against damage of every kind."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from gpuload.core.batch import DecodedRows, join_encoded
from gpuload.core.geometry import GEOMETRY, Resampling, identity
from gpuload.decode.pillow import PillowDecoder
from tests.augment.pictures import encoded, every_kind, picture

FILES = {**every_kind(), "a pixel": encoded(picture(1, 1)), "a row": encoded(picture(50, 1))}
NAMES = list(FILES)


def whole(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    return identity(widths, heights)


def geometry(crop: list[int], resize: list[int], window: list[int]) -> Callable[..., np.ndarray]:
    """A Resolve that gives the same to every image."""

    def resolve(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        made = np.zeros(len(rows), GEOMETRY)
        made["crop"], made["resize"], made["window"] = crop, resize, window
        return made

    return resolve


def decode(
    files: Sequence[Any], resolve: Callable[..., np.ndarray] = whole, decoder: PillowDecoder | None = None
) -> DecodedRows:
    return (decoder or PillowDecoder(Resampling())).decode(join_encoded(files), range(len(files)), resolve)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


@pytest.mark.parametrize("name", NAMES)
def test_whole_images_are_pillows(name: str):
    made = decode([FILES[name]])
    assert made.failures == {} and made.decoders == {"pillow": 1}
    pixels = made.images[0]
    assert pixels is not None and pixels.dtype == np.uint8
    assert np.array_equal(pixels, np.asarray(opened(FILES[name])))


def test_orientation_is_not_applied():
    assert decode([FILES["turned"]]).images[0].shape[:2] == opened(FILES["turned"]).size[::-1]  # type: ignore[union-attr]


CASES = {
    "a region": ([3, 2, 20, 17], [20, 17], [0, 0, 20, 17]),
    "one pixel": ([5, 7, 1, 1], [1, 1], [0, 0, 1, 1]),
    "a region, smaller": ([3, 2, 20, 17], [9, 6], [0, 0, 9, 6]),
    "a region, larger": ([3, 2, 20, 17], [51, 40], [0, 0, 51, 40]),
    "one side only": ([3, 2, 20, 17], [20, 9], [0, 0, 20, 9]),
    "a window of what was resized": ([0, 0, 22, 20], [30, 35], [4, 9, 20, 11]),
    "beyond the left and the top": ([-6, -3, 30, 21], [30, 21], [0, 0, 30, 21]),
    "beyond every side": ([-6, -3, 99, 90], [99, 90], [0, 0, 99, 90]),
    "nothing of the image": ([-50, 0, 20, 20], [20, 20], [0, 0, 20, 20]),
    "beyond, then resized": ([-6, -3, 30, 21], [11, 15], [0, 0, 11, 15]),
    "a window beyond": ([0, 0, 20, 20], [25, 15], [-3, -4, 40, 30]),
    "a window of nothing": ([0, 0, 20, 20], [25, 15], [25, 0, 6, 6]),
    "all of it": ([-2, 4, 25, 25], [33, 12], [-1, 2, 20, 20]),
}


def cut(image: Image.Image, box: Sequence[int], fill: tuple[int, int, int]) -> Image.Image:
    x, y, w, h = box
    canvas = Image.new("RGB", (image.width + 200, image.height + 200), fill)
    canvas.paste(image, (100, 100))
    return canvas.crop((100 + x, 100 + y, 100 + x + w, 100 + y + h))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fill", [(0, 0, 0), (9, 120, 250)])
def test_geometry_on_pil_images(case: str, fill: tuple[int, int, int]):
    crop, resize, window = CASES[case]
    for interpolation in ("bilinear", "bicubic", "nearest"):
        decoder = PillowDecoder(Resampling(interpolation, fill=fill))
        made = decode(list(FILES.values()), geometry(crop, resize, window), decoder)
        assert not made.failures
        for pixels, data in zip(made.images, FILES.values(), strict=True):
            image = cut(opened(data), crop, fill)
            if list(image.size) != resize:
                image = image.resize((resize[0], resize[1]), Image.Resampling[interpolation.upper()])
            assert np.array_equal(pixels, np.asarray(cut(image, window, fill)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interpolation", "filter"),
    [
        ("nearest", Image.Resampling.NEAREST),
        ("nearest-exact", Image.Resampling.NEAREST),
        ("bilinear", Image.Resampling.BILINEAR),
        ("bicubic", Image.Resampling.BICUBIC),
        ("box", Image.Resampling.BOX),
        ("hamming", Image.Resampling.HAMMING),
        ("lanczos", Image.Resampling.LANCZOS),
    ],
)
def test_filters(interpolation: str, filter: Image.Resampling):
    resolve = geometry([1, 2, 20, 19], [13, 31], [0, 0, 13, 31])
    made = decode([FILES["420"]], resolve, PillowDecoder(Resampling(interpolation)))
    expected = opened(FILES["420"]).crop((1, 2, 21, 21)).resize((13, 31), filter)
    assert np.array_equal(made.images[0], np.asarray(expected))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("F", [F1, F2], ids=["v1", "v2"])
def test_geometry_on_tensors_with_a_resize_handed_in(case: str, F: Any):
    crop, resize, window = CASES[case]

    def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        return F.resize(tensor, [size[1], size[0]], antialias=True).permute(1, 2, 0).numpy()

    fill = (9, 120, 250)
    decoder = PillowDecoder(Resampling(domain="tensor", fill=fill), resized)
    made = decode([FILES["444"], FILES["grey"]], geometry(crop, resize, window), decoder)
    for pixels, name in zip(made.images, ("444", "grey"), strict=True):
        tensor = F1.pil_to_tensor(cut(opened(FILES[name]), crop, fill))
        if list(tensor.shape[:0:-1]) != resize:
            tensor = F.resize(tensor, resize[::-1], antialias=True)
        expected = cut(Image.fromarray(tensor.permute(1, 2, 0).numpy()), window, fill)
        assert np.array_equal(pixels, np.asarray(expected))  # type: ignore[arg-type]


def test_each_row_has_the_geometry_of_its_own_size():
    asked: list[tuple[list[int], list[int], list[int]]] = []

    def resolve(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        asked.append((list(rows), widths.tolist(), heights.tolist()))
        return identity(widths, heights)

    files = list(FILES.values())
    made = PillowDecoder(Resampling()).decode(join_encoded(files), range(2, 6), resolve)
    sizes = [opened(data).size for data in files[2:6]]
    assert asked == [([2, 3, 4, 5], [w for w, _ in sizes], [h for _, h in sizes])]
    assert len(made.images) == 4 and made.rows == range(2, 6)
    assert [tuple(crop[2:]) for crop in made.geometry["crop"].tolist()] == sizes


GOOD = FILES["420"]
BAD = {
    "no bytes": b"",
    "text": b"no image at all",
    "the first bytes only": GOOD[:30],
    "cut within the scan": GOOD[: len(GOOD) // 2],
    "a header that lies": b"\xff\xd8\xff\xe0" + b"\x00" * 400,
    "a damaged PNG": FILES["png"][:60] + bytes(20) + FILES["png"][80:],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_never_costs_its_neighbours(name: str):
    made = decode([GOOD, BAD[name], FILES["grey"], BAD[name], GOOD])
    assert sorted(made.failures) == [1, 3] and made.decoders == {"pillow": 3}
    assert made.images[1] is None and made.images[3] is None
    for place, data in ((0, GOOD), (2, FILES["grey"]), (4, GOOD)):
        assert np.array_equal(made.images[place], np.asarray(opened(data)))  # type: ignore[arg-type]
    with pytest.raises(type(made.failures[1])):
        opened(BAD[name])


def test_rows_that_could_not_be_read_are_left_alone():
    encoded_batch = join_encoded([GOOD, b"", GOOD], (), {1: OSError("gone")})
    made = PillowDecoder(Resampling()).decode(encoded_batch, range(3), whole)
    assert made.failures == {} and made.images[1] is None and made.decoders == {"pillow": 2}


def test_an_image_that_cannot_have_the_geometry_is_named_alone():
    def no_row_of_one_pixel(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        if (heights < 2).any():
            raise ValueError("Required crop size (2, 2) is larger than the input image")
        return geometry([0, 0, 2, 2], [2, 2], [0, 0, 2, 2])(rows, widths, heights)

    made = decode([GOOD, FILES["a row"], b"", FILES["grey"], FILES["a pixel"]], no_row_of_one_pixel)
    assert sorted(made.failures) == [1, 2, 4]
    assert isinstance(made.failures[1], ValueError) and "Required crop size" in str(made.failures[4])
    assert np.array_equal(made.images[3], np.asarray(opened(FILES["grey"]))[:2, :2])  # type: ignore[arg-type]


def test_nothing_to_decode():
    assert decode([]).images == []
    made = decode([b"", b"x"])
    assert made.images == [None, None] and sorted(made.failures) == [0, 1] and made.decoders == {"pillow": 0}


def test_every_calling_thread_may_decode():
    decoder = PillowDecoder(Resampling())
    assert decoder.callers(7) == 7 and decoder.name == "pillow"
    decoder.close()
    assert not decode([GOOD], whole, decoder).failures


def test_the_conformance_images_have_pillows_verdict_and_pixels(real_data: Path):
    home = real_data / "jpeg-conformance"
    entries = json.loads((home / "manifest.json").read_text())
    files = [(home / entry["file"]).read_bytes() for entry in entries]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of metadata that these files have wrong on purpose
        made = decode(files)
        for row, (entry, data) in enumerate(zip(entries, files, strict=True)):
            try:
                expected = np.asarray(opened(data))
            except Exception as error:
                assert type(made.failures[row]) is type(error), entry["file"]
                assert made.images[row] is None
                assert entry["pillow"] == f"error {type(error).__name__}", entry["file"]
            else:
                assert entry["pillow"] == "decodes", entry["file"]
                assert np.array_equal(made.images[row], expected), entry["file"]  # type: ignore[arg-type]
    assert 0 < len(made.failures) < len(files)
