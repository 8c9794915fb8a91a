"""Containers without random access, expanded once into the cache directory: gzip around a tar, deflated ZIP members.

Owns the file that the bytes go to, for all formats: its name (container and version of it, so that nothing stale is
used), its bounds, and that one process writes it while the others wait. What is written is the formats'.

A file appears under its name when it is whole. It may be deleted at any time: the next opening makes it anew. Another
version of the same container replaces it.

Bombs: what comes out may be RATIO times what went in, and FLOOR_BYTES however small that was; beyond that nothing is
kept. Photographs compress by a hundredth; blank bitmaps by 100 would be the first honest data to meet the bound.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import fcntl
import glob
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO

from gpuload.core.errors import MissingDependencyError, ShardError
from gpuload.core.location import cache_dir, is_local, server_of, shown
from gpuload.core.stamp import Stamp
from gpuload.shards.urls import Options, ReadAt

RATIO = 200
FLOOR_BYTES = 16 << 20

MAGIC = {b"\x1f\x8b\x08": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of what people put around a shard. None of them can be read from the middle."""

PIECE_BYTES = 1 << 20
ZSTD_PIECE_BYTES = 4 << 10
"""Four bytes of zstd may stand for 128 KiB, and all of them come at once: 128 MiB at most."""

XZ_MEMORY_BYTES = 256 << 20
"""xz -9 needs 65 MiB to be read; a header may ask for 4 GiB."""

LAYOUT = 2
"""Counted up when a format writes other bytes for the same container, or in another order: old copies are made anew."""

