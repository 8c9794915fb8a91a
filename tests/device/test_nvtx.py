"""Ranges only where torch can make them."""

from __future__ import annotations

import pytest
import torch

from gpuload.device.nvtx import nvtx_ranges

CUDA = torch.device("cuda", 0)


def test_ranges_are_torchs_where_they_work(monkeypatch: pytest.MonkeyPatch):
    depth = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda msg: depth.append(msg))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: depth.pop())
    assert nvtx_ranges(CUDA) is torch.cuda.nvtx and depth == []
    assert nvtx_ranges(torch.device("cpu")) is None


def test_a_torch_without_nvtx_has_none(monkeypatch: pytest.MonkeyPatch):
    def missing(msg: str) -> None:
        raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    monkeypatch.setattr(torch.cuda.nvtx, "range_push", missing)
    assert nvtx_ranges(CUDA) is None
