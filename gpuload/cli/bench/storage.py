"""`gpuload bench --storage URL`: the first result and N images when streaming, against copying to local disk first.

Owns the comparison, its table, lines and page; each way's run is storage_run.py's, in a process of its own. The
question is that of "Keep Those GPUs Busy", where copying took 0.9 hours before the first step and streaming none.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpuload.cli.bench.lines import measured_on
from gpuload.cli.bench.machine import this_machine
from gpuload.cli.bench.process import LoaderProcess, LoaderProcessError
from gpuload.cli.bench.storage_run import Timed
from gpuload.core.errors import ConfigError
from gpuload.core.location import shown
from gpuload.core.wording import rate, size
from gpuload.report import html as page

STREAMED, COPIED = "streamed", "copied first"
IMAGE_SIZE = 224
LIMIT_S = 3600.0
"""For one way of one storage; a slower one is a row that says so."""

HEAD = ("storage", "way", "copied after", "1st batch", "all images after", "images", "images/s")


@dataclass(frozen=True)
class Way:
    """One row. timed: None where it could not be measured, `reason` says why."""

    url: str
    way: str
    timed: Timed | None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{shown(self.url)}, {self.way}"


def bench_storage(
    urls: Sequence[str], *, images: int | None, threads: int, batch_size: int, transform: str,
    html_file: Path | None, json_file: Path | None, console: Console,
) -> list[Way]:  # fmt: skip
    """Runs both ways for each URL, shows the table on `console` and writes the files asked for."""
    if images is not None and images < 1:
        raise ConfigError(f"--images {images}: must be at least 1")
    if transform not in ("train", "eval"):
        raise ConfigError(f"--transform {transform}: choose train or eval")
    how = {
        "most_images": images, "threads": threads, "batch_size": batch_size, "transform": transform,
        "size": IMAGE_SIZE,
    }  # fmt: skip
    ways = []
    with console.status("") as status:
        for url in urls:
            for way in (STREAMED, COPIED):
                status.update(f"{shown(url)}: {way}")
                ways.append(_run(url, way, how))
    show(ways, console)
    if json_file is not None:
        json_file.write_text("".join(json.dumps(line) + "\n" for line in json_lines(ways, how)))
        console.print(f"JSON lines: {json_file}", markup=False, soft_wrap=True)
    if html_file is not None:
        html_file.write_text(report(ways), encoding="utf-8")
        console.print(f"report: {html_file}", markup=False, soft_wrap=True)
    return ways


def _run(url: str, way: str, how: dict[str, Any]) -> Way:
    # Seek points that the first way has learned would help the second.
    process = LoaderProcess(f"{shown(url)}, {way}", {"GPULOAD_ENTROPY_BYTES": "0"})
    try:
        with tempfile.TemporaryDirectory(prefix="gpuload-bench-") as folder:
            copy_to = folder if way == COPIED else None
            return Way(url, way, Timed(**process.ask("storage", timeout_s=LIMIT_S, url=url, copy_to=copy_to, **how)))
    except LoaderProcessError as error:
        return Way(url, way, None, str(error).removeprefix(f"{process.name}: "))
    finally:
        process.close()


def show(ways: Sequence[Way], console: Console) -> None:
    """The table for the terminal, and in words when copying pays."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for number, head in enumerate(HEAD):
        drawn.add_column(head, justify="left" if number < 2 else "right", overflow="fold")
    for way in ways:
        drawn.add_row(*_cells(way))
    console.print(drawn)
    for way in ways:
        if way.reason:
            console.print(f"{way.name}: {way.reason}", style="yellow", markup=False)
    for sentence in sentences(ways):
        console.print(sentence, markup=False)
    console.print(f"{CONDITIONS} On {this_machine()}.", style="dim", markup=False)


CONDITIONS = (
    "One run each, from opening the data set to the last batch, in random order; compiling is not counted, no index is "
    "kept from run to run, a local source left the page cache first. Copied by 16 threads; of more than 4 GB the rest "
    "is reckoned at the same rate. A server's own cache is warmer for the second run."
)


