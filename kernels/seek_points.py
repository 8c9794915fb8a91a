"""Seek points as the entropy index keeps them: what an image is called, its record, and the table that finds it.

Indexes are content-addressed. An image's key is XXH64, seed 0, of all its encoded bytes, so that a file that changed
has no record, and one that was copied or packed has. A record is bound to its key: its checksum is XXH64 with the key
for a seed, so that a damaged slot that points at another image's record is noticed too.

    record   bytes, little-endian, unaligned
    [0, 4)    low half of XXH64, seed: the key, of all that follows
    [4]       version: RECORD_VERSION                   [5]  components
    [6, 8)    spacing: MCUs from point to point         [8, 12)   MCUs of the image    [12, 16)  bytes of its file
    [16, 20)  width in bits of each column              [20, 24)  least segment, bits  [24, 30)  least DC predictors
    [30, ..)  points 1, 2, ..: 4 columns each, bit after bit, lowest first

A point's columns are the bits from the point before it (the segment) and its three DC predictors, each as what it
exceeds the record's least one by, in as few bits as the record's largest takes. Point 0 is the scan's start, and not
stored. Photographs in colour take 5.1 bytes a point, the header included. Differences from the point before are larger
than the values at this distance; a variable-length code of the difference from the point above would save an eighth of
the bytes, which buys points every 7 MCUs in place of 8 (1% of a crop's decoding), and unpacking would be a chain.

    slots    uint64 (n, 3)   key, where the record begins, its bytes; all zero where empty. n: a power of two

Slots are probed one after the other from `key % n` on. Owns keys, records and the search; leaves files to
`gpuload/decode/entropy_index.py`, and to the caller the memory at every address it gives.

Source of XXH64: the xxHash specification, version 0.1.1; the record is our own.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from gpuload.kernels.array_at import bytes_at
from gpuload.kernels.compile import kernel
from gpuload.kernels.entropy import BIT, BYTE, PREDICTOR
from gpuload.kernels.simd import inner

FINEST_SPACING = 4
"""MCUs from point to point where the bytes allow it; a caller's `points` need a row for every 4 MCUs, rounded up.

