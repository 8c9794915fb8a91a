"""What every test may use: the real photographs where there are some, and the rules of the markers `gpu` and `full`."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

# What earlier runs learned of the same images must not decide which code a test runs: tests that want it ask for it.
os.environ.setdefault("GPULOAD_ENTROPY_BYTES", "0")

REAL_DATA = os.environ.get("GPULOAD_DATA", "")


def pytest_report_header() -> str:
    return f"real photographs: {REAL_DATA or 'left out; GPULOAD_DATA names no folder of them'}"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that GPULOAD_DATA names: photos/, jpeg-conformance/, formats/. Skips the test without it."""
    if not REAL_DATA:
        pytest.skip("real files are left out: GPULOAD_DATA is not set")
    return Path(REAL_DATA)


@pytest.fixture(scope="session")
def photos(real_data: Path) -> Path:
    """A folder of photographs as people have them, JPEGs below it."""
    return real_data / "photos"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a `full` test may not skip: `make test-full` installs what it needs, and a skip would hide a failure."""
    report = yield
    left_out = item.get_closest_marker("gpu") or ("real_data" in getattr(item, "fixturenames", ()) and not REAL_DATA)
    if report.skipped and not left_out and item.get_closest_marker("full") and os.environ.get("CI") == "true":
        if not hasattr(report, "wasxfail"):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where make test-full must install what this needs: {report.longrepr}"
    return report
