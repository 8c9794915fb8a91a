"""ZIP archives of images, class folders inside, as torchvision's ImageFolder would read them unpacked.

Owns what members mean and where their bytes lie: stored ones in the archive itself, deflated ones in an expansion. The
directory at the archive's end is zipfile's to read. Samples come as they stand in the archive. No file is ever written
under a member's name, so that names which lead elsewhere (`../`) are only odd keys.

Format: PKWARE's APPNOTE.TXT, 4.3.7 (local header), 4.3.12 (central directory).
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO, cast

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards.columns import as_key
from gpuload.shards.expansion import Expansion, Shard, expansion
from gpuload.shards.folder import is_image
from gpuload.shards.range_file import RangeFile
from gpuload.shards.table import Finding, SampleTable, ShardScan, Strings
from gpuload.shards.tar import LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES
from gpuload.shards.tar_headers import Window
from gpuload.shards.urls import ReadAt, reading

MAGIC = (b"PK\3\4", b"PK\5\6")
LOCAL_HEADER = struct.Struct("<4s22xHH")
PIECE_BYTES = 1 << 20
Place = tuple[int, int, int] | None
"""(file, offset, length) of a member's bytes, file 0 the archive and 1 its expansion; None for a lost one."""

ENCRYPTED = 1
CURE = "Write the archive again, or pass on_error='skip' to use the samples that are whole"


def scan_zip(shard: Shard) -> ShardScan:
    """Index one archive by its directory. Raises ShardError where it has none or holds no image."""
    url = shown(shard.url)
    window_bytes = LOCAL_WINDOW_BYTES if is_local(shard.file) else REMOTE_WINDOW_BYTES
    with reading(shard.file, shard.options) as read_at:
        archive = _archive(shard, read_at)
        found = _images(archive)
        if not found:
            raise ShardError(url, f"no image among its {len(archive.infolist())} members", "Name an archive of images")
        with expansion(shard, "zip") as expanded:
            expanded.check(sum(entry.file_size for entry in found if entry.compress_type != zipfile.ZIP_STORED))
            places = _Places(shard, archive, Window(read_at, window_bytes=window_bytes), expanded)
            refs = [places.of(entry) for entry in found]
    keep = [number for number, ref in enumerate(refs) if ref is not None]
    return _scan(shard, [found[number].filename for number in keep], [refs[number] for number in keep], places)


def stored_sums(shard: Shard) -> dict[int, int]:
    """Where each stored image begins, and the CRC-32 that the directory tells of it: nothing else reads them.

    Raises ShardError as `scan_zip`.
    """
    window_bytes = LOCAL_WINDOW_BYTES if is_local(shard.file) else REMOTE_WINDOW_BYTES
    with reading(shard.file, shard.options) as read_at:
        archive, window = _archive(shard, read_at), Window(read_at, window_bytes=window_bytes)
        stored = [entry for entry in _images(archive) if entry.compress_type == zipfile.ZIP_STORED]
        places = [(_start(entry, window), entry.CRC) for entry in stored]
    return {start: crc for start, crc in places if start is not None}


def _archive(shard: Shard, read_at: ReadAt) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(cast(IO[bytes], RangeFile(read_at, shard.stamp.size)))
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
        cure = "Write it again: an archive's directory stands at its end"
        raise ShardError(shown(shard.url), f"no ZIP archive, or cut off: {error}", cure) from error


def _images(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Its images, as they stand in the file."""
    found = [entry for entry in archive.infolist() if is_image(entry.filename) and not _hidden(entry.filename)]
    return sorted(found, key=lambda entry: entry.header_offset)


def _start(entry: zipfile.ZipInfo, window: Window) -> int | None:
    """Where the member's bytes begin; None where its header is damaged."""
    header = window.read(entry.header_offset, LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or not header.startswith(MAGIC[0]):
        return None
    _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    return entry.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes


class _Places:
    """Finds where members' bytes lie, and expands those that lie nowhere as they are."""

    def __init__(self, shard: Shard, archive: zipfile.ZipFile, window: Window, expanded: Expansion):
        self._shard, self._archive, self._window = shard, archive, window
        self.expanded = expanded
        self.findings: list[Finding] = []

    def of(self, entry: zipfile.ZipInfo) -> Place:
        if entry.flag_bits & ENCRYPTED:
            return self._lose(entry, "it is encrypted")
        if entry.compress_type != zipfile.ZIP_STORED:
            return self._expand(entry)
        start = _start(entry, self._window)
        if start is None:
            return self._lose(entry, f"its header at byte {entry.header_offset} is damaged")
        if entry.compress_size != entry.file_size or start + entry.file_size > self._shard.stamp.size:
            return self._lose(entry, "its size does not fit the archive")
        return 0, start, entry.file_size

    def _expand(self, entry: zipfile.ZipInfo) -> Place:
        start = self.expanded.write(b"")
        try:
            with self._archive.open(entry) as member:
                while piece := member.read(PIECE_BYTES):
                    self.expanded.write(piece)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            return self._lose(entry, f"it cannot be expanded: {error}")
        return 1, start, self.expanded.size - start

    def _lose(self, entry: zipfile.ZipInfo, problem: str) -> Place:
        self.findings.append(Finding(self._shard.url, as_key(entry.filename), problem, CURE))
        return None


def _scan(shard: Shard, names: list[str], refs: list, places: _Places) -> ShardScan:
    whole = [name.replace("\\", "/").strip("/") for name in names]
    paths = _below_common(whole)
    classes = sorted({path.split("/")[0] for path in paths if "/" in path})
    images = np.array(refs, SAMPLE_REF)
    keys = Strings.of(as_key(name) for name in names)
    findings = list(places.findings)
    if places.expanded.used:
        count = int((images["file"] == 1).sum())
        problem = f"{count} images are deflated: expanded once, {places.expanded.size} bytes in the cache directory"
        findings.append(Finding(shard.url, "", problem, note=True))
    files = [shard.file, places.expanded.path] if places.expanded.used else [shard.file]
    if not classes:
        findings.append(Finding(shard.url, "", f"no class folders: {len(names)} images, all with label 0", note=True))
        table = SampleTable(Strings.of(files), images, np.zeros(len(images), np.int64), keys)
        return ShardScan(table, tuple(findings))
    if paths != whole:
        above = whole[0].removesuffix(paths[0])
        problem = f"all its images are in {above}, which is taken for no class: classes are the folders in it"
        findings.append(Finding(shard.url, "", problem, note=True))
    number = {name: place for place, name in enumerate(classes)}
    inside = np.array(["/" in path for path in paths], np.bool_)
    labels = np.array([number.get(path.split("/")[0], 0) for path in paths], np.int64)
    table = SampleTable(Strings.of(files), images, labels, keys)
    if not inside.all():
        problem = f"{int((~inside).sum())} images outside of any class folder are left out, as ImageFolder does"
        findings.append(Finding(shard.url, "", problem, note=True))
        table = table.keep(inside)
    return ShardScan(table, tuple(findings), tuple(classes))


def _below_common(paths: list[str]) -> list[str]:
    """Paths without the folders that hold all of them, as long as class folders stay."""
    while paths and all(path.count("/") > 1 for path in paths) and len({path.split("/")[0] for path in paths}) == 1:
        paths = [path.split("/", 1)[1] for path in paths]
    return paths


def _hidden(name: str) -> bool:
    """Members that no one put there: macOS's resource forks, and hidden files."""
    parts: Iterable[str] = name.split("/")
    return any(part.startswith(".") and part not in (".", "..") or part == "__MACOSX" for part in parts)
