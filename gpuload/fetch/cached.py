"""D. A remote reader with a store of chunks over it: what is kept comes from there, what is missing is read and kept.

Owns when a chunk is read, whole or not, and the counts of hits. Which chunks there are is chunks.py's, keeping them
the store's, reading them the remote reader's, with its bounds and retries. Files that are samples by themselves are
whole_files.py's.

Concurrency:
1. A chunk is on one flight, whoever wants it: who comes first begins it, others wait for the same
   (test_a_chunk_that_several_want_is_one_request). It lands, in memory and in the store, on the reader's threads.
2. What is wanted of a chunk that is not worth reading whole is read by itself, and the chunk behind it, unless
   MAX_FILLING are under way: another row of it will ask again.
3. The first batch is read by itself, as remote.py does it; its chunks begin behind it, or with the next batch
   (test_the_first_batch_does_not_wait_for_chunks).
4. A flight calls `_landed` on the loop's thread, or on the one that begins it: `_lock` is not held there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gpuload.core.batch import EncodedBatch
from gpuload.core.location import is_local, server_of
from gpuload.core.stamp import Stamp
from gpuload.fetch.cache_store import ChunkStore, StoreStats
from gpuload.fetch.chunks import Spans, spans, worth_whole
from gpuload.fetch.disk_cache import key_of
from gpuload.fetch.limits import CHUNK_BYTES
from gpuload.fetch.remote import Expected, RemoteReader
from gpuload.fetch.whole_files import Listed, WholeFiles

MAX_FILLING = 4
"""Chunks on their way that nobody waits for: enough for most of a link, whose other user is the batch that waits."""

Name = tuple[str, int]
"""A chunk's: key of its file, number."""

Take = Callable[[Name, int, int, np.ndarray], bool]
"""(chunk, its size, begin, out): fill `out` from byte `begin` of a chunk on; False where the chunk isn't there."""


