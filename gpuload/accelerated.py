"""The iterator of the accelerated path, as torch's class expects one.

Owns the order of things on the consumer's thread: the same draws from the same generators at the same moments
as torch's iterators, so that a seed gives the same batches with either import.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from time import perf_counter
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpuload.core.batch import BatchPlan
from gpuload.core.errors import EpochCancelledError
from gpuload.core.philox import sample_keys
from gpuload.core.refs import as_ids
from gpuload.core.structure import map_leaves
from gpuload.engine.flow import WaitTimeoutError
from gpuload.record import begin_record
from gpuload.resume import Replaying, own_plan
from gpuload.wiring import Wiring


class AcceleratedIterator(Replaying, _BaseDataLoaderIter):
    """One epoch, or with persistent_workers one after another."""

    def __init__(self, loader: Any, wiring: Wiring):
        super().__init__(loader)
        if loader.explicit_inline and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._pid = os.getpid()
        self._wiring, self._in_order = wiring, loader.in_order
        self._channels_last = loader.memory_format is torch.channels_last and (
            not wiring.plan.specs or wiring.plan.specs[0].open
        )
        self._given_seed, self._resets = loader.seed, 0  # that of a loader which divides is given, or 0
        self._places = loader.epoch_positions
        # torch pulls so many batches of ids ahead: all its workers' at iter(), none at all without workers
        self._ahead = loader.num_workers * loader.prefetch_factor if loader.num_workers else wiring.depth + 1
        self._ahead_as_torch = bool(loader.num_workers)
        self._inline = loader.explicit_inline
        if self._inline:
            self._ahead = 1
        self._begin(loader)
        if loader.num_workers:  # without workers torch asks the sampler for nothing before the first next()
            self._reset(loader, first_iter=True)

    def _begin(self, loader: Any) -> None:
        self._key_epoch = loader.epoch if self._given_seed is not None else self._resets
        self.progress = loader._progress
        resumed = self.progress.resumed
        if resumed.key_epoch is not None and resumed.base_seed is not None:
            self._key_epoch, self._base_seed = resumed.key_epoch, resumed.base_seed
            self._resets = resumed.key_epoch  # the epochs that follow count on from there
        self.progress.key_epoch, self.progress.base_seed = self._key_epoch, self._base_seed
        self.replay_from(resumed)
        self._ranks = own_plan(loader)
        self._number, self._position = resumed.batches, 0
        self._primed = False
        self._held: Exception | None = None
        self._unjudged: deque[Any] = deque()
        self._flow = self._wiring.engine.start(epoch=loader.epoch, depth=self._wiring.depth, in_order=self._in_order)
        self._end = weakref.finalize(self, _cancel, self._flow, self._pid)
        self._end.atexit = False
        self.record = begin_record(loader, self, device=self._wiring.device, number=loader.epoch, flow=self._flow)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._check_process()
            self.close()
            self._resets += 1
            self._begin(loader)
        self._prime()

    def _prime(self) -> None:
        self._primed = True
        for _ in range(self._ahead):
            self._pull()

    def _pull(self) -> None:
        if self._held is not None:
            return
        try:
            index = self._next_index()
            while self._number in self.progress.resumed.also:
                self._number += 1
                self._position += len(index) if self._auto_collation else 1
                index = self._next_index()
        except StopIteration:
            return
        except Exception as error:
            if self._ahead_as_torch or not self._flow.outstanding:
                raise
            self._held = error  # where torch would not have asked yet: its turn comes after the batches before it
            return
        ids = as_ids(list(index) if self._auto_collation else [index])
        first = self.replayed_samples + self._position
        if self._ranks is not None:
            positions = self._ranks.positions_of(first, first + len(ids))
        else:
            positions = self._places(first, len(ids))
        self._position += len(ids)
        seed = int(self._given_seed if self._given_seed is not None else self._base_seed)
        keys = sample_keys(seed=seed, epoch=self._key_epoch, positions=positions)
        self._flow.put(BatchPlan(self._number, ids, positions, keys, single=not self._auto_collation))
        self._number += 1

    def _next_data(self) -> Any:
        self._check_process()
        asked_at = perf_counter()
        device = self._wiring.engine.work.device
        device.judge(self._unjudged, wait=False)
        if not self._primed:
            self._prime()
        elif self._flow.outstanding == 0:
            self._pull()  # as torch without workers: after its end, or an error in it, the sampler is asked again
        while self._flow.outstanding:
            try:
                finished = self._flow.take(self._timeout or None)
            except WaitTimeoutError:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            self.progress.took(finished.number)
            if not self._inline or finished.empty:
                self._pull()
            if finished.error is not None:
                try:
                    raise finished.error
                finally:
                    del finished  # else the error, which keeps this frame, would keep itself
            if finished.empty:
                continue
            batch = device.hand_over(finished.sent, self._unjudged)
            if self._channels_last:
                batch = map_leaves(_to_channels_last, batch)
            self.record.received(asked_at, finished.images)
            return batch
        if self._held is not None:
            held, self._held = self._held, None
            raise held
        self.record.ended()
        self.progress.over = True
        device.judge(self._unjudged, wait=True)
        self._flow.check_delivered()
        raise StopIteration

    def close(self) -> None:
        """Drop what has been prepared. Idempotent; called when the iterator is collected."""
        self._end()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise EpochCancelledError(
                "this iterator was made before a fork, and its threads are the parent's; make one here: iter(loader)"
            )


def _cancel(flow: Any, pid: int) -> None:
    if pid == os.getpid():  # in a forked child the flow's lock may be held for ever, and there is nothing to stop
        flow.cancel()


def _to_channels_last(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dim() == 4:
        return leaf.contiguous(memory_format=torch.channels_last)
    return leaf
