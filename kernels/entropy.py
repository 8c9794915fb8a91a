"""Huffman decoding of a sequential scan, from any seek point: three quarters of the cost of a JPEG.

A scan is one long chain: where a symbol starts is known only after the one before. A seek point is what the chain's
state is at one MCU, so that decoding can begin there; a scan decoded whole leaves one every `spacing` MCUs. Owns the
chain: bits, stuffed bytes, restart markers, DC prediction, coefficients. Leaves tables to `huffman.py`, headers to
`jpeg_header.py`, and to Pillow every scan in which something is wrong.

    point         int32 (5,)         byte offset in data, bits of that byte already used (0 to 7), DC predictors
    layout        int32 (LAYOUT_SIZE,)  where each block of an MCU goes and what decodes it: `lay_out` fills it
    tables        int32 (n * TABLE_SIZE,)  look-up tables end to end (huffman.py)
    coefficients  int16 ((blocks + 1) * 64,)  blocks of component 0, then 1, then 2; one more takes what nobody wants
    last          uint8 (blocks + 1,)  highest zigzag index that is not zero, block by block

A component's part of `coefficients` is (blocks_high, blocks_wide, 64), padded to whole MCUs: natural order, not yet
dequantised. With a window only its MCUs are stored, as if they were the image.

Unread bits stand left-aligned in a word of 64: a look-up is a shift and a load, and its entry is the count of the next
shift. That chain takes 8 cycles a symbol, two thirds of the time; the rest are mostly branches guessed wrong, where a
block ends and where a value isn't in the window. So all else stays out of the chain, without a branch that depends on
the data. The refill takes eight bytes at once every second symbol, needed or not, beside the look-up; bytewise only
where an 0xFF is among the eight. That gives 62 ns a block of 13.5 bytes, over twice the speed at which Pillow decodes
whole images (Zen 4, photographs). Refilling at every symbol costs 6% of it, loading entries as signed numbers 7%, a
branch on a value's sign 3%, computing every value from its bits 6%, ends of blocks without a branch a fifth, two rows
in one loop 3%: their chains overlap, but a wrong guess in one stops both.

Source: ITU-T T.81, F.2 and E.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from gpuload.kernels.compile import kernel, on_demand
from gpuload.kernels.huffman import APART, END, LONG, TABLE_SIZE, WINDOW, long_entry
from gpuload.kernels.jpeg_header import (
    BLOCKS_IN_MCU,
    COMPONENTS,
    MCUS_HIGH,
    MCUS_WIDE,
    MOST_BLOCKS_IN_MCU,
    RESTART_INTERVAL,
    ZIGZAG,
    H,
    V,
)

ANOMALIES = (
    "decoded",
    "bits that are no code",
    "coefficients beyond the end of a block",
    "data that ends, or a marker, within the scan",
    "bytes that belong to no block",
    "a restart marker missing or out of order",
    "a DC coefficient out of range",
    "no end-of-image marker behind the scan",
)
"""What decoding returned, in words."""
DECODED, BAD_CODE, OVERRUN, ENDS_EARLY, BYTES_LEFT, BAD_RESTART, BAD_DC, NO_END = range(8)

POINT_SIZE = 5
BYTE, BIT, PREDICTOR = 0, 1, 2

# The layout: one number each, then six rows of one number a block of the MCU.
_WIDE, _HIGH, _LEFT, TOP, _WINDOW_WIDE, _WINDOW_HIGH, _INTERVAL, _BLOCKS, _IN_MCU = range(9)
_START, _STEP_X, _STEP_Y, _COMPONENT, _DC, _AC = range(16, 16 + 6 * MOST_BLOCKS_IN_MCU, MOST_BLOCKS_IN_MCU)
LAYOUT_SIZE = 16 + 6 * MOST_BLOCKS_IN_MCU

_U64 = np.uint64
# Parts of an entry; a shift reads no more of its count than _COUNT, so that to mask it is free.
_COUNT, _LENGTH, _ADVANCE, _OUTSIDE = _U64(63), _U64(31), _U64(255 << 8), _U64(APART | LONG)
_EIGHT, _ONES, _TOPS, _PEEK = _U64(8), _U64(0x0101010101010101), _U64(0x8080808080808080), _U64(64 - WINDOW)

# No reference counts: Numba counts an array that it hands to another function, two atomic operations a symbol here.
_scalar = numba.njit(nogil=True, error_model="numpy", _nrt=False)
_inlined = numba.njit(nogil=True, error_model="numpy", _nrt=False, inline="always")


class _Bits(NamedTuple):
    """The chain's state: unread bits, left-aligned; how many are valid (negative: that many too few were there)."""

    bits: np.uint64
    valid: np.int64
    at: np.uint64  # the next byte to take


