"""Labels that stand in a file of their own: CSV or JSON beside a folder of images, or for a list of them.

Owns reading such files, which column is which, and making numbers of names: label i is the i-th of the sorted names.

    CSV, TSV     a header with a file name and a label, in any two columns if there are no more; or two columns
                 without one
    JSON         {"a.jpg": label}, [{"file_name": "a.jpg", "label": ...}], [["a.jpg", label]], or one of these under
                 the name "labels"
    JSON lines   {"file_name": "a.jpg", "label": ...} a line, as Hugging Face's metadata.jsonl
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.location import bare, is_local, shown
from gpuload.shards.columns import LABEL_NAMES, preferred
from gpuload.shards.folder import is_image
from gpuload.shards.table import NO_LABEL, as_label
from gpuload.shards.urls import Options, read_optional

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl")
FILE_NAMES = ("file_name", "filename", "file", "image", "image_path", "path", "filepath", "img", "image_id", "id")
MORE_LABEL_NAMES = (*LABEL_NAMES, "class_name", "label_name", "species", "breed", "y")


@dataclass(frozen=True)
class Labels:
    """numbers: int64 (n,), NO_LABEL where there is none. classes: names by number, where labels were names.

    unused: entries of the file that name no sample. disputed: those that give one another label than an entry before
    them; it has none then.
    """

    numbers: np.ndarray
    classes: tuple[str, ...] | None
    unused: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()


def numbers_of(labels: Sequence[Any]) -> Labels:
    """Labels as given, one a sample, None for none: integers, or names where not one of them is an integer.

    Among integers, what is none is no label: a damaged one must not make names of all others.
    """
    values = [label.decode() if isinstance(label, bytes) else label for label in labels]
    values = [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
    integers = [_integer(value) for value in values]
    if any(integer is not None for integer in integers) or not any(value is not None for value in values):
        return Labels(np.array([NO_LABEL if i is None else i for i in integers], np.int64), None)
    names = sorted({str(value) for value in values if value is not None})
    number = {name: place for place, name in enumerate(names)}
    numbers = [NO_LABEL if value is None else number[str(value)] for value in values]
    return Labels(np.array(numbers, np.int64), tuple(names))


def names_file(label: str) -> bool:
    """Whether `label=` names a file: "labels.csv", or a column of it, "labels.csv:species"."""
    return _is_file(_split(label)[0])


def labels_from_file(label: str, folder: str, files: Sequence[str], options: Options) -> Labels:
    """The labels of these image files, in their order, from a file whose path is relative to `folder`.

    Entries name files relative to `folder`; or without their extension, or without their folder, where no more than
    one is called so. Raises ConfigError.
    """
    path, column = _split(label)
    prefix = folder.rstrip("/") + "/" if folder else ""
    absolute = path.startswith("/") or "://" in path
    url = named = path if absolute else prefix + path
    text = read_optional(url, options)
    if text is None and is_local(path):
        url, text = path, read_optional(path, options)  # relative to where the program runs
    if text is None:
        raise ConfigError(f"label={shown(label)!r} names a file, and there is none at {shown(named)}")
    try:
        entries = _entries(text.decode("utf-8-sig"), path, column)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, csv.Error) as error:
        problem = f"label={shown(label)!r}: {shown(url)} is no list of files and labels: {error}"
        raise ConfigError(f"{problem}. Give it a column file_name and a column label") from error
    rows = _Rows(files, prefix)
    labels: dict[int, Any] = {}
    unused, disputed = [], {}
    for name, value in entries:
        row = rows.named(name.removeprefix("./"))
        if row is None:
            unused.append(name)
        elif str(labels.setdefault(row, value)) != str(value):
            disputed[row] = name
    labels |= dict.fromkeys(disputed)
    found = numbers_of([labels.get(row) for row in rows.numbers])
    return Labels(found.numbers, found.classes, tuple(unused), tuple(disputed.values()))


class _Rows:
    """Images by the names that entries may have for them. numbers: of each file, the first row with that file."""

    def __init__(self, files: Sequence[str], prefix: str):
        given: dict[str, int] = {}
        whole: dict[str, int | None] = {}  # None: several are called so
        short: dict[str, int | None] = {}
        for row, file in enumerate(files):
            if given.setdefault(file, row) != row:
                continue
            path = bare(file)
            name = path.removeprefix(prefix)
            names = ((whole, path), (whole, name), (short, name.rpartition(".")[0]), (short, name.rpartition("/")[2]))
            for known, called in names:
                if known.setdefault(called, row) != row:
                    known[called] = None
        self.numbers = [given[file] for file in files]
        self._surest_first = given, whole, short

    def named(self, name: str) -> int | None:
        return next((known[name] for known in self._surest_first if name in known), None)


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not isinstance(value, str) and number != value:  # half a class
        return None
    return number if as_label(number) != NO_LABEL else None


def _split(label: str) -> tuple[str, str]:
    """(file, column or "") of "labels.csv:species"."""
    path, colon, column = label.rpartition(":")
    return (path, column) if colon and _is_file(path) else (label, "")


def _is_file(path: str) -> bool:
    return bare(path).lower().endswith(SUFFIXES)


def _entries(text: str, path: str, column: str) -> list[tuple[str, Any]]:
    kind = bare(path).lower().rpartition(".")[2]
    if kind == "jsonl":
        return _pairs([json.loads(line) for line in text.splitlines() if line.strip()], column)
    if kind == "json":
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("labels"), (list, dict)):
            found = found["labels"]
        return _pairs(found, column)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter="\t" if kind == "tsv" else ",") if row]
    if not column and rows and len(rows[0]) == 2 and is_image(rows[0][0]):
        return [(row[0], row[1]) for row in rows]
    return _pairs([dict(zip(rows[0], row, strict=False)) for row in rows[1:]], column)


def _pairs(found: Mapping[str, Any] | Iterable[Any], column: str) -> list[tuple[str, Any]]:
    if isinstance(found, Mapping):
        return [(str(name), value[column] if column else value) for name, value in found.items()]
    records = list(found)
    if not records or not isinstance(records[0], Mapping):
        return [(str(name), value) for name, value in records]
    names = list(records[0])
    label = column or next(iter(preferred(names, MORE_LABEL_NAMES)), None)
    rest = [name for name in names if name != label]
    file = (preferred(rest, FILE_NAMES) or rest)[0]
    if label is None and len(names) == 2:
        label = next(name for name in names if name != file)
    if label not in names:
        unclear = "which column is the label is not clear (say it: labels.csv:COLUMN)"
        what = f"no column {label}" if label is not None else unclear
        raise ValueError(f"{what}; there are {', '.join(names)}")
    return [(str(record[file]), record[label]) for record in records]
