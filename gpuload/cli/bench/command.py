"""`gpuload bench`: what was asked, and the same result three times over: a table, JSON lines, a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import look_at
from gpuload.cli.bench.machine import this_machine, versions
from gpuload.cli.bench.measure import Spread
from gpuload.cli.bench.run import PIXEL_BOUND, Comparison, Outcome, Row, compare
from gpuload.config import default_threads
from gpuload.core.errors import ConfigError
from gpuload.core.wording import rate
from gpuload.report import html as page

HEAD = (
    "loader", "images/s", "x torch", "starved", "1st batch", "boundary", "CPU s/k", "MB", "cold start", "pixels",
)  # fmt: skip
WIDE_ONLY = ("boundary", "cold start", "pixels")
"""Columns that an 80-column terminal has no room for; they stand in the page and in the JSON lines."""

KEYS = ("images_per_s", "first_batch_s", "starved_pct", "cpu_s_per_1000", "peak_rss_mb", "ratio_to_torch")


def bench(
    data: str,
    *,
    device: str,
    threads: int | None,
    batch_size: int,
    transform: str,
    against: str,
    decoder: str,
    rounds: int,
    round_s: float,
    step_ms: float | None,
    html_file: Path | None,
    json_file: Path | None,
    console: Console,
) -> Outcome:
    """Runs the comparison on `data`, shows the table on `console` and writes the files asked for."""
    if transform not in ("train", "eval"):
        raise ConfigError(f"--transform {transform}: choose train or eval")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: choose cpu or cuda")
    for option, value in (("--batch-size", batch_size), ("--rounds", rounds), ("--threads", threads or 1)):
        if value < 1:
            raise ConfigError(f"{option} {value}: must be at least 1")
    setting = subjects.Setting(
        data=look_at(data), device=device, workers=threads or default_threads(), batch_size=batch_size
    )
    comparison = Comparison(
        setting, subjects.chosen(_names(against), _names(decoder)), transform, rounds, round_s,
        None if step_ms is None else step_ms / 1000,
    )  # fmt: skip
    with console.status("") as status:
        outcome = compare(comparison, lambda sentence: status.update(sentence))
    show(outcome, console)
    if json_file is not None:
        json_file.write_text("".join(json.dumps(line) + "\n" for line in json_lines(outcome)))
        console.print(f"JSON lines: {json_file}")
    if html_file is not None:
        html_file.write_text(report(outcome), encoding="utf-8")
        console.print(f"report: {html_file}")
    return outcome


def bench_command(
    data: Annotated[str, typer.Argument(help="Folder of images, of class folders, or of .tar shards; or one .tar.")],
    device: Annotated[str, typer.Option(help="Where batches are wanted: cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Workers for torch, threads for others [default: CPUs].")] = None,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 64,
    transform: Annotated[str, typer.Option(help="train (random crop, flip) or eval.")] = "train",
    against: Annotated[str, typer.Option(help="Peers beside torch: torch-v2, dali.")] = "torch,torch-v2,dali",
    decoder: Annotated[str, typer.Option(help="gpuload's rows: also auto.")] = "native,pillow,dali,fallback",
    rounds: Annotated[int, typer.Option(help="Rounds, interleaved over all loaders.")] = 5,
    round_s: Annotated[float, typer.Option(help="About how long torch's loader takes for one pass of a round.")] = 3.0,
    step_ms: Annotated[
        float | None, typer.Option(help="Timed step that stands for a GPU [default: by torch's rate].")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write a JSON line per loader.")] = None,
) -> None:
    """How much faster is it than what I had, on my data? Torch's DataLoader, DALI and gpuload side by side."""
    bench(
        data, device=device, threads=threads, batch_size=batch_size, transform=transform, against=against,
        decoder=decoder, rounds=rounds, round_s=round_s, step_ms=step_ms, html_file=html, json_file=json,
        console=Console(highlight=False),
    )  # fmt: skip


def _names(option: str) -> list[str]:
    return [name.strip() for name in option.split(",") if name.strip()]


def conditions(outcome: Outcome) -> str:
    """One paragraph: on what, with what, how the figures came about."""
    comparison, setting = outcome.comparison, outcome.comparison.setting
    sized = (
        f"a GPU that takes {comparison.appetite:g} times what torch's loader made at the start"
        if comparison.step_s is None
        else "as asked"
    )
    return (
        f"{outcome.samples} images ({setting.data.wording}), {comparison.transform} transform at {setting.size} px, "
        f"batch {setting.batch_size}, {setting.workers} workers or threads, device {setting.device}. "
        f"{outcome.rounds} interleaved rounds of {outcome.round_images} images; medians (lowest-highest). "
        "images/s: the loader alone, its first batches left out; CPU s/k: CPU seconds per 1000 images. "
        f"Starved: share of time waiting for a batch under a timed step of {1000 * outcome.step_s:.0f} ms ({sized}). "
        "Memory: peak of the process tree, shared pages split. "
        f"Pixels: mean absolute difference to Pillow of 255; above {PIXEL_BOUND} a loader is not timed."
    )


