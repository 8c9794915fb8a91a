"""The block order: every id once, neighbours together, and as mixed as its windows let it be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.errors import ConfigError
from gpuload.sampling.order import Order, permute, permute_in_windows


def blocks(length: int, size: int, in_window: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return Order("block", length, seed, epoch, block_size=size, blocks_in_window=in_window).ids(0, length)


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 3000),
    size=st.integers(1, 90),
    in_window=st.integers(1, 20),
    seed=st.integers(-(2**65), 2**65),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_every_id_comes_once_and_a_position_does_not_depend_on_others(length, size, in_window, seed, epoch, data):
    order = Order("block", length, seed, epoch, block_size=size, blocks_in_window=in_window)
    whole = order.ids(0, length)
    assert whole.dtype == np.int64 and np.array_equal(np.sort(whole), np.arange(length))
    picked = data.draw(st.lists(st.integers(0, length - 1), max_size=6))
    assert order.at(np.array(picked, np.int64)).tolist() == whole[picked].tolist()


@pytest.mark.parametrize("length", [1152 * 4, 1152 * 4 + 71, 1152 * 4 + 72, 5000])
def test_a_window_holds_whole_blocks_of_neighbours(length: int):
    ids = blocks(length, 72, 16, seed=1)
    for at in range(0, length, 1152):
        window = np.sort(ids[at : at + 1152])
        ranges = 1 + (np.diff(window) > 1).sum()
        assert ranges <= 17 + (window[0] == 0)  # a shorter block in the last one, and one that lies across the end


def test_blocks_of_a_window_are_spread_over_all_of_it():
    ids = blocks(72 * 16 * 20, 72, 16, seed=5)
    for at in range(0, len(ids), 1152):
        halves = [np.sort(ids[at : at + 576]), np.sort(ids[at + 576 : at + 1152])]
        for half in halves:
            assert (np.diff(half) > 1).sum() > 200  # contiguous they would be 16 or fewer ranges


def test_which_blocks_meet_and_where_they_begin_differ_by_epoch():
    first, second = blocks(20_000, 72, 16, epoch=0), blocks(20_000, 72, 16, epoch=1)
    together = [set(np.sort(first[:1152]).tolist()) & set(second[at : at + 1152].tolist()) for at in (0, 1152, 2304)]
    assert max(map(len, together)) < 400
    begins = []
    for ids in (first, second):
        window = np.sort(ids[:1152])
        begins.append({int(id) % 72 for id, step in zip(window[1:], np.diff(window), strict=True) if step > 1})
    assert not begins[0] & begins[1]


def test_windows_are_shuffled_each_in_its_own_way():
    places = permute_in_windows(np.arange(64_000), 64_000, 64, 3, 0, stream=9).reshape(1000, 64)
    inside = places - np.arange(0, 64_000, 64)[:, None]
    assert np.array_equal(np.sort(inside, axis=1), np.broadcast_to(np.arange(64), (1000, 64)))
    assert len({tuple(row) for row in inside.tolist()}) == 1000
    counts = np.stack([np.bincount(inside[:, place], minlength=64) for place in range(64)])
    excess = ((counts - 1000 / 64) ** 2 / (1000 / 64)).sum() - 63**2
    assert abs(excess) < 5 * math.sqrt(2 * 63**2)


def test_streams_and_tweaks_are_permutations_of_their_own():
    positions = np.arange(4000)
    a, b = (permute(positions, 4000, 1, 2, stream=stream) for stream in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(4000) and (a == b).sum() < 10
    c, d = (permute(positions, 4000, 1, 2, tweak=np.full(4000, tweak)) for tweak in (7, 8))
    assert abs(np.corrcoef(c, d)[0, 1]) < 4 / math.sqrt(4000) and (c == d).sum() < 10
    assert np.array_equal(np.sort(c), positions)


def test_a_data_set_sorted_by_class_gives_batches_of_many_classes():
    """Loosely: bench/order.py states the numbers beside the full shuffle's."""
    length, batch, classes = 1000 * 1300, 256, 1000
    drawn = Order("block", length, seed=2).ids(0, 256 * 100) * classes // length
    kinds = [len(np.unique(drawn[at : at + batch])) for at in range(0, len(drawn), batch)]
    assert 15 <= np.mean(kinds) <= 40  # 16 blocks and what lies across two classes; 4 when blocks came one by one


def test_a_block_order_without_samples_or_blocks():
    assert blocks(0, 72, 16).tolist() == []
    with pytest.raises(ConfigError, match="at least 1 sample a block and 1 block a window, got 0 and 4"):
        Order("block", 10, block_size=0, blocks_in_window=4)
