"""One epoch on its way: batches planned, in the making, ready; bounded, in order, cancellable at any moment.

Owns the queue discipline. Rules:
1. The sampler and everything else of the user's order runs on the consumer's thread (`loader.py` pulls); a flow
   is given plans.
2. At most `depth` batches are undelivered, and at most `max_bytes` of encoded bytes lie ahead of the decoder; the
   oldest batch is always allowed, so that one large batch cannot stop everything.
3. All decode threads work on the oldest batch that has work, so the first batch is as early as it can be.
4. A cancelled flow's tasks end without touching anything; nobody waits for them.
Tests: tests/engine/test_flow.py, tests/test_promises.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from gpuload.core.batch import BatchPlan
from gpuload.core.errors import EpochCancelledError
from gpuload.engine.threads import ThreadPool
from gpuload.engine.work import Filling, Finished, Work


class WaitTimeoutError(Exception):
    """No batch within the time that was given."""


@dataclass(eq=False)
class _InFlight:
    plan: BatchPlan
    filling: Filling | None = None
    rows_left: int = 0
    nbytes: int = 0
    finished: Finished | None = None


@dataclass(eq=False)
class Flow:
    """The pooled flow of one epoch. `take` is the consumer's; everything else may be called from any thread."""

    work: Work
    epoch: int
    fetchers: ThreadPool
    decoders: ThreadPool
    depth: int
    max_bytes: int
    in_order: bool = True
    nbytes: int = 0
    cancelled: bool = False
    _planned: deque[BatchPlan] = field(default_factory=deque)
    _active: list[_InFlight] = field(default_factory=list)
    _change: threading.Condition = field(default_factory=threading.Condition)

    def put(self, plan: BatchPlan) -> None:
        """One more batch to make, after those put before."""
        with self._change:
            self._planned.append(plan)
        self._admit()

    @property
    def outstanding(self) -> int:
        """Batches put and not yet taken."""
        with self._change:
            return len(self._planned) + len(self._active)

    @property
    def ready(self) -> int:
        """Batches finished and not yet taken."""
        with self._change:
            return sum(batch.finished is not None for batch in self._active)

    def take(self, timeout_s: float | None) -> Finished:
        """The next batch: the oldest, or whichever is ready first with in_order=False.

        Raises WaitTimeoutError after timeout_s (None: wait for ever), EpochCancelledError if cancelled,
        IndexError if nothing is outstanding.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._change:
            while True:
                if self.cancelled:
                    raise EpochCancelledError("this iterator was closed; make a new one with iter(loader)")
                candidates = self._active[:1] if self.in_order else self._active
                batch = next((b for b in candidates if b.finished is not None), None)
                if batch is not None:
                    self._active.remove(batch)
                    break
                if not self._active and not self._planned:
                    raise IndexError("take from a flow without outstanding batches")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise WaitTimeoutError
                self._change.wait(left)
        self._admit()
        assert batch.finished is not None
        return batch.finished

    def cancel(self) -> None:
        """Drop everything not yet taken. Idempotent; waits for nothing."""
        with self._change:
            self.cancelled = True
            self._planned.clear()
            self._active.clear()
            self._change.notify_all()

    def _admit(self) -> None:
        admitted = []
        with self._change:
            while self._planned and len(self._active) < self.depth:
                if self.nbytes >= self.max_bytes and self._active:
                    break
                batch = _InFlight(self._planned.popleft())
                self._active.append(batch)
                admitted.append(batch)
        for batch in admitted:
            self.fetchers.submit(lambda batch=batch: self._fetch(batch))

    def _fetch(self, batch: _InFlight) -> None:
        if self.cancelled:
            return
        try:
            encoded = self.work.fetch(batch.plan)
            batch.nbytes = encoded.data.nbytes
            batch.filling = self.work.fill(batch.plan, self.epoch, encoded)
        except Exception as error:  # handed to the consumer as this batch
            self._done(batch, Finished(batch.plan.number, 0, error=error))
            return
        with self._change:
            self.nbytes += batch.nbytes
            batch.rows_left = len(batch.plan)
        step = self.work.decoder.rows_per_task or max(1, len(batch.plan))
        for start in range(0, max(1, len(batch.plan)), step):
            rows = range(start, min(start + step, len(batch.plan)))
            self.decoders.submit(lambda rows=rows: self._decode(batch, rows))

    def _decode(self, batch: _InFlight, rows: range) -> None:
        if self.cancelled:
            return
        assert batch.filling is not None
        try:
            self.work.decode(batch.filling, rows)
        except Exception as error:  # handed to the consumer as this batch
            self._done(batch, Finished(batch.plan.number, 0, error=error))
            return
        with self._change:
            batch.rows_left -= len(rows)
            last = batch.rows_left <= 0 and batch.finished is None
        if not last:
            return
        try:
            finished = self.work.finish(batch.filling)
        except Exception as error:  # the user's collate_fn may raise anything: handed on as this batch
            finished = Finished(batch.plan.number, 0, error=error)
        self._done(batch, finished)

    def _done(self, batch: _InFlight, finished: Finished) -> None:
        with self._change:
            if batch.finished is None:
                batch.finished = finished
                batch.filling = None
                self.nbytes -= batch.nbytes
                batch.nbytes = 0
            self._change.notify_all()
        self._admit()


@dataclass(eq=False)
class InlineFlow:
    """The same for num_workers=0: each batch is made when it is taken, in the caller's thread."""

    work: Work
    epoch: int
    ready: int = 0
    nbytes: int = 0
    cancelled: bool = False
    _planned: deque[BatchPlan] = field(default_factory=deque)

    def put(self, plan: BatchPlan) -> None:
        self._planned.append(plan)

    @property
    def outstanding(self) -> int:
        return len(self._planned)

    def take(self, timeout_s: float | None) -> Finished:
        plan = self._planned.popleft()
        filling = self.work.fill(plan, self.epoch, self.work.fetch(plan))
        step = self.work.decoder.rows_per_task or max(1, len(plan))
        for start in range(0, len(plan), step):
            self.work.decode(filling, range(start, min(start + step, len(plan))))
        return self.work.finish(filling)

    def cancel(self) -> None:
        self._planned.clear()
