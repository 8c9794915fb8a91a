"""Batches that a GPU decodes, on the simulated one: whole loaders against the CPU's, and every order of events.

The kernels are the GPU's, run on the host (tests/kernels/host_cuda.py); the engine, the staging, the uploads and the
streams are the product's own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.core.errors import DeviceError, DeviceMemoryError, SampleError
from gpuload.device.cuda import CudaDevice
from gpuload.device.placing import Run, first_places, runs_of_others
from tests.device.simulated import SimulatedGpu
from tests.engine.fakes import eventually

CUDA = torch.device("cuda", 0)
TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(48, scale=(0.1, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 JPEGs of every sampling, with and without restarts, large enough to have seek points."""
    root = tmp_path_factory.mktemp("images")
    for label in range(2):
        (root / f"class{label}").mkdir()
        for i in range(15):
            draw = np.random.default_rng((label, i))
            width, height = (int(side) for side in draw.integers(90, 200, 2))
            coarse = Image.fromarray(draw.integers(0, 256, (9, 11, 3), dtype=np.uint8)).resize((width, height))
            noisy = np.clip(np.asarray(coarse, np.int16) + draw.normal(0, 20, (height, width, 3)), 0, 255)
            image, more = Image.fromarray(noisy.astype(np.uint8)), {"restart_marker_blocks": 3} if i % 4 == 0 else {}
            image = image.convert("L") if i % 7 == 0 else image
            image.save(root / f"class{label}" / f"{i:02d}.jpg", quality=92, subsampling=i % 3, **more)
    return root


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """A simulated GPU in every loader's place, and room to learn seek points in."""
    from tests.kernels.host_cuda import host_kernels

    gpu = SimulatedGpu(launcher=host_kernels())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", str(1 << 22))
    monkeypatch.setattr("gpuload.wiring.resolve", lambda device: torch.device("cpu") if device == "cpu" else CUDA)
    monkeypatch.setattr("gpuload.wiring._launcher", lambda loader, plan, device: device.type == "cuda" or None)

    def device(where: torch.device, *, keep: int, **others: Any) -> Any:
        return CudaDevice(where, keep=keep, runtime=gpu) if where.type == "cuda" else make(where, keep=keep, **others)

    from gpuload.device.cuda import make_device as make

    monkeypatch.setattr("gpuload.wiring.make_device", device)
    return gpu


def loaded(folder: Path, *, device: str, transform: Any = TRAIN, **more: Any) -> Any:
    options: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "seed": 3, "order": "shuffle", **more}
    return gpuload.DataLoader(ImageFolder(str(folder), transform), device=device, accelerate="require", **options)


def learn(folder: Path) -> None:
    """An epoch on the CPU, which leaves seek points."""
    for _ in loaded(folder, device="cpu"):
        pass


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_loader_on_the_device_gives_the_cpus_batches(
    gpu: SimulatedGpu, folder: Path, dtype: torch.dtype, memory_format: torch.memory_format
):
    learn(folder)
    options = {"dtype": dtype, "memory_format": memory_format}
    loader = loaded(folder, device="cuda", **options)
    pairs = zip(loader, loaded(folder, device="cpu", **options), strict=True)
    for (images, labels), (cpu_images, cpu_labels) in pairs:
        assert torch.equal(gpu.read(images), cpu_images) and torch.equal(gpu.read(labels), cpu_labels)
        assert images.stride() == cpu_images.stride()
    assert loader.stats().decoders == {"native, on the GPU": 30}


@pytest.mark.full
def test_several_views_of_a_sample_are_the_cpus(gpu: SimulatedGpu, folder: Path):
    small = transforms.Compose([transforms.RandomResizedCrop(20), transforms.ToTensor(), transforms.RandomErasing(0.7)])
    views = gpuload.Views([TRAIN, TRAIN, small])
    learn(folder)
    loader = loaded(folder, device="cuda", transform=views)
    for (images, labels), (truth, _) in zip(loader, loaded(folder, device="cpu", transform=views), strict=True):
        for one, other in zip(images, truth, strict=True):
            assert torch.equal(gpu.read(one), other)
        assert not torch.equal(gpu.read(images[0]), gpu.read(images[1])) and len(gpu.read(labels)) == len(images[0])
    assert loader.stats().decoders == {"native, on the GPU": 90}


