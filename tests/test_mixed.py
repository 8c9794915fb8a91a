"""Mixed data sets: torch's path and the accelerated one give the same batches, in the proportions asked for."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, PILToTensor, Resize

from gpuload import DataLoader, EncodedImage, SampleError, ShardDataset
from gpuload.core.errors import ConfigError
from gpuload.mixed import MixedDataset
from gpuload.sampling.mixing import Mixture

TRANSFORM = Compose([Resize((16, 16)), PILToTensor()])


def jpeg(number: int) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (5, 6, 3), np.uint8)
    Image.fromarray(pixels).resize((37, 23 + number % 3)).save(data, "jpeg")
    return data.getvalue()


@pytest.fixture
def folders(tmp_path):
    """Two folders of 5 and 3 images, in two classes and one."""
    for number in range(8):
        kind = tmp_path / ("a" if number < 5 else "b") / f"kind{number % 2 if number < 5 else 0}"
        kind.mkdir(parents=True, exist_ok=True)
        (kind / f"{number}.jpg").write_bytes(jpeg(number))
    return tmp_path / "a", tmp_path / "b"


class Encoded:
    """A user's own, whose samples are dicts."""

    def __init__(self, first: int, length: int, transform=TRANSFORM):
        self.first, self.length, self.transform = first, length, transform

    def __len__(self):
        return self.length

    def get_encoded(self, index):
        if index >= self.length:
            raise IndexError("no such")
        return {"image": EncodedImage(jpeg(self.first + index)), "id": self.first + index}

    def __getitem__(self, index):
        sample = self.get_encoded(index)
        return {**sample, "image": self.transform(Image.open(io.BytesIO(sample["image"].data)).convert("RGB"))}


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and torch.equal(a, b)


def test_accelerated_batches_are_torchs(folders):
    """Parts of different kinds, whose samples are alike: a file each, and an index of a folder."""
    parts = [ImageFolder(str(folders[0]), TRANSFORM), ShardDataset(str(folders[1]), transform=TRANSFORM)]
    mixed = MixedDataset(parts, [3, 1], length=50, seed=2)
    ours = list(DataLoader(mixed, 7, order="sequential", device="cpu", num_workers=2, accelerate="require"))
    assert same(ours, list(TorchDataLoader(mixed, 7)))
    drawn = mixed.mixture.at(np.arange(50))
    samples = [parts[part][sample] for part, sample in zip(drawn.part, drawn.sample, strict=True)]
    assert torch.equal(torch.cat([images for images, _ in ours]), torch.stack([image for image, _ in samples]))
    shuffled = [
        list(DataLoader(mixed, 7, order="shuffle", seed=3, device="cpu", accelerate=way)) for way in ("require", False)
    ]
    assert same(*shuffled) and not same(shuffled[0], ours)


def test_samples_of_a_users_own_structure():
    mixed = MixedDataset([Encoded(0, 9), Encoded(100, 4)], [1, 2])
    ours = list(DataLoader(mixed, 32, order="sequential", device="cpu", accelerate="require"))
    assert same(ours, list(TorchDataLoader(mixed, 32)))
    ids = torch.cat([batch["id"] for batch in ours])
    assert abs(int((ids >= 100).sum()) - len(mixed) * 2 / 3) <= 1
    assert set(ids.tolist()) == {*range(9), *range(100, 104)}


def test_parts_with_transforms_of_their_own_take_torchs_path():
    other = Compose([Resize((16, 16)), PILToTensor(), lambda image: image // 2])
    mixed = MixedDataset([Encoded(0, 9), Encoded(100, 4, other)], [1, 1], length=20)
    loader = DataLoader(mixed, 8, device="cpu")
    assert not loader.plan().accelerated and "transform" in str(loader.plan().reasons)
    assert same(list(loader), list(TorchDataLoader(mixed, 8)))


def test_parts_of_different_structure_are_refused(folders):
    mixed = MixedDataset([Encoded(0, 9), ImageFolder(str(folders[0]), TRANSFORM)], [1, 1], length=20)
    with pytest.raises(ConfigError, match="same structure: number 0 has one of its own a sample, number 1 \\(IMAGE"):
        next(iter(DataLoader(mixed, 8, device="cpu", accelerate="require")))


def test_a_bad_sample_is_named_by_its_own_part(folders):
    a, b = folders
    (b / "kind0" / "6.jpg").write_bytes(b"no JPEG")
    mixed = MixedDataset([ShardDataset(str(path), transform=TRANSFORM) for path in (a, b)], [1, 1], length=64)
    with pytest.raises(SampleError, match="6.jpg"):
        list(DataLoader(mixed, 16, order="sequential", device="cpu", accelerate="require"))
    loader = DataLoader(mixed, 16, order="sequential", device="cpu", accelerate="require", on_error="skip")
    drawn = mixed.mixture.at(np.arange(64))
    bad = int(((drawn.part == 1) & (drawn.sample == 1)).sum())
    with pytest.warns(UserWarning, match="6.jpg"):
        assert sum(len(images) for images, _ in loader) == 64 - bad
    assert bad > 5


def test_indices_are_pythons():
    mixed = MixedDataset([range(0, 10), range(100, 103)], [1, 1], length=12)
    assert [mixed[index] for index in range(-12, 0)] == [mixed[index] for index in range(12)]
    assert mixed[np.int64(3)] == mixed[3] == mixed.__getitems__([3])[0]
    for index in (12, -13):
        with pytest.raises(IndexError, match=f"index {index} is out of range for a mixture of 12 samples"):
            mixed[index]
    with pytest.raises(TypeError):
        mixed["3"]
    assert next(iter(DataLoader(mixed, 5))).tolist() == [mixed[i] for i in range(5)]
    assert repr(mixed) == "MixedDataset(1 x range(0, 10), 1 x range(100, 103): 12 samples)"


def test_ids_out_of_range_fail_alone():
    mixed = MixedDataset([Encoded(0, 9), Encoded(100, 4)], [1, 2], length=10)
    sampler = [[0, 10, 2], [-1, -11, 9]]
    loader = DataLoader(mixed, batch_sampler=sampler, device="cpu", accelerate="require", on_error="skip")
    with pytest.warns(UserWarning, match="index (10|-11) is out of range for a mixture of 10 samples"):
        ids = [batch["id"].tolist() for batch in loader]
    assert ids == [[mixed[0]["id"], mixed[2]["id"]], [mixed[-1]["id"], mixed[9]["id"]]]


def test_what_cannot_be_mixed():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ConfigError, match="Stream is an IterableDataset"):
        MixedDataset([range(3), Stream()], [1, 1])
    with pytest.raises(ConfigError, match="one weight a data set, got 1 for 2"):
        MixedDataset([range(3), range(4)], [1])
    with pytest.raises(ConfigError, match="one weight a data set, got 0 for 0"):
        MixedDataset([], [])
    assert MixedDataset([range(3)], [5]).mixture == Mixture((3,), (5,), 1024)
