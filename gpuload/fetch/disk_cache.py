"""Chunks of remote shards on local disk, shared by the processes of a node and by one run after another.

    chunks/KEY/NUMBER    a chunk's bytes; KEY names one version of one shard (of loose images: a share of a listing,
                         NUMBER one version of one image: whole_files.py)
    readers/NAME         locked by a process while it lives: the keys that it reads
    used                 bytes of all chunks, changed under a lock; counted anew where it holds no number

Owns these files, all in FOLDER/gpuload-cache: whatever else lies in FOLDER is the user's. A chunk appears under its
name when it is whole, so that a process may be killed at any moment: what it leaves is a temporary file, and a count
that is too high, until a process opens the cache alone and counts anew. What no living process reads makes room, the
longest unused shard first; nothing else does (cache_store.py). A disk that is full, or fails, ends growing and not
training.

Concurrency:
1. A lock is flock's, which dies with its process. That of `used` is held while a number is read and written, a chunk
   renamed or a shard evicted; never while a chunk is written.
2. A reader may hold a chunk open that is evicted: its inode lives as long. One that comes later reads it remotely.
3. A forked child makes a store of its own (`open_store`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.stamp import Stamp
from gpuload.core.warned import warn_on_a_thread
from gpuload.fetch.cache_spec import CacheSpec
from gpuload.fetch.cache_store import ChunkStore, MemoryStore, StoreStats
from gpuload.fetch.open_files import OpenFiles

OWN_FOLDER = "gpuload-cache"
USED_BYTES = 24
"""What is read and written of `used`: a number, and spaces."""
MAX_OPEN_FILES = 128
FULL_S = 60.0
"""How long a full cache is believed to be full before it is asked again: other runs end, and leave what can go."""


class DiskStore:
    """At most limit_bytes below `folder`, whoever wrote them. Raises ConfigError where nothing can be kept there."""

    def __init__(self, folder: str, limit_bytes: int):
        self._limit, self._root = limit_bytes, Path(folder, OWN_FOLDER)
        self._chunks, self._readers = self._root / "chunks", self._root / "readers"
        self._open = OpenFiles(max_open_files=MAX_OPEN_FILES)
        self._used: set[str] = set()
        self._lock = threading.Lock()
        self._full_since: float | None = None
        self._broken = ""
        try:
            self._chunks.mkdir(parents=True, exist_ok=True)
            self._readers.mkdir(exist_ok=True)
            self._alive = _lock_shared(self._root / "alive", first=self._recount)
            with self._counted():  # else somebody who evicts takes it for a dead process's before it is locked
                self._mine = os.open(self._readers / uuid.uuid4().hex, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
                fcntl.flock(self._mine, fcntl.LOCK_EX)
        except OSError as error:
            raise ConfigError(f"nothing can be cached in {folder}: {error.strerror}. Name another folder") from error
        weakref.finalize(self, _close, self._alive, self._mine).atexit = False

    def use(self, keys: Iterable[str]) -> None:
        with self._lock:
            new = [key for key in dict.fromkeys(keys) if key not in self._used]
            self._used.update(new)
            if new:
                os.write(self._mine, "".join(f"{key}\n" for key in new).encode())
        for key in new:
            with contextlib.suppress(OSError):
                os.utime(self._chunks / key)  # how long a shard is unused counts from the last run that began with it

    def has(self, key: str, chunk: int) -> bool:
        return os.path.exists(self._path(key, chunk))

    def read(self, key: str, chunk: int, size: int, begin: int, out: np.ndarray) -> bool:
        try:
            file = self._open.lend(self._path(key, chunk))
        except OSError:
            return False
        try:
            done = 0
            while os.fstat(file.fd).st_size == size and done < out.size:
                count = os.preadv(file.fd, [out.data[done:]], begin + done)
                if not count:
                    break
                done += count
            return done == out.size
        except OSError:
            return False
        finally:
            self._open.give_back(file)

    def grows(self) -> bool:
        if self._full_since is not None and time.monotonic() - self._full_since > FULL_S:
            self._full_since = None
        return self._full_since is None and not self._broken

    def put(self, key: str, chunk: int, data: np.ndarray) -> bool:
        if not self.grows():
            return False
        path = self._path(key, chunk)
        temporary = os.path.join(self._chunks, f".{uuid.uuid4().hex}")
        reserved = 0
        try:
            if os.path.exists(path):
                return True
            self.use([key])
            if not self._reserve(data.size):
                self._full_since = time.monotonic()
                return False
            reserved = data.size
            with open(temporary, "xb", buffering=0) as file:
                _write_all(file.fileno(), data)
            with self._counted() as used:
                if os.path.exists(path):  # another process was faster
                    used.bytes -= reserved
                else:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    os.rename(temporary, path)
            reserved = 0
            return True
        except OSError as error:
            self._stop(error)
            return False
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if reserved:
                with contextlib.suppress(OSError), self._counted() as used:
                    used.bytes -= reserved

    def stats(self) -> StoreStats:
        try:
            held = _number((self._root / "used").read_bytes())
            held = self._count() if held is None else held
        except OSError:
            held = 0
        return StoreStats(held, self._limit, self._broken or ("" if self._full_since is None else "it is full"))

    def __repr__(self) -> str:
        stats = self.stats()
        return f"DiskStore({str(self._root)!r}, {stats.held_bytes}/{self._limit} bytes)"

    def _path(self, key: str, chunk: int) -> str:
        return f"{self._chunks}/{key}/{chunk}"

    def _reserve(self, size: int) -> bool:
        with self._counted() as used:
            if used.bytes + size > self._limit:
                used.bytes -= self._evict(used.bytes + size - self._limit)
            if used.bytes + size > self._limit:
                return False
            used.bytes += size
            return True

    def _evict(self, size: int) -> int:
        """Remove shards that nobody reads until `size` bytes are free, or none is left. How many became free."""
        in_use, freed = self._in_use(), 0
        shards = [entry for entry in os.scandir(self._chunks) if entry.is_dir() and entry.name not in in_use]
        for shard in sorted(shards, key=lambda entry: entry.stat().st_mtime_ns):
            if freed >= size:
                break
            freed += sum(chunk.stat().st_size for chunk in os.scandir(shard.path))
            shutil.rmtree(shard.path)
        return freed

    def _in_use(self) -> set[str]:
        """The keys that living processes read; what the dead left is removed."""
        keys = set(self._used)
        for entry in os.scandir(self._readers):
            fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.unlink(entry.path)
            except BlockingIOError:
                keys.update(Path(entry.path).read_text().split())
            finally:
                os.close(fd)
        return keys

    @contextlib.contextmanager
    def _counted(self) -> Iterator[_Used]:
        fd = os.open(self._root / "used", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            before = _number(os.pread(fd, USED_BYTES, 0))
            used = _Used(self._count() if before is None else before)
            yield used
            if used.bytes != before:
                os.pwrite(fd, b"%-*d" % (USED_BYTES, max(0, used.bytes)), 0)
        finally:
            os.close(fd)

    def _recount(self) -> None:
        """Nobody else is here: remove what a killed process left, and count what there is."""
        for entry in os.scandir(self._chunks):
            if not entry.is_dir():
                os.unlink(entry.path)
        with self._counted() as used:
            used.bytes = self._count()

    def _count(self) -> int:
        """Bytes of all chunks. Whoever calls holds the lock of `used`, or takes what is about right."""
        shards = [entry.path for entry in os.scandir(self._chunks) if entry.is_dir()]
        return sum(chunk.stat().st_size for shard in shards for chunk in os.scandir(shard))

    def _stop(self, error: OSError) -> None:
        with self._lock:
            told, self._broken = self._broken, f"{os.strerror(error.errno or errno.EIO)}"
        if not told:
            warn_on_a_thread(
                f"the cache in {self._root} does not grow any more: {self._broken}. Reading goes on; what it holds is "
                "used",
                stacklevel=2,
            )


class _Used:
    def __init__(self, n_bytes: int):
        self.bytes = n_bytes


_stores: weakref.WeakValueDictionary[tuple[int, CacheSpec], ChunkStore] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _anew() -> None:
    global _opening
    _opening = threading.Lock()  # a thread that is not here may have held it


os.register_at_fork(after_in_child=_anew)


def open_store(spec: CacheSpec) -> ChunkStore:
    """The store that all readers of this process share, while one of them uses it. Raises ConfigError."""
    with _opening:
        store = _stores.get((os.getpid(), spec))
        if store is None:
            store = MemoryStore(spec.limit_bytes) if spec.folder is None else DiskStore(spec.folder, spec.limit_bytes)
            _stores[os.getpid(), spec] = store
        return store


def key_of(url: str, stamp: Stamp, server: str = "") -> str | None:
    """The name of this version of a file; None where versions are not told apart, and nothing must be kept.

    server: as `server_of` names it.
    """
    if not stamp.version:
        return None
    return hashlib.blake2b(f"{server}{url}\n{stamp}".encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _lock_shared(path: Path, *, first: Callable[[], None]) -> int:
    """A descriptor that holds a shared lock; where nobody else holds one, after calling `first`."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first()
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_all(fd: int, data: np.ndarray) -> None:
    done = 0
    while done < data.size:
        done += os.write(fd, data.data[done:])


def _number(content: bytes) -> int | None:
    """What `used` says; None where that is no number, as after a power cut, or in a file that is new."""
    text = content[:USED_BYTES].strip()
    return int(text) if text.isdigit() else None


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
