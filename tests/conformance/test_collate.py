"""From samples to batches: every structure of default_collate and default_convert, and the user's own collate_fn."""

from __future__ import annotations

import random
import types
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, TensorDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from tests.conformance.harness import REQUIRED, Make, Route, assert_same, attempt, outcomes, train
from tests.conformance.sample_data import MEAN, STD, small

Photo = namedtuple("Photo", ["pixels", "label"])


class Tag:
    """A field that default_collate knows only where the user has told it."""

    def __init__(self, text: str):
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tag) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]


def counted(i: int, image: Any) -> defaultdict[str, Any]:
    sample: defaultdict[str, Any] = defaultdict(int)
    sample.update(image=image, label=i)
    return sample


STRUCTURES: dict[str, Callable[[int, Any], Any]] = {
    "tuple": lambda i, image: (image, i),
    "label first": lambda i, image: (i, image),
    "image alone": lambda i, image: image,
    "tuple of one": lambda i, image: (image,),
    "list": lambda i, image: [image, i],
    "dict": lambda i, image: {"image": image, "label": i, "name": f"photo {i}"},
    "ordered dict": lambda i, image: OrderedDict(b=i, a=image),
    "default dict": counted,
    "mapping proxy": lambda i, image: types.MappingProxyType({"image": image, "label": i}),
    "named tuple": lambda i, image: Photo(image, i),
    "nested": lambda i, image: {"a": (image, {"b": [i, (2.5 * i, "x")]}), "c": {"d": {"e": i}}},
    "empty containers": lambda i, image: (image, [], {}, ()),
    "float": lambda i, image: (image, i / 7),
    "bool": lambda i, image: (image, i % 2 == 0),
    "large int": lambda i, image: (image, 2**62 + i),
    "int beyond int64": lambda i, image: (image, 2**64 + i),
    "text": lambda i, image: (image, f"photo {i}"),
    "bytes": lambda i, image: (image, b"%d" % i),
    "complex": lambda i, image: (image, 1j * i),
    "none": lambda i, image: (image, None),
    "set": lambda i, image: (image, {i}),
    "numpy float32": lambda i, image: (image, np.float32(i)),
    "numpy int16": lambda i, image: (image, np.int16(i)),
    "numpy bool": lambda i, image: (image, np.bool_(i % 2)),
    "numpy text": lambda i, image: (image, np.str_(i)),
    "array": lambda i, image: (image, np.full((3, 2), i, np.uint8)),
    "array 0-d": lambda i, image: (image, np.array(i)),
    "array of text": lambda i, image: (image, np.array(["a", "b"])),
    "array of objects": lambda i, image: (image, np.array([None, i], object)),
    "tensor": lambda i, image: (image, torch.full((2, 3), i, dtype=torch.float16)),
    "tensor 0-d": lambda i, image: (image, torch.tensor(i)),
    "sparse tensor": lambda i, image: (image, torch.eye(2).to_sparse()),
    "int, then float": lambda i, image: (image, i if i % 3 else i + 0.5),
    "float, then int": lambda i, image: (image, i if i % 3 == 1 else i + 0.5),
    "ragged lists": lambda i, image: (image, [i] * (i % 3)),
    "ragged tensors": lambda i, image: (image, torch.zeros(i % 3)),
    "other keys": lambda i, image: {"image": image, f"key{i % 3}": i},
    "own class": lambda i, image: (image, Tag(str(i))),
    "image and its double": lambda i, image: {"image": image, "area": torch.tensor([i, i]), "name": ("a", i)},
}