@pytest.mark.full
@pytest.mark.parametrize("name", ["resize and centre crop", "padded crop", "whole", "one size", "bicubic"])
def test_every_geometry_gives_the_cpus_batches(gpu: SimulatedGpu, folder: Path, name: str):
    transform = {
        "resize and centre crop": [transforms.Resize(64), transforms.CenterCrop(57)],
        "padded crop": [transforms.Resize(80), transforms.RandomCrop(83, padding=4, fill=(7, 99, 200))],
        "whole": [transforms.RandomCrop(64)],
        "one size": [transforms.Resize((50, 70)), transforms.RandomVerticalFlip()],
        "bicubic": [transforms.RandomResizedCrop(33, interpolation=transforms.InterpolationMode.BICUBIC)],
    }[name]
    whole = transforms.Compose([*transform, transforms.ToTensor()])
    learn(folder)
    loader = loaded(folder, device="cuda", transform=whole)
    for (images, _), (truth, _) in zip(loader, loaded(folder, device="cpu", transform=whole), strict=True):
        assert torch.equal(gpu.read(images), truth)
    assert loader.stats().decoders == {"native, on the GPU": 30}


@pytest.mark.full
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_erased_is_erased_on_the_device_too(
    gpu: SimulatedGpu, folder: Path, dtype: torch.dtype, memory_format: torch.memory_format
):
    erasing = transforms.Compose([*TRAIN.transforms, transforms.RandomErasing(0.7, value=(0.4, 2.0, -1.0))])
    options = {"dtype": dtype, "memory_format": memory_format}
    learn(folder)
    loader = loaded(folder, device="cuda", transform=erasing, **options)
    truth, plain = loaded(folder, device="cpu", transform=erasing, **options), loaded(folder, device="cpu", **options)
    differ = 0
    for (images, _), (expected, _), (before, _) in zip(loader, truth, plain, strict=True):
        assert torch.equal(gpu.read(images), expected)
        differ += int((expected != before).flatten(1).any(1).sum())
    assert loader.stats().decoders == {"native, on the GPU": 30} and 15 < differ < 27


