"""Checksums beside a shard: what they cover, and that each byte is covered once."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.errors import ShardError
from gpuload.shards.checksums import SUFFIX, Sums, read_sums, rest_sum


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8), st.randoms())
def test_the_rest_is_all_but_the_images(data, cuts, random):
    cuts = sorted(min(cut, len(data)) for cut in cuts)[: len(cuts) // 2 * 2]
    images = [(cuts[i], cuts[i + 1]) for i in range(0, len(cuts), 2)]
    outside = bytes(b for at, b in enumerate(data) if not any(start <= at < stop for start, stop in images))
    random.shuffle(images)
    file = io.BytesIO(data)

    def read_at(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(min(length, 7))  # less than was asked for

    ranges = np.array(images, np.int64).reshape(-1, 2)
    assert rest_sum(read_at, len(data), ranges) == f"{zlib.crc32(outside):08x}"


def test_a_file_that_became_shorter_is_not_the_same():
    none = np.zeros((0, 2), np.int64)
    for size, expected in ((3, f"{zlib.crc32(b'abc'):08x}"), (5, "")):
        assert rest_sum(lambda offset, length: b"abc"[offset : offset + length], size, none) == expected


def test_what_is_kept_comes_back_and_damage_is_named(tmp_path):
    sums = Sums(7, ("aa", "bb"), "cc", True)
    shard = str(tmp_path / "x.tar")
    assert read_sums(shard, {}) is None
    (tmp_path / f"x.tar{SUFFIX}").write_bytes(sums.to_json())
    assert read_sums(shard, {}) == sums
    other = sums.to_json().replace(b"crc32", b"md5")
    for damaged in (sums.to_json()[:-9], b"{}", b"[]", other):
        (tmp_path / f"x.tar{SUFFIX}").write_bytes(damaged)
        with pytest.raises(ShardError, match="x.tar.gpuload-sums.*no checksums, or damaged"):
            read_sums(shard, {})
