"""The accelerated path of a loader: a plan wired to an engine, and the iterator that torch's class expects.

Owns the order of things on the consumer's thread: the same draws from the same generators at the same moments
as torch's iterators, so that a seed gives the same batches with either import.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from gpuload.collate import DirectCollate, SampleCollate
from gpuload.core.batch import BatchPlan, TensorSpec
from gpuload.core.errors import EpochCancelledError
from gpuload.core.philox import sample_keys
from gpuload.core.protocols import Decoder
from gpuload.core.refs import as_ids
from gpuload.core.structure import map_leaves
from gpuload.decode.dali import DaliDecoder
from gpuload.decode.pillow import PillowDecoder
from gpuload.device.cuda import make_device, resolve
from gpuload.device.host import ImagePool
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.engine import Engine
from gpuload.engine.flow import WaitTimeoutError
from gpuload.engine.stats import Meter
from gpuload.engine.work import Meters, Work
from gpuload.plan import LoaderPlan
from gpuload.record import begin_record


class Wiring:
    """An engine and what it was made for: another epoch with the same plan reuses it."""

    def __init__(self, loader: Any, plan: LoaderPlan, bad: BadSamples):
        assert plan.understood is not None and plan.augment is not None
        self.plan = plan
        self._made_for = _identity(loader)
        device = resolve(loader.device)
        source = plan.understood.open_source()
        rows = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
        threads = plan.threads
        decoder = _decoder(plan, threads=max(1, threads), rows=rows)
        loose = ImagePool(rows=1, keep=0)

        def tensor(dtype: str, height: int, width: int) -> Any:
            memory = loose.take(TensorSpec((3, height, width), dtype), 1)
            return type(memory)(memory.array[0], memory.tensor[0])

        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        pinned = bool(loader.pin_memory and accelerator is not None and device.type == "cpu")
        self.depth = loader.depth
        work = Work(
            source=source,
            augment=plan.augment,
            decoder=decoder,
            device=make_device(device, rows=rows, keep=self.depth + 2, pinned=pinned),
            spec=plan.spec,
            collate=DirectCollate(source)
            if plan.spec is not None
            else SampleCollate(source, loader.collate_fn, accelerator.type if pinned and accelerator else None),
            tensor=tensor,
            on_error=loader.on_error,
            bad=bad,
            meters=Meters(Meter("fetch"), Meter("decode"), Meter("finish")),
        )

        def close() -> None:
            decoder.close()
            source.close()

        self.device = device
        self.engine = Engine(
            work, threads=threads, fetch_threads=source.fetch_threads, prepare=_one_thread(), close=close
        )

    def serves(self, loader: Any, plan: LoaderPlan) -> bool:
        """Whether an epoch of `loader` under `plan` can run on this engine."""
        mine = self.plan
        return (
            not self.engine.forked
            and self._made_for == _identity(loader)
            and (mine.spec, mine.decoder, mine.threads) == (plan.spec, plan.decoder, plan.threads)
            and mine.augment is not None
            and plan.augment is not None
            and mine.augment.same_as(plan.augment)
        )


def _identity(loader: Any) -> tuple[Any, ...]:
    """What else, beside the plan, an engine is made of. Held strongly, so that no id is used twice."""
    dataset = loader.dataset
    return (_Same(dataset), _Same(loader.collate_fn), loader.device, loader.on_error, loader.depth, loader.pin_memory)


class _Same:
    """Equal to another only where both hold the same object."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _decoder(plan: LoaderPlan, *, threads: int, rows: int) -> Decoder:
    assert plan.augment is not None
    pillow = PillowDecoder(plan.augment.resampling, plan.augment.resize)
    if plan.decoder == "pillow":
        return pillow
    resampling = plan.augment.resampling
    return DaliDecoder(threads=threads, resampling=resampling, max_rows=rows, fallback=pillow)


def _one_thread() -> Callable[[], None]:
    """Called in each decode thread: torch's operations there stay in it, as it is the samples that are parallel.

    The setting is the thread's own, but torch also gives the last one made to threads that it has not met before: the
    caller's is fixed by asking for it here, and given back for all others by a thread made for that.
    """
    for_others = torch.get_num_threads()

    def prepare() -> None:
        torch.get_num_threads()  # a thread that torch meets later would be given what the others have
        torch.set_num_threads(1)
        giver = threading.Thread(target=torch.set_num_threads, args=(for_others,), daemon=True)
        giver.start()
        giver.join()

    return prepare


class AcceleratedIterator(_BaseDataLoaderIter):
    """One epoch, or with persistent_workers one after another."""

    def __init__(self, loader: Any, wiring: Wiring):
        super().__init__(loader)
        if loader.explicit_inline and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._pid = os.getpid()
        self._wiring, self._in_order = wiring, loader.in_order
        self._channels_last = loader.memory_format is torch.channels_last and wiring.plan.spec is None
        self._given_seed, self._resets = loader.seed, 0
        sampler = loader.sampler
        self._world = (sampler.num_replicas, sampler.rank) if isinstance(sampler, DistributedSampler) else (1, 0)
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
        self._epoch = loader.epoch if self._given_seed is not None else self._resets
        self._number = self._position = 0
        self._primed = False
        self._held: Exception | None = None
        self._flow = self._wiring.engine.start(epoch=self._epoch, depth=self._wiring.depth, in_order=self._in_order)
        self._end = weakref.finalize(self, _cancel, self._flow, self._pid)
        self._end.atexit = False
        self.record = begin_record(loader, self, device=self._wiring.device, number=self._epoch, flow=self._flow)

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
        except StopIteration:
            return
        except Exception as error:
            if self._ahead_as_torch or not self._flow.outstanding:
                raise
            self._held = error  # where torch would not have asked yet: its turn comes after the batches before it
            return
        ids = as_ids(list(index) if self._auto_collation else [index])
        world, rank = self._world
        positions = (self._position + np.arange(len(ids))) * world + rank
        self._position += len(ids)
        seed = int(self._given_seed if self._given_seed is not None else self._base_seed)
        keys = sample_keys(seed=seed, epoch=self._epoch, positions=positions)
        self._flow.put(BatchPlan(self._number, ids, positions, keys, single=not self._auto_collation))
        self._number += 1

    def _next_data(self) -> Any:
        self._check_process()
        asked_at = perf_counter()
        if not self._primed:
            self._prime()
        elif self._flow.outstanding == 0:
            self._pull()  # as torch without workers: after its end, or an error in it, the sampler is asked again
        while self._flow.outstanding:
            try:
                finished = self._flow.take(self._timeout or None)
            except WaitTimeoutError:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            if not self._inline or finished.empty:
                self._pull()
            if finished.error is not None:
                try:
                    raise finished.error
                finally:
                    del finished  # else the error, which keeps this frame, would keep itself
            if finished.empty:
                continue
            batch = self._wiring.engine.work.device.hand_over(finished.sent)
            if self._channels_last:
                batch = map_leaves(_to_channels_last, batch)
            self.record.received(asked_at, finished.images)
            return batch
        if self._held is not None:
            held, self._held = self._held, None
            raise held
        self.record.ended()
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
