"""The link to remote storage: a byte range in, its bytes out, whatever the servers do in between.

Owns the file systems opened on a reader's loop, attempts and what they bring, and time-outs. Everything here runs on
that loop; which ranges are read is coalesce.py's and ahead.py's, how many at once flight.py's, how one request looks
that of http_files.py, s3_files.py and fsspec_files.py, which errors are worth another one core/retry.py's.

Nothing is waited for without a limit: an attempt ends when no byte came for `timeout_s`; `attempts` in a row may bring
nothing; one that brought a part is followed by a request for the rest, at most `resumptions` times.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import fsspec
import numpy as np
from fsspec.core import split_protocol

from gpuload.core.location import shown, tells_secret
from gpuload.core.retry import backoff_s, is_transient
from gpuload.core.s3_sessions import quicken
from gpuload.core.stamp import Stamp, stamp_of
from gpuload.fetch import http_files, s3_files
from gpuload.fetch.flight import Flight, Turn
from gpuload.fetch.fsspec_files import AsynchronousFiles, ThreadedFiles
from gpuload.fetch.limits import MIB, RemoteLimits
from gpuload.fetch.remote_files import FileVersion, OnAThread, RemoteFiles

WHOLE_ANSWER_BYTES = MIB
"""What is asked for at a time after a failure of a file system whose answers come whole or not at all."""

ASKED_AGAIN = 3
"""How often a server that calls a file's version otherwise than when it was indexed is asked for it once more."""

Keep = Callable[[np.ndarray], object]


