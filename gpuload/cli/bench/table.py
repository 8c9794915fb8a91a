"""A comparison's rows as cells of text: which columns there are, what stands in them, which a terminal has room for.

Owns the wording that table, page and demo share (`rows`, `lead`, `conditions`); the page's charts are pages.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from gpuload.cli.bench import subjects
from gpuload.cli.bench.machine import this_machine
from gpuload.cli.bench.run import PIXEL_BOUND, Outcome, Row
from gpuload.core.wording import percent, rate
from gpuload.report import html as page

CACHED = 0.05
"""Share of a data set's files that may stay in the page cache in an epoch that is called cold."""


@dataclass(frozen=True)
class Column:
    """cell: the text of a row, "" for none; a column without any is left out. rank: the lowest are shown where a
    terminal has not room for all."""

    head: str
    cell: Callable[[Row], str]
    rank: int


def _figure(key: str, wording: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: wording(row.figures[key].median) if key in row.figures else ""


def _rate(row: Row) -> str:
    if not row.figures:
        return "absent" if row.reason.startswith("absent") else "not timed"
    found = row.figures["images_per_s"]
    return f"{rate(found.median)} ({rate(found.low)}-{rate(found.high)})"


def _cold(key: str, wording: Callable[[float], str]) -> Callable[[Row], str]:
    cell = _figure(key, wording)
    return lambda row: "still cached" if (row.still_cached or 0.0) > CACHED else cell(row)


def _device_mb(row: Row) -> str:
    found = row.figures.get("peak_device_mb")
    return f"{found.median:.0f}" if found is not None and found.median else ""


def _trained(wording: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: wording(row) if row.training is not None else ""


def _inflation(row: Row) -> str:
    found = row.training.inflation if row.training is not None else None
    return "" if found is None else f"{found:.2f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


COLUMNS = (
    Column("loader", lambda row: row.name, 0),
    Column("images/s", _rate, 1),
    Column("x torch", _figure("ratio_to_torch", "{:.2f}".format), 2),
    Column("starved", _figure("starved_pct", "{:.1f}%".format), 3),
    Column("p99 wait", _figure("wait_p99_s", _ms), 7),
    Column("1st batch", _figure("first_batch_s", _ms), 6),
    Column("boundary", _figure("epoch_boundary_s", _ms), 10),
    Column("cold images/s", _cold("cold_images_per_s", rate), 4),
    Column("cold 1st batch", _cold("cold_first_batch_s", _ms), 11),
    Column("model waits", _trained(lambda row: percent(row.training.waited) if row.training else ""), 4),
    Column("step x resident", _inflation, 5),
    Column("CPU s/k", _figure("cpu_s_per_1000", "{:.2f}".format), 8),
    Column("MB", _figure("peak_rss_mb", "{:.0f}".format), 9),
    Column("GPU MB", _device_mb, 9),
    Column("cold start", lambda row: "" if row.cold_start_s is None else f"{row.cold_start_s:.1f} s", 12),
    Column("pixels", lambda row: "" if row.pixel_difference is None else f"{row.pixel_difference:.2f}", 13),
)


def columns(outcome: Outcome) -> list[Column]:
    """Those in which something stands."""
    return [column for column in COLUMNS if any(column.cell(row) for row in outcome.rows)]


def rows(outcome: Outcome) -> page.Table:
    """The table's cells as text, the same for terminal and page."""
    found = columns(outcome)
    return page.Table([c.head for c in found], [[c.cell(row) for c in found] for row in outcome.rows])


def that_fit(outcome: Outcome, width: int) -> list[Column]:
    """The columns for a terminal of `width` characters, in their order: by rank as many as there is room for."""
    shown: list[Column] = []
    left = width
    for column in sorted(columns(outcome), key=lambda column: column.rank):
        taken = max(len(text) for text in (column.head, *map(column.cell, outcome.rows))) + 2
        if column.rank > 1 and taken > left:
            break
        shown.append(column)
        left -= taken
    return [column for column in COLUMNS if column in shown]


def show(outcome: Outcome, console: Console) -> None:
    """The table for the terminal, why rows have no figures, and the conditions."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    found = that_fit(outcome, console.width)
    for column in found:
        drawn.add_column(column.head, justify="left" if column.rank == 0 else "right", no_wrap=True)
    for row in outcome.rows:
        style = "bold" if row.name.startswith("gpuload") and not row.reason else ""
        drawn.add_row(*(column.cell(row) for column in found), style=style)
    console.print(drawn)
    for sentence in left_out(outcome):
        console.print(sentence, style="yellow", markup=False)
    console.print(conditions(outcome), style="dim", markup=False)
    console.print(str(this_machine()), style="dim", markup=False)


def left_out(outcome: Outcome) -> list[str]:
    """A sentence for each row without figures, or without a training that was asked for."""
    found = [f"{row.name}: {row.reason}" for row in outcome.rows if row.reason]
    return found + [f"{row.name}, training: {row.not_trained}" for row in outcome.rows if row.not_trained]


def lead(timed: Sequence[Row]) -> str:
    """The page's first sentence: what the reader came for."""
    ours = [row for row in timed if row.name.startswith("gpuload")]
    if not ours:
        return "No row of gpuload's was timed; the table says why."
    best = max(ours, key=lambda row: row.figures["ratio_to_torch"].median)
    return (
        f"On this data and machine {best.name} makes {best.figures['ratio_to_torch'].median:.2f} times the images per "
        "second of torch's DataLoader."
    )


def conditions(outcome: Outcome) -> str:
    """One paragraph: on what, with what, how the figures came about."""
    comparison, setting = outcome.comparison, outcome.comparison.setting
    sized = (
        f"a GPU that takes {comparison.appetite:g} times what torch's loader made at the start"
        if comparison.step_s is None
        else "as asked"
    )
    sentences = [
        f"{outcome.samples} images ({setting.data.wording}), {comparison.transform} transform at {setting.size} px, "
        f"batch {setting.batch_size}, {setting.workers} workers or threads, device {setting.device}.",
        f"{outcome.rounds} interleaved rounds of {outcome.round_images} images; medians (lowest-highest).",
        "images/s: the loader alone, its first batches left out; CPU s/k: CPU seconds per 1000 images.",
        f"Starved: share of time waiting for a batch under a timed step of {1000 * outcome.step_s:.0f} ms ({sized}); "
        "p99 wait: the wait that 99 of 100 of these batches stay below.",
        "Memory: peak of the process tree, shared pages split.",
        f"Pixels: mean absolute difference to Pillow of 255; above {PIXEL_BOUND} a loader is not timed.",
        *_asked_for(outcome),
    ]
    return " ".join(sentences)


def _asked_for(outcome: Outcome) -> list[str]:
    """Sentences on what not every run has."""
    found = []
    packed = [row for row in outcome.rows if row.name in subjects.OWN_FORMAT and row.figures]
    if packed:
        names = " and ".join(row.name for row in packed)
        found.append(
            f"{names} read shards of their own format, written by their own writers before anything was timed "
            f"({', '.join(f'{row.packed_s:.1f} s' for row in packed)}), JPEG bytes unchanged."
        )
    if outcome.comparison.cold:
        found.append(_cold_sentence(outcome.rows))
    if outcome.comparison.training is not None:
        found.append(
            f"Model waits: share of the training of {outcome.comparison.training['model']} spent waiting; step x "
            "resident: its step's time against the same step on random data in memory, the loader at rest."
        )
    return found


def _cold_sentence(found: Sequence[Row]) -> str:
    looks = [row.still_cached for row in found if row.still_cached is not None]
    if not looks:
        return "Cold: this system does not say whether files left the page cache, so these figures may be warm ones."
    if max(looks) > CACHED:
        return (
            f"Cold: not measured; {percent(max(looks))} of the files looked at stayed in the page cache when told to "
            "leave it: they lie in memory, on a network mount that keeps them, or another process has them mapped."
        )
    return (
        "Cold: an epoch that begins after the data's files have left the page cache, from iter() until every sample "
        "may have come once; gpuload's own index and what a loader had read ahead stay where they are."
    )
