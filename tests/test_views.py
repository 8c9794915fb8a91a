"""Several views of one image: default_collate's batches, each view drawing for itself, and what loaders of one give."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.core.errors import ConfigError
from gpuload.core.philox import sample_keys, uniforms, view_keys
from gpuload.views import Views
from tests.conformance.sample_data import COUNT, write_images
from tests.test_batch_transform import assert_same

LARGE = v1.Compose([v1.Resize((17, 19)), v1.ToTensor()])
SMALL = v1.Compose([v1.Resize((9, 8)), v1.ToTensor()])
RANDOM = v1.Compose([v1.RandomResizedCrop(12), v1.ToTensor()])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("views")
    write_images(root)
    return root


def batches(dataset: Any, make: Any = gpuload.DataLoader, **options: Any) -> list[Any]:
    return list(make(dataset, batch_size=7, **options))


def test_a_batch_holds_for_each_view_what_a_loader_of_that_view_alone_gives(root: Path):
    both = batches(ImageFolder(str(root), Views([LARGE, SMALL])), device="cpu")
    alone = [batches(ImageFolder(str(root), view), TorchDataLoader) for view in (LARGE, SMALL)]
    assert len(both) == -(-COUNT // 7)
    for (views, labels), *singles in zip(both, *alone, strict=True):
        assert type(views) is list and [view.shape[1:] for view in views] == [(3, 17, 19), (3, 9, 8)]
        for view, (images, its_labels) in zip(views, singles, strict=True):
            assert torch.equal(view, images) and torch.equal(labels, its_labels)


def test_structure_and_types_are_those_that_torch_makes_of_a_list_a_sample(root: Path):
    class Plain(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.inner = ImageFolder(str(root))

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, index: int) -> Any:
            image, label = self.inner[index]
            return [LARGE(image), SMALL(image)], label

    mine = batches(ImageFolder(str(root), Views([LARGE, SMALL])), device="cpu")
    for batch, theirs in zip(mine, batches(Plain(), TorchDataLoader), strict=True):
        assert type(batch) is type(theirs) and type(batch[0]) is type(theirs[0])
        for one, other in zip([*batch[0], batch[1]], [*theirs[0], theirs[1]], strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)


def test_each_view_draws_for_itself(root: Path):
    for (first, second), _ in batches(ImageFolder(str(root), Views([RANDOM, RANDOM])), device="cpu"):
        assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_sample_is_a_list_of_views_and_worker_processes_can_be_sent_the_transform():
    views = pickle.loads(pickle.dumps(Views([str, repr])))
    assert views("a") == ["a", "'a'"]


@pytest.mark.parametrize("given", [[], (), None, LARGE, [LARGE, 3], "resize"])
def test_what_is_no_list_of_transforms_is_refused_with_what_was_given(given: Any):
    with pytest.raises(ConfigError) as met:
        Views(given)
    assert repr(given) in str(met.value)


def test_it_is_made_without_importing_torch():
    made = "import sys; from gpuload.views import Views; Views([str]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", made], check=True)


# The accelerated path

FUSED = [
    v1.Compose([v1.RandomResizedCrop((16, 20)), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    v1.Compose(
        [v1.RandomResizedCrop(9, interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor(), v1.RandomErasing(0.7)]
    ),
    v1.Compose([v1.Resize(12), v1.RandomCrop(11), v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]),
]
LOOSE = [
    v1.Compose([v1.RandomResizedCrop(8), v1.ColorJitter(0.5, 0.5), v1.ToTensor()]),
    v1.Compose([v1.RandomResizedCrop(10), v1.ToTensor(), v1.RandomErasing(0.8, value="random")]),
]
EVERY = {"fused": FUSED, "per sample": LOOSE, "both": [FUSED[0], LOOSE[0]], "one": FUSED[:1]}


def accelerated(root: Path, transform: Any, **options: Any) -> gpuload.DataLoader:
    given = {"batch_size": 7, "seed": 5, "order": "shuffle", "device": "cpu", "num_workers": 2} | options
    return gpuload.DataLoader(ImageFolder(str(root), transform), accelerate="require", **given)


def of_view(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders draw as that view of a sample does."""

    def keys(**what: Any) -> Any:
        return view_keys(sample_keys(**what), number)

    monkeypatch.setattr("gpuload.core.batch.sample_keys", keys)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_accelerated_each_view_is_what_a_loader_of_that_view_with_its_keys_gives(
    root: Path, kind: str, threads: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
):
    options = {"num_workers": threads, "memory_format": layout}
    together = list(accelerated(root, Views(EVERY[kind]), **options))
    for number, transform in enumerate(EVERY[kind]):
        with monkeypatch.context() as patched:
            of_view(number, patched)
            alone = list(accelerated(root, transform, **options))
        for (views, labels), (images, its_labels) in zip(together, alone, strict=True):
            assert type(views) is list and len(views) == len(EVERY[kind])
            assert torch.equal(views[number], images) and torch.equal(labels, its_labels)
            assert views[number].stride() == images.stride()


