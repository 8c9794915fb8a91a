"""What a user writes for "my data": paths, URLs, globs, brace patterns, lists of them.

Owns expanding them, and the few questions asked of a file before its samples are known: does it exist, how long is
it, has it changed, what are its first bytes. Local paths go to the operating system, every other URL to fsspec, whose
errors get their wording here: what may pass is asked again (`asked`), the rest is a ShardError with cause and cure.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.file_systems import file_system_of
from gpuload.core.location import bare, is_local, local_path, shown, tells_secret
from gpuload.core.retry import ATTEMPTS, BACKOFF_S, TIMEOUT_S, backoff_s, is_denied, is_transient, status_of
from gpuload.core.stamp import Stamp, stamp_of
from gpuload.core.threads import ask_all

Options = Mapping[str, Any]
ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> the bytes there, fewer only at the file's end."""

T = TypeVar("T")

REMOTE_THREADS = 16
"""Questions asked at once of a remote file system: each is a round trip of tens of milliseconds."""

LISTED_FILES = 32
"""From so many files of one folder on, one listing tells all their sizes; fewer are asked for two at a round trip."""

_NUMBERS = re.compile(r"(\d+)\.\.(\d+)$")


def filesystem(url: str, options: Options) -> tuple[Any, str]:
    """(fsspec file system, path in it) of a URL. Raises ShardError where the protocol is not known or installed."""
    try:
        system, path = file_system_of(url, _with_time_out(url, options))
        system.invalidate_cache()  # it keeps what it was told, and files may be others now
        return system, path
    except (ImportError, ValueError) as error:
        problem = f"fsspec cannot open it: {shown(str(error), of=url)}"
        cause = None if tells_secret(error, of=url) else error
        raise ShardError(shown(url), problem, "Install the package it names") from cause


def _with_time_out(url: str, options: Options) -> Options:
    """aiohttp waits for 5 minutes for an answer however much comes of it: here for a silence, unless the user says."""
    given = options.get("client_kwargs") or {}
    if not is_http(url) or "timeout" in given:
        return options
    import aiohttp

    silence = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
    return {**options, "client_kwargs": {**given, "timeout": silence}}


def asked(url: str, options: Options, question: Callable[[Any, str], T]) -> T:
    """question(fsspec file system, path in it), again where the answer may be another a little later.

    Raises ShardError.
    """
    for attempt in range(ATTEMPTS):
        try:
            return question(*filesystem(url, options))
        except ShardError:
            raise
        except Exception as error:  # any library's
            if attempt == ATTEMPTS - 1 or not is_transient(_told(error)):
                # A cause that quotes a signed URL would print it in every traceback.
                raise _unusable(url, error) from (None if tells_secret(error, of=url) else error)
        time.sleep(backoff_s(attempt, first_s=BACKOFF_S))
    raise AssertionError("the last attempt returns or raises")


