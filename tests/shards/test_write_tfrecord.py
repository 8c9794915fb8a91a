"""Written TFRecords, read by the formats' descriptions: records, checksums, protocol buffers."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from gpuload.shards.write_samples import Sample, Schema, field_of
from gpuload.shards.write_tfrecord import TfrecordWriter, feature, varint
from tests.kernels.records import masked


def records(data: bytes) -> list[bytes]:
    found = []
    while data:
        length, length_crc = struct.unpack("<QI", data[:12])
        body, (body_crc,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        assert length_crc == masked(data[:8]) and body_crc == masked(body)
        found.append(body)
        data = data[16 + length :]
    return found


def message(data: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message; all that is written here are of bytes."""
    found, at = [], 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                return value

    while at < len(data):
        tag = number()
        assert tag & 7 == 2
        length = number()
        assert at + length <= len(data)
        found.append((tag >> 3, data[at : at + length]))
        at += length
    return found


def example(data: bytes) -> dict[str, bytes]:
    ((_, features),) = message(data)
    return {dict(message(entry))[1].decode(): dict(message(entry))[2] for _, entry in message(features)}


def test_examples_hold_what_was_given_and_offsets_point_at_images():
    rng = np.random.default_rng(3)
    schema = Schema((field_of("height", "np:uint16", np.uint16(7), optional=True),), True, None, "jpg")
    file, offsets, images = io.BytesIO(), [], []
    shard = TfrecordWriter(schema).open(file, 5)
    for i, length in enumerate((0, 1, 127, 20_000, 70_000)):
        images.append(rng.bytes(length))
        height = memoryview(np.uint16(300 * i).tobytes()) if i % 2 else None
        offsets.append(shard.add(Sample(f"c/{i}", i - 2, memoryview(images[-1]), "jpg", (height,))))
    shard.finish()
    data = file.getvalue()
    for i, record in enumerate(records(data)):
        assert data[offsets[i] : offsets[i] + len(images[i])] == images[i]
        features = example(record)
        assert set(features) == {"image/encoded", "image/class/label", "image/filename"} | (
            {"height"} if i % 2 else set()
        )
        assert features["image/encoded"] == feature(images[i])
        assert dict(message(dict(message(features["image/encoded"]))[1])) == {1: images[i]}
        assert dict(message(dict(message(features["image/filename"]))[1])) == {1: b"c/%d" % i}
        label = dict(message(dict(message(features["image/class/label"]))[3]))[1]
        assert label == varint((i - 2) % 2**64)
        if i % 2:
            assert dict(message(dict(message(features["height"]))[3]))[1] == varint(300 * i)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2"), (2**64 - 1, b"\xff" * 9 + b"\1")],
)
def test_varints(value, expected):
    assert varint(value) == expected


def test_floats_are_packed_float32():
    floats = np.array([0.5, -1.25, 3e38], np.float64)
    assert dict(message(dict(message(feature(floats)))[2]))[1] == floats.astype("<f4").tobytes()


def test_a_key_gets_the_name_that_readers_prefer_where_a_field_is_called_like_one():
    plain, other = (Schema((field_of(name, "", b"", optional=False),), False, None, "jpg") for name in ("x", "id"))
    for schema, name in ((plain, "image/filename"), (other, "__key__")):
        file = io.BytesIO()
        TfrecordWriter(schema).open(file, 1).add(Sample("k", None, memoryview(b"i"), "jpg", (memoryview(b"v"),)))
        assert name in example(records(file.getvalue())[0])
