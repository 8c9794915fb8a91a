"""The samples of a data set as arrays: where each image lies, its label, its key and its other fields.

Owns the in-memory form, joining and selecting. Making one is the formats' (folder.py, tar.py, tfrecord.py and so on),
keeping one on disk is index.py's and manifest.py's, reading a field's bytes as a value is fields.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.core.stamp import Stamp

MISSING = -2
"""The `length` of a member that a sample does not have."""

NO_LABEL = np.iinfo(np.int64).min

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
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        index %= len(self)
        return self.text[self.bounds[index] : self.bounds[index + 1]].decode("utf-8", "surrogateescape")

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

    def __str__(self) -> str:
        shard = shown(self.shard)
        where = f"{shard}, sample {self.key}" if self.key else shard
        return f"{where}: {self.problem}" + (f". {self.cure}" if self.cure else "")


@dataclass(frozen=True)
class SampleTable:
    """n samples. files: paths or URLs. images: SAMPLE_REF (n,). labels: int64 (n,), NO_LABEL where there is none.

    keys: n names. members: name -> SAMPLE_REF (n,), where the samples' other fields lie, length MISSING where one has
    none. encodings: name -> how a member's bytes are read (fields.py); one that is not named is read by its extension.
    origins: expansion -> the shard that it was made of, for those of `files` that are one.
    """

    files: Strings
    images: np.ndarray
    labels: np.ndarray
    keys: Strings
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

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

    Raises ShardError where the tables do not agree on how a field is read.
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
    )


def join_scans(scans: Sequence[ShardScan]) -> ShardScan:
    """Several shards as one. Where they name other classes, labels go by the sorted names of all.

    Raises ShardError as `join` does.
    """
    findings = tuple(finding for scan in scans for finding in scan.findings)
    named = list(dict.fromkeys(scan.classes for scan in scans if scan.classes is not None))
    if len(named) < 2:
        return ShardScan(join([scan.table for scan in scans]), findings, named[0] if named else None)
    classes = tuple(sorted({name for names in named for name in names}))
    return ShardScan(join([_renumbered(scan, classes) for scan in scans]), findings, classes)


def _renumbered(scan: ShardScan, classes: tuple[str, ...]) -> SampleTable:
    table, old = scan.table, scan.classes
    if old is None:
        return table
    place = {name: number for number, name in enumerate(classes)}
    known = (table.labels >= 0) & (table.labels < len(old))
    labels = table.labels.copy()
    labels[known] = np.array([place[name] for name in old] or [0], np.int64)[table.labels[known]]
    return replace(table, labels=labels)


def missing(n: int) -> np.ndarray:
    """SAMPLE_REF (n,) of samples that have no such field."""
    refs = np.zeros(n, SAMPLE_REF)
    refs["length"] = MISSING
    return refs


def _join_encodings(tables: Sequence[SampleTable], names: Sequence[str]) -> dict[str, str]:
    encodings: dict[str, str] = {}
    for table in tables:
        for name in names:
            if name not in table.members or not (table.members[name]["length"] != MISSING).any():
                continue
            mine = table.encodings.get(name, "")
            known = encodings.setdefault(name, mine)
            if {mine, known} == {ONE, SEVERAL}:
                encodings[name] = SEVERAL
            elif mine != known:
                problem = f"its field {name} is stored as {mine or 'a file'}, in others as {known or 'a file'}"
                raise ShardError(shown(table.files[0]), problem, "Read them separately, or write them alike")
    return {name: encoding for name, encoding in encodings.items() if encoding}


def _join_strings(parts: Sequence[Strings]) -> Strings:
    starts = np.cumsum([0] + [len(part.text) for part in parts])
    bounds = [part.bounds[:-1] + start for part, start in zip(parts, starts.tolist(), strict=False)]
    return Strings(b"".join(part.text for part in parts), np.concatenate([*bounds, starts[-1:]]).astype(np.int64))
