"""The link to remote storage: a byte range in, its bytes out, whatever the servers do in between.

Owns the file systems opened on a reader's loop, attempts and what they bring, time-outs, and the bounds on what is in
flight. Everything here runs on that loop; which ranges are read is coalesce.py's and ahead.py's, how one request looks
streams.py's, which errors are worth another one core/retry.py's.

Nothing is waited for without a limit: an attempt ends when no byte came for `timeout_s`; `attempts` in a row may bring
nothing; one that brought a part is followed by a request for the rest, at most `resumptions` times.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import fsspec
from fsspec.core import split_protocol, url_to_fs

from gpuload.core.location import shown
from gpuload.core.retry import backoff_s, is_transient
from gpuload.core.stamp import Stamp, stamp_of
from gpuload.fetch.limits import MIB, RemoteLimits
from gpuload.fetch.streams import FileVersion, OnAThread, is_streamed, stream, stream_from_thread

WHOLE_ANSWER_BYTES = MIB
"""What is asked for at a time after a failure of a file system whose answers come whole or not at all."""

Keep = Callable[[bytearray], object]


class Link:
    """Ranges of files behind fsspec URLs. Its loop's alone.

    on_a_thread: runs what has no asynchronous implementation. systems: file systems by protocol, filled as they are
    opened; whoever ends the loop closes their sessions. stamps: of files where they are known, by URL; a file
    that has another size than its stamp's, or changes while it is read, is an error that says so.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_a_thread: OnAThread,
        limits: RemoteLimits,
        systems: dict[str, Any],
        *,
        storage_options: Mapping[str, Any],
        stamps: Mapping[str, Stamp],
    ):
        self._loop, self._on_a_thread, self.limits = loop, on_a_thread, limits
        self._options, self._stamps = storage_options, stamps
        self._versions: dict[str, FileVersion] = {}
        self.systems = systems
        self._opening = asyncio.Lock()
        self.flight = Flight(limits.max_ranges, limits.max_bytes)

    async def get(self, url: str, offset: int, length: int, keep: Keep | None = None) -> bytearray:
        """`length` bytes from `offset` on, or all of the file for -1; fewer where file or attempts end early.

        keep: given a range that is whole, on a thread; until it returns, the bytes count as in flight. Raises OSError
        that names no secret.
        """
        async with self.flight.of(length):
            try:
                part = await self._in_attempts(url, offset, length)
            except Exception as error:  # any library's
                failure = _as_os_error(url, error)
                raise failure from failure.__cause__
            if length < 0:
                self.flight.whole_file(len(part))
            if keep is not None and len(part) == length:
                await self._on_a_thread(partial(keep, part))
            return part

    async def stamp(self, url: str) -> Stamp | None:
        """The file's size and version: one request, none where they are known. Raises OSError."""
        if url in self._stamps:
            return self._stamps[url]
        for attempt in range(self.limits.attempts):
            try:
                return stamp_of(await asyncio.wait_for(self._info(url), self.limits.timeout_s))
            except Exception as error:
                if attempt == self.limits.attempts - 1 or not is_transient(error):
                    failure = _as_os_error(url, error)
                    raise failure from failure.__cause__
            await asyncio.sleep(backoff_s(attempt, first_s=self.limits.backoff_s))
        raise AssertionError("the last attempt returns or raises")

    async def _in_attempts(self, url: str, offset: int, length: int) -> bytearray:
        part = bytearray()
        failed = 0  # attempts in a row that brought nothing
        for _ in range(self.limits.attempts + self.limits.resumptions):
            had, error = len(part), None
            try:
                await self._watched(url, offset, length, part, gently=failed > 0)
                if length < 0 or len(part) >= length:
                    return part
            except Exception as raised:
                if had < len(part) == length:
                    return part
                if part and _is_beyond_the_end(raised):
                    return part
                if not is_transient(raised):
                    raise
                error = raised
            failed = 0 if len(part) > had else failed + 1
            if failed >= self.limits.attempts:
                if error is not None:
                    raise error
                return part
            if failed:
                await asyncio.sleep(backoff_s(failed - 1, first_s=self.limits.backoff_s))
        problem = f"it came in pieces: {len(part)} bytes in {self.limits.attempts + self.limits.resumptions} requests"
        raise OSError(errno.EIO, problem, shown(url))

    async def _watched(self, url: str, offset: int, length: int, part: bytearray, *, gently: bool) -> None:
        """One attempt, which ends when nothing comes for `timeout_s`."""
        task = asyncio.ensure_future(self._once(url, offset, length, part, gently=gently))
        try:
            came = len(part)
            while not (await asyncio.wait({task}, timeout=self.limits.timeout_s))[0]:
                if len(part) == came:
                    times = f", {self.limits.attempts} times" if not part else ""
                    problem = f"no answer within {self.limits.timeout_s:g} s{times}"
                    raise TimeoutError(errno.ETIMEDOUT, problem, shown(url))
                came = len(part)
            task.result()
        finally:
            task.cancel()

    async def _once(self, url: str, offset: int, length: int, part: bytearray, *, gently: bool) -> None:
        """Add to `part` what one request for the rest brings."""
        system = await self._system(url)
        start, stop = offset + len(part), None if length < 0 else offset + length
        if gently and stop is not None and not is_streamed(system):
            stop = min(stop, start + WHOLE_ANSWER_BYTES)

        def seen(version: FileVersion) -> None:
            if length >= 0:
                self._hold_to(url, version)

        if system is None:
            pieces = stream_from_thread(url, self._options, start, stop, self._on_a_thread)
        else:
            pieces = stream(system, url, system._strip_protocol(url), start, stop, seen=seen)
        async with contextlib.aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                part += piece
                if stop is not None and len(part) > stop - offset:  # more than was promised: what was asked is here
                    del part[stop - offset :]
                    return

    def _hold_to(self, url: str, version: FileVersion) -> None:
        stamp = self._stamps.get(url)
        known = self._versions.get(url, FileVersion(stamp.size) if stamp is not None else version)
        if version.differs(known):
            raise OSError(
                errno.ESTALE,
                "the file was replaced since it was indexed. Make the data set anew, and give new versions new names",
                shown(url),
            )
        self._versions.setdefault(url, version)

    async def _info(self, url: str) -> Mapping[str, Any]:
        system = await self._system(url)
        if system is not None:
            return await system._info(system._strip_protocol(url))

        def info() -> Mapping[str, Any]:
            its_system, path = url_to_fs(url, **self._options)
            return its_system.info(path)

        return await self._on_a_thread(info)

    async def _system(self, url: str) -> Any:
        """None for one that is called from threads, where fsspec opens it."""
        if "::" in url:
            return None
        protocol = split_protocol(url)[0] or "file"
        async with self._opening:
            if protocol not in self.systems:
                self.systems[protocol] = await self._open(protocol, url)
        return self.systems[protocol]

    async def _open(self, protocol: str, url: str) -> Any:
        cls = fsspec.get_filesystem_class(protocol)
        if not cls.async_impl:
            return None
        options = {**cls._get_kwargs_from_urls(url), **self._options}
        system = cls(**options, asynchronous=True, loop=self._loop, skip_instance_cache=True)
        if hasattr(system, "set_session"):
            await system.set_session()
        return system


