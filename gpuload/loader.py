"""The DataLoader: torch's class and signature, with one engine behind it where data set and transform are understood.

Owns the arguments and what they mean (docs/design.md has the table). Which path runs is `plan.py`'s decision;
the accelerated one is `accelerated.py`'s, the other is torch's own code, reached through `super()`.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler

from gpuload import config as defaults
from gpuload.batch_transform import known_batch_transform
from gpuload.core.errors import ConfigError, NotAcceleratedError
from gpuload.core.setting import Setting
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.stats import Stats
from gpuload.fallback import torch_iterator
from gpuload.order_sampler import OrderSampler
from gpuload.plan import LoaderPlan, known_dtype, plan_loader
from gpuload.ranks_here import check_ranks, rank_of, warn_undivided
from gpuload.record import EpochRecord, Watcher, watcher
from gpuload.report.trace import TraceFile
from gpuload.resume import Progress, Resumed, resumed_from, setup_of, state_of, tell_sampler
from gpuload.tune.limits import Limits
from gpuload.tune.settings_file import check_limits, checked_setting, load_setting

T_co = TypeVar("T_co", covariant=True)


class Automatic(int):
    """A number that was not given: equal to torch's default, recognisable when passed on to another loader."""

    def __reduce__(self) -> Any:
        return (Automatic, (int(self),))


AUTO_WORKERS = Automatic(0)
AUTO_DEPTH = Automatic(2)


