"""ShardDataset's labels: out of what `label=` names, as integers.

Owns the choice: the format's own labels, a member, a file of labels, a function of the key, a sequence. Reading a
member's values is the data set's, reading a file of labels and making numbers of names is shards/labels.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.location import shown
from gpuload.shards.catalog import Catalog
from gpuload.shards.labels import labels_from_file, names_file, numbers_of
from gpuload.shards.table import NO_LABEL, Finding, SampleTable
from gpuload.shards.urls import Options

Values = Callable[[str, np.ndarray], Sequence[Any]]
"""(member, int64 (n,) samples that have it) -> their n values, None for one that cannot be read."""

BLOCK = 1024
"""Samples whose members are read at once."""


@dataclass(frozen=True)
class Found:
    """numbers: int64 (n,), NO_LABEL where a sample has none; None: no sample has one. classes: names by number.

    findings: entries of a file of labels that name no sample, or give it another label.
    """

    numbers: np.ndarray | None
    classes: tuple[str, ...] | None
    findings: tuple[Finding, ...] = ()


def find_labels(label: Any, catalog: Catalog, table: SampleTable, urls: Any, options: Options, values: Values) -> Found:
    """The labels of `table`'s samples. label, urls: as ShardDataset's. Raises ConfigError."""
    if label is None or label == "cls":
        has = (table.labels != NO_LABEL).any()
        return Found(table.labels if has else None, catalog.classes)
    if isinstance(label, str) and catalog.format in ("folder", "images") and names_file(label):
        return _from_file(label, catalog, table, urls, options)
    if isinstance(label, str):
        given = _from_member(label, table, values)
    elif callable(label):
        given = [label(key) for key in table.keys]
    else:
        array = np.asarray(label)
        if array.shape != (len(table),) or array.dtype.kind not in "iuUS":
            raise ConfigError(
                f"label= is a sequence of shape {array.shape} and type {array.dtype}, and there are {len(table)} "
                "samples. Pass one integer or name a sample"
            )
        given = array.tolist()
    found = numbers_of(given)
    return Found(found.numbers, found.classes if found.classes is not None else catalog.classes)


def _from_file(label: str, catalog: Catalog, table: SampleTable, urls: Any, options: Options) -> Found:
    folder = urls if catalog.format == "folder" and isinstance(urls, str) else ""
    found = labels_from_file(label, folder, list(table.files), options)
    problems = {
        "name no image here, or more than one": found.unused,
        "give an image another label than one before them": found.disputed,
    }
    cure = "Check the list, or pass on_error='skip' to go without them"
    findings = [
        Finding(shown(label), "", f"{len(entries)} of its entries {problem}; the first is {entries[0]!r}", cure)
        for problem, entries in problems.items()
        if entries
    ]
    return Found(found.numbers, found.classes, tuple(findings))


def _from_member(label: str, table: SampleTable, values: Values) -> list[Any]:
    name, _, entry = label.partition(":")
    if name not in table.members:
        known = ", ".join(table.members) or "none, as in every image folder"
        raise ConfigError(f"label={shown(label)!r} names no member. There are: {known}")
    labels: list[Any] = [None] * len(table)
    rows = np.flatnonzero(table.members[name]["length"] >= 0)
    for start in range(0, len(rows), BLOCK):
        ids = rows[start : start + BLOCK]
        for row, value in zip(ids.tolist(), values(name, ids), strict=True):
            value = value.get(entry) if entry and isinstance(value, dict) else value
            labels[row] = value if isinstance(value, (str, bytes, int, np.integer)) else None
    return labels
