"""Kernels held against their twins: both on this host here, so that equal is equal and a wrong byte is found."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bench import gpu_kernels
from bench.gpu_jobs import Call, Case, HostSide, Plan, cases, odd_jpegs, prepare, some_files
from bench.gpu_kernels import KERNELS, TAIL, bytes_row, compared, moved_bytes, twin
from bench.gpu_loaders import transform
from bench.gpu_section import Bench
from gpuload.core.protocols import Launcher


def test_a_job_has_all_kernels_in_order_and_fits_its_memory(bench: Bench):
    prepared = prepare(Case("a", some_files(bench.classes, 5), transform("train"), torch.float32))
    plan = Plan.of(prepared)
    assert prepared.rows.tolist() == list(range(5))
    calls = plan.calls(prepared, 1 << 20)
    assert tuple(gpu_kernels.name_of(call) for call in calls) == KERNELS
    assert plan.end >= plan.output + prepared.expected.nbytes > plan.scratch + prepared.job.scratch_bytes
    assert prepared.job.touched_bytes < prepared.job.upload_bytes == bytes_row(prepared)["copied_bytes_per_image"] * 5


def test_the_cpus_batch_is_what_the_transform_makes_of_each_image(bench: Bench):
    files = some_files(bench.classes / "class0", 4)
    prepared = prepare(Case("a", files, transform("eval"), torch.float32))
    images = [transform("eval")(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
    assert np.array_equal(prepared.expected, torch.stack(images).numpy())


def test_every_kernel_must_move_something_and_the_tail_is_some_of_them(bench: Bench):
    files = some_files(bench.classes, 3)
    one, three = (prepare(Case("a", files[:count], transform("eval"), torch.float32)) for count in (1, 3))
    small, large = (moved_bytes(prepared, Plan.of(prepared).calls(prepared, 0)) for prepared in (one, three))
    assert tuple(small) == KERNELS and set(TAIL) < set(KERNELS)
    assert all(0 < small[name] <= large[name] for name in KERNELS)
    assert large["store"] >= three.expected.nbytes


def test_odd_files_are_of_several_samplings_and_all_reach_the_gpu():
    found = cases(odd_jpegs()[:1], [])
    assert {torch.empty((), dtype=case.dtype).element_size() for case in found} == {1, 2, 4, 8}
    odd = next(case for case in found if case.name == "odd files")
    assert len(prepare(odd).rows) == len(odd.files) == 12


def test_photographs_reach_the_gpu_too(photos: Path):
    files = some_files(photos, 16)
    assert len(files) == 16
    found = prepare(cases([], files)[-1])
    assert len(found.rows) >= 12


class Spoilt:
    """Flips a bit of what a kernel wrote."""

    def __init__(self, launcher: Launcher, kernel: str, *, raises: bool = False):
        self._launcher, self._kernel, self._raises = launcher, kernel, raises

    def launch(self, name: str, items: int, *arguments: int) -> None:
        self._launcher.launch(name, items, *arguments)
        if name == self._kernel and self._raises:
            raise RuntimeError("an illegal memory access was encountered")
        if name == self._kernel:
            ctypes.c_uint8.from_address(arguments[-1]).value ^= 1


def rows_with(bench: Bench, launcher: Any) -> dict[str, dict[str, Any]]:
    rows = compared(bench, partial(HostSide, launcher=launcher))
    return {row["row"]: row for row in rows if "round" not in row}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpu_kernels, "IMAGES", 3)
    yield


@pytest.mark.full
def test_the_host_equals_itself_in_every_case(bench: Bench, few: None):
    rows = rows_with(bench, twin())
    assert tuple(rows) == (*KERNELS, "batch")
    assert all(row["passed"] and row["launches"] == 4 for row in rows.values()), rows


@pytest.mark.full
def test_a_wrong_byte_is_the_fault_of_the_kernel_that_wrote_it_alone(bench: Bench, few: None):
    rows = rows_with(bench, Spoilt(twin(), "first_pass"))  # type: ignore[arg-type]
    assert [name for name, row in rows.items() if not row["passed"]] == ["first_pass", "batch"]
    assert rows["first_pass"]["wrong_bytes"] == rows["first_pass"]["launches"]
    assert rows["first_pass"]["first_in"] == "random crops"


@pytest.mark.full
def test_a_kernel_that_raises_ends_the_cases_and_is_named(bench: Bench, few: None):
    rows = rows_with(bench, Spoilt(twin(), "to_rgb", raises=True))  # type: ignore[arg-type]
    assert rows["to_rgb"]["passed"] is False and "illegal memory access" in rows["to_rgb"]["error"]
    assert rows["decode_segments"]["passed"] and rows["decode_segments"]["launches"] == 1
    assert rows["store"]["passed"] is None and rows["batch"]["passed"] is None


@pytest.mark.full
def test_without_twins_the_batch_is_still_compared(bench: Bench, few: None, monkeypatch: pytest.MonkeyPatch):
    launcher = twin()
    monkeypatch.setattr(gpu_kernels, "twin", lambda: "g++ is missing")
    rows = rows_with(bench, Spoilt(launcher, "to_rgb"))  # type: ignore[arg-type]
    assert rows["store"]["left_out"] == "g++ is missing"
    assert rows["batch"]["passed"] is False and rows["batch"]["wrong_bytes"] > 0


@pytest.mark.full
def test_what_threads_may_write_over_each_other_is_not_compared(bench: Bench):
    prepared = prepare(Case("a", some_files(bench.classes, 2), transform("eval"), torch.float32))
    plan = Plan.of(prepared)
    memory = np.zeros(plan.end, np.uint8)
    prepared.job.write(memory[: prepared.job.upload_bytes])
    calls = {call.name: call for call in plan.calls(prepared, 0)}
    parts = gpu_kernels.unwanted(calls["decode_segments"], 2, memory, 0)
    assert [part.stop - part.start for part in parts] == [128, 128, 1, 1]
    assert all(plan.scratch <= part.start and part.stop <= plan.output for part in parts)
    assert gpu_kernels.unwanted(calls["to_rgb"], 2, memory, 0) == []
    assert gpu_kernels.unwanted(Call("store_4", 1, ()), 2, memory, 0) == []
