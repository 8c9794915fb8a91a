"""What every writer of shards shares: samples and their typed fields, and which samples go into which shard.

Owns the contract between whoever reads a source (cli/pack_write.py) and the writers, one file a format beside this one.
A field stays as it is stored where source and target keep it alike; else it becomes a value (fields.py) and is stored
as the target does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.shards.columns import preferred
from gpuload.shards.fields import PICKLED, parse_field
from gpuload.shards.table import Strings

NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
"""NumPy's names of the numbers that every format has, if need be as wider ones."""


@dataclass(frozen=True)
class Field:
    """What samples have beside image, label and key. name: as the source calls it.

    encoding: how its stored bytes are read, as in SampleTable.encodings. kind: what they become: "bytes", "str",
    "json" (anything that JSON keeps), "number" or "array"; dtype: NumPy's name of the number's or the elements' type;
    ndim: of an array. optional: some samples lack it.
    """

    name: str
    encoding: str
    kind: str
    dtype: str = ""
    ndim: int = 0
    optional: bool = False

    def value(self, data: Any) -> Any:
        """The value in these bytes; numbers and arrays are NumPy's. Raises ValueError where it is of another kind."""
        if self.encoding == PICKLED:
            return bytes(data)  # never opened here
        value = parse_field(self.name, self.encoding, bytes(data))
        if isinstance(value, np.ndarray):
            value = value.astype(_native(value.dtype), copy=False)
        if self.kind == "json":
            return _texts(value)
        if self.kind == "array" and isinstance(value, list) and not value:
            return np.zeros(0, self.dtype)  # a TFRecord's empty list has no type
        kind, dtype, ndim = _described(value)
        if (kind, dtype, ndim) != (self.kind, self.dtype, self.ndim):
            mine, here = f"{self.dtype} {self.kind}".strip(), f"{dtype} {kind}".strip()
            raise ValueError(f"its field {self.name} is {here} of {ndim} axes, that of others {mine} of {self.ndim}")
        if kind == "str":
            return str(value)
        return np.dtype(dtype).type(value) if kind == "number" else value


def field_of(name: str, encoding: str, value: Any, *, optional: bool) -> Field:
    """The field whose first value is this one; None: no sample has a value, only an empty list."""
    if encoding == PICKLED:
        return Field(name, encoding, "bytes", optional=optional)
    if encoding.endswith("json") or (not encoding and name.rpartition(".")[2] == "json") or value is None:
        return Field(name, encoding, "json", optional=optional)
    return Field(name, encoding, *_described(value), optional=optional)


def _described(value: Any) -> tuple[str, str, int]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", "", 0
    if isinstance(value, (str, Decimal)):
        return "str", "", 0
    if isinstance(value, np.ndarray):
        return "array", str(_native(value.dtype)), value.ndim
    if isinstance(value, (bool, int, float, np.generic)):
        return "number", str(np.asarray(value).dtype), 0
    return "json", "", 0


def _native(dtype: np.dtype) -> np.dtype:
    """The same type in this machine's byte order, in which readers of other formats get it."""
    return dtype.newbyteorder("=")


def _texts(value: Any) -> Any:
    """Lists of bytes, of which only TFRecord has some, as lists of texts."""
    return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Schema:
    """fields: in the order of `Sample.values`. label: whether samples have one. classes: their names, where known.

    image: the extension of the first image. unlabelled: some samples have no label.
    """

    fields: tuple[Field, ...]
    label: bool
    classes: tuple[str, ...] | None
    image: str
    unlabelled: bool = False

    def require_numbers(self, format: str) -> None:
        """Raises ConfigError for numbers that formats do not keep but `.npy`: complex ones, times, texts and so on."""
        for field in self.fields:
            if field.dtype and not NUMBERS.fullmatch(field.dtype):
                problem = f"the field {field.name} has values of type {field.dtype}, which {format} does not keep"
                raise ConfigError(f"{problem}. Pack to tar, or leave the field out of the source")

    def names(self, taken: Iterable[str]) -> list[str]:
        """What the fields are called beside columns of these names: as they are, "_" behind those that are taken."""
        used, found = {*taken}, []
        for field in self.fields:
            name = field.name
            while name in used:
                name += "_"
            used.add(name)
            found.append(name)
        return found

    def free(self, name: str, others: tuple[str, ...], instead: str) -> str:
        """`name`, or `instead` where a field is called like one of `others`, which readers would take for it."""
        return instead if preferred([field.name for field in self.fields], others) else name


@dataclass(frozen=True)
class Sample:
    """extension: of the image's file. values: the fields' stored bytes, None for one that it lacks."""

    key: str
    label: int | None
    image: memoryview
    extension: str
    values: tuple[memoryview | None, ...]


class Output(Protocol):
    """Where a shard's bytes go. Bytes and memoryviews may be kept by reference for a while: they must not change."""

    def write(self, data: Any, /) -> Any: ...

    def seek(self, offset: int, whence: int = 0, /) -> int: ...


class ShardFile(Protocol):
    """A shard on its way into a file. One thread, samples in order, then `finish` once."""

    def add(self, sample: Sample) -> int:
        """Write it. Returns where in the file the image's bytes begin; -1: not known. Raises ValueError."""
        ...

    def finish(self) -> None: ...


class Writer(Protocol):
    """One format. suffix: of file names. notes: what it cannot keep as it was. overhead_bytes: of an empty shard."""

    suffix: str
    notes: tuple[str, ...]
    overhead_bytes: int

    def sample_bytes(self, keys: Strings, images: np.ndarray, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        """int64 (n,): about what each sample takes. images, fields: int64 (n,), stored bytes, negative for none."""
        ...

    def open(self, file: Output, samples: int) -> ShardFile:
        """A shard of so many samples into an empty file that can seek. Any thread."""
        ...


def stored_bytes(images: np.ndarray, fields: Mapping[str, np.ndarray], *, per_value: int) -> np.ndarray:
    """int64 (n,): image and values of each sample, each with so many bytes around it."""
    return images + per_value + sum(np.maximum(length, 0) + per_value for length in fields.values())


def split(sizes: np.ndarray, *, shard_bytes: int, overhead_bytes: int) -> np.ndarray:
    """int64 (shards + 1,): shard i holds samples bounds[i] to bounds[i + 1]. A larger sample is a shard of its own.

    sizes: int64 (n,), n > 0, of each sample in the shard. Shards are filled in order, up to `shard_bytes`.
    """
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        begin = bounds[-1]
        room = shard_bytes - overhead_bytes + (ends[begin - 1] if begin else 0)
        bounds.append(max(begin + 1, int(np.searchsorted(ends, room, "right"))))
    return np.array(bounds, np.int64)
