"""CRC32C against the definition, a bit at a time, and the published values; both ways to compute it."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels import crc32c as k

from tests.kernels.records import crc32c as bit_by_bit

PUBLISHED = {  # RFC 3720, B.4
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}
WAYS = [k.crc32c, k.crc32c_by_tables]


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("crc32c", WAYS)
def test_published_checksums(crc32c):
    for data, expected in PUBLISHED.items():
        assert int(crc32c(array(data), 0, len(data))) == expected == bit_by_bit(data)


BLOCK = 3 * k.LANE_BYTES
LENGTHS = [0, 1, 7, 8, 9, 16, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 8, 2 * BLOCK, 2 * BLOCK + 13]


@pytest.mark.parametrize("crc32c", WAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_alignment(crc32c, length):
    data = np.random.default_rng(length).bytes(length + 9)
    for start in (0, 1, 3, 8):
        assert int(crc32c(array(data), start, start + length)) == bit_by_bit(data[start : start + length])


@pytest.mark.parametrize("crc32c", WAYS)
def test_what_lies_outside_of_the_data_is_not_read(crc32c):
    data = array(bytes(range(40)))
    whole = bit_by_bit(data.tobytes())
    assert int(crc32c(data, -5, 1000)) == whole and int(crc32c(data, 30, 20)) == 0 == int(crc32c(data, 50, 60))


def test_the_instruction_is_used_only_where_numba_compiles_for_this_processor():
    assert not k.has_instruction("generic", None) and not k.has_instruction(None, "-sse4.2")
