"""Mixed batches against torchvision's own transforms given the same draw: structures, labels, layouts, both devices."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import gpuload
from gpuload.augment.batch_ops import CutMix, MixUp, OneOf, draw_mixing
from gpuload.batch_transform import mix_batch, plan_mixing
from gpuload.core.errors import ConfigError
from gpuload.core.philox import sample_keys
from tests.conformance.sample_data import image_folder, write_images

KEY = sample_keys(seed=4, epoch=1, positions=np.array([40]))[0]
Pair = namedtuple("Pair", "images labels")
STRUCTURES: dict[str, Any] = {
    "a list, as default_collate makes it": lambda images, labels: [images, labels],
    "a tuple": lambda images, labels: (images, labels),
    "a named tuple": lambda images, labels: Pair(images, labels),
    "a dict": lambda images, labels: {"image": images, "Labels": labels, "name": ["a", "b", "c"]},
    "a dict beside the images": lambda images, labels: (images, {"weight": torch.ones(3), "my_label": labels}),
    "more fields": lambda images, labels: [images, labels, torch.arange(3), "text"],
}
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def images_of(dtype: torch.dtype = torch.float32, layout: torch.memory_format = LAYOUTS[0]) -> torch.Tensor:
    values = np.random.default_rng(8).standard_normal((3, 3, 8, 10))
    return torch.from_numpy(values).to(dtype).contiguous(memory_format=layout)


def torchvisions(op: MixUp | CutMix, batch: Any) -> Any:
    """What torchvision's own makes of the batch, given our draw."""
    mixing = draw_mixing(op, KEY, 8, 10)
    theirs: Any = (v2.MixUp if isinstance(op, MixUp) else v2.CutMix)(num_classes=op.num_classes)
    drawn = {"lam": mixing.share} if mixing.box is None else {"lam_adjusted": mixing.share, "box": mixing.box}
    theirs.make_params = lambda flat_inputs: drawn
    return theirs(batch)


def mixed_by(op: Any, batch: Any, key: np.ndarray = KEY, *, in_place: bool = False, launch: Any = None) -> Any:
    return mix_batch(batch, plan_mixing(batch, op, key), in_place=in_place, launch=launch)


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, (tuple, list)):
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    else:
        assert mine == theirs


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("op", [MixUp(5), CutMix(5)], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_batch_is_torchvisions_whatever_its_structure(structure: str, op: Any, in_place: bool):
    images, labels = images_of(), torch.tensor([4, 0, 4])
    before = images.clone()
    expected = torchvisions(op, STRUCTURES[structure](images.clone(), labels))
    mixed = mixed_by(op, STRUCTURES[structure](images, labels), in_place=in_place)
    assert_same(mixed, expected)
    assert labels.tolist() == [4, 0, 4]
    assert torch.equal(images, before) != in_place, "written over only where that was allowed"


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.full)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("op", [MixUp(5, alpha=0.3), CutMix(5)], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.float32, torch.float16, torch.bool])
def test_every_type_and_layout_on_both_devices(full: bool, op: Any, layout: Any, dtype: Any, kind: Any):
    launch = None
    if full:
        from tests.kernels.host_cuda import host_kernels

        launch = host_kernels().launch
    probable = kind in (torch.float32, torch.float16, torch.bool)
    labels = torch.eye(5)[[1, 3, 0]].to(kind) if probable else torch.tensor([1, 3, 0], dtype=kind)
    images = images_of(dtype, layout)
    expected = torchvisions(op, (images, labels if probable else labels.long()))
    mixed = mixed_by(op, (images, labels), launch=launch)
    assert_same(mixed, expected)
    assert mixed[0].stride() == images.stride()


def test_images_that_lie_in_no_order_of_ours_are_put_in_one():
    images, labels = images_of().transpose(2, 3).contiguous().transpose(2, 3), torch.tensor([1, 2, 3])
    expected = torchvisions(MixUp(5), (images, labels))
    assert_same(mixed_by(MixUp(5), (images, labels), in_place=True), expected)


def test_bytes_are_cut_but_not_blended():
    batch = ((images_of() * 40).to(torch.uint8), torch.tensor([1, 2, 3]))
    assert_same(mixed_by(CutMix(5), batch), torchvisions(CutMix(5), batch))
    with pytest.raises(ConfigError, match=r"MixUp: images must be of a floating type, got torch.uint8"):
        mixed_by(MixUp(5), batch)