def _cells(way: Way) -> list[str]:
    timed = way.timed
    if timed is None or not timed.images:
        return [shown(way.url), way.way, "not timed", "", "", "", ""]
    reckoned = " (reckoned)" if timed.copied_bytes < timed.total_bytes else ""
    return [
        shown(way.url),
        way.way,
        f"{timed.copied_s:.1f} s{reckoned}" if timed.total_bytes else "",
        f"{timed.arrivals_s[0]:.2f} s",
        f"{timed.arrivals_s[-1]:.2f} s",
        str(timed.images[-1]),
        rate(steady_images_per_s(timed)),
    ]


def steady_images_per_s(timed: Timed) -> float:
    """From the data set's opening on: what further epochs would come at, as far as one can tell from the first."""
    return timed.images[-1] / (timed.arrivals_s[-1] - timed.opened_s)


def breaks_even_after(streamed: Timed, copied: Timed) -> float | None:
    """Images after which copying first is ahead, 0 where it is from the start; None: never at these rates.

    Each way is a line, from when its data set was open, at its steady rate.
    """
    slower, faster = 1 / steady_images_per_s(streamed), 1 / steady_images_per_s(copied)
    ahead_s = copied.opened_s - streamed.opened_s
    if ahead_s <= 0:
        return 0.0 if faster <= slower else None
    return ahead_s / (slower - faster) if slower > faster else None


def sentences(ways: Sequence[Way]) -> list[str]:
    """For each storage, what streaming gains and when copying would be ahead."""
    found = []
    for streamed, copied in zip(ways[::2], ways[1::2], strict=True):
        if streamed.timed is None or copied.timed is None:
            continue
        first = f"{shown(streamed.url)}: the first batch after {streamed.timed.arrivals_s[0]:.2f} s streamed, "
        first += f"{copied.timed.arrivals_s[0]:.2f} s copied first ({size(copied.timed.total_bytes)}); "
        images = breaks_even_after(streamed.timed, copied.timed)
        if images is None:
            found.append(first + "copying never catches up at these rates.")
        else:
            found.append(first + f"copying is ahead after {images:.0f} images.")
    return found


def json_lines(ways: Sequence[Way], how: dict[str, Any]) -> list[dict[str, Any]]:
    """A line a storage and way. A URL is without its credentials."""
    measured = measured_on()
    lines = []
    for way in ways:
        timed = way.timed
        figures: dict[str, Any] = {}
        if timed is not None and timed.images:
            figures = {
                "first_batch_s": timed.arrivals_s[0],
                "all_images_s": timed.arrivals_s[-1],
                "images": timed.images[-1],
                "images_per_s": steady_images_per_s(timed),
                "copied_s": timed.copied_s,
                "copied_bytes": timed.copied_bytes,
                "total_bytes": timed.total_bytes,
                "opened_s": timed.opened_s,
            }
        named = {"storage": shown(way.url), "way": way.way, "not_timed": way.reason or None}
        lines.append({**named, **figures, "parameters": how, **measured})
    return lines


def report(ways: Sequence[Way]) -> str:
    """The page."""
    timed = [(way, way.timed) for way in ways if way.timed is not None]
    curves = [
        page.Curve(
            way.name, [0.0, found.opened_s, *found.arrivals_s], [0.0, 0.0, *map(float, found.images)],
            ours=way.way == STREAMED,
        )
        for way, found in timed
    ]  # fmt: skip
    first = [page.Bar(way.name, found.arrivals_s[0], ours=way.way == STREAMED) for way, found in timed]
    left_out = "; ".join(f"{way.name}: {way.reason}" for way in ways if way.reason)
    sections = [
        page.Section("The first batch", "", page.bars("s", first, digits=2)),
        page.Section("Images over time", "From the start, copying included.", page.curves("seconds", "images", curves)),
        page.Section("All figures", left_out, page.table(page.Table(HEAD, [_cells(way) for way in ways]))),
        page.Section("How this was measured", f"{CONDITIONS} On {this_machine()}."),
    ]
    said = " ".join(sentences(ways)) or "No storage could be measured both ways; the table says why."
    return page.page("gpuload bench: storage", said, sections)
