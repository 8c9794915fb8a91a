"""Which data sets are understood, and that each Source gives the bytes and the fields that the data set itself has."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset
from torchvision.datasets import DatasetFolder, FakeData, ImageFolder
from torchvision.datasets.folder import pil_loader

from gpuload import EncodedImage, ShardDataset
from gpuload.augment.torchvision import NotUnderstoodError
from gpuload.core.batch import EncodedBatch
from gpuload.core.refs import as_ids
from gpuload.core.structure import fill
from gpuload.sources import understand
from tests.augment.pictures import every_kind, write_folder

FILES = list(every_kind().values())
Photo = namedtuple("Photo", "label image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("kinds"), every_kind())


class Encoded(Dataset):
    """Seven images; sample i is made by `build`."""

    transform = None

    def __init__(self, build: Any = lambda i, image: (image, i)):
        self.build = build

    def __len__(self) -> int:
        return len(FILES)

    def get_encoded(self, i: int) -> Any:
        return self.build(i, EncodedImage(FILES[i]))


def fetched(dataset: Any, ids: list[Any]) -> EncodedBatch:
    source = understand(dataset).open_source()
    try:
        return source.fetch(as_ids(ids))
    finally:
        source.close()


def names(dataset: Any, ids: list[Any]) -> list[tuple[str, str]]:
    source = understand(dataset).open_source()
    try:
        return [source.name(i) for i in ids]
    finally:
        source.close()


def bytes_of(encoded: EncodedBatch) -> list[bytes]:
    return [encoded.encoded(row).tobytes() for row in range(len(encoded))]


# Folders


def test_a_folders_files_and_targets(folder: Path):
    dataset = ImageFolder(folder)
    ids = [3, 0, 6, 3, -1]
    encoded = fetched(dataset, ids)
    assert bytes_of(encoded) == [Path(dataset.samples[i][0]).read_bytes() for i in ids]
    (targets,) = encoded.columns
    assert targets.dtype == np.int64 and targets.tolist() == [dataset.targets[i] for i in ids]
    assert encoded.failures == {}
    assert names(dataset, [3, 99]) == [(dataset.samples[3][0], ""), (str(folder), "")]


def test_a_folder_that_grows_is_looked_at_anew(folder: Path):
    dataset = ImageFolder(folder)
    source = understand(dataset).open_source()
    dataset.samples = dataset.samples[:2]
    assert len(source) == 2
    assert isinstance(source.fetch(as_ids([5])).failures[0], IndexError)
    dataset.samples = [(dataset.samples[0][0], 17)]
    assert source.fetch(as_ids([0])).columns[0].tolist() == [17]
    source.close()


def test_target_transforms_are_applied_and_what_they_raise_is_that_samples(folder: Path):
    seen: list[int] = []

    def checked(target: int) -> str:
        seen.append(target)
        if len(seen) == 2:
            raise LookupError("no such class")
        return f"class {target}"

    encoded = fetched(ImageFolder(folder, target_transform=checked), [0, 1, 6])
    assert encoded.columns == (["class 0", None, "class 1"],)
    assert set(encoded.failures) == {1} and isinstance(encoded.failures[1], LookupError)
    assert bytes_of(encoded)[2] == Path(ImageFolder(folder).samples[6][0]).read_bytes()


def test_a_file_that_is_gone_costs_its_own_row_only(folder: Path):
    dataset = ImageFolder(folder)
    dataset.samples = [*dataset.samples[:2], ("/nowhere/at/all.jpg", 1), dataset.samples[4]]
    encoded = fetched(dataset, [0, 2, 3])
    assert set(encoded.failures) == {1} and isinstance(encoded.failures[1], FileNotFoundError)
    assert bytes_of(encoded)[2] == Path(dataset.samples[3][0]).read_bytes()


def test_dataset_folder_with_the_pil_loader(folder: Path):
    dataset = DatasetFolder(str(folder), pil_loader, extensions=(".jpg",))
    assert bytes_of(fetched(dataset, [2])) == [Path(dataset.samples[2][0]).read_bytes()]
    assert understand(dataset).what == f"DatasetFolder at {folder}"


# get_encoded


@pytest.mark.parametrize(
    "build",
    [
        lambda i, image: (image, i),
        lambda i, image: {"label": i, "image": image, "boxes": torch.tensor([i, i])},
        lambda i, image: Photo([i, str(i)], image),
        lambda i, image: image,
        lambda i, image: [image] if i % 2 else {"image": image},
    ],
)
def test_samples_of_any_structure_keep_it(build: Any):
    encoded = fetched(Encoded(build), [4, 0, 5])
    assert bytes_of(encoded) == [FILES[4], FILES[0], FILES[5]]
    assert encoded.samples is not None and encoded.failures == {}
    for placed, i in zip(encoded.samples, [4, 0, 5], strict=True):
        assert placed is not None
        assert repr(placed.with_image("pixels")) == repr(build(i, "pixels"))


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: np.frombuffer(data, np.uint8),
        lambda data: np.repeat(np.frombuffer(data, np.uint8), 2)[::2],
        lambda data: np.frombuffer(data, np.uint8)[None],
    ],
    ids=["bytes", "bytearray", "memoryview", "array", "strided array", "two dimensions"],
)
def test_image_data_of_every_kind(wrap: Any):
    encoded = fetched(Encoded(lambda i, image: EncodedImage(wrap(image.data))), [1, 2])
    assert bytes_of(encoded) == [FILES[1], FILES[2]]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda image: image.data, TypeError),
        (lambda image: (image, image), TypeError),
        (lambda image: EncodedImage("text"), TypeError),
        (lambda image: EncodedImage(None), TypeError),
        (lambda image: 1 / 0, ZeroDivisionError),
    ],
    ids=["no image", "two images", "text", "None", "raises"],
)
def test_a_bad_sample_costs_its_own_row_only(bad: Any, error: type[Exception]):
    encoded = fetched(Encoded(lambda i, image: bad(image) if i == 3 else (image, i)), [2, 3, 4])
    assert set(encoded.failures) == {1} and type(encoded.failures[1]) is error
    assert bytes_of(encoded) == [FILES[2], b"", FILES[4]]
    assert encoded.samples is not None and encoded.samples[1] is None


def test_a_users_method_is_called_by_one_thread_unless_it_says_more():
    class Safe(Encoded):
        encoded_thread_safe = True

    assert understand(Encoded()).open_source().fetch_threads == 1
    assert understand(Safe()).open_source().fetch_threads > 1


# Shards


def test_shards_by_their_ranges(folder: Path):
    dataset = ShardDataset(folder, fields=("key", "image", "label"))
    ids = [5, 0, -1]
    encoded = fetched(dataset, ids)
    rows = [i % len(dataset) for i in ids]
    assert bytes_of(encoded) == [Path(dataset.files[i]).read_bytes() for i in rows]
    for row, i in enumerate(rows):
        values = [column[row] for column in encoded.columns]
        key, image, label = fill(dataset.slots, "pixels", values)
        assert (key, image, label) == (dataset.name(i)[1], "pixels", dataset.labels[i])  # type: ignore[index]


def test_ids_that_a_shard_data_set_does_not_have(folder: Path):
    dataset = ShardDataset(folder)
    encoded = fetched(dataset, [0, 7, 1, -8, "x"])
    assert {row: type(error) for row, error in encoded.failures.items()} == {1: IndexError, 3: IndexError, 4: TypeError}
    assert bytes_of(encoded)[2] == Path(dataset.files[1]).read_bytes()
    assert set(fetched(dataset, [99, 98]).failures) == {0, 1}
    assert names(dataset, [99]) == [(repr(dataset), "")]


# Subsets


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "array", "tensor"])
def test_a_subset_reads_through_its_indices(folder: Path, kind: Any):
    inner = ImageFolder(folder)
    dataset = Subset(inner, kind([6, 2, 0]))
    encoded = fetched(dataset, [1, 2, -3])
    assert bytes_of(encoded) == [Path(inner.samples[i][0]).read_bytes() for i in (2, 0, 6)]
    assert encoded.columns[0].tolist() == [inner.targets[i] for i in (2, 0, 6)]
    assert names(dataset, [0])[0][0] == inner.samples[6][0]
    assert understand(dataset).what == f"Subset of ImageFolder at {folder}"


def test_a_subset_of_a_subset_of_encoded_samples():
    dataset = Subset(Subset(Encoded(), [5, 4, 3, 2]), [3, 0])
    encoded = fetched(dataset, [0, 1, 2])
    assert bytes_of(encoded)[:2] == [FILES[2], FILES[5]]
    assert set(encoded.failures) == {2} and isinstance(encoded.failures[2], IndexError)


def test_indices_that_are_out_of_range_or_raise(folder: Path):
    class Broken(list):
        def __getitem__(self, i: Any) -> Any:
            raise KeyError(i)

    encoded = fetched(Subset(ImageFolder(folder), [1, 99]), [0, 1, 2])
    assert {row: type(error) for row, error in encoded.failures.items()} == {1: IndexError, 2: IndexError}
    assert set(fetched(Subset(ImageFolder(folder), Broken([1, 2])), [0, 1]).failures) == {0, 1}
    assert names(Subset(ImageFolder(folder), []), [4]) == [("Subset", "")]


# What is not understood


class Streaming(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


class OwnSamples(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class OwnLength(ImageFolder):
    def __len__(self) -> int:
        return 2


class InBulk(ImageFolder):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class Nothing(ImageFolder):
    """A subclass that changes none of what makes a sample."""


def patched(dataset: Any) -> Any:
    dataset.__getitem__ = lambda i: None
    return dataset


class NoTransform(Dataset):
    def get_encoded(self, i: int) -> Any:
        return EncodedImage(FILES[i])


class Bare(Subset):
    pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda root: Streaming(), "Streaming is an IterableDataset"),
        (lambda root: FakeData(), "FakeData is not a data set that gpuload knows"),
        (lambda root: [1, 2], "list is not a data set that gpuload knows"),
        (lambda root: ConcatDataset([ImageFolder(root)]), "ConcatDataset is not a data set"),
        (lambda root: Bare(ImageFolder(root), [0]), "Bare is not a data set"),
        (lambda root: Subset(FakeData(), [0]), "FakeData is not a data set"),
        (lambda root: OwnSamples(root), r"OwnSamples overrides DatasetFolder.__getitem__"),
        (lambda root: OwnLength(root), r"OwnLength overrides DatasetFolder.__len__"),
        (lambda root: InBulk(root), "InBulk defines __getitems__"),
        (lambda root: patched(ImageFolder(root)), r"overrides DatasetFolder.__getitem__"),
        (lambda root: ImageFolder(root, loader=lambda path: None), "ImageFolder loads its images with '<lambda>'"),
        (lambda root: NoTransform(), "NoTransform has get_encoded but no `transform`"),
    ],
)
def test_what_is_not_understood_and_why(folder: Path, make: Any, reason: str):
    with pytest.raises(NotUnderstoodError, match=reason):
        understand(make(folder))


def test_another_image_backend_is_not_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torchvision, "_image_backend", "accimage")
    with pytest.raises(NotUnderstoodError, match="image backend is accimage, not PIL"):
        understand(ImageFolder(folder))


def test_a_subclass_that_changes_nothing_of_it_is_understood(folder: Path):
    transform = torch.nn.Identity()
    understood = understand(Nothing(folder, transform=transform))
    assert understood.what == f"Nothing at {folder}" and understood.transform is transform


def test_data_sets_are_recognised_without_importing_torchvision(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torchvision.datasets.folder")
    with pytest.raises(NotUnderstoodError, match="list is not a data set that gpuload knows"):
        understand([1, 2])  # type: ignore[arg-type]
    assert "torchvision.datasets.folder" not in sys.modules
