"""Reports as one self-contained page: sections of text, sortable tables, heat maps and charts; nothing is fetched.

Owns the page, its sections, and what is drawn as a table (`table`, `grid`). Charts are charts.py's and can be taken
from here, too; colours and the sorting script are look.py's. Everything given is text or a number, escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpuload.report.charts import Bar, Curve, Waits, bars, curves, waiting
from gpuload.report.look import SORTING, STYLE

__all__ = [
    "Bar", "Curve", "Section", "Table", "Waits", "bars", "curves", "grid", "page", "table", "waiting",
]  # fmt: skip

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing may be fetched, whatever a name contained."""

MOST_HEAT = 0.8
"""Opacity of the hottest cell: its number is still read on it, on light and dark pages."""


@dataclass(frozen=True)
class Table:
    """head and rows as text; `note` stands below. The first column is left-aligned, the others right.

    A reader sorts it by a click on a column's head: by number where cells begin with one, so give a column one unit.
    words: columns of sentences, left-aligned and wrapped.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: Sequence[int] = ()


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
    script = f"<script>{SORTING}</script>\n" if '<table class="sorts">' in body else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n'
        f'<body>\n<main>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{body}\n'
        f"</main>\n{script}</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    pre = f'<pre tabindex="0">{escape(section.pre)}</pre>' if section.pre else ""
    return f"<section>\n<h2>{escape(section.heading)}</h2>\n{text}{section.figure}{pre}\n</section>"


def table(content: Table) -> str:
    """`content` as a sortable table that scrolls sideways on a narrow screen instead of widening the page."""

    def cell(column: int, text: str) -> str:
        return f"<td{' class=words' if column in content.words else ''}>{escape(text)}</td>"

    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in content.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(cell(i, row[i]) for i in range(1, len(row))) + "</tr>"
        for row in content.rows
    )
    note = f'<p class="note">{escape(content.note)}</p>' if content.note else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="sorts"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def grid(
    x_label: str,
    y_label: str,
    xs: Sequence[object],
    ys: Sequence[object],
    cells: Sequence[Sequence[float | None]],
    unit: str,
    *,
    marked: tuple[int, int] | None = None,
    digits: int = 1,
) -> str:
    """A heat map: numbers on a ground that is the stronger the higher they are, said in words when pointed at.

    cells: a row for each of `ys`, top to bottom, in it a number for each of `xs`, None (or NaN) where nothing is
    known. marked: (i, j), the cell of xs[i] and ys[j], which is outlined.
    """
    known = [value for row in cells for value in row if value is not None and math.isfinite(value)]
    least, most = min(known, default=0.0), max(known, default=0.0)

    def cell(i: int, j: int) -> str:
        value, chosen = cells[j][i], ' class="marked"' if marked == (i, j) else ""
        where = f"{x_label} {xs[i]}, {y_label} {ys[j]}"
        if value is None or not math.isfinite(value):
            return f'<td{chosen} title="{escape(where)}: not known"></td>'
        heat = MOST_HEAT * (value - least) / (most - least) if most > least else 0.0
        hover = escape(f"{where}: {value:.{digits}f} {unit}")
        return f'<td{chosen} title="{hover}" style="background:rgba(var(--heat),{heat:.3f})">{value:.{digits}f}</td>'

    head = "".join(f'<th scope="col">{escape(str(x))}</th>' for x in xs)
    rows = "".join(
        f'<tr><th scope="row">{escape(str(y))}</th>{"".join(cell(i, j) for i in range(len(xs)))}</tr>'
        for j, y in enumerate(ys)
    )
    return (
        f'<p class="key">{escape(unit)}: {escape(x_label)} across, {escape(y_label)} down</p>'
        f'<div class="scroll" tabindex="0"><table class="grid"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
