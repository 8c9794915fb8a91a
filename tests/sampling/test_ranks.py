"""Ranks divide an epoch: nothing twice, nothing left out but as asked, the same global batches at any world size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from gpuload.core.errors import ConfigError
from gpuload.sampling.ranks import EVEN, Rank, RankPlan


def plans(length: int, batch_size: int, world: int, **more) -> list[RankPlan]:
    return [RankPlan(length, batch_size, world, rank, **more) for rank in range(world)]


def batches(plan: RankPlan) -> list[list[int]]:
    return [plan.positions(number).tolist() for number in range(len(plan))]


def taken(given: list[RankPlan]) -> list[int]:
    return sorted(position for plan in given for batch in batches(plan) for position in batch)


cases = {
    "length": st.integers(0, 200),
    "batch_size": st.integers(1, 20),
    "world": st.integers(1, 9),
    "data": st.data(),
}


@settings(deadline=None)
@given(**cases)
def test_exact_gives_each_position_to_one_rank(length, batch_size, world, data):
    start = data.draw(st.integers(0, length))
    ranks = plans(length, batch_size, world, even="exact", start=start)
    assert taken(ranks) == list(range(start, length))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    assert max(plan.samples for plan in ranks) - min(plan.samples for plan in ranks) <= 1


@settings(deadline=None)
@given(**cases, even=st.sampled_from(["pad", "drop"]), drop_last=st.booleans())
def test_pad_and_drop_give_every_rank_as_much(length, batch_size, world, data, even, drop_last):
    start = data.draw(st.integers(0, length))
    ranks = plans(length, batch_size, world, even=even, drop_last=drop_last, start=start)
    sizes = [[len(batch) for batch in batches(plan)] for plan in ranks]
    assert all(size == sizes[0] for size in sizes)
    assert all(sizes[0]) and all(size == batch_size for size in sizes[0][: None if drop_last else -1])
    got = taken(ranks)
    assert len(set(got)) == len(got), "a position past the end is one of its own"
    assert got == list(range(start, start + len(got)))
    if not drop_last:
        assert 0 <= (len(got) - (length - start)) * (1 if even == "pad" else -1) < world


@settings(deadline=None)
@given(**cases, even=st.sampled_from(EVEN), drop_last=st.booleans())
def test_batches_follow_from_positions_and_len_and_samples_say_how_many(
    length, batch_size, world, data, even, drop_last
):
    rank, start = data.draw(st.integers(0, world - 1)), data.draw(st.integers(0, length))
    plan = RankPlan(length, batch_size, world, rank, even, drop_last, start)
    mine = batches(plan)
    flat = [position for batch in mine for position in batch]
    assert len(flat) == plan.samples
    assert plan.positions_of(0, plan.samples).tolist() == plan.positions_of(0, 10**6).tolist() == flat
    assert plan.positions(len(plan)).tolist() == []
    first = data.draw(st.integers(0, plan.samples))
    assert plan.positions_of(first, first + 7).tolist() == flat[first : first + 7]
    for number, batch in enumerate(mine[: (length - start) // (batch_size * world)]):
        at = start + number * batch_size * world + rank * batch_size
        assert batch == list(range(at, at + batch_size))
    # torch's own batching of the rank's positions gives the same batches
    assert list(BatchSampler(flat, batch_size, drop_last=drop_last)) == mine


@settings(deadline=None)
@given(
    length=st.integers(0, 300),
    worlds=st.sampled_from([(1, 2), (2, 4), (3, 6), (4, 1), (6, 12)]),
    even=st.sampled_from(EVEN),
)
def test_a_global_batch_is_the_same_for_every_world_size(length, worlds, even):
    size = 12
    unions = []
    for world in worlds:
        ranks = plans(length, size // world, world, even=even)
        whole = length // size
        unions.append([sorted(p for plan in ranks for p in plan.positions(j).tolist()) for j in range(whole)])
    assert unions[0] == unions[1] == [list(range(j * size, (j + 1) * size)) for j in range(length // size)]


@settings(deadline=None)
@given(**cases, even=st.sampled_from(EVEN), other=st.tuples(st.integers(1, 20), st.integers(1, 9)))
def test_what_is_left_goes_on_at_another_world_size(length, batch_size, world, data, even, other):
    before = plans(length, batch_size, world, even=even)
    stop = data.draw(st.integers(0, min(map(len, before))))
    positions = [p for plan in before for number in range(stop) for p in plan.positions(number).tolist()]
    start = before[0].position_after(stop)
    assert {plan.position_after(stop) for plan in before} == {start}
    after = taken(plans(length, *other, even="exact", start=start))
    held = sorted(p for p in [*positions, *after] if p < length)
    if even == "drop":
        assert len(set(held)) == len(held) and length - len(held) < world
    else:
        assert held == list(range(length))


@pytest.mark.parametrize(
    "even, expected", [("pad", [[0], [1], [2], [3]]), ("drop", [[]] * 4), ("exact", [[0], [1], [2], []])]
)
def test_three_samples_on_four_ranks(even: str, expected: list):
    ranks = plans(3, 8, 4, even=even)
    assert [[p for batch in batches(plan) for p in batch] for plan in ranks] == expected
    assert [len(plan) for plan in ranks] == [len(positions) for positions in expected]


@pytest.mark.parametrize("length, world", [(10, 3), (3, 4), (1, 5), (12, 4), (7, 7)])
def test_padding_repeats_as_many_and_the_same_as_torch(length: int, world: int):
    theirs = [list(DistributedSampler(range(length), world, rank, shuffle=False)) for rank in range(world)]
    ours = taken(plans(length, 5, world, even="pad"))
    assert sorted(position % length for position in ours) == sorted(id for ids in theirs for id in ids)
    assert len({plan.samples for plan in plans(length, 5, world)}) == 1


def test_no_world_is_the_whole_epoch_in_order():
    plan = RankPlan(10, 4)
    assert batches(plan) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == batches(RankPlan(10, 4, even="exact"))
    assert len(RankPlan(10, 4, drop_last=True)) == 2 and len(RankPlan(10, 40)) == 1
    assert plan.positions(0).dtype == np.int64


def test_a_long_epoch_is_not_walked():
    plan = RankPlan(10**15, 256, 1024, 1023)
    assert len(plan) == -(-(10**15) // (256 * 1024))
    assert plan.positions(10**9).tolist() == list(range(10**9 * 2**18 + 1023 * 256, 10**9 * 2**18 + 1024 * 256))


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ConfigError, match="even must be one of 'pad', 'drop', 'exact', got 'fair'"):
        RankPlan(10, 2, even="fair")
    with pytest.raises(ConfigError, match="rank 4 of 4"):
        RankPlan(10, 2, 4, 4)
    with pytest.raises(ConfigError, match="rank -1 of 2"):
        Rank(-1, 2)
    with pytest.raises(ConfigError, match="rank 0 of 0"):
        Rank(0, 0)
    with pytest.raises(ConfigError, match="batch_size must be at least 1, got 0"):
        RankPlan(10, 0)
    with pytest.raises(ConfigError, match="an epoch of 10 samples cannot go on from position 11"):
        RankPlan(10, 2, start=11)


def test_the_plan_is_a_value():
    assert RankPlan(10, 2) == RankPlan(10, 2) and hash(RankPlan(10, 2)) == hash(RankPlan(10, 2))
    assert torch.as_tensor(RankPlan(10, 2).positions(1)).dtype == torch.int64
