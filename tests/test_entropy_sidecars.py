"""Seek points in use, made ahead or learned in an epoch: batches are the same, and ready earlier."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from gpuload.kernels.seek_points import content_key_reference
from torchvision import transforms

import gpuload
from gpuload.cli.index import index
from gpuload.cli.pack import pack
from gpuload.core.batch import join_encoded
from gpuload.core.geometry import Resampling
from gpuload.decode.entropy_file import open_sidecars
from gpuload.decode.entropy_index import EntropyIndex
from gpuload.decode.native import NativeDecoder
from gpuload.decode.pillow import PillowDecoder
from gpuload.shards.index import ENTROPY_SUFFIX
from tests.augment.pictures import encoded, every_kind, picture

TRANSFORM = transforms.Compose(
    [transforms.RandomResizedCrop(48), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and room for what is learned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", str(4 << 20))
    return tmp_path / "cache"


def files() -> list[bytes]:
    """Large ones of all samplings, one that is too small for seek points, one that has none, one that is damaged."""
    large = []
    for number, sampling in enumerate((0, 1, 2, 0, 1, 2)):
        out = io.BytesIO()
        restarts = {"restart_marker_blocks": 5} if number > 3 else {}
        picture(230 + 17 * number, 190 + 9 * number).save(
            out, "JPEG", quality=90 + number, subsampling=sampling, **restarts
        )
        large.append(out.getvalue())
    damaged = bytearray(large[0])
    damaged[len(damaged) // 2 : len(damaged) // 2 + 2] = b"\xff\xd0"
    return [*large, encoded(picture(20, 20)), every_kind()["422 progressive"], bytes(damaged)]


FILES = files()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number, data in enumerate(FILES):
        (tmp_path / "images" / "a" / f"{number}.jpg").write_bytes(data)
    return tmp_path / "images"


@pytest.fixture
def shards(folder: Path, tmp_path: Path, cache: Path) -> Path:
    pack(folder, tmp_path / "packed", shard_size=120_000, entropy=False)
    return tmp_path / "packed"


def batches(data: Path, epochs: int = 1, **options: object) -> list[torch.Tensor]:
    dataset = gpuload.ShardDataset(str(data), transform=TRANSFORM)
    loader = gpuload.DataLoader(dataset, batch_size=4, seed=5, device="cpu", accelerate="require", **options)  # type: ignore[arg-type]
    return [images for _ in range(epochs) for images, _ in loader]


def sidecars(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(ENTROPY_SUFFIX))


def test_batches_are_the_same_with_every_index_and_number_of_threads(shards: Path):
    plain = batches(shards, 2, entropy_index="off", num_workers=0)
    assert len(plain) == 6
    for threads in (0, 1, 4):
        for how in ("off", "learn", "read"):  # "read" finds what "learn" left
            got = batches(shards, 2, entropy_index=how, num_workers=threads)
            assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
    index(str(shards), entropy=True)
    assert len(sidecars(shards)) == len(list(shards.glob("*.tar")))
    for threads in (1, 4):
        got = batches(shards, 2, entropy_index="read", num_workers=threads)
        assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))


def test_images_from_seek_points_are_counted(folder: Path, cache: Path):
    loader = gpuload.DataLoader(gpuload.ShardDataset(str(folder), transform=TRANSFORM), batch_size=4, device="cpu")
    counted = []
    for _ in range(2):
        list(loader)
        counted.append(dict(loader.stats().decoders))
    assert counted[0] == {"native": 7, "pillow": 2}
    assert counted[1] == {"native": 1, "native, from seek points": 6, "pillow": 2}


def test_an_epoch_leaves_the_seek_points_of_what_it_decoded(folder: Path, cache: Path):
    batches(folder, entropy_index="read")
    assert not (cache / "gpuload" / "entropy").exists()
    batches(folder, entropy_index="learn")
    learned = EntropyIndex(learn=False)
    keys = {int(key) for key in learned.tables.learned[:, 0] if key}
    assert keys == {content_key_reference(data) for data in FILES[:6]}
    before = learned.tables.learned.copy()
    batches(folder, 2, entropy_index="learn")
    assert np.array_equal(before, learned.tables.learned)


def seek_counting_decoder(index: EntropyIndex | None) -> NativeDecoder:
    return NativeDecoder(Resampling(), PillowDecoder(Resampling()), None, index)


def test_seek_points_are_really_used(cache: Path):
    """Bytes that only a decoder without seek points would look at are changed, under the key of the sound file."""
    data = FILES[3]
    index = EntropyIndex(learn=True)
    ((key, record),) = seek_counting_decoder(None).seek_points(join_encoded([data]))
    assert key == content_key_reference(data) and len(record) <= len(data) // 50
    wrong = bytearray(data)
    first_row = data.index(b"\xff\xda") + 14 + 30
    wrong[first_row : first_row + 200] = bytes(200)
    index.add(np.array([content_key_reference(bytes(wrong))], np.uint64), *_bound_to(wrong, record))
    box = (100, 150, 60, 40)
    sound = _crop(seek_counting_decoder(None), data, box)
    assert np.array_equal(_crop(seek_counting_decoder(index), bytes(wrong), box), sound)
    assert not np.array_equal(_crop(seek_counting_decoder(None), bytes(wrong), box), sound)


def _bound_to(data: bytearray, record: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The record with the checksum that belongs to another file."""
    key = content_key_reference(bytes(data))
    bound = (content_key_reference(record[4:], key) & 0xFFFFFFFF).to_bytes(4, "little") + record[4:]
    return np.frombuffer(bound, np.uint8), np.zeros(1, np.int64), np.array([len(bound)])


