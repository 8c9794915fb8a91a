"""The command line: which subcommands there are, and how an error of gpuload's looks on a terminal.

Owns the list; each subcommand's options and work stand in its own file, which is imported when it is called, so that
`gpuload --help` answers at once and imports neither torch nor NumPy.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpuload.core.errors import GpuloadError


@dataclass(frozen=True)
class Subcommand:
    """Where a subcommand is found, and what the list of commands says of it."""

    module: str
    function: str
    help: str


SUBCOMMANDS = {
    "demo": Subcommand("gpuload.cli.demo", "demo_command", "Train from photographs beside torch's DataLoader."),
    "bench": Subcommand("gpuload.cli.bench.command", "bench_command", "Compare loaders on your own data."),
    "tune": Subcommand(
        "gpuload.cli.tune.command", "tune_command", "Find the depth and the threads for your data and step."
    ),
    "pack": Subcommand("gpuload.cli.pack", "pack_command", "Write a data set as shards: tar, TFRecord, Parquet, MDS."),
    "verify": Subcommand(
        "gpuload.cli.verify", "verify_command", "Read everything again: checksums, structure, images."
    ),
    "inspect": Subcommand("gpuload.cli.inspect", "inspect_command", "Say what a data set holds, and show it."),
    "index": Subcommand("gpuload.cli.index", "index_command", "Index shards, so that training starts at once."),
}


class Subcommands(TyperGroup):
    """The commands of SUBCOMMANDS: by their line of help until one is called, then the real one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.commands.update({name: TyperCommand(name, help=found.help) for name, found in SUBCOMMANDS.items()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in SUBCOMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GpuloadError as error:
            typer.echo(f"gpuload: {error}", err=True)
            raise typer.Exit(1) from error


def load(name: str) -> Any:
    """The subcommand, with its options."""
    found = SUBCOMMANDS[name]
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(importlib.import_module(found.module), found.function))
    return typer.main.get_command(single)


app = typer.Typer(
    name="gpuload", cls=Subcommands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@app.callback()
def gpuload() -> None:
    """Keep the GPU fed: a drop-in DataLoader for JPEG training data."""


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
