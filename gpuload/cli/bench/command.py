"""`gpuload bench`: what was asked, checked before anything runs; then tables, JSON lines and a page.

Owns the options and the order of things. What is compared how is run.py's, the storage comparison is storage.py's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import look_at
from gpuload.cli.bench.lines import json_lines
from gpuload.cli.bench.machine import this_machine
from gpuload.cli.bench.pages import bar, crossing_sentences, report
from gpuload.cli.bench.preprocessing import Duel, Prices, duel
from gpuload.cli.bench.run import Comparison, Outcome, Row, compare
from gpuload.cli.bench.table import conditions, lead, rows, show
from gpuload.cli.bench.training import MODELS
from gpuload.config import default_threads
from gpuload.core.errors import ConfigError
from gpuload.report import html as page

__all__ = ["bench", "bench_command", "conditions", "lead", "rate_bar", "rows", "show"]

TRAINING_STEPS, RESIDENT_STEPS, TRAINING_LIMIT_S = 60, 20, 60.0


def bench(
    data: str, *, devices: Sequence[str], threads: int | None, batch_size: int, transform: str, against: str,
    decoder: str, rounds: int, round_s: float, step_ms: float | None, model: str | None, cache: str, prices: Prices,
    html_file: Path | None, json_file: Path | None, console: Console,
) -> list[Outcome]:  # fmt: skip
    """Runs the comparison on each device, shows tables on `console` and writes the files asked for."""
    for option, value, known in (
        ("--transform", transform, ("train", "eval")), ("--model", model, (None, *MODELS)),
        ("--cache", cache, ("warm", "cold")), *(("--device", device, ("cpu", "cuda")) for device in devices),
    ):  # fmt: skip
        if value not in known:
            raise ConfigError(f"{option} {value}: choose {' or '.join(filter(None, known))}")
    for option, number in (("--batch-size", batch_size), ("--rounds", rounds), ("--threads", threads or 1)):
        if number < 1:
            raise ConfigError(f"{option} {number}: must be at least 1")
    check_writable(("--json", json_file), ("--html", html_file))
    usable = _usable(devices)
    names = subjects.chosen(_names(against), _names(decoder))
    kind, workers = look_at(data), threads or default_threads()
    training = None
    if model is not None:
        training = {
            "model": model, "steps": TRAINING_STEPS, "seed": 0, "limit_s": TRAINING_LIMIT_S,
            "resident_steps": RESIDENT_STEPS,
        }  # fmt: skip
    outcomes: list[Outcome] = []
    step_s = None if step_ms is None else step_ms / 1000
    for device in usable:
        setting = subjects.Setting(kind, device, workers, batch_size)
        comparison = Comparison(
            setting, names, transform, rounds, round_s, step_s, cold=cache == "cold", training=training
        )  # fmt: skip
        with console.status("") as status:
            outcome = compare(comparison, lambda sentence: status.update(sentence))
        step_s = outcome.step_s  # the same for the next device
        if len(devices) > 1:
            console.print(f"device {device}", style="bold")
        show(outcome, console)
        outcomes.append(outcome)
    duelled = _duel(devices, outcomes, console)
    if json_file is not None:
        lines = [line for outcome in outcomes for line in json_lines(outcome)]
        json_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        console.print(f"JSON lines: {json_file}", markup=False, soft_wrap=True)
    if html_file is not None:
        html_file.write_text(report(outcomes, duelled, prices), encoding="utf-8")
        console.print(f"report: {html_file}", markup=False, soft_wrap=True)
    return outcomes


def bench_command(
    data: Annotated[
        str | None, typer.Argument(help="Folder of images, of class folders, or of .tar shards; or one .tar.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where batches are wanted: cpu, cuda, or cpu,cuda to compare.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Workers for torch, threads for others [default: CPUs].")] = None,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 64,
    transform: Annotated[str, typer.Option(help="train (random crop, flip) or eval.")] = "train",
    against: Annotated[
        str, typer.Option(help="Peers beside torch: torchvision-v2, dali, webdataset, streaming.")
    ] = "torch,torch-v2,dali",
    decoder: Annotated[str, typer.Option(help="gpuload's rows: also auto.")] = "native,pillow,dali,fallback",
    rounds: Annotated[int, typer.Option(help="Rounds, interleaved over all loaders.")] = 5,
    round_s: Annotated[float, typer.Option(help="About how long torch's loader takes for one pass of a round.")] = 3.0,
    step_ms: Annotated[
        float | None, typer.Option(help="Timed step that stands for a GPU [default: by torch's rate].")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Train a real one with each loader, too: tiny or resnet18.")] = None,
    cache: Annotated[str, typer.Option(help="cold: also with the files out of the page cache.")] = "warm",
    price_cpu: Annotated[float | None, typer.Option(help="Price of one host core an hour, for the cost.")] = None,
    price_gpu: Annotated[float | None, typer.Option(help="Price of the GPU an hour, for the cost.")] = None,
    storage: Annotated[
        list[str] | None, typer.Option(help="Instead: stream from this URL, and copy it first. Repeat to compare.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="With --storage: images to wait for [default: all].")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write a JSON line per loader.")] = None,
) -> None:
    """How much faster is it than what I had, on my data? Torch's DataLoader, its peers and gpuload side by side."""
    console = Console(highlight=False)
    if storage:
        from gpuload.cli.bench.storage import bench_storage

        if data is not None:
            raise ConfigError(f"{data}: with --storage the data is what the URLs hold; leave the argument out")
        check_writable(("--json", json), ("--html", html))
        bench_storage(
            storage, images=images, threads=threads or default_threads(), batch_size=batch_size, transform=transform,
            html_file=html, json_file=json, console=console,
        )  # fmt: skip
        return
    if data is None:
        raise ConfigError("no data given: gpuload bench FOLDER, or --storage URL for storages")
    bench(
        data, devices=_names(device), threads=threads, batch_size=batch_size, transform=transform, against=against,
        decoder=decoder, rounds=rounds, round_s=round_s, step_ms=step_ms, model=model, cache=cache,
        prices=Prices(price_cpu, price_gpu), html_file=html, json_file=json, console=console,
    )  # fmt: skip


