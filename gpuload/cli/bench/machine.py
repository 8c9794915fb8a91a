"""What a benchmark ran on: processor, memory, versions, commit. A figure without these says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import gpuload

VERSIONED = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "pillow": "pillow",
    "numba": "numba",
    "dali": "nvidia-dali-cuda120",
    "webdataset": "webdataset",
    "streaming": "mosaicml-streaming",
}
"""What a line calls it -> its distribution. DALI's is named after a CUDA version: see `versions`."""


@dataclass(frozen=True)
class Machine:
    """cores: those this process may use. ram_bytes: of the whole machine. gpu: its name, None without one."""

    cpu: str
    cores: int
    ram_bytes: int
    system: str
    gpu: str | None

    def __str__(self) -> str:
        gpu = f", {self.gpu}" if self.gpu else ", no GPU"
        return f"{self.cpu}, {self.cores} cores, {self.ram_bytes / 2**30:.0f} GiB{gpu}"


def this_machine() -> Machine:
    """What can be learned without importing torch or touching a driver's context."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for
        cores = os.cpu_count() or 1
    try:
        ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        ram_bytes = 0
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"  # beyond that, whose build it is
    return Machine(_cpu_model(), cores, ram_bytes, system, _gpu_name())


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_name() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = done.stdout.strip().splitlines()
    return names[0] if done.returncode == 0 and names else None


def versions() -> dict[str, str | None]:
    """Installed versions by the names of VERSIONED, None where absent, and this source's commit where it is a clone."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, distribution in VERSIONED.items():
        found[name] = _version(distribution)
    found["dali"] = found["dali"] or _version("nvidia-dali-cuda130")
    found["gpuload"] = gpuload.__version__  # of the source that runs, installed or not
    found["commit"] = _commit()
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
