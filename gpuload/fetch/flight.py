"""What may be in flight at once, so many ranges and so many bytes, and who starts next.

Owns the queue before the link: what a batch waits for starts in the order in which it was asked for, what is read
ahead starts behind all of that. Runs on the reader's loop; pure but for the futures that it settles.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

AHEAD_RANGES, AHEAD_BYTES = 1 / 2, 2 / 3
"""The shares of the limits that reading ahead may take: a batch that comes finds room at once."""


@dataclass(eq=False)
class Turn:
    """A range's place in the queue. waited_for: by a batch; else it is read ahead. Of one request."""

    waited_for: bool = True
    length: int = 0
    size: int = 0  # what it counts as, once it flies
    start: asyncio.Future[None] | None = None


class Flight:
    """At most `max_ranges` of `max_bytes` together; a range larger than that flies alone.

    A whole file's length (-1) is not known before it is here, and asking costs a round trip: it counts as the largest
    that came so far, and as its share of the limits at least.
    """

    def __init__(self, max_ranges: int, max_bytes: int):
        self._max_ranges, self._max_bytes = max_ranges, max_bytes
        self._largest = max(1, max_bytes // max_ranges)
        self._wanted: deque[Turn] = deque()
        self._ahead: deque[Turn] = deque()
        self.ranges = self.bytes = 0

    @asynccontextmanager
    async def of(self, length: int, turn: Turn) -> AsyncIterator[None]:
        """Entered when the range may start."""
        turn.length = length
        await self._start(turn)
        try:
            yield
        finally:
            self._end(turn)

    def hurry(self, turn: Turn) -> None:
        """A batch waits for it now."""
        if not turn.waited_for:
            turn.waited_for = True
            if turn in self._ahead:
                self._ahead.remove(turn)
                self._wanted.append(turn)
                self._admit()

    def whole_file(self, n_bytes: int) -> None:
        """A whole file came: the next ones may be as large."""
        self._largest = max(self._largest, n_bytes)

    async def _start(self, turn: Turn) -> None:
        turn.start = asyncio.get_running_loop().create_future()
        (self._wanted if turn.waited_for else self._ahead).append(turn)
        self._admit()
        try:
            await turn.start
        except asyncio.CancelledError:
            if turn.size:
                self._end(turn)
            else:
                (self._wanted if turn.waited_for else self._ahead).remove(turn)
                self._admit()
            raise

    def _end(self, turn: Turn) -> None:
        self.ranges -= 1
        self.bytes -= turn.size
        self._admit()

    def _admit(self) -> None:
        while self._wanted and self._fits(self._wanted[0], self._max_ranges, self._max_bytes):
            self._let_go(self._wanted.popleft())
        most_ranges, most_bytes = max(1, int(self._max_ranges * AHEAD_RANGES)), int(self._max_bytes * AHEAD_BYTES)
        while self._ahead and not self._wanted and self._fits(self._ahead[0], most_ranges, most_bytes):
            self._let_go(self._ahead.popleft())

    def _size(self, turn: Turn) -> int:
        return max(1, min(turn.length if turn.length >= 0 else self._largest, self._max_bytes))

    def _fits(self, turn: Turn, most_ranges: int, most_bytes: int) -> bool:
        return not self.ranges or (self.ranges < most_ranges and self.bytes + self._size(turn) <= most_bytes)

    def _let_go(self, turn: Turn) -> None:
        turn.size = self._size(turn)
        self.ranges += 1
        self.bytes += turn.size
        assert turn.start is not None
        if not turn.start.done():
            turn.start.set_result(None)
