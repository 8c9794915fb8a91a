"""Where an image's seek points are found, and where they are kept once a scan has been decoded.

    sidecars       <shard>.gpuload-entropy beside a shard, made by `gpuload index` or `pack`; read only
    learned file   one a node, in the cache directory: what first epochs left, shared by all processes

Both are searched by the image's content (kernels/seek_points.py), in compiled code and without a lock; their form is
entropy_file.py's. The learned file is as long as it will ever be from the start, a hole where nothing was written,
so that a mapping never has to be renewed. What is read is right or refused, by the record's checksum; so nothing that
goes wrong with a file is worth an error: reading goes on without it, and a line at INFO says why, once.

Concurrency:
1. Whoever writes holds flock, and a thread lock, since threads share the open file that flock is on
   (test_two_processes_append_at_once). A forked child opens the file again (test_a_forked_child_reads_and_learns).
2. First the record is written, then where records end, then the slot: a slot that is seen leads to its record, or to
   what its checksum refuses (test_a_reader_beside_a_writer_sees_whole_records_or_none).
3. Nothing is written through a mapping: where the disk is full that would be SIGBUS (test_a_full_disk_ends_learning).
4. The file is replaced only by renaming, while holding flock on the file that is replaced: one of many processes that
   start together makes it (test_who_waited_for_a_damaged_file_takes_the_one_that_replaced_it).
5. Mappings live as long as an array of theirs: `close` takes nothing from a call in flight.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.location import cache_dir
from gpuload.core.wording import size as size_text
from gpuload.decode.entropy_file import (
    END_AT,
    HEADER_BYTES,
    NO_SLOTS,
    SLOT_BYTES,
    VERSION,
    Header,
    Mapping,
    open_sidecars,
    read_header,
    replace_file,
)
from gpuload.kernels.seek_points import HAS_RECORD, NO_ROOM, RECORD_VERSION, row_to_write

BUDGET_BYTES = 4 << 30
"""ImageNet-1k's 1.28 million photographs leave 2.1 GB of records."""
FREE_SHARE = 10  # of the disk's free space, one tenth: the cache is nobody's first wish for it
BYTES_PER_SLOT = 1024  # photographs' records have 1600 bytes: the table is two thirds full when the file is
LOCK_WAIT_S = 2.0  # others hold the lock for some 50 us; one that was stopped meanwhile must not stop all
_AT_ONCE = 1000  # records a lock: a few milliseconds, when a whole shard's come together
_TRIES = 8  # to open a file that others replace


class Tables(NamedTuple):
    """What the kernel `points_of` wants of an index. Read-only arrays; memory is mapped while one of them is held.

    fixed    uint64 (m, 3)  slots of the sidecars: key, address, bytes
    learned  uint64 (n, 3)  slots of the learned file: key, offset, bytes; a live view
    base     address of the learned file, `size` its bytes; zeros without one
    """

    fixed: np.ndarray
    learned: np.ndarray
    base: int
    size: int


NO_TABLES = Tables(NO_SLOTS, NO_SLOTS, 0, 0)
"""Tables in which nothing is found."""


@dataclass(frozen=True)
class EntropyStats:
    """learned: records kept; damaged: of those, in place of one that was damaged; full: records without room."""

    learned: int = 0
    damaged: int = 0
    full: int = 0


