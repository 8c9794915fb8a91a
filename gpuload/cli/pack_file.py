"""A file that `gpuload pack` writes: under a temporary name until it is whole, and on disk where that is asked for.

Owns the names, gathering what is written into few calls of the system, the checksum of all that is no image, and what
an error of the disk is called. What stands in a file is its writer's (gpuload/shards/write_*.py).
"""

from __future__ import annotations

import errno
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from gpuload.core.errors import GpuloadError, ShardError
from gpuload.shards.checksums import rest_sum, sum_text

SMALL_BYTES = 4 << 10
"""Pieces that are smaller on average are copied together: the system takes longer over each than copying does."""

PIECES_A_CALL = 1024
"""Linux's IOV_MAX."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class PartialFile(io.RawIOBase):
    """A file under a temporary name, empty at first. One thread at a time; `complete` or `abandon` ends it.

    What is written is kept until `flush`: memoryviews must stay as they are so long.
    """

    def __init__(self, path: str):
        folder, base = os.path.split(path)
        self.path, self._temporary = path, f"{folder}/.{base}.partial"
        self._pieces: list[Any] = []
        self._images: list[tuple[int, int]] = []
        self._at = self._flushed = 0
        self._rest: int | None = 0  # None once something was written twice
        with naming_errors(path):
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    # What writers see

    def write(self, data: Any) -> int:
        size = len(data)
        if not isinstance(data, (bytes, memoryview)):  # pyarrow's: it may use the memory again
            data = bytes(data)
        self._pieces.append(data)
        self._at += size
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.flush()
        at = os.lseek(self._fd, offset, whence)
        if at != self._at:
            self._rest = None
        self._at = self._flushed = at
        return at

    def tell(self) -> int:
        return self._at

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Hand what was gathered to the system."""
        if not self._pieces:
            return
        pieces, self._pieces = self._pieces, []
        if self._rest is not None:
            self._rest = zlib.crc32(b"".join(_outside(pieces, self._images, self._flushed)), self._rest)
            self._images = [image for image in self._images if image[1] > self._at]
        with naming_errors(self.path):
            _write_all(self._fd, pieces)
        self._flushed = self._at

    # What `gpuload pack` does with it

    def leave_out(self, start: int, stop: int) -> None:
        """These bytes, written since the last `flush`, are an image's, and not part of `rest`."""
        self._images.append((start, stop))

    def rest(self, images: np.ndarray) -> str:
        """The checksum of all that was not left out. images: int64 (n, 2), where that is."""
        self.flush()
        if self._rest is not None:
            return sum_text(self._rest)
        return rest_sum(lambda offset, length: os.pread(self._fd, length, offset), self.size, images)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def complete(self, *, sync: bool) -> None:
        """Give it its name; sync: once it is on disk. Raises ShardError, and then there is no such file."""
        try:
            with naming_errors(self.path):
                self.flush()
                if sync:
                    os.fsync(self._fd)
                fd, self._fd = self._fd, -1
                os.close(fd)
                os.replace(self._temporary, self.path)
                if sync:
                    _sync_folder(os.path.dirname(self.path))
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove it. Idempotent."""
        self._pieces = []
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)


@contextmanager
def new_file(path: str) -> Iterator[PartialFile]:
    """A file that appears under `path` when the block ends, whole and on disk, or not at all.

    Raises ShardError where nothing can be written.
    """
    file = PartialFile(path)
    try:
        yield file
    except BaseException:
        file.abandon()
        raise
    file.complete(sync=True)


@contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Raises ShardError for an OSError of the block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GpuloadError):
            raise
        if error.errno not in NO_SPACE:
            raise ShardError(path, f"it cannot be written: {error}", "Check the disk") from error
        cure = "Make room, then run the same command again: it goes on with this shard"
        raise ShardError(path, f"no room for it: {error.strerror}", cure) from error


def _outside(pieces: list[Any], images: list[tuple[int, int]], at: int) -> Iterator[Any]:
    """What of these pieces, the first of which begins at byte `at`, belongs to no image. images: in order."""
    left = iter(images)
    start, stop = next(left, (1 << 62, 1 << 62))
    for piece in pieces:
        end = at + len(piece)
        begin = at
        while start < end:
            if begin < start:
                yield piece[begin - at : start - at]
            begin = min(stop, end)
            if stop > end:
                break
            start, stop = next(left, (1 << 62, 1 << 62))
        if begin < end:
            yield piece if begin == at else piece[begin - at :]
        at = end


def _write_all(fd: int, pieces: list[Any]) -> None:
    if sum(map(len, pieces)) < SMALL_BYTES * len(pieces):
        pieces = [b"".join(pieces)]
    for first in range(0, len(pieces), PIECES_A_CALL):
        part = pieces[first : first + PIECES_A_CALL]
        left = sum(map(len, part))
        while left:
            done = os.writev(fd, part)
            left -= done
            while left and done >= len(part[0]):  # a full disk or 2 GiB: not all of it went
                done -= len(part.pop(0))
            if left and done:
                part[0] = memoryview(part[0])[done:]


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
