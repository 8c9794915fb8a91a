"""Writing TFRecord shards of tf.train.Example, without TensorFlow.

Owns the names of features (those of ImageNet's TFRecords) and the protocol buffer; the checksum is that of
kernels/tfrecord.py, which reads these files, too. Features are sorted by name, the image comes last. A TFRecord's own
features go through as they are. TensorFlow's numbers are int64 and float32: `notes` says where that rounds. Of an array
of more than one axis, NAME/shape keeps the shape, as TensorFlow data sets do.

Formats: tensorflow/core/lib/io/record_writer.h; tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuload.shards.columns import IMAGE_NAMES, KEY_NAMES, LABEL_NAMES
from gpuload.shards.table import Strings
from gpuload.shards.write_samples import Field, Output, Sample, Schema, stored_bytes

IMAGE, LABEL = IMAGE_NAMES[0], LABEL_NAMES[0]
KEY, SURE_KEY = "image/filename", KEY_NAMES[0]
FEATURE_BYTES = 48
"""About what stands around one value: its name, tags and lengths."""

FIRST, SECOND, FLOATS, INTS = b"\x0a", b"\x12", b"\x12", b"\x1a"
"""Tags: of fields 1 and 2 of a message, both of bytes; of a Feature's float_list and int64_list."""


class TfrecordWriter:
    """A write_samples.Writer."""

    suffix = ".tfrecord"
    overhead_bytes = 0

    def __init__(self, schema: Schema):
        schema.require_numbers("TFRecord")
        self._schema = schema
        self._key = schema.free(KEY, KEY_NAMES, SURE_KEY)
        self._names = schema.names([IMAGE, self._key, *([LABEL] if schema.label else [])])
        wide = [f.name for f in schema.fields if f.dtype in ("float64", "uint64") and f.encoding not in ("tf", "tf[]")]
        self.notes = tuple(f"{name}: TFRecord keeps numbers as int64 and float32" for name in wide)

    def sample_bytes(self, keys: Strings, images: np.ndarray, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        return stored_bytes(images, fields, per_value=FEATURE_BYTES) + np.diff(keys.bounds) + 2 * FEATURE_BYTES

    def open(self, file: Output, samples: int) -> _TfrecordFile:
        from gpuload.kernels.tfrecord import masked_crc32c  # here: the compiler takes 0.4 s to import

        fields = list(zip(self._names, self._schema.fields, strict=True))
        return _TfrecordFile(file, fields, self._key, masked_crc32c)


class _TfrecordFile:
    def __init__(self, file: Output, fields: Sequence[tuple[str, Field]], key: str, masked_crc32c: Any):
        self._file, self._fields, self._key, self._crc = file, fields, key, masked_crc32c
        self._at = 0

    def add(self, sample: Sample) -> int:
        features = {self._key: feature(sample.key.encode("utf-8", "surrogateescape"))}
        if sample.label is not None:
            features[LABEL] = feature(np.array([sample.label], np.int64))
        for (name, field), stored in zip(self._fields, sample.values, strict=True):
            if stored is not None:
                features.update(_features(name, field, stored))
        n = len(sample.image)
        before = b"".join(_entry(name, features[name]) for name in sorted(features))
        start = part(FIRST, before + _entry(IMAGE, part(FIRST, part(FIRST, b"", n), n), n), n)
        data = np.frombuffer(b"".join((start, sample.image)), np.uint8)
        length = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
        self._file.write(length.data)
        self._file.write(self._checksum(length))
        self._file.write(data.data)
        self._file.write(self._checksum(data))
        at = self._at + 12 + len(start)
        self._at += len(data) + 16
        return at

    def finish(self) -> None:
        """A TFRecord has no end of its own."""

    def _checksum(self, data: np.ndarray) -> bytes:
        return int(self._crc(data, 0, len(data))).to_bytes(4, "little")


def feature(value: Any) -> bytes:
    """A tf.train.Feature of bytes, or of an array's numbers."""
    if isinstance(value, bytes):
        return part(FIRST, part(FIRST, value))
    if value.dtype.kind == "f":
        return part(FLOATS, part(FIRST, np.ravel(value).astype("<f4").tobytes()))
    numbers = np.ravel(value).astype(np.int64).view(np.uint64).tolist()
    return part(INTS, part(FIRST, b"".join(map(varint, numbers))))


def part(tag: bytes, content: bytes, rest: int = 0) -> bytes:
    """One field of a protocol buffer message, so far; `rest` more bytes belong to it and come after these."""
    return tag + varint(len(content) + rest) + content


def varint(value: int) -> bytes:
    """A number in groups of 7 bits, the lowest first. Protocol Buffers, "Encoding"."""
    if value < 0x80:
        return bytes((value,))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _features(name: str, field: Field, data: memoryview) -> Iterable[tuple[str, bytes]]:
    if field.encoding in ("tf", "tf[]"):
        return [(name, bytes(data))]
    value = field.value(data)
    if field.kind == "array":
        shape = [(f"{name}/shape", feature(np.array(value.shape, np.int64)))] if value.ndim != 1 else []
        return [(name, feature(value)), *shape]
    if field.kind == "number":
        return [(name, feature(np.array([value])))]
    text = json.dumps(value, ensure_ascii=False) if field.kind == "json" else value
    return [(name, feature(text.encode() if isinstance(text, str) else bytes(text)))]


def _entry(name: str, feature: bytes, rest: int = 0) -> bytes:
    """One of Features' map. `rest`: as in `part`, of the feature."""
    return part(FIRST, part(FIRST, name.encode()) + part(SECOND, feature, rest), rest)
