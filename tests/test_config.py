"""How many threads where none are asked for, and what gpuload's own keywords take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuload
from gpuload.config import DEPTH, check, default_threads
from gpuload.core.errors import ConfigError

V2 = "/sys/fs/cgroup/cpu.max"
QUOTA, PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"


def reading(files: Mapping[str, str]) -> Callable[[Path], str]:
    """What stands in for Path.read_text: these files and no others."""

    def read(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    return read


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)), raising=False)


@pytest.mark.parametrize(
    ("affinity", "files", "ranks", "expected"),
    [
        (16, {}, None, 16),
        (1, {}, None, 1),
        (16, {V2: "max 100000\n"}, None, 16),
        (16, {V2: "400000 100000\n"}, None, 4),
        (16, {V2: "250000 100000\n"}, None, 2),
        (16, {V2: "10000 100000\n"}, None, 1),
        (2, {V2: "400000 100000\n"}, None, 2),
        (16, {V2: "nonsense"}, None, 16),
        (16, {V2: ""}, None, 16),
        (16, {QUOTA: "300000\n", PERIOD: "100000\n"}, None, 3),
        (16, {QUOTA: "-1\n", PERIOD: "100000\n"}, None, 16),
        (16, {QUOTA: "300000\n"}, None, 16),
        (64, {}, "8", 8),
        (64, {V2: "3200000 100000"}, "8", 4),
        (4, {}, "8", 1),
        (16, {}, "", 16),
        (16, {}, "0", 16),
        (16, {}, "many", 16),
        (16, {}, "²", 16),
    ],
)
def test_threads_come_from_affinity_quota_and_ranks(
    cpus: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    affinity: int,
    files: dict[str, str],
    ranks: str | None,
    expected: int,
):
    cpus(affinity)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert default_threads(reading(files)) == expected


def test_threads_without_affinity(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert default_threads(reading({})) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_threads(reading({})) == 1


def test_threads_and_depth_of_a_loader(cpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuload.config.default_threads", lambda: 5)
    assert gpuload.DataLoader([1]).decode_threads == 5 and not gpuload.DataLoader([1]).explicit_inline
    assert gpuload.DataLoader([1], num_workers=0).decode_threads == 0
    assert gpuload.DataLoader([1], num_workers=0).explicit_inline
    assert gpuload.DataLoader([1], num_workers=1).decode_threads == 1
    # what is ahead, and one batch in the making; small batches: as many as it takes to keep 5 threads busy
    large = {"batch_size": 64}
    assert gpuload.DataLoader([1], **large).depth == gpuload.DataLoader([1], num_workers=1).depth == DEPTH + 1
    assert gpuload.DataLoader([1], prefetch_factor=7, **large).depth == 8
    assert gpuload.DataLoader([1], prefetch_factor=0, **large).depth == 2
    assert gpuload.DataLoader([1], prefetch_factor=7).depth == 7 + 5
    assert gpuload.DataLoader([1], batch_size=9, num_workers=5, prefetch_factor=1).depth == 1 + 3


USUAL: dict[str, Any] = {
    "decoder": "auto",
    "fidelity": "exact",
    "entropy_index": "learn",
    "on_error": "raise",
    "accelerate": True,
    "seed": None,
    "order": None,
    "max_device_bytes": 0,
    "even": "pad",
    "progress": False,
}


@pytest.mark.parametrize(
    ("argument", "value", "told"),
    [
        ("fidelity", "good", "fidelity must be one of 'exact', 'fast', got 'good'"),
        ("entropy_index", True, "entropy_index must be one of 'learn', 'read', 'off', got True"),
        ("decoder", "nvjpeg", "decoder must be one of 'auto', 'native', 'pillow', 'dali', got 'nvjpeg'"),
        ("on_error", "ignore", "on_error must be one of 'raise', 'skip', 'replace', got 'ignore'"),
        ("accelerate", "always", "accelerate must be True, False or \"require\", got 'always'"),
        ("progress", "half", "progress must be True, False or \"full\", got 'half'"),
        ("order", "random", "order must be one of 'shuffle', 'block', 'sequential', got 'random'"),
        ("even", "odd", "even must be one of 'pad', 'drop', 'exact', got 'odd'"),
        ("seed", 1.5, "seed must be an int or None, got 1.5"),
        ("seed", True, "seed must be an int or None, got True"),
        ("max_device_bytes", -1, "max_device_bytes must be a number of bytes, 0 for none, got -1"),
        ("max_device_bytes", "1G", "max_device_bytes must be a number of bytes, 0 for none, got '1G'"),
    ],
)
def test_wrong_arguments_are_named_with_what_they_take(argument: str, value: Any, told: str):
    arguments: dict[str, Any] = {argument: value}
    with pytest.raises(ConfigError) as caught:
        check(**(USUAL | arguments))
    assert str(caught.value) == told and isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError):
        gpuload.DataLoader([1], **arguments)


def test_order_and_another_order_exclude_each_other():
    for arguments in ({"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}):
        with pytest.raises(ConfigError, match="mutually exclusive"):
            gpuload.DataLoader([1], order="shuffle", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"dtype": torch.int8}, {"dtype": "float16"}, {"memory_format": "channels_last"}, {"device": "banana"}]
)
def test_formats_that_batches_cannot_have_are_refused_by_the_constructor(arguments: dict[str, Any]):
    ((name, value),) = arguments.items()
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        gpuload.DataLoader([1], **arguments)
    assert repr(value) in str(caught.value)
