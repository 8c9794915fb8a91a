"""The exact resize against Pillow's own, bit for bit: filters, sizes, crops, windows, mirrors, types and layouts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from gpuload.kernels.pointwise import lookup_store_reference
from gpuload.kernels.resample import resize_reference, resize_store, scratch_bytes
from gpuload.kernels.resample_weights import (
    BICUBIC,
    BILINEAR,
    BOX,
    HAMMING,
    HORIZONTAL_FIRST,
    LANCZOS,
    SHRINKING_VERTICAL_FIRST,
    TALL_VERTICAL_FIRST,
    Axis,
    coefficients_reference,
    resample_coefficients,
    source_span,
    tap_limit,
    vertical_first,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

FILTERS = [BILINEAR, BICUBIC, LANCZOS, BOX, HAMMING]
IDENTITY = np.tile(np.arange(256, dtype=np.uint8), (3, 1))


def image_of(height: int, width: int, contrast: bool = False) -> np.ndarray:
    """Noise; with contrast of 0 and 255 only, so that filters with negative weights overshoot."""
    generator = np.random.default_rng([height, width])
    if contrast:
        return generator.integers(0, 2, (height, width, 3), dtype=np.uint8) * np.uint8(255)
    return generator.integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_pillow(source: np.ndarray, height: int, width: int, kind: int) -> np.ndarray:
    return np.asarray(Image.fromarray(np.ascontiguousarray(source)).resize((width, height), kind))


@cache
def installed_rule() -> int:
    """The one rule by which the installed Pillow's results on tiny images are explained."""
    explained = []
    for rule in (HORIZONTAL_FIRST, TALL_VERTICAL_FIRST, SHRINKING_VERTICAL_FIRST):
        right = True
        for (h, w), (height, width) in (
            ((40, 6), (10, 5)),
            ((340, 3), (20, 2)),
            ((40, 60), (10, 20)),
            ((9, 9), (5, 7)),
        ):
            source = image_of(h, w)
            order = vertical_first(rule, h, w, height, width)
            right &= np.array_equal(
                resize_reference(source, height, width, BICUBIC, order), by_pillow(source, height, width, BICUBIC)
            )
        if right:
            explained.append(rule)
    assert len(explained) == 1, f"no order of passes that is known here explains Pillow {PIL.__version__}"
    return explained[0]


def bytes_of(array: np.ndarray) -> np.ndarray:
    """With a last axis of the elements' bytes, as the kernel takes them."""
    return array[..., None].view(np.uint8)


def resize(
    source: np.ndarray,
    vertical: Axis,
    horizontal: Axis,
    kind: int,
    out: np.ndarray,
    table: np.ndarray = IDENTITY,
    flip_h: bool = False,
    flip_v: bool = False,
    order: bool | None = None,
) -> None:
    """resize_store with scratch memory of the exact size, full of noise, and a guard behind it."""
    if order is None:
        sizes = vertical.in_size, horizontal.in_size, vertical.out_size, horizontal.out_size
        order = vertical_first(installed_rule(), *sizes)
    needed = scratch_bytes(vertical, horizontal, *out.shape[1:], kind, order)
    scratch = np.random.default_rng(3).integers(0, 256, needed + 64, dtype=np.uint8)
    guard = scratch[needed:].copy()
    resize_store(
        source, vertical, horizontal, kind, order, bytes_of(table), flip_h, flip_v, scratch[:needed], bytes_of(out)
    )
    assert np.array_equal(scratch[needed:], guard)


def resized(source: np.ndarray, height: int, width: int, kind: int, order: bool | None = None) -> np.ndarray:
    out = np.full((height, width, 3), 113, np.uint8)
    axes = Axis(source.shape[0], 0, height, 0), Axis(source.shape[1], 0, width, 0)
    resize(source, *axes, kind, out.transpose(2, 0, 1), order=order)
    return out


def test_the_installed_pillow_follows_the_rule_of_its_version():
    version = tuple(int(part) for part in PIL.__version__.split(".")[:2])
    if version < (12, 2):
        assert installed_rule() == HORIZONTAL_FIRST
    elif version < (13, 0):
        assert installed_rule() == TALL_VERTICAL_FIRST
    else:
        assert installed_rule() == SHRINKING_VERTICAL_FIRST


