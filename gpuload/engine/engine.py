"""The engine of one loader: its thread pools and meters, and the epochs that run on them.

Owns their lives: made at the first iteration, shared by all of the loader's iterators, closed when the last of
loader and iterators is gone. After a fork the child makes its own.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from dataclasses import replace

from gpuload.config import MAX_BYTES_AHEAD
from gpuload.core.setting import Setting
from gpuload.engine.events import Events
from gpuload.engine.flow import Flow, InlineFlow
from gpuload.engine.meters import Gauge, Meter
from gpuload.engine.threads import ThreadPool, close_pools
from gpuload.engine.work import Meters, Work


class Engine:
    """setting: at the start; None for all work in the caller's thread. prepare: runs first in each decode thread.

    close: frees what the work holds (files, decoder); runs while the threads end, as they may be waiting for what it
    closes. events: where tasks and queues are noted, for a trace.
    """

    def __init__(
        self,
        work: Work,
        *,
        setting: Setting | None,
        prepare: Callable[[], None],
        close: Callable[[], None],
        events: Events | None = None,
    ):
        self.work, self.setting, self.pid, self._events = work, setting, os.getpid(), events
        pools: tuple[ThreadPool, ...] = ()
        if setting is not None:
            callers = work.decoder.callers(setting.decode_threads)
            pools = (
                ThreadPool("fetch", setting.fetch_threads, meter=work.meters.fetch),
                ThreadPool("decode", callers, meter=work.meters.decode, prepare=prepare),
            )
        self._pools = pools
        self._flows: weakref.WeakSet[Flow] = weakref.WeakSet()
        self._close = close
        self._finalizer = weakref.finalize(self, _close, pools, close, self.pid)
        self._finalizer.atexit = False  # `_close_all` below does it for all engines at once
        _LIVE.add(self)

    def start(self, *, epoch: int, in_order: bool) -> Flow | InlineFlow:
        """A flow whose first epoch is `epoch`."""
        work = self.epoch_work()
        if self.setting is None:
            return InlineFlow(work, epoch)
        fetchers, decoders = self._pools
        self._measure(work)
        in_turn = in_order and work.device.ordered
        gauge = Gauge(self._events)
        depth = self.setting.depth
        flow = Flow(work, epoch, fetchers, decoders, depth, MAX_BYTES_AHEAD, in_order, in_turn, gauge)
        self._flows.add(flow)
        return flow

    def apply(self, setting: Setting) -> None:
        """From now on, in the middle of an epoch too. Consumer's thread; nothing where it does all work itself."""
        if self.setting is None:
            return
        self.setting = setting
        fetchers, decoders = self._pools
        fetchers.resize(setting.fetch_threads)
        decoders.resize(self.work.decoder.callers(setting.decode_threads))
        for flow in list(self._flows):
            meters = flow.work.meters
            meters.fetch.threads, meters.decode.threads = fetchers.size, decoders.size
            flow.deepen(setting.depth)

    def turn(self, flow: Flow, work: Work, epoch: int) -> None:
        """The flow's epoch is over and `work`'s begins, of which batches may have been made already."""
        self._measure(work)
        flow.turn(work, epoch)

    def epoch_work(self) -> Work:
        """Work with counters of its own: an earlier epoch's last tasks don't count into this one's."""
        sizes = [pool.size for pool in self._pools] or [0, 0]
        threads = {"fetch": sizes[0], "decode": sizes[1], "finish": 0}
        meters = Meters(*(Meter(name, count, self._events) for name, count in threads.items()))
        return replace(self.work, meters=meters, decoders={})

    def _measure(self, work: Work) -> None:
        """From now on the threads wait for this epoch."""
        for pool, meter in zip(self._pools, work.meters.all(), strict=False):
            pool.measure(meter)
            meter.threads = pool.size  # it may have been made before they were changed

    @property
    def forked(self) -> bool:
        """Whether this process inherited the engine from a parent: it has no threads here."""
        return self.pid != os.getpid()

    def close(self) -> None:
        """Stop the threads and free what they used. Idempotent; within STOP_WAIT_S."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"Engine({', '.join(map(repr, self._pools)) or 'in the calling thread'})"


def _close(pools: tuple[ThreadPool, ...], close: Callable[[], None], pid: int) -> None:
    if pid != os.getpid():
        return
    if pools:
        close_pools(*pools, beside=(close,))
    else:
        close()


_LIVE: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At interpreter exit: all engines in the time of one, and before `threads.py` would stop their pools alone."""
    mine = [engine for engine in list(_LIVE) if not engine.forked and engine._finalizer.detach() is not None]
    if mine:
        close_pools(*(pool for engine in mine for pool in engine._pools), beside=[engine._close for engine in mine])
