"""The view that `progress="full"` draws below the cursor while an epoch runs: stages, queues, waits, rate, verdict.

Owns what it shows and how it shares a terminal with what the script itself prints: after each drawing the cursor is
back where it was, so that prints, other progress bars and tracebacks go on there, and the view moves down. Nothing of
the terminal's state is changed, so there is nothing to restore when the process dies. Where a terminal can't do that,
or there is none, `live_view` gives the plain line of `progress.py`.
"""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gpuload.core.wording import percent, rate, size
from gpuload.engine.stats import Stats, gpu_text, milliseconds
from gpuload.report.progress import ProgressLine, progress_text

DRAW_EVERY_S = 1.0
"""Drawing takes 3 ms of the consumer's time: 0.3%."""

MINUTE_S, RECENT_S = 60.0, 5.0
"""Rates are shown over the last minute, bars over the last seconds: what is now, without flicker."""

LEAST_COLUMNS, LEAST_LINES = 80, 20
"""The table is 75 columns wide, and the view 13 lines high."""

_BAR, _CURVE = 16, 48
_BLOCKS, _ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " ..::--=#"

_INDEX, _UP, _SAVE, _RESTORE, _ERASE_BELOW = "\x1bD", "\x1b[{}A", "\x1b7", "\x1b8", "\x1b[J"
"""One line down, scrolling if need be, in the same column; DEC's and ECMA-48's, which every emulator has."""


def live_view(
    total_batches: int | None, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
) -> LiveView | ProgressLine:
    """The full view if `stream` is a terminal that can show it, else the plain line."""
    if _can_draw(stream):
        return LiveView(total_batches, stream, clock=clock)
    return ProgressLine(total_batches, stream, clock=clock)


def _can_draw(stream: TextIO) -> bool:
    if not getattr(stream, "isatty", lambda: False)() or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return False
    columns, lines = Console(file=stream).size
    return columns >= LEAST_COLUMNS and lines >= LEAST_LINES


class LiveView:
    """Redrawn below the cursor; called from the consumer's thread. total_batches: None where unknown."""

    def __init__(self, total_batches: int | None, stream: TextIO, *, clock: Callable[[], float] = time.monotonic):
        self._total_batches, self._stream, self._clock = total_batches, stream, clock
        self._console = Console(file=stream)  # knows the terminal's size and colours
        self._drawn_s = -DRAW_EVERY_S
        self._seen: deque[Stats] = deque()
        self._last: Stats | None = None
        self._closed = False

    def update(self, stats: Stats) -> None:
        """Shows `stats`, unless the last drawing was less than DRAW_EVERY_S ago."""
        self._last, now_s = stats, self._clock()
        if self._closed or now_s - self._drawn_s < DRAW_EVERY_S:
            return
        self._drawn_s = now_s
        self._remember(stats)
        lines = self._lines(stats)
        text = _INDEX * len(lines) + _UP.format(len(lines)) + _SAVE + _ERASE_BELOW
        self._write(text + "".join("\r\n" + line for line in lines) + _RESTORE)

    def close(self) -> None:
        """Erases the view and leaves its last state as text. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._last is not None:
            self._remember(self._last)
            self._write(_ERASE_BELOW + "\r\n".join(["", *self._lines(self._last), ""]))

    def _remember(self, stats: Stats) -> None:
        self._seen.append(stats)
        while stats.elapsed_s - self._seen[0].elapsed_s > MINUTE_S:
            self._seen.popleft()

    def _lines(self, stats: Stats) -> list[str]:
        """What is drawn, as text with the terminal's colours, no line wider than it."""
        recent = next(s for s in self._seen if stats.elapsed_s - s.elapsed_s <= RECENT_S)
        before = recent if recent.elapsed_s < stats.elapsed_s else None
        plain = not _encodable(_BLOCKS, self._stream)
        parts = content(stats, before, self._total_batches, rates(self._seen), plain=plain)
        columns, lines = self._console.size
        drawn = io.StringIO()  # not the stream: rich would write to it by itself, and raise where it is gone
        Console(
            file=drawn,
            width=columns - 1,  # the last column would wrap on some terminals
            force_terminal=True,
            color_system=self._console.color_system,  # type: ignore[arg-type]  # one of its own names, or None
            highlight=False,
        ).print(parts)
        return drawn.getvalue().splitlines()[: lines - 2]

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone or the stream was closed: training goes on without a view
            self._closed = True


