"""What is expected, against a recording fake of the link: requests, order, bounds, and every byte right."""

from __future__ import annotations

import asyncio
import gc
import threading

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.refs import SAMPLE_REF, whole_files
from gpuload.fetch.ahead import KEPT_BEHIND, Ahead, Window
from gpuload.fetch.flight import Turn
from gpuload.fetch.remote import RemoteReader
from gpuload.sampling.order import Order

FILES = ["one", "two"]
CONTENT = {name: np.random.default_rng(i).integers(0, 256, 100_000, np.uint8).tobytes() for i, name in enumerate(FILES)}
IMAGE = 100
"""Samples of so many bytes, one after the other, 1000 a file."""


class Link:
    """Answers at once, or when `released`; notes what it was asked."""

    def __init__(self, fails: bool = False, held: bool = False):
        self.asked: list[tuple[str, int, int]] = []
        self.hurried: list[Turn] = []
        self.fails, self.released = fails, asyncio.Event()
        if not held:
            self.released.set()

    async def get(self, url: str, offset: int, length: int, turn: Turn) -> np.ndarray:
        self.asked.append((url, offset, length))
        await self.released.wait()
        if self.fails:
            raise OSError("gone")
        return np.frombuffer(CONTENT[url][offset : offset + length], np.uint8)


