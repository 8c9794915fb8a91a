"""How busy the GPU is, by NVML, where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class GpuStatus:
    """utilisation: share of the last sampling period in which a kernel ran, 0 to 1. memory_bytes: in use, by all."""

    utilisation: float
    memory_bytes: int


@cache
def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:  # an optional dependency: without it these two figures are left out
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def gpu_status(index: int) -> GpuStatus | None:
    """Of the GPU with this CUDA index, None where NVML is missing or does not answer."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)  # NVML knows nothing of CUDA_VISIBLE_DEVICES
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        return GpuStatus(busy / 100, int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
    except nvml.NVMLError:
        return None
