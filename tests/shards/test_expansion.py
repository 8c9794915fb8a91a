"""Expansions: once, whole or not at all, bounded, never stale, one writer among processes."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import io
import lzma
import multiprocessing
import os
import shutil
import tarfile
import zlib

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.core.errors import ShardError
from gpuload.shards import expansion
from gpuload.shards.expansion import Shard, compression, expand_stream
from gpuload.shards.urls import reading, stamp
from gpuload.testing import Expected, check_dataset
from tests.shards.containers import IMAGES

EXPECTED = [Expected(hashlib.sha256(image).hexdigest(), i, f"k{i}") for i, image in enumerate(IMAGES)]
COMPRESS = {"gzip": gzip.compress, "zlib": zlib.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuload"


def tar(images=IMAGES) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i, image in enumerate(images):
            for name, data in ((f"k{i}.cls", str(i).encode()), (f"k{i}.jpg", image)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def expanded(cache) -> list[str]:
    return sorted(str(path) for path in (cache / "expanded").glob("*-*")) if (cache / "expanded").exists() else []


def content(path) -> bytes:
    url = str(path)
    with reading(url, {}) as read_at:
        shard, problem = expand_stream(Shard.at(url, stamp(url, {}), {}), compression(read_at(0, 8)), read_at)
    assert not problem
    with open(shard.file, "rb") as file:
        return file.read()


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("length", [1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_streams_come_out_whole(tmp_path, kind, length):
    for number, data in enumerate([np.random.default_rng(length).bytes(length), b"\x5a" * length]):
        (tmp_path / f"{number}").write_bytes(COMPRESS[kind](data))
        assert content(tmp_path / f"{number}") == data


def test_streams_joined_end_to_end_are_one(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"one") + gzip.compress(b"two") + bytes(512))
    assert content(tmp_path / "a") == b"onetwo"


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 1000, (1 << 20) + 1, 5 << 20])
def test_zstd_streams_come_out_whole(tmp_path, length):
    zstandard = pytest.importorskip("zstandard")
    for number, data in enumerate([np.random.default_rng(length).bytes(length), b"\x5a" * length]):
        (tmp_path / f"{number}").write_bytes(zstandard.compress(data) + zstandard.compress(b"end"))
        assert content(tmp_path / f"{number}") == data + b"end"
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress(tar()))
    check_dataset(ShardDataset(tmp_path / "a.tar.zst"), EXPECTED)
    (tmp_path / "b.tar.zst").write_bytes(zstandard.compress(bytes(1 << 30)))
    with pytest.raises(ShardError, match="a bomb"):
        ShardDataset(tmp_path / "b.tar.zst")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar"])
def test_a_compressed_tar_is_the_tar(tmp_path, cache, name):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(gzip.compress(tar()))
    dataset = ShardDataset(tmp_path / "data")
    check_dataset(dataset, EXPECTED)
    [note] = dataset.findings
    assert note.note and "compressed (gzip): expanded once" in note.problem
    assert dataset.name(0) == (str(tmp_path / "data" / name), "k0") and len(expanded(cache)) == 1


def test_it_is_expanded_once_and_again_when_it_is_gone(tmp_path, cache, monkeypatch):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar()))
    ShardDataset(tmp_path / "a.tar.gz")
    [path] = expanded(cache)
    before = os.stat(path)
    with monkeypatch.context() as patched:
        patched.setattr(expansion, "_decompressed", None)
        check_dataset(ShardDataset(tmp_path / "a.tar.gz"), EXPECTED)
        os.unlink(tmp_path / "a.tar.gz.gpuload")  # without its index the expansion still serves
        check_dataset(ShardDataset(tmp_path / "a.tar.gz"), EXPECTED)
    assert os.stat(path).st_ino == before.st_ino
    shutil.rmtree(cache / "expanded")  # as anyone may
    check_dataset(ShardDataset(tmp_path / "a.tar.gz"), EXPECTED)
    assert expanded(cache) == [path]


def test_a_manifest_whose_expansions_are_gone_is_made_again(tmp_path, cache):
    for number, images in enumerate([IMAGES[:2], IMAGES[2:]]):
        (tmp_path / f"{number}.tar.gz").write_bytes(gzip.compress(tar(images)))
    numbers = [0, 1, 0, 1, 2, 3]
    wanted = [Expected(one.sha256, i, f"k{i}") for one, i in zip(EXPECTED, numbers, strict=True)]
    for _ in range(2):
        check_dataset(ShardDataset(f"{tmp_path}/*.gz"), wanted)
    assert list(tmp_path.glob("*.manifest.gpuload"))
    os.unlink(expanded(cache)[0])
    check_dataset(ShardDataset(f"{tmp_path}/*.gz"), wanted)
    assert len(expanded(cache)) == 2


def test_another_version_replaces_the_expansion(tmp_path, cache):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar()))
    ShardDataset(tmp_path / "a.tar.gz")
    [old] = expanded(cache)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(IMAGES[:2])))
    os.utime(tmp_path / "a.tar.gz", ns=(5, 5))
    check_dataset(ShardDataset(tmp_path / "a.tar.gz"), EXPECTED[:2])
    [new] = expanded(cache)
    assert new != old


@pytest.mark.parametrize("kind", ["gzip", "zlib"])  # the others come in blocks larger than this
def test_what_comes_before_a_cut_or_damage_is_used(tmp_path, kind):
    packed = COMPRESS[kind](tar())
    (tmp_path / "a.tar").write_bytes(packed[: len(packed) * 2 // 3])
    for _ in range(2):  # made, and found
        with pytest.raises(ShardError, match=f"its {kind} stream is damaged or cut off"):
            ShardDataset(tmp_path / "a.tar")
    for _ in range(2):
        dataset = ShardDataset(tmp_path / "a.tar", on_error="skip")
        assert 2 <= len(dataset) < 6
        check_dataset(dataset, EXPECTED[: len(dataset)])
        assert dataset.findings[0].problem == f"its {kind} stream is damaged or cut off: what comes after that is lost"
        if (tmp_path / "a.tar.gpuload").exists():
            os.unlink(tmp_path / "a.tar.gpuload")


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_bomb_leaves_nothing(tmp_path, cache, monkeypatch, kind):
    monkeypatch.setattr(expansion, "FLOOR_BYTES", 1 << 20)
    (tmp_path / "a.tar").write_bytes(COMPRESS[kind](bytes(40 << 20)))
    with pytest.raises(ShardError, match="it has more than .* bytes, 200 times its own size: a bomb"):
        ShardDataset(tmp_path / "a.tar")
    assert not expanded(cache)


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_is_named_and_nothing_stays(tmp_path, cache, monkeypatch, step):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar()))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(io.FileIO):
        write = full if step == "write" else io.FileIO.write

    monkeypatch.setattr(
        expansion, "open", lambda path, mode: Full(path, mode) if "w" in mode else open(path, mode), raising=False
    )
    if step == "fsync":
        monkeypatch.setattr(expansion.os, "fsync", full)
    with pytest.raises(ShardError, match=f"there is no room in {cache}/expanded: No space left.*XDG_CACHE_HOME"):
        ShardDataset(tmp_path / "a.tar.gz")
    assert not expanded(cache)


def test_what_a_killed_process_left_is_begun_anew(tmp_path, cache):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar()))
    ShardDataset(tmp_path / "a.tar.gz")
    [path] = expanded(cache)
    os.rename(path, path + ".partial")
    with open(path + ".partial", "r+b") as file:
        file.truncate(1000)
    check_dataset(ShardDataset(tmp_path / "a.tar.gz"), EXPECTED)
    assert expanded(cache) == [path]


def test_nothing_written_is_no_file_and_empty_values_are_one(tmp_path, cache):
    (tmp_path / "a").write_bytes(b"x")
    shard = Shard.at(str(tmp_path / "a"), stamp(str(tmp_path / "a"), {}), {})
    with expansion.expansion(shard, "test") as made:
        pass
    assert not made.used and not expanded(cache)
    with expansion.expansion(shard, "test") as made:
        assert [made.write(data) for data in (b"", b"", b"abc", b"", b"de")] == [0, 0, 0, 3, 3]
    assert open(made.path, "rb").read() == b"abcde"
    with expansion.expansion(shard, "test") as again:
        assert again.write(b"other") == 0  # counted only
    assert open(made.path, "rb").read() == b"abcde"


def test_a_cache_directory_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar()))
    with pytest.raises(ShardError, match="nothing can be written in .*file/gpuload/expanded"):
        ShardDataset(tmp_path / "a.tar.gz")


def _open(path: str, barrier, told) -> None:
    barrier.wait()
    dataset = ShardDataset(path)
    told.put([hashlib.sha256(dataset.get_encoded(i)[0].data).hexdigest() for i in range(len(dataset))])


def test_processes_that_open_it_at_once_all_get_it(tmp_path, cache):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar()))
    context = multiprocessing.get_context("fork")
    barrier, told = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_open, args=(str(tmp_path / "a.tar.gz"), barrier, told)) for _ in range(4)]
    for process in processes:
        process.start()
    answers = [told.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert answers == [[wanted.sha256 for wanted in EXPECTED]] * 4 and len(expanded(cache)) == 1


def test_a_remote_shard_whose_versions_look_alike_is_not_expanded(tmp_path, monkeypatch):
    from gpuload.shards.urls import Stamp

    packed = gzip.compress(tar())
    (tmp_path / "a.tar.gz").write_bytes(packed)
    url = str(tmp_path / "a.tar.gz")
    with reading(url, {}) as read_at, pytest.raises(ShardError, match="its server tells neither etag nor time"):
        expand_stream(Shard.at(url, Stamp(len(packed), ""), {}), "gzip", read_at)
