"""Draws of RandomErasing, MixUp and CutMix against torchvision's: the same from the same numbers, the same at large."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from gpuload.augment import ops, params
from gpuload.augment.batch_ops import (
    ATTEMPTS,
    CutMix,
    Mixing,
    MixUp,
    OneOf,
    RandomErasing,
    draw_erasing,
    draw_mixing,
    rectangles,
    symmetric_beta,
)
from gpuload.core.errors import ConfigError
from gpuload.core.philox import sample_keys, uniforms

DRAWS = 3000
USUAL = RandomErasing(0.5, (0.02, 0.33), (0.3, 3.3), (0.0,))
SURE = RandomErasing(1.0, (0.02, 0.33), (0.3, 3.3), (0.0,))


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return sample_keys(seed=seed, epoch=2, positions=np.arange(count))


def too_far(ours: np.ndarray, below: Callable[[np.ndarray], np.ndarray] | np.ndarray) -> bool:
    """Whether Kolmogorov and Smirnov's test tells a sample from a distribution or another sample, at one in 10,000."""
    ours = np.sort(np.asarray(ours, float))
    limit = math.sqrt(-math.log(1e-4 / 2) / 2)
    if callable(below):
        points, expected, size = ours, below(ours), len(ours)
        before = np.abs(np.arange(len(ours)) / len(ours) - expected).max()
    else:
        points, theirs = np.unique(np.concatenate([ours, below])), np.sort(below)
        expected, before = np.searchsorted(theirs, points, side="right") / len(theirs), 0.0
        size = len(ours) * len(theirs) / (len(ours) + len(theirs))
    distance = np.abs(np.searchsorted(ours, points, side="right") / len(ours) - expected).max()
    return bool(max(distance, before) > limit / math.sqrt(size))


