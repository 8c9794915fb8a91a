"""Transforms end to end: batches of gpuload on Pillow against torch's DataLoader on the same files, bit for bit.

A deterministic chain must give torch's own batches. A random one is replayed: what each operation drew for a
sample's key is read from `augment.params`, one operation at a time, and carried out by torchvision's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

import gpuload
from gpuload.augment import ops, params
from gpuload.augment.torchvision import read_transform
from gpuload.core.philox import sample_keys
from tests.augment.pictures import encoded, every_kind, picture, write_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
SEED = 41
Chain = Callable[[], list[Any]]

pytestmark = [
    pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Anti-alias option is always applied:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of image; the shortest side is 23 pixels."""
    return write_folder(tmp_path_factory.mktemp("kinds"), every_kind())


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one pixel, of one row and of one column."""
    sizes = ((1, 1), (1, 40), (40, 1), (2, 3), (9, 200))
    files = {f"{w} by {h}": encoded(picture(w, h)) for w, h in sizes}
    return write_folder(tmp_path_factory.mktemp("extremes"), files)


def ours(folder: Path, transform: Any, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"decoder": "pillow", "device": "cpu", "accelerate": "require", "num_workers": 0} | options
    return list(gpuload.DataLoader(ImageFolder(folder, transform), **given))


def torchs(folder: Path, transform: Any, **options: Any) -> list[Any]:
    return list(TorchDataLoader(ImageFolder(folder, transform), **options))


def assert_same(mine: Sequence[Any], theirs: Sequence[Any], types: bool = True) -> None:
    assert len(mine) == len(theirs)
    for (image, label), (expected, expected_label) in zip(mine, theirs, strict=True):
        assert type(image) is type(expected) or not types
        assert (image.dtype, image.shape) == (expected.dtype, expected.shape)
        assert torch.equal(image.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
        assert type(label) is type(expected_label)
        assert torch.as_tensor(label).equal(torch.as_tensor(expected_label))


FIXED: dict[str, Chain] = {
    # every image comes out at one size: stored straight into the batch
    "v1 evaluation": lambda: [v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "v2 evaluation": lambda: [
        v2.Resize(40),
        v2.CenterCrop((32, 27)),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ],
    "to image first": lambda: [
        v2.ToImage(),
        v2.Resize((21, 34)),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD, inplace=True),
    ],
    "v2 on plain tensors": lambda: [v2.PILToTensor(), v2.Resize((21, 34)), v2.ConvertImageDtype(torch.float32)],
    "v1 on tensors": lambda: [v1.PILToTensor(), v1.Resize((21, 34)), v1.ConvertImageDtype(torch.float32)],
    "v1 on an Image": lambda: [v2.ToImage(), v1.Resize((21, 34)), v1.CenterCrop(20)],
    "bytes": lambda: [v1.CenterCrop(20), v1.PILToTensor()],
    "no scaling": lambda: [v2.CenterCrop(20), v2.ToImage(), v2.ToDtype(torch.float64)],
    "half": lambda: [v2.CenterCrop(20), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)],
    "bfloat16": lambda: [v1.CenterCrop(20), v1.ToTensor(), v1.ConvertImageDtype(torch.bfloat16)],
    "there and back": lambda: [
        v1.CenterCrop(20),
        v1.ToTensor(),
        v1.ConvertImageDtype(torch.uint8),
        v1.ConvertImageDtype(torch.float64),
        v1.Normalize(MEAN, STD),
    ],
    "in place, twice": lambda: [
        v1.CenterCrop(20),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD, inplace=True),
        v1.Normalize(STD, MEAN, inplace=True),
    ],
    "a crop larger than some images": lambda: [v1.CenterCrop((48, 50)), v1.ToTensor()],
    "a crop larger than any image": lambda: [v2.CenterCrop((101, 90)), v2.ToImage()],
    "a crop larger than any tensor": lambda: [v2.ToImage(), v2.CenterCrop((101, 90)), v2.ToDtype(torch.float32)],
    "a crop larger than what was resized": lambda: [v1.Resize(20), v1.CenterCrop((41, 30)), v1.ToTensor()],
    "crop before resize": lambda: [v1.CenterCrop((22, 60)), v1.Resize((31, 19)), v1.ToTensor()],
    "crop before resize, tensors": lambda: [v2.ToImage(), v2.CenterCrop((60, 22)), v2.Resize((31, 19))],
    "crop, resize, crop": lambda: [v1.CenterCrop(60), v1.Resize(30), v1.CenterCrop((17, 40)), v1.ToTensor()],
    "flips": lambda: [v1.RandomHorizontalFlip(1), v1.RandomVerticalFlip(1), v1.CenterCrop(21), v1.ToTensor()],
    "flips between crops": lambda: [
        v2.CenterCrop(50),
        v2.Resize(30),
        v2.RandomHorizontalFlip(1.0),
        v2.CenterCrop((13, 22)),
        v2.RandomVerticalFlip(1.0),
        v2.RandomHorizontalFlip(0.0),
        v2.ToTensor(),
    ],
    "a flip after the values": lambda: [
        v2.CenterCrop((20, 31)),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
        v2.RandomHorizontalFlip(1.0),
    ],
    "a random crop with nothing to choose": lambda: [v2.Resize((40, 30)), v2.RandomCrop((40, 30)), v2.ToTensor()],
    "nested": lambda: [
        v1.Compose([v1.Resize(30), torch.nn.Identity(), v1.Compose([v1.CenterCrop(24)])]),
        v1.ToTensor(),
    ],
}

LOOSE: dict[str, Chain] = {
    # sizes differ from image to image: finished one by one
    "as it is": lambda: [v1.ToTensor()],
    "as an Image": lambda: [v2.ToImage()],
    "as an Image, then pure": lambda: [v2.ToImage(), v2.ToPureTensor()],
    "pure too early": lambda: [v2.ToPureTensor(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "smaller side": lambda: [v1.Resize(19), v1.ToTensor()],
    "with a limit": lambda: [v1.Resize(30, max_size=41), v1.PILToTensor()],
    "longer side": lambda: [v2.Resize(None, max_size=33), v2.ToImage()],
    "larger": lambda: [v2.ToImage(), v2.Resize(90), v2.ToDtype(torch.float32, scale=True)],
    "flipped": lambda: [v1.RandomVerticalFlip(1.0), v1.ToTensor(), v1.RandomHorizontalFlip(1.0)],
    "a resize that changes nothing for one": lambda: [v1.Resize(29), v1.ToTensor()],
}


@pytest.mark.parametrize("name", FIXED)
def test_deterministic_chains_that_end_at_one_size(folder: Path, name: str):
    T = v1 if name.startswith("v1") else v2
    assert read_transform(T.Compose(FIXED[name]())).tensor_spec(False) is not None
    expected = torchs(folder, T.Compose(FIXED[name]()), batch_size=3)
    assert_same(ours(folder, T.Compose(FIXED[name]()), batch_size=3), expected)
    assert_same(ours(folder, T.Compose(FIXED[name]()), batch_size=3, num_workers=2), expected)


@pytest.mark.parametrize("name", [*FIXED, *LOOSE])
def test_deterministic_chains_one_sample_at_a_time(folder: Path, name: str):
    chain = (FIXED | LOOSE)[name]
    expected = torchs(folder, v2.Compose(chain()), batch_size=None)
    mine = ours(folder, v2.Compose(chain()), batch_size=None)
    # v1's functions unwrap an Image; what is finished here stays of the class that ToImage gave
    assert_same(mine, expected, types=name != "v1 on an Image")


@pytest.mark.parametrize("name", LOOSE)
def test_batches_of_one_where_sizes_differ(folder: Path, name: str):
    expected = torchs(folder, v2.Compose(LOOSE[name]()), batch_size=1)
    assert_same(ours(folder, v2.Compose(LOOSE[name]()), batch_size=1), expected)


@pytest.mark.parametrize("name", ["bytes", "to image first", "no scaling"])
def test_a_collate_fn_is_given_samples_of_torchs_classes(folder: Path, name: str):
    def flat(samples: list[Any]) -> Any:
        return [(image, label) for image, label in samples]

    mine = ours(folder, v2.Compose(FIXED[name]()), batch_size=3, collate_fn=flat)
    theirs = torchs(folder, v2.Compose(FIXED[name]()), batch_size=3, collate_fn=flat)
    for batch, expected in zip(mine, theirs, strict=True):
        assert_same(batch, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(61, 20), (15, 90), 31], ids=str)
def test_interpolations_on_pil_images(folder: Path, mode: str, size: Any):
    for T in (v1, v2):
        chain = T.Compose([T.Resize(size, interpolation=InterpolationMode(mode)), T.PILToTensor()])
        assert_same(ours(folder, chain, batch_size=None), torchs(folder, chain, batch_size=None))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False, None])
def test_interpolations_on_tensors(folder: Path, mode: str, antialias: bool | None):
    for T in (v1, v2):
        for size in ((61, 20), (15, 90), 31):
            resize = T.Resize(size, interpolation=InterpolationMode(mode), antialias=antialias)
            for to_tensor in (T.PILToTensor(), v2.ToImage()):
                chain = T.Compose([to_tensor, resize])
                mine = ours(folder, chain, batch_size=None)
                # v1's functions unwrap an Image, as above
                assert_same(mine, torchs(folder, chain, batch_size=None), types=T is v2)


@pytest.mark.parametrize("antialias", [False, None])
def test_antialias_makes_no_difference_to_pil_images(folder: Path, antialias: bool | None):
    for T in (v1, v2):
        chain = T.Compose([T.Resize((15, 13), antialias=antialias), T.ToTensor()])
        assert_same(ours(folder, chain), torchs(folder, chain))


@pytest.mark.parametrize(
    "chain",
    [
        lambda: [v1.Resize((7, 5)), v1.ToTensor()],
        lambda: [v1.CenterCrop((6, 9)), v1.ToTensor()],
        lambda: [v2.ToImage(), v2.Resize((7, 5), interpolation="bicubic"), v2.ToDtype(torch.float32, scale=True)],
        lambda: [v1.CenterCrop(1), v1.Resize(11), v1.ToTensor()],
    ],
)
def test_images_of_a_pixel_a_row_a_column(extremes: Path, chain: Chain):
    for options in ({"batch_size": 2}, {"batch_size": None}):
        made = v2.Compose(chain())
        assert_same(ours(extremes, made, **options), torchs(extremes, made, **options))


def test_sides_that_become_nothing_raise_as_they_do_in_torch(extremes: Path):
    chain = v1.Compose([v1.Resize(2, max_size=9), v1.ToTensor()])
    with pytest.raises(ValueError, match="height and width must be > 0"):
        torchs(extremes, chain)
    with pytest.raises(ValueError, match=r"in .*1 by 40.jpg: ValueError: height and width must be > 0"):
        ours(extremes, chain)


def replayed(folder: Path, transform: Any, seed: int = SEED) -> list[Any]:
    """What torchvision makes of each sample, given the draws of its key, operation by operation."""
    plan = read_transform(transform)
    made = []
    for position, (path, label) in enumerate(ImageFolder(folder).samples):
        key = sample_keys(seed=seed, epoch=0, positions=np.array([position]))
        draws = iter(zip(plan.geometry, params.draw(plan.geometry, key), strict=True))
        value: Any = Image.open(path).convert("RGB")
        for op in transform.transforms:
            value = carried_out(op, *next(draws), value) if type(op).__name__ in GEOMETRIC else op(value)
        made.append((value, label))
    return made


GEOMETRIC = tuple(kind.__name__ for kind in ops.GeometryOp.__args__)  # type: ignore[attr-defined]


def carried_out(op: Any, read: ops.GeometryOp, u: np.ndarray, value: Any) -> Any:
    F: Any = F2 if ".v2." in type(op).__module__ else F1
    _, height, width = F1.get_dimensions(value)
    drawn = params.resolve([read], [u], np.array([width]), np.array([height]))[0]
    x, y, w, h = drawn["crop"].tolist()
    if isinstance(read, ops.RandomResizedCrop):
        return F.resized_crop(value, y, x, h, w, list(op.size), op.interpolation, antialias=op.antialias)
    if isinstance(read, ops.RandomCrop):
        left, top = max(-x, 0), max(-y, 0)
        right, bottom = max(x + w - width, 0), max(y + h - height, 0)
        if left or top or right or bottom:
            value = F.pad(value, [left, top, right, bottom], fill=op.fill)
        return F.crop(value, y + top, x + left, h, w)
    if isinstance(read, ops.RandomHorizontalFlip):
        return F.hflip(value) if drawn["flip_h"] else value
    if isinstance(read, ops.RandomVerticalFlip):
        return F.vflip(value) if drawn["flip_v"] else value
    return op(value)


def usual(T: Any) -> Chain:
    return lambda: [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]


RANDOM: dict[str, Chain] = {
    "v1 training": usual(v1),
    "v2 training": usual(v2),
    "v2 training on tensors": lambda: [
        v2.ToImage(),
        v2.RandomResizedCrop((24, 31), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ],
    "v1 training on tensors": lambda: [v1.PILToTensor(), v1.RandomResizedCrop((31, 24)), v1.RandomVerticalFlip()],
    "without antialias": lambda: [v2.PILToTensor(), v2.RandomResizedCrop(20, antialias=False)],
    "narrow ratios": lambda: [v1.RandomResizedCrop((9, 30), (0.9, 1.0), (2.0, 3.0)), v1.ToTensor()],
    "bicubic": lambda: [v2.RandomResizedCrop(33, interpolation="bicubic"), v2.RandomVerticalFlip(), v2.ToTensor()],
    "nearest": lambda: [v1.RandomResizedCrop(33, interpolation=InterpolationMode.NEAREST), v1.ToTensor()],
    "a random crop": lambda: [v1.RandomCrop((20, 23)), v1.ToTensor()],
    "padded": lambda: [v1.RandomCrop(24, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()],
    "padded with grey": lambda: [v1.RandomCrop(30, padding=(9, 5, 8, 7), fill=127), v1.ToTensor()],
    "padded with a colour": lambda: [v2.RandomCrop(30, padding=(9, 5), fill=(250, 3, 99)), v2.ToTensor()],
    "padded as needed": lambda: [v1.RandomCrop((60, 70), pad_if_needed=True, fill=7), v1.ToTensor()],
    "tensors padded as needed": lambda: [v2.ToImage(), v2.RandomCrop((60, 70), pad_if_needed=True, fill=(7, 8, 9))],
    "v1 tensors padded": lambda: [v1.PILToTensor(), v1.RandomCrop(30, padding=6, fill=200), v1.RandomVerticalFlip()],
    "flips, a padded crop, flips": lambda: [
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.RandomCrop((24, 30), padding=(1, 6, 9, 2), fill=50),
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.ToTensor(),
    ],
    "resize, then a padded crop": lambda: [
        v1.Resize((28, 26), interpolation=InterpolationMode.BICUBIC),
        v1.RandomCrop(28, padding=3, fill=11),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
    ],
    "a padded crop, then resize": lambda: [
        v2.RandomCrop(40, padding=(0, 10), pad_if_needed=True, fill=(1, 200, 90)),
        v2.Resize((17, 29), interpolation="lanczos"),
        v2.RandomHorizontalFlip(),
        v2.ToTensor(),
    ],
    "flip, then a central crop of odd size": lambda: [
        v1.RandomHorizontalFlip(),
        v1.CenterCrop((22, 60)),
        v1.ToTensor(),
    ],
    "a crop of what was cropped and resized": lambda: [
        v2.RandomResizedCrop(32),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(32, padding=4),
        v2.RandomVerticalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float16, scale=True),
    ],
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_chains_are_torchvisions_given_the_same_draws(folder: Path, name: str):
    transform = v1.Compose(RANDOM[name]())
    expected = replayed(folder, transform)
    assert_same(ours(folder, transform, batch_size=None, seed=SEED, order="sequential"), expected)
    images = torch.cat([image for image, _ in ours(folder, transform, batch_size=3, seed=SEED, order="sequential")])
    assert torch.equal(images, torch.stack([image.as_subclass(torch.Tensor) for image, _ in expected]))


def test_a_seed_an_epoch_and_a_place_in_the_order_make_the_draws(folder: Path):
    def epochs(seed: int, **options: Any) -> list[torch.Tensor]:
        dataset = ImageFolder(folder, v1.Compose(usual(v1)()))
        loader: Any = gpuload.DataLoader(
            dataset, 2, seed=seed, order="sequential", decoder="pillow", device="cpu", accelerate="require", **options
        )
        return [torch.cat([image for image, _ in loader]) for _ in range(2)]

    first, second = epochs(1, num_workers=0)
    again = epochs(1, num_workers=2)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second) and not torch.equal(first, epochs(2, num_workers=0)[0])


def seeded(op: Any, key: np.ndarray) -> Callable[[Any], Any]:
    """The operation, with torch's own generator seeded by the sample's key."""

    def run(value: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(key[0]) | int(key[1]) << 32)
            for step in op:
                value = step(value)
            return value

    return run


PER_SAMPLE: dict[str, tuple[Chain, Chain]] = {
    "ColorJitter on tensors": (usual(v1), lambda: [v1.ColorJitter(0.4, 0.4, 0.4)]),
    "RandomErasing": (usual(v2), lambda: [v2.RandomErasing(0.9), v2.GaussianNoise(clip=False)]),
    "RandAugment on PIL": (
        lambda: [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()],
        lambda: [v1.RandAugment(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    ),
    "a second crop on PIL": (
        lambda: [v2.RandomCrop(23), v2.RandomVerticalFlip()],
        lambda: [v2.RandomResizedCrop(17), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    ),
    "on bytes": (
        lambda: [v2.ToImage(), v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()],
        lambda: [v2.TrivialAugmentWide(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    ),
    "a function of one's own": (usual(v1), lambda: [lambda image: image * torch.rand(3, 1, 1) + image.flip(-1)]),
}


@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_not_known_runs_per_sample_with_draws_of_its_own(folder: Path, name: str, workers: int):
    prefix, rest = (make() for make in PER_SAMPLE[name])
    dataset = ImageFolder(folder, v1.Compose([*prefix, *rest]))
    options: dict[str, Any] = {"decoder": "pillow", "device": "cpu", "accelerate": "require", "num_workers": workers}
    torch.manual_seed(8)
    loader: Any = gpuload.DataLoader(dataset, 3, seed=SEED, order="sequential", **options)
    iterator = iter(loader)
    before = torch.get_rng_state()
    images = torch.cat([image for image, _ in iterator])
    assert torch.equal(torch.get_rng_state(), before)
    half_way = replayed(folder, v1.Compose(prefix)) if makes_tensors(prefix) else pil_replayed(folder, prefix)
    keys = sample_keys(seed=SEED, epoch=0, positions=np.arange(len(half_way)))
    expected = [seeded(rest, key)(image) for (image, _), key in zip(half_way, keys, strict=True)]
    assert torch.equal(images, torch.stack([image.as_subclass(torch.Tensor) for image in expected]))


def makes_tensors(chain: list[Any]) -> bool:
    return any("Tensor" in type(op).__name__ or "Image" in type(op).__name__ for op in chain)


def pil_replayed(folder: Path, prefix: list[Any]) -> list[Any]:
    as_bytes = replayed(folder, v1.Compose([*prefix, v1.PILToTensor()]))
    return [(Image.fromarray(image.permute(1, 2, 0).numpy()), label) for image, label in as_bytes]


def test_a_transform_that_needs_the_pil_image_first_takes_torchs_path(folder: Path):
    transform = v1.Compose([v1.Grayscale(3), v1.Resize((20, 20)), v1.ToTensor()])
    loader: Any = gpuload.DataLoader(ImageFolder(folder, transform), 3, decoder="pillow", device="cpu")
    assert not loader.plan().accelerated
    assert "starts with Grayscale, which needs the decoded PIL image" in loader.plan().reasons[0]
    assert_same(list(loader), torchs(folder, transform, batch_size=3))


class Brighter(v1.Resize):
    """A subclass of a known transform that does more."""

    def forward(self, image: Any) -> Any:
        return super().forward(image).point(lambda level: level // 2 + 100)


def hooked(op: Any) -> Any:
    op.register_forward_hook(lambda module, given, made: made.transpose(Image.Transpose.ROTATE_180))
    return op


def patched(op: Any) -> Any:
    op.forward = lambda image: image.rotate(90).resize((20, 20))
    return op


@pytest.mark.parametrize(
    "make",
    [
        lambda: Brighter((20, 20)),
        lambda: hooked(v1.Resize((20, 20))),
        lambda: hooked(v2.Resize((20, 20))),
        lambda: hooked(v2.Compose([v2.Resize((20, 20))])),
        lambda: patched(v1.CenterCrop(20)),
    ],
    ids=["subclass", "v1 hook", "v2 hook", "hooked Compose", "patched forward"],
)
def test_what_was_changed_does_what_it_was_changed_to(folder: Path, make: Callable[[], Any]):
    for before in ([], [v1.RandomHorizontalFlip(1.0)]):
        transform = v1.Compose([*before, make(), v1.ToTensor()])
        expected = torchs(folder, transform, batch_size=3)
        assert_same(ours(folder, transform, batch_size=3, accelerate="require" if before else True), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [None, torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("batch_size", [3, 1])
def test_dtype_and_memory_format_are_as_to(
    folder: Path, dtype: torch.dtype, layout: torch.memory_format | None, batch_size: int
):
    chains = {
        "fused": [v1.CenterCrop((21, 26)), v1.PILToTensor() if dtype is torch.uint8 else v1.ToTensor()],
        "one by one": [v1.RandomHorizontalFlip(1.0), v1.CenterCrop((21, 26)), v1.CenterCrop(20), v1.PILToTensor()],
    }
    for chain in chains.values():
        transform = v1.Compose(chain)
        expected = torchs(folder, transform, batch_size=batch_size)
        made = ours(folder, transform, batch_size=batch_size, dtype=dtype, memory_format=layout)
        assert_same(made, [(image.to(dtype), label) for image, label in expected])
        wanted = layout or torch.contiguous_format
        assert all(image.is_contiguous(memory_format=wanted) for image, _ in made)


def test_dtype_casts_what_the_values_became(folder: Path):
    transform = v1.Compose([v1.CenterCrop((21, 26)), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    expected = torchs(folder, transform, batch_size=4)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        made = ours(folder, transform, batch_size=4, dtype=dtype)
        assert_same(made, [(image.to(dtype), label) for image, label in expected])


def test_torchs_default_dtype_counts(folder: Path):
    transform = v1.Compose([v1.CenterCrop(20), v1.ToTensor()])
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(ours(folder, transform, batch_size=4), torchs(folder, transform, batch_size=4))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_transform_changed_between_epochs_is_read_anew(folder: Path):
    resize = v1.Resize((20, 20))
    dataset = ImageFolder(folder, v1.Compose([resize, v1.ToTensor()]))
    loader: Any = gpuload.DataLoader(dataset, 4, decoder="pillow", device="cpu", accelerate="require", num_workers=1)
    for size in ((20, 20), (9, 31)):
        resize.size = size
        assert_same(list(loader), list(TorchDataLoader(dataset, 4)))


def test_photographs_as_they_come(photos: Path):
    paths = sorted(photos.rglob("*.[jJ][pP]*[gG]"))[::23]
    transform = v1.Compose([v1.Resize(128), v1.CenterCrop(112), v1.ToTensor(), v1.Normalize(MEAN, STD)])

    class Files(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.transform = transform

        def __len__(self) -> int:
            return len(paths)

        def get_encoded(self, i: int) -> Any:
            return gpuload.EncodedImage(paths[i].read_bytes()), i

        def __getitem__(self, i: int) -> Any:
            return transform(Image.open(paths[i]).convert("RGB")), i

    loader: Any = gpuload.DataLoader(Files(), 4, decoder="pillow", device="cpu", accelerate="require", num_workers=2)
    assert_same(list(loader), list(TorchDataLoader(Files(), 4)))


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of JPEG, all of one size: no operation need say it."""
    kinds = {"444": {"subsampling": 0}, "420": {"subsampling": 2}, "progressive": {"progressive": True}, "grey": {}}
    files = {
        f"{name} {i}": encoded(picture(37, 29, mode="L" if name == "grey" else "RGB"), **options)
        for i in range(3)
        for name, options in kinds.items()
    }
    return write_folder(tmp_path_factory.mktemp("alike"), files)


