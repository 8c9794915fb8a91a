"""The GPU's entries run, in Numba's simulator: which thread does what, and that no thread does what isn't there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_entries_in_the_simulator_do_what_the_cpus_loops_do():
    program = [sys.executable, "-m", "tests.kernels.in_simulator"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "27 launches\n"