@pytest.mark.full
@pytest.mark.parametrize("op", [gpuload.MixUp(num_classes=2), gpuload.CutMix(num_classes=2)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batches_are_mixed_on_the_device_as_on_the_cpu(
    gpu: SimulatedGpu, folder: Path, op: Any, memory_format: torch.memory_format
):
    learn(folder)
    options = {"batch_transform": op, "memory_format": memory_format}
    pairs = zip(loaded(folder, device="cuda", **options), loaded(folder, device="cpu", **options), strict=True)
    for (images, labels), (cpu_images, cpu_labels) in pairs:
        assert torch.equal(gpu.read(images), cpu_images) and torch.equal(gpu.read(labels), cpu_labels)
        assert images.stride() == cpu_images.stride()


@pytest.mark.full
def test_a_first_epoch_is_the_cpus_and_teaches_the_second(gpu: SimulatedGpu, folder: Path):
    loader = loaded(folder, device="cuda")
    loader.set_epoch(0)
    first = [gpu.read(images) for images, _ in loader]
    assert loader.stats().decoders == {"native": 30}
    loader.set_epoch(0)
    second = [gpu.read(images) for images, _ in loader]
    assert loader.stats().decoders == {"native, on the GPU": 30}
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("more", [[], [transforms.RandomErasing(0.8)]], ids=["", "erased"])
def test_bad_images_and_those_the_cpu_decodes_stand_where_they_should(
    gpu: SimulatedGpu, folder: Path, tmp_path: Path, on_error: str, more: list[Any]
):
    mixed = tmp_path / "mixed"
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        target = mixed / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if number % 5 == 2:
            data = b"no image"
        elif number % 5 == 3:
            out = io.BytesIO()
            Image.open(path).save(out, "JPEG", progressive=True)
            data = out.getvalue()
        target.write_bytes(data)
    transform = transforms.Compose([*TRAIN.transforms, *more])
    options = {"on_error": on_error, "order": "sequential", "transform": transform}
    truth = [(images, labels) for images, labels in loaded(mixed, device="cpu", **options)]
    loader = loaded(mixed, device="cuda", **options)
    for (images, labels), (cpu_images, cpu_labels) in zip(loader, truth, strict=True):
        assert torch.equal(gpu.read(images), cpu_images) and torch.equal(gpu.read(labels), cpu_labels)
    decoders = loader.stats().decoders
    assert decoders["native, on the GPU"] == 18 and decoders["pillow"] == 6


@pytest.mark.full
def test_an_image_over_the_budget_is_the_cpus_and_a_batch_over_it_is_made_in_parts(gpu: SimulatedGpu, folder: Path):
    learn(folder)
    truth = [images for images, _ in loaded(folder, device="cpu")]
    for budget, on_gpu in ((500_000, 30), (120_000, 1), (1, 0)):
        loader = loaded(folder, device="cuda", max_device_bytes=budget)
        assert all(torch.equal(gpu.read(images), wanted) for (images, _), wanted in zip(loader, truth, strict=True))
        decoded = loader.stats().decoders.get("native, on the GPU", 0)
        assert decoded == 30 if on_gpu == 30 else (0 < decoded < 30 if on_gpu else decoded == 0), budget


@pytest.mark.full
def test_one_copy_a_batch_and_no_wait_but_the_epochs_last(gpu: SimulatedGpu, folder: Path):
    learn(folder)
    loader = loaded(folder, device="cuda")
    batches = list(loader)
    begun = len(batches) + loader.ready_ahead  # the next epoch's first ones
    assert eventually(lambda: gpu.copies == 3 * begun)  # the upload, the status on its way back, the labels
    assert gpu.waits <= len(batches)
    assert all(len(images) for images, _ in batches)


class Damaged:
    """A launcher whose decoder meets an anomaly in the second image of every launch."""

    def __init__(self, kernels: Any):
        self._kernels = kernels

    def launch(self, name: str, items: int, *arguments: int) -> None:
        self._kernels.launch(name, items, *arguments)
        if name == "decode_segments":
            import ctypes

            ctypes.c_int32.from_address(arguments[-1] + 4).value = 2


@pytest.mark.full
def test_an_anomaly_on_the_device_is_an_error_that_names_the_sample(gpu: SimulatedGpu, folder: Path):
    learn(folder)
    gpu.launcher = Damaged(gpu.launcher)
    with pytest.raises(SampleError, match=r"class\d/\d\d\.jpg.*wrong pixels.*max_device_bytes=0") as raised:
        for images, _ in loaded(folder, device="cuda", order="sequential"):
            gpu.read(images)
    assert raised.value.sample == 1


@pytest.mark.full
def test_without_room_for_another_batch_fewer_are_made_ahead(
    gpu: SimulatedGpu, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Room for two batches that are not handed over: a third one waits, whichever is decoded first."""
    learn(folder)
    truth = [images for images, _ in loaded(folder, device="cpu")]
    sent, handed_over, refused = [], [], []
    send, hand_over = CudaDevice.send, CudaDevice.hand_over
    monkeypatch.setattr(CudaDevice, "send", lambda self, *given: (send(self, *given), sent.append(1))[0])
    monkeypatch.setattr(
        CudaDevice, "hand_over", lambda self, *given: (hand_over(self, *given), handed_over.append(1))[0]
    )

    def third() -> Exception | None:
        if len(sent) - len(handed_over) < 2:
            return None
        refused.append(1)
        return torch.OutOfMemoryError("CUDA out of memory")

    gpu.fails = third
    iterator = iter(loaded(folder, device="cuda", prefetch_factor=4))
    before = iterator._flow.depth
    assert all(torch.equal(gpu.read(images), wanted) for (images, _), wanted in zip(iterator, truth, strict=True))
    assert refused and iterator._flow.depth < before


@pytest.mark.full
def test_batches_are_sent_in_the_order_in_which_they_are_taken(
    gpu: SimulatedGpu, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    learn(folder)
    order: list[int] = []
    complete = CudaDevice.complete

    def completed(self: CudaDevice, job: Any, *others: Any) -> torch.Tensor:
        order.append(int(job._images["header"][0, 0]) << 16 | int(job._images["header"][0, 1]))
        return complete(self, job, *others)

    monkeypatch.setattr(CudaDevice, "complete", completed)
    for _ in range(4):
        for _ in loaded(folder, device="cuda", batch_size=2, num_workers=4, prefetch_factor=8, order="sequential"):
            pass
    sizes = [Image.open(path).size for path in sorted(folder.rglob("*.jpg"))[::2]]
    assert order == 4 * [width << 16 | height for width, height in sizes]


@pytest.mark.full
def test_without_room_for_one_batch_the_error_says_what_to_lower(gpu: SimulatedGpu, folder: Path):
    gpu.fails = lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(DeviceMemoryError, match=r"cuda:0 has no room.*batch_size.*Tried to allocate 2\.00 GiB"):
        next(iter(loaded(folder, device="cuda")))


@pytest.mark.full
def test_a_lost_device_is_an_error_that_holds_what_cuda_said(gpu: SimulatedGpu, folder: Path):
    iterator = iter(loaded(folder, device="cuda", prefetch_factor=1))
    next(iterator)
    gpu.fails = lambda: RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(DeviceError, match=r"cuda:0 did not take a batch.*unspecified launch failure.*LAUNCH_BLOCKING"):
        for _ in iterator:
            pass


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_batches_are_right_in_every_interleaving(gpu: SimulatedGpu, folder: Path, seed: int):
    """Two loaders share the GPU; streams advance, batches are held, read and dropped in any order."""
    learn(folder)
    truth = [images for images, _ in loaded(folder, device="cpu")]
    draw = np.random.default_rng(seed)
    loaders = [iter(enumerate(loaded(folder, device="cuda", prefetch_factor=1 + i))) for i in range(2)]
    held: list[tuple[int, torch.Tensor]] = []

    def advance() -> Iterator[None]:
        for stream in list(gpu.streams):
            stream.advance(int(draw.integers(stream.done, len(stream.operations) + 1)))
        yield

    while loaders:
        which = int(draw.integers(len(loaders)))
        try:
            number, (images, _) = next(loaders[which])
            held.append((number, images))
        except StopIteration:
            loaders.pop(which)
        if draw.random() < 0.5:
            list(advance())
        while held and draw.random() < 0.4:
            number, images = held.pop(int(draw.integers(len(held))))
            assert torch.equal(gpu.read(images), truth[number])
    for number, images in held:
        assert torch.equal(gpu.read(images), truth[number])


def test_rows_and_places():
    keep = np.array([0, 1, 1, 3, 4, 4, 6])  # row 2 and 5 are replaced by their neighbours
    assert first_places(keep, 7).tolist() == [0, 1, -1, 3, 4, -1, 6]
    made = np.array([1, 4, 0])
    assert runs_of_others(made, keep) == [
        Run(2, 1, 1, True),
        Run(3, 3, 1, False),
        Run(5, 4, 1, True),
        Run(6, 6, 1, False),
    ]
    assert runs_of_others(np.array([5]), np.array([2, 3, 4, 5, 6])) == [Run(0, 2, 3, False), Run(4, 6, 1, False)]
    assert runs_of_others(np.array([0, 1]), np.array([0, 1])) == []
