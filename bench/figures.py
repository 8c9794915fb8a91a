"""Figures of a benchmark, each beside what the project promises: printed as they come, kept as a JSON line.

Owns the command line that such benchmarks share (--json, --rounds, --only), the line's form and the exit code. What is
measured, and its bounds, are each benchmark's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from gpuload.cli.bench.machine import this_machine, versions


@dataclass(frozen=True)
class Figure:
    """below, above: what the project promises, None where the figure is only stated."""

    name: str
    value: float
    unit: str
    below: float | None = None
    above: float | None = None

    @property
    def held(self) -> bool:
        return (self.above is None or self.value >= self.above) and (self.below is None or self.value <= self.below)

    def __str__(self) -> str:
        bounds = [f"floor: {self.above:g}"] if self.above is not None else []
        bounds += [f"ceiling: {self.below:g}"] if self.below is not None else []
        said = f"   ({', '.join(bounds)}{'' if self.held else ', MISSED'})" if bounds else ""
        return f"{self.name:56} {self.value:12.4g} {self.unit}{said}"


Part = Callable[[argparse.Namespace], Iterator[Figure]]


def run(parser: argparse.ArgumentParser, parts: Mapping[str, Part], argv: Sequence[str], *, rounds: int) -> int:
    """Prints the figures of the parts that are asked for and appends them as one JSON line. Returns the exit code.

    parser: with the benchmark's own options. rounds: how many unless --rounds says.
    """
    parser.add_argument("--json", type=Path, help="append a line with all figures here")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", default=",".join(parts), help=f"comma-separated: {', '.join(parts)}")
    asked = parser.parse_args(argv)
    chosen = [name.strip() for name in asked.only.split(",")]
    unknown = [name for name in chosen if name not in parts]
    if unknown or asked.rounds < 1:
        parser.error(f"no part {', '.join(unknown)}" if unknown else "--rounds starts at 1")
    sys.stdout.write(f"{this_machine()}\n")
    figures: list[Figure] = []
    for name in chosen:
        for figure in parts[name](asked):
            figures.append(figure)
            sys.stdout.write(f"{figure}\n")
            sys.stdout.flush()
    held = all(figure.held for figure in figures)
    if asked.json is not None:
        line = {
            "figures": {
                figure.name: {"value": figure.value, "unit": figure.unit, "above": figure.above, "below": figure.below}
                for figure in figures
            },
            "held": held,
            "machine": asdict(this_machine()),
            "versions": versions(),
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        with asked.json.open("a") as out:
            out.write(json.dumps(line) + "\n")
    return 0 if held else 1
