"""How fast are gpuload's JPEG engine and its entropy index, next to DALI, torch's DataLoader, simplejpeg and Pillow?

Command:  python -m bench.jpeg [DATA] [--json FILE] [--rounds 5] [--threads 2] [--cases train-dali,tiny-gil]
          DATA: a folder of JPEGs, or of class folders; $GPULOAD_DATA/photos where not given.
Machine:  stands in every line of bench/results/jpeg.jsonl, with versions and commit.
Result:   a line a row of bench/jpeg_cases.py. `ratio`: the median over the rounds of the ratio within each; above 1
          ours is the better. `ratios`: its range. `ours`, `theirs`: medians, in `unit`. `floor`, `aim`: of the ratio;
          `floor_us`, `aim_us`: of `ours`. Code 0 whoever wins, 1 where a row could not be timed.
Explanation: docs/kernels.md, losing rows included.

Pixels are compared with Pillow's before anything is timed, loaders' labels too. All contenders on the same data take
turns within a round. Loaders are whole: files or shards read, decoded, transformed and collated to float32 batches,
images per second without the first burst of batches, each in a process of its own (bench/jpeg_loaders.py says how the
index is learned before); decoders alone are timed by CPU time (bench/jpeg_single.py). A row whose peer is not
installed is left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench import jpeg_loaders, jpeg_single
from bench.jpeg_cases import CASES, HEAD, NAMES, Timed, line, text
from gpuload.cli.bench.machine import this_machine, versions


def time_work(
    name: str, names: Sequence[str], asked: argparse.Namespace, photos: Sequence[Path], folder: Path
) -> Timed:
    """The contenders `names` of one work, which is a kind of row: bench/jpeg_cases.py."""
    if name == "index":
        return jpeg_single.time_index(names, photos, folder=folder, rounds=asked.rounds)
    if name in jpeg_single.WORKS:
        files = [path.read_bytes() for path in photos]
        return jpeg_single.time_decoders(jpeg_single.WORKS[name], names, files, rounds=asked.rounds)
    work = jpeg_loaders.WORKS[name]
    data = jpeg_loaders.data_of(work, Path(asked.data), photos, folder=folder, tell=tell)
    return jpeg_loaders.time_loaders(
        work, names, data, photos, folder=folder, threads=asked.threads, rounds=asked.rounds, tell=tell
    )


def tell(sentence: str) -> None:
    sys.stderr.write(f"bench: {sentence}\n")


def record(found: Mapping[str, Any], file: Path | None) -> None:
    """A row on the terminal and in the file, as soon as it is known: what ends a long run early loses the rest only."""
    sys.stdout.write(text(found) + "\n")
    sys.stdout.flush()
    if file is not None:
        with file.open("a") as out:
            out.write(json.dumps(found) + "\n")


def main(argv: Sequence[str]) -> int:
    """Times the rows asked for and prints them. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.jpeg", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=os.path.join(os.environ.get("GPULOAD_DATA", ""), "photos"))
    parser.add_argument("--json", type=Path, default=None, help="append the lines to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="decode threads; torch's worker processes")
    parser.add_argument("--cases", default=",".join(NAMES), help="rows, with commas between: " + ", ".join(NAMES))
    asked = parser.parse_args(argv)
    chosen = [name.strip() for name in asked.cases.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if asked.rounds < 1 or asked.threads < 1:
        parser.error("--rounds and --threads start at 1")
    photos = sorted(path for path in Path(asked.data).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not photos:
        tell(f"no JPEGs at {asked.data!r}: give a folder, or set GPULOAD_DATA to one that holds photos/")
        return 2

    cases = [case for case in CASES if case.name in chosen]
    common = {
        "threads": asked.threads,
        "machine": asdict(this_machine()),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    left_out: dict[str, str] = {}
    sys.stdout.write(f"{this_machine()}; {len(photos)} photographs\n{HEAD}\n")
    with tempfile.TemporaryDirectory() as folder:
        for work in dict.fromkeys(case.work for case in cases):
            rows = [case for case in cases if case.work == work]
            tell(f"{work}: {', '.join(case.name for case in rows)}")
            names = list(dict.fromkeys(name for case in rows for name in (case.ours, case.theirs)))
            timed = time_work(work, names, asked, photos, Path(folder))
            for case in rows:
                reason = timed.reason(case)
                if reason:
                    left_out[case.name] = reason
                else:
                    record({**line(case, timed), **common}, asked.json)
    for name, reason in left_out.items():
        tell(f"left out: {name}: {reason}")
    return 0 if all("absent: " in reason for reason in left_out.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
