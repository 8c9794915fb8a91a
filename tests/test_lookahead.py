"""What a source is told of an epoch: every sample once, in the order's windows, before it is asked for."""

from __future__ import annotations

import io

import fsspec
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Subset
from torchvision.transforms import PILToTensor

from gpuload import DataLoader, ShardDataset
from gpuload.cli.pack import pack
from gpuload.fetch.remote import RemoteReader
from gpuload.lookahead import WINDOW, Lookahead, lookahead_of


class Source:
    """Notes what it is told."""

    def __init__(self):
        self.told: list[np.ndarray] = []

    def expect(self, ids):
        self.told.append(ids)
        return ids


def loader_of(length: int, **how) -> DataLoader:
    return DataLoader(range(length), 32, device="cpu", **{"seed": 1, "order": "block", **how})


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("order", ["block", "sequential", "shuffle"])
def test_each_rank_is_told_all_its_samples_in_windows_of_the_order(world, order):
    for rank in range(world):
        loader = loader_of(5000, order=order, shard=(rank, world))
        source = Source()
        ids = list(loader.sampler)
        ahead = lookahead_of(loader, source)
        ahead.reach(len(ids))
        assert np.concatenate(source.told).tolist() == ids
        assert len(source.told) == -(-5000 // WINDOW) or world > 1
        assert all(len(told) <= WINDOW for told in source.told)


def test_one_window_further_than_what_is_planned():
    source = Source()
    ahead = Lookahead(source.expect, 10 * WINDOW, np.arange, lambda places: places)
    lengths = []
    for planned in (0, WINDOW - 1, WINDOW, 2 * WINDOW + 5, 9 * WINDOW, 10 * WINDOW):
        ahead.reach(planned)
        lengths.append(sum(map(len, source.told)) // WINDOW)
    assert lengths == [2, 2, 3, 4, 10, 10]


def test_an_order_of_somebody_else_is_not_known_and_torchs_sequential_one_is():
    assert lookahead_of(loader_of(100), object()) is None
    assert lookahead_of(DataLoader(range(100), 8, shuffle=True), Source()) is None
    source = Source()
    lookahead_of(DataLoader(range(100), 8), source).reach(0)
    assert source.told[0].tolist() == list(range(100))


@pytest.fixture
def shards(tmp_path):
    """Remote shards of 300 images whose label is their number."""
    folder = tmp_path / "images"
    for label in range(300):
        data = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), label % 256, np.uint8)).save(data, "jpeg")
        (folder / f"{label:03d}").mkdir(parents=True)
        (folder / f"{label:03d}" / "a.jpg").write_bytes(data.getvalue())
    pack(str(folder), str(tmp_path / "packed"), shard_size="64KB")
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/packed/", "/packed/", recursive=True)
    yield "memory://packed/*.tar"
    memory.rm("/packed", recursive=True)


@pytest.mark.parametrize("subset", [False, True])
def test_epochs_of_remote_shards_are_the_same_and_are_told_of_once(shards, monkeypatch, subset):
    told = []
    expect = RemoteReader.expect
    monkeypatch.setattr(RemoteReader, "expect", lambda *given: told.append(given[2]) or expect(*given))
    dataset = ShardDataset(shards, transform=PILToTensor())
    data = Subset(dataset, list(range(299, -1, -1))) if subset else dataset
    loader = DataLoader(data, 16, order="block", seed=3, device="cpu", num_workers=2, accelerate="require")
    orders = []
    for _ in range(3):
        labels = [int(label) for _, batch in loader for label in batch]
        assert sorted(labels) == list(range(300))
        orders.append(labels)
    assert orders[0] != orders[1]
    rows = [len(part) for part in told]
    assert sum(rows) in (900, 1200)  # the fourth epoch's may be begun
    sequential = DataLoader(data, 16, order="block", seed=3, device="cpu", num_workers=0, accelerate="require")
    assert [int(label) for _, batch in sequential for label in batch] == orders[0]


def test_stats_say_what_came_from_the_cache(shards):
    dataset = ShardDataset(shards, transform=PILToTensor(), cache="memory:100MB")
    loader = DataLoader(dataset, 16, order="block", seed=3, device="cpu", num_workers=2, accelerate="require")
    for _ in range(2):
        for _ in loader:
            pass
    assert loader.stats().cache_hit_rate == 1.0 and loader.stats().cache_stopped == ""
    assert loader.stats().scalars()["gpuload/cache_hit_rate"] == 1.0
    uncached = DataLoader(ShardDataset(shards, transform=PILToTensor()), 16, device="cpu", num_workers=2)
    next(iter(uncached))
    assert uncached.stats().cache_hit_rate is None
