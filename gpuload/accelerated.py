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
from gpuload.core.structure import map_leaves
from gpuload.engine.flow import Flow, WaitTimeoutError
from gpuload.engine.stats import StageStats
from gpuload.lookahead import lookahead_of
from gpuload.planning import Ahead, Planner, next_plans, own_batches, places_of
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
        self._resets = 0
        self._ahead_as_torch = bool(loader.num_workers)
        self._inline = loader.explicit_inline
        self._begin(loader)
        if loader.num_workers:  # without workers torch asks the sampler for nothing before the first next()
            self._reset(loader, first_iter=True)

    def _begin(self, loader: Any) -> None:
        given_seed = loader.key_seed
        self._key_epoch = loader.epoch if given_seed is not None else self._resets
        self.progress = loader._progress
        resumed = self.progress.resumed
        if resumed.key_epoch is not None and resumed.base_seed is not None:
            self._key_epoch, self._base_seed = resumed.key_epoch, resumed.base_seed
            self._resets = resumed.key_epoch  # the epochs that follow count on from there
        self.progress.key_epoch, self.progress.base_seed = self._key_epoch, self._base_seed
        self.replay_from(resumed)
        if self.progress.plan is not None:
            self._sampler_iter = own_batches(loader, loader.epoch, self.progress.plan.start)
        self._planner = Planner(
            loader.epoch,
            int(self._base_seed if given_seed is None else given_seed),
            self._key_epoch,
            places_of(loader),
            single=not self._auto_collation,
            number=resumed.batches,
        )
        self._lookahead = lookahead_of(loader, self._wiring.engine.work.source)
        self._pulled_ahead = self._to_pull_ahead(loader)
        self._primed = self._exhausted = self._ended = False
        self._due = 0
        self._held: Exception | None = None
        self._unjudged: deque[Any] = deque()
        self._flow = self._wiring.engine.start(epoch=loader.epoch, in_order=self._in_order)
        self._end = self._ends_with(self._flow)
        self.record = begin_record(loader, self, device=self._wiring.device, number=loader.epoch, flow=self._flow)
        if self._wiring.tuner is not None:
            self._wiring.tuner.begin_epoch()
            self._wiring.steered = self.record
        self._loader = weakref.ref(loader)
        self._goes_ahead = self._knows_what_follows(loader)
        self._next: Ahead | None = None
        self._begun = self._wiring.taken_ahead()
        if self._begun is not None and not self._goes_ahead:
            self._begun.flow.cancel()
            self._begun = None

    def _to_pull_ahead(self, loader: Any) -> int:
        """So many batches of ids: as torch all its workers' at iter(), none without workers; else what is let in."""
        if loader.num_workers:
            return int(loader.num_workers * loader.prefetch_factor)
        setting = self._wiring.engine.setting  # what was found in an earlier epoch, too
        return 1 if setting is None else setting.depth + 1

    def _ends_with(self, flow: Any) -> weakref.finalize:
        end = weakref.finalize(self, _cancel, flow, self._pid)
        end.atexit = False
        return end

    def _knows_what_follows(self, loader: Any) -> bool:
        """Whether the next epoch's batches are known, and nothing of the user's runs while they are made."""
        fused = bool(self._wiring.plan.specs)
        return fused and own_plan(loader) is not None and self._in_order and not self._inline

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
        begun, self._begun = self._begun, None
        if begun is not None:
            self._due = self._pulled_ahead - self._take_over(begun)
            self._catch_up()
            return
        for _ in range(self._pulled_ahead):
            self._pull()

    def _catch_up(self) -> None:
        """Pull what is due, unless the next batch is ready: then that one goes first, and two are pulled behind it."""
        while self._due and not self._flow.ready:
            self._due -= 1
            self._pull()

    def _take_over(self, begun: Ahead) -> int:
        """Go on in the flow in which this epoch's first batches were begun, if they are those. How many were pulled."""
        lookahead, self._lookahead = self._lookahead, None
        plans = [plan for _ in begun.begun if (plan := self._next_plan()) is not None]
        self._lookahead = lookahead
        if begun.are(plans):
            self._lookahead = begun.lookahead
            self._end.detach()
            self._flow = self.record.flow = begun.flow
            self._end = self._ends_with(begun.flow)
            self._wiring.engine.turn(begun.flow, begun.work, self._planner.epoch)
        else:
            begun.flow.cancel()
            for plan in plans:
                self._flow.put(plan)
        return len(plans)

    def _pull(self) -> None:
        if self._held is not None:
            return
        try:
            plan = self._next_plan()
        except Exception as error:
            if self._ahead_as_torch or not self._flow.outstanding:
                raise
            self._held = error  # where torch would not have asked yet: its turn comes after the batches before it
        else:
            if plan is not None:
                self._flow.put(plan)

    def _next_plan(self) -> BatchPlan | None:
        """None: the sampler is at its end."""
        try:
            index = self._next_index()
            while self._planner.number in self.progress.resumed.also:
                self._planner.skip(len(index) if self._auto_collation else 1)
                index = self._next_index()
        except StopIteration:
            self._exhausted = True
            return None
        if self._lookahead is not None:
            self._lookahead.reach(self.replayed_samples + self._planner.position)
        return self._planner.plan(index, after=self.replayed_samples)

    def _go_ahead(self) -> None:
        """The sampler is at its end: the next epoch's first batches follow, behind the last ones of this."""
        if self._next is None:
            loader = self._loader()
            if loader is None:
                self._goes_ahead = False
                return
            most = min(loader.ready_ahead, self._pulled_ahead)
            assert isinstance(self._flow, Flow)
            work = self._wiring.engine.epoch_work()
            lookahead = lookahead_of(loader, work.source, next_epoch=True)
            self._next = Ahead(self._flow, work, next_plans(loader), most, lookahead)
        self._next.go_on()

    def _next_data(self) -> Any:
        self._check_process()
        asked_at = perf_counter()
        device = self._wiring.engine.work.device
        device.judge(self._unjudged, wait=False)
        if self._ended:
            raise StopIteration
        self.record.asked(asked_at)
        if not self._primed:
            self._prime()
        elif self._flow.outstanding == 0:
            self._pull()  # as torch without workers: after its end, or an error in it, the sampler is asked again
        self._catch_up()
        while self._flow.outstanding:
            try:
                finished = self._flow.take(self._timeout or None)
            except WaitTimeoutError:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            self.progress.took(finished.number)
            if not self._inline or finished.empty:
                self._pull()
            if self._due:
                self._due -= 1
                self._pull()
            if self._exhausted and self._goes_ahead:
                self._go_ahead()
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
            got_at = perf_counter()  # what follows, a user's callback, is no wait
            self.record.received(asked_at, finished.images)
            if self._wiring.steered is self.record:
                self._tune(asked_at, got_at, finished.images, batch)
            return batch
        if self._held is not None:
            held, self._held = self._held, None
            raise held
        self.progress.over = True
        self.record.ended()
        device.judge(self._unjudged, wait=True)
        self._flow.check_delivered()
        if self._next is not None:
            self._ended = True
            self._end.detach()  # the flow goes on without this iterator
            self._wiring.keep(self._next)
        raise StopIteration

    def _tune(self, asked_at: float, got_at: float, images: int, batch: Any) -> None:
        """The tuner hears of this batch, and perhaps wants another setting."""
        tuner, room_bytes = self._wiring.tuner, self._wiring.room_bytes
        assert tuner is not None
        if room_bytes is not None:
            tuner.holds(_nbytes(batch), room_bytes)
        setting = tuner.batch(asked_at, got_at, images, self._stages)
        if setting is not None:
            self._due = max(0, setting.depth + 1 - self._flow.outstanding)
            self._wiring.engine.apply(setting)

    def _stages(self) -> list[StageStats]:
        return [meter.snapshot() for meter in self._flow.work.meters.all()]

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


def _nbytes(batch: Any) -> int:
    found: list[int] = []
    map_leaves(lambda leaf: found.append(leaf.nbytes) if isinstance(leaf, torch.Tensor) else None, batch)
    return sum(found)


def _to_channels_last(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dim() == 4:
        return leaf.contiguous(memory_format=torch.channels_last)
    return leaf