def test_labels_stand_where_the_user_says():
    batch = (torch.tensor([1, 2, 3]), images_of())
    mixed = mixed_by(MixUp(5, labels=0), batch)
    assert_same(mixed[::-1], torchvisions(MixUp(5), batch[::-1]))


def test_one_of_several_is_what_was_drawn():
    batch, several = (images_of(), torch.tensor([1, 2, 3])), OneOf((MixUp(5), CutMix(5)), (1, 1))
    drawn = set()
    for key in sample_keys(seed=4, epoch=1, positions=np.arange(8)):
        op = draw_mixing(several, key, 8, 10).op
        drawn.add(op)
        assert_same(mixed_by(several, batch, key), mixed_by(op, batch, key))
    assert len(drawn) == 2


@pytest.mark.parametrize(
    ("batch", "op", "message"),
    [
        (["text", [1, 2]], MixUp(5), "no tensor .n, C, H, W. in it"),
        ([images_of()[0], torch.tensor([1, 2, 3])], MixUp(5), "no tensor .n, C, H, W. in it"),
        ([images_of()], MixUp(5), "found no labels"),
        ([images_of(), {"class": torch.tensor([1, 2, 3])}], MixUp(5), "found no labels"),
        ([images_of(), [1, 2, 3]], MixUp(5), "must be a tensor .3,. or .3, classes., got list"),
        ([images_of(), torch.tensor([1, 2])], CutMix(5), r"got \(2,\)"),
        ([images_of(), torch.tensor([1, 2, 3])], CutMix(), "num_classes= must be given"),
        ([images_of(), torch.tensor([1.0, 2.0, 3.0])], CutMix(5), "must be integers"),
        ([images_of(), torch.eye(3)], CutMix(5), "labels have 3 classes, not num_classes=5"),
    ],
)
def test_a_batch_that_cannot_be_mixed_says_why(batch: Any, op: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        plan_mixing(batch, op, KEY)


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_that_is_no_class_is_named(label: int):
    with pytest.raises(ValueError, match=f"MixUp: label {label} is none of num_classes=5"):
        plan_mixing([images_of(), torch.tensor([0, label, 4])], MixUp(5), KEY)


# ---- whole loaders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("images")
    write_images(root)
    return root


def loader(folder: Any, transform: Any = None, **more: Any) -> Any:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "seed": 11, "order": "shuffle", "device": "cpu"}
    return gpuload.DataLoader(image_folder(folder), batch_transform=transform, **{**options, **more})


@pytest.mark.parametrize("op", [MixUp(num_classes=5), CutMix(num_classes=5, alpha=0.5)])
@pytest.mark.parametrize("accelerate", ["require", False])
def test_a_loaders_batches_are_those_of_the_plain_loader_mixed(folder: Any, op: Any, accelerate: Any):
    """On torch's path too, with the same draws where a seed is given."""
    plain = list(loader(folder, accelerate=accelerate))
    position = 0
    for (images, labels), (mixed, shares) in zip(plain, loader(folder, op, accelerate=accelerate), strict=True):
        key = sample_keys(seed=11, epoch=0, positions=np.array([position]))[0]
        expected = mix_batch([images.clone(), labels], plan_mixing([images, labels], op, key), in_place=False)
        assert torch.equal(mixed, expected[0]) and torch.equal(shares, expected[1])
        assert not torch.equal(mixed, images)
        position += len(images)


def test_draws_depend_on_seed_epoch_and_position_alone(folder: Any):
    op = gpuload.OneOf((MixUp(num_classes=5), CutMix(num_classes=5)), (1, 1))
    batches = [list(loader(folder, op, num_workers=threads, prefetch_factor=2)) for threads in (1, 2, 4)]
    for others in batches[1:]:
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(batches[0], others, strict=True))
    again = loader(folder, op)
    again.set_epoch(1)
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(batches[0], again, strict=True))


def test_torchvisions_own_objects_are_understood_and_others_refused(folder: Any):
    mixed = list(loader(folder, v2.RandomChoice([v2.MixUp(num_classes=5), v2.CutMix(num_classes=5)])))
    assert all(labels.shape == (len(images), 5) and labels.is_floating_point() for images, labels in mixed)
    assert "MixUp" in str(loader(folder, v2.MixUp(num_classes=5)).plan())
    with pytest.raises(ConfigError, match="batch_transform must be"):
        loader(folder, lambda batch: batch)
    with pytest.raises(ConfigError, match="single samples"):
        loader(folder, MixUp(num_classes=5), batch_size=None, order=None)
    with pytest.raises(ValueError, match=r"label [12] is none of num_classes=1"):
        list(loader(folder, MixUp(num_classes=1)))