def show(outcome: Outcome, console: Console) -> None:
    """The table for the terminal."""
    content = rows(outcome)
    shown = [i for i, head in enumerate(content.head) if head not in WIDE_ONLY or console.width >= 110]
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for i in shown:
        drawn.add_column(content.head[i], justify="left" if i == 0 else "right", no_wrap=True)
    for row, cells in zip(outcome.rows, content.rows, strict=True):
        style = "bold" if row.name.startswith("gpuload") and not row.reason else ""
        drawn.add_row(*(cells[i] for i in shown), style=style)
    console.print(drawn)
    for row in outcome.rows:
        if row.reason:
            console.print(f"{row.name}: {row.reason}", style="yellow", markup=False)
    console.print(conditions(outcome), style="dim", markup=False)
    console.print(str(this_machine()), style="dim", markup=False)


def rows(outcome: Outcome) -> page.Table:
    """The table's cells as text, the same for terminal and page."""
    return page.Table(HEAD, [_cells(row) for row in outcome.rows])


def _cells(row: Row) -> list[str]:
    pixels = "" if row.pixel_difference is None else f"{row.pixel_difference:.2f}"
    cold = "" if row.cold_start_s is None else f"{row.cold_start_s:.1f} s"
    if not row.figures:
        return [row.name, "absent" if row.reason.startswith("absent") else "not timed", *[""] * 6, cold, pixels]
    f = row.figures
    return [
        row.name,
        f"{rate(f['images_per_s'].median)} ({rate(f['images_per_s'].low)}-{rate(f['images_per_s'].high)})",
        f"{f['ratio_to_torch'].median:.2f}",
        f"{f['starved_pct'].median:.1f}%",
        f"{1000 * f['first_batch_s'].median:.0f} ms",
        f"{1000 * f['epoch_boundary_s'].median:.0f} ms",
        f"{f['cpu_s_per_1000'].median:.2f}",
        f"{f['peak_rss_mb'].median:.0f}",
        cold,
        pixels,
    ]


def json_lines(outcome: Outcome) -> list[dict[str, Any]]:
    """A line a loader: the figures' medians, their ranges, and all that is needed to read them years later."""
    comparison, setting = outcome.comparison, outcome.comparison.setting
    common = {
        "device": setting.device,
        "parameters": {
            "data": setting.data.kind,
            "samples": outcome.samples,
            "batch_size": setting.batch_size,
            "workers": setting.workers,
            "transform": comparison.transform,
            "size": setting.size,
            "rounds": outcome.rounds,
            "round_images": outcome.round_images,
            "step_ms": 1000 * outcome.step_s,
            "pixel_bound": PIXEL_BOUND,
        },
        "machine": asdict(this_machine()),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return [{"loader": row.name, **_line(row), **common} for row in outcome.rows]


def _line(row: Row) -> dict[str, Any]:
    medians = {key: row.figures[key].median if row.figures else None for key in (*KEYS, "epoch_boundary_s")}
    ranges = {key: [found.low, found.high] for key, found in row.figures.items()}
    return {
        **medians,
        "ranges": ranges,
        "cold_start_s": row.cold_start_s,
        "pixel_difference": row.pixel_difference,
        "worst_pixel_difference": row.worst_pixel_difference,
        "not_timed": row.reason or None,
    }


def report(outcome: Outcome) -> str:
    """The page."""
    timed = [row for row in outcome.rows if row.figures]

    def bars(key: str, unit: str, digits: int | None = None) -> str:
        return page.bars(unit, [_bar(row, row.figures[key]) for row in timed], digits=digits)

    left_out = "; ".join(f"{row.name}: {row.reason}" for row in outcome.rows if row.reason)
    sections: Sequence[page.Section] = (
        page.Section("Images per second, the loader alone", "", bars("images_per_s", "images/s")),
        page.Section("Time the GPU would wait", "", bars("starved_pct", "% starved", 1)),
        page.Section("CPU seconds per 1000 images", "", bars("cpu_s_per_1000", "s", 2)),
        page.Section("All figures", left_out, page.table(rows(outcome))),
        page.Section("The loaders", figure=page.table(page.Table(("loader", "what it is"), _what(outcome)))),
        page.Section("How this was measured", conditions(outcome)),
        page.Section("On what", str(this_machine()), pre=_versions_text()),
        *(page.Section(f"What {row.name} does", pre=row.plan) for row in timed if row.plan),
    )
    return page.page("gpuload bench", lead(timed), sections)


def _what(outcome: Outcome) -> list[tuple[str, str]]:
    return [(row.name, subjects.SUBJECTS[row.name].what) for row in outcome.rows]


def _bar(row: Row, found: Spread) -> page.Bar:
    return page.Bar(row.name, found.median, found.low, found.high, ours=row.name.startswith("gpuload"))


def rate_bar(row: Row) -> page.Bar:
    """Images per second as a bar with its range."""
    return _bar(row, row.figures["images_per_s"])


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


def _versions_text() -> str:
    return "\n".join(f"{name:<12} {version or 'absent'}" for name, version in versions().items())
