"""The page of `gpuload inspect`: a data set's fields, classes, sizes and dimensions, and a contact sheet.

Owns what stands on it, the histograms' bins, and the contact sheet, whose images lie in the page as data URLs. The
page's look is report/html.py's. Nothing is fetched, and every name is escaped: keys and classes are whatever the
data's author wrote.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from gpuload.cli.inspect import Inspected, Thumbnail, lines
from gpuload.core.wording import size
from gpuload.report.html import Bar, Section, Table, bars, page, table

MOST_CLASSES = 40
"""Bars on one screen or two; the table below has the rest."""

ROWS = 1000
"""Of the classes' table: a page of 20,000 rows would be slow to sort."""

STEPS = (1, 2, 5)


def page_of(found: Inspected) -> str:
    """The whole page as HTML."""
    sections = []
    if found.thumbnails:
        text = f"{len(found.thumbnails)} of {found.samples} samples, evenly spread, with their labels."
        sections.append(Section("Contact sheet", text, _sheet(found.thumbnails)))
    rows = [[seen.name, seen.type, str(seen.samples)] for seen in found.fields]
    given = [["image", "encoded image", str(found.samples)], ["key", "str", str(found.samples)]]
    if found.by_class:
        given.append(["label", "int64", str(sum(n for _, n in found.by_class))])
    sections.append(Section("Fields", "", table(Table(("field", "type", "samples"), given + rows))))
    if found.by_class:
        sections.append(_classes(found))
    if len(found.bytes):
        sections.append(Section("Bytes an image", "", _histogram(found.bytes, size)))
    if len(found.dimensions):
        text = f"Of {len(found.dimensions)} images, whose headers were read."
        figure = _histogram(found.dimensions.max(axis=1), lambda value: f"{value:.0f} px")
        sections.append(Section("Longer side", text, figure))
    kinds = [Bar(kind, n) for kind, n in sorted(found.kinds.items(), key=lambda item: (-item[1], item[0]))]
    sections.append(Section("Kinds", "By the same headers.", bars("images", kinds, digits=0)))
    if found.findings:
        rows = [["note" if f.note else "finding", str(f)] for f in found.findings[:ROWS]]
        sections.append(Section("Findings", "", table(Table(("kind", "what"), rows, words=(1,)))))
    return page(found.name, "\n".join(lines(found)[:1]).partition(": ")[2], sections)


def _classes(found: Inspected) -> Section:
    ranked = sorted(found.by_class, key=lambda item: -item[1])
    text = f"{len(ranked)} classes"
    if len(ranked) > MOST_CLASSES:
        half = MOST_CLASSES // 2
        text += f"; the {half} largest and the {half} smallest"
        drawn = ranked[:half] + ranked[-half:]
    else:
        drawn = ranked
    figure = bars("samples", [Bar(name, n) for name, n in drawn], digits=0)
    if len(ranked) > MOST_CLASSES:
        note = f"The {ROWS} largest." if len(ranked) > ROWS else ""
        figure += table(Table(("class", "samples"), [[name, str(n)] for name, n in ranked[:ROWS]], note))
    return Section("Classes", text + ".", figure)


def _histogram(values: np.ndarray, word: Callable[[float], str]) -> str:
    edges = edges_of(values)
    heights, _ = np.histogram(values, edges)
    names = [f"{word(low)} to {word(high)}" for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return bars("images", [Bar(name, int(n)) for name, n in zip(names, heights, strict=True)], digits=0)


def edges_of(values: np.ndarray) -> list[float]:
    """Round numbers, each about twice the one before, that hold all values: 1, 2, 5, 10, 20, 50 and so on."""
    scale = [step * 10.0**power for power in range(13) for step in STEPS]
    below = [edge for edge in scale if edge <= values.min()] or [0.0]
    above = [edge for edge in scale if edge > values.max()]
    return [below[-1], *(edge for edge in scale if below[-1] < edge < above[0]), above[0]]


def _sheet(thumbnails: Sequence[Thumbnail]) -> str:
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(8rem,1fr));gap:.8rem;align-items:end"
    return f'<div style="{grid}">{"".join(map(_figure, thumbnails))}</div>'


def _figure(thumbnail: Thumbnail) -> str:
    name = f"{thumbnail.key} ({thumbnail.label})" if thumbnail.label else thumbnail.key
    caption = f'<figcaption class="note" style="overflow-wrap:anywhere">{escape(name)}</figcaption>'
    if not thumbnail.jpeg:
        return f'<figure style="margin:0"><p class="note">does not decode</p>{caption}</figure>'
    data = base64.b64encode(thumbnail.jpeg).decode()
    image = f'<img alt="{escape(name)}" loading="lazy" style="max-width:100%" src="data:image/jpeg;base64,{data}">'
    return f'<figure style="margin:0">{image}{caption}</figure>'
