"""The user's training script, run for a while under a clock: how long its steps are, and what of them takes a core.

Owns starting it in a process of its own and reading what `watched_script.py` saw there. The script runs as it is, but
for one thing: it is ended when enough steps were seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuload
from gpuload.cli.tune.consumer import Consumer, recorded
from gpuload.core.errors import ConfigError, GpuloadError

STEPS = 100
"""Steps that are recorded; the first ones, in which kernels are chosen and code is compiled, are left out."""

WARM_UP = 5
LEAST_STEPS = 10
"""Below this a script that ended by itself says too little."""

LIMIT_S = 120.0
"""Longest time until a script's steps are there: it may load a model and a data set first."""


@dataclass(frozen=True)
class Watched:
    """The script as a consumer, and its loader's batch size, None where a batch sampler decides."""

    consumer: Consumer
    batch_size: int | None


def watch(command: str, *, steps: int = STEPS, limit_s: float = LIMIT_S) -> Watched:
    """Runs `command`, a script and its arguments, until it took `steps` batches from one loader.

    Raises ConfigError where there is no such script, GpuloadError where it crashes, ends or goes on without steps.
    """
    script, *arguments = shlex.split(command) or [""]
    if not Path(script).is_file():
        raise ConfigError(f"--script {command!r}: no file {script!r}")
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "steps.json"
        code, words = _run(script, arguments, seen, steps + WARM_UP, limit_s)
        nothing = {"steps_s": [], "cpu_s": 0.0, "batch_size": None}
        found: dict[str, Any] = json.loads(seen.read_text()) if seen.exists() else nothing
    taken = found["steps_s"][WARM_UP:]
    if code not in (0, None):
        raise GpuloadError(
            f"--script: {script} ended with code {code} after {len(taken)} steps; its last words: {words}"
        )
    if len(taken) < LEAST_STEPS:
        when = f"within {limit_s:.0f} s" if code is None else "before it ended"
        what = "took no batch from a DataLoader" if not found["steps_s"] else f"took {len(found['steps_s'])} batches"
        raise GpuloadError(
            f"--script: {script} {what} {when}, and {WARM_UP + LEAST_STEPS} are needed. It must iterate over "
            "torch's or gpuload's DataLoader in its own process; else give --step-ms"
        )
    return Watched(recorded(taken, found["cpu_s"], Path(script).name), found["batch_size"])


def _run(script: str, arguments: list[str], seen: Path, steps: int, limit_s: float) -> tuple[int | None, str]:
    """(its exit code, None where it ran until the limit; the end of what it said on stderr)."""
    root = str(Path(gpuload.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "gpuload.cli.tune.watched_script", str(seen), str(steps), script, *arguments],
            stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
        log.seek(0)
        return code, " | ".join(log.read().strip().splitlines()[-3:]) or "none"


def _end(child: subprocess.Popen[bytes]) -> None:
    """The script and the workers that it started: its session is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, 9)
    child.wait()
