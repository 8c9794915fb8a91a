"""torch's own iterators with a clock: the path of everything that is not understood, measured like the other.

Owns nothing of what they do: each class adds the consumer's waits to torch's, and no more.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch.utils.data import dataloader

from gpuload.record import EpochRecord


class _Clocked:
    record: EpochRecord

    def _next_data(self) -> Any:
        asked_at = perf_counter()
        data = super()._next_data()  # type: ignore[misc]
        self.record.consumer.received(asked_at, _images(data))
        return data


class _SingleProcessDataLoaderIter(_Clocked, dataloader._SingleProcessDataLoaderIter):
    """torch's iterator without workers."""


class _MultiProcessingDataLoaderIter(_Clocked, dataloader._MultiProcessingDataLoaderIter):
    """torch's iterator with worker processes."""


def torch_iterator(loader: Any, record: EpochRecord) -> Any:
    """What torch's DataLoader._get_iterator makes, reporting to `record`."""
    if loader.num_workers:
        loader.check_worker_number_rationality()
        iterator: Any = _MultiProcessingDataLoaderIter(loader)
    else:
        iterator = _SingleProcessDataLoaderIter(loader)
    iterator.record = record
    return iterator


def _images(data: Any) -> int:
    """How many samples a batch of unknown structure holds: the length of the first tensor in it, else 1."""
    if isinstance(data, torch.Tensor):
        return len(data) if data.dim() else 1
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, (list, tuple)) and data:
        return _images(data[0])
    return 1
