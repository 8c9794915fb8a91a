"""LocalReader against plain open and read: same bytes, failures only where they belong, bounded files and threads."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time

import numpy as np
import pytest

from gpuload.core.refs import SAMPLE_REF, whole_files
from gpuload.core.stamp import stamp_of_local
from gpuload.fetch import local
from gpuload.fetch.local import LocalReader
from gpuload.fetch.open_files import OpenFiles


def open_descriptors() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(5)
    paths = []
    for number, size in enumerate([100_003, 1, 65_536, 777]):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(rng.integers(0, 256, size, np.uint8).tobytes())
        paths.append(str(path))
    return paths


@pytest.fixture(params=[False, True], ids=["one by one", "batches"])
def reader(request):
    reader = LocalReader(threads=3, max_open_files=2, batches=request.param)
    yield reader
    reader.close()


def random_refs(paths: list[str], n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    refs = np.zeros(n, SAMPLE_REF)
    for row in range(n):
        file = rng.integers(len(paths))
        size = os.path.getsize(paths[file])
        begin = rng.integers(size + 1)
        refs[row] = file, begin, rng.integers(size - begin + 1)
    return refs


def expected(paths: list[str], ref) -> bytes:
    with open(paths[ref["file"]], "rb") as file:
        data = file.read()
    return data if ref["length"] == -1 else data[ref["offset"] : ref["offset"] + ref["length"]]


def assert_rows(encoded, paths, refs, without=()):
    for row in range(len(refs)):
        if row not in without:
            assert encoded.encoded(row).tobytes() == expected(paths, refs[row])


@pytest.mark.parametrize("slow", [False, True])
def test_ranges_and_whole_files_come_as_they_are(shards, reader, monkeypatch, slow):
    if slow:  # every chunk counts as slow: helpers take part
        monkeypatch.setattr(local, "SLOW_RANGE_S", -1.0)
    for seed in range(10):
        pieces = random_refs(shards, 100, seed)
        for refs in (pieces, np.concatenate([pieces, whole_files(np.array([3, 0, 3, 1]))])):
            encoded = reader.read(shards, refs)
            assert not encoded.failures
            assert_rows(encoded, shards, refs)
            assert len(reader._open) <= 2


def test_no_rows_and_file_urls(shards, reader):
    assert reader.read(shards, np.zeros(0, SAMPLE_REF)).data.size == 0
    refs = random_refs(shards, 5, 1)
    assert_rows(reader.read([f"file://{path}" for path in shards], refs), shards, refs)


def test_many_small_pieces_are_read_without_python(shards, monkeypatch):
    reader = LocalReader(batches=True, gap_bytes=0)
    monkeypatch.setattr(local, "_read_fully", lambda *arguments: pytest.fail("read by Python"))
    refs = np.array([(0, 2000 * i, 50 + i) for i in range(45)] + [(2, 900 * i, 9) for i in range(70)], SAMPLE_REF)
    assert_rows(reader.read(shards, refs), shards, refs)
    reader.close()


def test_a_missing_file_fails_its_own_rows_only(shards, reader):
    files = [*shards, shards[0] + ".gone"]
    refs = np.array([(0, 5, 50), (4, 0, 10), (4, 9, 9), (0, 55, 50)], SAMPLE_REF)
    assert sorted(reader.read(files, refs).failures) == [1, 2]
    refs = np.concatenate([refs, np.array([(4, 0, -1), (2, 0, -1)], SAMPLE_REF)])
    encoded = reader.read(files, refs)
    assert sorted(encoded.failures) == [1, 2, 4]
    assert all(isinstance(error, FileNotFoundError) for error in encoded.failures.values())
    assert encoded.failures[1].filename == files[4]
    assert encoded.lengths.tolist() == [50, 0, 0, 50, 0, 65_536]
    assert_rows(encoded, shards, refs, without=encoded.failures)


def test_a_short_read_fails_only_rows_beyond_the_end(shards, reader):
    size = os.path.getsize(shards[0])
    refs = np.array([(0, size - 30, 20), (0, size - 10, 11), (0, size + 5, 1), (0, size - 5, 5)], SAMPLE_REF)
    encoded = reader.read(shards, refs)
    assert sorted(encoded.failures) == [1, 2]
    assert f"ends at byte {size}" in str(encoded.failures[1]) and shards[0] in str(encoded.failures[1])
    assert_rows(encoded, shards, refs, without=(1, 2))


def test_a_folder_in_a_files_place_is_an_error_of_its_rows(shards, reader, tmp_path):
    refs = np.array([(4, 0, 10), (4, 10, 10), (0, 0, 10)], SAMPLE_REF)
    encoded = reader.read([*shards, str(tmp_path)], refs)
    assert sorted(encoded.failures) == [0, 1]
    assert isinstance(encoded.failures[0], IsADirectoryError)


def test_an_empty_file_is_an_empty_row(tmp_path, reader):
    (tmp_path / "empty").touch()
    encoded = reader.read([str(tmp_path / "empty")], whole_files(np.array([0, 0])))
    assert not encoded.failures and encoded.lengths.tolist() == [0, 0]


def test_many_threads_read_at_once(shards):
    reader, wrong = LocalReader(threads=4, max_open_files=1), []

    def work(seed: int) -> None:
        for step in range(20):
            refs = random_refs(shards, 40, seed * 100 + step)
            encoded = reader.read(shards, refs)
            if encoded.failures or any(
                encoded.encoded(row).tobytes() != expected(shards, refs[row]) for row in range(len(refs))
            ):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert not wrong


def test_an_open_file_in_use_is_never_closed(shards):
    files = OpenFiles(max_open_files=1)
    first = files.lend(shards[0])
    for path in shards[1:]:
        files.give_back(files.lend(path))
    assert os.pread(first.fd, 4, 0) == open(shards[0], "rb").read(4)
    assert files.lend(shards[0]) is first
    files.close()
    assert os.pread(first.fd, 4, 0) == open(shards[0], "rb").read(4)
    files.give_back(first)
    files.give_back(first)
    with pytest.raises(OSError):
        os.fstat(first.fd)


def test_when_the_process_has_no_descriptor_left_idle_files_give_way(shards, monkeypatch):
    import resource

    files = OpenFiles(max_open_files=100)
    files.give_back(files.lend(shards[0]))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    hoard = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
        with pytest.raises(OSError):
            while True:
                hoard.append(os.open(os.devnull, os.O_RDONLY))
        lent = files.lend(shards[1])
        assert os.pread(lent.fd, 1, 0) == open_bytes(shards[1], hoard)
        files.give_back(lent)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in hoard:
            os.close(fd)
        files.close()


def open_bytes(path: str, hoard: list[int]) -> bytes:
    os.close(hoard.pop())
    with open(path, "rb") as file:
        return file.read(1)


def test_close_ends_threads_and_files_and_may_be_repeated(shards, monkeypatch):
    monkeypatch.setattr(local, "SLOW_RANGE_S", -1.0)
    reader = LocalReader(threads=4, max_open_files=8)
    reader.read(shards, np.concatenate([random_refs(shards, 20, 2), whole_files(np.arange(200) % 4)]))
    assert set(shards) & open_descriptors()
    assert any(thread.name.startswith("gpuload-read") for thread in threading.enumerate())
    reader.close()
    reader.close()
    assert not set(shards) & open_descriptors()
    assert not any(thread.name.startswith("gpuload-read") for thread in threading.enumerate())


def test_a_forgotten_reader_leaves_nothing(shards, monkeypatch):
    monkeypatch.setattr(local, "SLOW_RANGE_S", -1.0)
    reader = LocalReader(threads=4)
    reader.read(shards, np.concatenate([random_refs(shards, 20, 2), whole_files(np.arange(200) % 4)]))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("gpuload-read")]
    assert threads and all(thread.daemon for thread in threads)
    del reader
    gc.collect()
    deadline = time.monotonic() + 5
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(thread.is_alive() for thread in threads)
    assert not set(shards) & open_descriptors()


PIECES = np.array([(file, at, 50) for file in (0, 2) for at in range(0, 60_000, 20_000)] + [(3, 7, 0)], SAMPLE_REF)


@pytest.fixture(params=[False, True], ids=["one by one", "batches"])
def stamped(request, shards):
    stamps = {path: stamp_of_local(os.stat(path)) for path in shards}
    reader = LocalReader(threads=3, max_open_files=4, batches=request.param, stamps=stamps)
    assert_rows(reader.read(shards, PIECES), shards, PIECES)
    yield reader
    reader.close()


def later(path: str, ns: int = 10**9) -> None:
    """A file system's clock may be too coarse for a test."""
    os.utime(path, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns + ns))


