"""Arrays in one file that says when it is damaged: the form of indexes and manifests on disk.

    magic (8) | version, header bytes: uint32 (8) | BLAKE2b-128 of all that follows (16) | header: JSON | arrays

Owns the bytes and replacing a file in one step. What the arrays mean, and whether they still fit the data, is
index.py's and manifest.py's. Little-endian, arrays one after the other in the header's order.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.replacing import replacing

MAGIC = b"gpuload\n"
VERSION = 4
_PREFIX = struct.Struct("<8sII16s")


@dataclass(frozen=True)
class Arrays:
    """meta: anything that JSON keeps. arrays: by name; read-only where they were read from a file."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def write_arrays(path: str, content: Arrays) -> None:
    """Replace the file at `path` by these. Raises OSError."""
    shapes = [[name, _describe(array.dtype), len(array)] for name, array in content.arrays.items()]
    header = json.dumps({"meta": content.meta, "arrays": shapes}, separators=(",", ":")).encode()
    parts = [header, *(np.ascontiguousarray(array).tobytes() for array in content.arrays.values())]
    digest = _digest(parts)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with replacing(path) as file:
        file.write(_PREFIX.pack(MAGIC, VERSION, len(header), digest))
        for part in parts:
            file.write(part)


def read_arrays(path: str) -> Arrays | None:
    """What `write_arrays` wrote; None where there is nothing whole of this version: it can be made again."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    return parse_arrays(data)


def parse_arrays(data: bytes) -> Arrays | None:
    """`read_arrays` of a file's bytes."""
    if len(data) < _PREFIX.size:
        return None
    magic, version, header_bytes, digest = _PREFIX.unpack_from(data)
    if magic != MAGIC or version != VERSION or digest != _digest([memoryview(data)[_PREFIX.size :]]):
        return None
    at = _PREFIX.size + header_bytes
    header = json.loads(data[_PREFIX.size : at])
    arrays = {}
    for name, description, count in header["arrays"]:
        dtype = np.dtype([tuple(field) for field in description] if isinstance(description, list) else description)
        arrays[name] = np.frombuffer(data, dtype, count, at)
        at += count * dtype.itemsize
    return Arrays(header["meta"], arrays)


def _describe(dtype: np.dtype) -> Any:
    return dtype.descr if dtype.names else dtype.str


def _digest(parts: list[Any]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()
