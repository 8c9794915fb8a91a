"""D. Files behind fsspec URLs: several ranges in flight on one event-loop thread, bounded, retried, never hanging.

Owns the way from a batch's references to its bytes. Which ranges are read is coalesce.py's, what is kept for later
batches ahead.py's, requests and attempts link.py's, the thread event_loop.py's.

Concurrency:
1. Everything but the public methods runs on the loop's thread. A file system without an asynchronous
   implementation is called from a few daemon threads, and the loop waits for them as for any other answer.
2. Nothing is waited for without a limit: link.py's, and `read` looks every second whether the loop still runs
   (test_a_server_that_never_answers_fails_its_rows_in_time).
3. After a fork the loop's thread is gone: `read` says so, and `close` leaves the parent's sockets alone.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuload.core.batch import EncodedBatch
from gpuload.core.location import shown
from gpuload.core.stamp import Stamp
from gpuload.fetch.ahead import Ahead, Claimed, Window
from gpuload.fetch.coalesce import ReadPlan, coalesce, with_sizes
from gpuload.fetch.event_loop import EventLoop
from gpuload.fetch.flight import Turn
from gpuload.fetch.limits import RemoteLimits
from gpuload.fetch.link import Keep, Link, close_all
from gpuload.fetch.local import fail_beyond
from gpuload.fetch.remote_files import RemoteFiles


class Expected:
    """Samples that will be read soon, until this is dropped, closed or forgotten."""

    def __init__(self, events: EventLoop, ahead: Ahead, window: Window):
        events.soon(ahead.add, window)
        self._finalizer = weakref.finalize(self, events.soon, ahead.drop, window)
        self._finalizer.atexit = False

    def drop(self) -> None:
        """They will not. Idempotent; any thread."""
        self._finalizer()


class RemoteReader:
    """RangeReader over fsspec URLs. Keywords: `RemoteLimits`' fields. A new one works after a fork.

    storage_options: passed to the file systems (credentials, endpoints). stamps: of the files, where they are known.
    """

    def __init__(
        self,
        *,
        storage_options: Mapping[str, Any] | None = None,
        stamps: Mapping[str, Stamp] | None = None,
        **limits: Any,
    ):
        self.limits = RemoteLimits(**limits)
        opened: dict[str, RemoteFiles] = {}
        self._events = EventLoop(threads=self.limits.threads, at_end=partial(close_all, opened))
        self._link = Link(
            self._events.loop, self._events.on_a_thread, self.limits, opened,
            storage_options=dict(storage_options or {}), stamps=stamps or {},
        )  # fmt: skip
        self._ahead = Ahead(
            partial(_get_at_turn, self._link), self._link.flight.hurry, max_held_bytes=self.limits.max_held_bytes
        )
        self._has_begun, self._first_is_here = False, asyncio.Event()

    def read(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        """The bytes of refs: SAMPLE_REF (n,). What every attempt failed to read is in `failures`, row by row."""
        self._check_open()
        found = self._events.call(self._read(files, refs))
        return found.rest if not found.claimed else _joined(len(refs), found)

    def expect(self, files: Sequence[str], refs: np.ndarray) -> Expected:
        """These SAMPLE_REFs are read soon, in calls with the same `files`: what several calls share is read once."""
        self._check_open()
        window = Window(files, refs, gap_bytes=self.limits.gap_bytes, max_range_bytes=self.limits.max_range_bytes)
        return Expected(self._events, self._ahead, window)

    def fetch(self, url: str, offset: int, length: int, keep: Keep) -> Future[np.ndarray]:
        """One range by itself, within the same bounds; where it comes whole, `keep` is given it on a thread."""
        self._check_open()
        return self._events.begin(self._link.get(url, offset, length, keep=keep))

    def stamp(self, url: str) -> Stamp | None:
        """Size and version of a file: asked for, where it is not known. Raises OSError."""
        self._check_open()
        return self._events.call(self._link.stamp(url))

    def close(self) -> None:
        """Cancel what is in flight, close the sessions, end the threads: within 2 s. Idempotent."""
        self._events.close()

    def __repr__(self) -> str:
        flight = self._link.flight
        return (
            f"RemoteReader({sorted(self._link.opened)}, in_flight={flight.ranges}/{self.limits.max_ranges} ranges, "
            f"{flight.bytes}/{self.limits.max_bytes} bytes, held={self._ahead.held_bytes})"
        )

    def _check_open(self) -> None:
        if not self._events.usable:
            raise RuntimeError(f"{self!r} is closed, or was made before a fork: make a new one")

    async def _read(self, files: Sequence[str], refs: np.ndarray) -> _Found:
        """The first batch has the link to itself: the others, and what is read ahead, would only make it late."""
        if self._has_begun:
            await self._first_is_here.wait()
            return await self._read_now(files, refs)
        self._has_begun = True
        try:
            return await self._read_now(files, refs)
        finally:
            self._first_is_here.set()
            self._ahead.go_on()

    async def _read_now(self, files: Sequence[str], refs: np.ndarray) -> _Found:
        claims = self._ahead.claim(files, refs)
        if not claims:
            return _Found([], np.arange(len(refs)), await self._pieces(files, refs))
        others = np.ones(len(refs), np.bool_)
        for claim in claims:
            others[claim.rows] = False
        rest, received = await asyncio.gather(
            self._pieces(files, refs[others]), asyncio.gather(*(self._ahead.receive(claim) for claim in claims))
        )
        lost = [row for claim, got in zip(claims, received, strict=True) if got is None for row in claim.rows]
        if lost:  # their neighbours failed, perhaps not they
            others[lost] = True
            rest = await self._pieces(files, refs[others])
        return _Found([got for got in received if got is not None], np.flatnonzero(others), rest)

    async def _pieces(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        plan = coalesce(refs, gap_bytes=self.limits.gap_bytes, max_range_bytes=self.limits.max_range_bytes)
        failures: dict[int, BaseException] = {}
        data = np.empty(plan.total_bytes, np.uint8)
        wholes: dict[int, np.ndarray] = {}  # range -> the file

        async def serve(number: int, item: tuple) -> None:
            file, offset, length, at, first, stop, whole = item
            if not length:
                return
            url = files[file]
            try:
                part = await self._link.get(url, offset, length, out=None if whole else data[at : at + length])
            except OSError as failure:  # a row's, never its neighbours'
                failures.update(dict.fromkeys(plan.rows[first:stop].tolist(), failure))
                return
            if whole:
                wholes[number] = part
                return
            if len(part) < length:
                fail_beyond(plan, len(part), shown(url), offset, at, first, stop, failures)

        await asyncio.gather(*(serve(number, item) for number, item in enumerate(plan.ranges.tolist())))
        if plan.ranges["whole"].any():
            plan, data = _append(plan, data, wholes)
        if failures:
            plan.lengths[list(failures)] = 0
        return EncodedBatch(data, plan.offsets, plan.lengths, (), failures)


def _get_at_turn(link: Link, url: str, offset: int, length: int, turn: Turn) -> Awaitable[np.ndarray]:
    return link.get(url, offset, length, turn=turn)


@dataclass(frozen=True)
class _Found:
    """A batch's bytes: those of held ranges, and of `rows` by themselves, as `rest`."""

    claimed: list[Claimed]
    rows: np.ndarray
    rest: EncodedBatch


