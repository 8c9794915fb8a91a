"""gpuload's own order as a torch sampler: the ids of one rank, from any position, however they are batched."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from torch.utils.data import BatchSampler

from gpuload.order_sampler import OrderSampler
from gpuload.sampling.order import Order
from gpuload.sampling.ranks import Rank


def samplers(length: int, world: int, **more) -> list[OrderSampler]:
    return [OrderSampler(range(length), "shuffle", 5, shard=Rank(rank, world), **more) for rank in range(world)]


@pytest.mark.parametrize("order", ["sequential", "shuffle", "block"])
def test_one_rank_gets_the_whole_order_as_python_ints(order: str):
    sampler = OrderSampler(range(40_000), order, 5)
    sampler.set_epoch(3)
    ids = list(sampler)
    assert ids == Order(order, 40_000, 5, 3).ids(0, 40_000).tolist() and len(sampler) == 40_000
    assert {type(id) for id in ids} == {int}
    assert ids == list(sampler), "another iteration of the same epoch"


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_ranks_global_batches_are_the_orders(world: int):
    whole = Order("shuffle", 1000, 5, 0).ids(0, 1000)
    mine = [
        list(BatchSampler(sampler, 12 // world, False)) for sampler in samplers(1000, world, batch_size=12 // world)
    ]
    for number in range(1000 // 12):
        assert sum((batches[number] for batches in mine), []) == whole[12 * number : 12 * number + 12].tolist()
    assert sorted(set(sum(sum(mine, []), []))) == list(range(1000))


@pytest.mark.parametrize(
    "even, sizes", [("pad", [250, 250, 250, 250]), ("exact", [250, 249, 249, 249]), ("drop", [249] * 4)]
)
def test_uneven_ends(even: str, sizes: list[int]):
    ranks = samplers(997, 4, batch_size=10, even=even)
    assert [len(list(sampler)) for sampler in ranks] == [len(sampler) for sampler in ranks] == sizes
    ids = sorted(id for sampler in ranks for id in sampler)
    assert even != "exact" or ids == list(range(997))
    assert even != "pad" or set(ids) == set(range(997))


def test_an_epoch_goes_on_from_a_position_at_another_world_size():
    before = samplers(500, 4, batch_size=5)
    seen = [id for sampler in before for id in list(sampler)[:30]]
    after = samplers(500, 3, batch_size=7, even="exact")
    for sampler in after:
        sampler.start = before[0].plan().position_after(6)
    assert sorted(seen + [id for sampler in after for id in sampler]) == list(range(500))
    for sampler in after:
        sampler.set_epoch(1)
        assert sampler.start == 0


def test_ids_at_positions_are_those_that_are_iterated_over():
    for sampler in samplers(50, 4, batch_size=6):
        plan = sampler.plan()
        assert sampler.ids(plan.positions_of(0, plan.samples)).tolist() == list(sampler)
    assert OrderSampler([], "shuffle", 1).ids(np.empty(0, np.int64)).tolist() == []


def test_the_length_of_the_data_set_is_looked_at_anew():
    data = [0] * 10
    sampler = OrderSampler(data, "shuffle", 1)
    assert sorted(sampler) == list(range(10))
    data.append(0)
    assert sorted(sampler) == list(range(11)) and len(sampler) == 11
    data.clear()
    assert list(sampler) == [] and len(sampler) == 0


def test_the_first_id_of_very_many_is_there_at_once():
    sampler = OrderSampler(range(10**15), "block", 1)
    assert 0 <= next(iter(sampler)) < 10**15 and len(sampler) == 10**15


def test_it_survives_pickling():
    sampler = samplers(100, 4, batch_size=3, even="drop")[2]
    sampler.set_epoch(4)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)
