"""Indexes and manifests: what comes back is what was scanned, and what no longer fits or is damaged is made again."""

from __future__ import annotations

import os
import shutil

import fsspec
import numpy as np
import pytest

from gpuload.core.errors import ShardError
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards import index as index_module
from gpuload.shards.array_file import Arrays, read_arrays, write_arrays
from gpuload.shards.formats import scan_shard
from gpuload.shards.index import index_paths, open_index
from gpuload.shards.manifest import manifest_paths, open_manifest
from gpuload.shards.table import MISSING, SampleTable, Strings, join
from gpuload.shards.urls import stamp
from gpuload.shards.write_tar import END, header, padding


def write_shard(path, first: int, n: int, extra: str = "") -> None:
    with open(path, "wb") as file:
        for i in range(first, first + n):
            for name, data in ((f"{i}.cls", str(i).encode()), (f"{i}.jpg", b"J" * (i + 1)), (f"{i}.{extra}", b"extra")):
                if name[-1] != ".":
                    file.write(header(name, len(data)) + data + padding(len(data)))
        file.write(END)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuload"


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for number, extra in enumerate(["", "txt", "json"]):
        write_shard(folder / f"s{number}.tar", number * 10, 10, extra)
    return [str(folder / f"s{number}.tar") for number in range(3)]


@pytest.fixture
def scans(monkeypatch):
    """Which shards were scanned rather than found in an index."""
    seen = []

    def scan(url, stamp, options, *, format):
        seen.append(url)
        return scan_shard(url, stamp, options, format=format)

    monkeypatch.setattr(index_module, "scan_shard", scan)
    return seen


def assert_same(one: SampleTable, other: SampleTable) -> None:
    assert one.files == other.files and one.keys == other.keys
    assert (one.images == other.images).all() and (one.labels == other.labels).all()
    assert list(one.members) == list(other.members)
    assert all((one.members[name] == other.members[name]).all() for name in one.members)


def scratch(shards) -> SampleTable:
    return join([scan_shard(url, stamp(url, {}), {}).table for url in shards])


def test_the_manifest_of_remote_shards_is_never_a_file_of_the_working_directory(cache):
    for folder in ("webdav://", "s3://bucket/", "s3://bucket/deep/"):
        (path,) = manifest_paths([f"{folder}a.tar", f"{folder}b.tar"])
        assert path.startswith(str(cache))
    beside, _ = manifest_paths(["/a.tar", "/b.tar"])
    assert os.path.dirname(beside) == "/"


def test_the_first_opening_scans_and_the_second_reads_one_file(shards, scans):
    expected = scratch(shards)
    assert_same(open_manifest(shards, {}).table, expected)
    assert sorted(scans) == shards
    for url in shards:
        os.unlink(index_paths(url)[0])
    assert_same(open_manifest(shards, {}).table, expected)
    assert len(scans) == 3
    assert expected.labels.tolist() == list(range(30))
    assert (expected.members["txt"]["length"] == MISSING).sum() == 20


def test_a_changed_shard_is_indexed_again_and_only_that(shards, scans):
    open_manifest(shards, {})
    write_shard(shards[1], 50, 4)
    table = open_manifest(shards, {}).table
    assert scans[3:] == [shards[1]]
    assert_same(table, scratch(shards))
    assert table.labels.tolist() == [*range(10), *range(50, 54), *range(20, 30)]


