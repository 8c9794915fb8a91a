"""TFRecord files as arrays: records found and their checksums checked, the Examples in them parsed, without the GIL.

    record    length: uint64 | masked CRC32C of those 8 bytes: uint32 | data | masked CRC32C of the data: uint32
    masked    rotate right by 15, plus 0xA282EAD8, mod 2**32
    records   int64 (n, 2): where a record's data begins and ends in `data`; the end is negative where the CRC is wrong
    features  int64 (m, 9), one row a feature of an Example, see the names below: places are in `data`, 0 where the
              feature holds nothing of that kind

Owns the layouts of records and of the protocol buffer; the checksum is crc32c.py's, what a feature means
gpuload/shards/tfrecord.py's.

Formats: tensorflow/core/lib/io/record_writer.h; tensorflow/core/example/{example,feature}.proto; Protocol Buffers'
encoding guide.
"""

from __future__ import annotations

import numba
import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.crc32c import crc32c_of

FRAME_BYTES = 16
"""What a record takes beside its data."""

DAMAGED = -1

RECORD, NAME, NAME_LENGTH, KIND, BODY, BODY_END, FIRST, FIRST_LENGTH, COUNT = range(9)
"""Columns of `features`. The record's number; its name; KIND: BYTES, FLOATS, INTS, or 0 for an empty feature; the
Feature message; its first value, as bytes lie in `data` and FIRST_LENGTH of them, an integer itself; the values."""

BYTES, FLOATS, INTS = 1, 2, 3
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5

NOT_AN_EXAMPLE, NOT_WHOLE = -1, -2

UNKNOWN = -1


@numba.njit(nogil=True)
def _masked(data, start, stop):
    crc = crc32c_of(data, start, stop)
    turned = np.uint32(crc >> np.uint32(15)) | np.uint32(crc << np.uint32(17))
    return np.uint32(turned + np.uint32(0xA282EAD8))


@numba.njit(nogil=True)
def _number32(data, at):
    value = np.uint32(0)
    for i in range(4):
        value |= np.uint32(data[at + i]) << np.uint32(8 * i)
    return value


@kernel(["uint32(Array(uint8, 1, 'C', readonly=True), int64, int64)"])
def masked_crc32c(data, start, stop):
    """The masked CRC32C of data[start:stop]."""
    return _masked(data, start, stop)


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), int64)"])
def record_length(data, at):
    """The length of the record whose frame begins at `at`, where 12 bytes are; DAMAGED where its CRC is wrong."""
    if _masked(data, at, at + 8) != _number32(data, at + 8):
        return DAMAGED
    length = np.int64(0)
    for i in range(8):
        length |= np.int64(data[at + i]) << np.int64(8 * i)
    return length if length >= 0 else np.int64(DAMAGED)


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), int64, int64)"])
def next_record(data, at, limit):
    """The first place from `at` on where a record of at most `limit` bytes may begin, or the first one not tried."""
    while at + 12 <= data.size:
        length = record_length(data, at)
        if length != DAMAGED and length <= limit:
            break
        at += 1
    return at


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), int64[:, ::1])"])
def whole_records(data, records):
    """Fill `records` with those that lie wholly in `data`, from its first byte on, as far as there is room.

    Returns how many: the next one is not whole, or its length is damaged.
    """
    at = np.int64(0)
    found = np.int64(0)
    while found < len(records) and at + FRAME_BYTES <= data.size:
        length = record_length(data, at)
        if length == DAMAGED or length > data.size - at - FRAME_BYTES:
            break
        start, stop = at + 12, at + 12 + length
        records[found, 0] = start
        records[found, 1] = stop if _masked(data, start, stop) == _number32(data, stop) else -stop
        found += 1
        at = stop + 4
    return found


@numba.njit(nogil=True)
def _varint(data, at, stop):
    """(value, the place behind it), the place DAMAGED where there is none. Negative values are as in int64."""
    value = np.uint64(0)
    for i in range(10):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= np.uint64(byte & np.uint8(0x7F)) << np.uint64(7 * i)
        if byte < 128:
            return np.int64(value), at
    return np.int64(0), np.int64(DAMAGED)


@numba.njit(nogil=True)
def _field(data, at, stop):
    """(number, wire type, begin, end) of the field at `at`; begin is DAMAGED where there is none."""
    tag, at = _varint(data, at, stop)
    if at == DAMAGED:
        return tag, tag, at, at
    wire = tag & 7
    end = np.int64(DAMAGED)
    if wire == VARINT:
        _, end = _varint(data, at, stop)
    elif wire == FIXED64:
        end = at + 8
    elif wire == FIXED32:
        end = at + 4
    elif wire == LENGTH_DELIMITED:
        length, at = _varint(data, at, stop)
        if at != DAMAGED and 0 <= length <= stop - at:
            end = at + length
    if end == DAMAGED or end > stop:
        return tag, tag, np.int64(DAMAGED), np.int64(DAMAGED)
    return tag >> 3, wire, at, end


