"""Draws and boxes against torchvision's: its distributions, its sizes, its boxes, its fallbacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms.functional import _compute_resized_output_size

from gpuload.augment import ops, params
from gpuload.core.philox import sample_keys

DRAWS = 3000
THREE_QUARTERS = (3 / 4, 4 / 3)


def geometry(chain: list[ops.GeometryOp], count: int, width: int, height: int, seed: int = 0) -> np.ndarray:
    """GEOMETRY (count,) of so many samples of one size."""
    draws = params.draw(chain, sample_keys(seed=seed, epoch=0, positions=np.arange(count)))
    return params.resolve(chain, draws, np.full(count, width), np.full(count, height))


def one(chain: list[ops.GeometryOp], width: int, height: int, draws: list[np.ndarray] | None = None) -> np.ndarray:
    given = draws or params.draw(chain, sample_keys(seed=1, epoch=0, positions=np.array([5])))
    return params.resolve(chain, given, np.array([width]), np.array([height]))[0]


def differ(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance, in units of what a test at one in ten thousand allows."""
    points = np.unique(np.concatenate([ours, theirs]))
    below = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (ours, theirs)]
    allowed = math.sqrt(-math.log(1e-4 / 2) / 2 * (1 / len(ours) + 1 / len(theirs)))
    return float(np.abs(below[0] - below[1]).max()) / allowed


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio"),
    [
        (500, 375, (0.08, 1.0), THREE_QUARTERS),
        (37, 61, (0.08, 1.0), THREE_QUARTERS),
        (640, 97, (0.08, 1.0), THREE_QUARTERS),  # most attempts fail, ten of them in a third of all crops
        (90, 700, (0.5, 1.0), (0.5, 1.5)),
        (64, 64, (0.25, 0.25), (1.0, 1.0)),
        (5, 4, (0.08, 1.0), THREE_QUARTERS),
        (1, 1, (0.08, 1.0), THREE_QUARTERS),
    ],
)
def test_random_resized_crops_are_distributed_as_torchvisions(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
):
    op = ops.RandomResizedCrop(9, 7, scale, ratio)
    crops = geometry([op], DRAWS, width, height)["crop"].astype(float)
    image = torch.empty(3, height, width)
    torch.manual_seed(7)
    drawn = [v1.RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(DRAWS)]
    theirs = np.array(drawn, float)[:, [1, 0, 3, 2]]
    for name, column in {"x": 0, "y": 1, "w": 2, "h": 3}.items():
        assert differ(crops[:, column], theirs[:, column]) < 1, name
    for name, of in {
        "area": lambda box: box[:, 2] * box[:, 3],
        "ratio": lambda box: box[:, 2] / box[:, 3],
        "right": lambda box: box[:, 0] + box[:, 2],
        "bottom": lambda box: box[:, 1] + box[:, 3],
        "x within its freedom": lambda box: box[:, 0] / np.maximum(width - box[:, 2], 1),
    }.items():
        assert differ(of(crops), of(theirs)) < 1, name
    assert crops[:, :2].min() >= 0 and crops[:, 2:].min() >= 1
    assert (crops[:, 0] + crops[:, 2]).max() <= width and (crops[:, 1] + crops[:, 3]).max() <= height


@pytest.mark.parametrize(("width", "height"), [(1000, 20), (20, 1000), (999, 1), (1, 999), (7, 3), (50, 49), (1, 1)])
@pytest.mark.parametrize("ratio", [THREE_QUARTERS, (0.9, 0.95), (1.5, 1.75)])
def test_where_all_ten_attempts_fail_the_box_is_torchvisions_central_one(
    width: int, height: int, ratio: tuple[float, float]
):
    scale = (3.0, 4.0)  # more than the image: no attempt can fit, in either
    expected = v1.RandomResizedCrop.get_params(torch.empty(3, height, width), list(scale), list(ratio))
    x, y, w, h = one([ops.RandomResizedCrop(5, 5, scale, ratio)], width, height)["crop"].tolist()
    assert (y, x, h, w) == expected


def test_random_resized_crop_resizes_to_its_size():
    made = one([ops.RandomResizedCrop(9, 7, (0.08, 1.0), THREE_QUARTERS)], 50, 60)
    assert made["resize"].tolist() == [7, 9] and made["window"].tolist() == [0, 0, 7, 9]


