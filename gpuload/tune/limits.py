"""What a tuner may choose from: ranges of each knob, by the machine's real limits and by what the user has fixed.

Owns reading memory limits (control groups, what is free). CPUs are `config.default_threads`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuload.core.setting import Setting

FETCH_THREADS = 64
"""Most batches read at once: more than any object store's latency asks for at a GPU's appetite (a batch of 256 ImageNet
images takes it 30 ms, and one batch from far away about a second); beyond, sockets and memory are at stake."""

THREADS_A_CORE = 4
"""Most decode threads a core, where a transform waits for something; one that computes is best with one a core."""

DEPTH = 64
"""Most batches ahead, whatever the memory: what waits longer than 64 steps is no jitter."""

MEMORY_SHARE = 0.25
"""Of the memory that is free: the rest is the user's, and that of other ranks' loaders which start a moment later."""


@dataclass(frozen=True)
class Limits:
    """The least and the most of each knob, and the CPUs for all. A knob that the user gave has one value."""

    least: Setting
    most: Setting
    cores: float

    def clipped(self, setting: Setting) -> Setting:
        """The nearest setting that is allowed."""
        return Setting(
            *(
                min(max(value, low), high)
                for value, low, high in zip(_values(setting), _values(self.least), _values(self.most), strict=True)
            )
        )

    def capped(self, **most: int) -> Limits:
        """With a lower upper end, never below the lower one."""
        return replace(self, most=max_of(self.least, replace(self.most, **most)))


def _values(setting: Setting) -> tuple[int, int, int]:
    return (setting.fetch_threads, setting.decode_threads, setting.depth)


def max_of(one: Setting, other: Setting) -> Setting:
    """The larger of each knob."""
    return Setting(*(max(pair) for pair in zip(_values(one), _values(other), strict=True)))


def limits(
    *,
    cores: int,
    batch_bytes: int,
    memory_bytes: int,
    fetch_at_once: bool,
    decode_threads: int | None = None,
    depth: int | None = None,
) -> Limits:
    """Ranges for one loader. fetch_at_once: its source may be read by several threads.

    batch_bytes: of one finished batch. memory_bytes: what those ahead may take (`memory_budget`). decode_threads,
    depth: what the user has fixed, None for what is to be chosen.
    """
    deepest = min(DEPTH, max(2, memory_bytes // max(1, batch_bytes)))
    low = Setting(2 if fetch_at_once else 1, decode_threads or 1, depth or min(2, deepest))
    high = Setting(FETCH_THREADS if fetch_at_once else 1, decode_threads or THREADS_A_CORE * cores, depth or deepest)
    return Limits(low, high, cores)


def memory_budget(read: Callable[[Path], str] = Path.read_text) -> int:
    """Bytes for the batches of one rank's loader: MEMORY_SHARE of what is free, of the control group's limit too."""
    free = _free_bytes(read)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(MEMORY_SHARE * free) // (int(ranks) if ranks.isdecimal() and int(ranks) > 0 else 1)


UNKNOWN_BYTES = 4 << 30
"""Taken to be free where the system does not say."""


def _free_bytes(read: Callable[[Path], str]) -> int:
    found = [_meminfo(read), _group_free(read, "memory.max", "memory.current"),
             _group_free(read, "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]  # fmt: skip
    return min((value for value in found if value is not None), default=UNKNOWN_BYTES)


def _meminfo(read: Callable[[Path], str]) -> int | None:
    try:
        line = next(row for row in read(Path("/proc/meminfo")).splitlines() if row.startswith("MemAvailable:"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError, StopIteration):
        return None


def _group_free(read: Callable[[Path], str], limit: str, used: str) -> int | None:
    """What a control group has left, None where it sets no limit."""
    group = Path("/sys/fs/cgroup")
    try:
        return max(0, int(read(group / limit)) - int(read(group / used)))
    except (OSError, ValueError):
        return None