def _encodable(text: str, stream: TextIO) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def rates(seen: Sequence[Stats]) -> list[float]:
    """Images a second between each two snapshots."""
    pairs = list(zip(list(seen)[:-1], list(seen)[1:], strict=True))
    return [
        (new.images - old.images) / (new.elapsed_s - old.elapsed_s)
        for old, new in pairs
        if new.elapsed_s > old.elapsed_s
    ]


def content(
    stats: Stats, before: Stats | None, total_batches: int | None, past: Sequence[float], *, plain: bool = False
) -> Group:
    """The view as rich draws it. before: an earlier snapshot of the epoch, since which shares are taken; None: its
    start. past: images/s over the last minute. plain: ASCII alone.
    """
    verdict = stats.verdict
    parts: list[Text | Table] = [Text(progress_text(stats, total_batches), style="bold", no_wrap=True)]
    if stats.stages:
        parts.append(_stages(stats, before or Stats("")))
    start = before or Stats("")
    waits = _share(stats.consumer_wait_s - start.consumer_wait_s, stats.elapsed_s - start.elapsed_s)
    line = Text.assemble("training waits ", _bar(waits, "yellow"), f" {percent(waits):>5}")
    if stats.wait_s is not None and stats.step_s is not None:
        line.append(f"   wait p99 {milliseconds(stats.wait_s.p99)}   step p50 {milliseconds(stats.step_s.p50)}")
    parts.append(line)
    if past:
        curve = sparkline(past[-2 * _CURVE :], _CURVE, _ASCII_BLOCKS if plain else _BLOCKS)
        parts.append(Text.assemble("images/s ", (curve, "cyan"), f" {rate(past[-1])}, most {rate(max(past))}"))
    if gpu := gpu_text(stats):
        parts.append(Text(gpu))
    parts.append(Text(verdict.sentence, style="green" if verdict.limit == "step" else ""))
    if verdict.advice:
        parts.append(Text(verdict.advice, style="dim"))
    return Group(*parts)


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s)) if whole_s > 0 else 0.0


def _stages(stats: Stats, before: Stats) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("stage")
    for title in ("threads", "busy"):
        table.add_column(title, justify="right")
    table.add_column("")
    for title in ("queue", "task p50", "p99", "read"):
        table.add_column(title, justify="right")
    for stage in stats.stages:
        share, bar = "", Text("")
        if stage.threads:
            then = before.stage(stage.name)
            busy = _share(stage.busy_s - then.busy_s, stage.thread_s - then.thread_s)
            share, bar = percent(busy), _bar(busy, "green")
        table.add_row(
            stage.name,
            str(stage.threads) if stage.threads else "",
            share,
            bar,
            f"{stage.queue:.1f}",
            milliseconds(stage.p50_s) if stage.tasks else "",
            milliseconds(stage.p99_s) if stage.tasks else "",
            size(stage.bytes) if stage.bytes else "",
        )
    return table


def _bar(share: float, style: str) -> Text:
    """At work: #, waiting: dots. ASCII, so that it says the same without colours and Unicode."""
    full = round(_BAR * share)
    return Text.assemble(("#" * full, style), ("." * (_BAR - full), "dim"))


def sparkline(values: Sequence[float], columns: int, blocks: str) -> str:
    """`values` as a curve of at most so many characters: means of equal parts, from zero to the highest."""
    parts = min(columns, len(values)) or 1
    cuts = [round(part * len(values) / parts) for part in range(parts + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(cuts[:-1], cuts[1:], strict=True) if a < b]
    most = max(means, default=0.0) or 1.0
    return "".join(blocks[round((len(blocks) - 1) * mean / most)] for mean in means)
