"""Numba's kernels compile for every GPU that is meant, and take no more of it than they may.

What a kernel may use is written down: more registers would be fewer threads at work, a spill or a stack slower ones.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpuload.kernels.cuda_launch import THREADS
from gpuload.kernels.decode_segments import cuda_entries

pytestmark = pytest.mark.full

ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]


@dataclass(frozen=True)
class Budget:
    registers: int
    stack_bytes: int


BUDGETS = {
    # One short launch of a few dozen threads: nothing waits for its registers.
    "build_tables": Budget(96, 0),
    "lay_out_images": Budget(64, 0),
    # 80 registers: 12 blocks of 64 threads, 24 warps, on a multiprocessor with 65,536. Compiled for 69 to 74. The stack
    # is the point: its predictors are chosen by a component's number, and a register cannot be chosen.
    "decode_segments": Budget(80, 24),
}


@dataclass(frozen=True)
class Used:
    registers: int
    stack_bytes: int
    spilled_bytes: int


def assemblers() -> list[str]:
    """All ptxas there are: on PATH, in NVIDIA's wheels, in Triton's, which comes with torch."""
    packages = Path(sysconfig.get_path("purelib"))
    found = [shutil.which("ptxas"), *packages.glob("nvidia/**/bin/ptxas"), *packages.glob("triton/**/bin/ptxas*")]
    return [str(path) for path in found if path]


def assembled(ptx: str, architecture: tuple[int, int], folder: Path) -> Used:
    """What the first ptxas that knows this version of PTX says."""
    file = folder / "kernel.ptx"
    file.write_text(ptx)
    said = ""
    for ptxas in assemblers():
        target = f"-arch=sm_{architecture[0]}{architecture[1]}"
        command = [ptxas, "-v", target, str(file), "-o", str(folder / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
        said += done.stdout + done.stderr
        if done.returncode == 0:
            registers = re.search(r"Used (\d+) registers", said)
            frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
            assert registers and frame, said
            stack, stores, loads = map(int, frame.groups())
            return Used(int(registers[1]), stack, stores + loads)
        if "Unsupported .version" not in said:
            break
    if not said:
        pytest.skip("there is no ptxas: install the CUDA toolkit, or pip install triton")
    raise AssertionError(said)


def compiled(name: str, architecture: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> str:
    from numba import cuda, types
    from numba.cuda import dispatcher

    class Device:
        compute_capability = architecture

    # Numba asks the driver what the device can do before it compiles a function that a kernel calls.
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: Device)
    entry = cuda_entries()[name]
    signature = types.void(*(entry.arguments * [types.int64]))
    ptx, _ = cuda.compile_ptx(entry.function, signature, cc=architecture)
    return ptx


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", BUDGETS)
def test_a_kernel_stays_within_its_budget(name: str, architecture: tuple[int, int], monkeypatch, tmp_path: Path):
    ptx = compiled(name, architecture, monkeypatch)
    assert ".extern" not in ptx  # nothing left for a linker: no allocation, no helper of Numba's
    used = assembled(ptx, architecture, tmp_path)
    budget = BUDGETS[name]
    assert used.registers <= budget.registers and used.stack_bytes <= budget.stack_bytes, used
    assert used.spilled_bytes == 0, used
    assert used.registers * THREADS <= 65536 // 8, used  # eight blocks a multiprocessor, at least


@pytest.mark.parametrize("name", BUDGETS)
def test_a_kernels_parameters_are_all_of_eight_bytes(name: str, monkeypatch):
    ptx = compiled(name, (9, 0), monkeypatch)
    parameters = re.findall(r"\.param \.[a-z]+(\d+) \S+_param_\d+", ptx)
    assert parameters == cuda_entries()[name].arguments * ["64"]


def test_every_entry_has_a_budget():
    assert BUDGETS.keys() == cuda_entries().keys()