@settings(max_examples=150, deadline=None)
@given(
    in_size=st.integers(1, 300),
    out_size=st.integers(1, 300),
    kind=st.sampled_from(FILTERS),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    source_start=st.integers(-5, 5),
)
@example(65535, 1, LANCZOS, (0.0, 1.0), 0)
@example(1, 500, HAMMING, (0.0, 1.0), 0)
def test_weights_are_the_references(
    in_size: int, out_size: int, kind: int, window: tuple[float, float], source_start: int
):
    first, stop = sorted(int(share * out_size) for share in window)
    stop = max(stop, min(first + 1, out_size))
    first = min(first, stop - 1)
    limit = tap_limit(in_size, out_size, kind)
    bounds, weights = np.full((stop - first, 2), -1, np.int32), np.full((stop - first, limit), 99, np.int32)
    axis = Axis(in_size, source_start, out_size, first)
    resample_coefficients(axis, kind, np.empty(limit), bounds, weights)
    firsts, rows = coefficients_reference(in_size, out_size, kind)
    assert (bounds[:, 0] + source_start).tolist() == firsts[first:stop]
    assert bounds[:, 1].tolist() == [len(row) for row in rows[first:stop]]
    assert weights.tolist() == [row + [0] * (limit - len(row)) for row in rows[first:stop]]
    span = source_span(axis, kind, stop - first)
    assert (span.start, span.stop) == (firsts[first], firsts[stop - 1] + len(rows[stop - 1]))


SIZES = st.one_of(st.integers(1, 5), st.integers(1, 70))


@settings(max_examples=300, deadline=None)
@given(
    photo=st.tuples(SIZES, SIZES),
    crop=st.tuples(*[st.floats(0, 1)] * 4),
    height=SIZES,
    width=SIZES,
    kind=st.sampled_from(FILTERS),
    contrast=st.booleans(),
)
def test_any_crop_to_any_size_is_pillows(
    photo: tuple[int, int], crop: tuple[float, ...], height: int, width: int, kind: int, contrast: bool
):
    image = image_of(*photo, contrast)
    top, bottom = sorted(int(share * (photo[0] - 1)) for share in crop[:2])
    left, right = sorted(int(share * (photo[1] - 1)) for share in crop[2:])
    source = image[top : bottom + 1, left : right + 1]
    assert np.array_equal(resized(source, height, width, kind), by_pillow(source, height, width, kind))


EXTREMES = [
    ((1, 1), (1, 1)),
    ((1, 1), (50, 33)),
    ((500, 700), (1, 1)),
    ((1, 900), (7, 3)),
    ((900, 1), (3, 7)),
    ((400, 2), (5, 1)),
    ((2, 400), (1, 5)),
    ((300, 300), (224, 224)),
    ((31, 64), (31, 40)),
    ((64, 31), (40, 31)),
    ((37, 53), (37, 53)),
    ((16, 11), (224, 9)),
    ((15, 10), (400, 300)),
    ((1500, 3), (20, 2)),
    ((600, 200), (150, 190)),
]


@pytest.mark.parametrize("kind", FILTERS)
def test_extreme_shapes_and_unchanged_axes_are_pillows(kind: int):
    for (h, w), (height, width) in EXTREMES:
        source = image_of(h, w)
        assert np.array_equal(resized(source, height, width, kind), by_pillow(source, height, width, kind)), (h, w)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("kind", FILTERS)
def test_either_order_of_the_passes_is_the_references(kind: int, order: bool):
    for (h, w), (height, width) in [((33, 20), (9, 31)), ((9, 50), (40, 7)), ((40, 4), (18, 3)), ((5, 70), (6, 65))]:
        source = image_of(h, w)
        assert np.array_equal(
            resized(source, height, width, kind, order), resize_reference(source, height, width, kind, order)
        )


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([np.uint8, np.uint16, np.float32, np.float64]),
    flips=st.tuples(st.booleans(), st.booleans()),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    channels_last=st.booleans(),
    order=st.booleans(),
)
def test_any_type_layout_and_mirror(
    dtype: Any, flips: tuple[bool, bool], height: int, width: int, channels_last: bool, order: bool
):
    source = image_of(29, 43)
    table = np.random.default_rng(1).integers(0, 255, (3, 256)).astype(dtype)
    shape = (3, 4, height, width + 2)
    batch: np.ndarray = np.full(shape, 113, dtype)
    if channels_last:
        batch = np.full((3, height, width + 2, 4), 113, dtype).transpose(0, 3, 1, 2)
    reference = batch.copy()
    axes = Axis(29, 0, height, 0), Axis(43, 0, width, 0)
    resize(source, *axes, BICUBIC, batch[1, :3, :, 1:-1], table, *flips, order)
    image = resize_reference(source, height, width, BICUBIC, order)
    lookup_store_reference(image, table, *flips, reference[1, :3, :, 1:-1])
    assert np.array_equal(batch, reference)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 60)] * 4),
    shares=st.tuples(*[st.floats(0, 1)] * 4),
    kind=st.sampled_from(FILTERS),
    order=st.booleans(),
)
def test_a_window_needs_only_its_part_of_the_source(
    sizes: tuple[int, ...], shares: tuple[float, ...], kind: int, order: bool
):
    h, w, height, width = sizes
    top, bottom = sorted(int(share * (height - 1)) for share in shares[:2])
    left, right = sorted(int(share * (width - 1)) for share in shares[2:])
    out = np.zeros((3, bottom + 1 - top, right + 1 - left), np.uint8)
    vertical, horizontal = Axis(h, 0, height, top), Axis(w, 0, width, left)
    rows, columns = source_span(vertical, kind, out.shape[1]), source_span(horizontal, kind, out.shape[2])
    source = image_of(h, w)
    part = source[rows.start : rows.stop, columns.start : columns.stop].copy()
    vertical, horizontal = vertical._replace(source_start=rows.start), horizontal._replace(source_start=columns.start)
    resize(part, vertical, horizontal, kind, out, order=order)
    whole = resize_reference(source, height, width, kind, order)
    assert np.array_equal(out.transpose(1, 2, 0), whole[top : bottom + 1, left : right + 1])
    for lacking in (part[:-1], part[:, :-1]):
        with pytest.raises(ValueError, match="source lacks rows or columns"):
            resize(lacking, vertical, horizontal, kind, out, order=order)


