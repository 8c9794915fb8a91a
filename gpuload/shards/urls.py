"""What a user writes for "my data": paths, URLs, globs, brace patterns, lists of them.

Owns expanding them, and the few questions asked of a file before its samples are known: does it exist, how long is
it, has it changed, what are its first bytes. Local paths go to the operating system, every other URL to fsspec.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpuload.core.errors import ConfigError, ShardError

Options = Mapping[str, Any]
ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> the bytes there, fewer only at the file's end."""

REMOTE_THREADS = 16
"""Questions asked at once of a remote file system: each is a round trip of tens of milliseconds."""

_NUMBERS = re.compile(r"(\d+)\.\.(\d+)$")


@dataclass(frozen=True)
class Stamp:
    """What tells one version of a file from the next: its size in bytes, and its modification time or etag."""

    size: int
    version: str

    def __str__(self) -> str:
        return f"{self.size}:{self.version}"


def is_local(url: str) -> bool:
    return "://" not in url


def filesystem(url: str, options: Options) -> tuple[Any, str]:
    """(fsspec file system, path in it) of a URL. Raises ShardError where the protocol is not known or installed."""
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise ShardError(url, f"fsspec cannot open it: {error}", "Install the package it names") from error


def expand(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Options) -> list[str]:
    """Every file or folder that `urls` names, patterns replaced by their sorted matches. file:// becomes a path.

    Raises ConfigError for an empty list, ShardError for a glob without a match.
    """
    given = [urls] if isinstance(urls, (str, os.PathLike)) else list(urls)
    named = [url for pattern in given for url in _expand_one(os.fspath(pattern), options)]
    if not named:
        raise ConfigError("no data given: urls is an empty list. Name a folder, a shard, a pattern or a list of them")
    return named


def _expand_one(pattern: str, options: Options) -> list[str]:
    if pattern.startswith("file://"):
        pattern = pattern[len("file://") :]
    if is_local(pattern):
        pattern = os.path.expanduser(pattern)
        if os.path.lexists(pattern):  # a name that only looks like a pattern
            return [pattern]
    found: list[str] = []
    for url in braces(pattern):
        if not any(c in url for c in "*?["):
            found.append(url)
            continue
        matches = _glob(url, options)
        if not matches:
            raise ShardError(url, "no file matches this pattern", "Check the path, and quote patterns in a shell")
        found += matches
    return found


def _glob(url: str, options: Options) -> list[str]:
    if is_local(url):
        return sorted(glob.glob(url, recursive=True))
    system, path = filesystem(url, options)
    return sorted(system.unstrip_protocol(match) for match in system.glob(path))


def braces(pattern: str) -> list[str]:
    """Alternatives as bash has them: "train-{00..02}.tar", "{train,val}/x.tar". Other braces stay as they are.

    >>> braces("t-{09..11}.{tar,zip}")
    ['t-09.tar', 't-09.zip', 't-10.tar', 't-10.zip', 't-11.tar', 't-11.zip']
    """
    for start, character in enumerate(pattern):
        if character != "{":
            continue
        parts, end = _alternatives(pattern, start)
        numbers = _NUMBERS.match(parts[0]) if len(parts) == 1 else None
        if numbers:
            choices = _count(numbers[1], numbers[2])
        elif len(parts) > 1:
            choices = [choice for part in parts for choice in braces(part)]
        else:
            continue
        return [pattern[:start] + choice + tail for choice in choices for tail in braces(pattern[end + 1 :])]
    return [pattern]


def _alternatives(pattern: str, start: int) -> tuple[list[str], int]:
    """(what stands between commas in the braces that open at `start`, where they close); nothing if they do not."""
    depth, parts, begin = 0, [], start + 1
    for place in range(start, len(pattern)):
        character = pattern[place]
        depth += (character == "{") - (character == "}")
        if depth == 0 or (depth == 1 and character == ","):
            parts.append(pattern[begin:place])
            begin = place + 1
        if depth == 0:
            return parts, place
    return [], start


def _count(first: str, last: str) -> list[str]:
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    low, high = int(first), int(last)
    step = 1 if high >= low else -1
    return [f"{i:0{width}d}" for i in range(low, high + step, step)]


def is_folder(url: str, options: Options) -> bool:
    if is_local(url):
        return os.path.isdir(url)
    system, path = filesystem(url, options)
    return bool(url.endswith("/") or system.isdir(path))


def stamps(urls: list[str], options: Options, *, failed: list[ShardError] | None = None) -> list[Stamp | None]:
    """One a URL, in order. Raises ShardError for a file that is not there or may not be read.

    With `failed`, the error is put there instead, and None in the stamp's place.
    """

    def one(url: str) -> Stamp | None:
        try:
            return stamp(url, options)
        except ShardError as error:
            if failed is None:
                raise
            failed.append(error)
            return None

    if all(is_local(url) for url in urls):
        return [one(url) for url in urls]
    with ThreadPoolExecutor(min(REMOTE_THREADS, len(urls)), thread_name_prefix="gpuload-stamp") as pool:
        return list(pool.map(one, urls))


def stamp(url: str, options: Options) -> Stamp:
    """See `stamps`."""
    try:
        if is_local(url):
            stat = os.stat(url)
            return Stamp(stat.st_size, str(stat.st_mtime_ns))
        system, path = filesystem(url, options)
        info = system.info(path)
    except FileNotFoundError as error:
        raise ShardError(url, "it does not exist", "Check the path") from error
    except OSError as error:
        raise ShardError(url, f"it cannot be read: {error}", "Check its permissions and the storage") from error
    if info.get("size") is None:
        raise ShardError(url, "the server does not tell its size", "Serve it by one that does, or copy it to disk")
    names = ("ETag", "etag", "md5", "md5Hash", "crc32c", "mtime", "last_modified", "LastModified", "updated", "created")
    version = next((str(info[name]) for name in names if info.get(name) is not None), "")
    return Stamp(int(info["size"]), version)


@contextmanager
def reading(url: str, options: Options) -> Iterator[ReadAt]:
    """Positional reads of one file. OSErrors pass through; the caller names what it was doing."""
    if is_local(url):
        with open(url, "rb", buffering=0) as file:
            yield lambda offset, length: os.pread(file.fileno(), length, offset)
    else:
        system, path = filesystem(url, options)
        yield lambda offset, length: system.cat_file(path, start=offset, end=offset + length) if length else b""
