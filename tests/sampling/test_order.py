"""gpuload's own order: a permutation, the same from wherever it is looked at, and without favourites."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.errors import ConfigError
from gpuload.sampling.order import Order, permute

LARGE = [1023, 1024, 1025, 4096, 4097, 65_536, 65_537, 100_003]


def shuffled(length: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return Order("shuffle", length, seed, epoch).ids(0, length)


@pytest.mark.parametrize("lengths", [range(1, 150), range(150, 300), LARGE], ids=["to 149", "to 299", "large"])
def test_every_id_comes_once(lengths: range | list[int]):
    for length in lengths:
        ids = shuffled(length, seed=length, epoch=3)
        assert ids.dtype == np.int64
        assert np.array_equal(np.sort(ids), np.arange(length)), length


@pytest.mark.parametrize("kind", ["sequential", "shuffle"])
def test_a_slice_is_the_same_slice_of_the_whole(kind: str):
    order = Order(kind, 1000, seed=5, epoch=2)
    whole = order.ids(0, 1000)
    for start, stop in [(0, 1), (1, 2), (17, 400), (999, 1000), (640, 640), (990, 2000), (1000, 1001)]:
        assert np.array_equal(order.ids(start, stop), whole[start:stop]), (start, stop)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 2**40),
    seed=st.integers(-(2**65), 2**65),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_a_position_does_not_depend_on_others_asked_for(length: int, seed: int, epoch: int, data: st.DataObject):
    positions = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=6)))
    together = permute(positions, length, seed, epoch)
    assert ((together >= 0) & (together < length)).all()
    assert [int(permute(np.array([p]), length, seed, epoch)[0]) for p in positions.tolist()] == together.tolist()
    assert len(set(together.tolist())) == len(set(positions.tolist()))


def test_the_iterator_gives_python_ints_in_the_same_order():
    order = Order("shuffle", 20_000, seed=1)
    ids = list(order)
    assert type(ids[0]) is int and ids == order.ids(0, 20_000).tolist()


def test_the_positions_given_are_left_as_they_are():
    positions = np.arange(50)
    permute(positions, 50, 0, 0)
    assert np.array_equal(positions, np.arange(50))


def test_it_is_a_function_of_seed_and_epoch():
    assert np.array_equal(shuffled(500, 7, 3), shuffled(500, 7, 3))
    assert np.array_equal(shuffled(500, 7, 3), shuffled(500, 7 + 2**64, 3 - 2**64))
    variants = [shuffled(500, seed, epoch) for seed in (-1, 0, 1, 2**32, 2**63) for epoch in range(4)]
    for a, b in itertools.combinations(variants, 2):
        assert (a == b).sum() < 12  # one place in 500 agrees by chance


def test_consecutive_epochs_differ_at_every_length_that_can():
    for length in (10, 50, 257):
        orders = {tuple(shuffled(length, 0, epoch).tolist()) for epoch in range(20)}
        assert len(orders) == 20


def test_no_samples():
    for kind in ("sequential", "shuffle"):
        order = Order(kind, 0)
        assert order.ids(0, 0).tolist() == order.ids(0, 10).tolist() == list(order) == []


def test_a_thousand_million_samples_cost_only_what_is_asked_for():
    order = Order("shuffle", 10**9, seed=3)
    ids = np.concatenate([order.ids(start, start + 1000) for start in (0, 123_456_789, 10**9 - 1000)])
    assert len(np.unique(ids)) == 3000 and ids.min() >= 0 and ids.max() < 10**9
    assert abs(ids.mean() / 10**9 - 0.5) < 4 / math.sqrt(12 * len(ids))


def too_uneven(counts: np.ndarray, expected: float, freedom: int) -> bool:
    """Whether a chi-square test rejects at about four standard deviations."""
    return bool(((counts - expected) ** 2 / expected).sum() > freedom + 4 * math.sqrt(2 * freedom))


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_every_permutation_of_a_few_comes_as_often(length: int):
    runs = 4000
    seen = [tuple(shuffled(length, seed).tolist()) for seed in range(runs)]
    every = list(itertools.permutations(range(length)))
    counts = np.array([seen.count(permutation) for permutation in every])
    assert not too_uneven(counts, runs / len(every), len(every) - 1), counts


@pytest.mark.parametrize("length", [5, 6, 8, 12, 17, 40])
def test_ids_and_pairs_have_no_favourite_places(length: int):
    runs = 2500
    orders = np.stack([shuffled(length, seed, epoch=seed % 3) for seed in range(runs)])
    places = np.stack([np.bincount(orders[:, place], minlength=length) for place in range(length)])
    assert not too_uneven(places, runs / length, (length - 1) ** 2)
    pairs = np.bincount(orders[:, 0] * length + orders[:, 1], minlength=length**2).reshape(length, length)
    assert not np.diag(pairs).any()
    off_diagonal = pairs[~np.eye(length, dtype=bool)]
    assert not too_uneven(off_diagonal, runs / len(off_diagonal), len(off_diagonal) - 1)


def test_longer_lengths_have_no_favourites_either():
    first = np.concatenate([permute(np.array([0, 1]), 300, seed, 0) for seed in range(400)])
    assert not too_uneven(np.bincount(first // 30, minlength=10), 80, 9)


def test_neighbours_in_the_data_are_not_neighbours_in_the_order():
    ids = shuffled(50_000, seed=2)
    distance = np.diff(ids)
    assert (np.abs(distance) == 1).sum() < 12  # two are expected by chance
    correlation = np.corrcoef(ids[:-1], ids[1:])[0, 1]
    assert abs(correlation) < 4 / math.sqrt(len(ids))
    assert abs(np.corrcoef(np.arange(50_000), ids)[0, 1]) < 4 / math.sqrt(len(ids))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="order must be one of 'sequential', 'shuffle', got 'random'"):
        Order("random", 10)