@_inlined
def _eight_bytes(data, at):
    """Big-endian; LLVM makes one load and a byte swap of it."""
    return (
        _U64(data[at]) << _U64(56)
        | _U64(data[at + _U64(1)]) << _U64(48)
        | _U64(data[at + _U64(2)]) << _U64(40)
        | _U64(data[at + _U64(3)]) << _U64(32)
        | _U64(data[at + _U64(4)]) << _U64(24)
        | _U64(data[at + _U64(5)]) << _U64(16)
        | _U64(data[at + _U64(6)]) << _U64(8)
        | _U64(data[at + _U64(7)])
    )


@_scalar
def _refill_bytewise(data, bits, valid, at):
    """Where an 0xFF or the end of the data is near: takes stuffed bytes apart, stops for good at a marker."""
    size = _U64(data.size)
    while 0 <= valid < 56 and at < size:  # never 64: no shift can take that
        byte = _U64(data[at])
        step = _U64(1)
        if byte == _U64(0xFF):
            if at + step >= size or data[at + step] != 0:
                break
            step = _U64(2)
        bits |= byte << _U64(56 - valid)
        valid += np.int64(8)
        at += step
    return _Bits(bits, valid, at)


@_inlined
def _refill(data, bits, valid, at, limit):
    """At least 48 valid bits, unless the data ends or a marker stands there; `limit`: data.size - 7 or 0.

    Two symbols within the window, or one with 31 bits, leave WINDOW for the look-up before the next refill.
    """
    if at < limit:
        eight = _eight_bytes(data, at)
        if (~eight - _ONES) & eight & _TOPS == _U64(0):  # no 0xFF among them
            # Bits beyond `valid` are those of the byte at `at`: a second OR changes nothing.
            bits |= eight >> _U64(valid)
            taken = _U64(63 - valid) >> _U64(3)
            return _Bits(bits, np.int64(_U64(valid) | _U64(56)), at + taken)
    if valid < 48:
        return _refill_bytewise(data, bits, valid, at)
    return _Bits(bits, valid, at)


@_inlined
def _look_up(tables, table, bits):
    """The entry of what comes next. Unsigned: extending a sign would take the chain a cycle more."""
    return _U64(np.uint32(tables[table + (bits >> _PEEK)]))


@_inlined
def _value(entry):
    return np.int64(np.int32(entry)) >> 16


@_inlined
def _value_apart(entry, bits):
    """The value of extra bits that follow a code (T.81, figure F.12); half are negative: a branch would be a guess."""
    extra = _U64(_value(entry))
    bits <<= (entry & _LENGTH) - extra
    shift = _U64(63) - extra
    negative = _U64(np.int64(~bits) >> 63)
    return np.int64((bits >> _U64(1) >> shift) - (_U64(2**63 - 1) >> shift & negative))


class _Block(NamedTuple):
    bits: np.uint64
    valid: np.int64
    at: np.uint64
    difference: np.int64
    last: np.uint64
    status: np.int64


