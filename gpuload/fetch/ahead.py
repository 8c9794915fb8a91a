"""What will be read soon, read once: neighbours that several batches of a window ask for are one request.

A block order shuffles samples within windows of blocks of neighbours: each batch of a window takes a few samples of
every block. Whoever knows the order says which samples a window has (`Window`); their ranges are read ahead, in order,
as far as `max_held_bytes` goes, and each is kept until its last row was claimed or its window is dropped. A range of
which one small sample is wanted is left to the batch that wants it: in a full shuffle those are all.

The first batch reads its samples one by one, and nothing is read ahead before they are here: it would wait for
sixteen blocks, 128 MB of ImageNet, where it wants a twentieth of that.

Owns what is held, and which rows it serves. Everything but making a Window runs on the reader's loop. A claim never
waits for room: what is not held and cannot be is read as if nobody had expected it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuload.core.refs import WHOLE_FILE
from gpuload.fetch.coalesce import coalesce
from gpuload.fetch.flight import Turn
from gpuload.fetch.limits import MIB

LONE_BYTES = MIB
"""A range with one row is read ahead from here on: then it is a part of a file and not an image."""

KEPT_BEHIND = 4
"""Windows before the newest that was claimed from: what is left of older ones is of batches that nobody made."""

Get = Callable[[str, int, int, Turn], Awaitable[np.ndarray]]
"""(url, offset, length, turn): Link.get"""


@dataclass(eq=False)
class _Range:
    url: str
    offset: int
    length: int
    rows: int
    rows_left: int
    turn: Turn = field(default_factory=lambda: Turn(waited_for=False))
    reading: asyncio.Task[np.ndarray] | None = None

    @property
    def worth_reading(self) -> bool:
        """Whether most of its rows are still to come: some may have found no room."""
        return self.rows_left > 0 and 2 * self.rows_left >= self.rows


class Window:
    """The ranges of refs, SAMPLE_REF (n,), that are worth keeping. Any thread makes one."""

    def __init__(self, files: Sequence[str], refs: np.ndarray, *, gap_bytes: int, max_range_bytes: int):
        self.files = files
        refs = refs[(refs["length"] != WHOLE_FILE) & (refs["length"] > 0)]
        plan = coalesce(refs, gap_bytes=gap_bytes, max_range_bytes=max_range_bytes)
        first, stop = plan.ranges["first"], plan.ranges["stop"]
        kept = plan.ranges[(stop - first > 1) | (plan.ranges["length"] >= LONE_BYTES)]
        self.ranges: list[_Range] = []
        self.range_of: dict[tuple[int, int, int], _Range] = {}
        for file, offset, length, _, begin, end, _ in kept.tolist():
            found = _Range(files[file], offset, length, end - begin, end - begin)
            self.ranges.append(found)
            self.range_of.update(dict.fromkeys(refs[plan.rows[begin:end]].tolist(), found))


@dataclass(frozen=True)
class Claim:
    """Rows of a batch that lie in one held range. begins: where each begins in `part`, once that is there.

    reading: the range's; its window may be dropped before the claim is received.
    """

    rows: list[int]
    begins: list[int]
    lengths: list[int]
    held: _Range
    reading: asyncio.Task[np.ndarray]


@dataclass(frozen=True)
class Claimed:
    """A claim whose bytes are here."""

    claim: Claim
    part: np.ndarray


class Ahead:
    """get: reads a range; called for one range once, whoever wants it. hurry: a batch waits for what has this turn."""

    def __init__(self, get: Get, hurry: Callable[[Turn], None], *, max_held_bytes: int):
        self._get, self._hurry, self._max_bytes = get, hurry, max_held_bytes
        self._windows: list[Window] = []
        self._waits = True
        self.held_bytes = 0

    def add(self, window: Window) -> None:
        """Begin to read it, behind the windows that were added before; the first ones when `go_on` is called."""
        self._windows.append(window)
        if not self._waits:
            self.go_on()

    def drop(self, window: Window) -> None:
        """Nothing more of it will be asked for. Idempotent."""
        if window in self._windows:
            self._windows.remove(window)
            for held in window.ranges:
                self._let_go(held)
            if not self._waits:
                self.go_on()

    def claim(self, files: Sequence[str], refs: np.ndarray) -> list[Claim]:
        """What is held, or begun now, of refs: SAMPLE_REF (n,): nothing before `go_on`. `receive` must follow."""
        claims: dict[_Range, Claim] = {}
        windows = [window for window in self._windows if window.files is files]
        newest = -1
        for row, ref in enumerate(refs.tolist()) if windows else ():
            for number, window in enumerate(windows):
                held = window.range_of.get(ref)
                if held is None:
                    continue
                newest = max(newest, number)
                if self._waits or not self._has(held):
                    held.rows_left -= 1  # this one is read by itself
                    continue
                assert held.reading is not None
                self._hurry(held.turn)
                claim = claims.setdefault(held, Claim([], [], [], held, held.reading))
                claim.rows.append(row)
                claim.begins.append(ref[1] - held.offset)
                claim.lengths.append(ref[2])
                break
        for window in windows[: max(0, newest - KEPT_BEHIND)]:
            self.drop(window)
        return list(claims.values())

    async def receive(self, claim: Claim) -> Claimed | None:
        """Its bytes; None where the range could not be read whole, and each row must be read by itself."""
        held = claim.held
        try:
            part = await asyncio.shield(claim.reading)
        except (Exception, asyncio.CancelledError):
            current = asyncio.current_task()
            if not claim.reading.done() or (current is not None and getattr(current, "cancelling", int)()):
                raise  # it is this batch that nobody wants any more
            part = np.empty(0, np.uint8)
        whole = len(part) == held.length
        held.rows_left -= len(claim.rows) if whole else held.rows_left
        if held.rows_left <= 0:
            self._let_go(held)
            self._windows = [window for window in self._windows if any(r.rows_left > 0 for r in window.ranges)]
            self.go_on()
        return Claimed(claim, part) if whole else None

    def _has(self, held: _Range) -> bool:
        """Whether it is held, or can be."""
        if held.reading is None and held.worth_reading and self.held_bytes + held.length <= self._max_bytes:
            self._begin(held)
        return held.reading is not None

    def go_on(self) -> None:
        """Read ahead as far as there is room: the first batch is here."""
        self._waits = False
        for window in self._windows:
            for held in window.ranges:
                if held.reading is None and held.worth_reading:
                    if self.held_bytes + held.length > self._max_bytes:
                        return
                    self._begin(held)

    def _begin(self, held: _Range) -> None:
        self.held_bytes += held.length
        held.reading = asyncio.ensure_future(self._get(held.url, held.offset, held.length, held.turn))
        held.reading.add_done_callback(_heard)

    def _let_go(self, held: _Range) -> None:
        reading, held.reading, held.rows_left = held.reading, None, 0
        if reading is not None:
            reading.cancel()
            self.held_bytes -= held.length


def _heard(reading: asyncio.Task[np.ndarray]) -> None:
    """A range that nobody came for may fail without asyncio's complaint."""
    if not reading.cancelled():
        reading.exception()
