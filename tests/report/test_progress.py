from __future__ import annotations

import io
import os
import pty
from dataclasses import replace

import pytest

from gpuload.engine.stats import Stats
from gpuload.report.progress import ProgressLine, progress_text

STATS = Stats(path="accelerated", batches=120, images_per_s=1843.2, starved=0.004, ready=4)
LINE = "gpuload  batch 120/5005  1843 img/s  starved 0.4%  ready 4  errors 0"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_the_line():
    assert progress_text(STATS, 5005) == LINE
    assert progress_text(replace(STATS, errors={"OSError": 2, "KeyError": 1}), None).endswith("errors 3")
    assert "batch 120  " in progress_text(STATS, None)


def test_elsewhere_than_on_a_terminal_only_the_last_line_is_written():
    stream = io.StringIO()
    line = ProgressLine(5005, stream)
    for batch in range(5):
        line.update(replace(STATS, batches=batch))
    assert stream.getvalue() == ""
    line.update(STATS)
    line.close()
    line.close()
    assert stream.getvalue() == LINE + "\n"


def test_nothing_is_written_when_nothing_happened():
    stream = io.StringIO()
    ProgressLine(10, stream).close()
    assert stream.getvalue() == ""


def test_a_terminal_is_redrawn_at_most_five_times_a_second():
    stream, clock = Terminal(), Clock()
    line = ProgressLine(5005, stream, clock=clock)
    for tick in range(100):  # 100 updates in one second
        clock.now_s = tick / 100
        line.update(STATS)
    assert stream.getvalue().count("\r") == 5
    line.close()
    assert stream.getvalue().endswith(LINE + "\n")


def test_a_shorter_line_wipes_what_the_longer_one_left(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream, clock = Terminal(), Clock()
    line = ProgressLine(None, stream, clock=clock)
    line.update(replace(STATS, batches=123456789))
    clock.now_s = 1.0
    line.update(replace(STATS, batches=1))
    first, second = stream.getvalue().split("\r")[1:]
    assert len(second) == len(first)
    assert second.rstrip() == progress_text(replace(STATS, batches=1), None)


def test_the_line_never_wraps_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    line = ProgressLine(5005, stream)
    line.update(STATS)
    assert stream.getvalue() == "\r" + LINE[:29]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_stream_will_do(encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    line = ProgressLine(5005, stream)
    line.update(STATS)
    line.close()
    stream.seek(0)
    assert stream.read() == LINE + "\n"


def test_a_closed_stream_does_not_end_the_training():
    stream = io.StringIO()
    line = ProgressLine(5005, stream)
    line.update(STATS)
    stream.close()
    line.close()
    line.update(STATS)


def test_on_a_real_terminal():
    control, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        line = ProgressLine(5005, stream)
        line.update(STATS)
        line.close()
        drawn = b""
        while not drawn.endswith(b"\n"):  # a terminal hands on what it has, perhaps in two parts
            drawn += os.read(control, 10_000)
    os.close(control)
    assert drawn.decode() == f"\r{LINE}\r{LINE}\r\n"
