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


@pytest.mark.parametrize("kind", ["sequential", "shuffle", "block"])
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
    for kind in ("sequential", "shuffle", "block"):
        order = Order(kind, 0)
        assert order.ids(0, 0).tolist() == order.ids(0, 10).tolist() == []


def test_a_thousand_million_samples_cost_only_what_is_asked_for():
    order = Order("shuffle", 10**9, seed=3)
    ids = np.concatenate([order.ids(start, start + 1000) for start in (0, 123_456_789, 10**9 - 1000)])
    assert len(np.unique(ids)) == 3000 and ids.min() >= 0 and ids.max() < 10**9
    assert abs(ids.mean() / 10**9 - 0.5) < 4 / math.sqrt(12 * len(ids))


def too_uneven(counts: np.ndarray, expected: float | np.ndarray, freedom: int) -> bool:
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


@pytest.mark.parametrize("length", [257, 300, 512, 513])
def test_the_shortest_lengths_of_the_network_have_no_favourites_either(length: int):
    """Where its halves are 4 and 5 bits wide: the first to show that its rounds are too few, or their keys alike."""
    runs, places, bins = 3000, np.array([0, 1, length // 2]), 10
    drawn = np.stack([permute(places, length, seed, epoch=seed % 3) for seed in range(runs)]) * bins // length
    sizes = np.bincount(np.arange(length) * bins // length) / length
    for place in range(len(places)):
        assert not too_uneven(np.bincount(drawn[:, place], minlength=bins), runs * sizes, bins - 1)
    pairs = np.bincount(drawn[:, 0] * bins + drawn[:, 1], minlength=bins * bins)
    expected = np.outer(sizes, sizes)
    expected[np.diag_indices(bins)] -= sizes / length  # two places never hold the same id
    assert not too_uneven(pairs, runs * (expected / expected.sum()).ravel(), bins * bins - 1)


@pytest.mark.parametrize("length", [300, 1000, 4096, 50_000])
def test_as_many_ascents_and_as_even_differences_as_in_a_random_permutation(length: int):
    ids = np.concatenate([shuffled(length, seed)[None] for seed in range(200_000 // length)])
    ascents = (np.diff(ids, axis=1) > 0).sum(axis=1)  # mean (n - 1) / 2 and variance (n + 1) / 12: Eulerian numbers
    deviations = (ascents - (length - 1) / 2) / math.sqrt((length + 1) / 12)
    assert abs(deviations.sum()) < 4 * math.sqrt(len(deviations))
    assert deviations.var() < 1 + 5 * math.sqrt(2 / len(deviations))
    turns = np.diff(ids, axis=1) % length  # each of 1..length-1 as often
    bins = turns * 16 // length
    expected = np.bincount(np.arange(1, length) * 16 // length) / (length - 1)
    assert not too_uneven(np.bincount(bins.ravel(), minlength=16), bins.size * expected, 15)


@pytest.mark.parametrize("classes", [10, 100])
def test_batches_of_sorted_classes_are_as_mixed_as_random_ones(classes: int):
    length, batch = 51_200, 256
    drawn = shuffled(length, seed=4) * classes // length
    counts = np.stack([np.bincount(drawn[at : at + batch], minlength=classes) for at in range(0, length, batch)])
    share = batch / classes
    spread = ((counts - share) ** 2 / share).sum(axis=1) * (length - 1) / (length - batch)  # drawn without return
    freedom = classes - 1
    assert abs(spread.mean() - freedom) < 4 * math.sqrt(2 * freedom / len(spread))
    assert spread.max() < freedom + 6 * math.sqrt(2 * freedom)


def test_orders_of_neighbouring_epochs_and_seeds_have_nothing_in_common():
    first = shuffled(20_000, 3, 7)
    for other in (shuffled(20_000, 3, 8), shuffled(20_000, 4, 7), shuffled(20_000, 7, 3)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 4 / math.sqrt(20_000)
        assert (first == other).sum() < 10
        assert (np.diff(first) == np.diff(other)).sum() < 10


def test_neighbours_in_the_data_are_not_neighbours_in_the_order():
    ids = shuffled(50_000, seed=2)
    distance = np.diff(ids)
    assert (np.abs(distance) == 1).sum() < 12  # two are expected by chance
    correlation = np.corrcoef(ids[:-1], ids[1:])[0, 1]
    assert abs(correlation) < 4 / math.sqrt(len(ids))
    assert abs(np.corrcoef(np.arange(50_000), ids)[0, 1]) < 4 / math.sqrt(len(ids))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="order must be one of 'sequential', 'shuffle', 'block', got 'random'"):
        Order("random", 10)
