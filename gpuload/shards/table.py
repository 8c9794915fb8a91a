"""The samples of a data set as arrays: where each image lies, its label, its key and its other fields.

Owns the in-memory form, joining and selecting. Making one is the formats' (folder.py, tar.py, tfrecord.py and so on),
keeping one on disk is index.py's and manifest.py's, reading a field's bytes as a value is fields.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from gpuload.core.location import shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.core.stamp import Stamp

MISSING = -2
"""The `length` of a member that a sample does not have."""

ITERATED = 4096
"""Strings that an iteration has at a time: the point of Strings is that there are not all of them."""

NO_LABEL = np.iinfo(np.int64).min

NUMBERS = "its labels are numbers, and those of other shards have names: they are left out"
NUMBERS_CURE = "Read them separately, or pass on_error='skip' and label="

MIXED = "mixed "
"""Begins the encoding of a field that shards store in several ways, which follow: it cannot be read."""

ONE, SEVERAL = "tf", "tf[]"
"""Encodings of a TFRecord's feature: one value in each sample, or a list. A list of one where others have more stays a
list, so that a field has one type over all shards."""


class Strings(Sequence[str]):
    """Immutable strings in one block of bytes: 8 bytes and the text each, where a list of str needs 60 and the text."""

    def __init__(self, text: bytes, bounds: np.ndarray):
        self.text, self.bounds = text, bounds

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        encoded = [s.encode("utf-8", "surrogateescape") for s in strings]
        bounds = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(e) for e in encoded], out=bounds[1:])
        return cls(b"".join(encoded), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index):  # int -> str, slice -> list[str]
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._between(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        if not -len(self) <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        index %= len(self)
        return self.text[self.bounds[index] : self.bounds[index + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), ITERATED):
            yield from self._between(start, min(start + ITERATED, len(self)))

    def _between(self, start: int, stop: int) -> list[str]:
        """Those from `start` to `stop`, in a tenth of the time that each by itself takes."""
        bounds = self.bounds[start : max(start, stop) + 1].tolist()
        first, text = bounds[0], self.text[bounds[0] : bounds[-1]]
        if text.isascii():
            plain = text.decode("ascii")
            return [plain[begin - first : end - first] for begin, end in pairwise(bounds)]
        return [self.text[begin:end].decode("utf-8", "surrogateescape") for begin, end in pairwise(bounds)]

    def take(self, rows: np.ndarray) -> Strings:
        return Strings.of(self[row] for row in rows.tolist())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Strings({self[:3]}{'...' if len(self) > 3 else ''}, n={len(self)})"


@dataclass(frozen=True)
class Finding:
    """Something about a shard that its user should know.

    problem, cure: as in ShardError. note: nothing is lost by it; otherwise on_error="raise" raises it.
    """

    shard: str
    key: str
    problem: str
    cure: str = ""
    note: bool = False

    def __repr__(self) -> str:
        return f"{'Note' if self.note else 'Finding'}({str(self)!r})"

    def __str__(self) -> str:
        shard = shown(self.shard)
        where = f"{shard}, sample {self.key}" if self.key else shard
        return f"{where}: {self.problem}" + (f". {self.cure}" if self.cure else "")


@dataclass(frozen=True)
class SampleTable:
    """n samples. files: paths or URLs. images: SAMPLE_REF (n,). labels: int64 (n,), NO_LABEL where there is none.

    keys: n names. members: name -> SAMPLE_REF (n,), where the samples' other fields lie, length MISSING where one has
    none. encodings: name -> how a member's bytes are read (fields.py); one that is not named is read by its extension.
    origins: expansion -> the shard that it was made of, for those of `files` that are one. label: the member whose
    numbers are the labels of all samples that have it, "" where there is none.
    """

    files: Strings
    images: np.ndarray
    labels: np.ndarray
    keys: Strings
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    label: str = ""

    def __len__(self) -> int:
        return len(self.images)

    def keep(self, mask: np.ndarray) -> SampleTable:
        """The samples where mask (n,) is true; all files stay listed."""
        rows = np.flatnonzero(mask)
        members = {name: refs[rows] for name, refs in self.members.items()}
        return replace(
            self, images=self.images[rows], labels=self.labels[rows], keys=self.keys.take(rows), members=members
        )


@dataclass(frozen=True)
class ShardScan:
    """What one shard holds, or several: its samples, and what stands in the way of others.

    classes: names by label, where the shard tells them. stamps: of shards, by URL, as they were when this was made.
    """

    table: SampleTable
    findings: tuple[Finding, ...] = ()
    classes: tuple[str, ...] | None = None
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


def join(tables: Sequence[SampleTable]) -> SampleTable:
    """One table of all samples, in order. A field that only some tables have is MISSING in the others.

    Where the tables do not agree on how a field is read, its encoding is MIXED.
    """
    if len(tables) == 1:
        return tables[0]
    first_file = np.cumsum([0] + [len(table.files) for table in tables])
    shift = np.repeat(first_file[:-1], [len(table) for table in tables]).astype(np.int32)
    images = np.concatenate([table.images for table in tables])
    images["file"] += shift
    names = list(dict.fromkeys(name for table in tables for name in table.members))
    members = {}
    for name in names:
        members[name] = np.concatenate([table.members.get(name, missing(len(table))) for table in tables])
        members[name]["file"] += shift
    return SampleTable(
        _join_strings([table.files for table in tables]),
        images,
        np.concatenate([table.labels for table in tables]),
        _join_strings([table.keys for table in tables]),
        members,
        _join_encodings(tables, names),
        {file: shard for table in tables for file, shard in table.origins.items()},
        tables[0].label if len({table.label for table in tables}) == 1 else "",
    )


def join_scans(scans: Sequence[ShardScan]) -> ShardScan:
    """Several shards as one. Where they name other classes, labels go by the sorted names of all.

    Numbers in shards without names are no labels beside those of shards with some: which names they mean, nobody knows.
    """
    findings = [finding for scan in scans for finding in scan.findings]
    named = list(dict.fromkeys(scan.classes for scan in scans if scan.classes is not None))
    unnamed = [scan.table for scan in scans if scan.classes is None and (scan.table.labels != NO_LABEL).any()]
    findings += [Finding(_shard_of(table), "", NUMBERS, NUMBERS_CURE) for table in unnamed if named]
    classes = named[0] if len(named) == 1 else tuple(sorted({name for names in named for name in names})) or None
    table = join([_renumbered(scan, classes) if classes else scan.table for scan in scans])
    mixed = [name for name, encoding in table.encodings.items() if encoding.startswith(MIXED)]
    problem = "shards store its field {} in several ways: it cannot be read"
    findings += [Finding(_shard_of(scans[0].table), "", problem.format(name), note=True) for name in mixed]
    return ShardScan(table, tuple(findings), classes)


def _shard_of(table: SampleTable) -> str:
    return table.origins.get(table.files[0], table.files[0])


def _renumbered(scan: ShardScan, classes: tuple[str, ...]) -> SampleTable:
    table, old = scan.table, scan.classes
    if old is None:
        return replace(table, labels=np.full(len(table), NO_LABEL))
    if old == classes:
        return table
    place = {name: number for number, name in enumerate(classes)}
    known = (table.labels >= 0) & (table.labels < len(old))
    labels = table.labels.copy()
    labels[known] = np.array([place[name] for name in old] or [0], np.int64)[table.labels[known]]
    return replace(table, labels=labels)


def as_label(number: int) -> int:
    """A class number as labels keep it: NO_LABEL for one beyond int64."""
    return number if NO_LABEL < number < 2**63 else NO_LABEL


def missing(n: int) -> np.ndarray:
    """SAMPLE_REF (n,) of samples that have no such field."""
    refs = np.zeros(n, SAMPLE_REF)
    refs["length"] = MISSING
    return refs


def _join_encodings(tables: Sequence[SampleTable], names: Sequence[str]) -> dict[str, str]:
    encodings = {}
    for name in names:
        holders = [t for t in tables if name in t.members and (t.members[name]["length"] != MISSING).any()]
        ways = list(dict.fromkeys(table.encodings.get(name, "") for table in holders))
        if {*ways} == {ONE, SEVERAL}:
            ways = [SEVERAL]
        encodings[name] = "".join(ways) if len(ways) < 2 else MIXED + " and ".join(way or "a file" for way in ways)
    return {name: encoding for name, encoding in encodings.items() if encoding}


def _join_strings(parts: Sequence[Strings]) -> Strings:
    starts = np.cumsum([0] + [len(part.text) for part in parts])
    bounds = [part.bounds[:-1] + start for part, start in zip(parts, starts.tolist(), strict=False)]
    return Strings(b"".join(part.text for part in parts), np.concatenate([*bounds, starts[-1:]]).astype(np.int64))