def _joined(n: int, found: _Found) -> EncodedBatch:
    """One batch of n rows. Copies on the thread that reads: the loop has other things to do."""
    offsets, lengths = np.zeros(n, np.int64), np.zeros(n, np.int64)
    rest = found.rest
    data = np.empty(sum(sum(got.claim.lengths) for got in found.claimed) + rest.data.size, np.uint8)
    at = 0
    for got in found.claimed:
        part = got.part
        for row, begin, length in zip(got.claim.rows, got.claim.begins, got.claim.lengths, strict=True):
            data[at : at + length] = part[begin : begin + length]
            offsets[row], lengths[row] = at, length
            at += length
    data[at:] = rest.data
    offsets[found.rows], lengths[found.rows] = rest.offsets + at, rest.lengths
    failures = {int(found.rows[row]): error for row, error in rest.failures.items()}
    return EncodedBatch(data, offsets, lengths, (), failures)


def _append(plan: ReadPlan, data: np.ndarray, wholes: Mapping[int, np.ndarray]) -> tuple[ReadPlan, np.ndarray]:
    numbers = np.flatnonzero(plan.ranges["whole"]).tolist()
    parts = [wholes.get(number, np.empty(0, np.uint8)) for number in numbers]
    sized = with_sizes(plan, np.array([part.size for part in parts], np.int64))
    return sized, np.concatenate([data, *parts])
