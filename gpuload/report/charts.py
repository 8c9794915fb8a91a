"""Charts as inline SVG: `bars`, `curves`, `waiting`; every mark says its numbers when it is pointed at.

Takes plain values and returns HTML; what they mean is the caller's, colours are look.py's. Charts are fluid: positions
across are percentages and heights pixels, so that text keeps its size on any screen; shapes that need true coordinates
lie in a nested SVG that stretches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from gpuload.core.wording import rate

HOVER_POINTS = 60
"""Points of a curve that can be pointed at: more lie closer than a finger is wide."""


@dataclass(frozen=True)
class Bar:
    """One bar. value, low, high: in the chart's unit (a median and its range). ours: drawn in the accent colour."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    ours: bool = False


@dataclass(frozen=True)
class Curve:
    """One line. xs, ys: equally long, xs ascending."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    ours: bool = False


@dataclass(frozen=True)
class Waits:
    """One row of the waiting chart: for each step the seconds waited for its batch, then the seconds it took."""

    label: str
    waits_s: Sequence[float]
    steps_s: Sequence[float]
    ours: bool = False


def bars(unit: str, content: Sequence[Bar], *, digits: int | None = None) -> str:
    """Horizontal bars from zero, each with its name and number; a thin line is the range. digits: None for `rate`."""

    def number(value: float) -> str:
        return rate(value) if digits is None else f"{value:.{digits}f}"

    row_px = 46
    top = max((max(bar.value, bar.high or 0.0) for bar in content), default=0.0) or 1.0
    parts = []
    for row, bar in enumerate(content):
        y = row * row_px
        spread = f" ({number(bar.low)} to {number(bar.high)})" if bar.low is not None and bar.high is not None else ""
        parts.append(
            f'<text x="0" y="{y + 14}" class="name">{escape(bar.label)}</text>'
            f'<text x="100%" y="{y + 14}" text-anchor="end">{number(bar.value)} {escape(unit)}'
            f'<tspan class="dim">{spread}</tspan></text>'
            f'<rect x="0" y="{y + 21}" width="{_percent(bar.value, top)}" height="14" rx="2" '
            f'class="{_kind(bar.ours)}">{_hover(f"{bar.label}: {number(bar.value)} {unit}{spread}")}</rect>'
        )
        if bar.low is not None and bar.high is not None:
            parts.append(
                f'<line x1="{_percent(bar.low, top)}" x2="{_percent(bar.high, top)}" y1="{y + 28}" y2="{y + 28}" '
                'class="range"/>'
            )
    label = f"{unit}: " + ", ".join(f"{bar.label} {number(bar.value)}" for bar in content)
    return _svg(label, row_px * len(content), "".join(parts))


def curves(x_label: str, y_label: str, content: Sequence[Curve], *, marked: float | None = None) -> str:
    """Lines over a common x from 0, y from 0, each named at its end. marked: an x at which an upright line stands."""
    plot_px, top_px, bottom_px = 220, 26, 44
    far = [curve.xs[-1] for curve in content if len(curve.xs)] + ([] if marked is None else [marked])
    x_ticks = _ticks(max(far, default=1.0))
    y_ticks = _ticks(max((max(curve.ys) for curve in content if len(curve.ys)), default=1.0))
    x_top, y_top = x_ticks[-1], y_ticks[-1]

    def height(y: float) -> float:
        return top_px + plot_px * (1 - y / y_top)

    parts = []
    for tick in y_ticks:
        y = height(tick)
        parts.append(f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" class="line"/>')
        if tick:
            unit = f" {escape(y_label)}" if tick == y_top else ""
            parts.append(f'<text x="0" y="{y - 4:.1f}" class="dim">{tick:g}{unit}</text>')
    for tick in x_ticks:
        anchor = "start" if tick == 0 else "end" if tick == x_top else "middle"
        parts.append(
            f'<text x="{_percent(tick, x_top)}" y="{top_px + plot_px + 17}" text-anchor="{anchor}" class="dim">'
            f"{tick:g}</text>"
        )
    parts.append(f'<text x="100%" y="{top_px + plot_px + 36}" text-anchor="end" class="dim">{escape(x_label)}</text>')
    if marked is not None:
        x = _percent(marked, x_top)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{top_px}" y2="{top_px + plot_px}" class="mark">'
            f"{_hover(f'{marked:g} {x_label}')}</line>"
        )

    def points(curve: Curve) -> str:
        pairs = zip(curve.xs, curve.ys, strict=True)
        return " ".join(f"{1000 * x / x_top:.1f},{1000 * (1 - y / y_top):.1f}" for x, y in pairs)

    lines = "".join(f'<polyline class="{_kind(curve.ours)}" points="{points(curve)}"/>' for curve in content)
    parts.append(
        f'<svg x="0" y="{top_px}" width="100%" height="{plot_px}" viewBox="0 0 1000 1000" preserveAspectRatio="none" '
        f'class="lines">{lines}</svg>'
    )
    ends = sorted((curve for curve in content if len(curve.xs)), key=lambda curve: -curve.ys[-1])
    for rank, curve in enumerate(ends):  # the highest end is named above it, the others below: names do not collide
        x, y = _percent(curve.xs[-1], x_top), height(curve.ys[-1])
        anchor = "end" if curve.xs[-1] > 0.3 * x_top else "start"
        parts.append(
            f'<circle cx="{x}" cy="{y:.1f}" r="4" class="{_kind(curve.ours)}"/>'
            f'<text x="{x}" y="{y - 10 if rank == 0 else y + 4 + 16 * rank:.1f}" text-anchor="{anchor}" '
            f'class="halo {_kind(curve.ours)}-text">{escape(curve.label)}</text>'
        )
    for curve in ends:
        for i in _spread_out(len(curve.xs)):
            text = f"{curve.label}: {curve.ys[i]:.4g} {y_label} at {curve.xs[i]:.4g} {x_label}"
            parts.append(
                f'<circle cx="{_percent(curve.xs[i], x_top)}" cy="{height(curve.ys[i]):.1f}" r="6" class="hit">'
                f"{_hover(text)}</circle>"
            )
    return _svg(f"{y_label} over {x_label}", top_px + plot_px + bottom_px, "".join(parts))


def waiting(x_label: str, content: Sequence[Waits]) -> str:
    """What each loader's consumer did over time: waiting for a batch (bright) or at work on one (quiet)."""
    row_px, bar_px, bottom_px = 52, 24, 40
    lengths = [sum(row.waits_s) + sum(row.steps_s) for row in content]
    ticks = _ticks(max(lengths, default=1.0))
    end_s = max(max(lengths, default=1.0), 1e-9)
    parts = []
    for number, (row, length_s) in enumerate(zip(content, lengths, strict=True)):
        y = number * row_px
        share = sum(row.waits_s) / length_s if length_s else 0.0
        parts.append(
            f'<text x="0" y="{y + 14}" class="name">{escape(row.label)}</text>'
            f'<text x="100%" y="{y + 14}" text-anchor="end">waits {100 * share:.1f}% of {length_s:.1f} s</text>'
            f'<svg x="0" y="{y + 21}" width="100%" height="{bar_px}" viewBox="0 0 {end_s:.4f} 1" '
            f'preserveAspectRatio="none">{"".join(_spans(row))}</svg>'
        )
    floor = row_px * len(content)
    for tick in (t for t in ticks if t <= end_s):
        anchor = "start" if tick == 0 else "end" if tick > 0.97 * end_s else "middle"
        x = _percent(tick, end_s)
        parts.append(f'<text x="{x}" y="{floor + 13}" text-anchor="{anchor}" class="dim">{tick:g}</text>')
    parts.append(f'<text x="100%" y="{floor + 32}" text-anchor="end" class="dim">{escape(x_label)}</text>')
    key = (
        '<p class="key"><span class="swatch wait-swatch"></span>waiting for a batch'
        '<span class="swatch work-swatch"></span>at work</p>'
    )
    return key + _svg(f"waiting over {x_label}", floor + bottom_px, "".join(parts))


