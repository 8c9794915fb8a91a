"""Fixtures of the framework tests: generated images, and programs run by torchrun, a process a rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.sample_data import write_images

ROOT = Path(__file__).resolve().parents[2]
Launch = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images of odd sizes in three class folders."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    return folder


@pytest.fixture
def launch(root: Path, tmp_path: Path) -> Launch:
    """launch(ranks, module, program): what each rank of `module.program` gave back, by rank."""

    def run(ranks: int, module: str, program: str) -> list[Any]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
        command += ["-m", "tests.frameworks.rank_main", module, program, str(root), str(tmp_path)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]

    return run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
