from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gpuload.report import charts


def svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text[text.index("<svg") :])


BARS = charts.bars(
    "images/s", [charts.Bar("torch", 558.0, 540.0, 580.0), charts.Bar("gpuload", 1116.0, 1100.0, 1160.0, ours=True)]
)
CURVES = charts.curves(
    "seconds",
    "loss",
    [
        charts.Curve("torch", [0.0, 2.0, 4.0], [2.0, 1.0, 0.5]),
        charts.Curve("gpuload", [0.0, 1.0], [2.0, 0.5], ours=True),
    ],
)
WAITS = charts.waiting(
    "seconds",
    [charts.Waits("torch", [0.1, 0.3], [0.2, 0.4]), charts.Waits("gpuload", [0.0, 0.0], [0.2, 0.4], ours=True)],
)


def test_bars_are_as_long_as_their_values():
    rects = svg(BARS).findall("rect")
    assert [rect.get("width") for rect in rects] == ["48.10%", "96.21%"]  # of the highest value of all ranges, 1160
    assert [rect.get("class") for rect in rects] == ["other", "ours"]
    ranges = svg(BARS).findall("line")
    assert [(line.get("x1"), line.get("x2")) for line in ranges] == [("46.55%", "50.00%"), ("94.83%", "100.00%")]
    assert "1116 images/s (1100 to 1160)" in "".join(svg(BARS).itertext())


def test_bars_of_nothing_or_of_zeros_are_still_a_drawing():
    assert svg(charts.bars("s", [])).findall("rect") == []
    assert svg(charts.bars("s", [charts.Bar("a", 0.0)])).find("rect").get("width") == "0.00%"


def test_curves_lie_where_their_values_are():
    drawing = svg(CURVES)
    nested = drawing.find("svg")
    points = [line.get("points").split() for line in nested.findall("polyline")]
    assert points == [["0.0,0.0", "500.0,500.0", "1000.0,750.0"], ["0.0,0.0", "250.0,750.0"]]  # x to 4, y to 2
    words = "".join(drawing.itertext())
    assert "2 loss" in words
    assert "seconds" in words
    assert [text.text for text in drawing.findall("text") if "halo" in text.get("class", "")] == ["torch", "gpuload"]


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
    ticks = charts._ticks(top)
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-2] < top <= ticks[-1] * (1 + 1e-9)
    steps = [b - a for a, b in zip(ticks, ticks[1:], strict=False)]
    assert max(steps) - min(steps) < 1e-6 * ticks[-1]


@pytest.mark.parametrize("top", [0.0, float("nan"), float("inf")])
def test_ticks_of_nonsense_are_zero_to_one(top):
    assert charts._ticks(top) == [0.0, 1.0]


# What marks say when they are pointed at


def said(drawing: ElementTree.Element) -> list[str]:
    return [title.text or "" for title in drawing.iter("title")]


def test_every_bar_says_its_numbers_and_escapes_its_name():
    assert said(svg(BARS)) == ["torch: 558 images/s (540 to 580)", "gpuload: 1116 images/s (1100 to 1160)"]
    assert said(svg(charts.bars("s", [charts.Bar("<a> & b", 2.0)], digits=1))) == ["<a> & b: 2.0 s"]


def test_every_point_of_a_curve_says_where_it_is_and_lies_there():
    drawing = svg(CURVES)
    hits = [circle for circle in drawing.findall("circle") if circle.get("class") == "hit"]
    assert said(drawing) == [
        *("torch: 2 loss at 0 seconds", "torch: 1 loss at 2 seconds", "torch: 0.5 loss at 4 seconds"),
        *("gpuload: 2 loss at 0 seconds", "gpuload: 0.5 loss at 1 seconds"),
    ]
    assert [hit.get("cx") for hit in hits] == ["0.00%", "50.00%", "100.00%", "0.00%", "25.00%"]


def test_a_long_curve_can_be_pointed_at_in_a_few_places_to_its_end():
    xs = [float(x) for x in range(1000)]
    words = said(svg(charts.curves("s", "loss", [charts.Curve("a", xs, xs)])))
    assert len(words) == charts.HOVER_POINTS
    assert words[0].endswith("at 0 s") and words[-1].endswith("at 999 s")


def test_a_marked_x_is_an_upright_line_even_beyond_the_curves():
    (mark,) = (
        line
        for line in svg(charts.curves("depth", "%", [charts.Curve("a", [0.0, 1.0], [1.0, 2.0])], marked=4.0)).findall(
            "line"
        )
        if line.get("class") == "mark"
    )
    assert (mark.get("x1"), mark.get("x2")) == ("100.00%", "100.00%")
    assert said(mark) == ["4 depth"]


def test_every_wait_and_step_says_how_long_it_was():
    assert said(svg(WAITS))[:4] == [
        "step 1: waited 100 ms",
        "step 1: at work 200 ms",
        "step 2: waited 300 ms",
        "step 2: at work 400 ms",
    ]