@pytest.mark.parametrize("size", [100_003, 99_000, 120_000, 10])
def test_pieces_of_a_file_that_was_written_again_are_errors_and_no_others(shards, stamped, size):
    before = os.path.getsize(shards[0])
    with open(shards[0], "r+b") as file:
        file.write(bytes(200))
        file.truncate(size)
    later(shards[0], 1)
    for _ in range(2):
        encoded = stamped.read(shards, PIECES)
        assert sorted(encoded.failures) == [0, 1, 2] and encoded.lengths[:3].tolist() == [0, 0, 0]
        assert_rows(encoded, shards, PIECES, without=(0, 1, 2))
        for error in encoded.failures.values():
            assert isinstance(error, OSError) and error.errno == errno.ESTALE and error.filename == shards[0]
            told = f"has {size} bytes and had {before}" if size != before else "was written at 2"
            assert told in str(error) and "Make the data set anew" in str(error)
    whole = np.concatenate([PIECES, whole_files(np.array([0, 1]))])  # whatever that file is now
    encoded = stamped.read(shards, whole)
    assert sorted(encoded.failures) == [0, 1, 2]
    assert_rows(encoded, shards, whole, without=(0, 1, 2))


def test_a_file_that_another_was_renamed_over_is_read_as_it_was_while_it_is_open_and_never_mixed(shards, stamped):
    with open(shards[0], "rb") as file:
        old = file.read()
    moved = shards[0] + ".moved"
    os.link(shards[0], moved)
    with open(shards[0] + ".new", "wb") as file:
        file.write(old[::-1])
    later(shards[0] + ".new")
    os.replace(shards[0] + ".new", shards[0])
    encoded = stamped.read(shards, PIECES)
    assert not encoded.failures
    assert [encoded.encoded(row).tobytes() for row in range(3)] == [old[at : at + 50] for at in (0, 20_000, 40_000)]
    others = [stamped._open.lend(path) for path in (shards[1], shards[3], os.devnull, os.curdir)]
    for other in others:  # they take its place
        stamped._open.give_back(other)
    assert sorted(stamped.read(shards, PIECES).failures) == [0, 1, 2]
    os.replace(moved, shards[0])
    encoded = stamped.read(shards, PIECES)  # the right one is back
    assert not encoded.failures
    assert_rows(encoded, shards, PIECES)


def test_a_file_is_looked_at_once_a_batch(shards, stamped, monkeypatch):
    looked, fstat = [], os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: (looked.append(fd), fstat(fd))[1])
    stamped.read(shards, PIECES)
    assert 2 <= len(looked) == len(set(looked))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_with_a_new_reader(shards, reader):
    refs = random_refs(shards, 50, 7)
    reader.read(shards, refs)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            reader.close()
            child = LocalReader(threads=2)
            assert_rows(child.read(shards, refs), shards, refs)
            child.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert_rows(reader.read(shards, refs), shards, refs)