UNSIZED: dict[str, Chain] = {
    "tensor": lambda: [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "flip": lambda: [v1.RandomHorizontalFlip(1.0), v1.ToTensor()],
    "classes": lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "padding": lambda: [v1.CenterCrop((50, 61)), v1.ToTensor()],
    "shorter side": lambda: [v1.Resize(20), v1.ToTensor()],
}


@pytest.mark.parametrize("name", UNSIZED)
@pytest.mark.parametrize("decoder", ["native", "pillow"])
def test_images_that_happen_to_be_alike_are_stacked_without_a_size_in_the_transform(
    alike: Path, name: str, decoder: str, monkeypatch: pytest.MonkeyPatch
):
    transform = v1.Compose(UNSIZED[name]())
    if decoder == "native":  # nothing runs sample by sample
        monkeypatch.setattr("gpuload.engine.work.finish_rows", lambda *arguments: pytest.fail("one by one"))
    for workers in (0, 2):
        got = ours(alike, transform, batch_size=5, decoder=decoder, num_workers=workers)
        assert_same(got, torchs(alike, transform, batch_size=5))
        assert all(type(images) is torch.Tensor and images.is_contiguous() for images, _ in got)
    last = ours(alike, transform, batch_size=5, decoder=decoder, memory_format=torch.channels_last)
    assert_same(last, got)
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in last)


