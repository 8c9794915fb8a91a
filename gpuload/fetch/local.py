"""D. Local files into one flat buffer, by positional reads.

Owns the descriptors, the sharing of slow work among threads, and which rows fail when a file does. Which ranges are
read is coalesce.py's.

Pieces of shards are read by compiled code, where the reader was made for batches: it then loads the kernel at once,
before there are threads. Whatever that leaves unread, and every whole file, is read from Python, which knows why.

Where it is known of which version of a file the pieces are, each batch looks at the file once, after its pieces were
read: rewriting it would have changed its time before. Those of another version fail.

A batch is read by the thread that asks. Only where a chunk of it takes longer than any page cache would need are the
rest of its chunks shared with helper threads: warm files cost no hand-over, cold ones get their requests in parallel.
What is read is the same either way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuload.core.batch import EncodedBatch
from gpuload.core.location import local_path
from gpuload.core.stamp import Stamp
from gpuload.core.threads import DaemonPool
from gpuload.fetch.coalesce import ReadPlan, coalesce, with_sizes
from gpuload.fetch.limits import LocalLimits
from gpuload.fetch.open_files import OpenFile, OpenFiles

CHUNK_RANGES = 16
"""Ranges one thread takes at a time: few enough to share a batch of 64, many enough to measure their time."""

CHUNK_PIECES = 32
"""The same for compiled code: a chunk costs 30 us of Python."""

SMALL_BYTES = 64 << 10
"""Pieces that are larger on average take longer to read than to ask for, and are better shared in smaller chunks."""

SLOW_RANGE_S, SLOW_BYTES_PER_S = 150e-6, 0.5e9
"""Slower than both together is not the page cache (warm on Zen 4: 12 us a file, 7 GB/s)."""

Range = tuple[int, int, int, int, int, int, bool]
ReadPieces = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
"""kernels.positional_read.read_pieces"""


class LocalReader:
    """RangeReader over paths and file:// URLs. A new one works after a fork.

    batches: many small pieces at once are what it reads. stamps: of the files of which pieces are read, where they are
    known: pieces of another version are errors. Other keywords: `LocalLimits`' fields.
    """

    def __init__(self, *, batches: bool = False, stamps: Mapping[str, Stamp] | None = None, **limits: int):
        self.limits, self._stamps = LocalLimits(**limits), stamps or {}
        self._read_pieces: ReadPieces | None = None
        if batches:
            from gpuload.kernels.positional_read import read_pieces  # here: the compiler takes 0.4 s to import

            self._read_pieces = read_pieces
        self._open = OpenFiles(max_open_files=self.limits.max_open_files)
        self._helpers = DaemonPool(threads=max(1, self.limits.threads - 1), name="gpuload-read")
        self._pid = os.getpid()

    def read(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        """The bytes of refs: SAMPLE_REF (n,). What a file's OSError or early end costs is in `failures`, row by row."""
        plan = coalesce(refs, gap_bytes=self.limits.gap_bytes, max_range_bytes=self.limits.max_range_bytes)
        failures: dict[int, BaseException] = {}
        if plan.ranges["whole"].any():
            plan = self._measure(files, plan, failures)
        data = np.empty(plan.total_bytes, np.uint8)
        reading = _Reading(files, plan, data, self._open, failures, self._read_pieces, self._stamps)
        small = plan.total_bytes <= SMALL_BYTES * len(plan.ranges)
        if self._read_pieces is None or not small or plan.ranges["whole"].any():
            self._share(_chunks(plan.ranges.tolist(), self.limits.max_range_bytes), reading.read_chunk)
        else:
            self._share(_pieces(plan.ranges), reading.read_pieces)
        if failures:
            plan.lengths[list(failures)] = 0
        return EncodedBatch(data, plan.offsets, plan.lengths, (), failures)

    def close(self) -> None:
        """End the threads and close the files. Idempotent; reads that are under way end first, or alone."""
        if os.getpid() == self._pid:
            self._helpers.close()
        self._open.close()

    def __repr__(self) -> str:
        return f"LocalReader(open_files={len(self._open)}/{self.limits.max_open_files}, {self._helpers!r})"

    def _measure(self, files: Sequence[str], plan: ReadPlan, failures: dict[int, BaseException]) -> ReadPlan:
        whole = plan.ranges[plan.ranges["whole"]]
        sizes = np.zeros(len(whole), np.int64)

        def measure(chunk: list[tuple[int, int, int]]) -> None:
            for number, file, first in chunk:
                try:
                    sizes[number] = os.stat(local_path(files[file])).st_size
                except OSError as error:
                    failures[int(plan.rows[first])] = error

        todo = list(zip(range(len(whole)), whole["file"].tolist(), whole["first"].tolist(), strict=True))
        self._share([(todo[i : i + CHUNK_RANGES], 0) for i in range(0, len(todo), CHUNK_RANGES)], measure)
        return with_sizes(plan, sizes)

    def _share(self, chunks: list[tuple[Any, int]], work: Callable[[Any], None]) -> None:
        """work(chunk) for each (chunk, bytes in it): here, and on helpers once one has been slow."""
        if len(chunks) == 1 or self.limits.threads < 2 or os.getpid() != self._pid:
            for chunk, _ in chunks:
                work(chunk)
            return
        pending, team = deque(chunks), None
        while pending:
            try:
                chunk, size = pending.popleft()
            except IndexError:  # a helper took the last one
                break
            start = time.perf_counter()
            work(chunk)
            slow = len(chunk) * SLOW_RANGE_S + size / SLOW_BYTES_PER_S
            if team is None and pending and time.perf_counter() - start > slow:
                team = _Team(self._helpers, min(self.limits.threads - 1, len(pending)), pending, work)
        if team is not None:
            team.wait()


