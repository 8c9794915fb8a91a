"""Mixtures: exact proportions from any position, each data set walked through before it begins again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.errors import ConfigError
from gpuload.sampling.mixing import WINDOW, Mixture


def whole(mixture: Mixture) -> list[tuple[int, int]]:
    drawn = mixture.at(np.arange(mixture.length))
    assert drawn.part.dtype == drawn.sample.dtype == np.int64
    return list(zip(drawn.part.tolist(), drawn.sample.tolist(), strict=True))


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 60), st.floats(0.001, 1000)), min_size=1, max_size=7),
    length=st.integers(0, 4 * WINDOW),
    seed=st.integers(-(2**65), 2**65),
)
def test_every_window_has_its_shares_and_every_part_is_walked_through(parts, length, seed):
    lengths, weights = (tuple(column) for column in zip(*parts, strict=True))
    mixture = Mixture(lengths, weights, length, seed)
    drawn = whole(mixture)
    shares = np.array(weights) / sum(weights)
    bound = {1: 0, 2: 0.5, 3: 1}.get(len(parts), 2)
    for stop in [*range(WINDOW, length + 1, WINDOW), length]:
        counts = np.bincount([part for part, _ in drawn[:stop]], minlength=len(parts))
        assert (np.abs(counts - shares * stop) <= bound + 1e-6).all(), (stop, counts)
    for part, size in enumerate(lengths):
        times = np.bincount([sample for which, sample in drawn if which == part], minlength=size)
        assert len(times) == size and times.max() - times.min() <= 1


@settings(max_examples=25, deadline=None)
@given(data=st.data(), length=st.integers(1, 10**12))
def test_a_position_does_not_depend_on_others(data, length):
    mixture = Mixture((10**9, 70, 5), (5, 2, 1), length, 3)
    positions = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5)))
    together = mixture.at(positions)
    for row, position in enumerate(positions):
        alone = mixture.at(np.array([position]))
        assert (alone.part[0], alone.sample[0]) == (together.part[row], together.sample[row])


def test_a_part_that_is_used_up_begins_again_in_another_order():
    mixture = Mixture((2000, 40), (1, 1), 4096, seed=1)
    walked = [sample for part, sample in whole(mixture) if part == 1]
    counts = np.bincount(walked, minlength=40)
    assert set(counts) == {2048 // 40, 2048 // 40 + 1}
    again = Mixture((2000, 40), (1, 1), 4096, seed=2)
    assert whole(mixture) != whole(again)
    first, second = (
        {sample for _, sample in whole(Mixture((2 * WINDOW,), (1,), 4 * WINDOW))[at : at + WINDOW]}
        for at in (0, 2 * WINDOW)
    )
    assert 0.4 * WINDOW < len(first & second) < 0.6 * WINDOW  # half of them by chance, all if the order were the same


def test_parts_are_scattered_over_a_window_and_not_alternating():
    parts = np.array([part for part, _ in whole(Mixture((10**6, 10**6), (1, 1), 64 * WINDOW))])
    assert abs(np.corrcoef(parts[:-1], parts[1:])[0, 1]) < 0.02
    batches = parts.reshape(-1, 64).sum(axis=1)
    assert 25 < batches.mean() < 39 and 2 < batches.std() < 6  # 4 by chance; 0 when they took turns


def test_the_shortest_that_has_everything():
    lengths, weights = (700, 90, 3), (1.0, 1.0, 0.0)
    mixture = Mixture.of_all(lengths, weights)
    assert mixture.length % WINDOW == 0 and mixture.length <= 2 * 702 + WINDOW
    drawn = set(whole(mixture))
    assert drawn == {(0, sample) for sample in range(700)} | {(1, sample) for sample in range(90)}


def test_a_weight_of_zero_leaves_a_part_out_wherever_it_stands():
    for place in range(3):
        weights = [2.0, 2.0, 2.0]
        weights[place] = 0
        drawn = {part for part, _ in whole(Mixture((5, 5, 5), tuple(weights), 300))}
        assert drawn == {0, 1, 2} - {place}
    assert {part for part, _ in whole(Mixture((0, 9), (0, 1), 20))} == {1}


@pytest.mark.parametrize(
    "lengths, weights, length, message",
    [
        ((), (), 5, "one weight a data set, got 0 for 0"),
        ((1, 2), (1,), 5, "one weight a data set, got 1 for 2"),
        ((1, 2), (1, -1), 5, "weights must be finite, at least 0 and not all 0, got \\[1, -1\\]"),
        ((1, 2), (0, 0), 5, "not all 0"),
        ((1, 2), (1, float("nan")), 5, "finite"),
        ((1, 2), (1, float("inf")), 5, "finite"),
        ((1, 0), (1, 0.5), 5, "data set 1 of the mixture has no samples, and a weight of 0.5"),
        ((1, 2), (1, 1), -5, "the length of a mixture is at least 0, got -5"),
    ],
)
def test_what_cannot_be_mixed_is_refused(lengths, weights, length, message):
    with pytest.raises(ConfigError, match=message):
        Mixture(lengths, weights, length)
