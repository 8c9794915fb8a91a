"""One request for a byte range of an fsspec file, as its pieces come: what arrived before a failure is not lost.

Owns how each kind of file system is asked, and what its first answer says of the file's version. HTTP and S3 are read
as streams through the sessions that fsspec opened, so their credentials, proxies and settings are the user's; every
other file system answers as a whole. Counting attempts, and going on where one stopped, is link.py's.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.core import url_to_fs

from gpuload.core.location import shown

Stream = AsyncIterator[bytes]
Cat = Callable[[int | None, int | None], Awaitable[bytes]]
"""(start, stop) -> what an fsspec file system's cat_file gives."""
OnAThread = Callable[[Callable[[], Any]], Awaitable[Any]]

_TOTAL = re.compile(r"/(\d+)\s*$")


@dataclass(frozen=True)
class FileVersion:
    """What an answer says of its file. size: bytes, of the whole file; None, "": not said."""

    size: int | None = None
    etag: str = ""
    modified: str = ""

    def differs(self, other: FileVersion) -> bool:
        """Whether these are surely two versions: another size, or no mark that both have is the same.

        Servers that share their work may give one file several ETags, or several times: one mark that agrees is enough.
        """
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        marks = [(a, b) for a, b in ((self.etag, other.etag), (self.modified, other.modified)) if a and b]
        return bool(marks) and all(a != b for a, b in marks)


Seen = Callable[[FileVersion], None]
"""Called with what the answer's headers say, before its first piece. May raise."""


def is_streamed(system: Any) -> bool:
    """Whether what came before a failure is there; other file systems answer as a whole or not at all. None is not."""
    return _is_s3(system) or _is_http(system)


def stream(system: Any, url: str, path: str, start: int, stop: int | None, *, seen: Seen) -> Stream:
    """Bytes start..stop-1 of a file, to its end for None, in pieces. system: asynchronous; it calls the file `path`."""
    if _is_s3(system):
        return _from_s3(system, path, start, stop, seen)
    if _is_http(system):
        return _from_http(system, url, path, start, stop, seen)
    return _whole(url, lambda begin, end: system._cat_file(path, start=begin, end=end), start, stop)


def stream_from_thread(
    url: str, options: Mapping[str, Any], start: int, stop: int | None, on_a_thread: OnAThread
) -> Stream:
    """The same of a file system that has no asynchronous implementation."""

    def cat(begin: int | None, end: int | None) -> Awaitable[bytes]:
        def call() -> bytes:
            # Here: fsspec keeps one object a thread, and some (paramiko's SFTP) lose answers where threads share one.
            system, path = url_to_fs(url, **options)
            return system.cat_file(path, start=begin, end=end)

        return on_a_thread(call)

    return _whole(url, cat, start, stop)


def _is_s3(system: Any) -> bool:
    return hasattr(system, "_call_s3")


def _is_http(system: Any) -> bool:
    return hasattr(system, "encode_url") and hasattr(system, "set_session")


async def _from_http(system: Any, url: str, path: str, start: int, stop: int | None, seen: Seen) -> Stream:
    given = {**system.kwargs}
    headers = {"Accept-Encoding": "identity", **given.pop("headers", {})}
    if start or stop is not None:
        headers["Range"] = _range(start, stop)
    session = await system.set_session()
    async with session.get(system.encode_url(path), headers=headers, **given) as answer:
        system._raise_not_found_for_status(answer, url)
        whole = answer.status != 206
        if whole and "Range" in headers and (start or answer.content_length != stop):
            came = f"{answer.content_length} bytes come" if answer.content_length is not None else "all bytes come"
            asked = f"from byte {start} on" if stop is None else f"{stop - start}"
            raise OSError(
                errno.EOPNOTSUPP,
                f"{came} where {asked} were asked for: the server ignores ranges. Serve the data with one that knows "
                "them, or copy it to local disk",
                shown(url),
            )
        seen(_version(answer.headers, whole=whole))
        async for piece in answer.content.iter_any():
            yield piece


async def _from_s3(system: Any, path: str, start: int, stop: int | None, seen: Seen) -> Stream:
    bucket, key, version = system.split_path(path)
    given = {"VersionId": version} if version else {}
    if start or stop is not None:
        given["Range"] = _range(start, stop)
    answer = await system._call_s3("get_object", Bucket=bucket, Key=key, **given)
    try:
        seen(_version(answer["ResponseMetadata"]["HTTPHeaders"], whole="Range" not in given))
        while piece := await answer["Body"].read(1 << 20):
            yield piece
    finally:
        answer["Body"].close()


async def _whole(url: str, cat: Cat, start: int, stop: int | None) -> Stream:
    part = await (cat(None, None) if not start and stop is None else cat(start, stop))
    if stop is not None and len(part) > stop - start:
        problem = f"{len(part)} bytes came where {stop - start} were asked for: the server ignores ranges"
        raise OSError(errno.EOPNOTSUPP, f"{problem}. Copy the data to local disk", shown(url))
    yield part


def _range(start: int, stop: int | None) -> str:
    return f"bytes={start}-{'' if stop is None else stop - 1}"


def _version(headers: Mapping[str, str], *, whole: bool) -> FileVersion:
    told = {name.lower(): value for name, value in headers.items()}
    total = _TOTAL.search(told.get("content-range", ""))
    size = int(total[1]) if total else int(told["content-length"]) if whole and "content-length" in told else None
    return FileVersion(size, told.get("etag", "").removeprefix("W/"), told.get("last-modified", ""))
