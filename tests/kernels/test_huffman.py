"""Look-up tables against the codes they stand for, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from gpuload.kernels.huffman import (
    BAD_SYMBOL,
    BUILT,
    END,
    KEPT,
    KEPT_WORDS,
    LONG,
    OVERFULL,
    TABLE_SIZE,
    WINDOW,
    build_table,
    codes_reference,
    entry_reference,
    kept_table,
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
            assert entry >> 8 & 255 == (symbol >> 4) + 1 + (END if symbol == 0 else 0)
    assert long_entry(table, TABLE_SIZE, np.uint64(2**64 - 1)) == 0


def test_the_end_of_a_block_is_merged_with_the_value_before_it():
    dht = definition({2: 3}, [0x01, 0x00, 0x13])  # 00: one bit follows; 01: end; 10: a zero, then three bits
    table = built(dht, True)
    assert table[0b00_1_01 << (WINDOW - 5)] == 1 << 16 | (1 + END) << 8 | 5
    assert table[0b00_0_00 << (WINDOW - 5)] == -1 << 16 | 1 << 8 | 3
    assert table[0b10_011_01 << (WINDOW - 7)] == -4 << 16 | (2 + END) << 8 | 7
    assert table[0b01 << (WINDOW - 2)] == (1 + END) << 8 | 2
    assert table[-1 + (1 << WINDOW)] == LONG


def test_what_libjpeg_calls_a_bad_table_is_one():
    table = np.zeros(TABLE_SIZE, np.int32)
    assert build_table(definition({1: 3}, [1, 2, 3]), True, table) == OVERFULL
    assert build_table(definition({1: 2}, [1, 2]), True, table) == OVERFULL  # the code of ones only
    assert build_table(definition(dict.fromkeys(range(1, 17), 255), [1] * 256), True, table) == OVERFULL
    assert build_table(definition({1: 1, 2: 1}, [3, 16]), False, table) == BAD_SYMBOL
    assert build_table(definition({1: 1, 2: 1}, [3, 15]), False, table) == BUILT
    assert build_table(definition({}, []), True, table) == BUILT and set(table[: 1 << WINDOW].tolist()) == {LONG}


class Keeper:
    """A thread's kept tables, and images that ask for some."""

    def __init__(self) -> None:
        self.kept = np.zeros((KEPT + 1, KEPT_WORDS), np.uint64)
        self.tables = np.full(KEPT * TABLE_SIZE, -1, np.int32)

    def place(self, wanted: np.ndarray, ac: bool, image: int) -> int:
        return kept_table(wanted, wanted.view(np.uint64), ac, np.uint64(image), self.kept, self.tables)

    def table(self, place: int) -> np.ndarray:
        return self.tables[place * TABLE_SIZE : (place + 1) * TABLE_SIZE]


def test_kept_tables_are_those_that_would_be_built_and_stay_while_an_image_needs_them():
    keeper, rng = Keeper(), np.random.default_rng(6)
    definitions = [(random_definition(seed, ac), ac) for seed in range(40) for ac in (False, True)]
    for image in range(1, 120):
        wanted = [definitions[i] for i in rng.choice(len(definitions) if image % 2 else 12, 6, replace=False)]
        places = [keeper.place(*one, image) for one in wanted]
        for place, one in zip(places, wanted, strict=True):
            table, fresh = keeper.table(place), built(*one)
            known = fresh != -1  # entries that building leaves alone are what stood there before
            assert np.array_equal(table[known], fresh[known])


def test_a_kept_table_is_built_once_and_never_mistaken_for_one_of_the_other_class():
    keeper, wanted = Keeper(), random_definition(1, False)
    first = keeper.place(wanted, False, 1)
    keeper.table(first)[:] = 12345
    assert keeper.place(wanted, False, 2) == first and (keeper.table(first) == 12345).all()
    assert keeper.place(wanted, True, 2) != first
    other = wanted.copy()
    other[271] ^= 1
    assert keeper.place(other, False, 3) not in (first, -1)


def test_what_is_no_code_has_no_place_and_leaves_none_damaged():
    keeper = Keeper()
    good, bad = random_definition(2, True), definition({1: 3}, [1, 2, 3])
    place = keeper.place(good, True, 1)
    for image in range(1, 3 * KEPT):
        assert keeper.place(bad, True, image) == -1
        assert keeper.place(good, True, image) >= 0
    assert keeper.place(good, True, 999) >= 0 and place >= 0