@pytest.mark.parametrize(
    ("width", "height", "op"),
    [
        (41, 33, ops.RandomCrop(20, 24)),
        (32, 32, ops.RandomCrop(32, 32, (4, 4, 4, 4))),
        (30, 21, ops.RandomCrop(25, 27, (1, 2, 6, 5))),
        (20, 50, ops.RandomCrop(32, 32, (0, 0, 0, 0), True)),
        (24, 24, ops.RandomCrop(24, 24)),
        (25, 24, ops.RandomCrop(24, 24)),
    ],
)
def test_random_crops_are_distributed_as_torchvisions(width: int, height: int, op: ops.RandomCrop):
    boxes = geometry([op], DRAWS, width, height)["crop"]
    left, top, right, bottom = op.padding
    padded_w, padded_h = width + left + right, height + top + bottom
    extra_w = max(op.width - padded_w, 0) if op.pad_if_needed else 0
    extra_h = max(op.height - padded_h, 0) if op.pad_if_needed else 0
    image = torch.empty(3, padded_h + 2 * extra_h, padded_w + 2 * extra_w)
    torch.manual_seed(3)
    theirs = np.array([v1.RandomCrop.get_params(image, (op.height, op.width)) for _ in range(DRAWS)])
    assert (boxes[:, 2:] == [op.width, op.height]).all()
    for column, offset, freedom in ((0, left + extra_w, image.shape[2]), (1, top + extra_h, image.shape[1])):
        starts = boxes[:, column] + offset
        assert differ(starts.astype(float), theirs[:, 1 - column].astype(float)) < 1
        assert set(starts.tolist()) == set(range(freedom - (op.width, op.height)[column] + 1))


@pytest.mark.parametrize("kind", [ops.RandomHorizontalFlip, ops.RandomVerticalFlip])
@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_flips_come_with_their_probability(kind: type, p: float):
    made = geometry([kind(p)], DRAWS, 9, 9)
    mine, other = ("flip_h", "flip_v") if kind is ops.RandomHorizontalFlip else ("flip_v", "flip_h")
    assert abs(made[mine].sum() - p * DRAWS) <= 4 * math.sqrt(DRAWS * p * (1 - p))
    assert not made[other].any()


def test_operations_draw_from_streams_of_their_own():
    both: list[ops.GeometryOp] = [ops.RandomHorizontalFlip(0.5), ops.RandomVerticalFlip(0.5)]
    made = geometry(both, DRAWS, 9, 9)
    agree = (made["flip_h"] == made["flip_v"]).mean()
    assert abs(agree - 0.5) < 4 * 0.5 / math.sqrt(DRAWS)
    crops = geometry([ops.RandomResizedCrop(5, 5, (0.08, 1.0), THREE_QUARTERS), both[0]], DRAWS, 90, 70)
    assert abs(np.corrcoef(crops["crop"][:, 0], crops["flip_h"])[0, 1]) < 4 / math.sqrt(DRAWS)


def test_a_box_depends_on_its_own_key_and_size_alone():
    chain: list[ops.GeometryOp] = [
        ops.RandomResizedCrop(9, 7, (0.08, 1.0), THREE_QUARTERS),
        ops.RandomHorizontalFlip(0.5),
    ]
    keys = sample_keys(seed=9, epoch=4, positions=np.arange(40))
    widths, heights = np.arange(40) * 7 + 3, np.arange(40)[::-1] * 11 + 2
    whole = params.resolve(chain, params.draw(chain, keys), widths, heights)
    some = np.array([31, 2, 17])
    again = params.resolve(chain, params.draw(chain, keys[some]), widths[some], heights[some])
    assert np.array_equal(again, whole[some])


SIDES = st.integers(1, 5000)


@settings(max_examples=150, deadline=None)
@given(width=SIDES, height=SIDES, shorter=st.integers(1, 1024), max_size=st.none() | st.integers(2, 2000))
def test_resized_sizes_are_torchvisions(width: int, height: int, shorter: int, max_size: int | None):
    if max_size is not None and max_size <= shorter:
        shorter, max_size = max_size - 1, shorter + 1
    h, w = _compute_resized_output_size((height, width), [shorter], max_size=max_size)
    made = one([ops.Resize(shorter=shorter, max_size=max_size)], width, height)
    assert made["resize"].tolist() == [w, h] and made["window"].tolist() == [0, 0, w, h]
    assert made["crop"].tolist() == [0, 0, width, height]


@settings(max_examples=100, deadline=None)
@given(width=SIDES, height=SIDES, max_size=st.integers(1, 2000))
def test_sizes_by_the_longer_side_alone_are_torchvisions(width: int, height: int, max_size: int):
    h, w = _compute_resized_output_size((height, width), None, max_size=max_size, allow_size_none=True)
    assert one([ops.Resize(max_size=max_size)], width, height)["resize"].tolist() == [w, h]


def test_resized_sizes_of_very_large_images():
    h, w = _compute_resized_output_size((65_500, 65_000), [60_000])
    assert one([ops.Resize(shorter=60_000)], 65_000, 65_500)["resize"].tolist() == [w, h]


