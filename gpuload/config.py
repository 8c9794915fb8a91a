"""The only home of defaults, each with its reason, and of what gpuload's own arguments may be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuload.core.errors import ConfigError

DEPTH = 2
"""Batches ahead of the one being made, where prefetch_factor is not given: one being taken, one ready. More bridges
longer gaps but costs memory: a 256 x 3 x 224 x 224 float32 batch is 154 MB."""

ROWS_PER_TASK = 8
"""Images that a decode thread takes at a time, as the loader reckons how many batches keep its threads busy."""

MAX_BYTES_AHEAD = 256 << 20
"""Encoded bytes read and not yet decoded, a loader: 2,300 ImageNet photographs, over 0.1 s of work for 64 cores."""

MAX_DEVICE_BYTES = 512 << 20
"""GPU memory for what lies between encoded bytes and batch: a batch of 256 ImageNet photographs takes 350 MB. What is
larger is made part by part, an image that is larger by itself on the CPU, so no image raises it."""

LOCAL_FETCH_THREADS = 2
"""Batches read at once from local files: the reader is parallel by itself, two hide one's bookkeeping."""

REMOTE_FETCH_THREADS = 4
"""Batches requested at once from remote storage, so that the link never idles between two batches."""

STOP_WAIT_S = 2.0
"""Longest wait for the loader's threads when it is closed or the interpreter exits (promise 5)."""

RANKS_WAIT_S = 120.0
"""How long ranks that divide a data set wait for each other before their first epoch: one may still be compiling."""

ON_ERROR = ("raise", "skip", "replace")
ORDERS = ("shuffle", "block", "sequential")
EVEN = ("pad", "drop", "exact")
DECODERS = ("auto", "native", "pillow", "dali")
FIDELITIES = ("exact", "fast")
ENTROPY_INDEX = ("learn", "read", "off")


def check(
    *,
    decoder: str,
    fidelity: str,
    entropy_index: str,
    on_error: str,
    accelerate: bool | str,
    seed: int | None,
    order: str | None,
    max_device_bytes: int,
    even: str,
    progress: bool | str,
) -> None:
    """Raises ConfigError that names the argument of DataLoader, what it was given and what it takes."""
    _one_of("decoder", decoder, DECODERS)
    _one_of("fidelity", fidelity, FIDELITIES)
    _one_of("entropy_index", entropy_index, ENTROPY_INDEX)
    _one_of("on_error", on_error, ON_ERROR)
    if accelerate not in (True, False, "require"):
        raise ConfigError(f'accelerate must be True, False or "require", got {accelerate!r}')
    if progress not in (True, False, "full"):
        raise ConfigError(f'progress must be True, False or "full", got {progress!r}')
    if order is not None:
        _one_of("order", order, ORDERS)
    _one_of("even", even, EVEN)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed must be an int or None, got {seed!r}")
    if isinstance(max_device_bytes, bool) or not isinstance(max_device_bytes, int) or max_device_bytes < 0:
        raise ConfigError(f"max_device_bytes must be a number of bytes, 0 for none, got {max_device_bytes!r}")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def default_threads(read: Callable[[Path], str] = Path.read_text) -> int:
    """Decode threads where num_workers is not given: the CPUs this process may use, shared by the node's ranks."""
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    quota = _cgroup_cpus(read)
    if quota is not None:
        cpus = min(cpus, max(1, round(quota)))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, cpus // (int(ranks) if ranks.isdecimal() and int(ranks) > 0 else 1))


def _cgroup_cpus(read: Callable[[Path], str]) -> float | None:
    """CPUs that the control group allows, None where it sets no limit."""
    try:
        quota, period = read(Path("/sys/fs/cgroup/cpu.max")).split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        v1_quota = int(read(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")))
        return v1_quota / int(read(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))) if v1_quota > 0 else None
    except (OSError, ValueError):
        return None
