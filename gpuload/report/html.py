"""Reports as one self-contained page: text, tables and charts drawn as inline SVG, nothing fetched, no script.

Owns the look (light and dark, phone to desktop) and three charts: `bars`, `curves`, `waiting`. Takes plain
values and returns text; what they mean is the caller's. Charts are fluid: positions across are percentages
and heights pixels, so that text keeps its size on any screen; shapes that need true coordinates lie in a
nested SVG that stretches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpuload.core.wording import rate


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


@dataclass(frozen=True)
class Table:
    """head and rows as text; `note` stands below. The first column is left-aligned, the others right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, and what was drawn: HTML made by this module. pre: text kept as it stands."""

    heading: str
    text: str = ""
    figure: str = ""
    pre: str = ""


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as HTML text."""
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{_STYLE}</style>\n</head>\n'
        f'<body>\n<main>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{body}\n'
        "</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    pre = f"<pre>{escape(section.pre)}</pre>" if section.pre else ""
    return f"<section>\n<h2>{escape(section.heading)}</h2>\n{text}{section.figure}{pre}\n</section>"


def table(content: Table) -> str:
    """`content` as an HTML table that scrolls sideways on a narrow screen instead of widening the page."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in content.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in content.rows
    )
    note = f'<p class="note">{escape(content.note)}</p>' if content.note else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


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
            f'class="{"ours" if bar.ours else "other"}"/>'
        )
        if bar.low is not None and bar.high is not None:
            parts.append(
                f'<line x1="{_percent(bar.low, top)}" x2="{_percent(bar.high, top)}" y1="{y + 28}" y2="{y + 28}" '
                'class="range"/>'
            )
    label = f"{unit}: " + ", ".join(f"{bar.label} {number(bar.value)}" for bar in content)
    return _svg(label, row_px * len(content), "".join(parts))


def curves(x_label: str, y_label: str, content: Sequence[Curve]) -> str:
    """Lines over a common x from 0, y from 0, each named at its end."""
    plot_px, top_px, bottom_px = 220, 26, 44
    x_ticks = _ticks(max((curve.xs[-1] for curve in content if len(curve.xs)), default=1.0))
    y_ticks = _ticks(max((max(curve.ys) for curve in content if len(curve.ys)), default=1.0))
    x_top, y_top = x_ticks[-1], y_ticks[-1]

    def height(y: float) -> float:
        return top_px + plot_px * (1 - y / y_top)

    parts = []
    for tick in y_ticks:
        y = height(tick)
        parts.append(f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
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

    def points(curve: Curve) -> str:
        pairs = zip(curve.xs, curve.ys, strict=True)
        return " ".join(f"{1000 * x / x_top:.1f},{1000 * (1 - y / y_top):.1f}" for x, y in pairs)

    lines = "".join(
        f'<polyline class="{"ours" if curve.ours else "other"}" points="{points(curve)}"/>' for curve in content
    )
    parts.append(
        f'<svg x="0" y="{top_px}" width="100%" height="{plot_px}" viewBox="0 0 1000 1000" preserveAspectRatio="none" '
        f'class="lines">{lines}</svg>'
    )
    ends = sorted((curve for curve in content if len(curve.xs)), key=lambda curve: -curve.ys[-1])
    for rank, curve in enumerate(ends):  # the highest end is named above it, the others below: names do not collide
        x, y = _percent(curve.xs[-1], x_top), height(curve.ys[-1])
        anchor = "end" if curve.xs[-1] > 0.3 * x_top else "start"
        kind = "ours" if curve.ours else "other"
        parts.append(
            f'<circle cx="{x}" cy="{y:.1f}" r="4" class="{kind}"/>'
            f'<text x="{x}" y="{y - 10 if rank == 0 else y + 4 + 16 * rank:.1f}" text-anchor="{anchor}" '
            f'class="halo {kind}-text">{escape(curve.label)}</text>'
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
        y, at_s, shapes = number * row_px, 0.0, []
        for wait_s, step_s in zip(row.waits_s, row.steps_s, strict=True):
            shapes.append(f'<rect x="{at_s:.4f}" y="0" width="{wait_s:.4f}" height="1" class="wait"/>')
            shapes.append(f'<rect x="{at_s + wait_s:.4f}" y="0" width="{step_s:.4f}" height="1" class="work"/>')
            at_s += wait_s + step_s
        share = sum(row.waits_s) / length_s if length_s else 0.0
        parts.append(
            f'<text x="0" y="{y + 14}" class="name">{escape(row.label)}</text>'
            f'<text x="100%" y="{y + 14}" text-anchor="end">waits {100 * share:.1f}% of {length_s:.1f} s</text>'
            f'<svg x="0" y="{y + 21}" width="100%" height="{bar_px}" viewBox="0 0 {end_s:.4f} 1" '
            f'preserveAspectRatio="none">{"".join(shapes)}</svg>'
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


_STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--dim:#5b6570;--line:#e3e6ea;--ours:#0b7a6f;--other:#a3abb5;--other-ink:#5b6570;
--wait:#d9480f;--work:#d5dae0;--panel:#f6f7f9}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e8eaed;--dim:#9aa4af;--line:#2b3138;--ours:#4fd1c0;
--other:#6b7580;--other-ink:#aab3bd;--wait:#ff8b3d;--work:#343b43;--panel:#1c2024}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:46rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .5rem}
h2{font-size:1.05rem;margin:2.5rem 0 .5rem}
p{margin:.25rem 0 1rem}
.lead{font-size:1.1rem}
.note,.key{color:var(--dim);font-size:.875rem}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.work-swatch{margin-left:1.4em;background:var(--work)}.wait-swatch{background:var(--wait)}
svg{display:block;overflow:visible}
svg text{font-size:13px;fill:var(--ink)}
svg .name{font-weight:600}
svg .dim,svg tspan.dim{fill:var(--dim);font-weight:400}
rect.ours,circle.ours{fill:var(--ours)}rect.other,circle.other{fill:var(--other)}
rect.wait{fill:var(--wait)}rect.work{fill:var(--work)}
text.ours-text{fill:var(--ours);font-weight:600}text.other-text{fill:var(--other-ink);font-weight:600}
.halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.grid{stroke:var(--line)}.range{stroke:var(--ink);stroke-width:1.5}
.lines{overflow:hidden}
polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
polyline.ours{stroke:var(--ours)}polyline.other{stroke:var(--other)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.4rem .45rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child{text-align:left;padding-left:0}
thead th{color:var(--dim);font-weight:500;vertical-align:bottom;white-space:normal}
pre{background:var(--panel);padding:.8rem;border-radius:6px;overflow-x:auto;font-size:.8rem;line-height:1.45}
"""