class Flight:
    """What may be in flight: so many ranges, so many bytes; a range larger than that flies alone. On the loop only.

    A whole file's length is not known before it is here, and asking costs a round trip: it counts as the largest that
    came so far, and as its share of the limits at least.
    """

    def __init__(self, max_ranges: int, max_bytes: int):
        self._max_ranges, self._max_bytes = max_ranges, max_bytes
        self._largest = max(1, max_bytes // max_ranges)
        self.ranges = self.bytes = 0
        self._landed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, length: int) -> AsyncIterator[None]:
        size = 0

        def may_start() -> bool:
            nonlocal size  # anew each time: larger files may have come while this one waited
            size = min(length if length >= 0 else self._largest, self._max_bytes)
            return self.ranges < self._max_ranges and self.bytes + size <= self._max_bytes

        async with self._landed:
            await self._landed.wait_for(may_start)
            self.ranges += 1
            self.bytes += size
        try:
            yield
        finally:
            self.ranges -= 1
            self.bytes -= size
            async with self._landed:
                self._landed.notify_all()

    def whole_file(self, n_bytes: int) -> None:
        """A whole file came: the next ones may be as large."""
        self._largest = max(self._largest, n_bytes)


async def close_sessions(systems: Mapping[str, Any]) -> None:
    """Close what `Link.systems` hold open."""
    for system in systems.values():
        if system is None:
            continue
        session = getattr(system, "_session", None) or getattr(system, "_s3", None)
        closing = session.close() if session is not None else None
        if inspect.isawaitable(closing):
            await closing


def _is_beyond_the_end(error: Exception) -> bool:
    """Whether a server says that there is nothing from where it was asked."""
    return getattr(error, "status", None) == 416 or "InvalidRange" in f"{error!r} {error.__cause__!r}"


def _as_os_error(url: str, error: Exception) -> OSError:
    """`error` itself where it is an OSError that names no secret; else one that says the same without it."""
    text = str(error)
    public = shown(text)
    if isinstance(error, OSError) and public == text:
        return error
    for kind, number in ((FileNotFoundError, errno.ENOENT), (PermissionError, errno.EACCES)):
        if isinstance(error, kind):
            return kind(number, os.strerror(number), shown(url))
    failure = OSError(errno.EIO, f"{type(error).__name__}: {public}", shown(url))
    if public == text:
        failure.__cause__ = error
    return failure