def test_images_that_differ_in_size_are_refused_as_torch_refuses_them(folder: Path):
    errors = []
    for load in (ours, torchs):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
            load(folder, v1.ToTensor(), batch_size=7, **({"decoder": "native"} if load is ours else {}))
        errors.append(str(caught.value).splitlines()[-1])
    assert errors[0] == errors[1]


def test_a_batch_with_one_image_whose_size_only_pillow_knows_is_stacked_too(alike: Path, tmp_path: Path):
    mixed = tmp_path / "mixed"
    files = {path.stem: path.read_bytes() for path in sorted(alike.rglob("*.jpg"))[:3]}
    write_folder(mixed, files | {"png": encoded(picture(37, 29), "PNG")})
    assert_same(ours(mixed, v1.ToTensor(), batch_size=4, decoder="native"), torchs(mixed, v1.ToTensor(), batch_size=4))


ERASING: dict[str, tuple[Chain, dict[str, Any]]] = {
    "float32": (usual(v2), {}),
    "bytes": (lambda: [v1.RandomResizedCrop((17, 24)), v1.PILToTensor()], {}),
    "bfloat16, channels last": (usual(v1), {"dtype": torch.bfloat16, "memory_format": torch.channels_last}),
    "images of many sizes": (lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)], {"batch_size": 1}),
    "one by one": (usual(v2), {"batch_size": None}),
    "a collate_fn of one's own": (usual(v1), {"collate_fn": lambda samples: [torch.stack([i for i, _ in samples]), 0]}),
}