def _spans(row: Waits) -> Iterator[str]:
    at_s = 0.0
    for step, (wait_s, step_s) in enumerate(zip(row.waits_s, row.steps_s, strict=True), 1):
        for kind, word, length_s in (("wait", "waited", wait_s), ("work", "at work", step_s)):
            yield (
                f'<rect x="{at_s:.4f}" y="0" width="{length_s:.4f}" height="1" class="{kind}">'
                f"{_hover(f'step {step}: {word} {1000 * length_s:.0f} ms')}</rect>"
            )
            at_s += length_s


def _spread_out(count: int) -> list[int]:
    """At most HOVER_POINTS of `count` places, first and last among them."""
    if count <= HOVER_POINTS:
        return list(range(count))
    return [round(i * (count - 1) / (HOVER_POINTS - 1)) for i in range(HOVER_POINTS)]


def _kind(ours: bool) -> str:
    return "ours" if ours else "other"


def _hover(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _svg(label: str, height_px: float, inside: str) -> str:
    return f'<svg role="img" aria-label="{escape(label)}" width="100%" height="{height_px:g}">{inside}</svg>'


def _percent(value: float, top: float) -> str:
    return f"{100 * max(0.0, value) / top:.2f}%"


def _ticks(top: float) -> list[float]:
    """Three to six round numbers from 0 that reach `top`."""
    if not (top > 0 and math.isfinite(top)):
        return [0.0, 1.0]
    unit = 10.0 ** math.floor(math.log10(top / 3))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if top / (unit * m) <= 5)
    return [round(step * i, 10) for i in range(math.ceil(top / step - 1e-9) + 1)]