class EntropyIndex:
    """All records that a loader may use: `tables`, to be taken at once, since `close` replaces them.

    learn: whether `add` keeps anything, and a file is made for it.
    """

    def __init__(self, sidecars: Sequence[str] = (), *, learn: bool):
        self._counts = _Counts()
        self._learn = learn
        fixed, file = open_sidecars(sidecars), learned_file(learn=learn)
        self._file = file
        self.tables = Tables(fixed, NO_SLOTS, 0, 0) if file is None else Tables(fixed, file.slots, file.base, file.size)

    @property
    def learning(self) -> bool:
        """Whether `add` may keep something: without, no points need to be made."""
        return self._learn and self._file is not None and self._file.learning

    def add(self, keys: np.ndarray, records: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> int:
        """Keep the records that are new, or whose like is damaged; returns how many.

        keys: uint64 (k,). records: uint8, flat; record i is records[offsets[i] : offsets[i] + sizes[i]], none where its
        size is 0. Any thread may call; nothing is raised.
        """
        file = self._file
        if not self._learn or file is None or not file.learning:
            return 0
        return file.add(keys, records, offsets, sizes, self._counts)

    def holds(self, key: int) -> bool:
        """Whether the learned file has a whole record of this image."""
        tables = self.tables
        return bool(row_to_write(tables.learned, tables.base, tables.size, np.uint64(key)) == HAS_RECORD)

    def stats(self) -> EntropyStats:
        return self._counts.now

    def close(self) -> None:
        """Forget all records and learn nothing more. Calls in flight go on with what they hold."""
        self._file = None
        self.tables = NO_TABLES

    def __repr__(self) -> str:
        fixed = int(np.count_nonzero(self.tables.fixed[:, 0]))
        return f"<EntropyIndex: {fixed} records in sidecars, {self._file}, {self.stats()}>"


class _Counts:
    """Changed only by whoever holds the file's lock; a snapshot is read at once."""

    def __init__(self) -> None:
        self.now = EntropyStats()

    def add(self, learned: int, damaged: int, full: int) -> None:
        now = self.now
        self.now = replace(now, learned=now.learned + learned, damaged=now.damaged + damaged, full=now.full + full)


class _Writer:
    """An open file that belongs to one process: flock is between open files, the lock between threads that share it."""

    def __init__(self, path: str, inode: tuple[int, int]):
        self.pid, self.lock = os.getpid(), threading.Lock()
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd).atexit = False
        if _inode(os.fstat(self.fd)) != inode:
            raise OSError(errno.ESTALE, "it was replaced")