def _drawn_seed(generator: torch.Generator | None) -> int:
    """A seed from torch's generator, as torch's own samplers draw theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _check_formats(device: Any, dtype: Any, memory_format: Any) -> None:
    known_dtype(dtype)
    if memory_format not in (None, torch.contiguous_format, torch.channels_last):
        raise ConfigError(f"memory_format must be torch.channels_last or None, got {memory_format!r}")
    try:
        kind = "cpu" if device == "auto" else torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f'device must be "auto", "cpu" or a CUDA device, got {device!r}') from error
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f'device must be "auto", "cpu" or a CUDA device, got {device!r}')


class DataLoader(TorchDataLoader[T_co]):
    """torch.utils.data.DataLoader with the work done by gpuload's engine: the same samples in the same order.

    The batches of a deterministic transform are torch's bit for bit, unless decoder="dali" is asked for. Random crops
    and flips have torchvision's distributions and draws of their own, a function of seed, epoch and position.

    All of torch's arguments mean what they mean there; the rest is keyword-only:

    num_workers: decode threads. Omitted: as many as this process has CPUs at the start, and then as many as turn out
        to help, as with threads that read and batches ahead (`explain()` says why). 0: all work in the caller's thread.
    prefetch_factor: batches ready ahead, per loader. None: chosen.
    config: in place of these two, a file that `gpuload tune` wrote, a Setting, or the Limits within which to look.
    device: where batches are delivered: "auto" (the current GPU where one works, else the CPU), "cpu", "cuda:1"...
    dtype, memory_format: of the images; None: what the transform gives. E.g. torch.bfloat16, torch.channels_last.
    decoder: "native" (gpuload's own, Pillow's pixels to the bit), "pillow", "dali" (0.16 of 255 away). "auto": native.
    fidelity: of decoder="native": "exact", Pillow's pixels; "fast": within 0.6 of 255 on average, for less work on
        large images.
    entropy_index: seek points into JPEGs, by which a crop is decoded without what stands before it: "learn" (those of
        `gpuload index` and `pack`, and what first epochs leave in the cache directory), "read" (leave nothing), "off".
        Pixels are the same.
    max_device_bytes: GPU memory, beside the batches, in which JPEGs are decoded there. Those that have no seek points
        yet or need more of it are decoded on the CPU, with the same pixels; 0: all are.
    batch_transform: MixUp, CutMix or OneOf of them, gpuload's or torchvision's, done to each batch where it is
        delivered, with draws of its own; labels become float (n, classes).
    on_error: what a bad sample does: "raise" (SampleError names shard, sample and cause), "skip" (the batch is
        shorter) or "replace" (by a good neighbour of the batch). Counted in `stats()`.
    seed, order: gpuload's own order, "shuffle", "block" (shuffled in blocks of neighbours) or "sequential", and
        augmentation, as a function of (seed, epoch, position); see `set_epoch`. Not given: torch's order, and seeds
        drawn from torch's generator.
    shard: divide the epoch between ranks: "auto" (torch.distributed's rank, else torchrun's), or (rank, world). The
        ranks' batches together are the same for any world size with the same batch_size * world. None: every rank
        gets all, unless a sampler divides. even: how it ends, "pad" (repeat some), "drop" or "exact" (ranks may differ
        by a batch).
    accelerate: False: torch's own path; "require": raise NotAcceleratedError rather than take it.
    progress: one live line on stderr; "full": a view of stages, queues, waits and what limits, where stderr is a
        terminal of 80 columns or more.
    trace: a file for ui.perfetto.dev, written anew: every task on its thread, the consumer's waits and steps, and the
        queues, of the first 200,000 events; with a GPU the tasks are NVTX ranges, too. Each rank needs its own.

    Raises what torch's constructor raises, and ConfigError (a ValueError) for gpuload's own arguments.

        loader = DataLoader(ImageFolder(root, transform), batch_size=256, shuffle=True, num_workers=8)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = AUTO_WORKERS,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: Any = "auto",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        decoder: str = "auto",
        fidelity: str = "exact",
        entropy_index: str = "learn",
        max_device_bytes: int = defaults.MAX_DEVICE_BYTES,
        batch_transform: Any = None,
        on_error: str = "raise",
        seed: int | None = None,
        order: str | None = None,
        shard: Any = None,
        even: str = "pad",
        accelerate: bool | str = True,
        progress: bool | str = False,
        trace: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | Setting | Limits | None = None,
    ):
        defaults.check(
            decoder=decoder,
            fidelity=fidelity,
            entropy_index=entropy_index,
            on_error=on_error,
            accelerate=accelerate,
            seed=seed,
            order=order,
            max_device_bytes=max_device_bytes,
            even=even,
            progress=progress,
        )
        if known_batch_transform(batch_transform) is not None and batch_size is None and batch_sampler is None:
            raise ConfigError("batch_transform mixes batches, and batch_size=None asks for single samples")
        _check_formats(device, dtype, memory_format)
        auto = isinstance(num_workers, Automatic)
        ahead = prefetch_factor
        if not isinstance(config, (str, os.PathLike, Setting, Limits, type(None))):
            raise ConfigError(f"config must be a file that `gpuload tune` wrote, a Setting or Limits, got {config!r}")
        if isinstance(config, Setting):
            checked_setting(asdict(config), "config: ")
        elif isinstance(config, Limits):
            check_limits(config)
        if config is not None and not (auto and ahead is None):
            raise ConfigError("config is mutually exclusive with num_workers and prefetch_factor, which it holds")
        if auto and ahead is not None:
            if ahead < 0:
                raise ValueError("prefetch_factor option should be non-negative")
            prefetch_factor = None  # torch has no depth without worker processes; gpuload has
        divided_by_user = sampler is not None or batch_sampler is not None  # or meant to be on every rank
        own = order or ("shuffle" if seed is not None and shuffle else None)
        if shard is not None:
            if isinstance(sampler, DistributedSampler):
                raise ConfigError(
                    f"shard={shard!r} and a DistributedSampler would divide the data set twice: leave one of them out "
                    "(with Lightning, pass Trainer(use_distributed_sampler=False))"
                )
            own = own or ("shuffle" if shuffle else "sequential")
        if own is not None and not isinstance(sampler, (OrderSampler, DistributedSampler)):  # one injected later wins
            if sampler is not None or batch_sampler is not None or (order is not None and shuffle):
                asked = f"order={own!r}" if shard is None else f"shard={shard!r}"
                raise ConfigError(f"{asked} is mutually exclusive with shuffle, sampler and batch_sampler")
            if shard is not None and seed is None:
                seed = 0  # all ranks need the same, as torch's DistributedSampler has it
            own_seed = _drawn_seed(generator) if seed is None else seed
            sampler, shuffle = (
                OrderSampler(
                    dataset, own, own_seed, shard=rank_of(shard), batch_size=batch_size, even=even, drop_last=drop_last
                ),
                None,
            )
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if auto:
            self.prefetch_factor = ahead
        elif ahead is None and num_workers > 0:
            self.prefetch_factor = AUTO_DEPTH
        self.device, self.dtype, self.memory_format = device, dtype, memory_format
        self.decoder, self.fidelity, self.entropy_index = decoder, fidelity, entropy_index
        self.max_device_bytes, self.batch_transform = max_device_bytes, batch_transform
        self.on_error, self.accelerate, self.progress = on_error, accelerate, progress
        self.seed, self.order, self.shard, self.even = seed, order, shard, even
        self.epoch = 0
        self._next_epoch = 0
        self._told = False
        self.bad_samples = BadSamples()
        self._met_ranks, self._divided_by_user = False, divided_by_user
        self._resumed: Resumed | None = None
        self._progress: Progress | None = None
        self._wiring: Any = None
        self._record: EpochRecord | None = None
        self.config = load_setting(config) if isinstance(config, (str, os.PathLike)) else config
        self.trace, self.trace_file = trace, None if trace is None else TraceFile(trace)
        self.watchers: list[Watcher] = []

    def __iter__(self) -> Any:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._next_epoch = resumed.epoch
            tell_sampler(self, resumed.sampler_epoch)
        self.epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        if isinstance(self.sampler, OrderSampler):
            self.sampler.set_epoch(self.epoch)
            self.sampler.start = resumed.position if resumed is not None else 0
        self._meet_ranks()
        if getattr(self._iterator, "_pid", os.getpid()) != os.getpid():
            self._iterator = None  # persistent_workers: the parent's threads are not here
        self._progress = Progress.begun(self, resumed)
        if resumed is None or resumed.random is None:
            return super().__iter__()
        with resumed.random.again(self):
            iterator: Any = super().__iter__()
            iterator.replay()
        return iterator

    def _meet_ranks(self) -> None:
        """Before the first epoch: ranks that divide a data set must agree, and those that don't are told."""
        if self._met_ranks:
            return
        self._met_ranks = True
        if self.shard is not None:
            check_ranks(setup_of(self), defaults.RANKS_WAIT_S)
        elif not self._divided_by_user:
            warn_undivided()

    def state_dict(self) -> dict[str, Any]:
        """Where the current epoch stands, below 10 KB: plain values, for any checkpoint.

        Counted are the batches that were handed over, by the iterator that was made last; what was prefetched will be
        made again. Raises ConfigError for an IterableDataset.
        """
        return state_of(self, self._progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter(loader)` goes on where `state` was taken, without reading anything of what came before.

        On the accelerated path the batches are those that would have come, to the bit. Raises ConfigError where the
        state is of another data set, transform or configuration, and names the difference.
        """
        self._resumed = resumed_from(self, state)
        if isinstance(self.sampler, OrderSampler) and isinstance(state.get("order_seed"), int):
            self.sampler.seed = state["order_seed"]  # drawn, where none was given

    def _get_iterator(self) -> Any:
        plan = self.plan()
        if not plan.accelerated:
            if self.accelerate == "require":
                raise NotAcceleratedError(
                    'accelerate="require" was given, but this loader takes torch\'s path: ' + "; ".join(plan.reasons)
                )
            if not self._told:
                self._told = True
                self._tell(plan)
            return torch_iterator(self, plan.reasons)
        from gpuload.accelerated import AcceleratedIterator  # the compiler behind it takes 0.4 s to import
        from gpuload.wiring import Wiring

        self.check_worker_number_rationality()
        if self._wiring is None or not self._wiring.serves(self, plan):
            self._wiring = Wiring(self, plan, self.bad_samples)
        return AcceleratedIterator(self, self._wiring)

    def _tell(self, plan: LoaderPlan) -> None:
        """Say once what the user would want to know of torch's path; all of it stands in explain() and stats()."""
        reasons = "; ".join(plan.reasons)
        if plan.ignored:
            told = f"{', '.join(plan.ignored)}: without effect, since this loader takes torch's path: {reasons}"
            warnings.warn(told, stacklevel=5)
        elif self.accelerate and (self.worker_init_fn is not None or self.multiprocessing_context is not None):
            logging.getLogger("gpuload").warning("not accelerated: %s", reasons)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, for `seed=`, `order=` and a sampler that has a set_epoch of its own.

        Without a call each `iter(loader)` is the next epoch, a peek by `next(iter(loader))` too.
        """
        self._next_epoch = epoch
        if self._resumed is not None and self._resumed.epoch != epoch:
            warnings.warn(
                f"set_epoch({epoch}) leaves the state that was loaded, in epoch {self._resumed.epoch}: what is left of "
                "that one is not delivered",
                stacklevel=2,
            )
            self._resumed = None
        for sampler in (self.sampler, self.batch_sampler):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def epoch_positions(self, first: int, count: int) -> np.ndarray:
        """Places in the epoch of all ranks of this loader's samples first..first+count-1, by which random keys go."""
        world, rank = 1, 0
        if isinstance(self.sampler, DistributedSampler):
            world, rank = self.sampler.num_replicas, self.sampler.rank
        return np.arange(first, first + count) * world + rank

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Asked by Hugging Face's Accelerator.prepare, right before it rebuilds torch's class from this loader."""
        from gpuload.adapters.accelerate import keep

        keep(self)
        return False

    @property
    def explicit_inline(self) -> bool:
        """num_workers=0 was given: all work in the caller's thread."""
        return self.num_workers == 0 and not isinstance(self.num_workers, Automatic)

    @property
    def decode_threads(self) -> int:
        """Decode threads on the accelerated path; 0: the caller's thread does all work."""
        if isinstance(self.config, Setting):
            return self.config.decode_threads
        return defaults.default_threads() if isinstance(self.num_workers, Automatic) else int(self.num_workers)

    @property
    def depth(self) -> int:
        """Batches in the making or ready, not yet handed over, on the accelerated path.

        Those ready, and as many as it takes to give every decode thread something to do.
        """
        if isinstance(self.config, Setting):
            return self.config.depth
        rows = self.batch_size or getattr(self.batch_sampler, "batch_size", None) or 1
        return self.ready_ahead + math.ceil(self.decode_threads / math.ceil(rows / defaults.ROWS_PER_TASK))

    @property
    def ready_ahead(self) -> int:
        """Batches that are to lie ready, beside those in the making: prefetch_factor, or what is chosen for it."""
        given = self.prefetch_factor
        return defaults.DEPTH if given is None or isinstance(given, Automatic) else max(1, given)

    @property
    def tunes(self) -> bool:
        """Whether threads and depth are found while the loader runs: num_workers was omitted."""
        return isinstance(self.num_workers, Automatic) and not isinstance(self.config, Setting)

    @property
    def setting(self) -> Setting | None:
        """How the engine runs now; None before the first iteration, on torch's path and with num_workers=0."""
        return None if self._wiring is None else self._wiring.engine.setting

    @property
    def key_seed(self) -> int | None:
        """The seed of all random keys: the one given, or that of gpuload's own order. None: drawn anew each epoch."""
        return self.sampler.seed if self.seed is None and isinstance(self.sampler, OrderSampler) else self.seed

    def plan(self) -> LoaderPlan:
        """What an iteration started now would do, and why. Opens no file, starts no thread."""
        return plan_loader(self)

    def explain(self) -> None:
        """Print the plan: each step, where it runs, what is fused, what is not accelerated and why; then the tuner's
        story: what it measured and chose, and how often the queue would be empty at which depth.
        """
        tuner = None if self._wiring is None else self._wiring.tuner
        print(self.plan(), *([tuner.explain()] if tuner is not None else []), sep="\n")  # noqa: T201 - its purpose

    def stats(self) -> Stats:
        """What the current (or last) epoch did and where its time went. Immutable."""
        if self._record is not None:
            return self._record.stats()
        plan = self.plan()
        return Stats("accelerated" if plan.accelerated else "torch", plan.reasons)

    def on_stats(self, callback: Callable[[Stats], object], every_s: float = 10.0) -> None:
        """Call `callback` with a snapshot every so many seconds, as a batch is handed over, and at each epoch's end.

        It runs in the thread that iterates; what it raises leaves `next()`, and the batch of that call with it. Raises
        ConfigError for what is no function, or no time.

            loader.on_stats(lambda stats: wandb.log(stats.scalars()))
        """
        self.watchers.append(watcher(callback, every_s))

    def begin_record(self, record: EpochRecord) -> None:
        """`stats()` speaks of this epoch from now on. Called by iterators."""
        self._record = record

    def __getstate__(self) -> dict[str, Any]:
        here = ("_wiring", "_record", "_progress", "bad_samples", "trace_file", "watchers")
        return {**vars(self), **dict.fromkeys(here)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, bad_samples=BadSamples(), watchers=[])
