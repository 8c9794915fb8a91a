"""Written tars: readable by `tarfile`, the same bytes each time, and exactly as long as was planned."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.shards.fields import parse_field
from gpuload.shards.table import MISSING, Strings
from gpuload.shards.write_samples import Field, split
from gpuload.shards.write_tar import END, extensions, header, padding, sample_bytes, unique_keys


def test_sizes_are_known_before_writing_and_tarfile_reads_it_back():
    keys = ["a", "d" * 99, "folder/" + "e" * 150, "ü", "x" * 95]
    lengths = {
        "jpg": np.array([0, 1, 511, 512, 513], np.int64),
        "cls": np.array([1, MISSING, 2, 3, MISSING], np.int64),
    }
    sizes = sample_bytes(Strings.of(keys), lengths)
    tar, expected = b"", {}
    for row, key in enumerate(keys):
        before = len(tar)
        for name in ("cls", "jpg"):
            if (length := int(lengths[name][row])) >= 0:
                data = bytes([row + 1]) * length
                tar += header(f"{key}.{name}", length) + data + padding(length)
                expected[f"{key}.{name}"] = data
        assert len(tar) - before == sizes[row]
    with tarfile.open(fileobj=io.BytesIO(tar + END)) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}
        assert all(member.mtime == 0 and member.uid == 0 and member.mode == 0o644 for member in archive)
    assert found == expected
    plain = sample_bytes(Strings.of(["a", "b"]), {"jpg": np.array([513, MISSING])})
    assert plain.tolist() == [512 + 1024, 0]


@pytest.mark.parametrize("name", ["a", "x/" * 49 + "y", "n" * 100, "n" * 101, "\u00fc"])
@pytest.mark.parametrize("length", [0, 7, 8**11 - 1, 8**11])
def test_a_header_is_what_tarfile_writes(name, length):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = length, 0o644, 0
    assert header(name, length) == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1030, 1200))
def test_shards_are_full_and_never_too_long(sizes, shard_bytes):
    bounds = split(np.array(sizes), shard_bytes=shard_bytes, overhead_bytes=len(END)).tolist()
    assert bounds[0] == 0 and bounds[-1] == len(sizes) and bounds == sorted(set(bounds))
    for begin, end in zip(bounds, bounds[1:], strict=False):
        assert sum(sizes[begin:end]) + len(END) <= shard_bytes or end - begin == 1
        assert end == len(sizes) or sum(sizes[begin : end + 1]) + len(END) > shard_bytes


def test_bytes_get_no_extension_that_readers_take_for_more():
    names = ["txt", "json", "a.npy", "CLS", "mask", "x.jpg"]
    fields = [Field(name, "bytes", "bytes") for name in names] + [Field("txt", "str", "str"), Field("b.npy", "", "")]
    found = extensions(fields, label=True)
    assert found == ["txt.bin", "json.bin", "a.npy.bin", "cls.bin", "mask", "x.jpg.bin", "txt.txt", "b.npy"]
    assert all(parse_field(name, "", b"\xff\0") == b"\xff\0" for name in found[: len(names)])


def test_keys_stay_apart():
    keys = ["a.b", "a_b", "d.e/a_b", "a_b-2", "a_b", "a\0b", "\0/x", "", "d/"]
    assert list(unique_keys(keys)) == ["a_b", "a_b-2", "d.e/a_b", "a_b-2-2", "a_b-3", "a_b-4", "_/x", "_", "d/_"]
    assert extensions([Field("a/b\0", "bytes", "bytes")], label=True) == ["a_b_"]
