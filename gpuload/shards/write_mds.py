"""Writing MosaicML's MDS shards, and the index.json that names them.

Owns what columns are called and how they are encoded; the layout is mds.py's. Columns of an MDS source go through as
they are. A column is in every sample: where one lacks a field, it holds no bytes, or JSON's null for what would have to
be a number.

Format: MosaicML streaming, streaming/base/format/mds/{writer,encodings}.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.shards.columns import IMAGE_NAMES, KEY_NAMES, LABEL_NAMES
from gpuload.shards.table import Strings
from gpuload.shards.write_samples import Field, Output, Sample, Schema, stored_bytes

IMAGE, LABEL, KEY = IMAGE_NAMES[1], LABEL_NAMES[1], KEY_NAMES[0]
MOST_BYTES = 2**32 - 1
"""Offsets are uint32."""

NUMBERS = frozenset(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))
NUMBERS |= {"float16", "float32", "float64"}
"""Encodings of one number, by NumPy's names. "int" is int64."""


class MdsWriter:
    """A write_samples.Writer."""

    suffix = ".mds"
    notes: tuple[str, ...] = ()

    def __init__(self, schema: Schema):
        schema.require_numbers("MDS")
        self._schema = schema
        # None: the image, the label and the key, which are no fields
        self.columns: dict[str, tuple[str, Field | None]] = {KEY: ("str", None)}
        self.columns[IMAGE] = ("png" if schema.image == "png" else "jpeg"), None
        if schema.label:
            self.columns[LABEL] = "json" if schema.unlabelled else "int", None
        names = schema.names(self.columns)
        self.columns |= {name: (_encoding(f), f) for name, f in zip(names, schema.fields, strict=True)}
        self._config = json.dumps(self.described(), sort_keys=True).encode()
        self.overhead_bytes = 8 + len(self._config)

    def described(self) -> dict[str, Any]:
        """What shards and index.json say of all shards."""
        names = sorted(self.columns)
        encodings = [self.columns[name][0] for name in names]
        return {
            "column_encodings": encodings,
            "column_names": names,
            "column_sizes": [_size(encoding) for encoding in encodings],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }

    def index(self, shards: Sequence[tuple[str, int, int]]) -> bytes:
        """index.json of shards given as (name, bytes, samples)."""
        entries = [
            self.described()
            | {"raw_data": {"basename": name, "bytes": size, "hashes": {}}, "samples": samples, "zip_data": None}
            for name, size, samples in shards
        ]
        return json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode()

    def sample_bytes(self, keys: Strings, images: np.ndarray, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        return stored_bytes(images, fields, per_value=4) + np.diff(keys.bounds) + 16

    def open(self, file: Output, samples: int) -> _MdsFile:
        return _MdsFile(file, samples, self._schema, self.columns, self._config)


class _MdsFile:
    def __init__(self, file: Output, samples: int, schema: Schema, columns: Mapping[str, Any], config: bytes):
        self._file, self._columns = file, [(name, *columns[name]) for name in sorted(columns)]
        self._places = {field.name: place for place, field in enumerate(schema.fields)}
        self._offsets = [4 + 4 * (samples + 1) + len(config)]
        file.write(samples.to_bytes(4, "little") + bytes(4 * (samples + 1)) + config)

    def add(self, sample: Sample) -> int:
        contents: list[Any] = []
        for name, encoding, field in self._columns:
            if field is not None:
                contents.append(_content(field, encoding, sample.values[self._places[field.name]]))
            elif name == IMAGE:
                contents.append(sample.image)
            elif name == KEY:
                contents.append(sample.key.encode("utf-8", "surrogateescape"))
            elif encoding == "json":
                contents.append(json.dumps(sample.label).encode())
            else:
                contents.append(np.array(sample.label, np.int64).tobytes())
        told = [len(c) for c, (_, encoding, _) in zip(contents, self._columns, strict=True) if _size(encoding) is None]
        at = self._offsets[-1] + 4 * len(told)
        end = at + sum(map(len, contents))
        if end > MOST_BYTES:
            raise ConfigError(f"an MDS shard has less than {MOST_BYTES} bytes. Pass a smaller shard_size")
        self._file.write(np.array(told, "<u4").tobytes())
        start = -1
        for content in contents:
            start = at if content is sample.image else start
            self._file.write(content)
            at += len(content)
        self._offsets.append(end)
        return start

    def finish(self) -> None:
        self._file.seek(4)
        self._file.write(np.array(self._offsets, "<u4").tobytes())


def _encoding(field: Field) -> str:
    if field.encoding.startswith("mds:") and not field.optional:
        return field.encoding.removeprefix("mds:")
    if field.kind == "number":
        return field.dtype if field.dtype in NUMBERS and not field.optional else "json"
    if field.kind == "array":
        return "ndarray" if field.dtype in NUMBERS and not field.optional else "json"
    return field.kind


def _size(encoding: str) -> int | None:
    """In bytes, of a value; None where each sample says it."""
    if encoding in NUMBERS or encoding == "int":
        return np.dtype("int64" if encoding == "int" else encoding).itemsize
    kind, _, detail = encoding.partition(":")
    dtype, _, shape = detail.partition(":")
    return math.prod(map(int, shape.split(","))) * np.dtype(dtype).itemsize if kind == "ndarray" and shape else None


def _content(field: Field, encoding: str, data: memoryview | None) -> Any:
    if field.encoding == f"mds:{encoding}" and data is not None:
        return data
    if data is None:
        return b"null" if encoding == "json" else b""
    value = field.value(data)
    if encoding == "ndarray":
        return _array(value)
    if encoding == "json":
        return json.dumps(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value).encode()
    if field.kind == "number":
        return value.tobytes()
    return value.encode() if isinstance(value, str) else bytes(value)


def _array(value: np.ndarray) -> bytes:
    """The elements' type, the number of axes and the width of their lengths, the lengths, the values."""
    dtype = value.dtype
    type_code = 8 * dtype.itemsize + "uif".index(dtype.kind)
    width = next(n for n in range(4) if max(value.shape, default=0) < 1 << (8 << n))
    shape = np.array(value.shape, f"<u{1 << width}").tobytes()
    return bytes((type_code, value.ndim << 2 | width)) + shape + value.astype(dtype.newbyteorder("<")).tobytes()