@_inlined
def _decode_block(data, limit, tables, dc, ac, bits, valid, at, coefficients, base):
    """One block to coefficients[base:base + 64], its DC term left to the caller. Zeroes the block first."""
    for i in range(64):
        coefficients[base + _U64(i)] = 0
    # A look-up needs no more bits than are there, so it doesn't wait for the refill: the two run side by side.
    entry = _look_up(tables, dc, bits)
    bits, valid, at = _refill(data, bits, valid, at, limit)
    difference = _value(entry)
    if entry & _OUTSIDE:
        if entry & _U64(LONG):
            entry = _U64(long_entry(tables, np.int64(dc), bits))
            if entry == _U64(0):
                return _Block(bits, valid, at, difference, _U64(0), np.int64(BAD_CODE))
        difference = _value_apart(entry, bits)
    bits <<= entry & _LENGTH
    valid -= np.int64(entry & _LENGTH)
    taken = _U64(0)  # the sum of entries: all advances, and the lengths since `valid` was set
    while True:
        entry = _look_up(tables, ac, bits)
        bits, valid, at = _refill(data, bits, valid, at, limit)
        if not entry & _OUTSIDE:
            taken += entry
            k = taken >> _EIGHT & _U64(255)
            if k >= _U64(63):
                break
            coefficients[base + _U64(ZIGZAG[k])] = _value(entry)
            bits <<= entry & _COUNT
            entry = _look_up(tables, ac, bits)
            if not entry & _OUTSIDE:
                taken += entry
                k = taken >> _EIGHT & _U64(255)
                if k >= _U64(63):
                    break
                coefficients[base + _U64(ZIGZAG[k])] = _value(entry)
                bits <<= entry & _COUNT
                valid -= np.int64(taken & _COUNT)
                taken = k << _EIGHT
                continue
        valid -= np.int64(taken & _COUNT)
        bits, valid, at = _refill(data, bits, valid, at, limit)
        if entry & _U64(LONG):
            entry = _U64(long_entry(tables, np.int64(ac), bits))
            if entry == _U64(0):
                return _Block(bits, valid, at, difference, _U64(0), np.int64(BAD_CODE))
        value = _value_apart(entry, bits)
        entry = _U64(value) << _U64(16) | entry & (_ADVANCE | _LENGTH)
        taken = (taken & _ADVANCE) + entry
        k = taken >> _EIGHT & _U64(255)
        if k >= _U64(63):
            break
        coefficients[base + _U64(ZIGZAG[k])] = value
        bits <<= entry & _COUNT
        valid -= np.int64(taken & _COUNT)
        taken = k << _EIGHT
    value = _value(entry)
    if k == _U64(63 + END) and value:  # no end follows a full block: what looked like one belongs to the next
        real = _U64(long_entry(tables, np.int64(ac), bits)) & _LENGTH
        taken -= (entry & _COUNT) - real
        entry = real
    bits <<= entry & _COUNT
    valid -= np.int64(taken & _COUNT)
    k &= _U64(END - 1)
    if k > _U64(63):
        return _Block(bits, valid, at, difference, _U64(0), np.int64(OVERRUN))
    coefficients[base + _U64(ZIGZAG[k])] = value  # of an end that stands alone: a zero where nothing was written yet
    last = k - _U64(value == 0)
    while last and coefficients[base + _U64(ZIGZAG[last])] == 0:  # sixteen zeros, then an end
        last -= _U64(1)
    return _Block(bits, valid, at, difference, last, np.int64(DECODED))


@_scalar
def _store_point(data, valid, at, point):
    """Where the next bit stands, from what is still unread; the scan holds 0xFF 0x00 only as a stuffed byte."""
    byte = np.int64(at)
    unread = valid
    while unread > 0:
        byte -= 1
        if byte > 0 and data[byte] == 0 and data[byte - 1] == 0xFF:
            byte -= 1
        unread -= 8
    point[BYTE] = byte
    point[BIT] = -unread


@_scalar
def _behind_marker(data, at, code):
    """The offset behind the marker 0xFF `code` that begins at `at`, fill bytes included; 0 where it isn't there."""
    size = _U64(data.size)
    start = at
    while at < size and data[at] == 0xFF:
        at += _U64(1)
    if at == start or at >= size or np.int64(data[at]) != code:
        return _U64(0)
    return at + _U64(1)


@kernel(["int64(int32[::1], int32[::1], int32[::1], int32[::1])"])
def lay_out(header, rows, window, layout):
    """Fill layout for a header that is ours; returns the number of blocks that decoding stores.

    rows: (6,), the row in `tables` of each component's DC table, then of each one's AC table. window: (4,), left, top,
    width and height in MCUs, within the image.
    """
    layout[_WIDE], layout[_HIGH] = header[MCUS_WIDE], header[MCUS_HIGH]
    layout[_LEFT], layout[TOP], layout[_WINDOW_WIDE], layout[_WINDOW_HIGH] = window[0], window[1], window[2], window[3]
    layout[_INTERVAL], layout[_IN_MCU] = header[RESTART_INTERVAL], header[BLOCKS_IN_MCU]
    start = 0
    j = 0
    for c in range(header[COMPONENTS]):
        h, v = np.int64(header[H + c]), np.int64(header[V + c])
        blocks_wide = window[2] * h
        for block in range(h * v):
            layout[_START + j] = start + block // h * blocks_wide + block % h
            layout[_STEP_X + j], layout[_STEP_Y + j] = h, v * blocks_wide
            layout[_COMPONENT + j] = c
            layout[_DC + j], layout[_AC + j] = rows[c] * TABLE_SIZE, rows[3 + c] * TABLE_SIZE
            j += 1
        start += blocks_wide * window[3] * v
    layout[_BLOCKS] = start
    return start


