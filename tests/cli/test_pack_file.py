"""The file that packing writes: what arrives, what its checksum covers, and that its name means that it is whole."""

from __future__ import annotations

import errno
import os
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.cli import pack_file
from gpuload.cli.pack_file import PartialFile, new_file
from gpuload.core.errors import ShardError

SAMPLES = st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, flushed=st.sets(st.integers(0, 12)), most=st.integers(1, 50), together=st.booleans())
def test_all_arrives_and_the_sum_is_of_all_but_the_images(tmp_path_factory, samples, flushed, most, together):
    """Samples of (before, image, after), in pieces or as one, and a system that takes few bytes at a time."""
    path = str(tmp_path_factory.mktemp("out") / "x")
    content, outside = b"", b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_file, "SMALL_BYTES", 0)
        patch.setattr(os, "writev", lambda fd, pieces: os.write(fd, b"".join(pieces)[:most]))
        file = PartialFile(path)
        for number, (before, image, after) in enumerate(samples):
            for piece in [before + image + after] if together else [before, memoryview(image), after]:
                file.write(piece)
            start = len(content) + len(before)
            file.leave_out(start, start + len(image))
            content, outside = content + before + image + after, outside + before + after
            if number in flushed:
                file.flush()
        assert file.tell() == len(content) and not os.path.exists(path)
        assert file.rest(np.zeros((0, 2), np.int64)) == f"{zlib.crc32(outside):08x}" and file.size == len(content)
        file.complete(sync=False)
    with open(path, "rb") as whole:
        assert whole.read() == content


def test_small_pieces_are_written_together(tmp_path, monkeypatch):
    calls = []
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: calls.append(len(pieces)) or writev(fd, pieces))
    with new_file(str(tmp_path / "small")) as file:
        for number in range(5000):
            file.write(bytes([number % 256]) * 3)
    assert calls == [1]
    with new_file(str(tmp_path / "large")) as file:
        for _ in range(1500):
            file.write(bytes(5000))
    assert calls == [1, pack_file.PIECES_A_CALL, 1500 - pack_file.PIECES_A_CALL]
    assert (tmp_path / "small").read_bytes() == b"".join(bytes([n % 256]) * 3 for n in range(5000))


def test_what_is_written_over_counts_as_it_stands_at_the_end(tmp_path):
    file = PartialFile(str(tmp_path / "x"))
    file.write(b"....imageend")
    file.leave_out(4, 9)
    file.seek(0)
    file.write(b"head")
    assert file.rest(np.array([[4, 9]])) == f"{zlib.crc32(b'headend'):08x}"
    file.complete(sync=False)
    assert (tmp_path / "x").read_bytes() == b"headimageend"


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_gets_its_name_once_it_is_on_disk_where_that_is_asked_for(tmp_path, monkeypatch, sync):
    steps = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: steps.append(name) or real(*a))
    file = PartialFile(str(tmp_path / "x"))
    file.write(b"abc")
    file.complete(sync=sync)
    assert steps == (["fsync", "replace", "fsync"] if sync else ["replace"])


@pytest.mark.parametrize(
    ("number", "problem"),
    [(errno.EIO, "it cannot be written.*Check the disk"), (errno.EDQUOT, "no room.*run the same command again")],
)
@pytest.mark.parametrize("step", ["writev", "fsync", "replace"])
def test_a_disk_that_fails_leaves_nothing(tmp_path, monkeypatch, step, number, problem):
    def fails(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(ShardError, match=f"{tmp_path}/x: {problem}"), new_file(str(tmp_path / "x")) as file:
        file.write(b"abc")
    assert os.listdir(tmp_path) == []


def test_an_error_of_others_passes_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="theirs"), new_file(str(tmp_path / "x")) as file:
        file.write(b"abc")
        raise FileNotFoundError("theirs")
    assert os.listdir(tmp_path) == []
