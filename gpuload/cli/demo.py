"""`gpuload demo`: photographs to shards to a trained model, through torch's DataLoader and through gpuload.

Owns the sequence, the time budget and the report's story. The data is demo_data.py's, the measuring is bench's: both
loaders read the same `ShardDataset`, so that the import is the only difference.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import fsspec
import typer
from rich.console import Console

from gpuload.cli import demo_data
from gpuload.cli.bench import command, subjects
from gpuload.cli.bench.data import look_at
from gpuload.cli.bench.machine import this_machine
from gpuload.cli.bench.run import Comparison, Outcome, Row, compare
from gpuload.config import default_threads
from gpuload.core.errors import ConfigError, GpuloadError
from gpuload.core.wording import percent
from gpuload.report import html

NEXT = "Next: in your script, replace `from torch.utils.data import DataLoader` by `from gpuload import DataLoader`."

ROUNDS = 3
STEPS = 80
SHARD_SIZE = "16MB"
"""Small shards, so that the demo's 70 MB are several and their order matters."""


def demo(*, data: str | None, out: Path, seconds: float, threads: int | None, device: str, console: Console) -> Outcome:
    """Everything that `make demo` shows; the report is written to `out`/demo-report.html."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {device}: choose auto, cpu or cuda")
    if not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g}: must be more than 0")
    began_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    cache = out / ".gpuload" / "demo"
    with console.status("") as status:

        def tell(sentence: str) -> None:
            status.update(sentence)

        made, shards = _shards(data, cache, tell)
        console.print(made, markup=False)
        device = _device(device)
        setting = subjects.Setting(look_at(str(shards)), device, threads or default_threads(), 64, shared_dataset=True)
        training = {
            "model": "resnet18" if device == "cuda" else "tiny",
            "steps": STEPS,
            "seed": 0,
            "limit_s": 0.2 * seconds,
        }
        comparison = Comparison(
            setting, ["torch", "gpuload"], rounds=ROUNDS, round_s=seconds / 32, limit_s=0.5 * seconds, training=training
        )  # fmt: skip
        outcome = compare(comparison, tell)
    command.show(outcome, console)
    for row in outcome.rows:
        if row.training is not None:
            console.print(_training_line(row), markup=False)
    ours = outcome.rows[-1]
    if ours.plan:
        console.print(f"\nWhat gpuload does with it (loader.explain()):\n{ours.plan}\n", markup=False, soft_wrap=True)
    page = out / "demo-report.html"
    page.write_text(report(outcome, made), encoding="utf-8")
    console.print(f"Report: {page}   ({time.monotonic() - began_s:.0f} s in all)", markup=False)
    if ours.reason:
        raise GpuloadError(f"gpuload could not be measured on this data: {ours.reason}")
    console.print(NEXT, style="bold", markup=False)
    return outcome


def demo_command(
    data: Annotated[str | None, typer.Option(help="Your own images: folder, .tar shards, or a URL of shards.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for demo-report.html and, in .gpuload, the data.")] = Path("."),
    seconds: Annotated[float, typer.Option(help="Time for all measuring together.")] = 90.0,
    threads: Annotated[int | None, typer.Option(help="Workers for torch, threads for gpuload [default: CPUs].")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Make a data set of photographs, train from it through torch's DataLoader and through gpuload, and compare."""
    demo(data=data, out=out, seconds=seconds, threads=threads, device=device, console=Console(highlight=False))


def _shards(data: str | None, cache: Path, tell: Any) -> tuple[str, Path]:
    """A sentence on the data, and the folder or shard to train from."""
    if data is not None and "://" in data:
        return _fetched(data, cache / "fetched", tell)
    if data is not None:
        seen = look_at(data)
        if seen.kind == "tar":
            return f"{data}: {seen.wording}", Path(seen.where)
        source, sentence = Path(seen.where), f"{data}: {seen.wording}, packed to tar shards"
        packed = cache / f"packed-{source.resolve().name}"
    else:
        made = demo_data.make(cache / "photographs", tell=tell)
        source, sentence = cache / "photographs" / "images", f"{made}; packed to tar shards"
        packed = cache / "shards"
    from gpuload.cli.pack import pack

    tell("packing to tar shards")
    pack(str(source), str(packed), format="tar", shard_size=SHARD_SIZE)
    return sentence, packed


