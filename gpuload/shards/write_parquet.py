"""Writing Parquet files as Hugging Face's `datasets` has them: an Image column, a ClassLabel, other columns by type.

Owns the schema, its "huggingface" metadata, and the size of row groups. By pyarrow, an optional package. Pages are
neither compressed nor in dictionaries: JPEGs do not shrink, and an image is then a range of the file to ShardDataset.

Format: huggingface.co/docs/datasets/about_dataset_features; parquet.apache.org/docs/file-format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuload.shards.arrow_columns import pyarrow
from gpuload.shards.columns import IMAGE_NAMES, KEY_NAMES, LABEL_NAMES
from gpuload.shards.table import Strings
from gpuload.shards.write_samples import Field, Output, Sample, Schema, stored_bytes

IMAGE, LABEL, KEY = IMAGE_NAMES[1], LABEL_NAMES[1], KEY_NAMES[0]
GROUP_ROWS, GROUP_BYTES = 100, 64 << 20
"""A row group is the least that other readers take at once. `datasets` writes images by hundreds, too."""

KINDS = {"bytes": "binary", "str": "string", "json": "string"}


class ParquetWriter:
    """A write_samples.Writer."""

    suffix = ".parquet"
    overhead_bytes = 4 << 10

    def __init__(self, schema: Schema):
        schema.require_numbers("Parquet")
        self._arrow = pyarrow("a Parquet file")
        self._schema = schema
        self.notes = tuple(f"{f.name}: Parquet keeps it as JSON text" for f in schema.fields if f.kind == "json")
        names = schema.names([IMAGE, KEY, *([LABEL] if schema.label else [])])
        pa = self._arrow
        columns = [pa.field(IMAGE, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]
        features: dict[str, Any] = {IMAGE: {"_type": "Image"}}
        if schema.label:
            columns.append(pa.field(LABEL, pa.int64()))
            features[LABEL] = {"dtype": "int64", "_type": "Value"}
            if schema.classes:
                features[LABEL] = {"names": list(schema.classes), "_type": "ClassLabel"}
        columns.append(pa.field(KEY, pa.string()))
        features[KEY] = {"dtype": "string", "_type": "Value"}
        for name, field in zip(names, schema.fields, strict=True):
            dtype = field.dtype or KINDS[field.kind]
            kind, feature = pa.type_for_alias(dtype), dict[str, Any](dtype=dtype, _type="Value")
            for _ in range(field.ndim):
                kind, feature = pa.list_(kind), {"feature": feature, "_type": "Sequence"}
            columns.append(pa.field(name, kind))
            features[name] = feature
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        self.arrow_schema = pa.schema(columns, metadata=metadata)

    def sample_bytes(self, keys: Strings, images: np.ndarray, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        return stored_bytes(images, fields, per_value=4) + np.diff(keys.bounds) + 16

    def open(self, file: Output, samples: int) -> _ParquetFile:
        return _ParquetFile(self._arrow, file, self._schema, self.arrow_schema)


class _ParquetFile:
    def __init__(self, pa: Any, file: Output, schema: Schema, arrow_schema: Any):
        self._arrow, self._fields, self._arrow_schema = pa, schema.fields, arrow_schema
        self._label = schema.label
        # Statistics of images would be two whole images in each row group.
        self._parquet = pa.parquet.ParquetWriter(
            file, arrow_schema, compression="none", use_dictionary=False, write_statistics=[LABEL, KEY]
        )
        self._images: list[bytes] = []
        self._columns: list[list[Any]] = [[] for _ in arrow_schema.names[1:]]

    def add(self, sample: Sample) -> int:
        self._images.append(bytes(sample.image))
        values: list[Any] = [sample.label] if self._label else []
        values += [sample.key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")]
        values += [_value(field, data) for field, data in zip(self._fields, sample.values, strict=True)]
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        if len(self._images) == GROUP_ROWS or sum(map(len, self._images)) > GROUP_BYTES:
            self._write()
        return -1

    def finish(self) -> None:
        self._write()
        self._parquet.close()

    def _write(self) -> None:
        if not self._images:
            return
        pa, kinds = self._arrow, self._arrow_schema.types
        paths = pa.nulls(len(self._images), pa.string())
        images = pa.StructArray.from_arrays([pa.array(self._images, pa.binary()), paths], ["bytes", "path"])
        others = [pa.array(column, kind) for column, kind in zip(self._columns, kinds[1:], strict=True)]
        self._parquet.write_batch(pa.record_batch([images, *others], schema=self._arrow_schema))
        self._images = []
        self._columns = [[] for _ in self._columns]


def _value(field: Field, data: memoryview | None) -> Any:
    if data is None:
        return None
    value = field.value(data)
    if field.kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
