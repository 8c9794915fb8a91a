"""Ranges of the knobs, and the memory that is really there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuload.core.setting import Setting
from gpuload.tune import limits as module
from gpuload.tune.limits import DEPTH, MEMORY_SHARE, limits, memory_budget

MEMINFO = "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n"


def files(content: dict[str, str]):
    def read(path: Path) -> str:
        if str(path) not in content:
            raise FileNotFoundError(path)
        return content[str(path)]

    return read


@pytest.mark.parametrize(
    "content, free_bytes",
    [
        ({"/proc/meminfo": MEMINFO}, 8_192_000_000),
        ({"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": "3000000000\n",
          "/sys/fs/cgroup/memory.current": "1000000000\n"}, 2_000_000_000),
        ({"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": "max\n",
          "/sys/fs/cgroup/memory.current": "1000000000\n"}, 8_192_000_000),
        ({"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory/memory.limit_in_bytes": "5000000000\n",
          "/sys/fs/cgroup/memory/memory.usage_in_bytes": "6000000000\n"}, 0),
        ({"/proc/meminfo": "nonsense"}, module.UNKNOWN_BYTES),
        ({}, module.UNKNOWN_BYTES),
    ],
)  # fmt: skip
def test_the_budget_is_a_share_of_the_tightest_that_is_free(content, free_bytes, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert memory_budget(files(content)) == int(MEMORY_SHARE * free_bytes)


def test_ranks_of_a_node_share_the_memory(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_budget(files({"/proc/meminfo": MEMINFO})) == int(MEMORY_SHARE * 8_192_000_000) // 4


def test_depth_fits_the_memory_and_is_at_least_two():
    def deepest(batch_bytes: int) -> int:
        return limits(cores=2, batch_bytes=batch_bytes, memory_bytes=1000, fetch_at_once=True).most.depth

    assert [deepest(size) for size in (1, 100, 400, 5000)] == [DEPTH, 10, 2, 2]


def test_what_the_user_fixed_has_one_value():
    found = limits(cores=8, batch_bytes=1, memory_bytes=100, fetch_at_once=False, decode_threads=3, depth=7)
    assert found.least == found.most == Setting(1, 3, 7)


def test_clipped_and_capped():
    found = limits(cores=2, batch_bytes=1, memory_bytes=10, fetch_at_once=True)
    assert found.clipped(Setting(1000, 1000, 1000)) == found.most
    assert found.clipped(Setting(1, 1, 1)) == found.least
    assert found.capped(fetch_threads=5).most == Setting(5, 8, 10)
    assert found.capped(fetch_threads=0).most.fetch_threads == found.least.fetch_threads
