"""The stages' work without their threads: plan -> bytes -> pixels -> batch, each step a plain method.

Owns what one batch goes through; knows nothing of queues, so the same steps run in the caller's thread
(num_workers=0) and in pools. Which thread runs a step, and when, is `flow.py`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from gpuload.augment import params
from gpuload.augment.plan import AugmentPlan
from gpuload.augment.run import finish_rows, store_rows
from gpuload.core.batch import NEVER, BatchPlan, EncodedBatch, Target, TensorSpec
from gpuload.core.errors import GpuloadError, SampleError, exhausted, sample_error
from gpuload.core.geometry import GEOMETRY
from gpuload.core.philox import view_keys
from gpuload.core.protocols import Decoder, DeviceDecoder, Source
from gpuload.decode.erase_job import EraseJob
from gpuload.device.host import Made, Outgoing
from gpuload.device.placing import first_places
from gpuload.engine.badsamples import BadSamples, forget_frames, rows_to_keep
from gpuload.engine.meters import Meter


@dataclass(frozen=True)
class Finished:
    """G. A batch on its way to the consumer: what `device.send` gave, or the error that stands in its place.

    bad: its bad samples, and what became of them: told of when the batch is taken, as nobody sees one that is not.
    """

    number: int
    images: int
    sent: Any = None
    error: BaseException | None = None
    empty: bool = False  # every sample was left out: nothing is delivered
    bad: tuple[SampleError, ...] = ()
    policy: str = "raise"


@dataclass
class Tally:
    """What became of an epoch's batches, counted as the consumer takes them."""

    told: int = 0  # delivered, or raised in the consumer's face
    empty: int = 0

    def add(self, finished: Finished, epoch: int, bad: BadSamples) -> None:
        """The consumer takes this batch of `epoch`."""
        for error in finished.bad:
            bad.add(error, epoch=epoch, batch=finished.number, policy=finished.policy)
        if finished.empty:
            self.empty += 1
        else:
            self.told += 1

    def check(self, epoch: int, bad: BadSamples) -> None:
        """Raise GpuloadError, once, if there were batches and all of them were empty."""
        empty, self.empty = self.empty, 0
        if empty and not self.told:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in bad.counts().items())
            raise GpuloadError(
                f'epoch {epoch} delivered nothing: on_error="skip" left out every sample of its {empty} batches '
                f"({kinds} since the loader was made; listed in {bad.path}). If it is not the data, an operation of "
                'the transform fails on every image: on_error="raise" shows where'
            )


