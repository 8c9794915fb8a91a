"""Samples out of Arrow record batches, whatever file they came from: Parquet, Arrow IPC, Hugging Face data sets.

Owns which column is the image, the label and the key (Hugging Face's features where the schema holds them, names and
types where not), and how the other columns' values become bytes that fields.py reads. Where an image's bytes can be
read later, in its file or in an expansion, is the caller's (parquet.py, arrow.py).

pyarrow is an optional package, asked for here. Formats: arrow.apache.org/docs/format/Columnar.html;
huggingface.co/docs/datasets/about_dataset_features.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from gpuload.core.errors import MissingDependencyError, ShardError
from gpuload.core.location import shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards.columns import IMAGE_NAMES, KEY_NAMES, LABEL_NAMES, as_key, looks_like_image, preferred
from gpuload.shards.expansion import Expansion, Shard
from gpuload.shards.table import MISSING, NO_LABEL, Finding, SampleTable, ShardScan, Strings, as_label

REWRITE = "Write it again, or pass on_error='skip' to use the samples that are whole"
BATCH_ROWS = 64

Place = Callable[[Any, bool], np.ndarray]
"""(an Arrow array of n binary values, whether they are the images) -> SAMPLE_REF (n,) where their bytes can be read
later, length MISSING for null ones."""


def pyarrow(url: str) -> ModuleType:
    """The package. Raises MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        problem = f"{shown(url)} is read by the package pyarrow, which is not installed"
        raise MissingDependencyError(f"{problem}. Install it: pip install 'gpuload[formats]'") from error
    return pyarrow


@dataclass(frozen=True)
class Roles:
    """What the columns are. image: its bytes stand in a field "bytes" where `nested`. key: None: the image's path.

    classes: the names of a Hugging Face ClassLabel. others: columns that ride along.
    """

    image: str
    nested: bool
    label: str | None
    key: str | None
    classes: tuple[str, ...] | None
    others: tuple[str, ...]


def first_value(pa: ModuleType, values: Any) -> Any:
    """The first value of an Arrow array that is not null, or None."""
    row = pa.compute.index(values.is_valid(), True).as_py()
    return values[row].as_py() if row >= 0 else None


def no_rows(shard: Shard) -> ShardScan:
    """Of a file without a row, as some writers leave them beside others: no column tells what it is."""
    table = SampleTable(Strings.of([shard.file]), np.zeros(0, SAMPLE_REF), np.zeros(0, np.int64), Strings.of([]))
    return ShardScan(table, (Finding(shard.url, "", "it holds no row", note=True),))


def roles_of(url: str, schema: Any, first: Callable[[str], Any]) -> Roles:
    """first(column) -> its first value that is not null, or None.

    Raises ShardError where no column holds images, or several have one name.
    """
    pa = pyarrow(url)
    try:
        twice = next((name for name, count in Counter(schema.names).items() if count > 1), None)
    except UnicodeDecodeError as error:
        raise ShardError(shown(url), f"the names of its columns are damaged: {error}", "Write it again") from error
    if twice is not None:
        raise ShardError(shown(url), f"several columns of it are called {twice!r}", "Write it with a name for each")
    features = _features(schema)
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}

    def nested(name: str) -> bool:
        kind = schema.field(name).type
        return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    def binary(name: str) -> bool:
        kind = schema.field(name).type
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    images = [name for name in schema.names if kinds.get(name) == "Image" and (nested(name) or binary(name))]
    plain = [name for name in schema.names if binary(name)]
    images = images or [
        name for name in schema.names if nested(name) or (name in plain and looks_like_image((first(name) or b"")[:4]))
    ]
    images = preferred(images, IMAGE_NAMES) or images or preferred(plain, IMAGE_NAMES)
    if not images:
        known = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
        cure = "Name data with encoded images in a binary column or in a Hugging Face Image feature"
        raise ShardError(shown(url), f"no column of it holds encoded images. There are: {known}", cure)
    labels = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    named = preferred(schema.names, LABEL_NAMES)
    types = {name: schema.field(name).type for name in named}
    labels += [name for name in named if pa.types.is_integer(types[name]) or pa.types.is_string(types[name])]
    label = next(iter(labels), None)
    names = features[label].get("names") if label is not None and kinds.get(label) == "ClassLabel" else None
    keys = [n for n in preferred(schema.names, KEY_NAMES) if pa.types.is_string(schema.field(n).type)]
    others = tuple(name for name in schema.names if name not in (images[0], label))
    classes = tuple(map(str, names)) if names else None
    return Roles(images[0], nested(images[0]), label, next(iter(keys), None), classes, others)