@numba.njit(nogil=True)
def _values(data, kind, at, stop, row):
    """The first value and the count of a BytesList, FloatList or Int64List into a row of features."""
    while at < stop:
        number, wire, begin, end = _field(data, at, stop)
        if begin == DAMAGED:
            return False
        at = end
        if number != 1:
            continue
        if kind == BYTES or wire != LENGTH_DELIMITED:
            if row[COUNT] == 0:
                row[FIRST], row[FIRST_LENGTH] = begin, end - begin
                if kind == INTS:
                    row[FIRST], _ = _varint(data, begin, end)
            row[COUNT] += 1
        elif kind == FLOATS:
            if row[COUNT] == 0:
                row[FIRST], row[FIRST_LENGTH] = begin, 4
            row[COUNT] += (end - begin) // 4
        else:
            while begin < end:
                value, begin = _varint(data, begin, end)
                if begin == DAMAGED:
                    return False
                if row[COUNT] == 0:
                    row[FIRST] = value
                row[COUNT] += 1
    return True


@numba.njit(nogil=True)
def _entry(data, at, stop, row):
    """One entry of the map in Features into a row of features."""
    while at < stop:
        number, wire, begin, end = _field(data, at, stop)
        if begin == DAMAGED:
            return False
        at = end
        if number == 1:
            row[NAME], row[NAME_LENGTH] = begin, end - begin
        elif number == 2:
            row[BODY], row[BODY_END] = begin, end
            inner = begin
            while inner < end:
                kind, wire, first, last = _field(data, inner, end)
                if first == DAMAGED or wire != LENGTH_DELIMITED:
                    return False
                row[KIND] = kind
                if not _values(data, kind, first, last, row):
                    return False
                inner = last
    return True


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64[:, ::1])"])
def example_features(data, start, stop, record, features):
    """Fill `features` with those of the Example in data[start:stop]; `record` is what their RECORD says.

    Returns how many there are, perhaps more than there was room for; NOT_AN_EXAMPLE where the bytes are none.
    """
    found = np.int64(0)
    spare = np.zeros(9, np.int64)
    at = start
    while at < stop:
        number, wire, at_map, end_map = _field(data, at, stop)
        if at_map == DAMAGED or number != 1 or wire != LENGTH_DELIMITED:
            return NOT_AN_EXAMPLE
        at = end_map
        while at_map < end_map:
            number, wire, begin, end = _field(data, at_map, end_map)
            if begin == DAMAGED or number != 1 or wire != LENGTH_DELIMITED:
                return NOT_AN_EXAMPLE
            at_map = end
            row = features[found] if found < len(features) else spare
            row[:] = 0
            row[RECORD] = record
            if not _entry(data, begin, end, row):
                return NOT_AN_EXAMPLE
            found += 1
    return found


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), int64[:, ::1], int64, int64[:, ::1], int64[::1])"])
def window_features(data, records, first, features, counts):
    """`example_features` of these records one after the other; the first Example's RECORD is `first`.

    counts[i]: what it returned of record i, NOT_WHOLE where the CRC is wrong. Returns how many rows of features there
    are, perhaps more than there was room for.
    """
    found = np.int64(0)
    for i in range(len(records)):
        counts[i] = NOT_WHOLE
        if records[i, 1] >= 0:
            room = features[min(found, len(features)) :]
            counts[i] = example_features(data, records[i, 0], records[i, 1], first, room)
        if counts[i] >= 0:
            found += counts[i]
            first += 1
    return found


@kernel(["void(Array(uint8, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True), int64[::1], int64[:, ::1])"])
def number_names(data, names, bounds, features):
    """In place of where a feature's name begins, NAME becomes its number; UNKNOWN - NAME where it is none of these.

    names: name i is names[bounds[i]:bounds[i + 1]].
    """
    for row in features:
        at, length, number = row[NAME], row[NAME_LENGTH], np.int64(-1)
        for name in range(len(bounds) - 1):
            same = bounds[name + 1] - bounds[name] == length
            for i in range(length):
                if not same:
                    break
                same = names[bounds[name] + i] == data[at + i]
            if same:
                number = name
                break
        row[NAME] = number if number >= 0 else UNKNOWN - at
