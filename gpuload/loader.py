"""The DataLoader: torch's class and signature, with one engine behind it where data set and transform are understood.

Owns the arguments and what they mean (docs/design.md has the table). Which path runs is `plan.py`'s decision;
the accelerated one is `accelerated.py`'s, the other is torch's own code, reached through `super()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler

from gpuload import config
from gpuload.core.errors import ConfigError, NotAcceleratedError
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.stats import Stats
from gpuload.fallback import torch_iterator
from gpuload.plan import LoaderPlan, plan_loader
from gpuload.record import EpochRecord
from gpuload.sampling.order import Order

T_co = TypeVar("T_co", covariant=True)


class Automatic(int):
    """A number that was not given: equal to torch's default, recognisable when passed on to another loader."""

    def __reduce__(self) -> Any:
        return (Automatic, (int(self),))


AUTO_WORKERS = Automatic(0)
AUTO_DEPTH = Automatic(2)


class OrderSampler(Sampler[int]):
    """gpuload's own order as a torch sampler. dataset: anything with a length, looked at anew each epoch."""

    def __init__(self, dataset: Any, order: str, seed: int):
        self.dataset, self.order, self.seed, self.epoch = dataset, order, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        return iter(Order(self.order, len(self.dataset), self.seed, self.epoch))


class DataLoader(TorchDataLoader[T_co]):
    """torch.utils.data.DataLoader with the work done by gpuload's engine, batch for batch the same.

    All of torch's arguments mean what they mean there; the rest is keyword-only:

    num_workers: decode threads. Omitted: as many as this process has CPUs. 0: all work in the caller's thread.
    prefetch_factor: batches ready ahead, per loader. None: chosen.
    device: where batches are delivered: "auto" (the current GPU where one works, else the CPU), "cpu", "cuda:1"...
    dtype, memory_format: of the images; None: what the transform gives. E.g. torch.bfloat16, torch.channels_last.
    decoder: "auto", "pillow" (Pillow's pixels to the bit) or "dali".
    on_error: what a bad sample does: "raise" (SampleError names shard, sample and cause), "skip" (the batch is
        shorter) or "replace" (by a good neighbour of the batch). Counted in `stats()`.
    seed, order: gpuload's own order, "shuffle" or "sequential", and augmentation, as a function of
        (seed, epoch, position); see `set_epoch`. Not given: torch's order and torch's seeds.
    accelerate: False: torch's own path; "require": raise NotAcceleratedError rather than take it.
    progress: one live line on stderr.

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
        on_error: str = "raise",
        seed: int | None = None,
        order: str | None = None,
        accelerate: bool | str = True,
        progress: bool = False,
    ):
        config.LoaderConfig(device, decoder, on_error, accelerate, seed, order)
        auto = isinstance(num_workers, Automatic)
        ahead = prefetch_factor
        if auto and ahead is not None:
            if ahead < 0:
                raise ValueError("prefetch_factor option should be non-negative")
            prefetch_factor = None  # torch has no depth without worker processes; gpuload has
        own = order or ("shuffle" if seed is not None and shuffle else None)
        if own is not None and not isinstance(sampler, OrderSampler):
            if sampler is not None or batch_sampler is not None or (order is not None and shuffle):
                raise ConfigError(f"order={own!r} is mutually exclusive with shuffle, sampler and batch_sampler")
            sampler, shuffle = OrderSampler(dataset, own, seed or 0), None
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
        self.decoder, self.on_error, self.accelerate, self.progress = decoder, on_error, accelerate, progress
        self.seed, self.order = seed, order
        self.epoch = 0
        self._next_epoch = 0
        self.bad_samples = BadSamples()
        self._wiring: Any = None
        self._record: EpochRecord | None = None

    def __iter__(self) -> Any:
        self.epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        if isinstance(self.sampler, OrderSampler):
            self.sampler.set_epoch(self.epoch)
        return super().__iter__()

    def _get_iterator(self) -> Any:
        plan = self.plan()
        if not plan.accelerated:
            if self.accelerate == "require":
                raise NotAcceleratedError(
                    'accelerate="require" was given, but this loader takes torch\'s path: ' + "; ".join(plan.reasons)
                )
            return torch_iterator(self)
        from gpuload.accelerated import AcceleratedIterator  # the compiler behind it takes 0.4 s to import
        from gpuload.wiring import Wiring

        self.check_worker_number_rationality()
        if self._wiring is None or not self._wiring.serves(self, plan):
            self._wiring = Wiring(self, plan, self.bad_samples)
        return AcceleratedIterator(self, self._wiring)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, for `seed=` and `order=`. Without a call epochs count up from 0."""
        self._next_epoch = epoch

    @property
    def explicit_inline(self) -> bool:
        """num_workers=0 was given: all work in the caller's thread."""
        return self.num_workers == 0 and not isinstance(self.num_workers, Automatic)

    @property
    def decode_threads(self) -> int:
        """Decode threads on the accelerated path; 0: the caller's thread does all work."""
        return config.default_threads() if isinstance(self.num_workers, Automatic) else int(self.num_workers)

    @property
    def depth(self) -> int:
        """Batches in the making or ready, not yet handed over, on the accelerated path."""
        given = self.prefetch_factor
        return config.DEPTH if given is None or isinstance(given, Automatic) else max(1, given)

    def plan(self) -> LoaderPlan:
        """What an iteration started now would do, and why. Opens no file, starts no thread."""
        return plan_loader(self)

    def explain(self) -> None:
        """Print the plan: each step, where it runs, what is fused, what is not accelerated and why."""
        print(self.plan())  # noqa: T201 - printing is what this method is for

    def stats(self) -> Stats:
        """What the current (or last) epoch did and where its time went. Immutable."""
        if self._record is not None:
            return self._record.stats()
        return Stats("accelerated" if self.plan().accelerated else "torch")

    def begin_record(self, record: EpochRecord) -> None:
        """`stats()` speaks of this epoch from now on. Called by iterators."""
        self._record = record

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_wiring": None, "_record": None, "bad_samples": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, bad_samples=BadSamples())
