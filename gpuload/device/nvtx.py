"""Ranges that NVIDIA's profilers show: torch's own, where they work.

Owns finding that out: a torch without NVTX has the functions, and they raise.
"""

from __future__ import annotations

from typing import Any

import torch


def nvtx_ranges(device: torch.device) -> Any:
    """What has range_push(text) and range_pop(), for work whose batches go to `device`; None where it can't be."""
    if device.type != "cuda":
        return None
    try:
        torch.cuda.nvtx.range_push("gpuload")
        torch.cuda.nvtx.range_pop()
    except RuntimeError:
        return None
    return torch.cuda.nvtx
