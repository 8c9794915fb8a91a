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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fsspec
from fsspec.core import split_protocol

from gpuload.core.location import shown
from gpuload.core.retry import backoff_s, is_transient
from gpuload.core.stamp import Stamp, stamp_of
from gpuload.fetch.flight import Flight, Turn
from gpuload.fetch.fsspec_files import AsynchronousFiles, ThreadedFiles
from gpuload.fetch.http_files import HttpFiles
from gpuload.fetch.limits import MIB, RemoteLimits
from gpuload.fetch.remote_files import FileVersion, OnAThread, RemoteFiles
from gpuload.fetch.s3_files import S3Files, has_plain_bucket, settings_for

WHOLE_ANSWER_BYTES = MIB
"""What is asked for at a time after a failure of a file system whose answers come whole or not at all."""

ASKED_AGAIN = 3
"""How often a server that calls a file's version otherwise than when it was indexed is asked for it once more."""

Keep = Callable[[bytearray], object]


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
        self, url: str, offset: int, length: int, keep: Keep | None = None, turn: Turn | None = None
    ) -> bytearray:
        """`length` bytes from `offset` on, or all of the file for -1; fewer where file or attempts end early.

        turn: among what else is wanted; a batch waits for it where that is not said. keep: given a range that is
        whole, on a thread; until it returns, the bytes count as in flight. Raises OSError that names no secret.
        """
        async with self.flight.of(length, turn or Turn()):
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

    async def _in_attempts(self, url: str, offset: int, length: int) -> bytearray:
        answer = _Answer(url, offset, length)
        part = answer.part
        failed, error = 0, None  # attempts in a row that brought nothing
        for _ in range(self.limits.attempts + self.limits.resumptions):
            had, error = len(part), None
            try:
                await self._watched(answer, gently=failed > 0)
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
        if error is not None and not part:
            raise error
        problem = f"it came in pieces: {len(part)} bytes in {self.limits.attempts + self.limits.resumptions} requests"
        raise OSError(errno.EIO, problem, shown(url))

    async def _watched(self, answer: _Answer, *, gently: bool) -> None:
        """One attempt, which ends when nothing comes for `timeout_s`."""
        part = answer.part
        task = asyncio.ensure_future(self._once(answer, gently=gently))
        try:
            came = len(part)
            while not (await asyncio.wait({task}, timeout=self.limits.timeout_s))[0]:
                if len(part) == came:
                    times = f", {self.limits.attempts} times" if not part else ""
                    problem = f"no answer within {self.limits.timeout_s:g} s{times}"
                    raise TimeoutError(errno.ETIMEDOUT, problem, shown(answer.url))
                came = len(part)
            task.result()
        finally:
            task.cancel()

    async def _once(self, answer: _Answer, *, gently: bool) -> None:
        """Add what one request for the rest brings."""
        url, part = answer.url, answer.part
        files = await self._files(url)
        start, stop = answer.offset + len(part), None if answer.length < 0 else answer.offset + answer.length
        if gently and stop is not None and not files.in_pieces:
            stop = min(stop, start + WHOLE_ANSWER_BYTES)
        said: list[FileVersion] = []
        async with contextlib.aclosing(files.stream(url, start, stop, said.append)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if said:
                    await self._hold_to_version(answer, said.pop())
                part += piece
                if stop is not None and len(part) > stop - answer.offset:  # more than was promised
                    del part[stop - answer.offset :]
                    return

    async def _hold_to_version(self, answer: _Answer, version: FileVersion) -> None:
        """Raises OSError for bytes of another version than those before them, or than what was indexed."""
        if answer.length < 0:  # a file that is read whole may be another one each time, but one
            known, answer.version = answer.version, version
            if known is not None and answer.part and version.differs(known):
                answer.part.clear()
                raise OSError(errno.EIO, "the file was replaced while it was read", shown(answer.url))  # once more
            return
        url = answer.url
        if url not in self._versions:
            stamp = self._stamps.get(url)
            # Servers that share their work may call one version differently: it counts what they say when asked again.
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
        speaks_s3 = hasattr(cls, "_call_s3")
        if speaks_s3:
            options = settings_for(url, options, connections=self.limits.max_ranges)
        system = cls(**options, asynchronous=True, loop=self._loop, skip_instance_cache=True)
        if hasattr(system, "set_session"):
            await system.set_session()
        if speaks_s3:
            return S3Files(system, connections=self.limits.max_ranges)
        return HttpFiles(system) if hasattr(system, "encode_url") else AsynchronousFiles(system)


@dataclass(eq=False)
class _Answer:
    """A range on its way. length: -1 for all of the file; version: what the last request for it said."""

    url: str
    offset: int
    length: int
    part: bytearray = field(default_factory=bytearray)
    version: FileVersion | None = None


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
    return protocol if not protocol.startswith("s3") or has_plain_bucket(url) else f"{protocol} of its own kind"


def _is_beyond_the_end(error: Exception) -> bool:
    """Whether a server says that there is nothing from where it was asked."""
    return getattr(error, "status", None) == 416 or "InvalidRange" in f"{error!r} {error.__cause__!r}"


def _as_os_error(url: str, error: Exception) -> OSError:
    """`error` itself where it is an OSError that names its file and no secret; else one that does."""
    text, name = str(error), shown(url)
    public = shown(text)
    if isinstance(error, OSError) and public == text and name in text:
        return error
    if isinstance(error, OSError):
        number = next((number for kind, number in _NUMBERS if isinstance(error, kind)), error.errno or errno.EIO)
        said = public if error.errno is None and " " in public else error.strerror or os.strerror(number)
        failure = OSError(number, shown(said), name)  # of the kind that the number means
    else:
        failure = OSError(errno.EIO, f"{type(error).__name__}: {public}", name)
    if public == text:
        failure.__cause__ = error
    return failure


_NUMBERS = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
)
"""Libraries raise these with words alone."""