class _Team:
    """Helpers that empty `pending` beside the caller, who then waits for those that have begun and no others."""

    def __init__(self, pool: DaemonPool, size: int, pending: deque, work: Callable[[list[Any]], None]):
        self._pending, self._work = pending, work
        self._tickets = [None] * size  # popped by whoever comes first, the helper or `wait`: list.pop is atomic
        self._size, self._ended = size, threading.Semaphore(0)
        self._crash: BaseException | None = None
        for _ in range(size):
            pool.submit(self._help)  # of a pool closed meanwhile nobody comes, and the caller does it all

    def wait(self) -> None:
        begun = self._size
        while self._take_ticket():
            begun -= 1
        for _ in range(begun):
            self._ended.acquire()
        if self._crash is not None:
            raise self._crash

    def _help(self) -> None:
        if not self._take_ticket():
            return
        try:
            while True:
                try:
                    chunk, _ = self._pending.popleft()
                except IndexError:
                    break
                self._work(chunk)
        except Exception as error:  # OSErrors were dealt with by `work`: this is a bug, and the caller must see it
            self._crash = error
        finally:
            self._ended.release()

    def _take_ticket(self) -> bool:
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True


class _Reading:
    """One batch being read: where its ranges go and what became of its rows. Chunks may be read by several threads."""

    def __init__(
        self,
        files: Sequence[str],
        plan: ReadPlan,
        data: np.ndarray,
        open_files: OpenFiles,
        failures: dict[int, BaseException],
        read_pieces: ReadPieces | None,
        stamps: Mapping[str, Stamp],
    ):
        self._files, self._plan, self._data, self._view = files, plan, data, data.data
        self._open, self._failures, self._read_pieces, self._stamps = open_files, failures, read_pieces, stamps

    def read_pieces(self, ranges: np.ndarray) -> None:
        """The same for RANGEs that are no whole files, in order of file: read together, and one by one what is left."""
        assert self._read_pieces is not None
        number = ranges["file"]
        first = np.flatnonzero(np.diff(number, prepend=-1))
        descriptors = np.full(len(first), -1, np.int32)  # -1: a read fails, and is made again by whoever can say why
        lent: dict[int, OpenFile] = {}
        try:
            for place, file in enumerate(number[first].tolist()):
                with contextlib.suppress(OSError):
                    lent[file] = self._lend(file)
                    descriptors[place] = lent[file].fd
            offset, length, at = (np.ascontiguousarray(ranges[name]) for name in ("offset", "length", "at"))
            got = np.empty(len(ranges), np.int64)
            descriptors = np.repeat(descriptors, np.diff(first, append=len(ranges)))
            self._read_pieces(descriptors, offset, length, at, self._data, got)
            left = got != length
            for file, open_file in lent.items():
                if not self._is_same(open_file):
                    left[number == file] = True  # to be failed there
        finally:
            for open_file in lent.values():
                self._open.give_back(open_file)
        if left.any():
            self.read_chunk(ranges[left].tolist())

    def read_chunk(self, chunk: list[Range]) -> None:
        view = self._view
        lent: OpenFile | None = None
        number, since = -1, 0
        try:
            for place, (file, offset, length, at, first, stop, whole) in enumerate(chunk):
                if not length:
                    continue
                try:
                    if whole:
                        self._read_whole(local_path(self._files[file]), at, length, first)
                        continue
                    if file != number:
                        if lent is not None:
                            self._give_back(lent, number, chunk[since:place])
                            lent, number = None, -1
                        lent, number, since = self._lend(file), file, place
                    assert lent is not None
                    got = _read_fully(lent.fd, view[at : at + length], offset)
                except OSError as error:
                    if lent is not None and stop - first > 1:
                        self._read_apart(lent, offset, at, first, stop)
                    else:
                        self._fail(first, stop, error)
                    continue
                if got < length:
                    self._fail_beyond(got, lent.path, offset, at, first, stop)
        finally:
            if lent is not None:
                self._give_back(lent, number, chunk[since:])

    def _lend(self, number: int) -> OpenFile:
        url = self._files[number]
        return self._open.lend(local_path(url), self._stamps.get(url))

    def _is_same(self, file: OpenFile) -> bool:
        """Whether what was read of it so far is of the version that is wanted."""
        file.replaced = file.stamp is not None and not file.stamp.is_of(os.fstat(file.fd))
        return not file.replaced

    def _give_back(self, file: OpenFile, number: int, chunk: list[Range]) -> None:
        """The file of these ranges, among others; they fail where it isn't the one that is wanted."""
        if file.stamp is not None and not self._is_same(file):
            error = replaced(file.path, file.stamp, os.fstat(file.fd))
            for of, _, _, _, first, stop, whole in chunk:
                if of == number and not whole:
                    self._fail(first, stop, error)
        self._open.give_back(file)

    def _read_whole(self, path: str, at: int, length: int, first: int) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            got = _read_fully(fd, self._view[at : at + length], 0)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if got != size:
            self._fail(first, first + 1, early_end(path, f"its size changed to {size} bytes while {got} were read"))

    def _read_apart(self, file: OpenFile, offset: int, at: int, first: int, stop: int) -> None:
        """The rows of a range that cannot be read in one piece (a bad sector in it), each for itself."""
        plan = self._plan
        for place in range(first, stop):
            row = plan.rows[place]
            where, length = int(plan.offsets[row]), int(plan.lengths[row])
            try:
                got = _read_fully(file.fd, self._view[where : where + length], offset + where - at)
            except OSError as error:
                self._fail(place, place + 1, error)
                continue
            if got < length:
                self._fail_beyond(got, file.path, offset + where - at, where, place, place + 1)

    def _fail_beyond(self, got: int, path: str, offset: int, at: int, first: int, stop: int) -> None:
        fail_beyond(self._plan, got, path, offset, at, first, stop, self._failures)

    def _fail(self, first: int, stop: int, error: OSError) -> None:
        for row in self._plan.rows[first:stop].tolist():
            self._failures[row] = error