class Drawn:
    """torch's draws taken from given uniform numbers: those for `uniform_`, and those for `randint`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.numbers: Iterator[float] = iter(())
        self.places: Iterator[float] = iter(())
        monkeypatch.setattr(torch.Tensor, "uniform_", lambda tensor, low, high: self._uniform(low, high))
        monkeypatch.setattr(torch, "randint", self._randint)

    def _uniform(self, low: float, high: float) -> torch.Tensor:
        return torch.tensor([float(low) + next(self.numbers) * (float(high) - float(low))], dtype=torch.float64)

    def _randint(self, *bounds: int, size: tuple[int, ...]) -> torch.Tensor:
        low, high = bounds if len(bounds) == 2 else (0, *bounds)
        return torch.tensor([low + int(next(self.places) * (high - low))])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


ERASINGS = [
    (224, 224, (0.02, 0.33), (0.3, 3.3)),
    (31, 97, (0.02, 0.33), (0.3, 3.3)),
    (9, 400, (0.2, 0.9), (0.3, 3.3)),  # most attempts fail, and often all ten
    (5, 4, (0.0, 0.02), (0.5, 0.5)),  # rectangles without an inside
]


@pytest.mark.parametrize(("height", "width", "scale", "ratio"), ERASINGS)
def test_from_the_same_numbers_the_rectangle_is_torchvisions(drawn, height, width, scale, ratio):
    u = draw_erasing(keys_of(200))
    ours = rectangles(RandomErasing(1.0, scale, ratio, (0.0,)), u, height, width)
    image = torch.empty(3, height, width)
    for row, numbers in enumerate(u.tolist()):
        attempts = zip(numbers[:ATTEMPTS], numbers[ATTEMPTS : 2 * ATTEMPTS], strict=True)
        drawn.numbers = itertools.chain.from_iterable(attempts)
        drawn.places = iter(numbers[2 * ATTEMPTS :])
        top, left, h, w, value = v1.RandomErasing.get_params(image, scale, ratio, [0.0])
        found = value is not image
        assert ours[row].tolist() == ([left, top, w, h] if found else [0, 0, 0, 0])


@pytest.mark.parametrize(("height", "width", "scale", "ratio"), ERASINGS)
def test_rectangles_are_distributed_as_torchvisions(height, width, scale, ratio):
    u = draw_erasing(keys_of(DRAWS))
    ours = rectangles(RandomErasing(1.0, scale, ratio, (0.0,)), u, height, width).astype(float)
    image = torch.empty(3, height, width)
    torch.manual_seed(5)
    given = [v1.RandomErasing.get_params(image, scale, ratio, [0.0]) for _ in range(DRAWS)]
    theirs = np.array([(0, 0, 0, 0) if v is image else (j, i, w, h) for i, j, h, w, v in given], float)
    for name, of in {
        "left": lambda box: box[:, 0],
        "top": lambda box: box[:, 1],
        "width": lambda box: box[:, 2],
        "height": lambda box: box[:, 3],
        "area": lambda box: box[:, 2] * box[:, 3],
        "right": lambda box: box[:, 0] + box[:, 2],
        "bottom": lambda box: box[:, 1] + box[:, 3],
        "left within its freedom": lambda box: box[:, 0] / (width - box[:, 2] + 1),
    }.items():
        assert not too_far(of(ours), of(theirs)), name
    assert ours.min() >= 0
    assert (ours[:, 0] + ours[:, 2]).max() <= width and (ours[:, 1] + ours[:, 3]).max() <= height


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_so_many_images_are_erased_as_p_says(p):
    op = RandomErasing(p, USUAL.scale, USUAL.ratio, USUAL.value)
    erased = (rectangles(op, draw_erasing(keys_of(DRAWS)), 64, 64)[:, 2] > 0).sum()
    assert abs(erased - p * DRAWS) <= 4 * math.sqrt(DRAWS * p * (1 - p))


def test_whether_where_and_how_large_are_independent():
    u = draw_erasing(keys_of(DRAWS))
    always, some = rectangles(SURE, u, 96, 80), rectangles(USUAL, u, 96, 80)
    erased = some[:, 2] > 0
    assert np.array_equal(some[erased], always[erased]) and not some[~erased].any()
    for column in range(4):
        assert not too_far(always[erased][:, column].astype(float), always[~erased][:, column].astype(float))
    free = 80 - always[:, 2] + 1
    correlation = np.corrcoef([always[:, 0] / free, always[:, 2], always[:, 1] / (96 - always[:, 3] + 1)])
    assert abs(correlation[0, 1]) < 0.08 and abs(correlation[0, 2]) < 0.08 and abs(correlation[1, 2]) < 0.08


def test_a_rectangle_depends_on_its_samples_key_only_and_on_no_other_operations_draws():
    keys = keys_of(20)
    whole = rectangles(USUAL, draw_erasing(keys), 40, 50)
    assert np.array_equal(rectangles(USUAL, draw_erasing(keys[7:9]), 40, 50), whole[7:9])
    assert len(np.unique(draw_erasing(keys))) == 20 * 23
    others = params.draw([ops.RandomCrop(1, 1)] * 30, keys)
    assert not np.isin(draw_erasing(keys), np.concatenate(others)).any()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 32.0])
def test_shares_are_of_the_beta_distribution(alpha):
    u = uniforms(keys_of(DRAWS, seed=3), stream=0, count=2).tolist()
    shares = np.array([symmetric_beta(alpha, *pair) for pair in u])
    assert shares.min() >= 0 and shares.max() <= 1
    exact = {
        0.5: lambda x: 2 / np.pi * np.arcsin(np.sqrt(x)),
        1.0: lambda x: x,
        2.0: lambda x: x * x * (3 - 2 * x),
    }
    torch.manual_seed(11)
    parameter = torch.tensor(alpha, dtype=torch.float64)
    theirs = torch.distributions.Beta(parameter, parameter).sample((DRAWS,)).numpy()
    assert not too_far(shares, exact.get(alpha, theirs))
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 5 * math.sqrt(variance / DRAWS)
    assert abs(shares.var() / variance - 1) < 0.12


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 1.0, 1e6])
def test_no_number_is_too_small_or_alpha_too_far_for_a_share(alpha):
    for u, v in itertools.product([0.0, 2.0**-32, 0.5, 1 - 2.0**-32], [0.0, 0.25, 0.5, 0.75, 1 - 2.0**-32]):
        assert 0 <= symmetric_beta(alpha, u, v) <= 1


def test_mixup_draws_a_share_and_blends_whole_images():
    op = MixUp(num_classes=10)
    drawn = [draw_mixing(op, key, 30, 40) for key in keys_of(DRAWS)]
    assert all(mixing.op is op and mixing.box is None for mixing in drawn)
    assert not too_far(np.array([mixing.share for mixing in drawn]), lambda x: x)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (31, 97), (1, 1)])
def test_cutmix_from_the_same_numbers_is_torchvisions(drawn, monkeypatch, height, width):
    theirs, images = v2.CutMix(num_classes=10), torch.empty(2, 3, height, width)
    for key in keys_of(200):
        ours = draw_mixing(CutMix(10, alpha=0.7), key, height, width)
        share = draw_mixing(MixUp(10, alpha=0.7), key, height, width).share  # drawn alike; CutMix's is the box's
        monkeypatch.setattr(theirs._dist, "sample", lambda shape, share=share: share)
        drawn.places = iter(uniforms(key[None], stream=(1 << 16) + 2, count=4)[0, 2:].tolist())
        expected = theirs.make_params([images])
        assert ours == Mixing(CutMix(10, alpha=0.7), expected["lam_adjusted"], expected["box"])


def test_cutmix_boxes_are_distributed_as_torchvisions():
    drawn = [draw_mixing(CutMix(10), key, 60, 90) for key in keys_of(DRAWS)]
    torch.manual_seed(2)
    theirs = [v2.CutMix(num_classes=10).make_params([torch.empty(2, 3, 60, 90)]) for _ in range(DRAWS)]
    for side in range(4):
        ours = np.array([mixing.box[side] for mixing in drawn if mixing.box], float)
        assert not too_far(ours, np.array([params["box"][side] for params in theirs], float)), side
    assert not too_far(np.array([m.share for m in drawn]), np.array([params["lam_adjusted"] for params in theirs]))


def test_one_of_several_is_chosen_as_often_as_it_should_be_and_then_draws_its_own():
    several = (MixUp(10), CutMix(10), MixUp(10, alpha=0.2), CutMix(10, alpha=9.0))
    p = (1.0, 2.5, 0.0, 0.5)
    keys = keys_of(DRAWS)
    drawn = [draw_mixing(OneOf(several, p), key, 30, 40) for key in keys]
    counts = np.array([sum(mixing.op is op for mixing in drawn) for op in several])
    expected = np.array(p) / sum(p) * DRAWS
    assert counts[2] == 0
    there = expected > 0
    assert ((counts - expected)[there] ** 2 / expected[there]).sum() < 18.4  # chi-square, 2 degrees, one in 10,000
    for key, mixing in list(zip(keys, drawn, strict=True))[:50]:
        assert mixing == draw_mixing(mixing.op, key, 30, 40)


def test_what_cannot_be_drawn_from_is_refused():
    for alpha in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="alpha must be a positive number"):
            MixUp(10, alpha)
    with pytest.raises(ConfigError, match="num_classes must be a positive number or None, got 0"):
        CutMix(0)
    for several, p in [
        ((), ()),
        ((MixUp(3),), (1.0, 2.0)),
        ((MixUp(3),), (0.0,)),
        ((MixUp(3), CutMix(3)), (2.0, -1.0)),
    ]:
        with pytest.raises(ConfigError, match="as many probabilities"):
            OneOf(several, p)
