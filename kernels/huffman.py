"""Huffman codes as look-up tables: what the next WINDOW bits say, in one load.

Entropy decoding is a chain of look-ups, each waiting for the length that the last one gave; so an entry carries all
that a whole step needs. Owns the table's layout, its building, and the search for codes too long for the window.
Owns also the few built tables that a thread keeps, by their DHT bytes: small images would spend their time building.
Leaves bits to `entropy.py`.

    table    int32 (TABLE_SIZE,)
    [0, 2**WINDOW)            an entry for each value of the next WINDOW bits
    [LIMITS, +17)             by length l: first 16-bit window beyond the codes of l bits and fewer
    [OFFSETS, +17)            by length l: what to add to a code of l bits to have its symbol's place
    [SYMBOLS, +256)           entries without a value, by place

    entry    value << 16 | advance << 8 | flags << 6 | length
    length   bits to consume: code, extra bits and, where it is merged, the end-of-block code behind them. The six
             bits that a shift reads of its count. Where two entries without flags are added, both fields hold sums
    advance  zigzag steps to the coefficient of this value (AC): run + 1, 16 for ZRL; + END at the end of the block.
             The end alone is 1 + END with value 0: to store that zero one place further does no harm
    value    of the coefficient; with the flag APART the number of extra bits, since those are not in the window
    flags    APART; LONG: the code isn't in the window either (length, advance and value mean nothing)

    kept     uint64 (KEPT + 1, KEPT_WORDS)  a row a table: its definition as 34 words, 1 + whether it is an AC table
             (0: none), the image that used it last; the last row: the place to give away next, the callers' image count

An end-of-block code that fits behind a value is merged with it: one look-up less in most blocks.
Source: ITU-T T.81, annexes C and F.2.2.3; the layout is our own.
"""

from __future__ import annotations

import numba
import numpy as np
from gpuload.kernels.compile import kernel

WINDOW = 10
"""Measured on photographs: 9 decodes 7% slower, 12 a tenth, 13 a quarter: their tables crowd the first-level cache."""
LIMITS = 1 << WINDOW
OFFSETS = LIMITS + 32
SYMBOLS = OFFSETS + 32
TABLE_SIZE = SYMBOLS + 256

KEPT = 32
"""Built tables kept, 5 KB each. An image needs 6 at most; files of one encoder share 4, optimised ones share none."""

END = 128
APART, LONG = 1 << 6, 1 << 7

KEPT_WORDS = 36
_WORDS, _MARK, _IMAGE = 34, 34, 35

BUILT, OVERFULL, BAD_SYMBOL = 0, 1, 2
"""What `build_table` returns: 0; codes that don't fit, a code of ones only counted among them, as libjpeg does; a DC
difference of more than 15 bits."""


def codes_reference(definition: np.ndarray) -> dict[tuple[int, int], int]:
    """The codes that a DHT definition (16 counts, then symbols) stands for: (length, code) -> symbol."""
    codes, code, place = {}, 0, 16
    for length in range(1, 17):
        for _ in range(int(definition[length - 1])):
            codes[length, code] = int(definition[place])
            code, place = code + 1, place + 1
        code *= 2
    return codes


def entry_reference(definition: np.ndarray, ac: bool, window: int) -> int:
    """What the entry for these WINDOW bits must be, bit by bit."""
    codes = codes_reference(definition)
    bits = format(window, f"0{WINDOW}b")

    def code_at(start: int) -> tuple[int, int] | None:
        for length in range(1, WINDOW - start + 1):
            if (length, int(bits[start : start + length], 2)) in codes:
                return start + length, codes[length, int(bits[start : start + length], 2)]
        return None

    found = code_at(0)
    if found is None:
        return LONG
    used, symbol = found
    run, extra = (symbol >> 4, symbol & 15) if ac else (0, symbol)
    if ac and extra == 0:
        return (16 if run == 15 else 1 + END) << 8 | used
    if used + extra > WINDOW:
        return extra << 16 | run + 1 << 8 | APART | used + extra
    value = int("0" + bits[used : used + extra], 2)
    if extra and bits[used] == "0":
        value -= (1 << extra) - 1
    used += extra
    behind = code_at(used) if ac else None
    if behind is not None and behind[1] == 0:
        return value << 16 | run + 1 + END << 8 | behind[0]
    return value << 16 | run + 1 << 8 | used


