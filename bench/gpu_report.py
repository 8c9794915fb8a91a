"""What the proof on a GPU says: a JSON line a row as soon as it is known, and a table of all rows last.

Owns the lines' common part, the aims of the GPU path, the table and the exit code; measures nothing. A row:

    section, row   what it is about
    passed         True or False: something was held against something; None: a figure, right or wrong for nobody
    left_out       why there is no figure
    error          what ended it
    round          one of several that a later row sums up: not in the table
    ...            its facts, under names with units
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Aim:
    """What one figure of one row should come to on an H200-class GPU with 16 host cores."""

    section: str
    row: str
    fact: str
    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def text(self, value: float) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{self.fact} {number(value)}: aim {sign} {number(self.bound)} {'met' if self.met(value) else 'MISSED'}"


AIMS = (
    Aim("speed", "gpuload native", "images_per_s", 40_000, at_least=True),
    Aim("speed", "gpuload native", "ratio_to_dali", 2, at_least=True),
    Aim("speed", "gpuload native", "cpu_ms_per_image", 0.1),
    Aim("training", "resnet50, gpuload native", "starved_pct", 1),
    Aim("training", "resnet50, gpuload native", "step_ratio_to_resident", 1.05),
    Aim("kernels", "bytes", "copied_per_touched", 1.05),
    Aim("kernels", "times", "tail_share_of_decode", 0.15),
)
"""The issue's. A missed one is a figure to print, not a failure: another GPU has other bounds."""

HIDDEN = ("section", "row", "passed", "left_out", "error", "took_s")
VERDICTS = {True: "ok", False: "FAILED", None: "-"}


@dataclass
class Journal:
    """Writes rows as they come. common: what every later line carries beside its facts; file: appended to, or None."""

    out: TextIO
    file: Path | None
    common: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        text = json.dumps({**line, **self.common}) + "\n"
        self.out.write(text)
        self.out.flush()
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(text)


def number(value: float) -> str:
    """Four digits that count, thousands apart: 41,250, 0.0873."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _fact(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} {_fact(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_fact, value)) + "]"
    return str(value)


def facts(line: Line) -> str:
    """A row's facts in words, its reason or its error first."""
    parts = [str(line[key]) for key in ("error", "left_out") if line.get(key)]
    parts += [f"{key} {_fact(value)}" for key, value in line.items() if key not in HIDDEN]
    return ", ".join(parts)


def table(lines: Sequence[Line]) -> str:
    """All rows, then the aims: which are met, and which could not be looked at."""
    lines = [line for line in lines if "round" not in line]
    wide = max((len(f"{line['section']}: {line['row']}") for line in lines), default=0)
    rows = [f"{VERDICTS[line.get('passed')]:<7} {_name(line):<{wide}}  {facts(line)}".rstrip() for line in lines]
    return "\n".join([*rows, "", *(_aim_text(aim, lines) for aim in AIMS)]) + "\n"


def _name(line: Line) -> str:
    return f"{line['section']}: {line['row']}"


def _aim_text(aim: Aim, lines: Sequence[Line]) -> str:
    found = [line[aim.fact] for line in lines if _name(line) == f"{aim.section}: {aim.row}" and aim.fact in line]
    if found and found[-1] is not None:
        return f"{aim.section}: {aim.row}: {aim.text(found[-1])}"
    return f"{aim.section}: {aim.row}: {aim.fact}: not measured"


def exit_code(lines: Sequence[Line], *, whole: bool) -> int:
    """0: everything that was to be checked was, and passed. whole: every section came to its end."""
    return 0 if whole and lines and all(line.get("passed") is not False for line in lines) else 1
