"""What NVML says, by a stand-in for pynvml: figures, refusals, and how often it is asked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuload.device import nvml
from gpuload.device.nvml import GpuStatus, gpu_status
from tests.engine.fakes import eventually


class Pynvml:
    """Module of that name. refuses: functions that raise. PCIe counters wait for `gate`."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, refuses: tuple[str, ...] = ()):
        self.refuses, self.asked, self.gate = refuses, [], threading.Event()
        self.gate.set()

    def _answer(self, name: str, value: Any) -> Any:
        self.asked.append(name)
        if name in self.refuses:
            raise self.NVMLError(name)
        return value

    def nvmlInit(self) -> None:
        self._answer("init", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._answer("handle", uuid)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        assert handle == "GPU-1-2-3"
        return self._answer("utilisation", SimpleNamespace(gpu=87))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self._answer("memory", SimpleNamespace(used=123_456))

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:
        assert self.gate.wait(20)
        return self._answer("pcie", 500 + counter)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(nvml, "monotonic", lambda: now.s)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="1-2-3"))
    yield now
    nvml._nvml.cache_clear()
    nvml._gpu.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, fake: Any) -> Any:
    nvml._nvml.cache_clear()
    nvml._gpu.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_all_figures_come_and_pcie_s_follow(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace):
    fake = install(monkeypatch, Pynvml())
    fake.gate.clear()
    assert gpu_status(0) == GpuStatus(0.87, 123_456, None, None)  # and nobody has waited for PCIe
    fake.gate.set()
    assert eventually(lambda: gpu_status(0) == GpuStatus(0.87, 123_456, 501_000.0, 500_000.0))


def test_nvml_is_asked_twice_a_second_however_often_stats_are(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace):
    fake = install(monkeypatch, Pynvml())
    for _ in range(1000):
        gpu_status(0)
        clock.s += 0.002
    assert fake.asked.count("utilisation") == fake.asked.count("memory") == 4
    assert eventually(lambda: fake.asked.count("pcie") == 8) and fake.asked.count("handle") == 1


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ("utilisation", GpuStatus(None, 123_456, 501_000.0, 500_000.0)),
        ("memory", GpuStatus(0.87, None, 501_000.0, 500_000.0)),
        ("pcie", GpuStatus(0.87, 123_456)),
        ("handle", None),
        ("init", None),
    ],
)
def test_a_counter_without_permission_is_none(
    refused: str, left: GpuStatus | None, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
):
    install(monkeypatch, Pynvml((refused,)))
    assert eventually(lambda: gpu_status(0) == left)


def test_without_the_package_there_is_nothing(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace):
    install(monkeypatch, None)  # importing it raises ImportError
    assert gpu_status(0) is None


def test_where_no_thread_is_to_be_had_pcie_stays_unknown(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace):
    install(monkeypatch, Pynvml())

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert gpu_status(0) == GpuStatus(0.87, 123_456)