def _told(error: Exception) -> Exception:
    """What the server said: fsspec's HTTP calls a file missing whatever went wrong with the question."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        if isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp"):
            return cause
    return error


def _is_missing(error: Exception) -> bool:
    number = getattr(error, "errno", None)  # smbprotocol's OSErrors are of its own class
    return isinstance(error, FileNotFoundError) or number == errno.ENOENT or status_of(error) in (404, 410)


def _unusable(url: str, error: Exception) -> ShardError:
    told = _told(error)
    status = getattr(told, "status", None)
    text = f"{status} {getattr(told, 'message', '')}".strip() if isinstance(status, int) else str(told)
    text = shown(text, of=url).rstrip(".")
    reason = text if isinstance(told, OSError) or isinstance(status, int) else f"{type(told).__name__}: {text}"
    if _is_missing(told):
        return ShardError(shown(url), "it does not exist", "Check the path")
    if is_local(url):
        return ShardError(url, f"it cannot be read: {reason}", "Check its permissions and the storage")
    if is_denied(told):
        cure = "Check its permissions, or pass credentials in storage_options="
        return ShardError(shown(url), f"access is denied: {reason}", cure)
    tried = f" ({ATTEMPTS} attempts)" if is_transient(told) else ""
    cure = "Check the address, the network and the server, then run this again"
    return ShardError(shown(url), f"it cannot be read: {reason}{tried}", cure)


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
    if is_local(pattern):
        pattern = os.path.expanduser(local_path(pattern))
        if os.path.lexists(pattern):  # a name that only looks like a pattern
            return [pattern]
    elif not is_http(pattern) and any(c in pattern for c in "*?[{"):
        if asked(pattern, options, lambda system, path: bool(system.exists(path))):
            return [pattern]
    found: list[str] = []
    for url in braces(pattern):
        # In HTTP a question mark begins the query of a signed URL.
        if not any(c in url for c in ("*[" if is_http(url) else "*?[")):
            found.append(url)
            continue
        matches = _glob(url, options)
        if not matches:
            cure = "Check the path, and quote patterns in a shell"
            raise ShardError(shown(url), "no file matches this pattern", cure)
        found += matches
    return found


def _glob(url: str, options: Options) -> list[str]:
    if is_local(url):
        return sorted(glob.glob(url, recursive=True))

    def matches(system: Any, path: str) -> list[str]:
        return sorted(system.unstrip_protocol(match) for match in system.glob(path))

    return asked(url, options, matches)


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


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def is_folder(url: str, options: Options) -> bool:
    if is_local(url):
        return os.path.isdir(url)
    if bare(url).endswith("/") or is_http(url):  # asked for a folder over HTTP, fsspec downloads whatever it is
        return bare(url).endswith("/")
    return asked(url, options, lambda system, path: bool(system.isdir(path)))


def stamps(urls: Sequence[str], options: Options, *, failed: list[ShardError] | None = None) -> list[Stamp | None]:
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
    listed = _listed_stamps(urls, options)
    found = [listed.get(url) for url in urls]
    left = [number for number, version in enumerate(found) if version is None]
    if left:
        asked_for = [urls[number] for number in left]
        for answered in ask_all(one, asked_for, threads=REMOTE_THREADS, name="gpuload-stamp"):
            found[left[answered.number]] = answered.get()
    return found


def _listed_stamps(urls: Sequence[str], options: Options) -> dict[str, Stamp]:
    """What listings of their folders tell of files, one request a folder instead of one a file. HTTP lists no sizes."""
    folders: dict[str, dict[str, str]] = {}
    for url in urls:
        folder, _, name = url.rpartition("/")
        if not is_local(url) and "::" not in url and not is_http(url):
            folders.setdefault(folder, {})[name] = url

    def listing(system: Any, path: str) -> list[dict[str, Any]]:
        return system.ls(path, detail=True)

    found = {}
    for folder, names in folders.items():
        if len(names) < LISTED_FILES:
            continue
        try:
            entries = asked(folder, options, listing)
        except ShardError:  # a listing may be forbidden where its files are not: each is asked for
            continue
        for entry in entries:
            named, version = names.get(str(entry["name"]).rpartition("/")[2]), stamp_of(entry)
            if named is not None and version is not None and version.version:
                found[named] = version
    return found


def stamp(url: str, options: Options) -> Stamp:
    """See `stamps`."""
    if is_local(url):
        try:
            stat = os.stat(url)
        except OSError as error:
            raise _unusable(url, error) from error
        return Stamp(stat.st_size, str(stat.st_mtime_ns))
    info = asked(url, options, lambda system, path: system.info(path))
    found = stamp_of(info)
    if found is None:
        cure = "Serve it by one that does, or copy it to disk"
        raise ShardError(shown(url), "the server does not tell its size", cure)
    return found


@contextmanager
def reading(url: str, options: Options) -> Iterator[ReadAt]:
    """Positional reads of one file. Raises ShardError, also for an OSError of the block: it does nothing but read."""
    if not is_local(url):
        yield lambda offset, length: _read_remote(url, options, offset, length) if length else b""
        return
    try:
        with open(url, "rb", buffering=0) as file:
            yield lambda offset, length: os.pread(file.fileno(), length, offset)
    except OSError as error:
        raise _unusable(url, error) from error


def _read_remote(url: str, options: Options, offset: int, length: int) -> bytes:
    part = asked(url, options, lambda system, path: system.cat_file(path, start=offset, end=offset + length))
    if len(part) > length:
        problem = f"{len(part)} bytes came where {length} were asked for: the server ignores ranges"
        raise ShardError(shown(url), problem, "Serve it by one that knows them, or copy it to disk")
    return part


def read_optional(url: str, options: Options) -> bytes | None:
    """All of a small file that need not be there; None where it is not, or may not be seen. Raises ShardError."""
    if is_local(url):
        try:
            with open(url, "rb") as file:
                return file.read()
        except OSError:
            return None

    def content(system: Any, path: str) -> bytes | None:
        try:
            return system.cat_file(path)
        except Exception as error:  # any library's: told apart here, worded in `asked`
            told = _told(error)
            if _is_missing(told) or is_denied(told):
                return None
            raise

    return asked(url, options, content)
