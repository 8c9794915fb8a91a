"""The command line: names, options and help of every subcommand.

Owns the options and how an error looks on a terminal. A subcommand's work is imported when it runs, so that
`gpuload --help` answers at once and imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpuload.core.errors import GpuloadError

if TYPE_CHECKING:
    from rich.console import Console


class _Commands(TyperGroup):
    """An error of gpuload's own ends the command with its message and code 1, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GpuloadError as error:
            typer.echo(f"gpuload: {error}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="gpuload",
    cls=_Commands,
    help="Keep the GPU fed: a drop-in DataLoader for JPEG training data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def demo(
    data: Annotated[str | None, typer.Option(help="Your own images: a folder, tar shards or a URL of shards.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for demo-report.html.")] = Path("."),
    seconds: Annotated[float, typer.Option(help="Time for all measuring together.")] = 90.0,
    threads: Annotated[int | None, typer.Option(help="Workers for torch, threads for gpuload [default: CPUs].")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Make a data set of photographs, train from it through torch's DataLoader and gpuload, and compare."""
    from gpuload.cli.demo import demo as run

    run(data=data, out=out, seconds=seconds, threads=threads, device=device, console=_console())


@app.command()
def bench(
    data: Annotated[str, typer.Argument(help="Folder of images, of class folders, or of .tar shards; or one .tar.")],
    device: Annotated[str, typer.Option(help="Where batches are wanted: cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Workers for torch, threads for others [default: CPUs].")] = None,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 64,
    transform: Annotated[str, typer.Option(help="train (random crop, flip) or eval.")] = "train",
    against: Annotated[str, typer.Option(help="Peers beside torch: torch-v2, dali.")] = "torch,torch-v2,dali",
    decoder: Annotated[str, typer.Option(help="gpuload's rows: also auto.")] = "pillow,dali,fallback",
    rounds: Annotated[int, typer.Option(help="Rounds, interleaved over all loaders.")] = 5,
    round_s: Annotated[float, typer.Option(help="About how long torch's loader takes for one pass of a round.")] = 3.0,
    step_ms: Annotated[
        float | None, typer.Option(help="Timed step that stands for a GPU [default: 1.3 times torch's rate].")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write a JSON line per loader.")] = None,
) -> None:
    """How much faster is it than what I had, on my data? Torch's DataLoader, DALI and gpuload side by side."""
    from gpuload.cli.bench.command import bench as run

    run(
        data, device=device, threads=threads, batch_size=batch_size, transform=transform, against=against,
        decoder=decoder, rounds=rounds, round_s=round_s, step_ms=step_ms, html_file=html, json_file=json,
        console=_console(),
    )  # fmt: skip


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