@pytest.mark.parametrize("name", ERASING)
@pytest.mark.parametrize("workers", [0, 2])
def test_random_erasing_sets_its_rectangles_in_what_comes_without_it(folder: Path, name: str, workers: int):
    make, options = ERASING[name]
    given = {"batch_size": 4, "seed": SEED, "num_workers": workers} | options
    erasing = v2.RandomErasing(0.6, (0.1, 0.3), value=(0.5, -1.0, 2.0))
    plain, erased = (list(ours(folder, v1.Compose([*make(), *more]), **given)) for more in ([], [erasing]))
    plan, position, changed = read_transform(v1.Compose([*make(), erasing])), 0, 0
    for (before, _), (after, _) in zip(plain, erased, strict=True):
        for image, other in zip(*(x if x.dim() == 4 else x[None] for x in (before, after)), strict=True):
            key = sample_keys(seed=SEED, epoch=0, positions=np.array([position]))
            position += 1
            boxes = plan.rectangles(key, *image.shape[1:])
            assert boxes is not None
            left, top, width, height = boxes[0].tolist()
            changed += width * height > 0
            assert torch.equal(
                F2.erase(image, top, left, height, width, torch.tensor(erasing.value)[:, None, None]), other
            )
    assert position == len(every_kind()) and 0 < changed < position
