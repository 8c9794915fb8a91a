"""One epoch on its way: batches planned, in the making, ready; bounded, in order, cancellable at any moment.

Owns the queue discipline. Rules:
1. The sampler and everything else of the user's order runs on the consumer's thread (`accelerated.py` pulls); a flow
   is given plans.
2. At most `depth` batches are undelivered, and at most `max_bytes` of encoded bytes lie ahead of the decoder. A size
   is known only when its bytes are there: one being read counts as the largest so far, no more are read at once than
   there are fetch threads, and where nothing lies ahead one batch is let in, so that a large one stops nothing.
3. All threads work on the oldest batch that has work, so the first batch is as early as it can be.
4. A cancelled flow's tasks end without touching anything; nobody waits for them.
5. An error of a thread leaves without its frames' variables: they hold the batch's memory, and the error would hold
   them. So the frames that are still running then, those of a task's outermost method and `_done`, have no such
   variable. Inline an error keeps its frames, for the debugger of whoever is there.
6. A batch whose task gets no thread has that as its error: nobody waits for it.
7. `in_turn` is for a device that carries out work in the order in which it is sent: a batch is finished after all
   older ones, so that none waits there behind a later one; it holds no thread meanwhile. Nor does a batch for which the
   device has no room: it is tried again whenever one was taken, and when the consumer waits and nothing is ready. Only
   if it fails then, when nobody will give anything back, is that its error. From its first refusal on, one batch less
   is let in.
8. A warning about a batch's bad samples comes before the batch: one that is an error (`python -W error`) leaves it
   where it is, for the next call.
9. Batches of the next epoch may stand behind those of this one, within the same bounds. They are not counted, taken
   or told of before `turn`, but for the queues' lengths, in which they stand.
Tests: tests/engine/test_flow.py, tests/test_promises.py.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gpuload.core.batch import BatchPlan
from gpuload.core.errors import DeviceMemoryError, EpochCancelledError
from gpuload.engine.badsamples import forget_locals
from gpuload.engine.meters import Gauge
from gpuload.engine.stats import NO_QUEUES, Queues
from gpuload.engine.threads import ThreadPool
from gpuload.engine.work import Filling, Finished, Tally, Work

_RANKS = itertools.count()
"""A batch's rank in its pools is when it was let in: the oldest first, and no flow before another's older ones."""


class WaitTimeoutError(Exception):
    """No batch within the time that was given."""


@dataclass(eq=False)
class _InFlight:
    plan: BatchPlan
    work: Work
    rank: int
    filling: Filling | None = None
    rows_left: int = 0
    nbytes: int = 0
    finishing: bool = False  # a thread is about it
    refused: bool = False  # the device had no room for it
    counted: bool = False  # and its bad samples listed
    finished: Finished | None = None


@dataclass(eq=False)
class Flow:
    """The pooled flow of one epoch, and then of the next. work: that of the epoch which is taken.

    `take` and `turn` are the consumer's; everything else may be called from any thread.
    """

    work: Work
    epoch: int
    fetchers: ThreadPool
    decoders: ThreadPool
    depth: int
    max_bytes: int
    in_order: bool = True
    in_turn: bool = False  # batches are finished in their order
    gauge: Gauge = field(default_factory=Gauge)  # of its queues; called under the lock
    nbytes: int = 0
    cancelled: bool = False
    _stop: np.ndarray = field(default_factory=lambda: np.zeros(1, np.uint8))  # `cancelled` for those without the GIL
    _most_depth: int = sys.maxsize
    _largest: int = 0
    _fetching: int = 0
    _tally: Tally = field(default_factory=Tally)
    _planned: deque[tuple[Work, BatchPlan]] = field(default_factory=deque)
    _active: list[_InFlight] = field(default_factory=list)
    _waiting: list[_InFlight] = field(default_factory=list)  # decoded, not to be finished yet
    _hungry: bool = False  # the consumer waits, and nothing is ready
    _change: threading.Condition = field(default_factory=threading.Condition)

    def put(self, plan: BatchPlan, work: Work | None = None) -> None:
        """One more batch to make, after those put before. work: the next epoch's, for a batch of that."""
        with self._change:
            self._planned.append((work or self.work, plan))
            self.gauge.add(planned=1)
        self._admit()

    def deepen(self, depth: int) -> None:
        """So many undelivered batches from now on, or as many as the device once had room for."""
        with self._change:
            self.depth = min(depth, self._most_depth)
        self._admit()

    def turn(self, work: Work, epoch: int) -> None:
        """This epoch is over: from now on batches of `work` are taken."""
        with self._change:
            self.work, self.epoch, self._tally = work, epoch, Tally()
            self.gauge.restart()

    def restart_clock(self) -> None:
        """The queues' time counts from now."""
        with self._change:
            self.gauge.restart()

    @property
    def outstanding(self) -> int:
        """Batches of this epoch put and not yet taken."""
        with self._change:
            planned = sum(work is self.work for work, _ in self._planned)
            return planned + sum(batch.work is self.work for batch in self._active)

    @property
    def undelivered(self) -> int:
        """Batches put and not yet taken, of the next epoch too."""
        with self._change:
            return len(self._planned) + len(self._active)

    @property
    def ready(self) -> int:
        """Batches of this epoch finished and not yet taken."""
        with self._change:
            return sum(batch.finished is not None for batch in self._active if batch.work is self.work)

    def queues(self, until: float) -> Queues:
        """Of this epoch, from its start to `until` (perf_counter)."""
        with self._change:
            return self.gauge.snapshot(until)

    def take(self, timeout_s: float | None) -> Finished:
        """The next batch: the oldest, or whichever is ready first with in_order=False.

        Raises WaitTimeoutError after timeout_s (None: wait for ever), EpochCancelledError if cancelled,
        IndexError if nothing is outstanding. Where it raises a warning that is an error, no batch was taken.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._change:
            while True:
                self._hungry = False
                if self.cancelled:
                    raise _closed()
                mine = [batch for batch in self._active if batch.work is self.work]
                candidates = mine[:1] if self.in_order else mine
                batch = next((b for b in candidates if b.finished is not None), None)
                if batch is not None and batch.finished is not None:
                    self._active.remove(batch)
                    self.gauge.add(ready=-1)
                    break
                if not mine and not any(work is self.work for work, _ in self._planned):
                    raise IndexError("take from a flow without outstanding batches")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise WaitTimeoutError
                self._hungry = True
                self._finish_waiting(again=True)
                self._change.wait(left)
        finished = batch.finished
        if not batch.counted:
            batch.counted = True
            self._tally.add(finished, self.epoch, self.work.bad)
        try:
            self.work.bad.tell()
        except BaseException:
            self._put_back(batch)
            raise
        self._finish_waiting(again=True)
        self._admit()
        return finished

    def _put_back(self, batch: _InFlight) -> None:
        with self._change:
            if not self.cancelled:
                self._active.append(batch)
                self._active.sort(key=lambda other: other.rank)
                self.gauge.add(ready=1)
                self._change.notify_all()

    def check_delivered(self) -> None:
        """At the end of the epoch: raise GpuloadError, once, if it had samples and every one was left out."""
        self._tally.check(self.epoch, self.work.bad)

    def cancel(self) -> None:
        """Drop everything not yet taken. Idempotent; waits for nothing."""
        with self._change:
            self.cancelled = True
            self._stop[0] = 1
            self._planned.clear()
            self._active.clear()
            self._waiting.clear()
            self.nbytes = 0
            self.gauge.stop()
            self._change.notify_all()

    def _room(self) -> bool:
        """Whether one more batch may be let in. Under the lock."""
        if len(self._active) >= self.depth:
            return False
        ahead = self.nbytes + self._fetching * self._largest
        bounded = self._fetching < self.fetchers.size and ahead + self._largest <= self.max_bytes
        return bounded or not (self.nbytes or self._fetching)

    def _admit(self) -> None:
        """Let in what there is room for."""
        while (batch := self._let_in()) is not None:
            try:
                self.fetchers.submit(partial(self._fetch, batch), rank=batch.rank)
            except RuntimeError as error:  # no thread to be had
                with self._change:
                    self._fetching -= 1
                self._settle(batch, Finished(batch.plan.number, 0, error=error))

    def _let_in(self) -> _InFlight | None:
        with self._change:
            if not self._planned or self.cancelled or not self._room():
                return None
            work, plan = self._planned.popleft()
            batch = _InFlight(plan, work, next(_RANKS))
            self._active.append(batch)
            self._fetching += 1
            self.gauge.add(planned=-1, making=1)
            return batch

    def _fetch(self, batch: _InFlight) -> None:
        if self.cancelled:
            return
        try:
            self._fetched(batch)
        except BaseException as error:  # whatever it is, a user's SystemExit too, is handed to the consumer
            self._done(batch, Finished(batch.plan.number, 0, error=error))
        else:
            self._admit()

    def _fetched(self, batch: _InFlight) -> None:
        """Read the batch and hand its rows to the decode threads."""
        filling = None
        try:
            filling = batch.work.fill(batch.plan, batch.work.fetch(batch.plan), self._stop)
        finally:
            with self._change:
                self._fetching -= 1
                if filling is not None and not self.cancelled:
                    batch.filling, batch.rows_left = filling, len(batch.plan)
                    batch.nbytes = filling.encoded.data.nbytes
                    self.nbytes += batch.nbytes
                    self._largest = max(self._largest, batch.nbytes)
        step = batch.work.decoder.rows_per_task(filling.encoded)
        starts = range(0, max(1, len(batch.plan)), step)
        with self._change:
            self.gauge.add(tasks=len(starts))
        for start in starts:
            rows = range(start, min(start + step, len(batch.plan)))
            self.decoders.submit(partial(self._decode, batch, rows), rank=batch.rank)

    def _decode(self, batch: _InFlight, rows: range) -> None:
        try:
            finished = self._decoded(batch, rows)
        except BaseException as error:  # the user's code may raise anything: handed on as this batch
            finished = Finished(batch.plan.number, 0, error=error)
        if finished is not None:
            self._done(batch, finished)

    def _decoded(self, batch: _InFlight, rows: range) -> Finished | None:
        """Decode these rows; the finished batch if they were its last."""
        with self._change:
            self.gauge.add(tasks=-1)
            filling = batch.filling
            if self.cancelled or filling is None:  # an error in other rows has ended the batch
                return None
        if rows or not len(batch.plan):
            batch.work.decode(filling, rows)
        with self._change:
            batch.rows_left -= len(rows)
            last = batch.rows_left == 0 and batch.finished is None and not self.cancelled
            if last and not self._in_turn(batch):
                self._waiting.append(batch)
                self.gauge.add(waiting=1)
                last = False
            batch.finishing = last
            last_try = self._nobody_gives_back(batch)
        if not last:
            return None
        try:
            return batch.work.finish(filling)
        except DeviceMemoryError:
            if last_try or not self._postponed(batch):
                raise
            return None

    def _in_turn(self, batch: _InFlight) -> bool:
        """Whether all older ones are finished, where that is asked for. Under the lock."""
        return not self.in_turn or all(other.finished for other in self._active if other.rank < batch.rank)

    def _nobody_gives_back(self, batch: _InFlight) -> bool:
        """Whether no memory will come back for it: the consumer waits and gets nothing else. Under the lock."""
        others = (other for other in self._active if other is not batch)
        return self._hungry and not any(other.finished or other.finishing for other in others)

    def _finish_waiting(self, *, again: bool = False) -> None:
        """Let threads finish those whose turn has come. again: also the oldest that was refused."""
        with self._change:
            refused = min((batch for batch in self._waiting if batch.refused), key=lambda b: b.rank, default=None)
            may = [b for b in self._waiting if not b.refused or (again and b is refused)]
            ready = [batch for batch in may if self._in_turn(batch)]
            if ready:
                self._waiting = [batch for batch in self._waiting if batch not in ready]
                self.gauge.add(waiting=-len(ready), tasks=len(ready))
        for batch in ready:
            self.decoders.submit(partial(self._decode, batch, range(0)), rank=batch.rank)

    def _postponed(self, batch: _InFlight) -> bool:
        """A batch for which the device has no room is kept for later; False if nobody wants it any more."""
        with self._change:
            if self.cancelled:
                return False
            if not batch.refused:
                self.depth = self._most_depth = max(1, self.depth - 1)
            batch.refused, batch.finishing = True, False
            self._waiting.append(batch)
            self.gauge.add(waiting=1)
            again = self._nobody_gives_back(batch)
        if again:  # it became so while this was tried
            self._finish_waiting(again=True)
        return True

    def _done(self, batch: _InFlight, finished: Finished) -> None:
        self._settle(batch, finished)
        self._admit()

    def _settle(self, batch: _InFlight, finished: Finished) -> None:
        if finished.error is not None:
            forget_locals(finished.error)
        with self._change:
            if batch.finished is None and not self.cancelled:
                batch.finished, batch.filling = finished, None
                self.nbytes -= batch.nbytes
                self.gauge.add(making=-1, ready=1)
            batch.finishing = False
            self._change.notify_all()
        self._finish_waiting(again=batch.refused)


def _closed() -> EpochCancelledError:
    return EpochCancelledError("this iterator was closed; make a new one with iter(loader)")


@dataclass(eq=False)
class InlineFlow:
    """The same for num_workers=0: each batch is made when it is taken, in the caller's thread."""

    work: Work
    epoch: int
    ready: int = 0
    nbytes: int = 0
    cancelled: bool = False
    _tally: Tally = field(default_factory=Tally)
    _planned: deque[BatchPlan] = field(default_factory=deque)
    _kept: Finished | None = None  # made and not taken, because of a warning that is an error

    def put(self, plan: BatchPlan) -> None:
        self._planned.append(plan)

    def queues(self, until: float) -> Queues:
        return NO_QUEUES

    def restart_clock(self) -> None:
        """It has no queues."""

    @property
    def outstanding(self) -> int:
        return len(self._planned) + (self._kept is not None)

    def take(self, timeout_s: float | None) -> Finished:
        """As Flow's; what making the batch raises comes from here."""
        if self.cancelled:
            raise _closed()
        finished, self._kept = self._kept, None
        if finished is None:
            finished = self._counted(self._planned.popleft())
        try:
            self.work.bad.tell()
        except BaseException:
            self._kept = finished
            raise
        return finished

    def _counted(self, plan: BatchPlan) -> Finished:
        try:
            finished = self._made(plan)
        except BaseException:
            self._tally.told += 1
            raise
        self._tally.add(finished, self.epoch, self.work.bad)
        return finished

    def _made(self, plan: BatchPlan) -> Finished:
        filling = self.work.fill(plan, self.work.fetch(plan))
        step = self.work.decoder.rows_per_task(filling.encoded)
        for start in range(0, len(plan), step):
            self.work.decode(filling, range(start, min(start + step, len(plan))))
        return self.work.finish(filling)

    def check_delivered(self) -> None:
        """As Flow's."""
        self._tally.check(self.epoch, self.work.bad)

    def cancel(self) -> None:
        self.cancelled = True
        self._planned.clear()
        self._kept = None