def test_totensor_and_normalize_through_the_table_are_torchvisions():
    torch = pytest.importorskip("torch")
    transforms = pytest.importorskip("torchvision.transforms")
    chain = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    )
    levels = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (1, 256, 3))
    table = chain(Image.fromarray(np.ascontiguousarray(levels)))[:, 0].numpy().copy()
    photo = Image.fromarray(image_of(140, 190))
    box = (13, 7, 163, 128)
    expected = chain(photo.crop(box).resize((64, 48), BILINEAR).transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    batch = torch.zeros(2, 3, 48, 64)
    source = np.asarray(photo)[7:128, 13:163]
    resize(source, Axis(121, 0, 48, 0), Axis(150, 0, 64, 0), BILINEAR, batch[1].numpy(), table, True)
    assert torch.equal(batch[1], expected)


def test_photographs_cropped_and_resized_are_pillows(photos: Path):
    generator = np.random.default_rng(8)
    paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[::12]
    assert paths
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        top, left = (int(generator.integers(0, size // 2)) for size in pixels.shape[:2])
        bottom, right = (int(generator.integers(size // 2 + 1, size + 1)) for size in pixels.shape[:2])
        source = pixels[top:bottom, left:right]
        for kind in (BILINEAR, BICUBIC):
            assert np.array_equal(resized(source, 224, 224, kind), by_pillow(source, 224, 224, kind)), path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": image_of(20, 30)[::-1]}, "reverse order"),
        ({"source": image_of(20, 60)[:, ::2]}, "contiguous pixels"),
        ({"source": np.asfortranarray(image_of(20, 30))}, "contiguous"),
        ({"source": image_of(20, 30)[:, :, :2]}, "3 channels"),
        ({"vertical": Axis(21, 0, 10, 0)}, "source lacks"),
        ({"vertical": Axis(20, 1, 10, 0)}, "source lacks"),
        ({"horizontal": Axis(30, -1, 15, 0)}, "source lacks"),
        ({"horizontal": Axis(30, 0, 15, 1)}, "within the latter"),
        ({"horizontal": Axis(30, 0, 15, -1)}, "within the latter"),
        ({"vertical": Axis(0, 0, 10, 0)}, "1 to 65535"),
        ({"vertical": Axis(65536, 0, 10, 0)}, "1 to 65535"),
        ({"kind": 0}, "filter"),
        ({"kind": 6}, "filter"),
        ({"table": IDENTITY[:2, :, None].copy()}, "3 channels"),
        ({"table": np.zeros((3, 256, 4), np.uint8)}, "out's size"),
        ({"out": np.zeros((3, 10, 15, 3), np.uint8)}, "1, 2, 4 or 8"),
        ({"scratch": np.zeros(1000, np.uint8)}, "scratch"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(change: dict[str, Any], message: str):
    arguments: dict[str, Any] = {
        "source": image_of(20, 30),
        "vertical": Axis(20, 0, 10, 0),
        "horizontal": Axis(30, 0, 15, 0),
        "kind": BILINEAR,
        "vertical_first": False,
        "table": IDENTITY[:, :, None].copy(),
        "flip_h": False,
        "flip_v": False,
        "scratch": np.zeros(1 << 20, np.uint8),
        "out": np.zeros((3, 10, 15, 1), np.uint8),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        resize_store(*arguments.values())
    assert not arguments["scratch"].any() and not arguments["out"].any()
