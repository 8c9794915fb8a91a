"""D. Whole remote files, each a sample, with a store over them: loose images are kept as a cache keeps shards' chunks.

Owns what names a version of a file in the store, how it is known, and reading one. Keeping is the store's; the remote
reader reads.

What a listing told of a file's version costs nothing. A file of which none told is asked about once, when it is first
read: a small request, in this run and in the next one. Without a version nothing is kept.

A file is kept where it came as long as its version is; one that did not is read again, since an answer may be cut off
and claim to be whole, and then taken as it comes: an image that was written anew is just that image.

Files that were listed together share KEYS keys of the store, by which it makes room: a key each would cost a million
lines in its list of what is in use.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuload.core.batch import EncodedBatch, join_encoded
from gpuload.core.location import is_local
from gpuload.core.stamp import Stamp
from gpuload.core.threads import DaemonPool, ask_all
from gpuload.fetch.cache_store import ChunkStore
from gpuload.fetch.limits import MIB

KEYS = 256
"""Of 1.2 million images, a key holds 4,700: removed in 50 ms, and no folder is slow for them."""

ASKING_THREADS = 16
"""Versions that are asked for at once: each is a round trip."""

MAX_PENDING_BYTES = 64 * MIB
"""Read and not yet kept; where more is, the disk is slower than the link, and whoever reads writes."""

Read = Callable[[Sequence[str], np.ndarray], EncodedBatch]
"""RangeReader.read"""


@dataclass(frozen=True)
class Version:
    """digest: 16 bytes that name a file and its version. size: its bytes."""

    digest: bytes
    size: int


Ask = Callable[[str], Stamp | None]
"""The stamp of a URL: one request. Raises OSError."""

UNKNOWN, NOT_KEPT = -1, -2


class Listed:
    """What is known of the files of a data set that are samples; readers of it share one. 24 bytes a file at most.

    root: names the listing, a folder for instance. versions: of each file by its row, as its Stamp's text, "" where
    nothing was told; None: of no file.
    """

    def __init__(self, root: str = "", versions: Sequence[str] | None = None):
        self.root, self._versions = root, versions
        self._asked = _Asked(())

    def of(self, files: Sequence[str], numbers: Sequence[int], ask: Ask) -> list[Version | None]:
        """None where nothing tells a file's versions apart, or a file is local. Any thread; waits for `ask`."""
        found = {number: self._told(files[number], number) for number in dict.fromkeys(numbers)}
        others = [number for number, version in found.items() if version is None]
        if others:
            if self._asked.files is not files:
                self._asked = _Asked(files)
            found.update(self._asked.of(others, ask))
        return [found[number] for number in numbers]

    def doubt(self, files: Sequence[str], number: int) -> None:
        """It came with another size again and again: what a server told of it may be wrong, and is asked for anew."""
        if self._asked.files is files:
            self._asked.forget(number)

    def _told(self, url: str, number: int) -> Version | None:
        text = self._versions[number] if self._versions is not None else ""
        return _version(url, int(text.partition(":")[0]), text) if text else None


class _Asked:
    """The versions of these files, as their servers told them when they were asked."""

    def __init__(self, files: Sequence[str]):
        self.files = files
        self._sizes, self._digests = np.full(len(files), UNKNOWN), np.zeros((len(files), 16), np.uint8)

    def of(self, numbers: Sequence[int], ask: Ask) -> dict[int, Version | None]:
        left = [number for number in numbers if self._sizes[number] == UNKNOWN]
        if left:
            one = partial(_answer, ask)
            urls = [self.files[number] for number in left]
            for answered in ask_all(one, urls, threads=ASKING_THREADS, name="gpuload-stamp"):
                self._note(left[answered.number], answered.get())
        return {number: self._noted(number) for number in numbers}

    def forget(self, number: int) -> None:
        self._sizes[number] = UNKNOWN

    def _note(self, number: int, version: Version | None) -> None:
        if version is not None:
            self._digests[number] = np.frombuffer(version.digest, np.uint8)
        self._sizes[number] = NOT_KEPT if version is None else version.size  # last: who sees it sees the digest

    def _noted(self, number: int) -> Version | None:
        size = int(self._sizes[number])
        return Version(self._digests[number].tobytes(), size) if size >= 0 else None


