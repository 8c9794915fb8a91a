"""A file that is replaced in one step, whatever happens on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuload.core.replacing import replacing


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(str(path)) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_an_exception_leaves_what_was_there_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="full"), replacing(str(path)) as file:
        file.write(b"half")
        raise OSError("full")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_others_may_read_it_as_any_file_of_ours(tmp_path: Path):
    with replacing(str(tmp_path / "ours")) as file:
        file.write(b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