def test_a_pair_is_the_size_itself():
    assert one([ops.Resize(height=30, width=41)], 7, 500)["resize"].tolist() == [41, 30]


def cut(pixels: np.ndarray, box: list[int]) -> np.ndarray:
    """The box (x, y, w, h) of (H, W), zeros outside: pixel by pixel."""
    x, y, w, h = box
    height, width = pixels.shape
    rows, columns = np.arange(y, y + h)[:, None], np.arange(x, x + w)[None, :]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside, pixels[rows.clip(0, height - 1), columns.clip(0, width - 1)], 0)


def numbered(width: int, height: int) -> np.ndarray:
    """Every pixel its own number, none of them zero."""
    return np.arange(1, width * height + 1, dtype=np.int32).reshape(height, width)


@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 30), height=st.integers(1, 30), crop=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_centre_crops_are_torchvisions(width: int, height: int, crop: tuple[int, int]):
    pixels = numbered(width, height)
    expected = F.center_crop(torch.from_numpy(pixels)[None], list(crop))[0].numpy()
    made = one([ops.CenterCrop(*crop)], width, height)
    assert np.array_equal(cut(pixels, made["crop"].tolist()), expected)
    assert made["resize"].tolist() == [crop[1], crop[0]] and made["window"].tolist() == [0, 0, crop[1], crop[0]]


def followed(chain: list[ops.GeometryOp], draws: list[np.ndarray], pixels: np.ndarray) -> np.ndarray:
    """The operations one after another, each by its own box or mirror; none of them resizes."""
    for op, u in zip(chain, draws, strict=True):
        made = one([op], pixels.shape[1], pixels.shape[0], [u])
        if isinstance(op, (ops.RandomHorizontalFlip, ops.RandomVerticalFlip)):
            pixels = pixels[:: -1 if made["flip_v"] else 1, :: -1 if made["flip_h"] else 1]
        else:
            pixels = cut(pixels, made["crop"].tolist())
    return pixels


FLIPS = st.sampled_from([ops.RandomHorizontalFlip(0.5), ops.RandomVerticalFlip(0.5)])
CROPS = st.one_of(
    st.builds(ops.CenterCrop, st.integers(1, 25), st.integers(1, 25)),
    st.builds(
        ops.RandomCrop,
        st.integers(1, 14),
        st.integers(1, 14),
        st.tuples(*[st.integers(0, 5)] * 4),
        st.just(True),
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    before=st.lists(FLIPS, max_size=3),
    crop=CROPS,
    after=st.lists(FLIPS, max_size=3),
    position=st.integers(0, 10**6),
    width=st.integers(1, 20),
    height=st.integers(1, 20),
)
def test_crops_and_flips_in_any_order_are_one_geometry(
    before: list[ops.GeometryOp],
    crop: ops.GeometryOp,
    after: list[ops.GeometryOp],
    position: int,
    width: int,
    height: int,
):
    chain = [*before, crop, *after]
    draws = list(params.draw(chain, sample_keys(seed=0, epoch=0, positions=np.array([position]))))
    pixels = numbered(width, height)
    made = one(chain, width, height, draws)
    assert made["resize"].tolist() == made["crop"][2:].tolist()
    composed = cut(pixels, made["crop"].tolist())
    composed = composed[:: -1 if made["flip_v"] else 1, :: -1 if made["flip_h"] else 1]
    assert np.array_equal(composed, followed(chain, draws, pixels))


def test_a_crop_after_a_resize_is_a_window_and_before_it_a_crop():
    after = one([ops.Resize(height=20, width=30), ops.CenterCrop(10, 12)], 100, 90)
    assert after["crop"].tolist() == [0, 0, 100, 90] and after["resize"].tolist() == [30, 20]
    assert after["window"].tolist() == [9, 5, 12, 10]
    before = one([ops.CenterCrop(10, 12), ops.Resize(height=20, width=30)], 100, 90)
    assert before["crop"].tolist() == [44, 40, 12, 10]
    assert before["resize"].tolist() == [30, 20] and before["window"].tolist() == [0, 0, 30, 20]


def test_a_crop_larger_than_the_image_is_refused_in_torchvisions_words():
    with pytest.raises(ValueError, match=r"Required crop size \(9, 30\) is larger than the input image \(20 pixels"):
        one([ops.RandomCrop(9, 30)], 20, 10)
    with pytest.raises(ValueError, match=r"with a padding of 3"):
        one([ops.RandomCrop(14, 3, (0, 1, 0, 2))], 20, 10)


def test_no_operations_keep_the_whole_image():
    made = params.resolve([], [], np.array([5, 8]), np.array([6, 2]))
    assert made["crop"].tolist() == made["window"].tolist() == [[0, 0, 5, 6], [0, 0, 8, 2]]
