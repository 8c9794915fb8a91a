"""Loose images through a store: each is read once, a new version anew, and nothing is kept that did not come whole."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

from gpuload.core.batch import join_encoded
from gpuload.core.refs import whole_files
from gpuload.core.stamp import Stamp
from gpuload.fetch.cache_store import MemoryStore
from gpuload.fetch.disk_cache import OWN_FOLDER, DiskStore
from gpuload.fetch.whole_files import Listed, WholeFiles
from tests.engine.fakes import eventually

COUNT = 60


class Storage:
    """Images behind URLs. reads, asked: how often each was. cut: url -> how many answers are half of it to come."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.images = {f"s3://b/{i}.jpg": rng.integers(0, 256, 100 + 37 * i, np.uint8).tobytes() for i in range(COUNT)}
        self.edition = dict.fromkeys(self.images, "1")
        self.reads, self.asked, self.cut = Counter(), Counter(), Counter()
        self.missing: set[str] = set()
        self.urls = list(self.images)

    def versions(self) -> list[str]:
        return [str(Stamp(len(self.images[url]), self.edition[url])) if self.edition[url] else "" for url in self.urls]

    def write(self, url: str, data: bytes, edition: str) -> None:
        self.images[url], self.edition[url] = data, edition

    def read(self, files, refs):
        parts, failures = [], {}
        for row, number in enumerate(refs["file"].tolist()):
            url = files[number]
            self.reads[url] += 1
            data = self.images[url]
            if url in self.missing:
                failures[row], data = FileNotFoundError(url), b""
            elif self.cut[url]:
                self.cut[url] -= 1
                data = data[: len(data) // 2]
            parts.append(data)
        return join_encoded(parts, (), failures)

    def ask(self, url: str) -> Stamp | None:
        self.asked[url] += 1
        if url in self.missing:
            raise FileNotFoundError(url)
        return Stamp(len(self.images[url]), self.edition[url])


@pytest.fixture
def storage():
    return Storage()


@pytest.fixture(params=["disk", "memory"])
def make_store(request, tmp_path):
    memory: list[MemoryStore] = []

    def make(limit: int = 10**9):
        if request.param == "disk":
            return DiskStore(str(tmp_path / "cache"), limit)
        memory.append(memory[0] if memory else MemoryStore(limit))
        return memory[-1]

    return make


def reader(storage: Storage, store, listed: bool = True) -> WholeFiles:
    known = Listed("s3://b", storage.versions() if listed else None)
    return WholeFiles(store, known, storage.read, storage.ask, attempts=4)


def epoch(storage: Storage, files: WholeFiles, seed: int = 0) -> np.ndarray:
    """Which samples were hits; all must be right."""
    hit = np.zeros(COUNT, np.bool_)
    for rows in np.array_split(np.random.default_rng(seed).permutation(COUNT), 7):
        found = files.read(storage.urls, whole_files(rows))
        assert not found.encoded.failures
        for place, row in enumerate(rows.tolist()):
            assert found.encoded.encoded(place).tobytes() == storage.images[storage.urls[row]]
        hit[rows] = found.hit
    assert eventually(lambda: files._pending_bytes == 0)
    return hit


@pytest.mark.parametrize("listed", [True, False])
def test_a_second_epoch_and_a_second_run_read_nothing(storage, make_store, listed):
    files = reader(storage, make_store(), listed)
    assert not epoch(storage, files).any() and epoch(storage, files, 1).all()
    again = reader(storage, make_store(), listed)
    assert epoch(storage, again, 2).all() and epoch(storage, again, 3).all()
    assert storage.reads == dict.fromkeys(storage.urls, 1)
    assert storage.asked == ({} if listed else dict.fromkeys(storage.urls, 2))  # once a run
    files.close()
    again.close()


@pytest.mark.parametrize("same_size", [True, False])
def test_an_image_that_was_written_anew_is_read_anew_and_no_other(storage, make_store, same_size):
    epoch(storage, reader(storage, make_store()))
    url = storage.urls[7]
    storage.write(url, storage.images[url][::-1] if same_size else b"another", "2")
    hit = epoch(storage, reader(storage, make_store()), 1)
    assert np.flatnonzero(~hit).tolist() == [7]
    assert epoch(storage, reader(storage, make_store()), 2).all()
    assert storage.reads == {**dict.fromkeys(storage.urls, 1), url: 2}


def test_one_that_is_written_anew_in_mid_run_is_taken_as_it_is_and_not_kept(storage, make_store):
    files, before = reader(storage, make_store()), storage.images[storage.urls[7]]
    storage.write(storage.urls[7], b"another", "2")
    for seed in range(2):
        assert not epoch(storage, files, seed)[7]
    storage.write(storage.urls[7], before, "1")
    assert np.flatnonzero(~epoch(storage, files, 2)).tolist() == [7] and epoch(storage, files, 3).all()


def test_an_answer_that_is_cut_off_and_claims_to_be_whole_is_asked_for_again(storage, make_store):
    storage.cut.update({storage.urls[2]: 1, storage.urls[5]: 3})
    files = reader(storage, make_store())
    epoch(storage, files)
    assert storage.reads[storage.urls[2]] == 2 and storage.reads[storage.urls[5]] == 4
    assert epoch(storage, files, 1).all()


def test_a_size_that_a_server_told_wrong_is_asked_for_again(storage, make_store):
    url, ask = storage.urls[7], storage.ask
    told = iter([Stamp(12, "1")])
    storage.ask = lambda asked: next(told, None) or ask(asked) if asked == url else ask(asked)
    files = reader(storage, make_store(), listed=False)
    for seed in range(3):
        hit = epoch(storage, files, seed)
    assert hit.all() and storage.reads[url] == 4 + 1 and storage.asked[url] == 1


def test_the_bound_holds_and_the_hit_rate_is_what_fits(storage, make_store, tmp_path):
    total = sum(map(len, storage.images.values()))
    store = make_store(total // 2)
    files = reader(storage, store)
    for seed in range(3):
        hit = epoch(storage, files, seed)
    held = sum(len(storage.images[storage.urls[row]]) for row in np.flatnonzero(hit))
    assert 0.4 * total < held == store.stats().held_bytes <= total // 2
    on_disk = sum(path.stat().st_size for path in (tmp_path / "cache" / OWN_FOLDER / "chunks").glob("*/*"))
    assert on_disk in (0, held) and not store.grows()


def test_what_fails_is_not_kept_and_costs_no_other(storage, make_store):
    for listed in (True, False):
        store, bad = make_store(), storage.urls[4]
        storage.missing = {bad}
        files = reader(storage, store, listed)
        for _ in range(2):
            found = files.read(storage.urls, whole_files(np.arange(10)))
            assert list(found.encoded.failures) == [4] and isinstance(found.encoded.failures[4], FileNotFoundError)
            assert found.encoded.lengths[4] == 0
            for row in {*range(10)} - {4}:
                assert found.encoded.encoded(row).tobytes() == storage.images[storage.urls[row]]
            assert eventually(lambda: files._pending_bytes == 0)  # noqa: B023
        assert found.hit.tolist() == [row != 4 for row in range(10)]
        storage.missing = set()
        assert not epoch(storage, files)[4]


@pytest.mark.parametrize("listed", [True, False])
def test_without_a_version_nothing_is_kept_and_nobody_asks_twice(storage, make_store, listed):
    for url in storage.urls[:3]:
        storage.edition[url] = ""
    files = reader(storage, make_store(), listed)
    for seed in range(3):
        hit = epoch(storage, files, seed)
    assert not hit[:3].any() and hit[3:].all()
    assert storage.asked == dict.fromkeys(storage.urls[:3] if listed else storage.urls, 1)


def test_one_image_twice_in_a_batch_and_an_empty_batch(storage, make_store):
    files = reader(storage, make_store())
    for _ in range(2):
        found = files.read(storage.urls, whole_files(np.array([9, 3, 9])))
        assert [found.encoded.encoded(i).tobytes() for i in range(3)] == [
            storage.images[storage.urls[n]] for n in (9, 3, 9)
        ]
        assert eventually(lambda: files._pending_bytes == 0)
    assert found.hit.all() and files.read(storage.urls, whole_files(np.zeros(0, np.int64))).encoded.data.size == 0


def test_a_disk_that_is_slower_than_the_link_holds_back_who_reads(storage, make_store, monkeypatch):
    monkeypatch.setattr("gpuload.fetch.whole_files.MAX_PENDING_BYTES", 0)
    files = reader(storage, make_store())
    epoch(storage, files)
    assert not files._pool._threads and epoch(storage, files, 1).all()


def test_what_runs_of_other_data_kept_makes_room(storage, tmp_path):
    total = sum(map(len, storage.images.values()))
    old, store = reader(storage, DiskStore(str(tmp_path), total)), None
    epoch(storage, old)
    del old
    storage.urls = [url.replace("s3://b/", "s3://c/") for url in storage.urls]
    storage.images = {url.replace("s3://b/", "s3://c/"): data[::-1] for url, data in storage.images.items()}
    storage.edition = dict.fromkeys(storage.images, "1")
    store = DiskStore(str(tmp_path), total)
    files = WholeFiles(store, Listed("s3://c", storage.versions()), storage.read, storage.ask, attempts=1)
    store.use(files.keys)
    epoch(storage, files)
    assert epoch(storage, files).all() and store.stats().held_bytes == total
    assert len(os.listdir(tmp_path / OWN_FOLDER / "chunks")) <= len({*files.keys})
