"""WebDataset tar shards: members whose names agree up to the first dot are one sample.

Owns what members mean together: keys, extensions, which member is the image, the label in `.cls`. The archive
format is tar_headers.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards.folder import is_image
from gpuload.shards.table import MEMBER, NO_LABEL, Finding, SampleTable, Strings, missing
from gpuload.shards.tar_headers import Damage, Member, Window, looks_like_tar, scan
from gpuload.shards.urls import Options, reading

COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""Magic bytes of what people put around a tar. None of them can be read from the middle."""

IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n")
"""JPEG's and PNG's first bytes: one image where a shard should be is the commonest mistake."""

LOCAL_WINDOW_BYTES = 4 << 10
"""A header, the PAX header before it and a label come with one read; the images between them are stepped over."""

REMOTE_WINDOW_BYTES = 8 << 20
"""A remote shard is read through: stepping over an image costs a round trip, reading it a tenth of that."""

LABEL = ".cls"
LABEL_BYTES = 64

PREFERRED = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff")
"""Which member is the image where a sample has several: the first of these, then names such as "seg.png"."""

REPACK = "Write it again, or pass on_error='skip' to use the samples that are whole"


@dataclass(frozen=True)
class ShardScan:
    """What one shard holds: its samples, and what stands in the way of others."""

    table: SampleTable
    findings: tuple[Finding, ...] = ()


def scan_tar(url: str, size: int, options: Options) -> ShardScan:
    """Index one tar by its headers. Raises ShardError where it cannot be read or is no tar at all."""
    window_bytes = LOCAL_WINDOW_BYTES if is_local(url) else REMOTE_WINDOW_BYTES
    if size == 0:
        raise ShardError(shown(url), "the file is empty (0 bytes)", "Write it again")
    with reading(url, options) as read_at:
        window = Window(read_at, window_bytes=window_bytes)
        _check_first(shown(url), window.read(0, 512))
        samples = _Samples(url)
        for item in scan(window, size, head_suffix=LABEL, head_bytes=LABEL_BYTES):
            samples.add(item)
    return samples.finish()


def split_name(name: str) -> tuple[str, str] | None:
    """(key, extension) of a member, or None for one that belongs to no sample (hidden, or without extension)."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    return (f"{folder}{slash}{stem}", extension.lower()) if stem and dot else None


def _check_first(url: str, block: bytes) -> None:
    for magic, name in COMPRESSED.items():
        if block.startswith(magic):
            cure = "Unpack it, or run `gpuload pack` on it, which writes shards that can be read at any place"
            raise ShardError(url, f"it is compressed ({name}) and cannot be read at random", cure)
    if not looks_like_tar(block):
        if is_image(url) or block.startswith(IMAGE_MAGIC):
            cure = "Name the folder that holds it, or a tar of samples"
            raise ShardError(url, "it is a single image, and no tar", cure)
        problem = f"no tar: it begins with {block[:8]!r}"
        raise ShardError(url, problem, "Name a tar shard, or a folder of shards or images")


class _Samples:
    """Members on their way to a table: columns as lists, one row a key in the order of first appearance."""

    def __init__(self, url: str):
        self._url = url
        self._rows: dict[str, int] = {}
        self._members: dict[str, dict[int, tuple[int, int]]] = {}
        self._labels: list[int] = []
        self._lost: dict[str, Finding] = {}
        self._findings: list[Finding] = []

    def add(self, item: Member | Damage) -> None:
        named = split_name(item.name)
        if isinstance(item, Damage):
            finding = Finding(self._url, named[0] if named else "", item.problem, REPACK)
            self._findings.append(finding)
            if named:
                self._lost[named[0]] = finding
        elif named:
            key, extension = named
            row = self._rows.setdefault(key, len(self._rows))
            if row == len(self._labels):
                self._labels.append(NO_LABEL)
            column = self._members.setdefault(extension, {})
            if row in column:
                problem = f"two members named {item.name}; the first one is used"
                self._findings.append(Finding(self._url, key, problem, REPACK))
                return
            column[row] = item.offset, item.length
            if extension == LABEL[1:]:
                self._labels[row] = parse_label(item.head)

    def finish(self) -> ShardScan:
        n = len(self._rows)
        members = {name: _column(n, column) for name, column in sorted(self._members.items())}
        images = np.zeros(n, SAMPLE_REF)
        found = np.zeros(n, np.bool_)
        for name in sorted((name for name in members if is_image(f".{name}")), key=_preference):
            mine = ~found & (members[name]["length"] >= 0)
            for field in ("offset", "length"):
                images[field][mine] = members[name][field][mine]
            found |= mine
        keep = found.copy()
        for key, row in self._rows.items():
            if key in self._lost:
                keep[row] = False
            elif not found[row]:
                has = ", ".join(name for name in members if members[name]["length"][row] >= 0)
                self._findings.append(Finding(self._url, key, f"a sample without an image (it has {has})", REPACK))
        table = SampleTable(Strings.of([self._url]), images, np.array(self._labels, np.int64), self._keys(), members)
        return ShardScan(table if keep.all() else table.keep(keep), tuple(self._findings))

    def _keys(self) -> Strings:
        return Strings.of(self._rows)


def parse_label(text: bytes) -> int:
    """The class number in a `.cls` member; NO_LABEL where it holds no integer that fits."""
    try:
        value = int(text)
    except ValueError:
        return NO_LABEL
    return value if NO_LABEL < value < 2**63 else NO_LABEL


def _column(n: int, entries: dict[int, tuple[int, int]]) -> np.ndarray:
    column = missing(n)
    column[list(entries)] = np.array(list(entries.values()), MEMBER)
    return column


def _preference(name: str) -> tuple[int, str]:
    return (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)), name
