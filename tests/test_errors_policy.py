"""Bad samples under each policy: neighbours to the bit as in a clean run, every bad one reported, nothing lost.

The folder is generated: 100 images, three of them bad and five odd but good. Bad ones are made in five ways; odd ones
must decode as torchvision decodes them.
"""

from __future__ import annotations

import errno
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision.datasets import ImageFolder

import gpuload
from tests.engine.samples import (
    DECODERS,
    Numbered,
    checksum,
    checksums,
    encoded,
    fixed,
    folder_loader,
    jpeg,
    loader_of,
    random_crop,
    write_folder,
)

COUNT, BATCH = 100, 8
ODD = {"png": 3, "cmyk": 30, "grey": 31, "progressive": 50, "exif": 77}
BAD = {"cut": 11, "text": 42, "empty": 43, "missing": 64, "unreadable": 96}
WAYS = [("cut", "text", "missing"), ("empty", "unreadable", "text"), ("text", "empty", "cut")]
THREADS = [0, 2]

pytestmark = pytest.mark.filterwarnings("ignore:bad samples are")


def odd_image(kind: str) -> bytes:
    image = Image.fromarray(np.random.default_rng(5).integers(0, 256, (41, 57, 3), dtype=np.uint8))
    if kind == "png":
        return encoded(image, "PNG")
    if kind == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by a quarter; torchvision leaves it
        return encoded(image, exif=exif)
    if kind == "progressive":
        return encoded(image, progressive=True)
    return encoded(image.convert({"cmyk": "CMYK", "grey": "L"}[kind]))