Entropy decoding of a random crop: 311 us with points every 4 MCUs, 320 every 6, 324 every 8, 350 every 16, 600 without.
"""
RECORD_VERSION, RECORD_VERSION_AT = 1, 4
RECORD_HEADER = 30
MOST_PROBES = 256
"""A table two thirds full has clusters of about 200 slots among millions; one where more are needed is full."""

_COMPONENTS, _SPACING, _MCUS, _DATA_SIZE, _WIDTHS, _LEAST_SEGMENT, _LEAST_PREDICTORS = 5, 6, 8, 12, 16, 20, 24
_MOST_BITS = 56  # a point: what one load of 64 bits has from any bit of its first byte on
_LONGEST = 1 << 31

_U64 = np.uint64
_P1, _P2, _P3 = _U64(0x9E3779B185EBCA87), _U64(0xC2B2AE3D27D4EB4F), _U64(0x165667B19E3779F9)
_P4, _P5 = _U64(0x85EBCA77C2B2AE63), _U64(0x27D4EB2F165667C5)


def content_key_reference(data: bytes, seed: int = 0) -> int:
    """XXH64 as its specification describes it."""
    p1, p2, p3, p4, p5 = map(int, (_P1, _P2, _P3, _P4, _P5))
    low64 = (1 << 64) - 1

    def turned(value: int, bits: int) -> int:
        value &= low64
        return (value << bits | value >> (64 - bits)) & low64

    def mixed(lane: int, word: int) -> int:
        return turned(lane + word * p2, 31) * p1 & low64

    def word(at: int, count: int) -> int:
        return int.from_bytes(data[at : at + count], "little")

    at, whole = 0, seed + p5
    if len(data) >= 32:
        lanes = [seed + p1 + p2, seed + p2, seed, seed - p1]
        for at in range(0, len(data) - 31, 32):
            lanes = [mixed(lane, word(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
        at += 32
        whole = sum(turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            whole = (whole ^ mixed(0, lane)) * p1 + p4
    whole += len(data)
    while len(data) - at >= 8:
        whole, at = turned(whole ^ mixed(0, word(at, 8)), 27) * p1 + p4, at + 8
    if len(data) - at >= 4:
        whole, at = turned(whole ^ word(at, 4) * p1, 23) * p2 + p3, at + 4
    while at < len(data):
        whole, at = turned(whole ^ data[at] * p5, 11) * p1, at + 1
    for shift, factor in ((33, p2), (29, p3), (32, 1)):
        whole &= low64
        whole = (whole ^ whole >> shift) * factor
    return whole & low64


def unpack_reference(record: bytes, scan_start: int) -> np.ndarray:
    """The points, int32 (count, 5), of a record that is whole."""
    spacing, mcus = (int.from_bytes(record[at:end], "little") for at, end in ((6, 8), (8, 12)))
    widths = list(record[16:20])
    least = [int.from_bytes(record[20:24], "little")]
    least += [int.from_bytes(record[at : at + 2], "little", signed=True) for at in (24, 26, 28)]
    bits = int.from_bytes(record[30:], "little")
    position, points = 8 * scan_start, [[scan_start, 0, 0, 0, 0]]
    for _ in range(1, -(-mcus // spacing)):
        column = []
        for base, width in zip(least, widths, strict=True):
            column.append(base + bits % (1 << width))
            bits >>= width
        position += column[0]
        points.append([position // 8, position % 8, *column[1:]])
    return np.array(points, np.int32)


# Numba compiles a function anew for every constant that it is called with: what takes some is spelled out in place.
_inlined = numba.njit(nogil=True, error_model="numpy", _nrt=False, inline="always")


@inner
def _word(data, at):
    """Eight bytes, little-endian: LLVM makes one load of it."""
    return (
        _U64(data[at])
        | _U64(data[at + _U64(1)]) << _U64(8)
        | _U64(data[at + _U64(2)]) << _U64(16)
        | _U64(data[at + _U64(3)]) << _U64(24)
        | _U64(data[at + _U64(4)]) << _U64(32)
        | _U64(data[at + _U64(5)]) << _U64(40)
        | _U64(data[at + _U64(6)]) << _U64(48)
        | _U64(data[at + _U64(7)]) << _U64(56)
    )


@inner
def _turned(value, bits):
    return value << bits | value >> (_U64(64) - bits)


@inner
def _mixed(lane, word):
    return _turned(lane + word * _P2, _U64(31)) * _P1


@inner
def _xxh64(data, first, seed):
    """Of data[first:]."""
    size = _U64(data.size)
    at = _U64(first)
    length = size - at
    whole = seed + _P5
    if length >= _U64(32):
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + _U64(32) <= size:
            a = _mixed(a, _word(data, at))
            b = _mixed(b, _word(data, at + _U64(8)))
            c = _mixed(c, _word(data, at + _U64(16)))
            d = _mixed(d, _word(data, at + _U64(24)))
            at += _U64(32)
        whole = _turned(a, _U64(1)) + _turned(b, _U64(7)) + _turned(c, _U64(12)) + _turned(d, _U64(18))
        for lane in (a, b, c, d):
            whole = (whole ^ _mixed(_U64(0), lane)) * _P1 + _P4
    whole += length
    while at + _U64(8) <= size:
        whole = _turned(whole ^ _mixed(_U64(0), _word(data, at)), _U64(27)) * _P1 + _P4
        at += _U64(8)
    if at + _U64(4) <= size:
        whole = _turned(whole ^ _field(data, at, 4) * _P1, _U64(23)) * _P2 + _P3
        at += _U64(4)
    while at < size:
        whole = _turned(whole ^ _U64(data[at]) * _P5, _U64(11)) * _P1
        at += _U64(1)
    whole = (whole ^ whole >> _U64(33)) * _P2
    whole = (whole ^ whole >> _U64(29)) * _P3
    return whole ^ whole >> _U64(32)


@inner
def content_key(data):
    """What an encoded image is called, uint64."""
    return _xxh64(data, np.int64(0), _U64(0))


@_inlined
def _field(data, at, count):
    value = _U64(0)
    for i in range(count):
        value |= _U64(data[_U64(at) + _U64(i)]) << _U64(8 * i)
    return value


@_inlined
def _put(out, at, count, value):
    for i in range(count):
        out[_U64(at) + _U64(i)] = _U64(value) >> _U64(8 * i) & _U64(255)


@inner
def _bits(span):
    width = np.int64(0)
    while span >> width:
        width += 1
    return width


@_inlined
def _position(points, i):
    return np.int64(points[i, BYTE]) * 8 + np.int64(points[i, BIT])


@_inlined
def _number(points, i, step, column):
    """What stands in a column of point i: the bits since the point `step` before it, or a predictor."""
    if column == 0:
        return _position(points, i) - _position(points, i - step)
    return np.int64(points[i, PREDICTOR + column - 1])


class _Column(NamedTuple):
    least: int
    width: int  # bits


@inner
def _column(points, count, step, column):
    least = most = _number(points, step, step, column)
    for i in range(2 * step, count, step):
        number = _number(points, i, step, column)
        least, most = min(least, number), max(most, number)
    return _Column(least, _bits(most - least))


@inner
def pack(points, count, spacing, total_mcus, components, data_size, most_bytes, key, out):
    """Write the record with the most points that most_bytes allow to out; returns its bytes, 0 where there is none.

    points: int32 (>= count, 5), every `spacing` MCUs, as decoding a whole scan left them; the record has every m-th of
    them, m the smallest for which it fits, and at least one besides the scan's start. key: the image's `content_key`.
    out: uint8, as long as most_bytes or longer.
    """
    if spacing < 1 or count != (total_mcus + spacing - 1) // spacing or count > points.shape[0] or key == _U64(0):
        return np.int64(0)
    if data_size >= _LONGEST or total_mcus >= _LONGEST or most_bytes > out.size or points[0, BIT]:
        return np.int64(0)
    for step in range(1, min(count, 65535 // spacing + 1)):
        segment = _column(points, count, step, np.int64(0))
        y, cb = _column(points, count, step, np.int64(1)), _column(points, count, step, np.int64(2))
        cr = _column(points, count, step, np.int64(3))
        width = segment.width + y.width + cb.width + cr.width
        size = RECORD_HEADER + ((count - 1) // step * width + 7) // 8
        if size > most_bytes:
            continue
        if segment.least < 1 or segment.least + (1 << segment.width) >= 1 << 32 or width > _MOST_BITS:
            return np.int64(0)  # not what decoding leaves, or nothing that is worth the room
        _put(out, RECORD_VERSION_AT, 1, RECORD_VERSION)
        _put(out, _COMPONENTS, 1, components)
        _put(out, _SPACING, 2, spacing * step)
        _put(out, _MCUS, 4, total_mcus)
        _put(out, _DATA_SIZE, 4, data_size)
        _put(out, _LEAST_SEGMENT, 4, segment.least)
        _put(out, _WIDTHS, 1, segment.width)
        for c, column in enumerate((y, cb, cr)):
            _put(out, _WIDTHS + 1 + c, 1, column.width)
            _put(out, _LEAST_PREDICTORS + 2 * c, 2, column.least)
        at = np.int64(RECORD_HEADER)
        word, filled = _U64(0), np.int64(0)
        for i in range(step, count, step):
            row, used = _U64(_number(points, i, step, 0) - segment.least), segment.width
            for c, column in enumerate((y, cb, cr)):
                row |= _U64(_number(points, i, step, 1 + c) - column.least) << _U64(used)
                used += column.width
            word |= row << _U64(filled)
            filled += width
            _put(out, at, filled // 8, word)
            at += filled // 8
            word >>= _U64(filled - filled % 8)
            filled %= 8
        _put(out, at, (filled + 7) // 8, word)
        _put(out, 0, 4, _xxh64(bytes_at(np.int64(out.ctypes.data), np.int64(size)), np.int64(4), key))
        return np.int64(size)
    return np.int64(0)


@inner
def is_whole(address, length, key):
    """Whether the record at this address is one of this key, undamaged and of this version."""
    if length < RECORD_HEADER or length >= _LONGEST:
        return False
    record = bytes_at(address, length)
    checksum = _xxh64(record, np.int64(4), key) & _U64(0xFFFFFFFF)
    return _field(record, 0, 4) == checksum and record[RECORD_VERSION_AT] == RECORD_VERSION


@inner
def unpack(address, length, key, total_mcus, components, scan_start, data_size, points):
    """Fill points from the record at an address; returns their spacing, 0 where it is not the record of this image.

    key, total_mcus, components, scan_start, data_size: of the JPEG in hand. points: int32 (rows, 5), any contents;
    rows of a point every FINEST_SPACING MCUs suffice. What is returned with a spacing lies within data and increases.
    """
    if not is_whole(address, length, key):
        return np.int64(0)
    record = bytes_at(address, length)
    spacing = np.int64(_field(record, _SPACING, 2))
    if spacing == 0 or np.int64(record[_COMPONENTS]) != components:
        return np.int64(0)
    if np.int64(_field(record, _MCUS, 4)) != total_mcus or np.int64(_field(record, _DATA_SIZE, 4)) != data_size:
        return np.int64(0)
    count = (total_mcus + spacing - 1) // spacing
    w0, w1, w2, w3 = (_U64(record[_WIDTHS]), _U64(record[_WIDTHS + 1]), _U64(record[_WIDTHS + 2]),
                      _U64(record[_WIDTHS + 3]))  # fmt: skip
    width = w0 + w1 + w2 + w3
    if count < 1 or count > points.shape[0] or width > _U64(_MOST_BITS):
        return np.int64(0)
    if length != RECORD_HEADER + ((count - 1) * np.int64(width) + 7) // 8:
        return np.int64(0)
    least = np.int64(_field(record, _LEAST_SEGMENT, 4))
    y = np.int64(np.int16(_field(record, _LEAST_PREDICTORS, 2)))
    cb = np.int64(np.int16(_field(record, _LEAST_PREDICTORS + 2, 2)))
    cr = np.int64(np.int16(_field(record, _LEAST_PREDICTORS + 4, 2)))
    one = _U64(1)
    m0, m1, m2, m3 = (one << w0) - one, (one << w1) - one, (one << w2) - one, (one << w3) - one
    s1, s2, s3 = w0, w0 + w1, w0 + w1 + w2
    position, end = np.int64(scan_start) * 8, np.int64(data_size) * 8
    points[0, BYTE], points[0, BIT] = scan_start, 0
    points[0, PREDICTOR], points[0, PREDICTOR + 1], points[0, PREDICTOR + 2] = 0, 0, 0
    last_word = _U64(length - 8)
    at = _U64(8 * RECORD_HEADER)
    for i in range(_U64(1), _U64(count)):
        start = min(at >> _U64(3), last_word)  # the last points are taken from the record's last eight bytes
        word = _word(record, start) >> (at - (start << _U64(3)) & _U64(63))  # 64 only where no column has any bits
        at += width
        segment = least + np.int64(word & m0)
        position += segment
        if segment < 1 or position >= end:
            return np.int64(0)
        points[i, BYTE], points[i, BIT] = position >> 3, position & 7
        points[i, PREDICTOR] = y + np.int64(word >> s1 & m1)
        points[i, PREDICTOR + 1] = cb + np.int64(word >> s2 & m2)
        points[i, PREDICTOR + 2] = cr + np.int64(word >> s3 & m3)
    return spacing


@inner
def _probe(slots, key, empty):
    """The row of `key`, or the first empty one on the way there if that is asked for; -1: none."""
    mask = _U64(slots.shape[0] - 1)
    at = key & mask
    if key == _U64(0):
        return np.int64(-1)
    for _ in range(min(slots.shape[0], MOST_PROBES)):
        there = slots[at, 0]
        if there == key or (empty and there == _U64(0)):
            return np.int64(at)
        if there == _U64(0):
            return np.int64(-1)
        at = at + _U64(1) & mask
    return np.int64(-1)


@inner
def find(slots, key):
    """The row of `key` in slots; -1 where it has none. No image has key 0: it would be called as an empty slot is."""
    return _probe(slots, key, False)


@inner
def points_of(fixed, learned, base, size, key, total_mcus, components, scan_start, data_size, points):
    """`unpack` from whichever table of an EntropyIndex has the image: its spacing, 0 where neither has it whole.

    fixed: slots with addresses. learned: slots with offsets into the `size` bytes at address `base`, which others
    write to at this moment: what was read half is refused.
    """
    row = find(fixed, key)
    if row >= 0:
        address, length = np.int64(fixed[row, 1]), np.int64(fixed[row, 2])
        spacing = unpack(address, length, key, total_mcus, components, scan_start, data_size, points)
        if spacing:
            return spacing
    row = find(learned, key)
    if row >= 0:
        offset, length = learned[row, 1], learned[row, 2]
        if offset <= _U64(size) and length <= _U64(size) - offset:
            address = np.int64(base) + np.int64(offset)
            return unpack(address, np.int64(length), key, total_mcus, components, scan_start, data_size, points)
    return np.int64(0)


@kernel(["int64(uint64[:, ::1], uint64[:, ::1])"])
def fill_slots(slots, rows):
    """Put rows, uint64 (m, 3) as slots have them, into slots that are all zero; returns how many found a place.

    Of rows with one key the first is kept. With 3/2 m slots or more all find one.
    """
    kept = np.int64(0)
    for i in range(rows.shape[0]):
        row = _probe(slots, rows[i, 0], True)
        if row >= 0 and slots[row, 0] == _U64(0):
            for column in range(3):
                slots[row, column] = rows[i, column]
            kept += 1
    return kept


HAS_RECORD, NO_ROOM = -2, -1


@kernel(["int64(Array(uint64, 2, 'C', readonly=True), int64, int64, uint64)"])
def row_to_write(learned, base, size, key):
    """The slot in which a record of `key` belongs, empty or with a record that is damaged; `HAS_RECORD`; `NO_ROOM`."""
    row = _probe(learned, key, True)
    if row >= 0 and learned[row, 0] == key:
        offset, length = learned[row, 1], learned[row, 2]
        if offset <= _U64(size) and length <= _U64(size) - offset:
            if is_whole(np.int64(base) + np.int64(offset), np.int64(length), key):
                return np.int64(HAS_RECORD)
    return row