class Lazy:
    """What `make` gives, made when it is first asked for, once. Any thread."""

    def __init__(self, make: Callable[[], Any]):
        self._make, self._lock, self._made = make, threading.Lock(), None

    def __call__(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


@dataclass(frozen=True)
class View:
    """How an image comes out of its bytes; a sample has one, or several.

    spec: its part of the batch on the fused path, None on the per-sample path.
    """

    augment: AugmentPlan
    decoder: Decoder
    spec: TensorSpec | None


@dataclass
class Pixels:
    """One view of a batch while it is decoded: its memory, and what its rows have become so far."""

    view: View
    keys: np.ndarray
    draws: tuple[np.ndarray, ...]
    spec: TensorSpec | None = None  # the batch's, on the fused path
    memory: Lazy | None = None  # the images' on the host, there
    target: Target | None = None  # that memory as the decoder sees it
    sizes: np.ndarray | None = None  # of all images, and the geometry that follows, where the headers were read ahead
    geometry: np.ndarray | None = None
    staged: list[Any] = field(default_factory=list)  # what the decoder left for the device, task by task
    finished: dict[int, Any] = field(default_factory=dict)  # row -> image on the per-sample path


@dataclass
class Filling:
    """A batch while it is decoded: its bytes, and the pixels of each view. A row that failed in one failed in all."""

    plan: BatchPlan
    encoded: EncodedBatch
    pixels: tuple[Pixels, ...]
    stop: np.ndarray = field(default_factory=lambda: NEVER)  # not 0 once nobody wants the batch any more
    failures: dict[int, BaseException] = field(default_factory=dict)
    keep: np.ndarray | None = None  # the row at each place of what is delivered, once the policy was applied
    bad: tuple[SampleError, ...] = ()
    outgoing: Outgoing | None = None  # the collated batch: made once, though sending it may be tried again


@dataclass(frozen=True)
class Meters:
    fetch: Meter
    decode: Meter
    finish: Meter

    def all(self) -> tuple[Meter, ...]:
        return (self.fetch, self.decode, self.finish)


@dataclass(eq=False)
class Work:
    """Everything fixed for a loader's accelerated path. Thread-safe.

    in_list: a list of views stands in the image's place, else the only view. stack, collate: (images, encoded, keep,
    plan) -> the batch on the host, from one array of all images (or a list of those, one a view) and from a list of
    them. tensor: memory for one image, per sample. mixer: (batch on the host, its first sample's key) -> what mixes it,
    given `in_place` and how to `launch` on the device.
    """

    source: Source
    views: tuple[View, ...]
    in_list: bool
    device: Any
    stack: Callable[[Any, EncodedBatch, np.ndarray, BatchPlan], Any]
    collate: Callable[[Any, EncodedBatch, np.ndarray, BatchPlan], Any]
    tensor: Callable[[str, int, int], Any]
    on_error: str
    bad: BadSamples
    meters: Meters
    mixer: Callable[[Any, np.ndarray], Callable[..., Any]] | None = None
    decoders: dict[str, int] = field(default_factory=dict)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def decoder(self) -> Decoder:
        """Whose rows_per_task and callers count: all views' decoders are of one kind."""
        return self.views[0].decoder

    def fetch(self, plan: BatchPlan) -> EncodedBatch:
        """D. The bytes of the batch."""
        with self.meters.fetch.task(plan.number, items=len(plan)) as task:
            encoded = self.source.fetch(plan.ids)
            task.nbytes = encoded.data.nbytes
        return encoded

    def fill(self, plan: BatchPlan, encoded: EncodedBatch, stop: np.ndarray = NEVER) -> Filling:
        """The batch's memory and random draws, before its rows are decoded."""
        failures, keys = dict(encoded.failures), plan.keys()
        pixels = tuple(
            self._pixels(view, view_keys(keys, number), encoded, failures) for number, view in enumerate(self.views)
        )
        return Filling(plan, encoded, pixels, stop, failures)

    def _pixels(
        self, view: View, keys: np.ndarray, encoded: EncodedBatch, failures: dict[int, BaseException]
    ) -> Pixels:
        augment = view.augment
        pixels = Pixels(view, keys, augment.draw(keys))
        spec = view.spec
        if spec is not None and spec.open:
            spec = self._common_size(pixels, encoded, failures, spec)
        if spec is not None:
            assert augment.table is not None
            pixels.spec, size = spec, (spec.shape[1], spec.shape[2])
            memory = pixels.memory = Lazy(partial(self.device.image_memory, spec, len(keys)))
            rectangles = augment.rectangles(keys, *size)
            pixels.target = Target(lambda: memory().array, augment.table, rectangles, augment.erased, size)
        return pixels

    def _common_size(
        self, pixels: Pixels, encoded: EncodedBatch, failures: dict[int, BaseException], spec: TensorSpec
    ) -> TensorSpec | None:
        """The spec of a batch whose images all come out equally large, None where they don't or it isn't known."""
        sizes = pixels.view.decoder.sizes(encoded)
        good = np.isin(np.arange(len(encoded)), list(failures), invert=True)
        if sizes is None or not good.any() or not sizes[good].all():
            return None
        try:
            geometry = self._geometry(pixels, np.flatnonzero(good), sizes[good, 0], sizes[good, 1])
        except ValueError:  # an image that cannot have what the transform asks: decoding it says which
            return None
        width, height = geometry["window"][0, 2:].tolist()
        pixels.sizes, pixels.geometry = sizes, np.zeros(len(encoded), GEOMETRY)
        pixels.geometry[good] = geometry
        return spec.of_size(height, width) if (geometry["window"][:, 2:] == (width, height)).all() else None

    def _geometry(self, pixels: Pixels, rows: Any, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        picked = np.asarray(rows, np.int64)
        if pixels.geometry is not None and pixels.sizes is not None:
            known = pixels.sizes[picked]
            if np.array_equal(known[:, 0], widths) and np.array_equal(known[:, 1], heights):
                return pixels.geometry[picked]
        return params.resolve(pixels.view.augment.geometry, [u[picked] for u in pixels.draws], widths, heights)

    def decode(self, filling: Filling, rows: range) -> None:
        """E, F. These rows, from bytes to the batch's memory. Different rows at once: fine."""
        nbytes = int(filling.encoded.lengths[rows.start : rows.stop].sum())
        with self.meters.decode.task(filling.plan.number, items=len(rows), nbytes=nbytes):
            for pixels in filling.pixels:
                self._decode(filling, pixels, rows)

    def _decode(self, filling: Filling, pixels: Pixels, rows: range) -> None:
        view = pixels.view
        resolve = partial(self._geometry, pixels)
        decoded = view.decoder.decode(filling.encoded, rows, resolve, pixels.target, filling.stop)
        if pixels.target is not None:
            store_rows(pixels.target, decoded)
            if decoded.staged is not None:
                pixels.staged.append(decoded.staged)
        else:
            pixels.finished.update(finish_rows(view.augment, decoded, pixels.keys, self.tensor))
        filling.failures.update(decoded.failures)
        with self._counting:
            for name, count in decoded.decoders.items():
                self.decoders[name] = self.decoders.get(name, 0) + count

    def finish(self, filling: Filling) -> Finished:
        """G. All rows are there: apply the policy to bad ones, collate, send on its way.

        Raises DeviceMemoryError where the device has no room for the batch; it may be called again later.
        """
        if filling.keep is None and (ended := self._apply_policy(filling)) is not None:
            return ended
        plan, keep = filling.plan, filling.keep
        assert keep is not None
        with self.meters.finish.task(plan.number, items=len(keep)):
            if filling.outgoing is None:
                filling.outgoing = self._collated(filling, keep)
            sent = self.device.send(filling.outgoing)
        return Finished(plan.number, len(keep), sent, bad=filling.bad, policy=self.on_error)

    def _collated(self, filling: Filling, keep: np.ndarray) -> Outgoing:
        plan, fused = filling.plan, filling.pixels[0].memory is not None  # then all views are
        images: Any = []
        verdicts = []
        for pixels in filling.pixels:
            if pixels.staged:
                made = self._made(filling, pixels, keep)
                images.append(made.images)
                verdicts.append(made.verdict)
            else:
                images.append(self._images(pixels, keep))
        if not self.in_list:
            images = images[0]
        elif not fused:
            images = [list(views) for views in zip(*images, strict=True)]
        batch = (self.stack if fused else self.collate)(images, filling.encoded, keep, plan)
        mix = None
        if self.mixer is not None:
            mix = partial(self.mixer(batch, plan.first_key()), in_place=fused)
            if not self.device.mixes:
                batch, mix = mix(batch), None
        return Outgoing(batch, mix, tuple(verdicts), foreign=not fused)

    def _apply_policy(self, filling: Filling) -> Finished | None:
        """Set filling.keep and filling.bad; or, where no batch comes of it, what stands in its place."""
        plan = filling.plan
        errors = self._named(filling)
        # Without memory or files good samples fail too: leaving them out would pass for a smaller data set.
        errors.sort(key=lambda error: not exhausted(error.__cause__))
        keep = rows_to_keep(len(plan), set(filling.failures), self.on_error)
        lost = len(keep) == 0 and len(plan) > 0  # every sample is bad
        unavoidable = bool(errors) and (exhausted(errors[0].__cause__) or (lost and self.on_error == "replace"))
        policy = "raise" if unavoidable else self.on_error
        if errors and policy == "raise":
            for error in errors[1:]:
                forget_frames(error)
            return Finished(plan.number, 0, error=errors[0], bad=tuple(errors))
        for error in errors:
            forget_frames(error)
        if lost:
            return Finished(plan.number, 0, empty=True, bad=tuple(errors), policy=policy)
        filling.keep, filling.bad = keep, tuple(errors)
        for pixels in filling.pixels:  # here, once: collating is tried again where the device has no room for a view
            if pixels.memory is not None and not pixels.staged:
                array = pixels.memory().array
                for place, row in enumerate(keep.tolist()):  # `skip` moves rows down, each before it is overwritten
                    if place != row:
                        array[place] = array[row]
        return None

    def _images(self, pixels: Pixels, keep: np.ndarray) -> Any:
        if pixels.memory is None:
            return [pixels.finished[row] for row in keep.tolist()]
        return pixels.memory().tensor[: len(keep)]

    def _made(self, filling: Filling, pixels: Pixels, keep: np.ndarray) -> Made:
        """The images of a batch of which the device makes some."""
        assert pixels.target is not None and pixels.spec is not None and pixels.memory is not None
        places = first_places(keep, len(filling.plan))
        staged = sorted(pixels.staged, key=lambda part: int(part.rows[0]))  # tasks end in any order
        job = cast(DeviceDecoder, pixels.view.decoder).device_job(staged, places, pixels.target)
        if pixels.target.rectangles is not None:
            job = EraseJob(job, places, pixels.target)
        judge = partial(self._judge, job.rows, filling.plan)
        return self.device.complete(job, pixels.memory, pixels.spec, keep, judge)

    def _named(self, filling: Filling) -> list[SampleError]:
        named = []
        for row in sorted(filling.failures):
            cause = filling.failures[row]
            error = sample_error(*self._located(filling.plan.ids.tolist()[row]), cause)
            error.__cause__ = cause
            named.append(error)
        return named

    def _located(self, sample: Any) -> tuple[str, Any, str]:
        """(shard, sample, key), as SampleError takes them."""
        shard, key = self.source.name(sample)
        return shard, sample, key

    def _judge(self, rows: np.ndarray, plan: BatchPlan, status: np.ndarray) -> None:
        """Raise for the first image of a batch that the device could not decode, though its seek points were there."""
        for place in np.flatnonzero(status)[:1].tolist():
            sample = plan.ids.tolist()[int(rows[place])]
            problem = (
                f"batch {plan.number} holds wrong pixels: the GPU's decoder met anomaly {status[place]} in a file that "
                "was whole when its seek points were made"
            )
            cure = "The GPU's memory or a kernel is at fault: max_device_bytes=0 decodes on the CPU"
            raise SampleError(*self._located(sample), problem, "DeviceAnomaly", cure)
