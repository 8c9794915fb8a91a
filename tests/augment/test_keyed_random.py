"""Per-sample randomness: a function of the sample's key, in any thread, and never the script's own generators."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from gpuload.augment.keyed_random import KeyedRandom
from tests.augment.pictures import picture

pytestmark = [
    pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning"),
]
KEYS = np.random.default_rng(3).integers(0, 2**32, (6, 4), dtype=np.uint32)
IMAGE = picture(33, 27).point(lambda level: 40 + level * 3 // 5)  # leaves something to autocontrast

FROM_PYTHONS_GENERATOR = {"RandomOrder", "RandomChoice"}
"""Of v1, that draw from `random`, the module: no key reaches them, and the plan's note says so."""

RANDOM: dict[str, Callable[[], Any]] = {
    **{
        f"{name} {T.__name__.rpartition('.')[2]}": make
        for T in (v1, v2)
        for name, make in {
            "ColorJitter": lambda T=T: T.ColorJitter(0.4, 0.4, 0.4, 0.1),
            "RandomRotation": lambda T=T: T.RandomRotation(30),
            "RandomAffine": lambda T=T: T.RandomAffine(15, (0.1, 0.2), (0.8, 1.2), 5),
            "RandomPerspective": lambda T=T: T.RandomPerspective(p=0.8),
            "RandomErasing": lambda T=T: v1.Compose([T.ToTensor(), T.RandomErasing(p=0.8, value="random")]),
            "RandomGrayscale": lambda T=T: T.RandomGrayscale(0.5),
            "RandomInvert": lambda T=T: T.RandomInvert(),
            "RandomPosterize": lambda T=T: T.RandomPosterize(2),
            "RandomSolarize": lambda T=T: T.RandomSolarize(128),
            "RandomAdjustSharpness": lambda T=T: T.RandomAdjustSharpness(2),
            "RandomAutocontrast": lambda T=T: T.RandomAutocontrast(),
            "RandomEqualize": lambda T=T: T.RandomEqualize(),
            "GaussianBlur": lambda T=T: T.GaussianBlur(3),
            "ElasticTransform": lambda T=T: T.ElasticTransform(),
            "AutoAugment": lambda T=T: T.AutoAugment(),
            "RandAugment": lambda T=T: T.RandAugment(),
            "TrivialAugmentWide": lambda T=T: T.TrivialAugmentWide(),
            "AugMix": lambda T=T: T.AugMix(),
            "RandomApply": lambda T=T: T.RandomApply([T.RandomRotation(9), T.ColorJitter(0.5)]),
            "RandomCrop": lambda T=T: T.RandomCrop(20),
            "RandomResizedCrop": lambda T=T: T.RandomResizedCrop(20),
            "RandomHorizontalFlip": lambda T=T: T.RandomHorizontalFlip(),
            "RandomVerticalFlip": lambda T=T: T.RandomVerticalFlip(),
        }.items()
    },
    "RandomChoice v2": lambda: v2.RandomChoice([v2.RandomRotation(9), v2.ColorJitter(0.5)], p=[0.3, 0.7]),
    "RandomOrder v2": lambda: v2.RandomOrder([v2.RandomRotation(9), v2.ColorJitter(0.5)]),
    "RandomPhotometricDistort": lambda: v2.RandomPhotometricDistort(),
    "RandomChannelPermutation": lambda: v2.RandomChannelPermutation(),
    "RandomZoomOut": lambda: v2.RandomZoomOut(),
    "RandomResize": lambda: v2.RandomResize(9, 40),
    "RandomShortestSize": lambda: v2.RandomShortestSize([9, 20, 30]),
    "ScaleJitter": lambda: v2.ScaleJitter((30, 30)),
    "GaussianNoise": lambda: v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()]),
    "JPEG": lambda: v2.Compose([v2.ToImage(), v2.JPEG((5, 90))]),
}


def value_of(made: Any) -> bytes:
    array = made.numpy() if isinstance(made, torch.Tensor) else np.asarray(made)
    return repr((type(made).__name__, array.dtype, array.shape)).encode() + array.tobytes()


def keyed(op: Any, key: np.ndarray) -> bytes:
    with KeyedRandom(key):
        return value_of(op(IMAGE))


def generators() -> bytes:
    return pickle.dumps((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))


