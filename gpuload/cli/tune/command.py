"""`gpuload tune`: what was asked, and the recommendation four times over: a table, a config file, JSON, a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gpuload.cli.bench.data import look_at
from gpuload.cli.bench.machine import this_machine, versions
from gpuload.cli.bench.subjects import pil_transform
from gpuload.cli.tune.consumer import Consumer, timed
from gpuload.cli.tune.measure import Tuned
from gpuload.cli.tune.page import report
from gpuload.cli.tune.script import watch
from gpuload.cli.tune.search import Found, search
from gpuload.cli.tune.wording import conditions, rows, summary
from gpuload.config import DECODERS
from gpuload.core.errors import ConfigError
from gpuload.tune.settings_file import save_setting

TRANSFORMS = ("train", "eval")
SIZE = 224


def tune(
    data: str,
    *,
    step_ms: float,
    jitter: float,
    script: str | None,
    batch_size: int | None,
    transform: str,
    decoder: str,
    device: str,
    seconds: float,
    config_file: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    console: Console,
) -> Found:
    """Finds a setting for `data` and a consumer, shows it on `console` and writes the files asked for."""
    if transform not in TRANSFORMS:
        raise ConfigError(f"--transform {transform}: choose train or eval")
    decoders = [name.strip() for name in decoder.split(",") if name.strip()]
    for name in decoders or [decoder]:
        if name not in DECODERS or name == "auto":
            raise ConfigError(f"--decoder {name}: choose from native, pillow, dali")
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size}: must be at least 1")
    if not 0.5 <= seconds <= 600:
        raise ConfigError(f"--seconds {seconds:g}: choose 0.5 to 600, of each measurement")
    for path in (config_file, json_file, html_file):
        if path is not None:
            _check_writable(path)
    dataset = _dataset(data, transform)
    with console.status("") as status:
        consumer, size = _consumer(step_ms, jitter, script, batch_size, status.update)
        options = {"device": device, "decoder": decoders[0]}
        found = search(Tuned(dataset, size, options), consumer, decoders=decoders, seconds=seconds, tell=status.update)
    show(found, data, console)
    if config_file is not None:
        save_setting(config_file, found.chosen.setting, [f"gpuload tune {data}", *summary(found)])
        console.print(f'DataLoader(..., config="{config_file}") runs so', markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(found, data, len(dataset), size), indent=1) + "\n")
        console.print(f"JSON: {json_file}", markup=False)
    if html_file is not None:
        html_file.write_text(report(found, data, this_machine()), encoding="utf-8")
        console.print(f"report: {html_file}", markup=False)
    return found


def tune_command(
    data: Annotated[str, typer.Argument(help="Folder of images, of class folders, or of .tar shards; or one .tar.")],
    step_ms: Annotated[float, typer.Option(help="A training step, in milliseconds.")] = 50.0,
    jitter: Annotated[float, typer.Option(help="Its standard deviation over its mean.")] = 0.1,
    script: Annotated[
        str | None, typer.Option(help="A training script with its arguments, whose steps are measured instead.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a batch.", show_default="the script's, else 64")
    ] = None,
    transform: Annotated[str, typer.Option(help="train (random crop, flip) or eval.")] = "train",
    decoder: Annotated[str, typer.Option(help="The one to tune, then others to compare it with.")] = "native,pillow",
    device: Annotated[str, typer.Option(help="Where batches are wanted: cpu, or a CUDA device.")] = "auto",
    seconds: Annotated[float, typer.Option(help="Of each measurement.")] = 4.0,
    config: Annotated[Path, typer.Option(help="Where to write the recommendation, for DataLoader(config=).")] = Path(
        "gpuload.toml"
    ),
    json: Annotated[Path | None, typer.Option(help="Write all figures.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report page.")] = None,
) -> None:
    """How deep should I prefetch, with how many threads? Measured on your data, for your step, and verified."""
    tune(
        data, step_ms=step_ms, jitter=jitter, script=script, batch_size=batch_size, transform=transform,
        decoder=decoder, device=device, seconds=seconds, config_file=config, json_file=json, html_file=html,
        console=Console(highlight=False),
    )  # fmt: skip


def _check_writable(path: Path) -> None:
    """Before minutes of work: raises ConfigError. Leaves no file behind."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another file") from error
    if not existed:
        path.unlink()


def _consumer(
    step_ms: float, jitter: float, script: str | None, batch_size: int | None, tell: Any
) -> tuple[Consumer, int]:
    """Who takes the batches, and how large they are."""
    if script is None:
        return timed(step_ms, jitter), batch_size or 64
    tell(f"running {script}")
    watched = watch(script)
    return watched.consumer, batch_size or watched.batch_size or 64


def _dataset(data: str, transform: str) -> Any:
    from torchvision.datasets import ImageFolder

    from gpuload.dataset import ShardDataset

    kind = look_at(data)
    pil = pil_transform(transform, SIZE)
    if kind.kind == "classes":
        return ImageFolder(kind.where, transform=pil)
    return ShardDataset(kind.where, transform=pil)


def show(found: Found, data: str, console: Console) -> None:
    """The table for the terminal, and what follows from it."""
    content = rows(found)
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for number, head in enumerate(content.head):
        drawn.add_column(head, justify="left" if number == 0 else "right")
    for cells in content.rows:
        drawn.add_row(*cells, style="bold" if cells[0] == "verified" else "")
    console.print(drawn)
    for line in summary(found):
        console.print(line, markup=False)
    console.print(conditions(found, data), style="dim", markup=False)
    console.print(str(this_machine()), style="dim", markup=False)


def as_json(found: Found, data: str, samples: int, batch_size: int) -> dict[str, Any]:
    """All that is needed to read the figures years later."""
    chosen, verified = found.chosen, found.verified
    return {
        "setting": asdict(chosen.setting),
        "predicted": {"images_per_s": chosen.images_per_s, "starved": chosen.starved, "bound": chosen.bound.what},
        "verified": {
            "images_per_s": verified.images_per_s,
            "starved": verified.starved,
            "wait_p99_s": verified.wait_s(0.99),
            "batch_bytes": verified.batch_bytes,
            "resident_bytes": verified.resident_bytes,
        },
        "confirmed": found.confirmed,
        "alone_images_per_s": found.together.images_per_s,
        "rounds": [
            {
                "setting": asdict(one.run.setting),
                "predicted_images_per_s": one.prediction.images_per_s,
                "images_per_s": one.run.images_per_s,
                "starved": one.run.starved,
            }
            for one in found.rounds
        ],
        "consumer": {"what": found.consumer.what, "mean_step_s": found.consumer.mean_s, "cpu_s": found.consumer.cpu_s},
        "parameters": {"data": data, "samples": samples, "batch_size": batch_size},
        "machine": asdict(this_machine()),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
