"""torch's own iterators with a clock: the path of everything that is not understood, measured like the other.

Owns nothing of what they do: each class adds the consumer's waits to torch's, mixes the batch where batch_transform=
asks for it, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import dataloader

from gpuload.batch_transform import known_batch_transform, mixer
from gpuload.core.philox import sample_keys
from gpuload.record import EpochRecord, begin_record
from gpuload.resume import Replaying


class _Clocked(Replaying):
    record: EpochRecord

    def __init__(self, loader: Any, reasons: tuple[str, ...]):
        self._reasons = reasons
        mixing = known_batch_transform(loader.batch_transform)
        self._mixer, self._seed = None if mixing is None else mixer(mixing), loader.key_seed
        self.begin(loader)
        super().__init__(loader)  # type: ignore[call-arg]
        self.progress.base_seed = self._base_seed  # type: ignore[attr-defined]

    def begin(self, loader: Any) -> None:
        here = torch.device("cpu")
        self.record = begin_record(loader, self, device=here, number=loader.epoch, reasons=self._reasons)
        self.progress = loader._progress
        self.replay_from(self.progress.resumed)
        self._number, self._position = self.progress.resumed.batches, 0

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # persistent workers: the same iterator, another epoch
            self.begin(loader)
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def _next_data(self) -> Any:
        asked_at = perf_counter()
        self.record.asked(asked_at)
        try:
            data = super()._next_data()  # type: ignore[misc]
        except StopIteration:
            self.progress.over = True
            self.record.ended()
            raise
        except Exception:
            self._took()  # the next one follows, also when the consumer goes on
            raise
        self._took()
        images = _images(data)
        if self._mixer is not None:
            seed = self._seed if self._seed is not None else self._base_seed  # type: ignore[attr-defined]
            position = np.array([self.replayed_samples + self._position])
            key = sample_keys(seed=int(seed), epoch=self.record.number, positions=position)
            data = self._mixer(data, key[0])(data, in_place=False)
        self._position += images
        self.record.received(asked_at, images)
        return data

    def _took(self) -> None:
        self.progress.took(self._number)
        self._number += 1


class _SingleProcessDataLoaderIter(_Clocked, dataloader._SingleProcessDataLoaderIter):
    """torch's iterator without workers."""


class _MultiProcessingDataLoaderIter(_Clocked, dataloader._MultiProcessingDataLoaderIter):
    """torch's iterator with worker processes."""


def torch_iterator(loader: Any, reasons: tuple[str, ...]) -> Any:
    """What torch's DataLoader._get_iterator makes, with a record of each epoch. reasons: why it is torch's."""
    if not loader.num_workers:
        return _SingleProcessDataLoaderIter(loader, reasons)
    loader.check_worker_number_rationality()
    return _MultiProcessingDataLoaderIter(loader, reasons)


def _images(data: Any) -> int:
    """How many samples a batch of unknown structure holds: the length of the first tensor in it, else 1."""
    if isinstance(data, torch.Tensor):
        return len(data) if data.dim() else 1
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, (list, tuple)) and data:
        return _images(data[0])
    return 1