def _answer(ask: Ask, url: str) -> Version | None:
    if is_local(url):
        return None
    try:
        stamp = ask(url)
    except OSError:  # reading it will say what is wrong
        return None
    return _version(url, stamp.size, str(stamp)) if stamp is not None and stamp.version else None


def _version(url: str, size: int, text: str) -> Version:
    name = f"{url}\n{text}".encode("utf-8", "surrogateescape")
    return Version(hashlib.blake2b(name, digest_size=16).digest(), size)


@dataclass(frozen=True)
class Held:
    """A version of a file: its name in a store, and its bytes."""

    key: str
    number: int
    size: int


@dataclass(frozen=True)
class WholeFilesRead:
    """hit: bool (n,), which rows of `encoded` came from the store."""

    encoded: EncodedBatch
    hit: np.ndarray


class WholeFiles:
    """read: of the remote reader. attempts: at a file that comes with another size than its version has."""

    def __init__(self, store: ChunkStore, listed: Listed, read: Read, ask: Ask, *, attempts: int):
        self._store, self._listed, self._read, self._ask, self._attempts = store, listed, read, ask, attempts
        root = hashlib.blake2b(listed.root.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self.keys = [f"{root}-{number:02x}" for number in range(KEYS)]
        self._pool = DaemonPool(threads=1, name="gpuload-keep")
        self._lock = threading.Lock()
        self._pending_bytes = 0

    def read(self, files: Sequence[str], refs: np.ndarray) -> WholeFilesRead:
        """refs: SAMPLE_REF (n,) of whole files. Any thread."""
        held = self._held(files, refs["file"].tolist())
        sizes = np.array([0 if item is None else item.size for item in held], np.int64)
        offsets = np.cumsum(sizes) - sizes
        data = np.empty(int(sizes.sum()), np.uint8)
        rows = [data[at : at + size] for at, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]
        hit = np.array(
            [
                item is not None and self._store.read(item.key, item.number, item.size, 0, out)
                for item, out in zip(held, rows, strict=True)
            ],
            np.bool_,
        )
        if hit.all():
            return WholeFilesRead(EncodedBatch(data, offsets, sizes), hit)
        failures: dict[int, BaseException] = {}
        for row, came in self._fetched(files, refs, np.flatnonzero(~hit).tolist(), held).items():
            if isinstance(came, BaseException):
                failures[row], rows[row] = came, data[:0]
                continue
            rows[row] = came
            item = held[row]
            if item is not None and item.size == came.size:
                self._keep(item, came)
        return WholeFilesRead(join_encoded(rows, (), failures), hit)

    def close(self) -> None:
        """What was read is still kept, for a second at most. Idempotent."""
        self._pool.close()

    def _held(self, files: Sequence[str], numbers: list[int]) -> list[Held | None]:
        found: list[Held | None] = []
        for version in self._listed.of(files, numbers, self._ask):
            if version is None:
                found.append(None)
            else:
                number = int.from_bytes(version.digest, "little")
                found.append(Held(self.keys[number % KEYS], number, version.size))
        return found

    def _fetched(
        self, files: Sequence[str], refs: np.ndarray, wanted: list[int], held: Sequence[Held | None]
    ) -> dict[int, np.ndarray | BaseException]:
        """These rows as they came, or why one did not."""
        found: dict[int, np.ndarray | BaseException] = {}
        for _ in range(self._attempts):
            came = self._read(files, refs[wanted])
            again = []
            for place, row in enumerate(wanted):
                found[row] = got = came.failures.get(place) or came.encoded(place)
                item = held[row]
                if item is not None and isinstance(got, np.ndarray) and got.size != item.size:
                    again.append(row)
            wanted = again
            if not wanted:
                break
        for row in wanted:
            self._listed.doubt(files, int(refs["file"][row]))
        return found

    def _keep(self, item: Held, data: np.ndarray) -> None:
        if not self._store.grows():
            return
        with self._lock:
            self._pending_bytes += data.size
            crowded = self._pending_bytes > MAX_PENDING_BYTES
        task = partial(self._put, item, data)
        if crowded or not self._pool.submit(task):
            task()

    def _put(self, item: Held, data: np.ndarray) -> None:
        try:
            self._store.put(item.key, item.number, data)
        finally:
            with self._lock:
                self._pending_bytes -= data.size
