"""What flies at once, and who is next: against lists of what was started, no link."""

from __future__ import annotations

import asyncio

import pytest

from gpuload.fetch.flight import Flight, Turn


class Ranges:
    """Ranges that fly until they are told to land. started: their names, in order."""

    def __init__(self, max_ranges: int, max_bytes: int):
        self.flight = Flight(max_ranges, max_bytes)
        self.started: list[str] = []
        self._flying: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task] = {}

    async def add(self, name: str, length: int, *, ahead: bool = False) -> Turn:
        turn, landing = Turn(waited_for=not ahead), asyncio.Event()

        async def fly() -> None:
            async with self.flight.of(length, turn):
                self.started.append(name)
                await landing.wait()

        self._flying[name], self._tasks[name] = landing, asyncio.ensure_future(fly())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return turn

    async def land(self, name: str) -> None:
        self._flying[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(0)


def run(test):
    asyncio.run(asyncio.wait_for(test(), 10))


def test_ranges_start_in_the_order_in_which_they_were_asked_for():
    async def test():
        ranges = Ranges(2, 1000)
        for name in "abcd":
            await ranges.add(name, 10)
        assert ranges.started == ["a", "b"] and ranges.flight.ranges == 2 and ranges.flight.bytes == 20
        await ranges.land("b")
        assert ranges.started == ["a", "b", "c"]
        for name in "acd":
            await ranges.land(name)
        assert ranges.started == list("abcd") and (ranges.flight.ranges, ranges.flight.bytes) == (0, 0)

    run(test)


def test_bytes_are_bounded_a_larger_range_flies_alone_and_is_not_passed_for_ever():
    async def test():
        ranges = Ranges(8, 100)
        for name, length in (("a", 60), ("huge", 500), ("b", 10)):
            await ranges.add(name, length)
        assert ranges.started == ["a"]
        await ranges.land("a")
        assert ranges.started == ["a", "huge"] and ranges.flight.bytes == 100
        await ranges.land("huge")
        assert ranges.started == ["a", "huge", "b"]
        await ranges.land("b")

    run(test)


def test_what_a_batch_waits_for_starts_before_what_is_read_ahead():
    async def test():
        ranges = Ranges(4, 90)
        for number in range(3):
            await ranges.add(f"ahead{number}", 20, ahead=True)
        assert ranges.started == ["ahead0", "ahead1"]  # half of the ranges
        for name in "abc":
            await ranges.add(name, 20)
        assert ranges.started == ["ahead0", "ahead1", "a", "b"]
        for name in ("ahead0", "ahead1", "a", "b", "c"):
            await ranges.land(name)
        assert ranges.started == ["ahead0", "ahead1", "a", "b", "c", "ahead2"]
        await ranges.land("ahead2")

    run(test)


def test_reading_ahead_leaves_a_third_of_the_bytes_to_batches():
    async def test():
        ranges = Ranges(64, 96)
        for number in range(3):
            await ranges.add(f"ahead{number}", 30, ahead=True)
        await ranges.add("a", 36)
        assert ranges.started == ["ahead0", "ahead1", "a"]
        for name in ("ahead0", "ahead1", "a", "ahead2"):
            await ranges.land(name)

    run(test)


def test_a_batch_that_comes_for_what_was_to_be_read_ahead_hurries_it():
    async def test():
        ranges = Ranges(1, 100)
        await ranges.add("a", 10)
        await ranges.add("early", 10, ahead=True)
        late = await ranges.add("late", 10, ahead=True)
        ranges.flight.hurry(late)
        ranges.flight.hurry(late)
        for name in ("a", "late", "early"):
            await ranges.land(name)
        assert ranges.started == ["a", "late", "early"]

    run(test)


@pytest.mark.parametrize("ahead", [False, True])
def test_who_gives_up_leaves_his_place(ahead):
    async def test():
        ranges = Ranges(1, 100)
        for name in ("a", "b", "c"):
            await ranges.add(name, 10, ahead=ahead)
        await ranges.give_up("b")
        await ranges.give_up("a")
        assert ranges.started == ["a", "c"] and ranges.flight.ranges == 1
        await ranges.land("c")
        assert (ranges.flight.ranges, ranges.flight.bytes) == (0, 0)

    run(test)


def test_who_gives_up_just_as_he_may_start_frees_the_place():
    async def test():
        ranges = Ranges(1, 100)
        for name in ("a", "b", "c"):
            await ranges.add(name, 10)
        ranges._flying["a"].set()
        while ranges.started == ["a"] and ranges._tasks["a"].done() is False:
            await asyncio.sleep(0)
        await ranges.give_up("b")
        assert ranges.started[-1] == "c" and ranges.flight.ranges == 1
        await ranges.land("c")
        assert (ranges.flight.ranges, ranges.flight.bytes) == (0, 0)

    run(test)


def test_a_whole_file_counts_as_the_largest_that_came():
    async def test():
        ranges = Ranges(4, 100)
        ranges.flight.whole_file(60)
        for name in ("a", "b"):
            await ranges.add(name, -1)
        assert ranges.started == ["a"] and ranges.flight.bytes == 60
        for name in ("a", "b"):
            await ranges.land(name)
        assert ranges.flight.bytes == 0

    run(test)
