"""The full view on a small emulator of a terminal: what it shows, and that it spoils nothing that others print."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuload.engine.stats import Quantiles, StageStats, Stats
from gpuload.report.live import DRAW_EVERY_S, LiveView, live_view, rates, sparkline
from gpuload.report.progress import ProgressLine

STATS = Stats(
    path="accelerated",
    elapsed_s=10.0,
    images=5000,
    batches=100,
    images_per_s=500.0,
    first_batch_s=0.1,
    consumer_wait_s=3.1,
    starved=0.31,
    wait_s=Quantiles(0.001, 0.01, 0.05, 0.06),
    step_s=Quantiles(0.03, 0.03, 0.04, 0.05),
    ready=1,
    ready_empty=0.6,
    cpu_s=18.0,
    cpus=4,
    stages=(
        StageStats("fetch", 2, 5000, 5.0, 14.0, 10**8, 100, 1.0, 20.0, 0.05, 0.06, 0.07, 3.0, 0.1),
        StageStats("decode", 2, 5000, 19.0, 1.0, 10**8, 600, 18.0, 20.0, 0.005, 0.006, 0.01, 13.2, 0.1),
        StageStats("finish", 0, 5000, 0.2, 0.0, 0, 100, 0.2, 0.0, 0.002, 0.002, 0.003),
    ),
)


class Screen(io.StringIO):
    """A terminal of so many columns and lines that knows what the view and a script write to it."""

    def __init__(self, columns: int = 100, lines: int = 30, encoding: str = "utf-8"):
        super().__init__()
        self.columns, self.lines, self._encoding = columns, lines, encoding
        self.rows = [""] * lines
        self.scrolled: list[str] = []
        self.row = self.column = 0
        self.saved = (0, 0)
        self.colours: set[str] = set()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for token in re.findall(r"\x1bD|\x1b7|\x1b8|\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            self._take(token)
        return len(text)

    def _take(self, token: str) -> None:
        if token == "\x1bD":
            self._down()
        elif token == "\n":  # as a terminal driver passes it on
            self.column = 0
            self._down()
        elif token == "\r":
            self.column = 0
        elif token == "\x1b7":
            self.saved = (self.row, self.column)
        elif token == "\x1b8":
            self.row, self.column = self.saved
        elif token == "\x1b[J":
            self.rows[self.row] = self.rows[self.row][: self.column]
            self.rows[self.row + 1 :] = [""] * (self.lines - self.row - 1)
        elif token.startswith("\x1b"):
            assert token[-1] in "Am", f"a sequence that changes more than text: {token!r}"
            if token[-1] == "A":
                self.row = max(0, self.row - int(token[2:-1]))
            else:
                self.colours.add(token)
        else:
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + token + row[self.column + len(token) :]
            self.column += len(token)
            assert self.column < self.columns, f"wraps: {token!r}"

    def _down(self) -> None:
        if self.row == self.lines - 1:
            self.scrolled.append(self.rows.pop(0))
            self.rows.append("")
        else:
            self.row += 1

    def text(self) -> list[str]:
        """All that was ever shown, from the top of the scrollback; without the empty rows below."""
        return "\n".join([*self.scrolled, *self.rows]).rstrip("\n").split("\n")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    _size(monkeypatch, 100, 30)
    monkeypatch.setenv("TERM", "xterm-256color")


def _size(monkeypatch: pytest.MonkeyPatch, columns: int, lines: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))


class Run:
    """A view on a screen, and an epoch's snapshots, one a drawing."""

    def __init__(self, screen: Screen):
        self.screen, self.number = screen, 0
        self.view = LiveView(500, screen, clock=lambda: self.number * DRAW_EVERY_S)
        assert isinstance(live_view(500, screen), LiveView)

    def draw(self, **more: object) -> None:
        self.number += 1
        past = {"elapsed_s": 10.0 + self.number, "images": 5000 + 400 * self.number, "batches": 100 + self.number}
        self.view.update(replace(STATS, **{**past, **more}))


def test_the_view_says_what_the_snapshot_says():
    run = Run(Screen())
    run.draw()
    run.draw(gpu_utilisation=0.9)
    shown = "\n".join(run.screen.text())
    assert "gpuload  batch 102/500  500 img/s  starved 31%  ready 1  errors 0" in shown
    assert re.search(r"fetch +2 .* 3\.0 +50 ms +70 ms +100\.0 MB", shown)
    assert "wait p99 50 ms   step p50 30 ms" in shown and "GPU busy 90%" in shown
    verdict = replace(STATS, elapsed_s=12.0).verdict
    assert f"{verdict.sentence} {verdict.advice}" in " ".join(shown.split())  # they may take several lines
    assert "400, most 400" in shown  # images/s between the last two
    assert run.screen.colours


