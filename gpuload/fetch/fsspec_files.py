"""Files of any file system that fsspec knows: an answer comes as a whole or not at all."""

from __future__ import annotations

import errno
import inspect
import weakref
from collections.abc import Mapping
from typing import Any

from gpuload.core.file_systems import file_system_of
from gpuload.core.location import shown
from gpuload.fetch.remote_files import OnAThread, Seen, Stream


class AsynchronousFiles:
    """system: an asynchronous fsspec file system."""

    in_pieces = False

    def __init__(self, system: Any):
        self._system = system

    async def stream(self, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        path = self._system._strip_protocol(url)
        given = {} if not start and stop is None else {"start": start, "end": stop}
        yield _bounded(await self._system._cat_file(path, **given), url, start, stop)

    async def info(self, url: str) -> Mapping[str, Any]:
        return await self._system._info(self._system._strip_protocol(url))

    async def close(self) -> None:
        session = getattr(self._system, "_session", None)
        closing = session.close() if session is not None else None
        if inspect.isawaitable(closing):
            await closing


class ThreadedFiles:
    """What has no asynchronous implementation, and URLs of several file systems (`zip://...::s3://...`).

    on_a_thread: a method of the loop's owner, whom these files do not keep: they are closed when nobody else does.
    """

    in_pieces = False

    def __init__(self, options: Mapping[str, Any], on_a_thread: OnAThread):
        self._options, self._method = options, weakref.WeakMethod(on_a_thread)

    @property
    def _on_a_thread(self) -> OnAThread:
        method = self._method()
        assert method is not None  # it is the owner's loop that runs this
        return method

    async def stream(self, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        def cat() -> bytes:
            # Here: fsspec keeps one object a thread, and some (paramiko's SFTP) lose answers where threads share one.
            system, path = file_system_of(url, self._options)
            given = {} if not start and stop is None else {"start": start, "end": stop}
            return system.cat_file(path, **given)

        yield _bounded(await self._on_a_thread(cat), url, start, stop)

    async def info(self, url: str) -> Mapping[str, Any]:
        def info() -> Mapping[str, Any]:
            system, path = file_system_of(url, self._options)
            return system.info(path)

        return await self._on_a_thread(info)

    async def close(self) -> None:
        """fsspec keeps what it opened."""


def _bounded(part: bytes, url: str, start: int, stop: int | None) -> bytes:
    if stop is not None and len(part) > stop - start:
        problem = f"{len(part)} bytes came where {stop - start} were asked for: the server ignores ranges"
        raise OSError(errno.EOPNOTSUPP, f"{problem}. Copy the data to local disk", shown(url))
    return part
