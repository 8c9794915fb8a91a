"""Fuzzing in a child, watched from here: a kernel that goes astray ends or stalls the child, and its seed is named.

The child writes one line a seed, in order; so the seed that killed it is the one behind the last line. Another child
then goes on behind that seed. Owns the children and the time bound; what they do is a command's business.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

READY = "ready"
"""What a child writes first: from then on the time bound holds. Starting may mean compiling all kernels."""
KILLED = "killed"
"""The outcome of a seed that ended its child."""
START_S = 600.0
STALL_S = 20.0
"""For an input that takes milliseconds: a machine that is busy otherwise must not make findings."""


def results(
    seeds: range, command: Callable[[range], list[str]], *, start_s: float = START_S, stall_s: float = STALL_S
) -> Iterator[dict[str, Any]]:
    """What the child says of each seed, a JSON object with the key "seed"; where it said nothing, "problems" say why.

    command: makes of the seeds that are left the child's command line. RuntimeError where a child cannot start.
    """
    while seeds:
        with tempfile.TemporaryFile() as log:
            child = subprocess.Popen(command(seeds), stdout=subprocess.PIPE, stderr=log)
            try:
                end = ""
                lines = _lines(child, start_s, stall_s)
                if (first := next(lines, "")) != READY:
                    raise RuntimeError(f"no fuzzing process: {first or 'it ended'}\n{_tail(log)}")
                for line in lines:
                    if not line.startswith("{"):
                        end = line
                        break
                    yield json.loads(line)
                    seeds = seeds[1:]
                if seeds:
                    end = end or _ended(child.wait())
                    yield {"seed": seeds[0], "problems": [f"{end}\n{_tail(log)}"], "outcome": KILLED}
                    seeds = seeds[1:]
            finally:
                child.kill()
                child.wait()
                assert child.stdout is not None
                child.stdout.close()


def _lines(child: subprocess.Popen, start_s: float, stall_s: float) -> Iterator[str]:
    """The lines that the child writes; a last one that says so where none came in time."""
    assert child.stdout is not None
    source, rest = child.stdout.fileno(), b""
    limit_s = start_s
    while True:
        began = time.monotonic()
        if not select.select([source], [], [], limit_s)[0]:
            child.send_signal(signal.SIGABRT)  # faulthandler then writes where it was
            time.sleep(0.5)
            yield f"no result in {time.monotonic() - began:.0f} s"
            return
        chunk = os.read(source, 1 << 16)
        if not chunk:
            return
        limit_s = stall_s
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in whole)


def _ended(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _tail(log: Any) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-3000:]
