"""Chunks on disk: bounded over all processes, safe against kill -9, never evicting what a living process reads."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from gpuload.core.errors import ConfigError
from gpuload.core.stamp import Stamp
from gpuload.fetch.cache_spec import CacheSpec
from gpuload.fetch.cache_store import MemoryStore
from gpuload.fetch.disk_cache import OWN_FOLDER, DiskStore, key_of, open_store

ROOT = Path(__file__).parents[2]
SIZE = 1000


def chunk(number: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, size, np.uint8)


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / OWN_FOLDER / "chunks").rglob("*") if path.is_file())


def holds(store, key: str, number: int, size: int = SIZE) -> bool:
    """Whether it is there, whole and right."""
    out = np.zeros(size - 7, np.uint8)
    there = store.read(key, number, size, 7, out)
    assert not there or (out == chunk(number, size)[7:]).all()
    return there


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    return DiskStore(str(tmp_path), 10 * SIZE) if request.param == "disk" else MemoryStore(10 * SIZE)


def test_what_is_put_is_there(store):
    assert not holds(store, "a", 1) and not store.has("a", 1)
    assert store.put("a", 1, chunk(1)) and store.put("a", 1, chunk(1)) and store.put("b", 1, chunk(1))
    assert holds(store, "a", 1) and store.has("a", 1) and not holds(store, "a", 2)
    assert store.stats().held_bytes == 2 * SIZE and store.stats().limit_bytes == 10 * SIZE


def test_a_full_store_keeps_what_it_has(store):
    """A cyclic scan of twice what fits: an LRU would never hit, and here every second chunk does."""
    for _ in range(3):
        hits = 0
        for number in range(20):
            hits += holds(store, "a", number)
            store.put("a", number, chunk(number))
    assert hits == 10 and store.stats().held_bytes == 10 * SIZE
    assert not store.grows() and store.stats().stopped == "it is full"


def test_the_next_run_and_other_processes_find_it(tmp_path):
    first = DiskStore(str(tmp_path), 10 * SIZE)
    first.put("a", 1, chunk(1))
    second = DiskStore(str(tmp_path), 10 * SIZE)
    assert holds(second, "a", 1)
    second.put("a", 2, chunk(2))
    assert holds(first, "a", 2) and first.stats().held_bytes == 2 * SIZE == on_disk(tmp_path)


def test_what_no_process_reads_makes_room_the_longest_unused_first(tmp_path):
    old = DiskStore(str(tmp_path), 10 * SIZE)
    for number, key in enumerate(["oldest", "older", "mine"]):
        old.use([key])
        for place in range(3):
            assert old.put(key, 10 * number + place, chunk(10 * number + place))
        os.utime(tmp_path / OWN_FOLDER / "chunks" / key, (number, number))
    del old
    new = DiskStore(str(tmp_path), 10 * SIZE)
    new.use(["mine", "new"])
    assert new.put("new", 1, chunk(1)) and new.put("new", 2, chunk(2))
    assert not new.has("oldest", 0) and holds(new, "older", 10) and holds(new, "mine", 20)
    assert new.stats().held_bytes == 8 * SIZE == on_disk(tmp_path)
    for number in range(3, 10):
        new.put("new", number, chunk(number))
    assert not new.has("older", 10) and holds(new, "mine", 20)
    assert new.stats().held_bytes == 10 * SIZE == on_disk(tmp_path)


def test_what_another_living_process_reads_stays(tmp_path):
    other = DiskStore(str(tmp_path), 3 * SIZE)
    other.use(["theirs"])
    for number in range(3):
        other.put("theirs", number, chunk(number))
    mine = DiskStore(str(tmp_path), 3 * SIZE)
    mine.use(["mine"])
    assert not mine.put("mine", 1, chunk(1)) and holds(other, "theirs", 0)
    del other
    mine._full_since = None
    assert mine.put("mine", 1, chunk(1))


WRITER = """
import sys, numpy as np
from gpuload.fetch.disk_cache import DiskStore
store = DiskStore(sys.argv[1], 10**9)
store.use([sys.argv[2]])
print("ready", flush=True)
for number in range(10**6):
    size = 200_000
    store.put(sys.argv[2], number, np.random.default_rng(number).integers(0, 256, size, np.uint8))
