"""How busy the GPU is, by NVML, where there is one: cheap enough to be asked in every step.

Owns how often NVML is asked, and on which thread: PCIe counters take 20 ms each, so a thread of its own reads them.
A counter that NVML doesn't give (no permission, a virtual GPU) is None.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from time import monotonic
from typing import Any

import torch

REFRESH_S = 0.5
"""NVML's own averages are over up to a second; a newer answer would say nothing new."""


@dataclass(frozen=True)
class GpuStatus:
    """utilisation: share of the last sampling period in which a kernel ran, 0 to 1. memory_bytes: in use, by all.
    in_bytes_per_s, out_bytes_per_s: over PCIe to and from the GPU; None before they were first read, too.
    """

    utilisation: float | None = None
    memory_bytes: int | None = None
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None


@cache
def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:  # an optional dependency: without it these figures are left out
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class _Gpu:
    """One GPU's last figures. Any thread."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml, self._handle = nvml, handle
        self._lock = threading.RLock()  # as a Meter's
        self._asked_at = -REFRESH_S
        self._status = GpuStatus()

    def status(self) -> GpuStatus:
        """As of at most REFRESH_S ago; what PCIe carried, of one reading before."""
        with self._lock:
            if (now := monotonic()) - self._asked_at >= REFRESH_S:
                self._asked_at = now
                busy = self._asked(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
                memory = self._asked(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))
                self._status = replace(self._status, utilisation=busy, memory_bytes=memory)
                with contextlib.suppress(RuntimeError):  # no thread to be had, or the interpreter is ending
                    threading.Thread(target=self._read_pcie, name="gpuload-nvml", daemon=True).start()
            return self._status

    def _read_pcie(self) -> None:
        nvml = self._nvml
        into = self._asked(lambda: self._pcie_bytes(nvml.NVML_PCIE_UTIL_RX_BYTES))
        out = self._asked(lambda: self._pcie_bytes(nvml.NVML_PCIE_UTIL_TX_BYTES))
        with self._lock:
            self._status = replace(self._status, in_bytes_per_s=into, out_bytes_per_s=out)

    def _pcie_bytes(self, counter: int) -> float:
        return 1000.0 * self._nvml.nvmlDeviceGetPcieThroughput(self._handle, counter)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


@cache
def _gpu(index: int) -> _Gpu | None:
    nvml = _nvml()
    if nvml is None:
        return None
    uuid = str(torch.cuda.get_device_properties(index).uuid)  # NVML knows nothing of CUDA_VISIBLE_DEVICES
    try:
        return _Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError:
        return None


def gpu_status(index: int) -> GpuStatus | None:
    """Of the GPU with this CUDA index, None where NVML is missing or does not know it."""
    gpu = _gpu(index)
    return None if gpu is None else gpu.status()
