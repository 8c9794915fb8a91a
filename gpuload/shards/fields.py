"""What the bytes of a sample's other fields mean: numbers, arrays, text, JSON, TFRecord features, MDS columns.

Owns the encodings, by the names that tables keep (`SampleTable.encodings`). Where the bytes lie is the formats',
reading them is `fetch/`'s. A value is what torch's default_collate takes: integers of 64 bits are int, other numbers
NumPy scalars of the type that was stored.

    ""              by the last part of the member's extension: json, txt (str), cls (int), npy (array), else bytes
    bytes str json  as they say, UTF-8
    np:TYPE np:TYPE[]  one number, or a row of them, as NumPy calls the type; little-endian
    np:TYPE[?]      a row that may lack some: the same and a byte 0, or it as JSON and a byte 1, which becomes a list
    tf tf[]         a tf.train.Feature: its only value, or all of them
    mixed ...       in several of these ways: it is not read
    mds:ENCODING    as MosaicML streaming names it (streaming/base/format/mds/encodings.py)
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from gpuload.shards.table import MIXED, ONE

PICKLED = "mds:pkl"
"""The encoding that runs what a shard's author wrote: refused unless the user trusts the shards."""

_LENGTH_DELIMITED = 2
_MDS_TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32"}
_MDS_TYPES |= {33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64"}
_MDS_PARSERS: dict[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "json": json.loads,
    "str_int": int,
    "str_float": float,
    "str_decimal": lambda data: Decimal(data.decode()),
    "pkl": pickle.loads,
}


def parse_field(name: str, encoding: str, data: bytes) -> Any:
    """The value of a field. Raises ValueError where the bytes are not what name and encoding say.

    Code of whoever wrote the shard runs for the encoding PICKLED and no other: callers ask `trust_pickle` about it.
    """
    try:
        return _parse(name, encoding, data)
    except ValueError:
        raise
    except Exception as error:  # whatever json, decimal, NumPy or a pickle make of damaged bytes
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse(name: str, encoding: str, data: bytes) -> Any:
    kind, _, detail = encoding.partition(":")
    if not encoding:
        return _parse_member(name, data)
    if encoding.startswith(MIXED):
        ways = encoding.removeprefix(MIXED)
        raise ValueError(f"shards store it as {ways}. Read them separately, or write them alike")
    if kind == "str":
        return data.decode()
    if kind == "json":
        return json.loads(data)
    if kind == "np":
        if detail.endswith("[?]"):
            detail, data, lacking = detail.replace("?", ""), data[:-1], data[-1:]
            if lacking == b"\1":
                return json.loads(data)
        row = np.frombuffer(data, np.dtype(detail.removesuffix("[]")).newbyteorder("<"))
        return row if detail.endswith("[]") else _scalar(row)
    if kind == "mds":
        return _parse_mds(detail, data)
    if kind in ("tf", "tf[]"):
        values = parse_feature(data)
        return values if encoding != ONE else _scalar(values) if isinstance(values, np.ndarray) else values[0]
    return data


def _parse_member(name: str, data: bytes) -> Any:
    """A member's value by the last part of its extension."""
    kind = name.rpartition(".")[2]
    if kind == "json":
        return json.loads(data)
    if kind == "txt":
        return data.decode()
    if kind == "cls":
        return int(data)
    if kind == "npy":
        array = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an .npz archive, not one array")
        return array
    return data


def parse_feature(data: bytes) -> np.ndarray | list[bytes]:
    """All values of a tf.train.Feature: int64 (n,), float32 (n,), or n bytes. Raises ValueError."""
    for kind, body in _proto(data):
        parts = [(wire_value) for number, wire_value in _proto(body) if number == 1] if isinstance(body, bytes) else []
        if kind == 1:
            return [bytes(part) for part in parts]
        if kind == 2:
            return np.frombuffer(b"".join(parts), "<f4")
        if kind == 3:
            return np.array([v for part in parts for v in _integers(part)], np.uint64).view(np.int64)
    return []


def _integers(part: Any) -> list[int]:
    if isinstance(part, int):
        return [part]
    values, at = [], 0
    while at < len(part):
        value, at = _varint(part, at)
        values.append(value)
    return values


def _proto(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a protocol buffer message: (number, int for a varint, bytes for all else)."""
    fields: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            fields.append((tag >> 3, value))
            continue
        size = {1: 8, 5: 4}.get(tag & 7)
        if tag & 7 == _LENGTH_DELIMITED:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("no protocol buffer")
        fields.append((tag >> 3, data[at : at + size]))
        at += size
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("no protocol buffer")


def _parse_mds(encoding: str, data: bytes) -> Any:
    if encoding in _MDS_PARSERS:  # the whole of it: "pkl:x" is none, and PICKLED must be the only name for pickles
        return _MDS_PARSERS[encoding](data)
    kind, _, detail = encoding.partition(":")
    if kind == "ndarray":
        return _mds_array(detail, data)
    if encoding == "int":
        return _scalar(np.frombuffer(data, "<i8"))
    if encoding in _MDS_TYPES.values():
        return _scalar(np.frombuffer(data, np.dtype(encoding).newbyteorder("<")))
    return data  # bytes, and images, which a loader decodes one of


def _mds_array(detail: str, data: bytes) -> np.ndarray:
    """type and shape stand in the column's encoding, "float32:3,4", or each before the values."""
    dtype, _, shape_text = detail.partition(":")
    at = 0
    if not dtype:
        dtype, at = _MDS_TYPES[data[0]], 1
    if shape_text:
        shape = [int(axis) for axis in shape_text.split(",")]
    else:
        axes, axis_type = data[at] >> 2, f"<u{1 << (data[at] & 3)}"
        at += 1
        shape = np.frombuffer(data, axis_type, axes, at).tolist()
        at += axes * np.dtype(axis_type).itemsize
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at).reshape(shape)


def _scalar(row: np.ndarray) -> Any:
    if len(row) != 1:
        raise ValueError(f"{len(row)} numbers where one should be")
    return int(row[0]) if row.dtype == np.int64 else row[0]