"""


def test_killed_writers_leave_whole_chunks_and_the_next_run_counts_right(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), key], cwd=ROOT, stdout=subprocess.PIPE)
        for key in ("a", "b", "a")
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    while on_disk(tmp_path) < 20 * 200_000:
        time.sleep(0.01)
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    (tmp_path / OWN_FOLDER / "chunks" / ".left-behind").write_bytes(b"half")
    store = DiskStore(str(tmp_path), 10**9)
    found = [
        (path.parent.name, int(path.name)) for path in (tmp_path / OWN_FOLDER / "chunks").rglob("*") if path.is_file()
    ]
    assert len(found) >= 19 and all(holds(store, key, number, 200_000) for key, number in found)
    assert store.stats().held_bytes == on_disk(tmp_path) == 200_000 * len(found)
    store.use(["c"])
    assert store._in_use() == {"c"} and len(os.listdir(tmp_path / OWN_FOLDER / "readers")) == 1


def test_whatever_else_is_in_the_folder_stays(tmp_path):
    """The user may name a folder of his own, a disk's root for instance."""
    names = ["chunks/mine", "chunks/a/1", "readers/mine", "used", "alive", "mine"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"the user's")
    for _ in range(2):
        store = DiskStore(str(tmp_path), 2 * SIZE)
        for number in range(3):  # more than there is room for
            store.put(f"a{number}", 0, chunk(number))
        del store
    assert [(tmp_path / name).read_bytes() for name in names] == [b"the user's"] * len(names)


@pytest.mark.parametrize("content", [b"\0" * 24, b"x\n", b"-5", b"", b"1000 and more than a number " * 9])
def test_where_no_number_says_what_is_used_it_is_counted(tmp_path, content):
    """A power cut may leave NULs, or nothing."""
    store = DiskStore(str(tmp_path), 4 * SIZE)
    store.put("a", 0, chunk(0))
    store.put("b", 0, chunk(1))
    used = tmp_path / OWN_FOLDER / "used"
    used.write_bytes(content)
    assert store.stats().held_bytes == 2 * SIZE and str(2 * SIZE) in repr(store)
    assert store.put("b", 1, chunk(2)) and store.stats().held_bytes == 3 * SIZE == on_disk(tmp_path)
    used.write_bytes(content)
    other = DiskStore(str(tmp_path), 4 * SIZE)  # beside the first one
    assert other.put("b", 2, chunk(3)) and not other.put("b", 3, chunk(4))
    assert int(used.read_bytes()[:24]) == 4 * SIZE == on_disk(tmp_path)
    del store, other
    used.write_bytes(content)
    assert DiskStore(str(tmp_path), 4 * SIZE).stats().held_bytes == 4 * SIZE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_ends_growing_with_one_warning(tmp_path, monkeypatch, number):
    store = DiskStore(str(tmp_path), 10 * SIZE)
    store.put("a", 1, chunk(1))

    def write(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("gpuload.fetch.disk_cache.os.write", write)
    with pytest.warns(UserWarning, match="does not grow any more"):
        assert not store.put("a", 2, chunk(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.put("a", 3, chunk(3)) and not store.grows()
    monkeypatch.undo()
    assert holds(store, "a", 1) and not holds(store, "a", 2) and os.strerror(number) in store.stats().stopped
    assert store.stats().held_bytes == SIZE == on_disk(tmp_path)


def test_where_warnings_are_errors_a_full_disk_is_logged_and_costs_nothing(tmp_path, monkeypatch, caplog):
    store = DiskStore(str(tmp_path), 10 * SIZE)
    monkeypatch.setattr("gpuload.fetch.disk_cache._write_all", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.put("a", 1, chunk(1)) and not store.grows()
    assert "does not grow any more" in caplog.text


def test_a_chunk_that_is_not_whole_is_not_used(tmp_path):
    store = DiskStore(str(tmp_path), 10 * SIZE)
    store.put("a", 1, chunk(1))
    (tmp_path / OWN_FOLDER / "chunks" / "a" / "1").write_bytes(b"short")
    assert not holds(DiskStore(str(tmp_path), 10 * SIZE), "a", 1)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="nothing can be cached in"):
        DiskStore(str(tmp_path / "file"), 10 * SIZE)


def test_readers_of_a_process_share_a_store_while_one_uses_it(tmp_path):
    for spec in (CacheSpec(1000, str(tmp_path)), CacheSpec(1000, None)):
        first = open_store(spec)
        assert open_store(spec) is first and open_store(CacheSpec(999, spec.folder)) is not first
        first.put("a", 1, chunk(1))
        del first
        assert open_store(spec).has("a", 1) is (spec.folder is not None)


def test_keys_name_versions():
    keys = [
        key_of(url, Stamp(size, version))
        for url, size, version in [("a", 1, "x"), ("b", 1, "x"), ("a", 2, "x"), ("a", 1, "y")]
    ]
    assert len(set(keys)) == 4 and key_of("a", Stamp(1, "x")) == keys[0]
    assert key_of("a", Stamp(1, "")) is None
    assert "secret" not in str(key_of("s3://me:secret@host/a", Stamp(1, "x")))
