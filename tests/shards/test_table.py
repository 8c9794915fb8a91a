"""Strings in one block: one by one, in slices and iterated they are the same."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.shards import table
from gpuload.shards.table import Strings

PLAIN = ["a", "", "bc", "", "def/g.jpg", "h"]


@pytest.mark.parametrize("strings", [PLAIN, [*PLAIN, "\u00e9", "\udcff", "\U0001f600x", ""], []])
@pytest.mark.parametrize("at_a_time", [1, 2, 4096])
def test_slices_and_iteration_are_what_single_strings_are(monkeypatch, strings, at_a_time):
    monkeypatch.setattr(table, "ITERATED", at_a_time)
    kept = Strings.of(strings)
    assert list(kept) == strings == [kept[i] for i in range(len(strings))]
    for start in (None, 0, 1, 3, -2, 50):
        for stop in (None, 0, 2, 5, -1, 50):
            for step in (1, 2, -1):
                assert kept[start:stop:step] == strings[start:stop:step]


def test_a_part_of_a_larger_block_has_its_own_text():
    part = Strings(b"abcdefg", np.array([2, 4, 5]))
    assert list(part) == ["cd", "e"] == part[:] and part[1:] == ["e"]