def spoil(path: Path, kind: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if kind == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "text":
        path.write_text("404 not found")
    elif kind == "empty":
        path.touch()
    elif kind == "unreadable":  # for root as for anyone: permissions would not stop it
        path.mkdir()


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    paths = write_folder(tmp_path / "data", COUNT)
    for kind, number in ODD.items():
        paths[number].write_bytes(odd_image(kind))
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def error_files_are_removed() -> Iterator[list[gpuload.DataLoader]]:
    """The list takes loaders whose lists of bad samples go when the test ends."""
    loaders: list[gpuload.DataLoader] = []
    yield loaders
    for loader in loaders:
        if loader.bad_samples.path:
            Path(loader.bad_samples.path).unlink()


def listed(loader: gpuload.DataLoader) -> list[dict[str, Any]]:
    path = loader.stats().error_file
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if path else []


def rows(batches: Any) -> list[tuple[str, int]]:
    return [
        (checksum(image), int(label)) for images, labels in batches for image, label in zip(images, labels, strict=True)
    ]


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("decoder", DECODERS)
def test_odd_but_good_images_decode_as_torchvision_decodes_them(clean: Path, kind: str, decoder: str):
    data = ImageFolder(str(clean), fixed())
    expected = next(iter(TorchDataLoader(data, sampler=[ODD[kind]])))[0]
    images = next(iter(loader_of(data, sampler=[ODD[kind]], decoder=decoder)))[0]
    if decoder == "pillow" or kind in ("png", "cmyk"):  # those that DALI is not given
        assert torch.equal(images, expected)
    else:
        assert (images - expected).abs().mean() < 0.01  # a picture turned or in other colours is off by 0.2 and more


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("policy", ["skip", "replace", "raise"])
def test_neighbours_are_as_in_a_clean_run_and_every_bad_sample_is_reported(
    clean: Path,
    ways: tuple[str, ...],
    policy: str,
    decoder: str,
    threads: int,
    error_files_are_removed: list[gpuload.DataLoader],
):
    data = ImageFolder(str(clean), random_crop())  # lists the files while they are all there
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": threads, "decoder": decoder, "seed": 3}
    whole = rows(loader_of(data, **options))
    bad = sorted(BAD[way] for way in ways)
    for way in ways:
        spoil(Path(data.samples[BAD[way]][0]), way)

    loader = loader_of(data, on_error=policy, **options)
    error_files_are_removed.append(loader)
    batches, raised = [], []
    iterator = iter(loader)
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        except gpuload.SampleError as error:
            raised.append(error)

    if policy == "raise":
        expected = [whole[i] for i in range(COUNT) if i // BATCH not in {b // BATCH for b in bad}]
        firsts = [min(b for b in bad if b // BATCH == batch) for batch in sorted({b // BATCH for b in bad})]
        assert [error.sample for error in raised] == firsts
    elif policy == "skip":
        expected = [whole[i] for i in range(COUNT) if i not in bad]
    else:
        expected = [whole[_neighbour(i, bad)] for i in range(COUNT)]
    assert rows(batches) == expected
    assert not raised or policy == "raise"

    stats = loader.stats()
    assert sorted(line["sample"] for line in listed(loader)) == bad
    assert sum(stats.errors.values()) == len(bad)
    for line in listed(loader):
        assert line["shard"] == data.samples[line["sample"]][0] and line["batch"] == line["sample"] // BATCH
        assert line["policy"] == policy and line["problem"] and stats.errors[line["kind"]] >= 1
    assert stats.images == len(expected) and stats.batches == len(batches)


def _neighbour(i: int, bad: list[int]) -> int:
    """The nearest good sample before `i` in its batch, else the first good one after it."""
    batch = range(i // BATCH * BATCH, min(i // BATCH * BATCH + BATCH, COUNT))
    good = [k for k in batch if k not in bad]
    return max((k for k in good if k <= i), default=good[0])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("transform", ["fused", "per sample"])
def test_a_batch_without_a_good_sample(threads: int, transform: str, error_files_are_removed: list[gpuload.DataLoader]):
    chain = fixed()
    if transform == "per sample":
        chain.transforms.append(lambda image: image + 1)
    files = [jpeg(i) if i // 4 != 1 else b"no image" for i in range(12)]
    good, bad = [[0, 1, 2, 3], [8, 9, 10, 11]], [4, 5, 6, 7]
    for policy in ("skip", "replace", "raise"):
        loader = loader_of(Numbered(files, chain), batch_size=4, num_workers=threads, on_error=policy)
        error_files_are_removed.append(loader)
        iterator = iter(loader)
        seen = [next(iterator)[1].tolist()]
        if policy != "skip":  # replace has no neighbour to take
            with pytest.raises(gpuload.SampleError, match="sample 4 in Numbered"):
                next(iterator)
        seen += [numbers.tolist() for _, numbers in iterator]
        assert seen == good
        assert sorted(line["sample"] for line in listed(loader)) == bad


@pytest.mark.parametrize("threads", THREADS)
def test_all_samples_bad(threads: int, error_files_are_removed: list[gpuload.DataLoader]):
    loader = loader_of(Numbered([b"x"] * 9, fixed()), batch_size=4, num_workers=threads, on_error="skip")
    error_files_are_removed.append(loader)
    for _ in range(2):
        iterator = iter(loader)
        with pytest.raises(gpuload.GpuloadError, match="delivered nothing.*UnidentifiedImageError"):
            list(iterator)
    assert sum(loader.stats().errors.values()) == 18 and len(listed(loader)) == 9
    assert {line["problem"] for line in listed(loader)} == {"UnidentifiedImageError: cannot identify image file"}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_the_first_bad_sample_is_told_once_a_loader(
    threads: int, policy: str, error_files_are_removed: list[gpuload.DataLoader]
):
    files = [b"no image" if i % 3 == 0 else jpeg(i) for i in range(9)]
    loader = loader_of(Numbered(files, fixed()), batch_size=3, num_workers=threads, on_error=policy)
    error_files_are_removed.append(loader)
    with pytest.warns(UserWarning, match="bad samples are") as told:
        assert len(list(loader)) == len(list(loader)) == 3
    (message,) = (str(w.message) for w in told if "bad samples are" in str(w.message))
    assert "in Numbered: UnidentifiedImageError: cannot identify image file" in message
    assert str(loader.stats().error_file) in message
    assert sum(loader.stats().errors.values()) == 6


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("policy", ["skip", "replace", "raise"])
@pytest.mark.parametrize("step", ["read", "operation"])
@pytest.mark.parametrize(
    "cause", [MemoryError("no room"), OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENFILE, "Full")]
)
def test_what_is_no_samples_fault_is_raised_whatever_the_policy(
    cause: Exception, step: str, policy: str, threads: int, error_files_are_removed: list[gpuload.DataLoader]
):
    class Exhausts:
        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            if step == "operation" and torch.equal(image, fourth):
                raise RuntimeError("in a library") from cause
            return image

    def read(i: int) -> None:
        if step == "read" and i == 4:
            raise cause

    files = [b"no image" if i == 3 else jpeg(i) for i in range(9)]
    fourth = fixed()(Image.open(io.BytesIO(files[4])).convert("RGB"))
    chain = fixed()
    chain.transforms.append(Exhausts())
    loader = loader_of(Numbered(files, chain, read), batch_size=3, num_workers=threads, on_error=policy)
    error_files_are_removed.append(loader)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == [0, 1, 2]
    with pytest.raises(gpuload.SampleError) as caught:
        next(iterator)
    error = caught.value
    assert error.sample == 4 and "on_error does not apply" in str(error)
    if step == "read":
        assert isinstance(error, type(cause))
    assert next(iterator)[1].tolist() == [6, 7, 8]
    assert {line["sample"]: line["policy"] for line in listed(loader)} == {3: "raise", 4: "raise"}


@pytest.mark.parametrize("threads", THREADS)
def test_replace_takes_pixels_and_label_of_the_same_neighbour(
    threads: int, error_files_are_removed: list[gpuload.DataLoader]
):
    files = [b"no image" if i in (0, 1, 6, 11) else jpeg(i) for i in range(12)]
    loader = loader_of(Numbered(files, fixed()), batch_size=6, num_workers=threads, on_error="replace")
    error_files_are_removed.append(loader)
    (first, numbers), (second, later) = loader
    assert numbers.tolist() == [2, 2, 2, 3, 4, 5] and later.tolist() == [7, 7, 8, 9, 10, 10]
    expected = next(iter(loader_of(Numbered(files, fixed()), sampler=numbers.tolist(), batch_size=6)))[0]
    assert torch.equal(first, expected)
    assert torch.equal(second[5], second[4]) and torch.equal(second[0], second[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_skip_keeps_rows_of_every_type_and_layout(
    dtype: torch.dtype, layout: Any, error_files_are_removed: list[gpuload.DataLoader]
):
    files = [b"no image" if i in (0, 3, 4) else jpeg(i) for i in range(9)]
    options: dict[str, Any] = {"dtype": dtype, "memory_format": layout, "num_workers": 2}
    loader = loader_of(Numbered(files, fixed()), batch_size=9, on_error="skip", **options)
    error_files_are_removed.append(loader)
    ((images, numbers),) = loader
    assert numbers.tolist() == [1, 2, 5, 6, 7, 8] and images.dtype is dtype
    assert images.is_contiguous(memory_format=layout)
    (whole,) = loader_of(Numbered(files, fixed()), sampler=numbers.tolist(), batch_size=6, **options)
    assert torch.equal(images, whole[0])


def test_samples_delivered_one_by_one(error_files_are_removed: list[gpuload.DataLoader]):
    files = [b"no image" if i == 2 else jpeg(i) for i in range(5)]
    for policy, expected in (("skip", [0, 1, 3, 4]), ("raise", [0, 1])):
        loader = loader_of(Numbered(files, fixed()), batch_size=None, num_workers=2, on_error=policy)
        error_files_are_removed.append(loader)
        seen = []
        try:
            seen += [number for _, number in loader] if policy == "skip" else []
            for _, number in loader if policy == "raise" else ():
                seen.append(number)
        except gpuload.SampleError as error:
            assert error.sample == 2
        assert seen == expected


def test_errors_of_the_users_own_operations_follow_the_policy(error_files_are_removed: list[gpuload.DataLoader]):
    class Refuses:
        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            if image.mean() > 0.5:
                raise ArithmeticError("too bright")
            return image

    chain = fixed()
    plain = {i: image.mean().item() for i, (image, _) in enumerate(Numbered([jpeg(i) for i in range(20)], chain))}  # type: ignore
    chain.transforms.append(Refuses())
    loader = loader_of(Numbered([jpeg(i) for i in range(20)], chain), batch_size=6, num_workers=2, on_error="skip")
    error_files_are_removed.append(loader)
    seen = [number for _, numbers in loader for number in numbers.tolist()]
    assert seen == [i for i in range(20) if plain[i] <= 0.5] and 0 < len(seen) < 20
    assert loader.stats().errors == {"ArithmeticError": 20 - len(seen)}


def test_a_repaired_sample_is_back_in_the_next_epoch(clean: Path, error_files_are_removed: list[gpuload.DataLoader]):
    loader = folder_loader(clean, fixed(), batch_size=BATCH, num_workers=2, on_error="skip")
    error_files_are_removed.append(loader)
    whole = checksums(loader)
    path = Path(loader.dataset.samples[20][0])
    data = path.read_bytes()
    spoil(path, "text")
    assert len(rows(loader)) == COUNT - 1
    path.write_bytes(data)
    assert checksums(loader) == whole


def test_where_the_list_cannot_be_written_the_run_goes_on_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/nowhere")
    files = [b"no image" if i % 3 == 0 else jpeg(i) for i in range(9)]
    loader = loader_of(Numbered(files, fixed()), batch_size=3, num_workers=0, on_error="skip")
    with pytest.warns(UserWarning, match="counted but no longer listed") as told:
        assert [numbers.tolist() for _, numbers in loader] == [[1, 2], [4, 5], [7, 8]]
    assert len([w for w in told if "no longer listed" in str(w.message)]) == 1
    assert sum(loader.stats().errors.values()) == 3 and loader.stats().error_file is None


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("unwritable", [True, False])
def test_a_warning_that_is_an_error_costs_no_batch_and_counts_nothing_twice(
    threads: int,
    in_order: bool,
    unwritable: bool,
    monkeypatch: pytest.MonkeyPatch,
    error_files_are_removed: list[gpuload.DataLoader],
):
    if unwritable:
        monkeypatch.setattr("tempfile.tempdir", "/dev/null/nowhere")
    files = [b"no image" if i in (3, 4, 5, 7, 11) else jpeg(i) for i in range(12)]  # of one batch nothing is left
    loader = loader_of(Numbered(files, fixed()), batch_size=3, num_workers=threads, on_error="skip", in_order=in_order)
    error_files_are_removed.append(loader)
    numbers: list[list[int]] = []
    told: list[str] = []
    states: list[Any] = []
    iterator = iter(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while True:
            try:
                numbers.append(next(iterator)[1].tolist())
            except StopIteration:
                break
            except UserWarning as warning:
                told.append(str(warning))
                states.append((len(numbers), loader.state_dict() if in_order else None))
    assert sorted(numbers) == [[0, 1, 2], [6, 8], [9, 10]] and (numbers == sorted(numbers) or not in_order)
    assert ["no longer listed" in message for message in told] == ([True, False] if unwritable else [False])
    assert sum(loader.stats().errors.values()) == 5
    for delivered, state in states if in_order else ():  # what was not delivered is left over
        again = loader_of(Numbered(files, fixed()), batch_size=3, num_workers=threads, on_error="skip")
        error_files_are_removed.append(again)
        again.load_state_dict(state)
        assert [found.tolist() for _, found in again] == numbers[delivered:]


@pytest.mark.parametrize("threads", THREADS)
def test_an_empty_data_set_gives_no_batch(threads: int):
    loader = loader_of(Numbered([], fixed()), batch_size=4, num_workers=threads)
    assert list(loader) == [] and len(loader) == 0 and list(loader) == []