class LearnedFile:
    """The learned file as one process sees it; several loaders share it. Raises OSError or ValueError where it can't.

    limit: where records may end at most.
    """

    def __init__(self, path: str, *, limit: int):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = read_header(fd)
            if header.slots & (header.slots - 1) or not header.slots:
                raise ValueError("its slots are no power of two")
            self._mapping = Mapping(fd, header.size)
            self.inode = _inode(os.fstat(fd))
        finally:
            os.close(fd)
        self.path, self.size, self.base = path, header.size, self._mapping.address
        self.slots = self._mapping.slots(header.slots)
        self.learning = True
        self._start, self._limit = header.records_start, min(limit, header.size)
        self._writer: _Writer | None = None

    def add(
        self, keys: np.ndarray, records: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, counts: _Counts
    ) -> int:
        """See EntropyIndex.add."""
        kept = 0
        try:
            for start in range(0, len(keys), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                with self._locked() as fd:
                    if self.learning:
                        kept += self._append(fd, keys[part], records, offsets[part], sizes[part], counts)
        except OSError as error:
            self.stop(str(error))
        return kept

    def stop(self, reason: str) -> None:
        """Learn nothing more, and say why, once."""
        if self.learning:
            self.learning = False
            logging.getLogger("gpuload").info("no more seek points are learned to %s: %s", self.path, reason)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        writer = self._writer
        if writer is None or writer.pid != os.getpid():
            # Two threads may come here at once: each then has an open file of its own, and flock keeps them apart.
            writer = self._writer = _Writer(self.path, self.inode)
        with writer.lock:
            _flock(writer.fd)
            try:
                yield writer.fd
            finally:
                fcntl.flock(writer.fd, fcntl.LOCK_UN)  # closing wouldn't: a forked child may hold the open file too

    def _append(
        self, fd: int, keys: np.ndarray, records: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, counts: _Counts
    ) -> int:
        end = start = int.from_bytes(os.pread(fd, 8, END_AT), "little")
        if not self._start <= end <= self.size:
            raise OSError(errno.EIO, "its header is damaged")
        chosen: dict[int, int] = {}  # by key: an image may come twice in a batch
        full = 0
        for i in np.flatnonzero(sizes).tolist():
            key = int(keys[i])
            row = row_to_write(self.slots, self.base, self.size, np.uint64(key))
            if key == 0 or key in chosen or row == HAS_RECORD:
                continue
            if row == NO_ROOM or end + int(sizes[i]) > self._limit:
                full += 1
                continue
            chosen[key] = i
            end += int(sizes[i])
        if chosen:
            _write(fd, b"".join(records[offsets[i] : offsets[i] + sizes[i]].tobytes() for i in chosen.values()), start)
            _write(fd, end.to_bytes(8, "little"), END_AT)
        damaged = kept = 0
        for key, i in chosen.items():
            row = row_to_write(self.slots, self.base, self.size, np.uint64(key))  # its neighbours were written just now
            if row == NO_ROOM:
                full += 1
            else:
                damaged += bool(self.slots[row, 0])
                kept += 1
                slot = np.array([key, start, sizes[i]], np.uint64)
                _write(fd, slot.tobytes(), HEADER_BYTES + SLOT_BYTES * row)
            start += int(sizes[i])
        counts.add(kept, damaged, full)
        if full:
            self.stop(f"its {size_text(self._limit)} are full")
        return kept

    def __repr__(self) -> str:
        return f"{np.count_nonzero(self.slots[:, 0])} learned in {self.path}{'' if self.learning else ' (ended)'}"


def learned_path() -> str:
    """Where this version of the format has the node's learned records."""
    return os.path.join(cache_dir(), "entropy", f"learned-{VERSION}.{RECORD_VERSION}")


_opened: weakref.WeakValueDictionary[str, LearnedFile] = weakref.WeakValueDictionary()


def learned_file(*, learn: bool) -> LearnedFile | None:
    """The learned file, opened once a process; None where there is none, or GPULOAD_ENTROPY_BYTES is 0.

    learn: make it where it is missing or damaged. Raises ConfigError where GPULOAD_ENTROPY_BYTES is no number of bytes.
    """
    wanted = _wanted_bytes()
    if wanted == 0:
        return None
    path = learned_path()
    known = _opened.get(path)
    if known is not None and _is_at(path, known.inode):
        return known
    ended = ""
    if learn:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _make_whole(path, wanted)
        except OSError as error:
            ended = str(error)
    try:
        file = LearnedFile(path, limit=wanted or _limit(path))
    except (OSError, ValueError) as error:
        if learn:
            logging.getLogger("gpuload").info("no seek points are learned: %s: %s", path, ended or error)
        return None
    if ended:
        file.stop(ended)
    _opened[path] = file
    return file


def _wanted_bytes() -> int | None:
    """What the user allows; None: not said."""
    text = os.environ.get("GPULOAD_ENTROPY_BYTES")
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"GPULOAD_ENTROPY_BYTES is {text!r}: it must be a number of bytes, 0 for no learning")
    return int(text)


def _limit(path: str) -> int:
    """By default: what is there, and a share of the disk's free space."""
    with open(path, "rb", buffering=0) as file:
        end = read_header(file.fileno()).end
    disk = os.statvfs(path)
    return min(BUDGET_BYTES, end + disk.f_bavail * disk.f_frsize // FREE_SHARE)


def _make_whole(path: str, wanted: int | None) -> None:
    """Make sure that a whole file stands at `path`, as large as the user asked for if they did. Raises OSError."""
    size = wanted or BUDGET_BYTES
    slots = 1 << max(size // BYTES_PER_SLOT, 1).bit_length() - 1
    fresh = Header(slots, size, HEADER_BYTES + SLOT_BYTES * slots)
    if fresh.end >= size:
        raise OSError(errno.ENOSPC, f"{size_text(size)} hold no record")
    for _ in range(_TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _flock(fd)
            if not _is_at(path, _inode(os.fstat(fd))):
                continue  # another process replaced it while we waited
            with contextlib.suppress(ValueError):
                if read_header(fd).size >= (wanted or 0):
                    return
            replace_file(path, fresh, [])
            return
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
    raise OSError(errno.EBUSY, "it is replaced again and again")


def _flock(fd: int) -> None:
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has held its lock for {LOCK_WAIT_S} s") from None
        time.sleep(2e-4)


def _write(fd: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _inode(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _is_at(path: str, inode: tuple[int, int]) -> bool:
    with contextlib.suppress(OSError):
        return _inode(os.stat(path)) == inode
    return False