@pytest.mark.parametrize("batch_size", [4, None], ids=["batches", "single"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(route: Route, name: str, batch_size: int | None):
    data = route.built(STRUCTURES[name], files=route.encoded[:7])
    route.same(lambda DataLoader: outcomes(iter(DataLoader(data, batch_size=batch_size, num_workers=0))))


@pytest.mark.parametrize("name", ["nested", "default dict", "float", "text", "tensor", "ragged tensors", "none"])
def test_structures_with_workers(route: Route, name: str):
    data = route.built(STRUCTURES[name], files=route.encoded[:7])
    route.same(lambda DataLoader: outcomes(iter(DataLoader(data, batch_size=4, num_workers=1))))


def test_extended_default_collate(route: Route, monkeypatch: pytest.MonkeyPatch):
    def join(batch: Any, *, collate_fn_map: Any = None) -> str:
        return "+".join(tag.text for tag in batch)

    def shout(batch: Any, *, collate_fn_map: Any = None) -> list[str]:
        return [text.upper() for text in batch]

    monkeypatch.setitem(default_collate_fn_map, Tag, join)
    monkeypatch.setitem(default_collate_fn_map, str, shout)
    data = route.built(lambda i, image: (image, Tag(str(i)), "abc"), files=route.encoded[:7])
    route.same(lambda DataLoader: list(DataLoader(data, batch_size=4)))


def average(batch: list[Any]) -> Any:
    assert all(isinstance(image, torch.Tensor) for image, _ in batch)
    return torch.stack([image for image, _ in batch]).mean(0), [label for _, label in batch]


def refuse_the_third_label(batch: list[Any]) -> Any:
    if any(label == 2 for _, label in batch):
        raise ValueError("collate will not have a 2")
    return default_collate(batch)


def mixup(batch: Any) -> Any:
    """Draws from NumPy's and Python's generators, as many mixup recipes do."""
    return default_collate(batch), np.random.beta(1.0, 1.0), random.random(), np.random.permutation(len(batch))


COLLATES: dict[str, Callable[[Any], Any]] = {
    "samples as they are": list,
    "nothing at all": lambda batch: batch,
    "finished tensors": average,
    "raises sometimes": refuse_the_third_label,
    "torch's own": default_collate,
    "another type": lambda batch: {"n": len(batch), "first": batch[0]},
    "worker": lambda batch: get_worker_info() is None,
    "none": lambda batch: None,
    "draws": mixup,
}


@pytest.mark.parametrize("batch_size", [5, None], ids=["batches", "single"])
@pytest.mark.parametrize("name", COLLATES)
def test_own_collate(route: Route, name: str, batch_size: int | None):
    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(route.data, batch_size=batch_size, collate_fn=COLLATES[name], num_workers=0)
        return outcomes(iter(loader)), loader.collate_fn

    route.same(scenario)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=["automatic", "1"])
@pytest.mark.parametrize("name", ["samples as they are", "finished tensors", "raises sometimes", "none"])
def test_own_collate_with_workers(route: Route, name: str, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        return outcomes(iter(DataLoader(route.data, batch_size=5, collate_fn=COLLATES[name], **workers)))

    route.same(scenario)


def jitter(batch: list[Any]) -> Any:
    images, labels = default_collate(batch)
    return images + torch.rand(images.shape), labels


def test_torch_draws_of_a_collate_on_the_fallback_route(fallback: Route):
    fallback.same(lambda DataLoader: train(DataLoader(fallback.data, batch_size=5, collate_fn=jitter)))


def test_torch_draws_of_a_collate_leave_the_global_generator_alone(accelerated: Route):
    """On the accelerated route they are a function of the seed and the batch: the one thing that differs from torch
    without workers, where they would depend on what the training loop draws. The state afterwards shows it."""

    def scenario(DataLoader: Make) -> Any:
        own = DataLoader is TorchDataLoader
        loader = DataLoader(
            accelerated.data, batch_size=5, shuffle=True, collate_fn=default_collate if own else jitter, num_workers=0
        )
        return [labels for _, labels in loader], torch.rand(1)

    accelerated.same(scenario)


def test_collate_that_is_none_of_a_function(route: Route):
    route.same(lambda DataLoader: outcomes(iter(DataLoader(route.data, batch_size=9, collate_fn=5, num_workers=0))))


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "v1, upscaled": lambda: transforms.Compose([transforms.Resize((71, 53)), transforms.ToTensor()]),
    "v1, bicubic": lambda: transforms.Compose(
        [transforms.Resize((15, 11), InterpolationMode.BICUBIC), transforms.PILToTensor()]
    ),
    "v1, nearest": lambda: transforms.Compose(
        [transforms.Resize((15, 31), InterpolationMode.NEAREST), transforms.PILToTensor()]
    ),
    "v1, crop padded": lambda: transforms.Compose([transforms.CenterCrop((41, 77)), transforms.PILToTensor()]),
    "v1, max size": lambda: transforms.Compose(
        [transforms.Resize(30, max_size=33), transforms.CenterCrop(21), transforms.ToTensor()]
    ),
    "v1, flipped": lambda: transforms.Compose(
        [
            transforms.Resize((9, 14)),
            transforms.RandomHorizontalFlip(1.0),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize(MEAN, STD),
        ]
    ),
    "v2, uint8": lambda: v2.Compose([v2.Resize((19, 23)), v2.PILToTensor()]),
    "v2, floats": lambda: v2.Compose(
        [
            v2.Resize(25),
            v2.CenterCrop(22),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "v2, image first": lambda: v2.Compose(
        [v2.ToImage(), v2.CenterCrop((16, 18)), v2.ToDtype(torch.float32, scale=True)]
    ),
    "v2, unscaled": lambda: v2.Compose([v2.ToImage(), v2.CenterCrop(16), v2.ToDtype(torch.float32)]),
    "an op of the user's own at the end": lambda: transforms.Compose(
        [transforms.Resize((12, 10)), transforms.ToTensor(), transforms.Lambda(lambda x: x.mean(0))]
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_equal_pixels(accelerated: Route, images: Any, name: str):
    """Bit for bit; the generators are left out, since torchvision draws from them even for a flip that is certain."""

    def scenario(DataLoader: Make) -> Any:
        data = ImageFolder(str(images), transform=TRANSFORMS[name]())
        batches = list(DataLoader(data, batch_size=7))
        torch.manual_seed(1)
        return batches

    accelerated.same(scenario)


def test_odd_sizes_one_by_one(accelerated: Route, images: Any):
    data = ImageFolder(str(images), transform=transforms.PILToTensor())
    accelerated.same(lambda DataLoader: list(DataLoader(data)))
    accelerated.same(lambda DataLoader: list(DataLoader(data, batch_size=None)))


def test_odd_sizes_in_one_batch_are_torchs_error(accelerated: Route, images: Any):
    data = ImageFolder(str(images), transform=transforms.PILToTensor())
    accelerated.same(lambda DataLoader: outcomes(iter(DataLoader(data, batch_size=6, num_workers=0))))


def test_odd_sizes_reach_the_users_collate(accelerated: Route, images: Any):
    data = ImageFolder(str(images), transform=transforms.ToTensor())
    accelerated.same(lambda DataLoader: list(DataLoader(data, batch_size=6, collate_fn=list)))


def test_random_transforms_leave_the_order_as_torchs(images: Any):
    """Pixels differ (gpuload keys its draws by sample), labels and what the samplers draw do not."""
    chain = transforms.Compose([transforms.RandomResizedCrop(9), transforms.ToTensor()])
    still = transforms.Compose([transforms.Resize((9, 9)), transforms.ToTensor()])

    def scenario(DataLoader: Make) -> Any:
        own = DataLoader is TorchDataLoader
        data = ImageFolder(str(images), transform=still if own else chain)
        loader = DataLoader(data, batch_size=5, shuffle=True)
        return [(image.shape, label) for _ in range(2) for image, label in loader]

    assert_same(scenario, taken="accelerated", **REQUIRED)


def test_target_transform_and_no_transform(images: Any):
    def scenario(DataLoader: Make) -> Any:
        labelled = ImageFolder(str(images), transform=transforms.Resize((9, 9)), target_transform=lambda t: (t, -t))
        untouched = ImageFolder(str(images))
        loaders = [
            DataLoader(labelled, batch_size=5, collate_fn=list),
            DataLoader(untouched, batch_size=None),
            DataLoader(untouched, batch_size=3),
        ]
        return [attempt(partial(_as_arrays, loader)) for loader in loaders]

    assert_same(scenario, taken=None, device="cpu", decoder="native")


def _as_arrays(tree: Any) -> Any:
    """Pillow's images as arrays; a loader as the list of its batches."""
    if isinstance(tree, TorchDataLoader):
        return [_as_arrays(batch) for batch in tree]
    if isinstance(tree, (list, tuple)):
        return type(tree)(_as_arrays(item) for item in tree)
    return (type(tree), np.asarray(tree)) if hasattr(tree, "getbands") else tree


def test_default_dtype_is_followed(images: Any):
    """torchvision's ToTensor gives torch's default dtype."""

    def scenario(DataLoader: Make) -> Any:
        data = ImageFolder(str(images), transform=TRANSFORMS["v1, upscaled"]())
        torch.set_default_dtype(torch.float64)
        try:
            return list(DataLoader(data, batch_size=7))
        finally:
            torch.set_default_dtype(torch.float32)

    assert_same(scenario, taken=None, device="cpu", decoder="native")


class Bulk(TensorDataset):
    """Has `__getitems__`, which torch prefers, and which gives other values here."""

    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [(self.tensors[0][i], -1, type(ids).__name__) for i in ids]


def test_getitems_is_preferred(fallback: Route):
    tensors = torch.arange(30.0).view(10, 3), torch.arange(10)

    def scenario(DataLoader: Make) -> Any:
        bulk = Bulk(*tensors)
        none = Bulk(*tensors)
        none.__getitems__ = None  # type: ignore[method-assign,assignment]
        loaders = [
            DataLoader(bulk, batch_size=4, shuffle=True),
            DataLoader(bulk, batch_size=None),
            DataLoader(none, batch_size=4),
            DataLoader(Subset(bulk, [3, 1, 8]), batch_size=2),
            DataLoader(TensorDataset(*tensors), batch_size=4),
            DataLoader(TensorDataset(*tensors), batch_size=None, sampler=[[1, 2], [3]]),
        ]
        return [list(loader) for loader in loaders]

    fallback.same(scenario)


class RelabelledFolder(ImageFolder):
    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return image, label + 10


class BulkFolder(ImageFolder):
    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [(i, -1) for i in ids]


class RelabelledSubset(Subset):
    def __getitem__(self, i: Any) -> Any:
        image, label = super().__getitem__(i)
        return image, label + 20

    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [self[i] for i in ids]


class BulkSubset(Subset):
    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [(i, -2) for i in ids]


@pytest.mark.parametrize(
    "make_data",
    [
        lambda root: RelabelledFolder(str(root), small()),
        lambda root: BulkFolder(str(root), small()),
        lambda root: Subset(RelabelledFolder(str(root), small()), [3, 1, 22]),
        lambda root: RelabelledSubset(ImageFolder(str(root), small()), [3, 1, 22]),
        lambda root: BulkSubset(ImageFolder(str(root), small()), [3, 1, 22]),
    ],
    ids=["folder", "folder in bulk", "subset of it", "subset", "subset in bulk"],
)
def test_methods_that_a_subclass_overrides_are_called(images: Any, make_data: Callable[[Any], Any]):
    """A subclass that overrides is not the known data set any more: torch's route and its values."""
    data = make_data(images)
    assert_same(lambda DataLoader: list(DataLoader(data, batch_size=5)), taken="torch", device="cpu", decoder="native")


def test_lists_of_changing_length_reach_the_users_collate(route: Route):
    """Boxes of a detection data set: as many as the picture has."""

    def boxes(i: int, image: Any) -> Any:
        return image, {"boxes": [[i, i + 1.0]] * (i % 4), "labels": [i] * (i % 4)}

    def scenario(DataLoader: Make) -> Any:
        return list(DataLoader(route.built(boxes), batch_size=5, collate_fn=list, num_workers=0))

    route.same(scenario)