PARTIAL = ".partial"
CUT = ".cut"
"""Ends the name of an expansion whose container is damaged or cut off: it holds what came before."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class Shard:
    """A container of samples. url: as the user named it. file: what is read, `url` or an expansion of it."""

    url: str
    stamp: Stamp
    options: Options
    file: str

    @classmethod
    def at(cls, url: str, stamp: Stamp, options: Options) -> Shard:
        return cls(url, stamp, options, url)

    def expansion(self, purpose: str) -> str:
        """Where it lies. purpose: what of the shard was expanded, and how."""
        server = server_of(self.url, self.options)
        return expansion_path(self.url, self.stamp, f"{server}-{purpose}" if server else purpose)


def expansion_path(url: str, stamp: Stamp, purpose: str) -> str:
    """Where the expansion of this version of a container lies. purpose: what of it was expanded, and how."""
    return f"{_stem(url)}-{hashlib.sha256(f'{LAYOUT} {stamp}'.encode()).hexdigest()[:16]}-{purpose}"


def purpose_of(path: str) -> str:
    """The purpose in an `expansion_path`."""
    return os.path.basename(path).split("-", 2)[2]


def compression(first: bytes) -> str | None:
    """What a file that begins with these bytes is compressed with."""
    for magic, name in MAGIC.items():
        if first.startswith(magic):
            return name
    # zlib has no magic, but two bytes that are a multiple of 31; text that begins so is no shard anyway
    if len(first) > 2 and first[0] == 0x78 and int.from_bytes(first[:2], "big") % 31 == 0:
        return "zlib"
    return None


class Expansion:
    """The file that a container's bytes are expanded to. Made by `expansion`.

    Only the holder of the container's lock writes, so that the unfinished file has one name: what a kill -9 leaves
    there, the next attempt begins anew.
    """

    def __init__(self, shard: Shard, purpose: str, stack: ExitStack):
        self.path = shard.expansion(purpose)
        self.size = 0
        self.used = False
        self._shard, self._stack = shard, stack
        self._file: BinaryIO | None = None
        self._limit = max(FLOOR_BYTES, RATIO * shard.stamp.size)

    def write(self, data: Any) -> int:
        """Append; returns where the data begins. Raises ShardError beyond the bounds, and for a full disk."""
        if not self.used:
            self._begin()
        start = self.size
        self.check(start + len(data))
        self.size += len(data)
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                raise self._no_room(error) from error
        return start

    def check(self, size: int) -> None:
        """Raises ShardError where `size` bytes are more than this container may become."""
        if size > self._limit:
            problem = f"expanded, it has more than {self._limit} bytes, {RATIO} times its own size: a bomb"
            raise ShardError(shown(self._shard.url), problem, "Do not use it, or write it again uncompressed")

    def finish(self) -> None:
        """Give the file its name, and remove those of other versions of the container."""
        if self._file is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())  # a file under its name is whole, after a power cut too
            self._file.close()
            os.replace(self.path + PARTIAL, self.path)
        except OSError as error:
            raise self._no_room(error) from error
        mine = self.path.rsplit("-", 1)[0]
        for other in glob.glob(glob.escape(_stem(self._shard.url)) + "-*"):
            if not other.startswith(mine):
                with contextlib.suppress(OSError):
                    os.unlink(other)

    def abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()  # what it still buffers has nowhere to go either
            with contextlib.suppress(OSError):
                os.unlink(self.path + PARTIAL)

    def _begin(self) -> None:
        shard = self._shard
        if not shard.stamp.version:
            problem = "it has to be expanded once, and its server tells neither etag nor time to know the copy by"
            raise ShardError(shown(shard.url), problem, "Copy it to disk, or serve it by one that does")
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._stack.enter_context(_locked(f"{_stem(shard.url)}.lock"))
            if not os.path.exists(self.path):
                self._file = open(self.path + PARTIAL, "wb")
        except OSError as error:
            raise self._no_room(error) from error
        self.used = True

    def _no_room(self, error: OSError) -> ShardError:
        folder = os.path.dirname(self.path)
        what = "there is no room" if error.errno in FULL else "nothing can be written"
        problem = f"it has to be expanded, and {what} in {folder}: {error.strerror}"
        return ShardError(shown(self._shard.url), problem, "Make room there, or let XDG_CACHE_HOME name another disk")


@contextlib.contextmanager
def expansion(shard: Shard, purpose: str) -> Iterator[Expansion]:
    """A place for what of `shard` cannot be read where it lies. Nothing is made where nothing is written to it.

    Where this version of it was expanded before, what is written is only counted.
    """
    with ExitStack() as stack:
        made = Expansion(shard, purpose, stack)
        try:
            yield made
            made.finish()
        except BaseException:
            made.abandon()
            raise


def expand_stream(shard: Shard, kind: str, read_at: ReadAt) -> tuple[Shard, str]:
    """The whole of a compressed container as another one, and what was wrong with its stream, or "".

    kind: as `compression` names it. Raises ShardError, MissingDependencyError.
    """
    for path in (shard.expansion(kind), shard.expansion(kind + CUT)):
        if os.path.exists(path):
            size = os.path.getsize(path)
            problem = _cut_off(kind) if path.endswith(CUT) else ""
            return Shard(shard.url, Stamp(size, shard.stamp.version), shard.options, path), problem
    problem = ""
    with expansion(shard, kind) as made:
        pieces = _decompressed(kind, shard, read_at)
        while True:
            try:
                piece = next(pieces, None)
            except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the storage's, not the decompressor's
                problem, piece = _cut_off(kind), None
            if piece is None:
                break
            made.write(piece)
        if made.size == 0:
            problem = f"its {kind} stream is damaged" if problem else f"its {kind} stream is empty"
            raise ShardError(shown(shard.url), problem, "Write it again")
    if problem:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.replace(made.path, made.path + CUT)
    path = made.path + CUT if problem else made.path
    return Shard(shard.url, Stamp(made.size, shard.stamp.version), shard.options, path), problem


def _cut_off(kind: str) -> str:
    return f"its {kind} stream is damaged or cut off: what comes after that is lost"


def _decompressed(kind: str, shard: Shard, read_at: ReadAt) -> Iterator[bytes]:
    """Pieces of the container's content, of bounded size. Raises what the library does for damage."""
    new = _decompressor(kind, shard)
    input_bytes = ZSTD_PIECE_BYTES if kind == "zstd" else PIECE_BYTES
    stream, offset, rest = new(), 0, b""
    while True:
        if not rest:
            rest = read_at(offset, min(input_bytes, shard.stamp.size - offset))
            offset += len(rest)
            if not rest:
                break
        if stream.eof:  # members joined end to end are one stream; zeros after it are a tape's padding
            if not rest.strip(b"\0"):
                rest = b""
                continue
            stream = new()
        while True:
            piece = stream.decompress(rest, PIECE_BYTES)
            yield piece
            rest = getattr(stream, "unconsumed_tail", b"")  # zlib gives back what it has not read
            if stream.eof or (not rest and len(piece) < PIECE_BYTES):
                break
        rest = stream.unused_data if stream.eof else b""
    if not stream.eof:
        raise EOFError


def _decompressor(kind: str, shard: Shard) -> Callable[[], Any]:
    if kind in ("gzip", "zlib"):
        return lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS + 32)
    if kind == "bzip2":
        return bz2.BZ2Decompressor
    if kind == "xz":
        return lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES)
    try:
        import zstandard
    except ImportError as error:
        problem = f"{shown(shard.url)} is compressed with zstd, which needs the package zstandard"
        raise MissingDependencyError(f"{problem}. Install it: pip install 'gpuload[formats]'") from error
    return lambda: _Zstd(zstandard)


class _Zstd:
    """zstandard's decompressor, called as bz2's is. It gives all that its input makes at once."""

    def __init__(self, zstandard: Any):
        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor().decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._stream.unused_data)

    def decompress(self, data: bytes, _: int) -> bytes:
        try:
            return bytes(self._stream.decompress(data)) if data else b""
        except self._error as error:
            raise ValueError(str(error)) from error


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """One process at a time; the lock ends with the process, however that ends."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _stem(url: str) -> str:
    absolute = os.path.abspath(url) if is_local(url) else url
    digest = hashlib.sha256(absolute.encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(cache_dir(), "expanded", digest[:32])
