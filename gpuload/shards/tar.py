"""WebDataset tar shards: members whose names agree up to the first dot are one sample.

Owns what members mean together: keys, extensions, which member is the image, the label in `.cls`. The archive
format is tar_headers.py's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards.expansion import Shard
from gpuload.shards.folder import is_image
from gpuload.shards.table import NO_LABEL, Finding, SampleTable, ShardScan, Strings, as_label, missing
from gpuload.shards.tar_headers import Damage, Member, Window, looks_like_tar, scan
from gpuload.shards.urls import reading

LOCAL_WINDOW_BYTES = 4 << 10
"""A header, the PAX header before it and a label come with one read; the images between them are stepped over."""

REMOTE_WINDOW_BYTES = 8 << 20
"""A remote shard is read through: stepping over an image costs a round trip, reading it a tenth of that."""

LABEL = ".cls"
LABEL_BYTES = 64

PREFERRED = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff")
"""Which member is the image where a sample has several: the first of these, then names such as "seg.png"."""

REPACK = "Write it again, or pass on_error='skip' to use the samples that are whole"


def scan_tar(shard: Shard) -> ShardScan:
    """Index one tar by its headers. Raises ShardError where it cannot be read or is no tar at all."""
    window_bytes = LOCAL_WINDOW_BYTES if is_local(shard.file) else REMOTE_WINDOW_BYTES
    if shard.stamp.size == 0:
        raise ShardError(shown(shard.url), "the file is empty (0 bytes)", "Write it again")
    with reading(shard.file, shard.options) as read_at:
        window = Window(read_at, window_bytes=window_bytes)
        _check_first(shown(shard.url), window.read(0, 512))
        samples = _Samples(shard)
        for item in scan(window, shard.stamp.size, head_suffix=LABEL, head_bytes=LABEL_BYTES):
            samples.add(item)
    return samples.finish()


def split_name(name: str) -> tuple[str, str] | None:
    """(key, extension) of a member, or None for one that belongs to no sample (hidden, or without extension)."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    return (f"{folder}{slash}{stem}", extension.lower()) if stem and dot else None


def _check_first(url: str, block: bytes) -> None:
    if not looks_like_tar(block):
        problem = f"no tar: it begins with {block[:8]!r}"
        raise ShardError(url, problem, "Name a tar shard, or a folder of shards or images")


class _Samples:
    """Members on their way to a table: columns as lists, one row a key in the order of first appearance."""

    def __init__(self, shard: Shard):
        self._url, self._file = shard.url, shard.file
        self._rows: dict[str, int] = {}
        self._members: dict[str, dict[int, tuple[int, int]]] = {}
        self._labels: list[int] = []
        self._lost: dict[str, Finding] = {}
        self._nameless: dict[int, int] = {}  # row that a damaged header may belong to -> its finding
        self._pending: int | None = None
        self._findings: list[Finding] = []

    def add(self, item: Member | Damage) -> None:
        named = split_name(item.name)
        if isinstance(item, Damage):
            cure = "" if item.note else REPACK
            finding = Finding(self._url, named[0] if named else "", item.problem, cure, item.note)
            self._findings.append(finding)
            if item.note:
                return
            if named:
                self._lost[named[0]] = finding
            else:  # of the member before it or of the one behind it
                self._pending = len(self._findings) - 1
                self._nameless[len(self._rows) - 1] = self._pending
        elif named:
            key, extension = named
            row = self._rows.setdefault(key, len(self._rows))
            if row == len(self._labels):
                self._labels.append(NO_LABEL)
            if self._pending is not None:
                self._nameless[row], self._pending = self._pending, None
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
            images[mine] = members[name][mine]
            found |= mine
        keep = found.copy()
        for key, row in self._rows.items():
            if key in self._lost:
                keep[row] = False
            elif not found[row] and row in self._nameless:
                damage = self._nameless[row]
                self._findings[damage] = replace(self._findings[damage], key=key)
            elif not found[row]:
                has = ", ".join(name for name in members if members[name]["length"][row] >= 0)
                self._findings.append(Finding(self._url, key, f"a sample without an image (it has {has})", REPACK))
        labels = np.array(self._labels, np.int64)
        own = LABEL[1:] if LABEL[1:] in members else ""
        table = SampleTable(Strings.of([self._file]), images, labels, Strings.of(self._rows), members, label=own)
        return ShardScan(table if keep.all() else table.keep(keep), tuple(self._findings))


def parse_label(text: bytes) -> int:
    """The class number in a `.cls` member; NO_LABEL where it holds no integer that fits."""
    try:
        return as_label(int(text))
    except ValueError:
        return NO_LABEL


def _column(n: int, entries: dict[int, tuple[int, int]]) -> np.ndarray:
    column = missing(n)
    rows = list(entries)
    column["offset"][rows], column["length"][rows] = np.array(list(entries.values()), np.int64).T
    return column


def _preference(name: str) -> tuple[int, str]:
    return (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)), name
