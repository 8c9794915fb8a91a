"""Throw damaged JPEGs at the native decoder: `python -m tests.fuzz --count 1000000 --workers 2 --json summary.json`.

A finding names its seed; `python -m tests.fuzz --seed S` runs that one again and says all there is to say, and
`--write FILE` keeps its bytes. Works in child processes (watchdog.py), one a worker; every other seed is another's.
NUMBA_BOUNDSCHECK=1 in the environment has the kernels compiled with bounds checks, apart from the usual ones.
Seeds of odd files need GPULOAD_DATA; without it they are left out and counted.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.fuzz import watchdog
from tests.fuzz.mutate import Mutant, mutant
from tests.fuzz.summary import Summary

SAID_EVERY_S = 30.0
MOST_FINDINGS = 200
"""Then fuzzing ends: something is broken for good, and a child that dies costs seconds."""


def command(seeds: range) -> list[str]:
    """The child that takes these seeds."""
    return [sys.executable, "-m", "tests.fuzz", "--child", f"{seeds.start}:{seeds.stop}:{seeds.step}"]


def child(seeds: range) -> None:
    """One line of JSON a seed: what was made, what came out, what was wrong, and how long it took."""
    faulthandler.enable()
    warnings.simplefilter("ignore")  # Pillow's, of EXIF and of sizes
    from tests.fuzz import bases
    from tests.fuzz.check import Checker  # compiles the kernels: the parent can do without

    checker = Checker()
    checker.check(Mutant(0, "indexed 0", (), bases.generated()["indexed 0"]))  # compiles those that are made on demand
    print(watchdog.READY, flush=True)
    for seed in seeds:
        began = time.perf_counter()
        made = mutant(seed)
        if made is None:
            print(json.dumps({"seed": seed, "outcome": "left out", "problems": []}), flush=True)
            continue
        try:
            verdict = checker.check(made)
            outcome, problems = verdict.outcome, list(verdict.problems)
        except Exception:  # nothing but Pillow may raise, and that is caught where it is called
            outcome, problems = "an exception", [traceback.format_exc()]
        result: dict[str, Any] = {"seed": seed, "base": made.base, "kinds": made.kinds, "outcome": outcome}
        result |= {"problems": problems, "ms": round((time.perf_counter() - began) * 1e3, 2)}
        print(json.dumps(result), flush=True)


def run(seeds: range, workers: int) -> Summary:
    """Fuzz with all seeds, telling of it; what children say, in one summary."""
    summary, lock = Summary(), threading.Lock()
    began = said = time.monotonic()
    broken: list[BaseException] = []

    def work(mine: range) -> None:
        nonlocal said
        try:
            for result in watchdog.results(mine, command):
                with lock:
                    if result["outcome"] == watchdog.KILLED and (made := mutant(result["seed"])) is not None:
                        result |= {"base": made.base, "kinds": made.kinds}
                    summary.add(result)
                    if result["problems"]:
                        first = result["problems"][0].split("\n")[0]
                        print(f"finding: --seed {result['seed']} ({result['base']}): {first[:160]}", flush=True)
                    if len(summary.findings) >= MOST_FINDINGS:
                        return
                    if time.monotonic() - said > SAID_EVERY_S:
                        said = time.monotonic()
                        found = len(summary.findings)
                        print(f"{summary.inputs} inputs in {said - began:.0f} s, {found} findings", flush=True)
        except RuntimeError as error:
            broken.append(error)

    threads = [threading.Thread(target=work, args=(seeds[w::workers],), daemon=True) for w in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return summary


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --seed: keep the damaged file")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child:
        child(range(*map(int, asked.child.split(":"))))
        return 0
    if asked.seed is not None:
        return _one(asked.seed, asked.write)
    began = time.monotonic()
    summary = run(range(asked.start, asked.start + asked.count), asked.workers)
    seconds = time.monotonic() - began
    print(summary.text() + f"\n{seconds:.0f} s, {asked.workers} workers")
    if asked.json:
        about = {"start": asked.start, "count": asked.count, "workers": asked.workers, "seconds": round(seconds, 1)}
        asked.json.write_text(json.dumps(about | summary.as_dict(), indent=1) + "\n")
    return 1 if summary.findings else 0


def _one(seed: int, write: Path | None) -> int:
    """Say all about one seed."""
    made = mutant(seed)
    if made is None:
        print(f"seed {seed} damages an odd file, and GPULOAD_DATA names no folder of them")
        return 2
    if write is not None:
        write.write_bytes(made.data)
    (result,) = watchdog.results(range(seed, seed + 1), command)
    print(f"seed {seed}: {made.base}, changed in {', '.join(made.kinds)}; {len(made.data)} bytes: {result['outcome']}")
    for problem in result["problems"]:
        print(problem)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