@numba.njit(nogil=True)
def _fill(table, first, count, entry):
    for i in range(first, first + count):
        table[np.uint64(i)] = entry


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), b1, int32[::1])"])
def build_table(definition, ac, table):
    """Fill table from a DHT definition, uint8 (272,): counts by length, then symbols. Returns `BUILT`, or why not."""
    symbols = 0
    for length in range(16):
        symbols += np.int64(definition[length])
    if symbols > 256:
        return OVERFULL
    code = np.int64(0)
    place = np.int64(0)
    end_code = np.int64(0)
    end_length = np.int64(0)  # of the end-of-block code, 0 where the table has none
    for length in range(1, 17):
        for _ in range(np.int64(definition[length - 1])):
            symbol = np.int64(definition[16 + place])
            run = symbol >> 4 if ac else np.int64(0)
            extra = symbol & 15 if ac else symbol
            if extra > 15:
                return BAD_SYMBOL
            entry = extra << 16 | run + 1 << 8 | APART | length + extra
            if ac and extra == 0:
                entry = (16 if run == 15 else 1 + END) << 8 | length
                if symbol == 0:
                    end_code, end_length = code, length
            table[SYMBOLS + place] = entry
            code += 1
            place += 1
        table[OFFSETS + length] = place - code
        table[LIMITS + length] = code << (16 - length)
        if definition[length - 1] and code >> length:
            return OVERFULL
        code <<= 1
    place = 0
    code = 0
    for length in range(1, WINDOW + 1):
        for _ in range(np.int64(definition[length - 1])):
            symbol = np.int64(definition[16 + place])
            extra = symbol & 15 if ac else symbol
            spare = WINDOW - length - extra
            first = code << (WINDOW - length)
            entry = np.int64(table[SYMBOLS + place])
            code += 1
            place += 1
            if spare < 0 or (ac and extra == 0):
                _fill(table, first, 1 << (WINDOW - length), entry)
                continue
            entry &= 0xFF1F
            half = np.int64(1) << extra >> 1
            for pattern in range(1 << extra):
                value = pattern if pattern >= half else pattern - (1 << extra) + 1
                _fill(table, first, 1 << spare, value << 16 | entry)
                if end_length and end_length <= spare:
                    _fill(table, first + (end_code << (spare - end_length)), 1 << (spare - end_length),
                          value << 16 | entry + (END << 8) + end_length)  # fmt: skip
                first += 1 << spare
        code <<= 1
    first = code >> 1
    _fill(table, first, (1 << WINDOW) - first, LONG)
    return BUILT


@numba.njit(nogil=True, _nrt=False)
def _holds(kept, slot, words, mark):
    """Whether the table at `slot` was built from this definition."""
    if kept[slot, _MARK] != mark:
        return False
    for i in range(_WORDS):
        if kept[slot, i] != words[i]:
            return False
    return True


@numba.njit(nogil=True)
def kept_table(definition, words, ac, image, kept, tables):
    """The place in `tables`, int32 (KEPT * TABLE_SIZE,), of the table that a definition gives; -1 where it is no code.

    definition: uint8 (272,); words: the same as uint64 (34,). image: a number, never 0; what an image was given stays
    where it is as long as the number is the same.
    """
    mark = np.uint64(2 if ac else 1)
    for slot in range(KEPT):
        if _holds(kept, slot, words, mark):
            kept[slot, _IMAGE] = image
            return slot
    slot = np.int64(kept[KEPT, 0]) % KEPT
    while kept[slot, _IMAGE] == image:
        slot = (slot + 1) % KEPT
    kept[KEPT, 0] = slot + 1
    kept[slot, _MARK], kept[slot, _IMAGE] = 0, 0
    if build_table(definition, ac, tables[slot * TABLE_SIZE : (slot + 1) * TABLE_SIZE]) != BUILT:
        return -1
    for i in range(_WORDS):
        kept[slot, i] = words[i]
    kept[slot, _MARK], kept[slot, _IMAGE] = mark, image
    return slot


@numba.njit(nogil=True, _nrt=False)
def long_entry(table, base, bits):
    """The entry, its value apart, of the code that `bits` (left-aligned) begins with; 0 where there is no such code.

    table: many tables end to end; base: where this one begins.
    """
    window = np.int64(bits >> np.uint64(48))
    for length in range(1, 17):
        if window < np.int64(table[np.uint64(base + LIMITS + length)]):
            place = (window >> (16 - length)) + np.int64(table[np.uint64(base + OFFSETS + length)])
            return np.int64(table[np.uint64(base + SYMBOLS + (place & 255))])
    return np.int64(0)
