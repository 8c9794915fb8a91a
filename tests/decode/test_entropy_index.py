"""The entropy index's files: what was kept is found, by every process and after every kind of damage; what goes wrong
ends learning and nothing else."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numba
import numpy as np
import pytest
from gpuload.kernels import seek_points
from gpuload.kernels.seek_points import content_key_reference

from gpuload.decode import entropy_file, entropy_index
from gpuload.decode.entropy_file import HEADER_BYTES, SLOT_BYTES, Header, write_sidecar
from gpuload.decode.entropy_index import NO_TABLES, EntropyIndex, EntropyStats, learned_path
from tests.kernels.test_entropy import encoded
from tests.kernels.test_seek_points import find, image_of, points_of


@numba.njit(["b1(int64, int64, uint64)"])
def is_whole(address, length, key):
    return seek_points.is_whole(address, length, key)


def record(key: int, size: int = 40) -> bytes:
    """What passes for a record of this key: its points are not looked at here."""
    body = bytes([seek_points.RECORD_VERSION]) + np.random.default_rng(key).bytes(size - 5)
    return (content_key_reference(body, key) & 0xFFFFFFFF).to_bytes(4, "little") + body


def add(index: EntropyIndex, *keys: int, size: int = 40) -> int:
    """Records with gaps between them, as a task's images leave them; the first image has none."""
    flat = b"".join(b"?" * 7 + record(key, size) for key in keys)
    offsets = np.array([0, *(7 + i * (7 + size) for i in range(len(keys)))])
    sizes = np.array([0] + [size] * len(keys))
    return index.add(np.array([1, *keys], np.uint64), np.frombuffer(flat, np.uint8), offsets, sizes)


def memory_of(index: EntropyIndex, key: int) -> bytes | None:
    """A whole record, wherever the index has it, as the kernel finds it."""
    for slots, base in ((index.tables.fixed, 0), (index.tables.learned, index.tables.base)):
        row = find(slots, np.uint64(key))
        if row >= 0:
            address, length = base + int(slots[row, 1]), int(slots[row, 2])
            inside = base == 0 or address + length <= base + index.tables.size
            if inside and is_whole(address, length, np.uint64(key)):
                return ctypes.string_at(address, length)
    return None


def has(index: EntropyIndex, *keys: int, size: int = 40) -> list[bool]:
    return [memory_of(index, key) == record(key, size) for key in keys]


def has_all(index: EntropyIndex, *keys: int, size: int = 40) -> bool:
    return all(has(index, *keys, size=size))


def keys_of(numbers: range) -> list[int]:
    """Spread over all of 64 bits, as real ones are: the table is made for them."""
    return [number * 0x9E3779B97F4A7C15 % 2**64 for number in numbers]


KEYS = keys_of(range(1, 10))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The learned file's path, in a cache directory that is empty, with room for a thousand small records."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", str(1 << 20))
    return Path(learned_path())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "gpuload")

    def texts() -> list[str]:
        assert all(entry.levelno == logging.INFO for entry in caplog.records)
        return [entry.getMessage() for entry in caplog.records]

    return texts


def in_child(work: Callable[[], bool]) -> Callable[[], None]:
    """Fork a process that does `work`; what is returned waits for it and asserts that it was true."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)

    def ended() -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return ended


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that give way to others first: what is not behind a lock goes wrong."""
    real = os.pwrite

    def pwrite(*arguments) -> int:
        time.sleep(2e-4)
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)


# Learning.


def test_what_is_learned_is_found_at_once_and_by_the_next_process(said):
    index = EntropyIndex(learn=True)
    assert index.learning and not any(has(index, *KEYS))
    assert add(index, *KEYS) == 9
    assert has_all(index, *KEYS) and not any(has(index, 5))
    in_child(lambda: has_all(EntropyIndex(learn=False), *KEYS))()
    assert add(index, *KEYS, *KEYS, 77, 77) == 1, "what is known is not written again, nor the same image twice"
    assert index.stats() == EntropyStats(learned=10)
    assert said() == []


