"""On a CUDA GPU: is every pixel right, does nothing wait or leak that should not, and how fast is it?

Command:  python -m bench.gpu [--json FILE] [--sections kernels,speed]      (make gpu-check)
Machine:  named in every line, with driver, versions and commit.
Result:   a JSON line a row as it is known, a table last with the aims beside what was measured; code 0 if everything
          was checked and passed, 1 if not, 2 without a GPU. Missed aims don't count.
Needs torch, torchvision, Pillow, Numba, CuPy and numba-cuda, and no installation: rows of what is not there (DALI) say
"absent". Within nine minutes, the first start's compilation included; what is killed earlier keeps what was written.

    machine    what it runs on; the CPU's kernels compiled, the images' seek points learned
    kernels    each kernel of the GPU path on a real batch against its CPU twin; its time against its bound
    batches    whole batches of every type and layout against those of device="cpu", bit for bit
    streams    consumers on several streams, batches held, synchronisations and copies counted
    memory     after one, two and five epochs; after an image of 50 megapixels
    interop    the same values through DLPack and __cuda_array_interface__
    speed      images/s of gpuload, DALI, torchvision on the GPU and torch, the loaders alone
    training   ResNet-50, ResNet-18 and AlexNet: how long they wait, and what the loader takes from their step

Each section is a process (bench/gpu_section.py says why). The images are made (bench/gpu_images.py); with GPULOAD_DATA
set the photographs in it are checked too. Owns the order, the time and the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from bench import gpu_images
from bench.gpu_report import Journal, exit_code, table
from bench.gpu_section import SECTIONS, Section, default_threads

LIMIT_S = 540.0
"""Nine minutes for everything. The sections' own limits and MAKING_S add up to no more."""

MAKING_S = 20.0
IMAGES = 1024
"""112 MB: more than any cache of a GPU holds, and made in seconds."""

ROOT = Path(__file__).resolve().parents[1]


def chosen(names: str) -> list[Section]:
    """The sections of these names, with commas between, in their order; `machine` is always there.

    Raises ValueError for a name that is none.
    """
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = sorted(wanted - {section.name for section in SECTIONS})
    if unknown:
        raise ValueError(f"no section {', '.join(unknown)}; there are {', '.join(one.name for one in SECTIONS)}")
    return [section for section in SECTIONS if not wanted or section.name in wanted | {"machine"}]


def run(command: Sequence[str], *, limit_s: float) -> Iterator[dict[str, Any]]:
    """The JSON lines that a process prints, as they come; after `limit_s` it is killed with all that it started.

    Raises TimeoutError where that was necessary, ChildProcessError where it ended with another code than 0.
    """
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    late = threading.Event()

    def kill() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, kill)
    timer.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line)
        child.wait()
    finally:
        timer.cancel()
        if child.poll() is None:
            kill()
            child.wait()
    if late.is_set():
        raise TimeoutError(f"killed after {limit_s:.0f} s")
    if child.returncode:
        raise ChildProcessError(f"its process ended with code {child.returncode}")


def run_section(section: Section, folder: Path, *, left_s: float, journal: Journal) -> bool:
    """Whether the section came to its end. Its rows go to the journal, and its end too where that was not its own."""
    limit_s = min(section.limit_s, left_s)
    if limit_s < 1:
        journal.add({"section": section.name, "row": "all", "passed": None, "left_out": "no time left"})
        return False
    command = [sys.executable, "-m", "bench.gpu_section", section.name]
    command += ["--data", str(folder), "--seconds", str(section.share * limit_s)]
    try:
        for line in run(command, limit_s=limit_s):
            journal.add(line)
            if section.name == "machine" and line["row"] == "environment":
                journal.common = {**{key: line.get(key) for key in ("gpu", "driver", "versions")}, **journal.common}
    except (TimeoutError, ChildProcessError, ValueError) as error:
        journal.add({"section": section.name, "row": "end", "passed": False, "error": str(error)})
        return False
    return True


def main(argv: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Runs every section, whatever the others say. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="append the lines to this file too")
    parser.add_argument("--sections", default="", help="some of " + ", ".join(section.name for section in SECTIONS))
    parser.add_argument("--commit", default=None, help="what the lines name where the checkout has no .git")
    asked = parser.parse_args(argv)
    try:
        sections = chosen(asked.sections)
    except ValueError as error:
        parser.error(str(error))
    missing = no_gpu()
    if missing:
        out.write(f"gpu-check: {missing}, so nothing was checked: {', '.join(one.name for one in sections)} (code 2)\n")
        return 2
    began_s = time.monotonic()
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    journal = Journal(out, asked.json, {"at": at} | ({"commit": asked.commit} if asked.commit else {}))
    whole = True
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside: as by Ctrl-C, with a table
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            gpu_images.make(folder, images=IMAGES, threads=default_threads())
            gpu_images.large_jpeg(folder / "large.jpg")
            for section in sections:
                left_s = LIMIT_S - (time.monotonic() - began_s)
                whole &= run_section(section, folder, left_s=left_s, journal=journal)
    except KeyboardInterrupt:
        whole = False
    out.write(table(journal.lines))
    out.write(f"{time.monotonic() - began_s:.0f} s in all{'' if whole else '; not everything came to its end'}\n")
    return exit_code(journal.lines, whole=whole)


def no_gpu() -> str:
    """Why there is nothing to check, "" where there is."""
    try:
        import torch
    except ImportError as error:
        return f"torch is missing ({error})"
    return "" if torch.cuda.is_available() else "no CUDA GPU that this torch can use"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