@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_those_of_a_generator_seeded_by_the_key(name: str):
    op = RANDOM[name]()
    torch.manual_seed(12)
    before = generators()
    ours = [keyed(op, key) for key in KEYS]
    assert generators() == before
    theirs = []
    for key in KEYS:
        torch.manual_seed(int(key[0]) | int(key[1]) << 32)
        theirs.append(value_of(op(IMAGE)))
    assert ours == theirs
    assert len(set(ours)) > 1, "the keys made no difference: the test shows nothing"


def test_none_of_torchvisions_random_transforms_was_forgotten():
    tested = {name.split()[0] for name in RANDOM} | FROM_PYTHONS_GENERATOR
    boxes_and_labels = {"RandomIoUCrop", "RandomTransforms"}
    drawing = {name for T in (v1, v2) for name in dir(T) if name.startswith(("Random", "Gaussian", "Trivial", "Aug"))}
    drawing |= {"ColorJitter", "ElasticTransform", "AutoAugment", "RandAugment", "ScaleJitter", "JPEG"}
    assert drawing - boxes_and_labels <= tested | {"AugMix", "AutoAugmentPolicy"}


def test_threads_at_once_draw_as_one_alone():
    op = v2.Compose([v2.RandAugment(), v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomErasing(p=1), v2.GaussianBlur(3)])
    keys = np.random.default_rng(4).integers(0, 2**32, (48, 4), dtype=np.uint32)
    alone = [keyed(op, key) for key in keys]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(2):
            assert list(pool.map(lambda key: keyed(op, key), keys)) == alone


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        torch.randn_like,
        lambda like: torch.randint_like(like, 5, 900),
        lambda like: torch.randint_like(like, 900, dtype=torch.int64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_drawn_like_a_tensor_follows_its_memory(draw: Callable[..., torch.Tensor], dtype: torch.dtype):
    like = torch.zeros(5, 7, 3, dtype=dtype).permute(2, 0, 1)
    with KeyedRandom(KEYS[0]):
        ours = draw(like)
    torch.manual_seed(int(KEYS[0, 0]) | int(KEYS[0, 1]) << 32)
    theirs = draw(like)
    assert torch.equal(ours, theirs) and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype


def test_a_generator_given_is_used():
    own = torch.Generator().manual_seed(5)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    with KeyedRandom(KEYS[0]):
        assert torch.equal(torch.rand(3, generator=own), expected)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(4),
        lambda: torch.randn(4),
        lambda: torch.randint(0, 1000, (4,)),
        lambda: torch.randint(1000, (4,)),
        lambda: torch.randperm(9),
        lambda: torch.normal(torch.zeros(4), torch.ones(4)),
        lambda: torch.normal(0.0, 1.0, (4,)),
        lambda: torch.bernoulli(torch.full((64,), 0.5)),
        lambda: torch.multinomial(torch.ones(9), 4),
        lambda: torch.poisson(torch.full((9,), 5.0)),
        lambda: torch.rand_like(torch.zeros(4, dtype=torch.float64)),
        lambda: torch.randn_like(torch.zeros(4)),
        lambda: torch.randint_like(torch.zeros(9), 1000),
        lambda: torch.randint_like(torch.zeros(9), low=10, high=1000, dtype=torch.int64),
        lambda: torch.randn_like(tv_tensors.Image(torch.zeros(3, 2, 2))).as_subclass(torch.Tensor),
        lambda: torch.empty(4).uniform_(2, 3),
        lambda: torch.empty(4).normal_(),
        lambda: torch.empty(4).exponential_(),
        lambda: torch.empty(4).random_(1000),
        lambda: torch.empty(64).bernoulli_(0.5),
        lambda: torch.empty(4).cauchy_(),
        lambda: torch.empty(4).log_normal_(),
        lambda: torch.empty(9).geometric_(0.1),
        lambda: torch.distributions.Beta(1.0, 2.0).sample((4,)),
    ],
)
def test_every_way_of_drawing(draw: Callable[[], torch.Tensor]):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with KeyedRandom(KEYS[0]):
        first = draw(), draw()
    with KeyedRandom(KEYS[1]):
        other = draw()
    with KeyedRandom(KEYS[0]):
        again = draw(), draw()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other)


def test_outside_of_it_torchs_generator_goes_on():
    torch.manual_seed(6)
    expected = torch.rand(2)
    torch.manual_seed(6)
    first = torch.rand(1)
    with pytest.raises(ZeroDivisionError), KeyedRandom(KEYS[0]):
        torch.rand(5)
        raise ZeroDivisionError
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)
