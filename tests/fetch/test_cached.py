"""The cached reader over an HTTP server: right bytes from wherever they come, few requests, a predictable hit rate."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from gpuload.core.refs import SAMPLE_REF, whole_files
from gpuload.core.stamp import Stamp
from gpuload.fetch.cache_store import MemoryStore
from gpuload.fetch.cached import CachedReader
from gpuload.fetch.disk_cache import OWN_FOLDER, DiskStore
from gpuload.fetch.whole_files import Listed
from gpuload.sampling.order import Order
from tests.engine.fakes import eventually
from tests.fetch.ranges import RangeServer

CHUNK, IMAGE, FILES = 10_000, 500, 3
DATA = {f"/{n}.bin": np.random.default_rng(n).integers(0, 256, 104_000 + n, np.uint8).tobytes() for n in range(FILES)}
SAMPLES = np.array([(file, at, IMAGE) for file in range(FILES) for at in range(300, 103_000, 512)], SAMPLE_REF)


@pytest.fixture
def server():
    pytest.importorskip("aiohttp", reason="fsspec's HTTP file system needs aiohttp: the cache goes untested here")
    with RangeServer(DATA) as server:
        yield server


@pytest.fixture
def cached(server):
    made = []

    def make(store, known=True, **how) -> CachedReader:
        stamps = {url: Stamp(len(data), "1") for url, data in zip(server.urls, DATA.values(), strict=True)}
        how = {"backoff_s": 0.01, "timeout_s": 5.0, "gap_bytes": 100, "chunk_bytes": CHUNK, **how}
        made.append(CachedReader(store, stamps=stamps if known else None, **how))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def assert_right(encoded, refs, without=()):
    contents = list(DATA.values())
    for row, (file, offset, length) in enumerate(refs.tolist()):
        if row not in without:
            expected = contents[file][offset : offset + length] if length >= 0 else contents[file]
            assert encoded.encoded(row).tobytes() == expected
    assert sorted(encoded.failures) == list(without)


def epoch(reader, server, order="shuffle", seed=0, batch=16):
    ids = Order(order, len(SAMPLES), seed, block_size=20, blocks_in_window=4).ids(0, len(SAMPLES))
    windows = [
        reader.expect(server.urls, SAMPLES[ids[i : i + 80]]) for i in range(0, len(ids) if order == "block" else 0, 80)
    ]
    for first in range(0, len(ids), batch):
        refs = SAMPLES[ids[first : first + batch]]
        assert_right(reader.read(server.urls, refs), refs)
    for window in windows:
        window.drop()


@pytest.mark.parametrize("order", ["shuffle", "block", "sequential"])
def test_the_second_epoch_asks_for_nothing(server, cached, tmp_path, order):
    reader = cached(DiskStore(str(tmp_path), 10**9))
    epoch(reader, server, order)
    epoch(reader, server, order)  # what is filled in the background may take this long
    before, asked = reader.cache_stats(), len(server.requests)
    epoch(reader, server, order, seed=1)
    after = reader.cache_stats()
    assert len(server.requests) == asked and after.misses == before.misses
    assert after.hits - before.hits == len(SAMPLES) and after.hit_bytes - before.hit_bytes == len(SAMPLES) * IMAGE
    assert sum(server.sent.values()) < 3 * sum(map(len, DATA.values()))


def test_the_hit_rate_is_what_fits(server, cached):
    total = sum(map(len, DATA.values()))
    reader = cached(MemoryStore(total // 2))
    for seed in range(3):
        before = reader.cache_stats()
        epoch(reader, server, seed=seed)
        after = reader.cache_stats()
    hits = after.hits - before.hits
    assert 0.4 < hits / len(SAMPLES) < 0.55
    assert after.store.stopped == "it is full" and after.store.held_bytes <= total // 2


def test_another_process_finds_what_this_one_read(server, cached, tmp_path):
    first = cached(DiskStore(str(tmp_path), 10**9))
    epoch(first, server, "sequential")
    epoch(first, server, "sequential")
    asked = len(server.requests)
    second = cached(DiskStore(str(tmp_path), 10**9))
    epoch(second, server, "sequential")
    assert len(server.requests) == asked and second.cache_stats().hit_rate == 1.0


def test_a_first_batch_of_a_shuffle_does_not_wait_for_whole_chunks(server, cached):
    reader = cached(MemoryStore(10**9))
    server.hold(lambda path, begin, end: end - begin == CHUNK)
    refs = SAMPLES[[3, 250, 400]]
    assert_right(reader.read(server.urls, refs), refs)
    server.release()


def test_the_first_batch_does_not_wait_for_chunks(server, cached):
    reader = cached(MemoryStore(10**9))
    server.hold(lambda path, begin, end: end - begin == CHUNK)
    expected = reader.expect(server.urls, SAMPLES[:100])
    assert_right(reader.read(server.urls, SAMPLES[:30]), SAMPLES[:30])
    server.release()
    assert_right(reader.read(server.urls, SAMPLES[30:60]), SAMPLES[30:60])
    assert [request for request in server.requests if "0-10000" in request] == ["/0.bin 0-10000"]
    expected.drop()


def begun(reader: CachedReader, server: RangeServer) -> CachedReader:
    """One whose first batch is read, of the last file, and its chunk kept."""
    reader.read(server.urls, SAMPLES[-40:-38])
    assert eventually(lambda: reader.cache_stats().store.held_bytes == CHUNK)
    server.requests.clear()
    return reader


def test_a_chunk_that_several_want_is_one_request(server, cached):
    reader = begun(cached(MemoryStore(10**9)), server)
    server.hold(lambda path, begin, end: True)
    refs = SAMPLES[:16]
    threads = [
        threading.Thread(target=lambda part=part: assert_right(reader.read(server.urls, part), part))
        for part in (refs[:8], refs[8:], refs[::2])
    ]
    for thread in threads:
        thread.start()
    server.wait_for(1)
    server.release()
    for thread in threads:
        thread.join(10)
    assert server.requests == ["/0.bin 0-10000"] and not any(thread.is_alive() for thread in threads)


def test_rows_over_a_chunks_edge_and_odd_ones(server, cached):
    reader = cached(MemoryStore(10**9))
    refs = np.array([(0, 9_990, 20), (1, 0, 40_000), (2, 103_900, 102), (0, 50, 0), (1, 104_000, 1)], SAMPLE_REF)
    hits = then = 0
    while hits - then < len(refs):  # what is filled in the background comes a little later
        then = hits
        assert_right(reader.read(server.urls, refs), refs)
        hits = reader.cache_stats().hits


@pytest.mark.parametrize("listed", [True, False])
def test_whole_files_are_read_once(server, cached, listed):
    urls, contents = server.urls, list(DATA.values())
    server.headers["ETag"] = '"x"'
    versions = [str(Stamp(len(data), '"x"')) for data in contents]
    reader = cached(MemoryStore(10**9), known=False, listed=Listed("", versions) if listed else None)
    refs = whole_files(np.array([0, 2]))
    for _ in range(3):
        encoded = reader.read(urls, refs)
        assert_right(encoded, refs)
        assert eventually(lambda: reader._whole._pending_bytes == 0)
    gets = [request for request in server.requests if not request.startswith("HEAD")]
    assert len(gets) == 2 and len(server.requests) == (2 if listed else 4)
    stats = reader.cache_stats()
    assert (stats.hits, stats.misses) == (4, 2) and stats.hit_bytes == 2 * (len(contents[0]) + len(contents[2]))


def test_whole_files_and_pieces_in_one_batch(server, cached):
    reader = cached(MemoryStore(10**9))
    refs = np.concatenate([SAMPLES[:3], whole_files(np.array([1])), SAMPLES[300:302], whole_files(np.array([0]))])
    urls = [*server.urls, server.urls[0] + ".gone"]
    refs = np.concatenate([refs, whole_files(np.array([3]))])
    server.fail(lambda path, begin, end: path.endswith(".gone"))
    server.files["/0.bin.gone"] = b""
    for _ in range(2):
        encoded = reader.read(urls, refs)
        assert_right(encoded, refs, without=(7,))
    assert encoded.lengths[7] == 0


def test_a_chunk_that_fails_costs_only_rows_that_cannot_be_read(server, cached):
    reader = cached(MemoryStore(10**9), attempts=1)
    refs = SAMPLES[:10]
    server.fail(lambda path, begin, end: end - begin > 6_000 or begin == 812)
    assert_right(reader.read(server.urls, refs[:5]), refs[:5], without=())
    server.fail(lambda path, begin, end: begin <= 812 < end)
    encoded = cached(MemoryStore(10**9), attempts=1, gap_bytes=0).read(server.urls, refs)
    assert sorted(encoded.failures) == [1] and encoded.lengths[1] == 0
    assert_right(encoded, refs, without=(1,))


def test_without_a_stamp_a_file_is_asked_for_it_once_and_without_a_version_not_kept(server, cached):
    reader = cached(MemoryStore(10**9), known=False)
    server.headers["ETag"] = '"x"'
    refs = SAMPLES[:30]
    assert_right(reader.read(server.urls, refs), refs)
    assert eventually(lambda: reader.cache_stats().store.held_bytes == 2 * CHUNK)
    for _ in range(2):
        assert_right(reader.read(server.urls, refs), refs)
    assert sum(request.startswith("HEAD") for request in server.requests) == 1 and reader.cache_stats().hits == 60
    del server.headers["ETag"]
    reader = cached(MemoryStore(10**9), known=False)
    for _ in range(2):
        assert_right(reader.read(server.urls, refs), refs)
    assert reader.cache_stats().hits == 0


def test_a_full_disk_does_not_stop_reading(server, cached, tmp_path, monkeypatch):
    reader = cached(DiskStore(str(tmp_path), 10**9))
    monkeypatch.setattr("gpuload.fetch.disk_cache._write_all", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.warns(UserWarning, match="does not grow any more"):
        epoch(reader, server, "sequential")
    kept = [path for path in Path(tmp_path, OWN_FOLDER, "chunks").rglob("*") if path.is_file()]
    assert not kept and reader.cache_stats().store.stopped


def test_close_ends_a_read_that_waits_for_a_chunk(server, cached):
    reader, raised = begun(cached(MemoryStore(10**9)), server), []
    server.hold(lambda path, begin, end: True)

    def read():
        try:
            reader.read(server.urls, SAMPLES[:16])
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    server.wait_for(1)
    reader.close()
    thread.join(5)
    assert not thread.is_alive() and "closed" in str(raised[0])