class Link:
    """Ranges of files behind fsspec URLs. Its loop's alone.

    on_a_thread: runs what has no asynchronous implementation. opened: file systems by their kind, filled as they are
    opened; whoever ends the loop closes them. stamps: of files where they are known, by URL; a file
    that has another size than its stamp's, or changes while it is read, is an error that says so.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_a_thread: OnAThread,
        limits: RemoteLimits,
        opened: dict[str, RemoteFiles],
        *,
        storage_options: Mapping[str, Any],
        stamps: Mapping[str, Stamp],
    ):
        self._loop, self._on_a_thread, self.limits = loop, on_a_thread, limits
        self._options, self._stamps = storage_options, stamps
        self._versions: dict[str, FileVersion] = {}
        self.opened = opened
        self._opening = asyncio.Lock()
        self.flight = Flight(limits.max_ranges, limits.max_bytes)

    async def get(
        self,
        url: str,
        offset: int,
        length: int,
        *,
        out: np.ndarray | None = None,
        keep: Keep | None = None,
        turn: Turn | None = None,
    ) -> np.ndarray:
        """`length` bytes from `offset` on, or all of the file for -1; fewer where file or attempts end early.

        out: uint8 (length,), where they are put if it is given; what is returned is a part of it then. turn: among
        what else is wanted; a batch waits for it where that is not said. keep: given a range that is whole, on a
        thread; until it returns, the bytes count as in flight. Raises OSError that names no secret.
        """
        async with self.flight.of(length, turn or Turn()):
            try:
                part = await self._in_attempts(_Answer(url, offset, length, out))
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
        return self._stamps[url] if url in self._stamps else await self._ask_stamp(url)

    async def _ask_stamp(self, url: str) -> Stamp | None:
        for attempt in range(self.limits.attempts):
            try:
                return stamp_of(await asyncio.wait_for(self._info(url), self.limits.timeout_s))
            except Exception as error:
                if attempt == self.limits.attempts - 1 or not is_transient(error):
                    failure = _as_os_error(url, error)
                    raise failure from failure.__cause__
            await asyncio.sleep(backoff_s(attempt, first_s=self.limits.backoff_s))
        raise AssertionError("the last attempt returns or raises")

    async def _in_attempts(self, answer: _Answer) -> np.ndarray:
        length = answer.length
        failed, error = 0, None  # attempts in a row that brought nothing
        for _ in range(self.limits.attempts + self.limits.resumptions):
            had, error = answer.came, None
            try:
                await self._watched(answer, gently=failed > 0)
                if length < 0 or answer.came >= length:
                    return answer.bytes
            except Exception as raised:
                if had < answer.came == length:
                    return answer.bytes
                if answer.came and _is_beyond_the_end(raised):
                    return answer.bytes
                if not is_transient(raised):
                    raise
                error = raised
            failed = 0 if answer.came > had else failed + 1
            if failed >= self.limits.attempts:
                if error is not None:
                    raise error
                return answer.bytes
            if failed:
                await asyncio.sleep(backoff_s(failed - 1, first_s=self.limits.backoff_s))
        if error is not None and not answer.came:
            raise error
        problem = f"it came in pieces: {answer.came} bytes in {self.limits.attempts + self.limits.resumptions} requests"
        raise OSError(errno.EIO, problem, shown(answer.url))

    async def _watched(self, answer: _Answer, *, gently: bool) -> None:
        """One attempt, which ends when nothing comes for `timeout_s`."""
        task = asyncio.ensure_future(self._once(answer, gently=gently))
        try:
            came = answer.came
            while not (await asyncio.wait({task}, timeout=self.limits.timeout_s))[0]:
                if answer.came == came:
                    times = f", {self.limits.attempts} times" if not came else ""
                    problem = f"no answer within {self.limits.timeout_s:g} s{times}"
                    raise TimeoutError(errno.ETIMEDOUT, problem, shown(answer.url))
                came = answer.came
            task.result()
        finally:
            task.cancel()

    async def _once(self, answer: _Answer, *, gently: bool) -> None:
        """Add what one request for the rest brings."""
        url, length = answer.url, answer.length
        files = await self._files(url)
        start, stop = answer.offset + answer.came, None if length < 0 else answer.offset + length
        if gently and stop is not None and not files.in_pieces:
            stop = min(stop, start + WHOLE_ANSWER_BYTES)
        said: list[FileVersion] = []
        async with contextlib.aclosing(files.stream(url, start, stop, said.append)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if said:
                    await self._hold_to_version(answer, said.pop())
                answer.add(piece)
                if answer.came == length:  # what comes beyond that is not what was asked for
                    return

    async def _hold_to_version(self, answer: _Answer, version: FileVersion) -> None:
        """Raises OSError for bytes of another version than those before them, or than what was indexed."""
        if answer.length < 0:  # a file that is read whole may be another one each time, but one
            known, answer.version = answer.version, version
            if known is not None and answer.came and version.differs(known):
                answer.came = 0
                raise OSError(errno.EIO, "the file was replaced while it was read", shown(answer.url))  # once more
            return
        url = answer.url
        if url not in self._versions:
            stamp = self._stamps.get(url)
            # Servers that share their work may call one version differently: it counts what they say when asked again.
            if stamp is not None and version.size not in (None, stamp.size):
                raise _stale(url)
            if stamp is not None and not version.may_be(stamp) and not await self._is_still(url, stamp):
                raise _stale(url)
            self._versions.setdefault(url, version)
        if version.differs(self._versions[url]):
            raise _stale(url)

    async def _is_still(self, url: str, stamp: Stamp) -> bool:
        for _ in range(ASKED_AGAIN):
            now = await self._ask_stamp(url)
            if now is None or now.size != stamp.size:
                return False
            if now.version.strip('"') == stamp.version.strip('"'):
                return True
        return False

    async def _info(self, url: str) -> Mapping[str, Any]:
        return await (await self._files(url)).info(url)

    async def _files(self, url: str) -> RemoteFiles:
        kind = _kind(url)
        if kind not in self.opened:
            async with self._opening:
                if kind not in self.opened:
                    self.opened[kind] = await self._open(url)
        return self.opened[kind]

    async def _open(self, url: str) -> RemoteFiles:
        protocol = split_protocol(url)[0] or "file"
        cls = fsspec.get_filesystem_class(protocol)
        if "::" in url or not cls.async_impl:
            return ThreadedFiles(self._options, self._on_a_thread)
        options = {**cls._get_kwargs_from_urls(url), **self._options}
        speaks_s3, speaks_http = hasattr(cls, "_call_s3"), hasattr(cls, "encode_url")
        if speaks_s3:
            options = s3_files.settings_for(url, options, connections=self.limits.max_ranges)
        if speaks_http:
            options = http_files.settings_for(options)
        system = cls(**options, asynchronous=True, loop=self._loop, skip_instance_cache=True)
        quicken(system)
        if hasattr(system, "set_session"):
            await system.set_session()
        if speaks_s3:
            return s3_files.S3Files(system, connections=self.limits.max_ranges)
        return http_files.HttpFiles(system) if speaks_http else AsynchronousFiles(system)


class _Answer:
    """A range on its way, or all of a file where length is -1. out: its place, uint8 (length,), if it has one."""

    def __init__(self, url: str, offset: int, length: int, out: np.ndarray | None):
        self.url, self.offset, self.length = url, offset, length
        # A bytearray that grows by pieces of 64 KiB costs 1.5 ms/MB, twice what the rest of a request costs.
        self._data = out if out is not None else np.empty(length if length >= 0 else WHOLE_ANSWER_BYTES, np.uint8)
        self.came = 0
        self.version: FileVersion | None = None
        """What the last request for it said."""

    def add(self, piece: bytes) -> None:
        """Behind what came; of what is more than was asked for, nothing."""
        stop = self.came + len(piece)
        if stop > self._data.size:
            if self.length >= 0:
                stop = self._data.size
                piece = piece[: stop - self.came]
            else:
                larger = np.empty(max(stop, 2 * self._data.size), np.uint8)
                larger[: self.came] = self._data[: self.came]
                self._data = larger
        self._data[self.came : stop] = np.frombuffer(piece, np.uint8)
        self.came = stop

    @property
    def bytes(self) -> np.ndarray:
        return self._data[: self.came]


def _stale(url: str) -> OSError:
    problem = "the file was replaced since it was indexed. Make the data set anew, and give new versions new names"
    return OSError(errno.ESTALE, problem, shown(url))


async def close_all(opened: Mapping[str, RemoteFiles]) -> None:
    """Close what `Link.opened` holds."""
    for files in opened.values():
        await files.close()


def _kind(url: str) -> str:
    """What is opened once for all URLs of it."""
    if "::" in url:
        return "::"
    protocol = split_protocol(url)[0] or "file"
    return (
        protocol if not protocol.startswith("s3") or s3_files.has_plain_bucket(url) else f"{protocol} of its own kind"
    )


def _is_beyond_the_end(error: Exception) -> bool:
    """Whether a server says that there is nothing from where it was asked."""
    return getattr(error, "status", None) == 416 or "InvalidRange" in f"{error!r} {error.__cause__!r}"


def _as_os_error(url: str, error: Exception) -> OSError:
    """`error` itself where it is an OSError that names its file and no secret; else one that does."""
    text, name = str(error), shown(url)
    public, secret = shown(text, of=url), tells_secret(error, of=url)
    if isinstance(error, OSError) and not secret and name in text:
        return error
    if isinstance(error, OSError):
        number = next((number for kind, number in _NUMBERS if isinstance(error, kind)), error.errno or errno.EIO)
        said = public if error.errno is None and " " in public else error.strerror or os.strerror(number)
        failure = OSError(number, shown(said, of=url), name)  # of the kind that the number means
    else:
        failure = OSError(errno.EIO, f"{type(error).__name__}: {public}", name)
    if not secret:
        failure.__cause__ = error
    return failure


_NUMBERS = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
)
"""Libraries raise these with words alone."""
