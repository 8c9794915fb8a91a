from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from gpuload.report import html

VOID = {"meta", "link", "br"}
UGLY = """<b>"quoted" & 'single'</b></script><img src=x onerror=alert(1)>"""


class Strict(HTMLParser):
    """Every element closed in order; collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(text: str) -> Strict:
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def a_page() -> str:
    bars = html.bars("images/s", [html.Bar("torch", 558.0, 540.0, 580.0), html.Bar("gpuload", 1116.0, ours=True)])
    curve = html.Curve("torch", [0.0, 2.0, 4.0], [2.0, 1.0, 0.5])
    waits = [html.Waits("torch", [0.1, 0.3], [0.2, 0.4]), html.Waits("gpuload", [0.0, 0.0], [0.2, 0.4], ours=True)]
    sections = [
        html.Section("Rate & more", "a < b", bars),
        html.Section("Loss", "", html.curves("seconds", "loss", [curve], marked=2.0)),
        html.Section("Waiting", "", html.waiting("seconds", waits)),
        html.Section("Figures", "", html.table(html.Table(["loader", "x"], [["<torch>", "1"]], note="a note"))),
        html.Section("Depth", "", html.grid("depth", "threads", [1, 2], [4], [[0.5, None]], "% starved")),
        html.Section("Plan", pre="1  read\n2  decode <jpeg>"),
    ]
    return html.page("A <title>", "lead & more", sections)


def test_page_is_well_formed_and_escapes_what_it_is_given():
    page = parsed(a_page())
    text = "".join(page.text)
    for piece in ("A <title>", "lead & more", "a < b", "<torch>", "1  read\n2  decode <jpeg>", "a note"):
        assert piece in text
    assert page.tags.count("svg") == 3 + 1 + 2


def test_no_name_can_become_markup():
    bar, curve = html.Bar(UGLY, 1.0, 0.5, 2.0), html.Curve(UGLY, [0.0, 1.0], [1.0, 2.0])
    drawn = (
        html.bars(UGLY, [bar]) + html.curves(UGLY, UGLY, [curve], marked=1.0)
        + html.waiting(UGLY, [html.Waits(UGLY, [1.0], [1.0])])
        + html.table(html.Table([UGLY], [[UGLY]], note=UGLY))
        + html.grid(UGLY, UGLY, [UGLY], [UGLY], [[1.0]], UGLY, marked=(0, 0))
    )  # fmt: skip
    page = parsed(html.page(UGLY, UGLY, [html.Section(UGLY, UGLY, drawn, UGLY)]))
    assert not {"b", "img"} & set(page.tags)
    assert page.tags.count("script") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_page_needs_nothing_from_outside_and_may_not_fetch():
    text = a_page()
    page = parsed(text)
    assert not {"iframe", "img", "object"} & set(page.tags)
    fetched = [value for name, value in page.attributes if name in ("src", "href")]
    assert fetched == ["data:,"]
    assert "url(" not in text
    assert "@import" not in text
    assert ("content", html.POLICY) in page.attributes


def test_a_page_without_tables_has_no_script():
    assert parsed(a_page()).tags.count("script") == 1
    assert "script" not in parsed(html.page("t", "", [html.Section("a", "b")])).tags


def test_page_is_made_for_phones_and_for_dark_rooms():
    page = parsed(a_page())
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    assert "prefers-color-scheme:dark" in a_page()


def test_a_heat_map_has_its_numbers_where_they_belong_and_more_heat_where_there_is_more():
    text = html.grid(
        "depth", "threads", [1, 2, 8], ["one", "two"], [[40.0, 20.0, 0.0], [10.0, None, 5.0]], "%", marked=(2, 1)
    )
    rows = [re.findall(r"<t[hd][^>]*>[^<]*", row) for row in text.split("<tr>")[1:]]
    assert [[cell.partition(">")[2] for cell in row] for row in rows] == [
        ["", "1", "2", "8"],
        ["one", "40.0", "20.0", "0.0"],
        ["two", "10.0", "", "5.0"],
    ]
    heat = {m[1]: float(m[0]) for m in re.findall(r"rgba\(var\(--heat\),([\d.]+)\)\">([\d.]+)", text)}
    assert heat == {"40.0": 0.8, "20.0": 0.4, "10.0": 0.2, "5.0": 0.1, "0.0": 0.0}
    assert re.findall(r'<td class="marked"[^>]*>([^<]*)', text) == ["5.0"]
    assert 'title="depth 8, threads two: 5.0 %"' in text
    assert 'title="depth 2, threads two: not known"' in text


@pytest.mark.parametrize("cells", [[[3.0, 3.0]], [[None, float("nan")]], []])
def test_a_heat_map_without_differences_is_still_a_table(cells):
    text = html.grid("x", "y", [1, 2], ["a"][: len(cells)], cells, "ms")
    assert parsed(text).tags.count("td") == 2 * len(cells)
    assert "nan" not in text
