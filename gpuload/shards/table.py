"""The samples of a data set as arrays: where each image lies, its label, its key and its other fields.

Owns the in-memory form, joining and selecting. Making one is the formats' (folder.py, tar.py), keeping one on disk
is index.py's and manifest.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuload.core.location import shown

MEMBER = np.dtype([("offset", np.int64), ("length", np.int64)])
"""A field of a sample other than its image, in the same file. `length` MISSING: this sample has none."""

MISSING = -2
NO_LABEL = np.iinfo(np.int64).min


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

    keys: n names. members: extension -> MEMBER (n,).
    """

    files: Strings
    images: np.ndarray
    labels: np.ndarray
    keys: Strings
    members: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)

    def keep(self, mask: np.ndarray) -> SampleTable:
        """The samples where mask (n,) is true; all files stay listed."""
        rows = np.flatnonzero(mask)
        members = {name: refs[rows] for name, refs in self.members.items()}
        return SampleTable(self.files, self.images[rows], self.labels[rows], self.keys.take(rows), members)


def join(tables: Sequence[SampleTable]) -> SampleTable:
    """One table of all samples, in order. A field that only some tables have is MISSING in the others."""
    if len(tables) == 1:
        return tables[0]
    images = np.concatenate([table.images for table in tables])
    first_file = np.cumsum([0] + [len(table.files) for table in tables])
    images["file"] += np.repeat(first_file[:-1], [len(table) for table in tables]).astype(np.int32)
    names = list(dict.fromkeys(name for table in tables for name in table.members))
    members = {
        name: np.concatenate([table.members.get(name, missing(len(table))) for table in tables]) for name in names
    }
    return SampleTable(
        _join_strings([table.files for table in tables]),
        images,
        np.concatenate([table.labels for table in tables]),
        _join_strings([table.keys for table in tables]),
        members,
    )


def missing(n: int) -> np.ndarray:
    """MEMBER (n,) of samples that have no such field."""
    refs = np.zeros(n, MEMBER)
    refs["length"] = MISSING
    return refs


def _join_strings(parts: Sequence[Strings]) -> Strings:
    starts = np.cumsum([0] + [len(part.text) for part in parts])
    bounds = [part.bounds[:-1] + start for part, start in zip(parts, starts.tolist(), strict=False)]
    return Strings(b"".join(part.text for part in parts), np.concatenate([*bounds, starts[-1:]]).astype(np.int64))
