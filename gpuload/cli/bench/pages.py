"""A comparison's page, of one device or of several side by side.

Owns which sections there are and what they say; cells are table.py's, the arithmetic of CPU against GPU is
preprocessing.py's, drawing is report/html.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuload.cli.bench import subjects, table
from gpuload.cli.bench.machine import this_machine, versions
from gpuload.cli.bench.measure import Spread
from gpuload.cli.bench.preprocessing import MODELS, MOST_BATCH, MOST_CORES, SMALLEST_BYTES, Duel, Prices, Side
from gpuload.cli.bench.run import Outcome, Row
from gpuload.core.wording import percent, rate
from gpuload.report import html

GRID_CORES = (1, 2, 4, 8, 16, 32, 64, 128)
GRID_BATCHES = (1, 4, 16, 64, 256, 1024)


def report(outcomes: Sequence[Outcome], duel: Duel | None, prices: Prices) -> str:
    """The page as HTML text. duel: CPU against GPU, None where only one of them was asked for."""
    sections: list[html.Section] = []
    for outcome in outcomes:
        on = f" on {_device(outcome)}" if len(outcomes) > 1 else ""
        sections += _rows_sections(outcome, on)
    if duel is not None:
        sections += duel_sections(duel, prices)
    sections.append(html.Section("The loaders", figure=html.table(_what(outcomes))))
    for outcome in outcomes:
        on = f", {_device(outcome)}" if len(outcomes) > 1 else ""
        sections.append(html.Section(f"How this was measured{on}", table.conditions(outcome)))
    sections.append(html.Section("On what", str(this_machine()), pre=_versions_text()))
    for outcome in outcomes:
        on = f" on {_device(outcome)}" if len(outcomes) > 1 else ""
        sections += [html.Section(f"What {row.name} does{on}", pre=row.plan) for row in _timed(outcome) if row.plan]
    return html.page("gpuload bench", table.lead(_timed(outcomes[0])), sections)


def _rows_sections(outcome: Outcome, on: str) -> Iterator[html.Section]:
    timed = _timed(outcome)

    def bars(key: str, unit: str, digits: int | None = None, scale: float = 1.0, of: Sequence[Row] = timed) -> str:
        content = [bar(row, row.figures[key], scale) for row in of if key in row.figures]
        return html.bars(unit, content, digits=digits)

    yield html.Section(f"Images per second, the loader alone{on}", "", bars("images_per_s", "images/s"))
    yield html.Section(f"Time the GPU would wait{on}", "", bars("starved_pct", "% starved", 1))
    waits = "The wait that 99 of 100 batches stay below, under the same timed step."
    yield html.Section(f"The longest waits{on}", waits, bars("wait_p99_s", "ms", 0, 1000.0))
    cold = [row for row in timed if "cold_images_per_s" in row.figures and (row.still_cached or 0.0) <= table.CACHED]
    if cold:
        text = "From iter() on, after the files have left the page cache."
        yield html.Section(f"Images per second, cold{on}", text, bars("cold_images_per_s", "images/s", of=cold))
    if any(row.training is not None for row in timed):
        yield _training_section(outcome, timed, on)
    yield html.Section(f"CPU seconds per 1000 images{on}", "", bars("cpu_s_per_1000", "s", 2))
    yield html.Section(f"All figures{on}", "; ".join(table.left_out(outcome)), html.table(table.rows(outcome)))


def _training_section(outcome: Outcome, timed: Sequence[Row], on: str) -> html.Section:
    asked = outcome.comparison.training or {}
    waits = [
        html.Waits(row.name, row.training.waits_s[1:], row.training.steps_s[1:], _ours(row))
        for row in timed
        if row.training is not None
    ]
    steps = "; ".join(
        f"{row.name} {row.training.inflation:.2f}"
        for row in timed
        if row.training is not None and row.training.inflation is not None
    )
    text = f"A step's time against the same step on random data in memory: {steps}." if steps else ""
    return html.Section(f"Training {asked.get('model', '')}{on}", text, html.waiting("seconds", waits))


def duel_sections(duel: Duel, prices: Prices) -> Iterator[html.Section]:
    """CPU against GPU preprocessing: what an image takes, where they cross, what a model needs, what it costs."""
    sides = (duel.cpu, duel.gpu)
    yield html.Section(
        "CPU against GPU preprocessing",
        f"The same pipeline on both, {duel.cores} host cores, batches of {duel.batch_size}. "
        + " ".join(f"{side.name}: {side.source}." for side in sides),
        html.table(_takes(duel, prices)),
    )
    cores = [0, *(c for c in GRID_CORES if c <= 4 * max(duel.cores, 16))]
    lines = [
        html.Curve(
            side.name, cores,
            [side.images_per_s(cores=c, batch_size=duel.batch_size) for c in cores], ours=side is duel.gpu,
        )
        for side in sides
    ]  # fmt: skip
    chart = html.curves("host cores", "images/s", lines, marked=float(duel.cores))
    yield html.Section("Over host cores", _cores_sentence(duel), chart)
    cells = [
        [
            duel.gpu.images_per_s(cores=c, batch_size=b) / duel.cpu.images_per_s(cores=c, batch_size=b)
            for c in GRID_CORES
        ]
        for b in GRID_BATCHES
    ]
    marked = (GRID_CORES.index(duel.cores), GRID_BATCHES.index(duel.batch_size)) if (
        duel.cores in GRID_CORES and duel.batch_size in GRID_BATCHES
    ) else None  # fmt: skip
    grid = html.grid(
        "host cores", "batch size", GRID_CORES, GRID_BATCHES, cells, "times the CPU's rate on the GPU", marked=marked
    )
    yield html.Section("Where they cross", " ".join(crossing_sentences(duel)), grid)
    yield html.Section(
        "What a model needs",
        "Host cores that are busy with preprocessing while one GPU trains at these rates (H100 or H200, middle of what "
        "is published), and what is left of the GPU for the model.",
        html.table(_models(duel, prices)),
    )


def _takes(duel: Duel, prices: Prices) -> html.Table:
    priced = prices.core is not None
    head = ["preprocessing on", "CPU us/image", "GPU us/image", "images/s, measured", "images/s, by the model"]
    rows = []
    for side in (duel.cpu, duel.gpu):
        row = [
            side.name,
            f"{1e6 * side.host_s:.0f}",
            f"{1e6 * side.gpu_image_s(duel.batch_size):.2f}",
            "" if side.measured is None else rate(side.measured),
            rate(side.images_per_s(cores=duel.cores, batch_size=duel.batch_size)),
        ]
        rows.append(row + ([cost_text(side, prices, duel.batch_size)] if priced else []))
    note = "By the model: the slower of all cores at work and the GPU by itself; measured, a loader also does the rest."
    if priced:
        head.append("cost, million images")
        note += f" Prices an hour: {prices.core:g} a core" + (f", {prices.gpu:g} the GPU." if prices.gpu else ".")
    return html.Table(head, rows, note)


def cost_text(side: Side, prices: Prices, batch_size: int) -> str:
    """The cost of a million images, "" where a price is missing."""
    cost = side.cost_per_million(prices, batch_size=batch_size)
    return "" if cost is None else f"{cost:.3f}"


def _cores_sentence(duel: Duel) -> str:
    found = duel.crossings.cores
    if found == 1:
        return "With a single core already, the CPU is as fast."
    if found is None:
        return f"With up to {MOST_CORES} cores the CPU does not catch up."
    return f"From {found} cores on the CPU is as fast as the GPU, which then sets its own pace."


def crossing_sentences(duel: Duel) -> Iterator[str]:
    """Host cores, batch and image size at which the faster one changes, the rest being equal."""
    where = duel.crossings
    yield "Host cores: " + _cores_sentence(duel)
    if where.batch_size is None:
        yield f"Batch: up to {MOST_BATCH} the GPU is not faster with {duel.cores} cores."
    else:
        yield f"Batch: the GPU is faster from {where.batch_size} image{'s' * (where.batch_size > 1)} on."
    if where.pixels_ratio is None:
        yield f"Image size: at no size is the GPU faster with {duel.cores} cores."
    elif where.pixels_ratio <= 0.01:
        yield "Image size: the GPU is faster at any size"
        yield f"(files below {SMALLEST_BYTES} bytes are decoded on the CPU all the same)."
    else:
        yield f"Image size: the GPU is faster from {where.pixels_ratio:.2g} times the pixels of these images on."


def _models(duel: Duel, prices: Prices) -> html.Table:
    head = ["model", "images/s", f"cores, {duel.cpu.name}", f"cores, {duel.gpu.name}", "GPU left for the model"]
    rows = []
    for name, needed in MODELS.items():
        share = needed * duel.gpu.gpu_image_s(duel.batch_size)
        left = percent(max(0.0, 1 - share))
        cores = [f"{side.cores_for(needed):.1f}" for side in (duel.cpu, duel.gpu)]
        rows.append([name, rate(needed), *cores, left if share < 1 else "none"])
    return html.Table(head, rows)


def _timed(outcome: Outcome) -> list[Row]:
    return [row for row in outcome.rows if row.figures]


def _device(outcome: Outcome) -> str:
    return {"cpu": "the CPU", "cuda": "the GPU"}[outcome.comparison.setting.device]


def _what(outcomes: Sequence[Outcome]) -> html.Table:
    names = dict.fromkeys(row.name for outcome in outcomes for row in outcome.rows)
    return html.Table(("loader", "what it is"), [(name, subjects.SUBJECTS[name].what) for name in names], words=(1,))


def _ours(row: Row) -> bool:
    return row.name.startswith("gpuload")


def bar(row: Row, found: Spread, scale: float = 1.0) -> html.Bar:
    """One figure of a row as a bar with its range."""
    return html.Bar(row.name, scale * found.median, scale * found.low, scale * found.high, ours=_ours(row))


def _versions_text() -> str:
    return "\n".join(f"{name:<12} {version or 'absent'}" for name, version in versions().items())
