from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from gpuload.report import html

VOID = {"meta", "link", "br"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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


def svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text[text.index("<svg") :])


BARS = html.bars(
    "images/s", [html.Bar("torch", 558.0, 540.0, 580.0), html.Bar("gpuload", 1116.0, 1100.0, 1160.0, ours=True)]
)
CURVES = html.curves(
    "seconds",
    "loss",
    [html.Curve("torch", [0.0, 2.0, 4.0], [2.0, 1.0, 0.5]), html.Curve("gpuload", [0.0, 1.0], [2.0, 0.5], ours=True)],
)
WAITS = html.waiting(
    "seconds", [html.Waits("torch", [0.1, 0.3], [0.2, 0.4]), html.Waits("gpuload", [0.0, 0.0], [0.2, 0.4], ours=True)]
)


def test_bars_are_as_long_as_their_values():
    rects = svg(BARS).findall("rect")
    assert [rect.get("width") for rect in rects] == ["48.10%", "96.21%"]  # of the highest value of all ranges, 1160
    assert [rect.get("class") for rect in rects] == ["other", "ours"]
    ranges = svg(BARS).findall("line")
    assert [(line.get("x1"), line.get("x2")) for line in ranges] == [("46.55%", "50.00%"), ("94.83%", "100.00%")]
    assert "1116 images/s (1100 to 1160)" in "".join(svg(BARS).itertext())


def test_bars_of_nothing_or_of_zeros_are_still_a_drawing():
    assert svg(html.bars("s", [])).findall("rect") == []
    assert svg(html.bars("s", [html.Bar("a", 0.0)])).find("rect").get("width") == "0.00%"


def test_curves_lie_where_their_values_are():
    drawing = svg(CURVES)
    nested = drawing.find("svg")
    points = [line.get("points").split() for line in nested.findall("polyline")]
    assert points == [["0.0,0.0", "500.0,500.0", "1000.0,750.0"], ["0.0,0.0", "250.0,750.0"]]  # x to 4, y to 2
    words = "".join(drawing.itertext())
    assert "2 loss" in words
    assert "seconds" in words
    assert words.count("gpuload") == 1


def test_names_of_curves_that_end_together_do_not_collide():
    ends = [text for text in svg(CURVES).findall("text") if "halo" in (text.get("class") or "")]
    first, second = (float(text.get("y") or "nan") for text in ends)
    assert abs(first - second) >= 16


def test_waiting_draws_waits_and_steps_end_to_end():
    first, second = svg(WAITS).findall("svg")
    boxes = [(rect.get("class"), float(rect.get("x")), float(rect.get("width"))) for rect in first.findall("rect")]
    assert boxes == [("wait", 0.0, 0.1), ("work", 0.1, 0.2), ("wait", 0.3, 0.3), ("work", 0.6, 0.4)]
    assert first.get("viewBox") == second.get("viewBox") == "0 0 1.0000 1"  # one time axis for both
    assert "waits 40.0% of 1.0 s" in "".join(svg(WAITS).itertext())
    assert "waits 0.0% of 0.6 s" in "".join(svg(WAITS).itertext())


@pytest.mark.parametrize("top", [0.003, 0.7, 1.0, 3.0, 7.3, 10.0, 44.9, 100.0, 12345.0])
def test_ticks_are_few_even_and_reach_the_top(top):
    ticks = html._ticks(top)
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-2] < top <= ticks[-1] * (1 + 1e-9)
    steps = [b - a for a, b in zip(ticks, ticks[1:], strict=False)]
    assert max(steps) - min(steps) < 1e-6 * ticks[-1]


@pytest.mark.parametrize("top", [0.0, float("nan"), float("inf")])
def test_ticks_of_nonsense_are_zero_to_one(top):
    assert html._ticks(top) == [0.0, 1.0]


def a_page() -> str:
    sections = [
        html.Section("Rate & more", "a < b", BARS),
        html.Section("Loss", "", CURVES),
        html.Section("Waiting", "", WAITS),
        html.Section("Figures", "", html.table(html.Table(["loader", "x"], [["<torch>", "1"]], note="a note"))),
        html.Section("Plan", pre="1  read\n2  decode <jpeg>"),
    ]
    return html.page("A <title>", "lead & more", sections)


def test_page_is_well_formed_and_escapes_what_it_is_given():
    page = parsed(a_page())
    text = "".join(page.text)
    for piece in ("A <title>", "lead & more", "a < b", "<torch>", "1  read\n2  decode <jpeg>", "a note"):
        assert piece in text
    assert page.tags.count("svg") == 3 + 1 + 2


def test_page_needs_nothing_from_outside_and_runs_no_script():
    page = parsed(a_page())
    assert not {"script", "iframe", "img", "object"} & set(page.tags)
    fetched = [value for name, value in page.attributes if name in ("src", "href")]
    assert fetched == ["data:,"]
    assert "url(" not in a_page()
    assert "@import" not in a_page()
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_page_is_made_for_phones_and_for_dark_rooms():
    page = parsed(a_page())
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    assert "prefers-color-scheme:dark" in a_page()


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install the package chromium")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_lays_the_page_out_without_a_complaint(tmp_path, width):
    page = tmp_path / "page.html"
    probe = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    page.write_text(a_page().replace("</body>", probe), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    laid_out, _, window = done.stdout[done.stdout.index("<title>") + 7 : done.stdout.index("</title>")].partition(
        " of "
    )
    assert int(laid_out) <= int(window)
