"""resample.cu on this processor: whole batches, from regions of pixels to stored elements, against NumPy references."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from gpuload.kernels.pointwise import lookup_store_reference
from gpuload.kernels.resample import resize_reference
from gpuload.kernels.resample_weights import BICUBIC, BILINEAR, BOX, coefficients_reference, tap_limit

from tests.kernels.host_cuda import address, host_kernels, images_of

pytestmark = pytest.mark.full  # needs g++

FILTERS = [BILINEAR, BICUBIC, BOX]
FILL = (124, 0, 255)
JUNK = 113


class Crop(NamedTuple):
    """A crop of in_high x in_wide pixels that becomes high x wide; the batch shows what is from (left, top) on."""

    in_high: int
    in_wide: int
    high: int
    wide: int
    left: int = 0
    top: int = 0
    flip_h: bool = False
    flip_v: bool = False
    vertical_first: bool = False
    place: int = 0


def pixels_of(crop: Crop) -> np.ndarray:
    """Noise, with runs of extremes, so that filters with negative weights overshoot."""
    generator = np.random.default_rng([crop.in_high, crop.in_wide])
    noise = generator.integers(0, 256, (crop.in_high, crop.in_wide, 3), dtype=np.uint8)
    return np.where(generator.random(noise.shape[:2] + (1,)) < 0.5, noise, noise // 128 * np.uint8(255))


class Planned(NamedTuple):
    fields: dict[str, Any]
    source: np.ndarray  # the region's pixels, uint8 (h, w, 4)


def planned(crop: Crop, height: int, width: int, kind: int) -> Planned:
    """The image's row, and of its crop the pixels that the shown outputs read."""
    left, top = max(crop.left, 0), max(crop.top, 0)
    right, bottom = min(crop.left + width, crop.wide), min(crop.top + height, crop.high)
    resampled = (crop.in_high, crop.in_wide) != (crop.high, crop.wide)
    fields: dict[str, Any] = {
        "outputs": (left, top, right, bottom), "shown": (crop.left, crop.top), "flips": (crop.flip_h, crop.flip_v),
        "place": crop.place, "resampled": resampled, "vertical_first": crop.vertical_first,
    }  # fmt: skip
    if not resampled:
        rows, columns = (top, bottom), (left, right)
    else:
        rows, columns = (
            (firsts[start], firsts[end - 1] + len(weights[end - 1]))
            for (firsts, weights), start, end in (
                (coefficients_reference(crop.in_high, crop.high, kind), top, bottom),
                (coefficients_reference(crop.in_wide, crop.wide, kind), left, right),
            )
        )
        taps = tap_limit(crop.in_high, crop.high, kind), tap_limit(crop.in_wide, crop.wide, kind)
        out_high, out_wide = bottom - top, right - left
        wide = columns[1] - columns[0]
        fields |= {
            "vertical": (crop.in_high, rows[0], crop.high, top),
            "horizontal": (crop.in_wide, columns[0], crop.wide, left),
            "taps": taps, "first_row": out_high + out_wide,
            "first_weight": out_high * (2 + taps[0]) + out_wide * (2 + taps[1]),
            "first_middle": out_high * wide if crop.vertical_first else (rows[1] - rows[0]) * out_wide,
        }  # fmt: skip
    source = np.full((rows[1] - rows[0], columns[1] - columns[0], 4), JUNK, np.uint8)
    source[..., :3] = pixels_of(crop)[rows[0] : rows[1], columns[0] : columns[1]]
    at = 1000, 500  # where the crop lies in its image, which the kernels need not know
    region = at[0] + columns[0], at[1] + rows[0], at[0] + columns[1], at[1] + rows[1]
    return Planned(fields | {"region": region, "first_pixel": source.size // 4}, source)


def expected(crop: Crop, kind: int, table: np.ndarray, out: np.ndarray) -> None:
    """Into out, (3, height, width): what Pillow makes of the whole crop, the shown part of it, mirrored, looked up."""
    whole = pixels_of(crop)
    if (crop.in_high, crop.in_wide) != (crop.high, crop.wide):
        whole = resize_reference(whole, crop.high, crop.wide, kind, crop.vertical_first)
    shown = np.empty((*out.shape[1:], 3), np.uint8)
    shown[:] = FILL
    for y, x in np.ndindex(*out.shape[1:]):
        if 0 <= crop.top + y < crop.high and 0 <= crop.left + x < crop.wide:
            shown[y, x] = whole[crop.top + y, crop.left + x]
    lookup_store_reference(shown, table, crop.flip_h, crop.flip_v, out)


class Batch(NamedTuple):
    images: np.ndarray
    pixels: np.ndarray
    weights: np.ndarray


def weighed(crops: list[Crop], height: int, width: int, kind: int) -> Batch:
    plans = [planned(crop, height, width, kind) for crop in crops]
    images = images_of([plan.fields for plan in plans])
    pixels = np.concatenate([plan.source.reshape(-1, 4) for plan in plans])
    weights = np.full(int(images["first_weight"][-1]), -JUNK, np.int32)
    rows = int(images["first_row"][-1])
    host_kernels().launch("fill_weights", rows, len(crops), rows, address(images), kind, address(weights))
    return Batch(images, pixels, weights)


def stored(crops: list[Crop], kind: int, table: np.ndarray, out: np.ndarray) -> None:
    """All launches from pixels to out, (rows, 3, height, width), any strides."""
    n, (height, width) = len(crops), out.shape[2:]
    images, pixels, weights = weighed(crops, height, width, kind)
    middle = np.full((int(images["first_middle"][-1]), 4), JUNK, np.uint8)
    arrays = address(images), address(weights), address(pixels), address(middle)
    host_kernels().launch("first_pass", len(middle), n, len(middle), *arrays)
    items = n * height * width
    host_kernels().launch(
        f"store_{table.itemsize}", items, n, items, *arrays, address(table), *FILL, address(out), height, width,
        *out.strides,
    )  # fmt: skip


def table_of(dtype: str) -> np.ndarray:
    """Another element for every value and channel; at one byte, a permutation for each."""
    values = np.stack([np.random.default_rng(c).permutation(256) for c in range(3)])
    return (values if dtype == "u1" else values + 256 * np.arange(3)[:, None] + 7).astype(dtype)


def assert_right(crops: list[Crop], height: int, width: int, kind: int, dtype: str = "u1", nhwc: bool = False) -> None:
    """The rows that images go to are right and the others untouched."""
    table, rows = table_of(dtype), 2 + max(crop.place for crop in crops)
    shape = (rows, height, width, 3) if nhwc else (rows, 3, height, width)
    memory = np.full(shape, JUNK, dtype)
    out = memory.transpose(0, 3, 1, 2) if nhwc else memory
    stored(crops, kind, table, out)
    wanted = np.full_like(out, JUNK)
    for crop in crops:
        if crop.place >= 0:
            expected(crop, kind, table, wanted[crop.place])
    assert np.array_equal(out, wanted)


CROPS = [
    Crop(37, 53, 20, 17, place=3),
    Crop(37, 53, 20, 17, vertical_first=True, flip_h=True, place=0),
    Crop(9, 11, 24, 30, left=4, top=3, flip_v=True, place=5),  # a window of something larger
    Crop(9, 11, 24, 30, left=4, top=3, flip_h=True, flip_v=True, vertical_first=True, place=1),
    Crop(16, 13, 16, 13, left=-2, top=-1, flip_h=True, place=2),  # nothing resampled, something filled
    Crop(40, 41, 40, 41, left=11, top=23, flip_v=True, place=8),  # nothing resampled, a window
    Crop(1, 1, 5, 9, left=-4, top=2, place=7),
    Crop(60, 12, 60, 10, vertical_first=True, place=4),  # one axis keeps its size
    Crop(300, 2, 15, 13, flip_v=True, left=-1, top=-2, vertical_first=True, place=6),
    Crop(20, 20, 10, 10, place=-1),  # for no row of the batch
]


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8"])
@pytest.mark.parametrize("nhwc", [False, True])
def test_a_batch_of_all_sorts_in_every_type_and_layout(kind: int, dtype: str, nhwc: bool):
    assert_right(CROPS, 15, 13, kind, dtype, nhwc)


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("vertical_first", [False, True])
def test_any_sizes(kind: int, vertical_first: bool):
    generator = np.random.default_rng([kind, vertical_first])
    for height, width in ((1, 1), (7, 19), (33, 5)):
        crops = []
        for place in range(12):
            in_high, in_wide, high, wide = (int(size) for size in generator.integers(1, 70, 4))
            left, top = int(generator.integers(-width + 1, wide)), int(generator.integers(-height + 1, high))
            flip_h, flip_v = (bool(flip) for flip in generator.integers(0, 2, 2))
            crops.append(Crop(in_high, in_wide, high, wide, left, top, flip_h, flip_v, vertical_first, place))
        assert_right(crops, height, width, kind)


@pytest.mark.parametrize("kind", FILTERS)
def test_weights_are_the_references_to_the_last_bit(kind: int):
    generator = np.random.default_rng(kind)
    crops = [Crop(65535, 500, 1, 499), Crop(1, 3, 65, 1), Crop(1000, 999, 224, 224), Crop(640, 333, 97, 77, left=50)]
    for _ in range(60):
        in_high, in_wide, high, wide = (int(size) for size in generator.integers(1, 700, 4))
        crops.append(Crop(in_high, in_wide, high, wide))
    height, width = 500, 400
    images, _, weights = weighed(crops, height, width, kind)
    for i, crop in enumerate(crops):
        left, top, right, bottom = (int(side) for side in images["outputs"][i])
        row = int(images["first_weight"][i])
        if not images["resampled"][i]:
            continue
        for axis, start, end, taps in (
            ("vertical", top, bottom, int(images["taps"][i, 0])),
            ("horizontal", left, right, int(images["taps"][i, 1])),
        ):
            in_size, source_start, out_size, _ = (int(number) for number in images[axis][i])
            firsts, wanted = coefficients_reference(in_size, out_size, kind)
            for output in range(start, end):
                line = [firsts[output] - source_start, len(wanted[output]), *wanted[output]]
                got = weights[row : row + 2 + taps].tolist()
                assert got == line + [0] * (2 + taps - len(line)), (crop, axis, output)
                row += 2 + taps
        assert row == images["first_weight"][i + 1]


def test_a_channels_last_view_with_gaps_and_rows_in_reverse():
    """Strides are bytes and may be anything, negative ones too."""
    crops = [crop._replace(place=max(crop.place, 0)) for crop in CROPS[:3]]
    memory = np.full((7, 16, 15, 4), JUNK, np.uint16)
    out = memory[::-1, :15, 13:0:-1, :3].transpose(0, 3, 1, 2)
    table = table_of("u2")
    stored(crops, BICUBIC, table, out)
    wanted = np.full_like(memory, JUNK)
    for crop in crops:
        expected(crop, BICUBIC, table, wanted[::-1, :15, 13:0:-1, :3].transpose(0, 3, 1, 2)[crop.place])
    assert np.array_equal(memory, wanted)
