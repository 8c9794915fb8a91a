from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuload.cli.main import SUBCOMMANDS, app, load

ROOT = Path(__file__).resolve().parents[2]


def test_help_lists_every_subcommand_and_imports_neither_torch_nor_numpy():
    probe = (
        "import sys; from gpuload.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, found in SUBCOMMANDS.items():
        assert name in done.stdout
        assert found.help in done.stdout


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_subcommands_load_with_their_own_options_and_help(name):
    assert load(name).name == name
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "--help" in done.output
    assert SUBCOMMANDS[name].help not in done.output  # the real command's text, not the list's line


def test_python_m_gpuload_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "gpuload", "no-such-command"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "No such command" in done.stderr