def test_points_of_a_jpeg_come_back_through_the_file():
    data = encoded(250, 131, "4:2:0", quality=80)
    image = image_of(data)
    index = EntropyIndex(learn=True)
    packed = np.frombuffer(image.record(len(data) // 10), np.uint8)
    index.add(np.array([image.key]), packed, np.array([0]), np.array([packed.size]))
    points = np.zeros(image.points.shape, np.int32)
    spacing = points_of(*index.tables, image.key, image.mcus, image.components,
                        image.scan_start, image.data_size, points)  # fmt: skip
    step = spacing // seek_points.FINEST_SPACING
    assert step and np.array_equal(points[: -(-len(points) // step)], image.points[::step])


def test_a_whole_shards_records_come_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(entropy_index, "_AT_ONCE", 7)
    index = EntropyIndex(learn=True)
    assert add(index, *KEYS, *KEYS, 77) == 10 and has_all(index, *KEYS, 77)


def test_keys_that_want_one_slot_all_find_one():
    index = EntropyIndex(learn=True)
    slots = len(index.tables.learned)
    keys = [slots - 1 + slots * i for i in range(1, 30)]
    assert add(index, *keys) == 29 and has_all(index, *keys)


def test_without_learning_no_file_is_made_and_what_is_there_is_read(cache: Path, said):
    reader = EntropyIndex(learn=False)
    assert not reader.learning and add(reader, 7) == 0 and not cache.parent.exists()
    writer = EntropyIndex(learn=True)
    add(writer, 7)
    reader = EntropyIndex(learn=False)
    assert has_all(reader, 7) and add(reader, 8) == 0 and not any(has(writer, 8))
    assert said() == []


def test_loaders_of_a_process_open_the_file_once_and_the_last_one_lets_go(cache: Path):
    first, second = EntropyIndex(learn=True), EntropyIndex(learn=True)
    assert first.tables.base == second.tables.base and add(first, 7) == 1
    first.close()
    first.close()
    assert not any(has(first, 7)) and add(first, 8) == 0 and not first.learning
    assert has_all(second, 7)
    slots = second.tables.learned
    del second
    gc.collect()
    assert slots[:, 0].sum() == 7, "an array keeps its memory"
    del slots
    gc.collect()
    assert str(cache) not in Path("/proc/self/maps").read_text() and str(cache) not in entropy_index._opened


def test_threads_learn_at_once(slowly):
    index = EntropyIndex(learn=True)
    parts = [keys_of(range(1000 * t + 1, 1000 * t + 120)) for t in range(4)]

    def learn(keys: list[int]) -> None:
        for start in range(0, len(keys), 7):
            add(index, *keys[start : start + 7])

    threads = [threading.Thread(target=learn, args=(keys,)) for keys in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(has_all(index, *keys) for keys in parts)
    assert index.stats().learned == 4 * 119


def test_two_processes_append_at_once(slowly):
    """They begin together, without a file: one makes it, both use it."""
    context = get_context("fork")
    together = context.Barrier(2)
    parts = [keys_of(range(1, 330)), keys_of(range(250, 600))]

    def learn(keys: list[int]) -> bool:
        together.wait(30)
        index = EntropyIndex(learn=True)
        kept = sum(add(index, *keys[start : start + 5]) for start in range(0, len(keys), 5))
        return kept >= 249 and index.learning

    for ended in [in_child(lambda keys=keys: learn(keys)) for keys in parts]:  # type: ignore[misc]
        ended()
    assert has_all(EntropyIndex(learn=False), *keys_of(range(1, 600)))


def test_a_reader_beside_a_writer_sees_whole_records_or_none():
    index, keys = EntropyIndex(learn=True), keys_of(range(1, 600))
    ended = in_child(lambda: sum(add(index, key) for key in keys) == len(keys))
    for _ in range(200):
        for key in keys[::31]:
            row = find(index.tables.learned, np.uint64(key))
            assert memory_of(index, key) in (record(key), None if row < 0 else record(key))
    ended()
    assert has_all(index, *keys)


def test_a_forked_child_reads_and_learns():
    """Even where another thread held the lock at that moment."""
    index = EntropyIndex(learn=True)
    add(index, 7)
    file = index._file
    assert file is not None and file._writer is not None
    with file._writer.lock:
        in_child(lambda: has_all(index, 7) and add(index, 8, 9) == 2 and has_all(index, 8, 9))()
    assert add(index, 10) == 1 and has_all(index, 7, 8, 9, 10)


# Room.


def test_a_full_file_ends_learning_and_is_read_on(cache: Path, said):
    index = EntropyIndex(learn=True)
    assert add(index, *range(1, 8), size=150_000) == 6
    assert not index.learning and index.stats() == EntropyStats(learned=6, full=1)
    assert has_all(index, *range(1, 7), size=150_000) and add(index, 50) == 0
    assert cache.stat().st_size == 1 << 20 and len(said()) == 1 and "full" in said()[0]


def test_a_full_table_ends_learning(monkeypatch: pytest.MonkeyPatch, said):
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", str(8 << 10))
    index = EntropyIndex(learn=True)
    assert add(index, *range(1, 10)) == 8 and has_all(index, *range(1, 9)) and not any(has(index, 9))
    assert not index.learning and len(said()) == 1


def test_the_default_file_is_a_hole_and_takes_a_tenth_of_what_is_free(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GPULOAD_ENTROPY_BYTES")
    real = os.statvfs

    class Full:
        f_bavail, f_frsize = 1000, 1000

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    index = EntropyIndex(learn=True)
    assert cache.stat().st_size == entropy_index.BUDGET_BYTES
    assert cache.stat().st_blocks * 512 < 1 << 20
    assert add(index, *range(1, 8), size=20_000) == 5, "100 kB"
    del index
    gc.collect()
    monkeypatch.setattr(os, "statvfs", real)
    index = EntropyIndex(learn=True)
    assert index.learning and has_all(index, *range(1, 6), size=20_000)


@pytest.mark.parametrize("learn", [False, True])
def test_a_budget_of_0_turns_it_off(cache: Path, monkeypatch: pytest.MonkeyPatch, learn: bool):
    add(EntropyIndex(learn=True), 7)
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", "0")
    index = EntropyIndex(learn=learn)
    assert not index.learning and add(index, 8) == 0 and not any(has(index, 7))


def test_another_budget(cache: Path, monkeypatch: pytest.MonkeyPatch, said):
    add(EntropyIndex(learn=True), 7)
    gc.collect()
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", str(200_000))
    smaller = EntropyIndex(learn=True)
    assert has_all(smaller, 7) and add(smaller, *range(10, 20), size=30_000) == 5, "25 kB are slots"
    del smaller
    gc.collect()
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", str(2 << 20))
    larger = EntropyIndex(learn=True)
    assert cache.stat().st_size == 2 << 20 and not any(has(larger, 7)) and add(larger, 7) == 1
    del larger
    gc.collect()
    for wrong in ("1G", "-1", "many"):
        monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", wrong)
        with pytest.raises(ValueError, match=f"GPULOAD_ENTROPY_BYTES is '{wrong}'"):
            EntropyIndex(learn=True)
    monkeypatch.setenv("GPULOAD_ENTROPY_BYTES", "80")
    assert not EntropyIndex(learn=True).learning and cache.stat().st_size == 2 << 20


# What systems refuse.


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[..., bool]) -> None:
    real = getattr(os, name)

    def call(*arguments, **options):
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_full_disk_ends_learning(monkeypatch: pytest.MonkeyPatch, writes: int, said):
    """No room for the record, the header's page or the slot."""
    index = EntropyIndex(learn=True)
    add(index, 7)
    calls = iter(range(100))
    failing(monkeypatch, "pwrite", errno.ENOSPC, lambda *_: next(calls) >= writes)
    assert add(index, 8) == add(index, 9) == 0 and not index.learning
    assert has(index, 7, 8, 9) == [True, False, False]
    assert len(said()) == 1 and "No space left" in said()[0]
    monkeypatch.undo()


def test_half_a_write_is_finished_by_another(monkeypatch: pytest.MonkeyPatch):
    index, real = EntropyIndex(learn=True), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: max(1, len(data) // 2)], at))
    assert add(index, *KEYS) == 9 and has_all(index, *KEYS)


def opens_to_write(path, flags, *_) -> bool:
    return bool(flags & os.O_RDWR) and "learned" in str(path)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_file_that_cannot_be_written_is_read(monkeypatch: pytest.MonkeyPatch, code: int, said):
    add(EntropyIndex(learn=True), 7)
    gc.collect()
    failing(monkeypatch, "open", code, opens_to_write)
    index = EntropyIndex(learn=True)
    assert has_all(index, 7) and not index.learning and add(index, 8) == 0
    assert len(said()) == 1


@pytest.mark.parametrize("name", ["makedirs", "open"])
def test_a_directory_that_cannot_be_written_means_no_learning(cache, monkeypatch: pytest.MonkeyPatch, name: str, said):
    failing(monkeypatch, name, errno.EROFS, opens_to_write if name == "open" else lambda *_: True)
    index = EntropyIndex(learn=True)
    assert not index.learning and add(index, 7) == 0 and not any(has(index, 7))
    assert len(said()) == 1 and "Read-only" in said()[0]


def test_a_file_system_without_locks_or_room_means_no_learning(cache: Path, monkeypatch: pytest.MonkeyPatch, said):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(entropy_index, "replace_file", refuse)
        assert not EntropyIndex(learn=True).learning
    index = EntropyIndex(learn=True)
    add(index, 7)
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None if how == fcntl.LOCK_UN else refuse())
    assert add(index, 8) == 0 and not index.learning and has_all(index, 7)
    assert len(said()) == 2


def test_a_process_that_keeps_the_lock_does_not_stop_the_others(cache: Path, monkeypatch: pytest.MonkeyPatch, said):
    monkeypatch.setattr(entropy_index, "LOCK_WAIT_S", 0.02)
    index = EntropyIndex(learn=True)
    with open(cache, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert add(index, 7) == 0 and not index.learning
    assert len(said()) == 1 and "lock" in said()[0]


# Damage.


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half a header": lambda path: os.truncate(path, 30),
    "cut": lambda path: os.truncate(path, 5000),
    "a byte too long": lambda path: os.truncate(path, path.stat().st_size + 1),
    "zeros": lambda path: overwrite(path, 0, bytes(HEADER_BYTES)),
    "another version": lambda path: overwrite(path, 8, b"\2"),
    "more slots": lambda path: overwrite(path, 16, (1 << 12).to_bytes(8, "little")),
    "an end within the slots": lambda path: overwrite(path, 40, bytes(8)),
    "an end behind the end": lambda path: overwrite(path, 40, b"\xff" * 8),
    "foreign": lambda path: path.write_bytes(bytes(range(256)) * 16),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(cache: Path, damage: str):
    add(EntropyIndex(learn=True), 7)
    gc.collect()
    DAMAGES[damage](cache)
    assert not any(has(EntropyIndex(learn=False), 7))
    index = EntropyIndex(learn=True)
    assert not any(has(index, 7)) and add(index, 7, 8) == 2 and has_all(index, 7, 8)
    assert cache.stat().st_size == 1 << 20 and [entry.name for entry in cache.parent.iterdir()] == [cache.name]


def test_who_waited_for_a_damaged_file_takes_the_one_that_replaced_it(cache: Path, monkeypatch: pytest.MonkeyPatch):
    cache.parent.mkdir(parents=True)
    cache.touch()
    waiting, real = threading.Event(), entropy_index._flock

    def flock(fd: int) -> None:
        waiting.set()
        real(fd)

    monkeypatch.setattr(entropy_index, "_flock", flock)
    with open(cache, "rb") as damaged:
        fcntl.flock(damaged, fcntl.LOCK_EX)
        late = threading.Thread(target=lambda: EntropyIndex(learn=True))
        late.start()
        assert waiting.wait(30)
        entropy_file.replace_file(str(cache), Header(1024, 1 << 20, HEADER_BYTES + 1024 * SLOT_BYTES), [])
        inode = cache.stat().st_ino
    late.join()
    assert cache.stat().st_ino == inode


def test_who_has_the_replaced_file_reads_on_and_learns_no_more(cache: Path, said):
    old = EntropyIndex(learn=True)
    add(old, 7)
    entropy_file.replace_file(str(cache), Header(1024, 1 << 20, HEADER_BYTES + 1024 * SLOT_BYTES), [])
    new = EntropyIndex(learn=True)
    assert new.tables.base != old.tables.base and add(new, 8) == 1
    assert has(old, 7, 8) == [True, False] and has(new, 7, 8) == [False, True]
    in_child(lambda: add(old, 9) == 0 and has_all(old, 7))()
    assert add(old, 9) == 1, "its own open file still is the old one"


def test_a_damaged_record_is_refused_and_learned_again(cache: Path):
    index = EntropyIndex(learn=True)
    add(index, 7, 8, 9)
    slot = index.tables.learned[find(index.tables.learned, np.uint64(8))]
    overwrite(cache, int(slot[1]) + 20, bytes([record(8)[20] ^ 1]))
    assert has(index, 7, 8, 9) == [True, False, True]
    assert add(index, 7, 8, 9) == 1 and has_all(index, 7, 8, 9)
    assert index.stats() == EntropyStats(learned=4, damaged=1)


@pytest.mark.parametrize("where", ["lost", "of another", "beyond", "wrapping", "long"])
def test_a_damaged_slot_is_refused_and_learned_again(cache: Path, where: str):
    index = EntropyIndex(learn=True)
    add(index, 7, 8)
    row = find(index.tables.learned, np.uint64(7))
    other = index.tables.learned[find(index.tables.learned, np.uint64(8))].tolist()
    begin, length = {
        "lost": (0, 0), "of another": (other[1], other[2]), "beyond": (1 << 21, 40), "wrapping": (2**64 - 8, 40),
        "long": (other[1], 2**63),
    }[where]  # fmt: skip
    overwrite(cache, HEADER_BYTES + SLOT_BYTES * row, np.array([7, begin, length], np.uint64).tobytes())
    assert has(index, 7, 8) == [False, True]
    assert add(index, 7) == 1 and has_all(index, 7, 8) and index.stats().damaged == 1


def test_an_end_that_went_back_costs_records_and_never_gives_wrong_ones(cache: Path):
    index = EntropyIndex(learn=True)
    add(index, *KEYS)
    overwrite(cache, 40, (HEADER_BYTES + SLOT_BYTES * len(index.tables.learned) + 10).to_bytes(8, "little"))
    assert add(index, 70, 71) == 2 and has_all(index, 70, 71)
    assert all(memory_of(index, key) in (None, record(key)) for key in KEYS)
    for _ in range(9):
        if add(index, *KEYS, 70, 71) == 0:
            break
    assert has_all(index, 70, 71, *KEYS), "what was written over is learned again, until the end is the end"


# Sidecars.


def test_sidecars_are_found_in_one_table_without_open_files(tmp_path: Path, said):
    paths = []
    for shard in range(5):
        keys = keys_of(range(1000 * shard, 1050 * shard))
        paths.append(str(tmp_path / f"{shard}.tar.gpuload-entropy"))
        write_sidecar(paths[-1], np.array(keys, np.uint64), [record(key, 40 + key % 50) for key in keys])
        sizes = sum(40 + key % 50 for key in keys)
        assert os.path.getsize(paths[-1]) == HEADER_BYTES + SLOT_BYTES * len(keys) + sizes
    before = len(os.listdir("/proc/self/fd"))
    index = EntropyIndex(paths, learn=False)
    assert len(os.listdir("/proc/self/fd")) == before
    for path in paths:
        os.unlink(path)
    for shard in range(5):
        for key in keys_of(range(1000 * shard, 1050 * shard)):
            assert memory_of(index, key) == record(key, 40 + key % 50)
    assert memory_of(index, 7) is None and said() == []
    fixed, key = index.tables.fixed, keys_of(range(1000, 1001))[0]
    index.close()
    address = int(fixed[find(fixed, np.uint64(key)), 1])
    assert index.tables is NO_TABLES and not fixed.flags.writeable
    assert ctypes.string_at(address, 40) == record(key, 40 + key % 50)[:40], "an array keeps its memory"
    del index, fixed
    gc.collect()
    assert "gpuload-entropy" not in Path("/proc/self/maps").read_text()


def test_a_sidecar_holds_what_has_a_record_and_comes_before_what_is_learned(tmp_path: Path):
    path = str(tmp_path / "a.gpuload-entropy")
    write_sidecar(path, np.array([0, 7, 8, 9], np.uint64), [record(1), record(7), b"", record(9)])
    index = EntropyIndex([path], learn=True)
    assert has(index, 7, 8, 9) == [True, False, True] and np.count_nonzero(index.tables.fixed[:, 0]) == 2
    add(index, 7, 8)
    assert has_all(index, 7, 8, 9)
    with pytest.raises(ValueError, match="2 keys and 1 records"):
        write_sidecar(path, np.array([7, 8], np.uint64), [record(7)])


def test_a_sidecar_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "shards" / "a.gpuload-entropy"
    path.parent.mkdir()
    write_sidecar(str(path), np.array([7], np.uint64), [record(7)])
    before = path.read_bytes()
    failing(monkeypatch, "replace", errno.EACCES, lambda *_: True)
    with pytest.raises(OSError):
        write_sidecar(str(path), np.array([8], np.uint64), [record(8)])
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


SIDECAR_DAMAGES = DAMAGES | {
    "a slot beyond the file": lambda path: overwrite(path, HEADER_BYTES + 8, b"\xff\xff\xff"),
    "a record beyond the file": lambda path: overwrite(path, HEADER_BYTES + 16, b"\xff\xff\xff"),
    "a slot that wraps around": lambda path: overwrite(path, HEADER_BYTES + 8, b"\xff" * 8),
    "a slot within the header": lambda path: overwrite(path, HEADER_BYTES + 8, bytes(8)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", SIDECAR_DAMAGES)
def test_a_damaged_sidecar_is_left_out_and_named(tmp_path: Path, damage: str, said):
    good, bad = tmp_path / "good.gpuload-entropy", tmp_path / "bad.gpuload-entropy"
    write_sidecar(str(good), np.array([7], np.uint64), [record(7)])
    write_sidecar(str(bad), np.arange(10, 200, dtype=np.uint64), [record(key) for key in range(10, 200)])
    SIDECAR_DAMAGES[damage](bad)
    index = EntropyIndex([str(bad), str(good)], learn=False)
    assert has(index, 7, 10, 11) == [True, False, False]
    assert len(said()) == 1 and str(bad) in said()[0]


def test_a_damaged_record_of_a_sidecar_gives_way_to_what_is_learned(tmp_path: Path):
    path = tmp_path / "a.gpuload-entropy"
    write_sidecar(str(path), np.array([7, 8], np.uint64), [record(7), record(8)])
    overwrite(path, HEADER_BYTES + 2 * SLOT_BYTES + 10, b"\0\0")
    index = EntropyIndex([str(path)], learn=True)
    assert has(index, 7, 8) == [False, True]
    assert add(index, 7) == 1 and has_all(index, 7, 8)
