"""Whole epochs from real servers, and through a proxy that spoils a fifth of the answers: every byte right, once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.core.protocols import RangeReader
from gpuload.fetch.cached import CachedReader
from gpuload.fetch.disk_cache import DiskStore
from gpuload.fetch.remote import RemoteReader
from gpuload.sampling.order import Order
from gpuload.shards.write_tar import END, header, padding
from tests.engine.fakes import eventually
from tests.servers.fault_proxy import FAULTS, FaultProxy, fault_proxy
from tests.servers.start import HOST, Storage, http, s3, s3_storage, sftp, smb, webdav

pytestmark = pytest.mark.full

SHARDS, SAMPLES = 3, 40


@dataclass(frozen=True)
class Spoilt:
    """upstream: a server's port; at: what it serves, behind another port."""

    upstream: int
    at: Callable[[int], Storage]

    def proxy(self, **how: float) -> AbstractContextManager[FaultProxy]:
        return fault_proxy(self.upstream, **how)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Shards of samples of 2 to 60 kB: no images, as nothing is decoded here."""
    folder = tmp_path_factory.mktemp("served") / "bucket"
    folder.mkdir()
    rng = np.random.default_rng(7)
    for shard in range(SHARDS):
        with (folder / f"{shard:03d}.tar").open("wb") as file:
            for sample in range(SAMPLES):
                data = rng.integers(0, 256, int(rng.integers(2_000, 60_000)), np.uint8).tobytes()
                for name, content in ((f"{shard}-{sample}.jpg", data), (f"{shard}-{sample}.cls", b"%d" % sample)):
                    file.write(header(name, len(content)) + content + padding(len(content)))
            file.write(END)
    return folder


@pytest.fixture(scope="module")
def hashes(folder: Path) -> dict[str, str]:
    """Of each sample, by its key, as the local files have it."""
    dataset = ShardDataset(f"{folder}/*.tar")
    return {dataset.name(i)[1]: digest(dataset.get_encoded(i)[0].data) for i in range(len(dataset))}


def digest(data: bytes | np.ndarray) -> str:
    return hashlib.blake2b(data).hexdigest()


@pytest.fixture(params=["s3", "http", "smb", "sftp", "webdav"])
def storage(request, folder: Path, tmp_path: Path) -> Iterator[Storage]:
    servers: dict[str, Callable[[], AbstractContextManager[Storage]]] = {
        "s3": lambda: s3(folder),
        "http": lambda: http(folder, tmp_path),
        "smb": lambda: smb(folder, tmp_path),
        "sftp": lambda: sftp(folder),
        "webdav": lambda: webdav(folder),
    }
    with servers[request.param]() as storage:
        yield storage


@pytest.fixture(params=["s3", "http"])
def spoilt(request, folder: Path, tmp_path: Path) -> Iterator[Spoilt]:
    """A server that is reached through proxies only."""
    if request.param == "s3":
        with s3(folder) as behind:
            yield Spoilt(behind.port, lambda port: s3_storage(folder, port))
    else:
        with http(folder, tmp_path) as behind:
            yield Spoilt(behind.port, lambda port: Storage(f"http://{HOST}:{port}", port))


def open_shards(storage: Storage) -> ShardDataset:
    urls = [f"{storage.url}/{shard:03d}.tar" for shard in range(SHARDS)]
    return ShardDataset(urls, format="tar", storage_options=storage.options)


def epoch(dataset: ShardDataset, reader: RangeReader, order: str, seed: int) -> list[tuple[str, str]]:
    """(key, hash) of every sample that arrived, in batches of 16 on 3 threads; all that is expected is told before."""
    ids = Order(order, len(dataset), seed, block_size=8, blocks_in_window=4).ids(0, len(dataset))
    expected = [
        reader.expect(dataset.files, dataset.refs(ids[first : first + 32])) for first in range(0, len(ids), 32)
    ]  # fmt: skip

    def batch(first: int) -> list[tuple[str, str]]:
        rows = ids[first : first + 16]
        came = reader.read(dataset.files, dataset.refs(rows))
        assert not came.failures, came.failures
        return [(dataset.name(row)[1], digest(came.encoded(place))) for place, row in enumerate(rows.tolist())]

    with ThreadPoolExecutor(3) as threads:
        arrived = [sample for part in threads.map(batch, range(0, len(ids), 16)) for sample in part]
    for window in expected:
        window.drop()
    return arrived


@pytest.mark.parametrize("order", ["shuffle", "block", "sequential"])
def test_an_epoch_arrives_whole(storage: Storage, hashes: dict[str, str], order: str) -> None:
    dataset = open_shards(storage)
    reader = RemoteReader(storage_options=storage.options, gap_bytes=10_000, max_range_bytes=500_000)
    try:
        assert sorted(epoch(dataset, reader, order, seed=1)) == sorted(hashes.items())
    finally:
        reader.close()
        dataset.close()


def test_a_second_epoch_comes_from_the_cache(storage: Storage, hashes: dict[str, str], tmp_path: Path) -> None:
    dataset = open_shards(storage)
    store = DiskStore(str(tmp_path / "cache"), 10**9)
    reader = CachedReader(store, storage_options=storage.options, chunk_bytes=200_000)
    try:
        for seed in (1, 2):
            assert sorted(epoch(dataset, reader, "shuffle", seed)) == sorted(hashes.items())
        before = reader.cache_stats()
        assert sorted(epoch(dataset, reader, "block", seed=3)) == sorted(hashes.items())
        after = reader.cache_stats()
        assert after.misses == before.misses and after.hits == before.hits + len(hashes)
    finally:
        reader.close()
        dataset.close()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cached", [False, True])
def test_under_faults_an_epoch_arrives_whole(
    spoilt: Spoilt, hashes: dict[str, str], tmp_path: Path, seed: int, cached: bool
) -> None:
    with spoilt.proxy(share=0.0) as proxy:
        dataset = open_shards(spoilt.at(proxy.port))
    with spoilt.proxy(share=0.2, seed=seed) as proxy:
        storage = spoilt.at(proxy.port)
        urls = [f"{storage.url}/{shard:03d}.tar" for shard in range(SHARDS)]
        how = {"gap_bytes": 0, "max_range_bytes": 100_000, "timeout_s": 0.5, "backoff_s": 0.02, "attempts": 8}
        reader = RemoteReader(storage_options=storage.options, **how)
        if cached:
            reader.close()
            store = DiskStore(str(tmp_path / "cache"), 10**9)
            reader = CachedReader(store, storage_options=storage.options, chunk_bytes=100_000, **how)
        try:
            for order in ("shuffle", "block"):
                arrived = epoch(_Moved(dataset, urls), reader, order, seed)
                assert sorted(arrived) == sorted(hashes.items())
        finally:
            reader.close()
            dataset.close()
        assert proxy.met.total() > 0.1 * proxy.requests and (cached or set(proxy.met) == set(FAULTS))


IMAGES = 30


@pytest.fixture(scope="module")
def loose(tmp_path_factory) -> Path:
    """Class folders of files of 2 to 60 kB that are called images."""
    folder = tmp_path_factory.mktemp("loose") / "images"
    rng = np.random.default_rng(8)
    for number in range(IMAGES):
        path = folder / f"train/{'abc'[number % 3]}/{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.integers(0, 256, int(rng.integers(2_000, 60_000)), np.uint8).tobytes())
    return folder


def loose_images(dataset: ShardDataset, seed: int) -> dict[str, str]:
    """Key -> hash of an epoch in random order, in batches of 8 on 3 threads; "" -> how many samples were hits."""
    reader = dataset.new_reader()
    ids = np.random.default_rng(seed).permutation(len(dataset))

    def batch(first: int) -> dict[str, str]:
        came = reader.read(dataset.files, dataset.refs(ids[first : first + 8]))
        assert not came.failures, came.failures
        return {dataset.name(row)[1]: digest(came.encoded(i)) for i, row in enumerate(ids[first : first + 8].tolist())}

    with ThreadPoolExecutor(3) as threads:
        arrived = {key: found for part in threads.map(batch, range(0, len(ids), 8)) for key, found in part.items()}
    hits = reader.cache_stats().hits  # type: ignore[attr-defined]
    reader.close()
    return {**arrived, "": str(hits)}


@pytest.fixture(params=["s3", "http", "smb", "sftp", "webdav"])
def loose_storage(request, loose: Path, tmp_path: Path) -> Iterator[Storage]:
    servers: dict[str, Callable[[], AbstractContextManager[Storage]]] = {
        "s3": lambda: s3(loose),
        "http": lambda: http(loose, tmp_path),
        "smb": lambda: smb(loose, tmp_path),
        "sftp": lambda: sftp(loose),
        "webdav": lambda: webdav(loose),
    }
    with servers[request.param]() as storage:
        yield storage


@pytest.mark.parametrize("listed", [True, False])
def test_loose_images_come_from_the_cache_and_those_that_changed_do_not(
    loose_storage: Storage, loose: Path, tmp_path: Path, listed: bool
) -> None:
    storage = loose_storage
    listed = listed and not storage.url.startswith("http")  # nginx lists nothing here
    paths = sorted((loose / "train").rglob("*.jpg"))
    urls = [f"{storage.url}/{path.relative_to(loose)}" for path in paths]

    def opened() -> ShardDataset:
        what = f"{storage.url}/train" if listed else urls
        label = None if listed else range(IMAGES)
        cache = f"1GB:{tmp_path}/kept"
        return ShardDataset(what, label=label, storage_options=storage.options, cache=cache)

    def expected(dataset: ShardDataset) -> dict[str, str]:
        return {dataset.name(i)[1]: digest(path.read_bytes()) for i, path in enumerate(paths)}

    dataset = opened()
    assert loose_images(dataset, 1) == {**expected(dataset), "": "0"}
    assert loose_images(dataset, 2) == {**expected(dataset), "": str(IMAGES)}
    before = paths[4].read_bytes()
    try:
        paths[4].write_bytes(before[::-1])
        stat = paths[4].stat()
        os.utime(paths[4], (stat.st_atime, stat.st_mtime + 10))  # servers tell seconds
        again = opened()
        assert loose_images(again, 3) == {**expected(again), "": str(IMAGES - 1)}
        assert loose_images(again, 4)[""] == str(IMAGES)
    finally:
        paths[4].write_bytes(before)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("listed", [True, False])
def test_under_faults_loose_images_arrive_whole_and_once(loose: Path, tmp_path: Path, seed: int, listed: bool) -> None:
    """A folder of S3, whose listing tells the versions, and a list of HTTP's URLs, each of which is asked for it."""
    paths = sorted((loose / "train").rglob("*.jpg"))
    store = DiskStore(str(tmp_path / "kept"), 10**9)
    how = {"timeout_s": 0.5, "backoff_s": 0.02, "attempts": 8}
    with s3(loose) if listed else http(loose, tmp_path) as behind, fault_proxy(behind.port, seed=seed) as proxy:
        if listed:
            folder, options = f"s3://{loose.name}/train", s3_storage(loose, proxy.port).options
            dataset = ShardDataset(folder, storage_options=behind.options)
        else:
            urls, options = [f"http://{HOST}:{proxy.port}/{path.relative_to(loose)}" for path in paths], {}
            dataset = ShardDataset(urls, label=range(IMAGES))
        reader = CachedReader(store, storage_options=options, listed=dataset._listed, **how)
        asked = [-1]
        while asked[-1] != proxy.requests:  # a size that was told wrong is asked for again in the next epoch
            asked.append(proxy.requests)
            came = reader.read(dataset.files, dataset.refs(np.arange(IMAGES)))
            assert not came.failures
            assert [digest(came.encoded(i)) for i in range(IMAGES)] == [digest(path.read_bytes()) for path in paths]
            assert eventually(lambda: reader._whole._pending_bytes == 0)
        assert len(asked) <= 5 and proxy.requests >= IMAGES * (1 if listed else 2)
        assert proxy.met.total() > 0.1 * IMAGES
        reader.close()


class _Moved:
    """The samples of a data set behind another address."""

    def __init__(self, dataset: ShardDataset, urls: list[str]):
        self._dataset, self.files = dataset, urls
        self.refs, self.name = dataset.refs, dataset.name

    def __len__(self) -> int:
        return len(self._dataset)
