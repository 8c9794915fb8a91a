"""What tells one version of a file from the next, by what its file system says of it.

Owns the value and how it is read out of fsspec's `info`, or of what the system says of a local file. Asking is
`shards/`'s and `fetch/`'s, which must agree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION_NAMES = (
    *("etag", "md5", "md5hash", "content-md5", "digest", "crc32c", "mtime"),
    *("last-modified", "lastmodified", "last_modified", "updated", "modified", "created"),
)
"""What file systems call that by which a file's versions are told apart, in lower case, the surest first."""


@dataclass(frozen=True)
class Stamp:
    """What tells one version of a file from the next: its size in bytes, and its modification time or etag.

    version: "" where a server tells neither: then another file of the same size looks the same, and nothing that was
    kept about this one can be trusted.
    """

    size: int
    version: str

    def __str__(self) -> str:
        return f"{self.size}:{self.version}"

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether a local file is still that version: 1 us with the os.fstat."""
        return stat.st_size == self.size and str(stat.st_mtime_ns) == self.version


def stamp_of_local(stat: os.stat_result) -> Stamp:
    """The stamp of a local file."""
    return Stamp(stat.st_size, str(stat.st_mtime_ns))


def stamp_of(info: Mapping[str, Any]) -> Stamp | None:
    """The stamp of a file that fsspec describes so; None where its size is not told.

    >>> stamp_of({"size": 3, "ETag": '"abc"'})
    Stamp(size=3, version='"abc"')
    """
    if info.get("size") is None:
        return None
    told = {name.lower(): value for name, value in info.items() if value is not None}
    return Stamp(int(info["size"]), next((str(told[name]) for name in VERSION_NAMES if name in told), ""))