@dataclass(frozen=True)
class CacheStats:
    """Samples and bytes that came from the cache, and those that did not, since the reader was made."""

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    missed_bytes: int = 0
    store: StoreStats = field(default=StoreStats(0, 0))

    @property
    def hit_rate(self) -> float:
        """Share of the samples, 0 to 1; 0 before the first."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def since(self, then: CacheStats) -> CacheStats:
        """What came after `then`; the store as it is now."""
        return CacheStats(
            self.hits - then.hits,
            self.misses - then.misses,
            self.hit_bytes - then.hit_bytes,
            self.missed_bytes - then.missed_bytes,
            self.store,
        )


class CachedReader:
    """RangeReader over fsspec URLs with a store of chunks and of whole files. Other keywords: as RemoteReader's.

    listed: what is known of the files that are samples by themselves. Local files, and those whose size or version no
    server tells, are read each time as RemoteReader reads them. A new one works after a fork.
    """

    def __init__(
        self,
        store: ChunkStore,
        *,
        storage_options: Mapping[str, Any] | None = None,
        stamps: Mapping[str, Stamp] | None = None,
        listed: Listed | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        **limits: Any,
    ):
        self._remote = RemoteReader(storage_options=storage_options, stamps=stamps, **limits)
        self._store, self._chunk_bytes = store, chunk_bytes
        self._lock = threading.Lock()
        self._flights: dict[Name, Future[np.ndarray]] = {}
        self._filling = 0
        self._has_begun = False
        self._counts = CacheStats()
        remote = {url: stamp for url, stamp in (stamps or {}).items() if not is_local(url)}
        self._server = server_of("remote://", storage_options or {})
        self._keys = {url: (key_of(url, stamp, self._server), stamp.size) for url, stamp in remote.items()}
        store.use(key for key, _ in self._keys.values() if key is not None)
        attempts = self._remote.limits.attempts
        self._whole = WholeFiles(store, listed or Listed(), self._remote.read, self._remote.stamp, attempts=attempts)
        if listed is not None:
            store.use(self._whole.keys)

    def read(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        """As RemoteReader's."""
        whole = refs["length"] < 0
        if not whole.any():
            return self._pieces(files, refs)
        found = self._whole.read(files, refs[whole])
        self._count(found.encoded.lengths, found.hit)
        if whole.all():
            return found.encoded
        return _joined(whole, found.encoded, self._pieces(files, refs[~whole]))

    def _pieces(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        batch = _Batch(files, refs, *self._spans(files, refs), self._chunk_bytes)
        hit = np.array([batch.fill(row, self._from_store) for row in range(len(refs))], np.bool_)
        self._count(refs["length"], hit)
        if not hit.all():
            self._fetch(batch, np.flatnonzero(~hit).tolist())
        batch.lengths[list(batch.failures)] = 0
        return EncodedBatch(batch.data, batch.offsets, batch.lengths, (), batch.failures)

    def expect(self, files: Sequence[str], refs: np.ndarray) -> Expected:
        """As RemoteReader's. What is not in the store is read ahead: as chunks for the store, where it has room."""
        found, names = self._spans(files, refs)
        held = np.array([self._store.has(*name) for name in names], np.bool_)
        whole = worth_whole(found.chunks) & ~held & self._store.grows()
        for chunk in np.flatnonzero(whole).tolist() if self._has_begun else ():
            self._flight(files, found.chunks[chunk], names[chunk], begin=True)
        left = np.append(0, np.cumsum(~(held | whole)))  # of the chunks before each
        alone = (left[found.stop] > left[found.first]) | (found.first == found.stop)
        return self._remote.expect(files, refs[alone])

    def cache_stats(self) -> CacheStats:
        """What came from the cache so far. Any thread."""
        return replace(self._counts, store=self._store.stats())

    def close(self) -> None:
        """As RemoteReader's."""
        self._whole.close()
        self._remote.close()

    def __repr__(self) -> str:
        return (
            f"CachedReader({self._store!r}, hits={self._counts.hits}, misses={self._counts.misses}, {self._remote!r})"
        )

    def _spans(self, files: Sequence[str], refs: np.ndarray) -> tuple[Spans, list[Name]]:
        """Where refs lie, and the names of the chunks there."""
        sizes = np.full(len(files), -1, np.int64)
        for file in np.unique(refs["file"]).tolist():
            key, size = self._identity(files[file])
            if key is not None:
                sizes[file] = size
        found = spans(refs, sizes, chunk_bytes=self._chunk_bytes)
        return found, [(str(self._keys[files[chunk[0]]][0]), chunk[1]) for chunk in found.chunks.tolist()]

    def _identity(self, url: str) -> tuple[str | None, int]:
        """(key, size) of a remote file: one request, where its stamp was not given."""
        if is_local(url):
            return None, -1
        if url not in self._keys:
            try:
                stamp = self._remote.stamp(url)
            except OSError:  # reading it will say what is wrong
                return None, -1
            key = key_of(url, stamp, self._server) if stamp is not None else None
            self._keys[url] = key, -1 if stamp is None else stamp.size
            if key is not None:
                self._store.use([key])
        return self._keys[url]

    def _from_store(self, name: Name, size: int, begin: int, out: np.ndarray) -> bool:
        return self._store.read(*name, size, begin, out)

    def _count(self, lengths: np.ndarray, hit: np.ndarray) -> None:
        hits, hit_bytes = int(hit.sum()), int(lengths[hit].sum())
        with self._lock:
            then = self._counts
            self._counts = CacheStats(
                then.hits + hits,
                then.misses + len(hit) - hits,
                then.hit_bytes + hit_bytes,
                then.missed_bytes + int(lengths.sum()) - hit_bytes,
            )

    def _fetch(self, batch: _Batch, missing: list[int]) -> None:
        """Fill the rows that the store lacks: from chunks that are read whole, or each by itself."""
        wanted = sorted({chunk for row in missing for chunk in range(batch.spans.first[row], batch.spans.stop[row])})
        whole = worth_whole(batch.spans.chunks) & self._has_begun
        self._has_begun = True
        flights = {}
        for chunk in wanted:
            flight = self._flight(batch.files, batch.spans.chunks[chunk], batch.names[chunk], begin=bool(whole[chunk]))
            if flight is not None:
                flights[batch.names[chunk]] = flight
        alone = [row for row in missing if not batch.is_among(row, flights)]
        batch.take_over(alone, self._remote.read(batch.files, batch.refs[alone]))
        for chunk in wanted:
            if batch.names[chunk] not in flights and self._filling < MAX_FILLING:
                self._flight(batch.files, batch.spans.chunks[chunk], batch.names[chunk], begin=True, fills=True)

        def from_flight(name: Name, size: int, begin: int, out: np.ndarray) -> bool:
            try:
                data = flights[name].result()
            except (OSError, CancelledError):
                return False
            if data.size == size:
                out[:] = data[begin : begin + out.size]
            return data.size == size

        lost = [row for row in sorted(set(missing) - set(alone)) if not batch.fill(row, from_flight)]
        if lost:  # a chunk failed, perhaps not where they lie
            batch.take_over(lost, self._remote.read(batch.files, batch.refs[lost]))

    def _flight(
        self, files: Sequence[str], chunk: np.void, name: Name, *, begin: bool, fills: bool = False
    ) -> Future[np.ndarray] | None:
        """What brings this CHUNK whole, into the store too; begun where nothing does yet and `begin` says so."""
        with self._lock:
            flight = self._flights.get(name)
            if flight is not None or not begin or not self._store.grows():
                return flight
            file, number, length = int(chunk["file"]), int(chunk["number"]), int(chunk["length"])
            keep = partial(self._keep, name)
            flight = self._flights[name] = self._remote.fetch(files[file], number * self._chunk_bytes, length, keep)
            self._filling += fills
        flight.add_done_callback(partial(self._landed, name, fills))
        return flight

    def _keep(self, name: Name, data: np.ndarray) -> None:
        self._store.put(*name, data)

    def _landed(self, name: Name, fills: bool, flight: Future[np.ndarray]) -> None:
        with self._lock:
            self._flights.pop(name, None)
            self._filling -= fills


def _joined(whole: np.ndarray, files: EncodedBatch, pieces: EncodedBatch) -> EncodedBatch:
    """One batch of both. whole: bool (n,), which of its rows are those of `files`, in their order."""
    offsets, lengths = np.empty(len(whole), np.int64), np.empty(len(whole), np.int64)
    failures: dict[int, BaseException] = {}
    for mask, part, start in ((whole, files, 0), (~whole, pieces, files.data.size)):
        rows = np.flatnonzero(mask)
        offsets[rows], lengths[rows] = part.offsets + start, part.lengths
        failures.update((int(rows[row]), error) for row, error in part.failures.items())
    return EncodedBatch(np.concatenate([files.data, pieces.data]), offsets, lengths, (), failures)


@dataclass(frozen=True)
class _Part:
    """What a row wants of one chunk. place: in the batch's chunks; begin: first byte in the chunk."""

    place: int
    begin: int
    out: np.ndarray


class _Batch:
    """A batch that is being filled: all rows one after the other in `data`."""

    def __init__(self, files: Sequence[str], refs: np.ndarray, found: Spans, names: list[Name], chunk_bytes: int):
        self.files, self.refs, self.spans, self.names = files, refs, found, names
        self._chunk_bytes = chunk_bytes
        self.lengths = refs["length"].astype(np.int64)
        self.offsets = np.cumsum(self.lengths) - self.lengths
        self.data = np.empty(int(self.lengths.sum()), np.uint8)
        self.failures: dict[int, BaseException] = {}

    def chunks_of(self, row: int) -> slice:
        return slice(int(self.spans.first[row]), int(self.spans.stop[row]))

    def parts(self, row: int) -> list[_Part]:
        """None where the row's file is not cached."""
        parts, at, left = [], int(self.refs["offset"][row]), self.row(row)
        for place in range(self.spans.first[row], self.spans.stop[row]):
            begin = at - int(self.spans.chunks["number"][place]) * self._chunk_bytes
            out = left[: int(self.spans.chunks["length"][place]) - begin]
            parts.append(_Part(place, begin, out))
            at, left = at + out.size, left[out.size :]
        return parts

    def row(self, row: int) -> np.ndarray:
        return self.data[self.offsets[row] : self.offsets[row] + self.lengths[row]]

    def fill(self, row: int, take: Take) -> bool:
        """Whether `take` had all of the row."""
        parts = self.parts(row)
        sizes = self.spans.chunks["length"]
        filled = all(take(self.names[part.place], int(sizes[part.place]), part.begin, part.out) for part in parts)
        return filled and (bool(parts) or not self.lengths[row])

    def is_among(self, row: int, flights: Mapping[Name, Any]) -> bool:
        """Whether all chunks of the row are."""
        names = self.names[self.chunks_of(row)]
        return bool(names) and all(name in flights for name in names)

    def take_over(self, rows: list[int], came: EncodedBatch) -> None:
        """These rows from what was read for them."""
        for place, row in enumerate(rows):
            if place in came.failures:
                self.failures[row] = came.failures[place]
            else:
                self.row(row)[:] = came.encoded(place)