@_scalar
def decode_mcus(data, layout, tables, point, first, end, spacing, points, coefficients, last):
    """Decode MCUs [first, end) in scan order: `DECODED` (0), or an index into `ANOMALIES`.

    point: the state at `first` (for MCU 0: SCAN_START and zeros); becomes the state at `end`. MCUs of the layout's
    window are stored. spacing > 0: points[m // spacing] becomes the state at each MCU m that is a multiple of it. Where
    the scan ends with `end`, EOI must stand behind it. On an anomaly the outputs hold what was decoded before.
    """
    total = np.int64(layout[_WIDE]) * np.int64(layout[_HIGH])
    if first < 0 or end > total or point[BYTE] < 0 or point[BYTE] >= data.size:
        return np.int64(ENDS_EARLY)
    limit = _U64(data.size - 7) if data.size > 7 else _U64(0)
    interval = np.int64(layout[_INTERVAL])
    until_restart = interval - first % interval if interval else total
    until_point = (spacing - first % spacing) % spacing if spacing else total
    wide = np.int64(layout[_WIDE])
    y = first // wide - np.int64(layout[TOP])
    x = first % wide - np.int64(layout[_LEFT])
    right = wide - np.int64(layout[_LEFT])
    discard = _U64(layout[_BLOCKS])
    bits, valid, at = _refill_bytewise(data, _U64(0), np.int64(0), _U64(point[BYTE]))
    bits <<= _U64(point[BIT] & 7)
    valid -= np.int64(point[BIT] & 7)
    for mcu in range(first, end):
        if until_point == 0:
            _store_point(data, valid, at, points[mcu // spacing])
            for c in range(3):
                points[mcu // spacing, PREDICTOR + c] = point[PREDICTOR + c]
            until_point = spacing
        until_point -= 1
        inside = 0 <= x < np.int64(layout[_WINDOW_WIDE]) and 0 <= y < np.int64(layout[_WINDOW_HIGH])
        for j in range(np.int64(layout[_IN_MCU])):
            block = discard
            if inside:
                block = _U64(layout[_START + j] + y * layout[_STEP_Y + j] + x * layout[_STEP_X + j])
            dc, ac = _U64(layout[_DC + j]), _U64(layout[_AC + j])
            base = block << _U64(6)
            done = _decode_block(data, limit, tables, dc, ac, bits, valid, at, coefficients, base)
            bits, valid, at = done.bits, done.valid, done.at
            if valid < 0:
                return np.int64(ENDS_EARLY)
            if done.status:
                return done.status
            component = _U64(PREDICTOR + layout[_COMPONENT + j])
            predicted = np.int64(point[component]) + done.difference
            if predicted < -32768 or predicted > 32767:
                return np.int64(BAD_DC)
            point[component] = predicted
            coefficients[base] = predicted
            last[block] = done.last
        x += 1
        if x == right:
            x -= wide
            y += 1
        until_restart -= 1
        if until_restart == 0 and mcu + 1 < total:
            bits, valid, at = _refill_bytewise(data, bits, valid, at)
            if valid >= 8:
                return np.int64(BYTES_LEFT)
            at = _behind_marker(data, at, 0xD0 + mcu // interval % 8)
            if at == _U64(0):
                return np.int64(BAD_RESTART)
            bits, valid, at = _refill_bytewise(data, _U64(0), np.int64(0), at)
            point[PREDICTOR], point[PREDICTOR + 1], point[PREDICTOR + 2] = 0, 0, 0
            until_restart = interval
    _store_point(data, valid, at, point)
    if end == total:
        bits, valid, at = _refill_bytewise(data, bits, valid, at)
        if valid >= 8:
            return np.int64(BYTES_LEFT)
        if _behind_marker(data, at, 0xD9) == _U64(0):
            return np.int64(NO_END)
    return np.int64(DECODED)


@_scalar
def sound_tail(data, at, restarts):
    """Whether nothing but entropy-coded bytes, and restart markers where there are any, stands between `at` and EOI.

    A decoder that stops at `at` then has the verdict of one that goes on: libjpeg only warns of wrong bits.
    """
    size = _U64(data.size)
    at = _U64(at)
    while at + _U64(1) < size:
        if at + _U64(8) <= size:
            eight = _eight_bytes(data, at)
            if (~eight - _ONES) & eight & _TOPS == _U64(0):
                at += _EIGHT
                continue
        if data[at] != 0xFF:
            at += _U64(1)
            continue
        code = data[at + _U64(1)]
        if code == 0xD9:
            return True
        if code != 0xFF and code != 0 and not (restarts and 0xD0 <= code <= 0xD7):
            return False
        at += _U64(1) if code == 0xFF else _U64(2)
    return False


_DATA = "Array(uint8, 1, 'C', readonly=True)"


@on_demand(
    [f"int64({_DATA}, int32[::1], int32[::1], int32[::1], int64, int64, int64, int32[:, ::1], int16[::1], uint8[::1])"]
)
def decode_range(data, layout, tables, point, first, end, spacing, points, coefficients, last):
    """`decode_mcus` for Python."""
    return decode_mcus(data, layout, tables, point, first, end, spacing, points, coefficients, last)