def test_a_shard_of_the_same_size_with_another_time_is_indexed_again(shards, scans):
    open_index(shards[0], stamp(shards[0], {}), {})
    size = os.path.getsize(shards[0])
    os.utime(shards[0], ns=(1, 1))
    open_index(shards[0], stamp(shards[0], {}), {})
    assert len(scans) == 2 and os.path.getsize(shards[0]) == size


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "junk"])
def test_damaged_indexes_are_made_again(shards, scans, damage):
    expected = open_manifest(shards, {}).table
    for path in [manifest_paths(shards)[0], *(index_paths(url)[0] for url in shards)]:
        data = bytearray(open(path, "rb").read())
        if damage == "flip":
            data[len(data) // 2] ^= 4
        with open(path, "wb") as file:
            file.write({"cut": data[:-9], "flip": data, "empty": b"", "junk": b"junk" * 99}[damage])
    assert_same(open_manifest(shards, {}).table, expected)
    assert len(scans) == 6
    assert_same(open_manifest(shards, {}).table, expected)
    assert len(scans) == 6


def test_a_data_set_moves_with_its_manifest(shards, scans, tmp_path):
    open_manifest(shards, {})
    shutil.copytree(os.path.dirname(shards[0]), tmp_path / "moved")
    moved = [str(tmp_path / "moved" / os.path.basename(url)) for url in shards]
    table = open_manifest(moved, {}).table
    assert len(scans) == 3 and list(table.files) == moved


def test_a_folder_kept_read_only_is_left_alone(shards, scans, cache):
    folder = os.path.dirname(shards[0])
    os.chmod(folder, 0o555)
    try:
        open_manifest(shards, {})
        open_manifest(shards, {})
        assert sorted(os.listdir(folder)) == ["s0.tar", "s1.tar", "s2.tar"]
    finally:
        os.chmod(folder, 0o755)
    assert len(scans) == 3 and len(os.listdir(cache / "index")) == 3 and len(os.listdir(cache / "manifest")) == 1


def test_where_nothing_can_be_stored_the_data_still_opens(shards, scans, monkeypatch):
    os.chmod(os.path.dirname(shards[0]), 0o555)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    try:
        assert len(open_manifest(shards, {}).table) == 30
        assert len(open_manifest(shards, {}).table) == 30
    finally:
        os.chmod(os.path.dirname(shards[0]), 0o755)
    assert len(scans) == 6


def test_remote_shards_are_indexed_in_the_cache(shards, scans, cache):
    system = fsspec.filesystem("memory")
    urls = [f"memory://manifest/{os.path.basename(url)}" for url in shards]
    for url, path in zip(urls, shards, strict=True):
        system.pipe_file(url.removeprefix("memory:/"), open(path, "rb").read())
    try:
        first, second = open_manifest(urls, {}), open_manifest(urls, {})
    finally:
        system.rm("/manifest", recursive=True)
    assert sorted(scans) == urls and len(os.listdir(cache / "manifest")) == 1
    assert_same(first.table, second.table)
    assert (first.table.images == scratch(shards).images).all()


def test_findings_are_kept(shards, scans):
    data = open(shards[1], "rb").read()
    with open(shards[1], "wb") as file:
        file.write(data[: len(data) - 700])
    first, second = open_manifest(shards, {}), open_manifest(shards, {})
    assert len(scans) == 3 and first.findings == second.findings and first.findings[0].shard == shards[1]


def test_a_bad_shard_is_raised_or_where_tolerated_found(shards):
    with open(shards[0], "wb") as file:
        file.write(b"no tar" * 200)
    urls = [*shards, shards[0] + ".gone"]
    with pytest.raises(ShardError, match="does not exist"):
        open_manifest(urls, {})
    with pytest.raises(ShardError, match="no tar"):
        open_manifest(shards, {})
    for _ in range(2):
        scan = open_manifest(urls, {}, tolerant=True)
        assert {finding.shard for finding in scan.findings} == {urls[0], urls[3]}
        assert scan.table.labels.tolist() == list(range(10, 30)) and list(scan.table.files) == shards[1:]
    with pytest.raises(ShardError):
        open_manifest(urls[:1], {}, tolerant=True)


def test_array_files_return_what_was_written(tmp_path):
    path = str(tmp_path / "x")
    arrays = {"a": np.arange(5), "m": np.array([(0, 1, -2)], SAMPLE_REF), "none": np.zeros(0, np.uint8)}
    write_arrays(path, Arrays({"text": "ü", "n": [1]}, arrays))
    found = read_arrays(path)
    assert found is not None and found.meta == {"text": "ü", "n": [1]}
    assert all(
        (found.arrays[name] == value).all() and found.arrays[name].dtype == value.dtype
        for name, value in arrays.items()
    )
    assert os.listdir(tmp_path) == ["x"]
    assert read_arrays(path + "none") is None


def test_strings_are_a_sequence(tmp_path):
    strings = Strings.of(["a", "", "ü", "\udcff"])
    assert list(strings) == ["a", "", "ü", "\udcff"] and strings[-1] == "\udcff" and strings[1:3] == ["", "ü"]
    with pytest.raises(IndexError):
        strings[4]
