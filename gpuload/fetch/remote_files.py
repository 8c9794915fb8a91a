"""The files of one remote storage, as the link reads them.

The contract that http_files.py, s3_files.py and fsspec_files.py fulfil, and what an answer says of its file's version.
Counting attempts, and going on where one stopped, is link.py's.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuload.core.location import shown
from gpuload.core.stamp import Stamp

Stream = AsyncIterator[bytes]
OnAThread = Callable[[Callable[[], Any]], Awaitable[Any]]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:(\d+)|\*)\s*$")


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

    def may_be(self, stamp: Stamp) -> bool:
        """Whether no mark here speaks against that version. What a stamp's mark is, it does not say."""
        return not (stamp.version and self.etag) or stamp.version in (self.etag, self.etag.strip('"'), self.modified)


Seen = Callable[[FileVersion], None]
"""Called with what the answer's headers say, before its first piece. May raise."""


class RemoteFiles(Protocol):
    """Called on the reader's loop only; many streams run at once.

    in_pieces: what came before a failure is there; else an answer comes as a whole or not at all.
    """

    in_pieces: bool

    def stream(self, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        """One request for bytes start..stop-1 of a file, to its end for None, as its pieces come."""

    async def info(self, url: str) -> Mapping[str, Any]:
        """What fsspec's `info` says of the file."""

    async def close(self) -> None:
        """Close what is open: the last call."""


def range_of(start: int, stop: int | None) -> str:
    """HTTP's Range."""
    return f"bytes={start}-{'' if stop is None else stop - 1}"


def version_of(headers: Mapping[str, str], url: str, start: int, *, whole: bool) -> FileVersion:
    """What HTTP's headers tell. whole: all of the file was asked for, else it from `start` on.

    Raises OSError for an answer that begins elsewhere, as caches that serve the slice they have may give.
    """
    told = {name.lower(): value for name, value in headers.items()}
    came = _CONTENT_RANGE.match(told.get("content-range", ""))
    if (came and int(came[1]) != start) or told.get("content-type", "").startswith("multipart/byteranges"):
        begins = f"the answer begins at byte {came[1]}" if came else "several ranges came"
        raise OSError(
            errno.EOPNOTSUPP,
            f"{begins} where byte {start} was asked for: what serves the data answers ranges wrongly. Serve it by "
            "something else, or copy it to local disk",
            shown(url),
        )
    size = (
        int(came[2])
        if came and came[2]
        else int(told["content-length"])
        if whole and "content-length" in told
        else None
    )
    return FileVersion(size, told.get("etag", "").removeprefix("W/"), told.get("last-modified", ""))
