"""Samples that carry their number: on both paths the same batches, with numbers that say which samples they are."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.cli.pack import pack
from gpuload.numbered import Numbered
from tests.conformance.sample_data import COUNT, small, write_images
from tests.test_batch_transform import assert_same

Pair = namedtuple("Pair", "image label")
SHAPES: dict[str, Any] = {
    "a tuple": lambda image, label: (image, label),
    "a list": lambda image, label: [label, image],
    "a dict": lambda image, label: {"image": image, "label": label},
    "the image": lambda image, label: image,
    "a named tuple": Pair,
}


class Shaped(Dataset):
    """The folder's samples in another structure, the encoded way too."""

    def __init__(self, inner: ImageFolder, shape: Any):
        self.inner, self.shape, self.transform = inner, shape, inner.transform

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.shape(*self.inner[index])

    def get_encoded(self, index: int) -> Any:
        path, label = self.inner.samples[index]
        return self.shape(gpuload.EncodedImage(Path(path).read_bytes()), label)


@pytest.fixture
def inner(tmp_path: Path) -> ImageFolder:
    (tmp_path / "images").mkdir()
    write_images(tmp_path / "images")
    return ImageFolder(str(tmp_path / "images"), small())


def ours(dataset: Any, **options: Any) -> gpuload.DataLoader:
    return gpuload.DataLoader(dataset, accelerate="require", device="cpu", **{"batch_size": 7} | options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"collate_fn": list}, {"batch_size": None}], ids=str)
def test_both_paths_give_the_same_whatever_the_structure(inner: ImageFolder, shape: str, options: dict[str, Any]):
    dataset = Numbered(Shaped(inner, SHAPES[shape]))
    assert_same(list(ours(dataset, **options)), list(TorchDataLoader(dataset, **{"batch_size": 7} | options)))


@pytest.mark.parametrize("fields", [None, ("key", "image"), {"x": "image", "y": "label"}, ("image",)])
def test_shards_and_folders_have_a_field_more(inner: ImageFolder, tmp_path: Path, fields: Any):
    pack(inner.root, str(tmp_path / "shards"), shard_size="32kB")
    shards = gpuload.ShardDataset(str(tmp_path / "shards"), transform=small(), fields=fields)
    for dataset in (Numbered(shards), Numbered(inner), Numbered(shards, name="at")):
        assert_same(list(ours(dataset)), list(TorchDataLoader(dataset, batch_size=7)))


def test_numbers_are_the_loaders_own_order(inner: ImageFolder):
    batches = list(ours(Numbered(inner), order="shuffle", seed=4))
    numbers = torch.cat([numbers for _, _, numbers in batches])
    assert numbers.tolist() != list(range(COUNT)) and sorted(numbers.tolist()) == list(range(COUNT))
    for images, labels, numbers in batches:
        for image, label, number in zip(images, labels, numbers, strict=True):
            assert torch.equal(image, inner[number][0]) and label == inner[number][1]


def test_inside_a_subset_they_are_the_data_sets_and_around_it_the_subsets(inner: ImageFolder):
    picked = [20, 3, 11]
    for dataset, expected in ((Subset(Numbered(inner), picked), picked), (Numbered(Subset(inner, picked)), [0, 1, 2])):
        assert next(iter(ours(dataset)))[2].tolist() == expected
        assert_same(list(ours(dataset)), list(TorchDataLoader(dataset, batch_size=7)))


@pytest.mark.filterwarnings("ignore:bad samples are")
@pytest.mark.parametrize(("policy", "expected"), [("skip", [0, 1, 3, 4]), ("replace", [0, 1, 1, 3, 4])])
def test_a_batch_with_a_bad_sample_says_which_it_holds(inner: ImageFolder, policy: str, expected: list[int]):
    Path(inner.samples[2][0]).write_text("no image")
    images, _, numbers = next(iter(ours(Numbered(inner), batch_size=5, on_error=policy)))
    assert numbers.tolist() == expected
    for image, number in zip(images, expected, strict=True):
        assert torch.equal(image, inner[number][0])


def test_mixing_still_finds_the_labels(inner: ImageFolder):
    options = {"batch_transform": gpuload.MixUp(num_classes=3), "seed": 1, "order": "shuffle"}
    for (images, labels, _), (plain, plain_labels) in zip(
        ours(Numbered(inner), **options), ours(inner, **options), strict=True
    ):
        assert torch.equal(images, plain) and torch.equal(labels, plain_labels)
