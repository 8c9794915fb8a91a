"""The cache of machine code: never stale, and never in the way when it cannot be read or written.

Each test runs a copy of `compile.py` with two small kernel files of its own, in processes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
TERM = "from numba import njit\n\n\n@njit\ndef term(x):\n    return x * {factor}\n"
TOTAL = """import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.term import term


@kernel(["float64(float64[::1])", "int64(int64[::1])"])
def total(values):
    result = values[0] * 0
    for value in values:
        result += term(value)
    return result
"""
RUN = """
from gpuload.kernels.compile import cache_directory
from gpuload.kernels.total import total
import numpy as np
print(total(np.arange(5.0)), total(np.arange(5)), sum(total._cache_hits.values()), cache_directory("total"), sep="\\n")
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package `gpuload` that holds nothing but kernels."""
    kernels = tmp_path / "house" / "gpuload" / "kernels"
    kernels.mkdir(parents=True)
    (kernels.parent / "__init__.py").touch()
    for name in ("__init__.py", "compile.py"):
        (kernels / name).write_bytes((KERNELS / name).read_bytes())
    (kernels / "term.py").write_text(TERM.format(factor=2))
    (kernels / "total.py").write_text(TOTAL)
    return tmp_path / "house"


def started(house: Path, cache: Path, **environment: str) -> subprocess.Popen[str]:
    given = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(house), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=house, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class Outcome:
    """What a process printed: the two sums, how many signatures came from the cache, and where that is."""

    def __init__(self, process: subprocess.Popen[str]):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and err == "", err
        whole, of_ints, hits, directory = out.splitlines()
        self.sums, self.hits, self.directory = (float(whole), int(of_ints)), int(hits), Path(directory)


def run(house: Path, cache: Path, **environment: str) -> Outcome:
    return Outcome(started(house, cache, **environment))


def test_a_second_process_compiles_nothing_until_sources_or_flags_change(house: Path, tmp_path: Path):
    first = run(house, tmp_path / "cache")
    assert first.sums == (20.0, 20) and first.hits == 0
    assert first.directory.is_relative_to(tmp_path / "cache" / "gpuload" / "kernels")
    second = run(house, tmp_path / "cache")
    assert (second.sums, second.hits, second.directory) == ((20.0, 20), 2, first.directory)

    (house / "gpuload" / "kernels" / "term.py").write_text(TERM.format(factor=3))  # a callee in another file
    third = run(house, tmp_path / "cache")
    assert (third.sums, third.hits) == ((30.0, 30), 0) and third.directory != first.directory

    (house / "gpuload" / "kernels" / "stranger.py").write_text("UNUSED = 1\n")  # what `total` doesn't import
    assert run(house, tmp_path / "cache").hits == 2

    checked = run(house, tmp_path / "cache", NUMBA_BOUNDSCHECK="1")  # other code of the same sources
    assert (checked.sums, checked.hits) == ((30.0, 30), 0) and checked.directory != third.directory


@pytest.mark.parametrize("place", ["a file stands in the way", "not writable", "no home"])
def test_where_nothing_can_be_written_kernels_are_compiled_in_memory(house: Path, tmp_path: Path, place: str):
    if place == "a file stands in the way":
        (tmp_path / "cache").write_text("I am a file")
    elif place == "not writable":
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        (tmp_path / "cache").mkdir(mode=0o500)
    else:
        (tmp_path / "file").touch()
        outcome = run(house, tmp_path, XDG_CACHE_HOME="", HOME=str(tmp_path / "file" / "home"))
        assert (outcome.sums, outcome.hits) == ((20.0, 20), 0)
        return
    outcome = run(house, tmp_path / "cache")
    assert (outcome.sums, outcome.hits) == ((20.0, 20), 0)


DAMAGE = (
    ("nbi", lambda data: b""),
    ("nbi", lambda data: bytes(len(data))),
    ("nbi", lambda data: b"\x80\x04K\x01."),  # another pickle
    ("nbc", lambda data: data[: len(data) // 2]),
    ("nbc", lambda data: bytes(len(data))),
    ("nbc", lambda data: b"\x80\x04K\x01."),
)
"""Of the index and of the machine code."""


def test_a_damaged_cache_is_compiled_again_and_repaired(house: Path, tmp_path: Path):
    directory = run(house, tmp_path / "cache").directory
    whole = {path: path.read_bytes() for path in directory.iterdir()}
    assert sorted(path.suffix for path in whole) == [".nbc", ".nbc", ".nbi"]
    for number, (suffix, damage) in enumerate(DAMAGE):
        for path in directory.glob(f"*.{suffix}"):
            path.write_bytes(damage(whole[path]))
        damaged = run(house, tmp_path / "cache")
        assert (damaged.sums, damaged.hits) == ((20.0, 20), 0), (number, suffix)
    repaired = run(house, tmp_path / "cache")
    assert (repaired.sums, repaired.hits) == ((20.0, 20), 2)


def test_processes_that_compile_at_once_leave_a_whole_cache(house: Path, tmp_path: Path):
    processes = [started(house, tmp_path / "cache") for _ in range(3)]
    outcomes = [Outcome(process) for process in processes]
    assert {outcome.sums for outcome in outcomes} == {(20.0, 20)}
    after = run(house, tmp_path / "cache")
    assert (after.sums, after.hits) == ((20.0, 20), 2)
    assert not list(after.directory.glob("*.tmp.*"))


def test_the_folder_imports_under_one_name_only():
    found = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=KERNELS.parent, capture_output=True, text=True, check=False
    )
    assert found.returncode != 0 and "this folder is gpuload.kernels, but it was imported as 'kernels'" in found.stderr