class ArrowSamples:
    """Record batches on their way to a table. files: what the numbers in refs mean, asked for in the end."""

    def __init__(self, shard: Shard, roles: Roles, expanded: Expansion, files: Callable[[], list[str]]):
        self._shard, self._roles, self._expanded, self._files = shard, roles, expanded, files
        self._images: list[np.ndarray] = []
        self._labels: list[Any] = []
        self._keys: list[str] = []
        self._members: dict[str, list[np.ndarray]] = {name: [] for name in roles.others}
        self._encodings: dict[str, str] = {}
        self._outside: list[str] = []

    def add(self, batch: Any, place: Place, *, first_row: int) -> None:
        """Rows of the shard from `first_row` on."""
        pa, roles = pyarrow(self._shard.url), self._roles
        column = batch.column(roles.image)
        n = len(column)
        paths: list[str | None] = [None] * n
        if roles.nested and column.type.get_field_index("path") >= 0:
            paths = _texts(pa, pa.compute.struct_field(column, "path"))
        self._images.append(place(_bytes_of(pa, column), True))
        self._outside += [path for path, ref in zip(paths, self._images[-1], strict=True) if path and ref["length"] < 0]
        self._labels += _texts(pa, batch.column(roles.label)) if roles.label else [None] * n
        names = _texts(pa, batch.column(roles.key)) if roles.key else paths
        self._keys += [(name and as_key(name)) or f"{first_row + row:08d}" for row, name in enumerate(names)]
        for name in roles.others:
            self._encodings[name], values = _as_binary(pa, batch.column(name))
            self._members[name].append(place(values, False))

    def finish(self, findings: list[Finding], order: np.ndarray | None = None) -> ShardScan:
        """order: int (n,), the rows that are the samples; None: all, as they came."""
        url = self._shard.url
        images = np.concatenate([*self._images, np.zeros(0, SAMPLE_REF)])
        labels, classes = self._numbers()
        beyond = [row for row in np.flatnonzero(labels == NO_LABEL).tolist() if self._labels[row] is not None]
        findings = findings + [
            Finding(url, self._keys[row], f"its label {self._labels[row]} is beyond int64: it has none", REWRITE)
            for row in (beyond if order is None or not beyond else np.intersect1d(beyond, order).tolist())
        ]
        members = {name: np.concatenate(parts) for name, parts in self._members.items() if parts}
        keys = Strings.of(self._keys)
        if order is not None:
            images, labels, keys = images[order], labels[order], keys.take(order)
            members = {name: refs[order] for name, refs in members.items()}
        found = images["length"] != MISSING
        if len(images) and not found.any():
            example = f", only paths such as {self._outside[0]!r}" if self._outside else ""
            cure = "Write it with the images' bytes: dataset.push_to_hub or embed_table_storage do"
            raise ShardError(shown(url), f"column {self._roles.image} holds no image bytes{example}", cure)
        findings = findings + [
            Finding(url, keys[row], "a sample without an image (it is null)", REWRITE)
            for row in np.flatnonzero(~found).tolist()
        ]
        table = SampleTable(Strings.of(self._files()), images, labels, keys, members, self._encodings)
        if self._expanded.used:
            size = f"{self._expanded.size} bytes in the cache directory"
            findings.append(Finding(url, "", f"parts of it cannot be read in place: expanded once, {size}", note=True))
        return ShardScan(table if found.all() else table.keep(found), tuple(findings), classes)

    def _numbers(self) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """Labels as integers; names become numbers in the order of their sorted names."""
        classes = self._roles.classes
        names = sorted({label for label in self._labels if isinstance(label, str)})
        if names:
            number: Mapping[Any, int] = {name: place for place, name in enumerate(names)}
            return np.array([number.get(label, NO_LABEL) for label in self._labels], np.int64), tuple(names)
        numbers = [NO_LABEL if label is None else as_label(label) for label in self._labels]
        return np.array(numbers, np.int64), classes


def _features(schema: Any) -> dict[str, Any]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _bytes_of(pa: ModuleType, column: Any) -> Any:
    """The bytes of a column of images. struct_field takes the nulls of the struct along, `column.field` does not."""
    return pa.compute.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column


def _texts(pa: ModuleType, column: Any) -> list[Any]:
    """A column's values, those of text also where they are no UTF-8."""
    if not pa.types.is_string(column.type):
        return column.to_pylist()
    found = column.cast(pa.binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in found]


def _as_binary(pa: ModuleType, column: Any) -> tuple[str, Any]:
    """(encoding, the column's values as an Arrow array of binary values or of numbers)."""
    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        return _as_binary(pa, column.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind):
        return "str", column.cast(pa.large_binary() if types.is_large_string(kind) else pa.binary())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes", column
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return "bytes", _bytes_of(pa, column)
    if _is_number(types, kind):
        dtype = np.dtype(kind.to_pandas_dtype())
        values = [None if value is None else dtype.type(value).tobytes() for value in column.to_pylist()]
        return f"np:{dtype}", pa.array(values, pa.binary())
    if (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) and _is_number(
        types, kind.value_type
    ):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        if dtype.kind == "f":  # a number that is null is NaN
            values = [None if value is None else np.array(value, dtype).tobytes() for value in column.to_pylist()]
            return f"np:{dtype}[]", pa.array(values, pa.binary())
        values = [None if value is None else _integers(value, dtype) for value in column.to_pylist()]
        return f"np:{dtype}[?]", pa.array(values, pa.binary())
    texts = [None if value is None else json.dumps(value, default=str).encode() for value in column.to_pylist()]
    return "json", pa.array(texts, pa.binary())


def _integers(row: list[int | None], dtype: np.dtype) -> bytes:
    """As fields.py reads `np:TYPE[?]`."""
    return json.dumps(row).encode() + b"\1" if None in row else np.array(row, dtype).tobytes() + b"\0"


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
