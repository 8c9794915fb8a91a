"""What the proof on a GPU runs on, and what is made before anything is checked.

    environment  the GPU, its driver and copy bandwidth, the processor, all versions
    index        an epoch on the CPU, which compiles its kernels where that was never done, and learns seek points

Owns these two rows. The kernels' machine code and the learned points stay in the cache directory, as after any epoch.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bench.gpu_loaders import loader, shards
from bench.gpu_section import Bench, Row
from gpuload.cli.bench.machine import this_machine, versions

COPIED_BYTES = 1 << 30
COPIES = 10


def rows(bench: Bench) -> Iterator[Row]:
    yield bench.tried("environment", environment)
    yield bench.tried("index", lambda: index(bench))
    if bench.photos is not None:
        yield bench.tried("index of photographs", lambda: index(bench, bench.photos))


def environment() -> Row:
    """passed: None. A GPU without a driver's version, or packages that are absent, are facts too."""
    gpu = torch.cuda.get_device_properties(0)
    machine = this_machine()
    return {
        "passed": None,
        "gpu": gpu.name,
        "driver": driver(),
        "compute_capability": f"{gpu.major}.{gpu.minor}",
        "multiprocessors": gpu.multi_processor_count,
        "memory_gib": gpu.total_memory / 2**30,
        "copy_gb_per_s": copy_bandwidth() / 1e9,
        "cpu": machine.cpu,
        "cores": machine.cores,
        "system": machine.system,
        "versions": all_versions(),
    }


def driver() -> str | None:
    """The NVIDIA driver's version, None where neither nvidia-smi nor /proc says."""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    except (OSError, subprocess.TimeoutExpired):
        pass
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def all_versions() -> dict[str, Any]:
    """Of everything that the GPU path runs on; None where absent."""
    found: dict[str, Any] = {**versions(), "python": platform.python_version(), "cuda": torch.version.cuda}
    for name, distributions in {
        "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "numba-cuda": ("numba-cuda",),
        "jax": ("jax",),
    }.items():
        installed = [one for one in distributions if _version(one)]
        found[name] = _version(installed[0]) if installed else None
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def copy_bandwidth() -> float:
    """Bytes read and written per second when the GPU copies within its memory: what a kernel can hope for."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    begin.record()
    for _ in range(COPIES):
        target.copy_(source)
    end.record()
    end.synchronize()
    return 2 * COPIED_BYTES * COPIES / (begin.elapsed_time(end) / 1e3)


def index(bench: Bench, folder: Path | None = None) -> Row:
    """Two epochs: what the first learns of, the second finds."""
    dataset = shards(folder or bench.shards, "eval")
    batches = loader(dataset, threads=bench.threads, batch_size=64, device="cpu", decoder="native")
    for _ in range(2):
        for _batch in batches:
            pass
    counts = dict(batches.stats().decoders)
    indexed = sum(count for name, count in counts.items() if "seek points" in name)
    least = 0.95 if folder is None else 0  # photographs may be of kinds that have none
    return {"passed": indexed >= least * len(dataset), "images": len(dataset), "indexed": indexed, "decoders": counts}
