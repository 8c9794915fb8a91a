"""Shards of the formats, written by hand from their specifications: references that share nothing with the readers."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
from PIL import Image


def jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (23, 17 + seed % 5, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=50 + seed)
    return out.getvalue()


IMAGES = [jpeg(seed) for seed in range(6)]


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def feature(value: Any, *, packed: bool = True) -> bytes:
    """tf.train.Feature of bytes, a list of bytes, floats (a float32 array), integers; None: of no kind."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        value = [value]
    if isinstance(value, np.ndarray):
        data = value.astype("<f4").tobytes()
        parts = [data[at : at + 4] for at in range(0, len(data), 4)]
        return message(2, message(1, data) if packed else b"".join(varint(1 << 3 | 5) + part for part in parts))
    if value and isinstance(value[0], bytes):
        return message(1, b"".join(message(1, part) for part in value))
    values = [varint(number) for number in value]
    return message(3, message(1, b"".join(values)) if packed else b"".join(varint(1 << 3) + part for part in values))


def example(features: dict[str, Any], *, packed: bool = True) -> bytes:
    entries = [message(1, name.encode()) + message(2, feature(v, packed=packed)) for name, v in features.items()]
    return message(1, b"".join(message(1, entry) for entry in entries))


def mds(columns: dict[str, str], sizes: dict[str, int], rows: list[dict[str, bytes]]) -> bytes:
    """A shard of these columns (name -> encoding), the values encoded already; sizes: of those that are fixed."""
    names = sorted(columns)
    samples = []
    for row in rows:
        told = b"".join(struct.pack("<I", len(row[name])) for name in names if name not in sizes)
        samples.append(told + b"".join(row[name] for name in names))
    described = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [sizes.get(name) for name in names],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    config = json.dumps(described, sort_keys=True).encode()
    first = 4 + 4 * (len(rows) + 1) + len(config)
    offsets = np.cumsum([first] + [len(sample) for sample in samples]).astype("<u4")
    return struct.pack("<I", len(rows)) + offsets.tobytes() + config + b"".join(samples)