def fail_beyond(
    plan: ReadPlan,
    got: int,
    path: str,
    offset: int,
    at: int,
    first: int,
    stop: int,
    failures: dict[int, BaseException],
) -> None:
    """Note the rows of a range that do not lie in the `got` bytes that came of it; the others are whole."""
    for row in plan.rows[first:stop].tolist():
        begin, length = int(plan.offsets[row]) - at, int(plan.lengths[row])
        if begin + length > got:
            failures[row] = early_end(
                path,
                f"it ends at byte {offset + got}, and the sample lies at {offset + begin} to {offset + begin + length}",
            )


def replaced(path: str, stamp: Stamp, now: os.stat_result) -> OSError:
    """The error of a file that is not of the version of this stamp any more."""
    if now.st_size != stamp.size:
        found = f"it has {now.st_size} bytes and had {stamp.size}"
    else:
        found = f"it was written at {_time(now.st_mtime_ns)}, and before that at {_time(int(stamp.version))}"
    cure = "Make the data set anew, and give new versions new names"
    return OSError(errno.ESTALE, f"the file was replaced since it was indexed: {found}. {cure}", path)


def _time(ns: int) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(ns // 10**9))}.{ns % 10**9:09d}"


def early_end(path: str, problem: str) -> OSError:
    return OSError(errno.EIO, f"short read: {problem}; was the file cut off or replaced after it was indexed?", path)


def _read_fully(fd: int, into: memoryview, offset: int) -> int:
    """Bytes read into all of `into`, or up to the file's end."""
    got = os.preadv(fd, (into,), offset)
    if got == len(into) or not got:
        return got
    while got < len(into):  # a signal, a network file system, or Linux's 2 GiB a call
        more = os.preadv(fd, (into[got:],), offset + got)
        if not more:
            break
        got += more
    return got


def _pieces(ranges: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """RANGEs in chunks, and the bytes of each."""
    starts = np.arange(0, len(ranges), CHUNK_PIECES)
    sizes = np.add.reduceat(ranges["length"], starts).tolist() if len(starts) else []
    return [(ranges[at : at + CHUNK_PIECES], size) for at, size in zip(starts.tolist(), sizes, strict=True)]


def _chunks(ranges: list[Range], max_bytes: int) -> list[tuple[list[Any], int]]:
    chunks: list[tuple[list[Any], int]] = []
    chunk: list[Range] = []
    size = 0
    for item in ranges:
        if chunk and (len(chunk) == CHUNK_RANGES or size + item[2] > max_bytes):
            chunks.append((chunk, size))
            chunk, size = [], 0
        chunk.append(item)
        size += max(item[2], 0)
    chunks.append((chunk, size))
    return chunks
