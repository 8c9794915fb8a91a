"""Pages in a real browser: nothing logged, nothing too wide, all readable in light and dark, tables that sort."""

from __future__ import annotations

import pytest

from gpuload.report import html
from tests.report.browser import CHROMIUM, DESKTOP, PHONE, look

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install the package chromium"),
]

ROWS = [["torch", "1,040 (990-1100)", "a"], ["dali", "absent", ""], ["gpuload", "98.5", "c"], ["v2", "700", "b"]]


def a_page() -> str:
    """Everything that a page can hold, with long names and many columns."""
    names = ["torch", "a-loader-with-quite-a-long-name", "gpuload"]
    bars = [html.Bar(name, 558.0 * (i + 1), 540.0, 1700.0, ours=i == 2) for i, name in enumerate(names)]
    curves = [html.Curve(name, [0.0, 2.0, 4.0 - i], [2.0, 1.0, 0.5], ours=i == 2) for i, name in enumerate(names)]
    waits = [html.Waits(name, [0.1, 0.3], [0.2, 0.4], ours=i == 2) for i, name in enumerate(names)]
    cells = [[float(i * j) for i in range(9)] for j in range(6)]
    wide = html.Table([f"column {i}" for i in range(14)], [[f"{i}" for i in range(14)]] * 2, words=[13])
    return html.page(
        "A page of everything", "a-word-that-has-no-end" * 6,
        [
            html.Section("Bars", "Text.", html.bars("images/s", bars)),
            html.Section("Curves", "", html.curves("seconds", "loss", curves, marked=3.0)),
            html.Section("Waiting", "", html.waiting("seconds", waits)),
            html.Section("Sorted", "", html.table(html.Table(["loader", "images/s", "name"], ROWS, note="A note."))),
            html.Section("Wide", "", html.table(wide)),
            html.Section("Grid", "", html.grid("depth", "threads", range(9), range(6), cells, "%", marked=(3, 2))),
            html.Section("Text", pre="x" * 300),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_page_fits_is_readable_and_logs_nothing(tmp_path, width, dark):
    seen = look(a_page(), tmp_path, width=width, dark=dark)
    assert seen.log == []
    assert seen.dark is dark
    assert seen.width <= seen.window == width
    assert len(seen.texts) > 150
    assert [(words, round(contrast, 2)) for words, contrast in seen.texts if contrast < 4.5] == []
    assert [box for box in seen.boxes if box[1] < -1 or box[2] > seen.window + 1] == []


def test_the_probe_sees_what_is_hard_to_read(tmp_path):
    pale = html.page("t", "", [html.Section("a", "b")]).replace("--ink:#1b1f24", "--ink:#999")
    assert min(contrast for _, contrast in look(pale, tmp_path).texts) < 3


def clicked(head: str, times: int) -> str:
    find = f"[...document.querySelectorAll('thead button')].find(b => b.textContent === {head!r})"
    return f"for (let i = 0; i < {times}; i++) {find}.click();"


@pytest.mark.parametrize(
    ("head", "clicks", "order"),
    [
        ("images/s", 0, ["torch", "dali", "gpuload", "v2"]),
        ("images/s", 1, ["gpuload", "v2", "torch", "dali"]),
        ("images/s", 2, ["torch", "v2", "gpuload", "dali"]),
        ("loader", 1, ["dali", "gpuload", "torch", "v2"]),
        ("name", 2, ["gpuload", "v2", "torch", "dali"]),
    ],
)
def test_a_click_on_a_head_sorts_and_what_has_no_value_stays_last(tmp_path, head, clicks, order):
    seen = look(a_page(), tmp_path, script=clicked(head, clicks))
    assert [row[0] for row in seen.columns[0]] == order
    assert seen.log == []
