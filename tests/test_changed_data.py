"""Data that changes while it is read, and between runs: two versions are never mixed, what changed is read anew."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest
from PIL import Image

from gpuload.core.errors import SampleError
from gpuload.dataset import ShardDataset
from tests.engine.samples import fixed, jpeg, loader_of

IMAGES = [jpeg(i) for i in range(7)]


def write(path: Path, rows: range) -> None:
    with tarfile.open(path, "w") as tar:
        for i in rows:
            for name, data in ((f"k{i}.cls", b"%d" % i), (f"k{i}.jpg", IMAGES[i])):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "s-000.tar", tmp_path / "s-001.tar"]
    write(paths[0], range(3))
    write(paths[1], range(3, 7))
    return paths


@pytest.fixture(autouse=True)
def error_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("anew", [True, False])
def test_a_shard_that_is_replaced_in_mid_epoch_is_never_mixed_with_what_was_indexed(
    shards: list[Path], policy: str, anew: bool
):
    """Its new version has the same members at the same places: nothing else would tell."""
    dataset = ShardDataset(shards, transform=fixed(), fields=("image", "key"))
    loader = loader_of(dataset, batch_size=1, num_workers=0, on_error=policy)
    epoch, failed = iter(loader), []
    seen, shard = [next(epoch)[1][0]], shards[1]
    if anew:
        shard.unlink()
        write(shard, range(3, 7))
    else:
        with open(shard, "r+b") as file:
            file.write(shard.read_bytes())
    stat = shard.stat()
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))  # however coarse the file system's clock is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            try:
                seen.append(next(epoch)[1][0])
            except StopIteration:
                break
            except SampleError as error:
                failed.append(error)
    assert seen == ["k0", "k1", "k2"] and sum(loader.stats().errors.values()) == 4
    assert [(error.shard, error.key) for error in failed] == (
        [(str(shard), f"k{i}") for i in range(3, 7)] if policy == "raise" else []
    )
    for error in failed:
        assert "replaced since it was indexed" in str(error) and "Make the data set anew" in str(error)
    with pytest.raises(SampleError, match="replaced since it was indexed"):
        dataset[4]
    assert len(ShardDataset(shards)) == 7 and ShardDataset(shards)[4][1] == 4


def test_a_shard_that_another_is_renamed_over_is_read_to_the_end_as_it_was_while_it_is_open(shards: list[Path]):
    dataset = ShardDataset(shards, transform=fixed(), fields=("image", "key"))
    expected = [image for image, _ in loader_of(dataset, batch_size=7)][0]
    epoch = iter(loader_of(dataset, batch_size=1, num_workers=0, sampler=[3, 4, 0, 6]))
    seen = [next(epoch)]
    write(shards[1].with_suffix(".new"), range(4))  # other images at about the same places
    os.replace(shards[1].with_suffix(".new"), shards[1])
    seen += list(epoch)
    assert [key for _, (key,) in seen] == ["k3", "k4", "k0", "k6"]
    for (image,), row in zip((image for image, _ in seen), (3, 4, 0, 6), strict=True):
        assert image.equal(expected[row])
    with pytest.raises(SampleError, match="replaced since it was indexed"):
        dataset[3]  # read by whoever opens it now


@pytest.fixture
def remote_images(monkeypatch: pytest.MonkeyPatch):
    """(images in class folders of fsspec's memory by URL, the list of those that were read)."""
    memory = fsspec.filesystem("memory")
    images = {f"memory://loose/{'ab'[i % 2]}/{i}.jpg": IMAGES[i] for i in range(6)}
    for url, data in images.items():
        memory.pipe(url, data)
    read: list[str] = []
    cat_file = type(memory).cat_file

    def counted(self: Any, path: str, *arguments: Any, **options: Any) -> bytes:
        read.append(path)
        return cat_file(self, path, *arguments, **options)

    monkeypatch.setattr(type(memory), "cat_file", counted)
    yield images, read
    memory.rm("loose", recursive=True)


def loaded(dataset: ShardDataset) -> dict[str, Any]:
    """Key -> pixels, of an epoch in random order; under "" the share of the samples that came from the cache."""
    loader = loader_of(dataset, batch_size=1, num_workers=2, shuffle=True)
    found = {key: image.numpy().tobytes() for (image,), (key,) in loader}
    return {**found, "": loader.stats().cache_hit_rate}


def pixels(data: bytes) -> bytes:
    return fixed()(Image.open(io.BytesIO(data)).convert("RGB")).numpy().tobytes()


def test_loose_remote_images_are_cached_and_those_that_change_are_read_anew(remote_images: Any, tmp_path: Path):
    images, read = remote_images
    how = {"transform": fixed(), "fields": ("image", "key"), "cache": f"1GB:{tmp_path}/kept"}
    keys = {url.removeprefix("memory://loose/").removesuffix(".jpg"): data for url, data in images.items()}
    expected = {key: pixels(data) for key, data in keys.items()}
    dataset = ShardDataset("memory://loose", **how)
    assert loaded(dataset) == {**expected, "": 0.0} and len(read) == 6
    assert loaded(pickle.loads(pickle.dumps(dataset))) == {**expected, "": 1.0}
    assert [dataset[i][1] for i in range(6)] == sorted(keys) and len(read) == 6
    fsspec.filesystem("memory").pipe("memory://loose/a/2.jpg", IMAGES[6])
    expected["a/2"] = pixels(IMAGES[6])
    assert loaded(ShardDataset("memory://loose", **how)) == {**expected, "": 5 / 6} and len(read) == 7
    for same in ("memory://loose/", ["memory://loose/a", "memory://loose/b"]):  # what it is called does not matter
        assert loaded(ShardDataset(same, **how))[""] == 1.0


def test_a_list_of_remote_images_is_asked_for_its_versions_once(remote_images: Any, monkeypatch: pytest.MonkeyPatch):
    images, read = remote_images
    dataset = ShardDataset(list(images), label=range(6), fields=("image", "key"), transform=fixed(), cache="memory:9MB")
    first, memory = loaded(dataset), type(fsspec.filesystem("memory"))
    asked: list[str] = []
    info = memory.info
    monkeypatch.setattr(memory, "info", lambda self, path: (asked.append(path), info(self, path))[1])
    assert first[""] == 0.0 and len(read) == 6
    assert loaded(dataset) == {**first, "": 1.0} and len(read) == 6 and not asked
    assert loaded(pickle.loads(pickle.dumps(dataset))) == {**first, "": 1.0} and len(read) == len(asked) == 6