def _fetched(url: str, folder: Path, tell: Any) -> tuple[str, Path]:
    """Tar shards at a URL (`*` allowed), copied once: the demo compares loaders, not the network of the moment."""
    fs, path = fsspec.core.url_to_fs(url)
    found = sorted(fs.glob(path)) if "*" in path else [path] if fs.isfile(path) else sorted(fs.glob(f"{path}/*.tar"))
    if not found:
        raise ConfigError(f"--data {url}: no tar shards there; give a URL of .tar files, `*` allowed")
    folder.mkdir(parents=True, exist_ok=True)
    for shard in found:
        target = folder / Path(shard).name
        if not target.exists():
            tell(f"fetching {target.name}")
            part = target.with_suffix(".part")
            fs.get_file(shard, str(part))
            part.rename(target)
    return f"{url}: {len(found)} tar shards", folder


def _device(asked: str) -> str:
    if asked != "auto":
        return asked
    if this_machine().gpu is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _training_line(row: Row) -> str:
    training = row.training
    assert training is not None
    losses = _smooth(training.losses)
    return (
        f"training with {row.name}: {len(losses)} steps in {training.at_s[-1]:.1f} s, "
        f"loss {losses[0]:.2f} to {losses[-1]:.2f}, waiting {percent(training.waited)} of it"
    )


def _smooth(losses: Any) -> list[float]:
    """Running mean over five steps: single batches of 64 scatter more than the trend moves."""
    return [sum(losses[max(0, i - 4) : i + 1]) / (i + 1 - max(0, i - 4)) for i in range(len(losses))]


def report(outcome: Outcome, made: str) -> str:
    """The page: rate, waiting, loss, then the figures and the plan behind them."""
    timed = [row for row in outcome.rows if row.figures]
    cuda = outcome.comparison.setting.device == "cuda"
    curves, waits = [], []
    for row in timed:
        ours = row.name == "gpuload"
        if row.training is not None:
            curves.append(html.Curve(row.name, row.training.at_s, _smooth(row.training.losses), ours))
        if row.training is not None and cuda:
            waits.append(html.Waits(row.name, row.training.waits_s[1:], row.training.steps_s[1:], ours))
        elif row.stepped is not None:
            count = len(row.stepped.waits_s)
            waits.append(html.Waits(row.name, row.stepped.waits_s[1:], [outcome.step_s] * (count - 1), ours))
    rates = [command.rate_bar(row) for row in timed]
    step = "a ResNet-18 training step" if cuda else f"a timed step of {1000 * outcome.step_s:.0f} ms in a GPU's place"
    reasons = "; ".join(f"{row.name}: {row.reason}" for row in outcome.rows if row.reason)
    plan = "\n\n".join(row.plan for row in timed if row.plan)
    sections = [
        html.Section("The data", made + "."),
        html.Section("Images per second", "Each loader alone, nothing else to do.", html.bars("images/s", rates)),
        html.Section("Waiting", f"Each batch is followed by {step}.", html.waiting("seconds", waits)),
        html.Section(
            "Training",
            "A network trained from scratch, same seed for both; running mean over five steps.",
            html.curves("seconds of training", "loss", curves) if curves else "",
        ),
        html.Section("All figures", reasons, html.table(command.rows(outcome))),
        html.Section("What gpuload does", "loader.explain() prints this.", pre=plan),
        html.Section("How this was measured", command.conditions(outcome) + f" On {this_machine()}."),
        html.Section("Next", "Change one line in your training script:", pre=_CHANGE),
    ]
    return html.page("gpuload demo", command.lead(timed), sections)


_CHANGE = "- from torch.utils.data import DataLoader\n+ from gpuload import DataLoader"