def refs_of(samples: list[int]) -> np.ndarray:
    return np.array([(sample // 1000, sample % 1000 * IMAGE, IMAGE) for sample in samples], SAMPLE_REF)


def window(samples: list[int], gap_bytes: int = IMAGE, max_range_bytes: int = 2000) -> Window:
    return Window(FILES, refs_of(samples), gap_bytes=gap_bytes, max_range_bytes=max_range_bytes)


def begun(link: Link, *, max_held_bytes: int) -> Ahead:
    """One whose first batch is read."""
    ahead = Ahead(link.get, link.hurried.append, max_held_bytes=max_held_bytes)
    ahead.go_on()
    return ahead


async def take(ahead: Ahead, samples: list[int]) -> list[int]:
    """Claim these; the samples that came, each checked."""
    came = []
    for claim in ahead.claim(FILES, refs_of(samples)):
        got = await ahead.receive(claim)
        for row, begin, length in zip(claim.rows, claim.begins, claim.lengths, strict=True):
            if got is not None:
                file, at = FILES[samples[row] // 1000], samples[row] % 1000 * IMAGE
                assert got.part[begin : begin + length].tobytes() == CONTENT[file][at : at + length]
                came.append(samples[row])
    return sorted(came)


def run(test):
    return asyncio.run(asyncio.wait_for(test(), 10))


def test_neighbours_of_several_batches_are_read_once_and_then_forgotten():
    async def test():
        link = Link()
        ahead = begun(link, max_held_bytes=10**6)
        samples = [*range(40), *range(1500, 1520)]
        ahead.add(window(samples))
        for batch in (samples[::3], samples[1::3], samples[2::3]):
            assert await take(ahead, batch) == batch
        assert link.asked == [("one", 0, 2000), ("one", 2000, 2000), ("two", 50_000, 2000)]
        assert ahead.held_bytes == 0
        assert await take(ahead, samples) == []  # whoever asks again reads for himself

    run(test)


def test_the_first_batch_reads_by_itself_and_nothing_is_read_ahead_before_it_is_here():
    async def test():
        link = Link()
        ahead = Ahead(link.get, link.hurried.append, max_held_bytes=10**6)
        samples = list(range(60))
        ahead.add(window(samples))
        await asyncio.sleep(0.01)
        assert link.asked == []
        first, second = [*range(20, 40), 41], [5, 45]
        assert await take(ahead, first) == [] and link.asked == []
        ahead.go_on()
        assert await take(ahead, second) == second
        assert [at for _, at, _ in link.asked] == [0, 4000]  # of 2000..3999 nothing is left

    run(test)


def test_what_a_batch_claims_goes_before_what_is_only_expected():
    async def test():
        link = Link(held=True)
        ahead = begun(link, max_held_bytes=10**6)
        ahead.add(window([*range(20), *range(100, 120)]))
        claims = ahead.claim(FILES, refs_of([101, 102]))
        assert link.hurried[0] is claims[0].held.turn and claims[0].held.offset == 10_000

    run(test)


def test_a_full_shuffle_expects_nothing_to_be_shared():
    async def test():
        link = Link()
        ahead = begun(link, max_held_bytes=10**6)
        ahead.add(window([10, 300, 700, 1400]))
        await asyncio.sleep(0)
        assert await take(ahead, [10, 300]) == [] and link.asked == []

    run(test)


def test_a_large_part_of_a_file_is_read_ahead_though_one_asks_for_it():
    refs = np.array([(0, 0, 3 << 20)], SAMPLE_REF)
    assert len(Window(FILES, refs, gap_bytes=0, max_range_bytes=8 << 20).ranges) == 1
    assert not Window(FILES, whole_files(np.array([0, 1])), gap_bytes=0, max_range_bytes=8 << 20).ranges


def test_reading_ahead_is_in_order_and_bounded():
    async def test():
        link = Link()
        ahead = begun(link, max_held_bytes=4000)
        ahead.add(window(list(range(40))))
        ahead.add(window(list(range(100, 140))))
        await asyncio.sleep(0.01)
        assert [at for _, at, _ in link.asked] == [0, 2000] and ahead.held_bytes == 4000
        assert await take(ahead, [100, 101]) == []  # no room: nobody waits for it
        assert await take(ahead, list(range(20))) == list(range(20))
        await asyncio.sleep(0.01)
        assert [at for _, at, _ in link.asked] == [0, 2000, 10_000] and ahead.held_bytes == 4000

    run(test)


def test_a_window_that_is_dropped_makes_room_and_its_requests_end():
    async def test():
        link = Link(held=True)
        ahead = begun(link, max_held_bytes=4000)
        first, second = window(list(range(40))), window(list(range(100, 140)))
        ahead.add(first)
        ahead.add(second)
        await asyncio.sleep(0)
        assert len(link.asked) == 2
        ahead.drop(first)
        ahead.drop(first)
        await asyncio.sleep(0)
        assert [at for _, at, _ in link.asked] == [0, 2000, 10_000, 12_000] and ahead.held_bytes == 4000
        link.released.set()
        assert await take(ahead, [3, 110]) == [110]

    run(test)


def test_a_window_that_is_dropped_between_claim_and_receipt_leaves_its_rows_to_their_batch():
    async def of(*, held: bool) -> list[bool]:
        link = Link(held=held)
        ahead = begun(link, max_held_bytes=10_000)
        expected = window([0, 1, 2, 3])
        ahead.add(expected)
        await asyncio.sleep(0)
        claims = ahead.claim(FILES, refs_of([1, 2]))
        await asyncio.sleep(0)
        ahead.drop(expected)
        received = [await ahead.receive(claim) for claim in claims]
        assert len(claims) == 1 and ahead.held_bytes == 0
        return [got is not None for got in received]

    assert asyncio.run(of(held=False)) == [True]  # the bytes were there
    assert asyncio.run(of(held=True)) == [False]


def test_what_batches_left_behind_does_not_stay():
    async def test():
        link = Link()
        ahead = begun(link, max_held_bytes=10**6)
        for number in range(KEPT_BEHIND + 3):
            ahead.add(window(list(range(number * 40, number * 40 + 20))))
        newest = (KEPT_BEHIND + 2) * 40
        assert await take(ahead, [newest]) == [newest]
        assert await take(ahead, [0, 40]) == [] and await take(ahead, [80]) == [80]
        assert ahead.held_bytes == 2000 * (KEPT_BEHIND + 1)

    run(test)


def test_a_range_that_fails_leaves_its_rows_to_their_batches():
    async def test():
        link = Link(fails=True)
        ahead = begun(link, max_held_bytes=10**6)
        ahead.add(window(list(range(10))))
        assert await take(ahead, [1, 2]) == []
        assert await take(ahead, [3]) == [] and len(link.asked) == 1 and ahead.held_bytes == 0

    run(test)


def test_two_that_want_a_range_at_once_share_one_request():
    async def test():
        link = Link(held=True)
        ahead = begun(link, max_held_bytes=10**6)
        ahead.add(window(list(range(10))))
        both = asyncio.gather(take(ahead, [1, 3]), take(ahead, [2, 5]))
        await asyncio.sleep(0.01)
        link.released.set()
        assert await both == [[1, 3], [2, 5]] and len(link.asked) == 1

    run(test)


def test_a_batch_that_is_given_up_does_not_end_what_others_wait_for():
    async def test():
        link = Link(held=True)
        ahead = begun(link, max_held_bytes=10**6)
        ahead.add(window(list(range(10))))
        impatient = asyncio.ensure_future(take(ahead, [1]))
        patient = asyncio.ensure_future(take(ahead, [2]))
        await asyncio.sleep(0.01)
        impatient.cancel()
        await asyncio.sleep(0.01)
        link.released.set()
        assert await patient == [2] and impatient.cancelled()

    run(test)


@given(st.integers(0, 50), st.integers(1, 40), st.integers(2000, 40_000))
@settings(max_examples=15, deadline=None)
def test_any_order_with_any_bound_gives_each_sample_once_or_leaves_it(seed, batch, max_held_bytes):
    """Against a set: what came ahead and what was left are the epoch, and the bound holds throughout."""

    async def test():
        link, most = Link(), 0
        ahead = begun(link, max_held_bytes=max_held_bytes)
        ids = Order("block", 2000, seed, block_size=20, blocks_in_window=8).ids(0, 2000).tolist()
        came, told = 0, 0
        for first in range(0, len(ids), batch):
            while told < len(ids) and told <= first + 160:
                ahead.add(window(ids[told : told + 160]))
                told += 160
            came += len(await take(ahead, ids[first : first + batch]))
            most = max(most, ahead.held_bytes)
        assert most <= max_held_bytes and ahead.held_bytes == 0
        if max_held_bytes >= 2 * 160 * IMAGE:
            ranges = sum(length for _, _, length in link.asked)
            assert came > 0.9 * len(ids) and ranges <= 2000 * IMAGE

    run(test)


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    for name, data in CONTENT.items():
        system.pipe_file(f"/{name}", data)
    yield [f"memory://{name}" for name in FILES]
    system.rm("/", recursive=True)


def test_a_reader_gives_the_same_bytes_whatever_it_was_told(memory):
    reader = RemoteReader(gap_bytes=IMAGE, max_range_bytes=2000, max_held_bytes=5000)
    ids = Order("block", 2000, 3, block_size=20, blocks_in_window=8).ids(0, 2000)
    refs = refs_of(ids.tolist())
    expected = [reader.expect(memory, refs[first : first + 160]) for first in range(0, 2000, 160)]
    for first in range(0, 2000, 50):
        rows = refs[first : first + 50]
        encoded = reader.read(memory, rows)
        assert not encoded.failures
        for row, (file, offset, length) in enumerate(rows.tolist()):
            assert encoded.encoded(row).tobytes() == CONTENT[FILES[file]][offset : offset + length]
    assert len(expected) == 13
    reader.close()


def test_what_nobody_holds_any_more_is_dropped(memory):
    reader = RemoteReader(gap_bytes=IMAGE, max_range_bytes=2000)
    expected = reader.expect(memory, refs_of(list(range(20))))
    reader.read(memory, refs_of([500]))  # the first
    reader.read(memory, refs_of([0, 500]))
    assert reader._ahead.held_bytes == 2000
    del expected
    gc.collect()
    reader.read(memory, refs_of([500]))
    assert reader._ahead.held_bytes == 0
    reader.close()


def test_rows_beyond_the_end_fail_alone_though_they_were_expected(memory):
    before = set(threading.enumerate())
    reader = RemoteReader(gap_bytes=IMAGE, max_range_bytes=2000, attempts=1)
    refs = refs_of([990, 995, 999])
    refs["length"][2] = 150
    expected = reader.expect(memory, refs)
    encoded = reader.read(memory, refs)
    assert list(encoded.failures) == [2] and "ends at byte 100000" in str(encoded.failures[2])
    assert encoded.encoded(1).tobytes() == CONTENT["one"][99_500:99_600]
    expected.drop()
    reader.close()
    assert "gpuload-fetch" not in {thread.name for thread in set(threading.enumerate()) - before}
