"""One section of the proof on a GPU in a process of its own: `python -m bench.gpu_section NAME --data FOLDER`.

An address that a kernel gets wrong ends the CUDA context of its process for good, and a hang ends nothing: so each
section is a process, which bench/gpu.py may kill, and what the others find is safe from it. Owns the list of sections
and what they are given; prints a JSON line a row.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """rows: the generator that makes its rows, "module.function". limit_s: after that it is killed; `share` of it is
    for rows, the rest for what is begun."""

    name: str
    rows: str
    limit_s: float
    share: float = 0.8


SECTIONS = (
    Section("machine", "bench.gpu_machine.rows", 90),
    Section("kernels", "bench.gpu_kernels.rows", 60),
    Section("batches", "bench.gpu_batches.rows", 60),
    Section("streams", "bench.gpu_streams.rows", 45),
    Section("memory", "bench.gpu_memory.rows", 40),
    Section("interop", "bench.gpu_interop.rows", 25),
    Section("speed", "bench.gpu_speed.rows", 95),
    Section("training", "bench.gpu_training.rows", 105),
)
"""In this order: first what must be right, the hardest first; then how fast it is."""


@dataclass(frozen=True)
class Bench:
    """What a section is given. classes, shards: the same images in class folders and in tar shards. photos: a folder of
    real photographs, or None. large: an image of 50 megapixels. until_s: no row begins after that (time.monotonic)."""

    classes: Path
    shards: Path
    large: Path
    photos: Path | None
    threads: int
    until_s: float

    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def tried(self, row: str, measure: Callable[[], Row]) -> Row:
        """The row that `measure` makes; one that fails, or for which no time is left, is a row too."""
        if self.left_s() <= 0:
            return {"row": row, "passed": None, "left_out": "no time left"}
        began_s = time.perf_counter()
        try:
            found = measure()
        except Exception as error:  # one row that breaks must not hide what the others find
            traceback.print_exc()
            found = {"passed": False, "error": in_short(error)}
        return {"row": row, **found, "took_s": round(time.perf_counter() - began_s, 2)}


def in_short(error: Exception) -> str:
    """Its type and the first line of what it says: the rest goes to standard error with its traceback."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def default_threads() -> int:
    """Decode threads and worker processes: 16 at most, as on the machine that the aims are for."""
    return min(16, len(os.sched_getaffinity(0)))


def bench_of(folder: Path, *, seconds: float) -> Bench:
    """What bench/gpu.py made in `folder`, with so much time."""
    data = os.environ.get("GPULOAD_DATA", "")
    photos = Path(data) / "photos" if data and (Path(data) / "photos").is_dir() else None
    until_s = time.monotonic() + seconds
    return Bench(folder / "classes", folder / "shards", folder / "large.jpg", photos, default_threads(), until_s)


def rows_of(section: Section, bench: Bench) -> Iterator[Row]:
    """The section's rows, whatever happens in it."""
    try:
        module, _, function = section.rows.rpartition(".")
        yield from getattr(importlib.import_module(module), function)(bench)
    except Exception as error:  # of the section itself, as where a package is missing: it is what there is to say
        traceback.print_exc()
        yield {"row": "all", "passed": False, "error": in_short(error)}


def main(argv: Sequence[str]) -> int:
    """Prints the rows of one section. Returns 0: what went wrong stands in a row."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_section", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("section", choices=[section.name for section in SECTIONS])
    parser.add_argument("--data", type=Path, required=True, help="the folder that python -m bench.gpu made")
    parser.add_argument("--seconds", type=float, default=None, help="no row begins after that")
    asked = parser.parse_args(argv)
    (section,) = (one for one in SECTIONS if one.name == asked.section)
    seconds = asked.seconds if asked.seconds is not None else section.share * section.limit_s
    answers = os.fdopen(os.dup(1), "w")  # the real standard output: a library that prints must not write into it
    os.dup2(2, 1)
    for row in rows_of(section, bench_of(asked.data, seconds=seconds)):
        answers.write(json.dumps({"section": section.name, **row}, default=float) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
