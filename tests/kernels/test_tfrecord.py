"""TFRecord's bytes against the specifications read another way: CRC32C bit by bit, protocol buffers in Python."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from gpuload.kernels import tfrecord as k

from tests.kernels.records import crc32c, masked, record


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_the_reference_knows_the_published_checksums():
    """RFC 3720, B.4, and the masked one of an empty record's length, as every TFRecord writer has it."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 1000])
def test_checksums_of_every_length_and_alignment(length):
    data = np.random.default_rng(length).bytes(length + 11)
    for start in (0, 1, 3, 8):
        assert int(k.masked_crc32c(array(data), start, start + length)) == masked(data[start : start + length])


def test_records_are_found_with_their_damage():
    bodies = [b"first", b"", np.random.default_rng(0).bytes(3000), b"last"]
    whole = b"".join(record(body) for body in bodies)
    damaged = bytearray(whole)
    damaged[12] ^= 4  # in the first one's data
    records = np.zeros((10, 2), np.int64)
    assert k.whole_records(array(whole), records) == 4
    assert [whole[start:stop] for start, stop in records[:4].tolist()] == bodies
    assert k.whole_records(array(bytes(damaged)), records) == 4
    assert records[:4, 1].tolist()[0] == -(12 + 5) and (records[1:4, 1] > 0).all()
    assert k.whole_records(array(whole[:-1]), records) == 3
    assert k.whole_records(array(whole), records[:2]) == 2
    damaged = bytearray(whole)
    damaged[0] ^= 1  # in the first one's length
    assert k.whole_records(array(bytes(damaged)), records) == 0
    assert k.record_length(array(bytes(damaged)), 0) == k.DAMAGED
    assert k.next_record(array(bytes(damaged)), 1, len(whole)) == len(record(b"first"))
    assert k.next_record(array(b"\x07" * 40), 0, 40) == 40 - 11


def test_a_length_that_is_too_large_to_be_one_is_damage():
    length = struct.pack("<Q", 1 << 63)
    assert k.record_length(array(length + struct.pack("<I", masked(length))), 0) == k.DAMAGED


def test_bytes_that_are_no_example_are_refused_and_none_crash():
    rng = np.random.default_rng(1)
    features = np.zeros((64, 9), np.int64)
    outcomes = set()
    for length in list(range(40)) * 50:
        data = np.frombuffer(bytes(rng.integers(0, 32, length, np.uint8)), np.uint8)
        count = int(k.example_features(data, 0, length, 0, features))
        outcomes.add(count)
        for row in features[: max(count, 0)].tolist():
            for begin, end in ((row[k.NAME], row[k.NAME] + row[k.NAME_LENGTH]), (row[k.BODY], row[k.BODY_END])):
                assert 0 <= begin <= end <= length
    assert k.NOT_AN_EXAMPLE in outcomes and 0 in outcomes


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, shorter than 128 of them."""
    return bytes((number << 3 | 2, len(content))) + content


def example_of(**features: bytes) -> bytes:
    entries = [field(1, field(1, name.encode()) + field(2, field(1, field(1, v)))) for name, v in features.items()]
    return field(1, b"".join(entries))


def test_features_of_a_window_are_those_of_its_whole_examples():
    bodies = [example_of(a=b"1", b=b"22"), example_of(c=b"x"), b"\xff no example", b"", example_of(a=b"4")]
    data = bytearray(b"".join(map(record, bodies)))
    data[len(record(bodies[0])) + 14] ^= 1  # in the second one's data
    data = array(bytes(data))
    records = np.zeros((9, 2), np.int64)
    records = records[: k.whole_records(data, records)]
    counts = np.zeros(5, np.int64)
    for room in (0, 1, 2, 3, 8):
        features = np.full((room, 9), 77, np.int64)
        assert k.window_features(data, records, 10, features, counts) == 3
        assert counts.tolist() == [2, k.NOT_WHOLE, k.NOT_AN_EXAMPLE, 0, 1]
        found = [
            (
                row[k.RECORD],
                data[row[k.NAME] :][: row[k.NAME_LENGTH]].tobytes(),
                data[row[k.FIRST] :][: row[k.FIRST_LENGTH]].tobytes(),
            )
            for row in features[:3].tolist()
        ]
        assert found == [(10, b"a", b"1"), (10, b"b", b"22"), (12, b"a", b"4")][:room]
        assert (features[3:] == 77).all()


def test_names_become_their_numbers_and_others_say_where_they_are():
    text = b"abaabcabc"
    known = [b"ab", b"", b"abc"]
    features = np.zeros((5, 9), np.int64)
    features[:, k.NAME] = [0, 4, 4, 2, 6]
    features[:, k.NAME_LENGTH] = [2, 2, 3, 0, 2]  # "ab", "bc", "bca", "", "ab"
    k.number_names(array(text), array(b"".join(known)), np.array([0, 2, 2, 5]), features)
    assert features[:, k.NAME].tolist() == [0, k.UNKNOWN - 4, k.UNKNOWN - 4, 1, 0]
    features[:, k.NAME] = 0
    k.number_names(array(text), array(b""), np.zeros(1, np.int64), features)
    assert (features[:, k.NAME] == k.UNKNOWN).all()
