"""Open files, at most so many: a shard is opened once and read many times.

Owns the descriptors. A descriptor keeps its inode: as long as it is open, a shard replaced by renaming is read as it
was indexed. What is opened again is another file then, which local.py finds out.

Concurrency:
1. A descriptor in use is never closed: `users` counts them, and only entries with none are evicted
   (test_an_open_file_in_use_is_never_closed).
2. `os.open` runs outside the lock: a mount that hangs blocks its own reader, not the others.
3. After a fork the child has one thread and perhaps a lock that nobody will release: it closes without the lock.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import OrderedDict

from gpuload.core.stamp import Stamp


class OpenFile:
    """A descriptor lent by OpenFiles; `fd` is valid until it is given back.

    stamp: of the version that is wanted, where it is known. replaced: it was found to be another one.
    """

    __slots__ = ("fd", "path", "replaced", "stamp", "users")

    def __init__(self, path: str, fd: int, stamp: Stamp | None):
        self.path, self.fd, self.stamp, self.users, self.replaced = path, fd, stamp, 1, False


class OpenFiles:
    """An LRU of read-only descriptors. Thread-safe. It exceeds `max_open_files` only while that many are lent."""

    def __init__(self, *, max_open_files: int):
        self._limit = max_open_files
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._closed = False
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._files)
        self._finalizer.atexit = False  # the system closes them, and threads may still be reading

    def __len__(self) -> int:
        return len(self._files)

    def lend(self, path: str, stamp: Stamp | None = None) -> OpenFile:
        """The open file of `path`, to be given back; stamp: the same each time. Raises OSError as `os.open` does."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                file.users += 1
                self._files.move_to_end(path)
                return file
        fd = self._open(path)
        with self._lock:
            file = self._files.get(path)
            if file is None and not self._closed:
                file = self._files[path] = OpenFile(path, fd, stamp)
                self._evict(self._limit)
                return file
            if file is None:  # closed meanwhile: lent once, closed when given back
                return OpenFile(path, fd, stamp)
            file.users += 1
            self._files.move_to_end(path)
        os.close(fd)
        return file

    def give_back(self, file: OpenFile) -> None:
        """One whose content is another now is opened anew by whoever wants it next."""
        with self._lock:
            file.users -= 1
            if file.replaced and self._files.get(file.path) is file:
                del self._files[file.path]
            if file.users == 0 and self._files.get(file.path) is not file:
                os.close(file.fd)
            elif len(self._files) > self._limit:
                self._evict(self._limit)

    def close(self) -> None:
        """Close what is not lent; what is lent is closed when it comes back. Idempotent."""
        if os.getpid() != self._pid:
            self._finalizer()
            return
        with self._lock:
            self._closed = True
            for file in self._files.values():
                if file.users == 0:
                    os.close(file.fd)
            self._files.clear()

    def _open(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        with self._lock:
            self._evict(0)  # the process has no descriptor left: ours that lie idle are the first to go
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _evict(self, keep: int) -> None:
        excess = len(self._files) - keep
        if excess > 0:
            for path, file in list(self._files.items()):
                if file.users == 0:
                    del self._files[path]
                    os.close(file.fd)
                    excess -= 1
                    if not excess:
                        return


def _close_all(files: dict[str, OpenFile]) -> None:
    for file in files.values():
        os.close(file.fd)
    files.clear()
