"""An address becomes the array that lies there, of the type that was asked for."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from gpuload.kernels.array_at import array_at, bytes_at, int16_at, int32_at, uint8_at

POINT = np.dtype([("near", np.uint16), ("far", np.int32), ("row", np.int16, (3,))], align=True)
_points_at = array_at(POINT)


@numba.njit
def _total(address, length):
    return bytes_at(address, length).sum()


@numba.njit
def _counted(bytes_address, halves, words, length):
    small, half, word = uint8_at(bytes_address, length), int16_at(halves, length), int32_at(words, length)
    for i in range(length):
        small[i], half[i], word[i] = 200 + i, -300 * i, -100_000 * i
    return len(small) + len(half) + len(word)


@numba.njit
def _move(address, count):
    points = _points_at(address, count)
    for i in range(count):
        points[i].near += np.uint16(1)
        points[i].row[2] = points[i].far


@numba.njit
def _write(address):
    bytes_at(address, 1)[0] = 1


def test_elements_are_read_and_written_where_they_lie():
    beside = np.arange(12, dtype=np.uint8)
    assert _total(beside[3:].ctypes.data, 5) == 3 + 4 + 5 + 6 + 7
    small, half, word = np.zeros(7, np.uint8), np.zeros(7, np.int16), np.zeros(7, np.int32)
    assert _counted(small[1:].ctypes.data, half[1:].ctypes.data, word[1:].ctypes.data, 5) == 15
    assert small.tolist() == [0, 200, 201, 202, 203, 204, 0]
    assert half.tolist() == [0, 0, -300, -600, -900, -1200, 0]
    assert word.tolist() == [0, 0, -100_000, -200_000, -300_000, -400_000, 0]


def test_structs_are_read_and_written_by_field():
    points = np.zeros(3, POINT)
    points["near"], points["far"], points["row"] = [1, 2, 3], [-4, 5, 6], 9
    _move(points.ctypes.data, 2)
    assert points["near"].tolist() == [2, 3, 3]
    assert points["row"].tolist() == [[9, 9, -4], [9, 9, 5], [9, 9, 9]]


def test_an_array_that_is_read_only_cannot_be_written():
    with pytest.raises(numba.TypingError, match="readonly"):
        _write(np.zeros(1, np.uint8).ctypes.data)


def test_a_struct_that_is_not_aligned_is_refused():
    with pytest.raises(ValueError, match="not an aligned struct"):
        array_at([("near", np.uint16), ("far", np.int32)])