def test_accelerated_keys_of_views_differ_and_the_first_is_the_samples_own():
    keys = sample_keys(seed=1, epoch=2, positions=np.arange(50))
    several = [view_keys(keys, number) for number in range(4)]
    assert np.array_equal(several[0], keys)
    assert len({bytes(key) for view in several for key in view}) == 200
    draws = np.concatenate([uniforms(view, stream=0, count=8).ravel() for view in several])
    assert len(np.unique(draws)) == len(draws)
    own = np.concatenate([uniforms(keys, stream=stream, count=40).ravel() for stream in range(6)])
    words = np.concatenate([view.ravel() for view in several[1:]])
    assert not np.isin(words * 2.0**-32, own).any(), "another view's key would be something that the sample draws"


@pytest.mark.parametrize("view", [v1.Compose([LARGE, torch.nn.Identity()]), v1.ToTensor()], ids=["alike", "any size"])
@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("collate_fn", [None, list])
def test_accelerated_batches_have_torchs_structure(root: Path, view: Any, batch_size: int | None, collate_fn: Any):
    options = {"batch_size": batch_size, "collate_fn": collate_fn}
    mine = list(accelerated(root, Views([view, SMALL]), seed=None, order=None, **options))
    theirs = list(TorchDataLoader(ImageFolder(str(root), Views([view, SMALL])), **options))  # type: ignore[arg-type]
    assert_same(mine, theirs)


def test_accelerated_a_sample_that_fails_in_one_view_fails_in_all(root: Path):
    tall = v1.Compose([v1.RandomCrop(30), v1.ToTensor()])  # some images are smaller
    fits = [min(Image.open(path).size) >= 30 for path, _ in ImageFolder(str(root)).samples]
    assert 0 < sum(fits) < COUNT
    for views in ([tall, LARGE], [LARGE, tall]):
        loader = accelerated(root, Views(views), order="sequential", on_error="skip")
        with pytest.warns(UserWarning, match="bad samples are left out"):
            batches = list(loader)
        large = torch.cat([batch[0][views.index(LARGE)] for batch in batches])
        alone = torch.cat([images for images, _ in TorchDataLoader(ImageFolder(str(root), LARGE))])
        assert torch.equal(large, alone[torch.tensor(fits)])
        assert sum(loader.stats().errors.values()) == COUNT - sum(fits)


def test_accelerated_another_list_of_transforms_is_another_engine(root: Path):
    loader = accelerated(root, Views([LARGE]))
    assert [len(batch[0]) for batch in loader] == [1, 1, 1, 1]
    for transform, shapes in ((Views([SMALL, LARGE]), [(9, 8), (17, 19)]), (Views([LARGE]), [(17, 19)])):
        loader.dataset.transform = transform  # type: ignore[attr-defined]
        assert [tuple(view.shape[2:]) for view in next(iter(loader))[0]] == shapes
    loader.dataset.transform = LARGE  # type: ignore[attr-defined]
    assert next(iter(loader))[0].shape[2:] == (17, 19)


def test_accelerated_the_plan_names_each_view(root: Path):
    told = str(accelerated(root, Views([FUSED[0], LOOSE[0]])).plan())
    assert "view 1: RandomHorizontalFlip" in told and "view 2: ColorJitter" in told


def test_mixing_several_views_is_refused(root: Path):
    with pytest.raises(ConfigError, match="MixUp mixes one image a sample"):
        next(iter(accelerated(root, Views(FUSED), batch_transform=gpuload.MixUp(num_classes=3))))


def test_a_view_that_may_refuse_an_image_keeps_all_of_them_off_the_gpu(root: Path):
    """Its other views would be with the GPU by then, where no row can be left out."""
    refusing = v1.Compose([v1.RandomCrop(30), v1.ToTensor()])
    plans = [
        accelerated(root, transform).plan() for transform in (Views(FUSED[:2]), Views([FUSED[0], refusing]), refusing)
    ]
    assert [plan.on_gpu for plan in plans] == [True, False, True]
