"""Look-up tables against the codes they stand for, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.huffman import (
    BAD_SYMBOL,
    BUILT,
    END,
    LONG,
    OVERFULL,
    TABLE_SIZE,
    WINDOW,
    build_table,
    codes_reference,
    entry_reference,
    long_entry,
)


def definition(counts: dict[int, int], symbols: list[int]) -> np.ndarray:
    made = np.zeros(272, np.uint8)
    for length, count in counts.items():
        made[length - 1] = count
    made[16 : 16 + len(symbols)] = symbols
    return made


def random_definition(seed: int, ac: bool) -> np.ndarray:
    """As an encoder might make it: every length up to 16, room left for the code of ones, symbols in any order."""
    rng = np.random.default_rng(seed)
    symbols = rng.permutation(np.array([s for s in range(256) if s & 15 or s in (0, 0xF0)] if ac else range(16)))
    counts, room, left = {}, 1, len(symbols)
    for length in range(1, 17):
        room *= 2
        most = min(left, room - 1, 255)
        counts[length] = most if length == 16 else int(rng.binomial(most, rng.choice([0, 0.1, 0.5])))
        room, left = room - counts[length], left - counts[length]
    return definition(counts, symbols[: sum(counts.values())].tolist())


def built(dht: np.ndarray, ac: bool) -> np.ndarray:
    table = np.full(TABLE_SIZE, -1, np.int32)  # whatever stood there before
    assert build_table(dht, ac, table) == BUILT
    return table


@pytest.mark.parametrize("ac", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_window_gives_what_the_codes_say(seed: int, ac: bool):
    dht = random_definition(seed, ac)
    table = built(dht, ac)
    assert table[: 1 << WINDOW].tolist() == [entry_reference(dht, ac, window) for window in range(1 << WINDOW)]


@pytest.mark.parametrize("ac", [False, True])
def test_long_codes_are_found_by_search(ac: bool):
    dht = random_definition(5, ac) if ac else definition(dict.fromkeys(range(1, 17), 1), [*range(16)])
    codes = codes_reference(dht)
    assert max(length for length, _ in codes) == 16
    table = np.concatenate([np.full(TABLE_SIZE, -1, np.int32), built(dht, ac)])
    for (length, code), symbol in codes.items():
        bits = code << (64 - length) | ((1 << (64 - length)) - 1) // 3  # what follows doesn't matter
        entry = long_entry(table, TABLE_SIZE, np.uint64(bits))
        extra = symbol & 15 if ac else symbol
        assert (entry & 31, entry >> 16) == (length + extra, extra)
        if ac:
            assert entry >> 5 & 255 == (symbol >> 4) + 1 + (END if symbol == 0 else 0)
    assert long_entry(table, TABLE_SIZE, np.uint64(2**64 - 1)) == 0


def test_the_end_of_a_block_is_merged_with_the_value_before_it():
    dht = definition({2: 3}, [0x01, 0x00, 0x13])  # 00: one bit follows; 01: end; 10: a zero, then three bits
    table = built(dht, True)
    assert table[0b00_1_01 << (WINDOW - 5)] == 1 << 16 | (1 + END) << 5 | 5
    assert table[0b00_0_00 << (WINDOW - 5)] == -1 << 16 | 1 << 5 | 3
    assert table[0b10_011_01 << (WINDOW - 7)] == -4 << 16 | (2 + END) << 5 | 7
    assert table[0b01 << (WINDOW - 2)] == (1 + END) << 5 | 2
    assert table[-1 + (1 << WINDOW)] == LONG


def test_what_libjpeg_calls_a_bad_table_is_one():
    table = np.zeros(TABLE_SIZE, np.int32)
    assert build_table(definition({1: 3}, [1, 2, 3]), True, table) == OVERFULL
    assert build_table(definition({1: 2}, [1, 2]), True, table) == OVERFULL  # the code of ones only
    assert build_table(definition(dict.fromkeys(range(1, 17), 255), [1] * 256), True, table) == OVERFULL
    assert build_table(definition({1: 1, 2: 1}, [3, 16]), False, table) == BAD_SYMBOL
    assert build_table(definition({1: 1, 2: 1}, [3, 15]), False, table) == BUILT
    assert build_table(definition({}, []), True, table) == BUILT and set(table[: 1 << WINDOW].tolist()) == {LONG}
