"""How much faster is gpuload than torch's DataLoader and than DALI's own pipeline, on ImageNet-like photographs?

Command:  python -m bench.loaders [DATA] [--threads 2] [--rounds 7] [options of `gpuload bench`]
          DATA: a folder of JPEGs, of class folders or of tar shards; $GPULOAD_DATA/photos where not given. All peers,
          as docs/benchmarks.md shows them: --against torch-v2,dali,webdataset,streaming --cache cold --model tiny
Machine:  stands in every line of bench/results/loaders.jsonl, with versions and commit.
Result:   the lines, of which `python -m bench.tables` makes the page's tables; the last run's ratios are held against
          the bounds below, and a missed one ends with code 1.
Explanation: docs/benchmarks.md, losing results included.

The figures come from `gpuload bench`, which users run too: each loader in its own process, rounds interleaved,
pixels compared with Pillow's before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BOUNDS = {"gpuload-native": 2.0, "gpuload-dali": 1.5, "gpuload-pillow": 0.95, "gpuload-fallback": 0.95}
"""Least `ratio_to_torch`: what our decoder and DALI's must gain, and what nobody may lose by changing the import."""

RESULTS = Path(__file__).parent / "results" / "loaders.jsonl"


def missed(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each bound that these lines miss: rate, first batch and epoch boundary."""
    by_name = {line["loader"]: line for line in lines}
    found = []
    for name, least in BOUNDS.items():
        line = by_name.get(name)
        if line is None or line["ratio_to_torch"] is None:
            found.append(f"{name}: not timed ({line['not_timed'] if line else 'no such row'})")
        elif line["ratio_to_torch"] < least:
            found.append(f"{name}: {line['ratio_to_torch']:.2f} x torch, below {least}")
    torch = by_name["torch"]
    for name in ("gpuload-native", "gpuload-dali", "gpuload-pillow"):
        for key in ("first_batch_s", "epoch_boundary_s"):
            mine, theirs = by_name.get(name, {}).get(key), torch[key]
            if mine is not None and mine > theirs:
                found.append(f"{name}: {key} {mine:.3f} s, torch {theirs:.3f} s")
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the comparison, appends its lines to RESULTS. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.loaders", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=None)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", default="7")
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")
    asked, others = parser.parse_known_args(argv)
    data = asked.data or os.path.join(os.environ.get("GPULOAD_DATA", ""), "photos")
    if not os.path.exists(data):
        sys.stderr.write(f"bench: no data at {data!r}: give a folder, or set GPULOAD_DATA to one that holds photos/\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.jsonl"
        command = [sys.executable, "-m", "gpuload", "bench", data, "--json", str(out)]
        done = subprocess.run([*command, "--threads", asked.threads, "--rounds", asked.rounds, *others], check=False)
        if done.returncode:
            return done.returncode
        text = out.read_text()
    if not asked.no_record:
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as results:
            results.write(text)
    sentences = missed([json.loads(line) for line in text.splitlines()])
    for sentence in sentences:
        sys.stderr.write(f"bench: bound missed: {sentence}\n")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