def test_bars_are_of_the_last_seconds():
    run = Run(Screen())
    stages = (replace(STATS.stages[0], busy_s=5.0 + 0.8, thread_s=22.0), *STATS.stages[1:])
    run.draw()
    run.draw(stages=stages, consumer_wait_s=3.1 + 0.25)  # in one second 2 threads were busy for 0.8 of their 2
    shown = run.screen.text()
    (fetch,) = [line for line in shown if line.startswith("fetch")]
    (waits,) = [line for line in shown if line.startswith("training waits ")]
    assert "40%" in fetch and "######.........." in fetch
    assert "####............   25%" in waits


@pytest.mark.parametrize("lines", [20, 60])
def test_what_the_script_prints_stays_and_the_view_moves_down(lines: int, monkeypatch: pytest.MonkeyPatch):
    _size(monkeypatch, 100, lines)
    run, printed = Run(Screen(lines=lines)), []
    for number in range(30):
        run.draw()
        line = f"epoch 0, step {number}: the loss of this step is {number / 7:.6f}, and the rate {number}"
        printed.append(line)
        run.screen.write(line + "\n")
    run.screen.write("an unfinished line: ")
    run.draw()
    run.screen.write("now finished\n")
    run.draw()
    run.view.close()
    run.view.close()
    shown = run.screen.text()
    assert shown[:30] == printed and shown[30] == "an unfinished line: now finished"
    assert [line.startswith("gpuload  batch 132/500") for line in shown].count(True) == 1
    assert len([line for line in shown if line.startswith("stage ")]) == 1  # no copy was left anywhere
    run.screen.write("after\n")
    assert run.screen.text()[-1] == "after" and len(run.screen.text()) == len(shown) + 1


def test_a_bar_that_others_redraw_in_place_goes_on():
    run = Run(Screen())
    for number in range(5):
        run.screen.write(f"\rtheirs {number}/5")
        run.draw()
    assert run.screen.text()[0] == "theirs 4/5" and (run.screen.row, run.screen.column) == (0, 10)


@pytest.mark.parametrize(("columns", "lines"), [(79, 40), (100, 19), (30, 10)])
def test_a_small_terminal_gets_the_plain_line(columns: int, lines: int, monkeypatch: pytest.MonkeyPatch):
    _size(monkeypatch, columns, lines)
    assert isinstance(live_view(None, Screen(columns, lines)), ProgressLine)


@pytest.mark.parametrize("term", ["", "dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_the_plain_line(term: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", term)
    assert isinstance(live_view(None, Screen()), ProgressLine)


def test_elsewhere_than_on_a_terminal_there_is_one_line_at_the_end():
    stream = io.StringIO()
    view = live_view(500, stream)
    view.update(STATS)
    assert stream.getvalue() == ""
    view.close()
    assert stream.getvalue().count("\n") == 1 and "\x1b" not in stream.getvalue()


def test_without_colours_and_unicode_it_says_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    run = Run(Screen(encoding="ascii"))
    for number in range(20):
        run.draw(images=5000 + 100 * number * number)
    shown = "\n".join(run.screen.text())
    assert shown.isascii() and "?" not in shown and "#" in shown
    assert not {colour for colour in run.screen.colours if re.search(r"\[3\d|;3\d", colour)}


@pytest.mark.parametrize("columns", [80, 81, 200])
def test_no_line_is_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch):
    _size(monkeypatch, columns, 30)
    run = Run(Screen(columns))  # it fails on what would wrap
    big = replace(STATS.stages[0], name="fetch", threads=1000, queue=1e6, p50_s=1000.0, p99_s=1e4, bytes=10**15)
    for _ in range(70):
        run.draw(stages=(big, *STATS.stages[1:]))
    run.view.close()


def test_a_terminal_that_is_gone_does_not_end_the_training():
    screen = Screen()
    run = Run(screen)
    run.draw()
    screen.write = _broken  # type: ignore[assignment]
    run.draw()
    run.draw()
    run.view.close()


def _broken(text: str) -> int:
    raise OSError(5, os.strerror(5))


def test_rates_are_differences():
    points = ((0.0, 0), (1.0, 10), (1.0, 12), (3.0, 50))
    assert rates([Stats("torch", elapsed_s=at, images=images) for at, images in points]) == [10, 19]


@pytest.mark.parametrize(
    ("values", "columns", "curve"),
    [([0, 1, 2, 4], 8, "0124"), ([4, 4, 0, 0, 2, 2], 3, "402"), ([], 5, ""), ([0, 0], 5, "00"), ([3], 5, "4")],
)
def test_sparklines(values: Sequence[float], columns: int, curve: str):
    assert sparkline(values, columns, "01234") == curve