def check_writable(*files: tuple[str, Path | None]) -> None:
    """Raises ConfigError for an option whose file cannot be written: before minutes of measuring, not after."""
    for option, path in files:
        if path is None:
            continue
        existed = path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise ConfigError(f"{option} {path}: cannot be written: {error.strerror}; choose another file") from error
        if not existed:
            path.unlink()


def rate_bar(row: Row) -> page.Bar:
    """Images per second as a bar with its range."""
    return bar(row, row.figures["images_per_s"])


def _names(option: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in option.split(",") if name.strip()))


def _usable(devices: Sequence[str]) -> list[str]:
    """Those that can be measured here. Raises ConfigError where none can."""
    found = [device for device in devices if device != "cuda" or _has_gpu()]
    if not found:
        raise ConfigError(
            "--device cuda: no CUDA GPU here; --device cpu,cuda measures the CPU and predicts the GPU"
            if devices
            else "--device: choose cpu, cuda or both"
        )
    return found


def _has_gpu() -> bool:
    if this_machine().gpu is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _duel(devices: Sequence[str], outcomes: Sequence[Outcome], console: Console) -> Duel | None:
    """CPU against GPU where both were asked for, said in short on the terminal."""
    if not {"cpu", "cuda"} <= set(devices):
        return None
    by_device = {outcome.comparison.setting.device: outcome for outcome in outcomes}
    found = duel(by_device["cpu"], by_device.get("cuda"))
    if found is None:
        console.print("CPU against GPU: no row of gpuload's was timed on the CPU", style="yellow")
        return None
    console.print("CPU against GPU preprocessing", style="bold")
    for side in (found.cpu, found.gpu):
        rates = f"{side.images_per_s(cores=found.cores, batch_size=found.batch_size):.0f} images/s by the model"
        console.print(f"{side.name}: {1e6 * side.host_s:.0f} us of a core an image, {rates}; {side.source}")
    for sentence in crossing_sentences(found):
        console.print(sentence)
    return found
