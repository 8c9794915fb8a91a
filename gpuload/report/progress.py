"""The one live line that `progress=True` shows while an epoch runs.

Owns when it is drawn (on a terminal at most five times a second; elsewhere once, at the end) and that a
line never wraps or breaks a terminal that lacks UTF-8. The numbers are the loader's.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from gpuload.core.wording import percent, rate

if TYPE_CHECKING:
    from gpuload.engine.stats import Stats

INTERVAL_S = 0.2
"""Five times a second reads as live; drawing costs ~20 us, so it stays below 0.01% of the consumer's time."""


class ProgressLine:
    """One line about the running epoch, redrawn in place; called from the consumer's thread.

    total_batches: length of the epoch, None where unknown. stream: where to draw, usually sys.stderr.
    clock: seconds, monotonic.
    """

    def __init__(
        self, total_batches: int | None, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_batches = total_batches
        self._stream = stream
        self._clock = clock
        self._live = bool(getattr(stream, "isatty", lambda: False)())
        self._drawn_s = -INTERVAL_S
        self._width = 0
        self._last: Stats | None = None
        self._closed = False

    def update(self, stats: Stats) -> None:
        """Shows `stats`, unless the line was drawn less than INTERVAL_S ago or the stream is no terminal."""
        self._last = stats
        now_s = self._clock()
        if self._live and not self._closed and now_s - self._drawn_s >= INTERVAL_S:
            self._drawn_s = now_s
            self._draw(stats, end="")

    def close(self) -> None:
        """Draws the last state once more and ends the line. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._last is not None:
            self._draw(self._last, end="\n")

    def _draw(self, stats: Stats, *, end: str) -> None:
        text = progress_text(stats, self._total_batches)
        if self._live:
            text = text[: max(1, shutil.get_terminal_size((100, 24)).columns - 1)]
            padded = text.ljust(self._width)  # wipes what a longer line left behind
            self._width = len(text)
            text = "\r" + padded
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding) + end)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone or the stream was closed: training goes on without a line
            self._live, self._closed = False, True


def progress_text(stats: Stats, total_batches: int | None) -> str:
    """The line's text: `gpuload  batch 120/5005  1843 img/s  starved 0.4%  ready 4  errors 0`."""
    of = "" if total_batches is None else f"/{total_batches}"
    return (
        f"gpuload  batch {stats.batches}{of}  {rate(stats.images_per_s)} img/s  starved {percent(stats.starved)}  "
        f"ready {stats.ready}  errors {sum(stats.errors.values())}"
    )