def _crop(
    decoder: NativeDecoder, data: bytes, box: tuple[int, int, int, int], size: tuple[int, int] | None = None
) -> np.ndarray:
    from gpuload.core.geometry import identity

    def resolve(rows: object, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        geometry = identity(widths, heights)
        geometry["crop"] = box
        geometry["resize"] = geometry["window"][:, 2:] = size or box[2:]
        return geometry

    (image,) = decoder.decode(join_encoded([data]), range(1), resolve).images
    assert image is not None
    return image


def test_index_makes_what_is_missing_or_older_than_its_shard(shards: Path):
    done = index(str(shards))
    assert (done.scans, done.seekable) == (len(FILES), 6)
    made = {path: path.stat().st_mtime_ns for path in sidecars(shards)}
    table = open_sidecars([str(path) for path in made])
    assert {int(key) for key in table[:, 0] if key} == {content_key_reference(data) for data in FILES[:6]}
    assert index(str(shards)).scans == 0
    one = next(iter(made))
    os.utime(one, ns=(1, 1))
    assert 0 < index(str(shards)).scans < len(FILES)
    assert one.stat().st_mtime_ns > 1
    assert index(str(shards), rebuild=True).scans == len(FILES)
    assert index(str(shards), entropy=False, rebuild=True).scans == 0


def test_pack_leaves_sidecars_of_two_percent_at_most(folder: Path, tmp_path: Path, cache: Path):
    pack(folder, tmp_path / "packed")
    (sidecar,) = sidecars(tmp_path / "packed")
    assert 0 < sidecar.stat().st_size <= 0.02 * sum(map(len, FILES)) + 64 + 24 * len(FILES)
    assert gpuload.ShardDataset(str(tmp_path / "packed")).sidecars() == [str(sidecar)]


def test_where_a_shard_lies_read_only_its_seek_points_go_to_the_cache_directory(shards: Path):
    mode = shards.stat().st_mode
    shards.chmod(mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        assert index(str(shards), entropy=True).seekable == 6
    finally:
        shards.chmod(mode)
    assert not sidecars(shards)
    learned = EntropyIndex(learn=False).tables.learned
    assert {int(key) for key in learned[:, 0] if key} == {content_key_reference(data) for data in FILES[:6]}


def test_damaged_sidecars_cost_nothing_but_time(shards: Path, caplog: pytest.LogCaptureFixture):
    plain = batches(shards, entropy_index="off")
    index(str(shards))
    generator = np.random.default_rng(4)
    for number, path in enumerate(sidecars(shards)):
        data = bytearray(path.read_bytes())
        if number == 0:
            data = data[: len(data) // 2]
        for at in generator.integers(0, len(data), 40):
            data[at] ^= 1 << int(generator.integers(8))
        path.unlink()
        path.write_bytes(data)
    got = batches(shards, entropy_index="read")
    assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))


@pytest.mark.parametrize("fidelity", ["exact", "fast"])
def test_what_is_damaged_behind_a_crop_is_the_same_with_every_index(cache: Path, fidelity: str):
    """A walk that learns goes further than one that does not, and must not find more than that one."""
    data = bytearray(FILES[0])
    data[-200:-150] = bytes(range(1, 51))
    resampling, images = Resampling(), []
    for points in (None, EntropyIndex(learn=True), EntropyIndex(learn=False)):
        decoder = NativeDecoder(resampling, PillowDecoder(resampling), None, points, fidelity=fidelity)
        images.append(_crop(decoder, bytes(data), (20, 0, 150, 100), (30, 20)))
    assert np.array_equal(images[0], images[1]) and np.array_equal(images[0], images[2])
    assert not seek_counting_decoder(None).seek_points(join_encoded([bytes(data)]))


@pytest.mark.parametrize("damage", [b"", b"short", b"no such file" * 99])
def test_index_makes_a_damaged_sidecar_again(shards: Path, damage: bytes):
    index(str(shards))
    first = sidecars(shards)[0]
    sound = first.read_bytes()
    first.unlink()
    first.write_bytes(damage)
    assert 0 < index(str(shards)).scans < len(FILES)
    assert first.read_bytes() == sound


def test_index_counts_what_is_kept_and_nothing_else(shards: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", "0")
    mode = shards.stat().st_mode
    shards.chmod(mode & ~0o222)
    try:
        done = index(str(shards), entropy=True)
    finally:
        shards.chmod(mode)
    assert (done.scans, done.seekable) == (len(FILES), 0)
