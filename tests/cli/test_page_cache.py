"""Files leave the page cache or are said to have stayed: judged by mincore, which asks another part of the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from gpuload.cli.bench.page_cache import evict

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the page cache is asked as on Linux")


def resident(path: Path) -> float:
    """Share of a file's pages in memory."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
        return sum(page & 1 for page in pages) / len(pages)


def written(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"{number}.bin" for number in range(count)]
    for path in paths:
        path.write_bytes(os.urandom(300_000))
    return paths


def test_what_is_said_to_have_left_has_left(tmp_path):
    paths = written(tmp_path)
    assert [resident(path) for path in paths] == [1.0] * 3
    stayed = evict([str(path) for path in paths])
    if stayed is None:
        pytest.skip("this file system does not tell")
    assert stayed == (0.0 if all(resident(path) < 0.5 for path in paths) else 1.0)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory")
def test_files_in_memory_are_said_to_have_stayed():
    path = Path("/dev/shm") / f"gpuload-test-{os.getpid()}"
    try:
        path.write_bytes(os.urandom(100_000))
        assert evict([str(path)]) in (1.0, None)
        assert resident(path) == 1.0
    finally:
        path.unlink()


def test_files_of_no_bytes_and_no_files_tell_nothing(tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    assert evict([str(empty)]) is None
    assert evict([]) is None


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        evict([str(tmp_path / "none")])
