"""DALI's CPU decoder: the crop's part of a JPEG is decoded and resampled in one DALI run a task.

Owns how GEOMETRY becomes DALI's terms (a slice of the source, a region of interest in it, an output size), which
files DALI is given, and the pipelines. Leaves every other file to a fallback decoder, and flips, normalising and
storing to the kernels that read these pixels.

* Each calling thread has a pipeline of one DALI thread to itself: no more CPU an image than one pipeline that all share
  or than DALI's own random crop (bench/dali_pipeline.py), no thread that waits for the last image of a batch, no more
  threads at work than were asked for, and a bad image holds up one task only.
* Pixels: the decoded region is Pillow's bit for bit (both are libjpeg-turbo with the accurate IDCT and fancy
  upsampling; the fast IDCT would move pixels by 1.2 levels on average, so it stays off). Resampling is DALI's, in
  floating point, where Pillow rounds between its two passes: over 334 ImageNet photographs cropped as
  RandomResizedCrop does, the mean absolute difference is 0.16 of 255 (bilinear), 0.18 (bicubic), 0.19 (lanczos);
  99.9% of values differ by at most 1, 1 and 3. Furthest, by up to 30 levels, are single values in the outermost rows
  and columns of shrunk crops: there DALI repeats the edge, where Pillow leaves out the taps that miss. Held by
  test_photographs_stay_near_pillow.
* What a file decodes to depends on its bytes and geometry alone: test_pixels_depend_on_nothing_but_bytes_and_geometry.
* DALI judges the scan lines that it decodes; Pillow also reads what stands between the last of them and the end
  marker. A file damaged only there passes here and is an error there.

Concurrency. 1. A pipeline is used by one call at a time; calls beyond `threads` wait. 2. Images are views of DALI's
output buffers, which live while a view does (test_held_images_are_never_overwritten). 3. The encoded bytes are read in
place and no longer than the call. 4. A forked child has none of DALI's threads: the decoder that it inherits is closed
and its pipelines are leaked, a new one works (test_a_forked_child_starts_clean).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuload.core.batch import NEVER, DecodedRows, EncodedBatch, Target
from gpuload.core.errors import ConfigError, EpochCancelledError, MissingDependencyError
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Decoder, Resolve
from gpuload.decode.fallback import decode_rest
from gpuload.decode.jpeg_header import JpegHeader, read_header

ROWS_PER_TASK = (8, 32)  # least and most: a run costs ~1 ms of CPU whatever its size (8 rows 6%, 32 rows 1.5% of a run)
MAX_PIXELS = 178_956_970  # Pillow refuses larger ones as decompression bombs: let it say so
EXIT_WAIT_S = 1.0  # for calls in flight when the interpreter exits: a task of photographs takes some 20 ms

_KINDS = ("baseline", "extended", "progressive")
_SUBSAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
_FILTERS = {
    "nearest": ("INTERP_NN", 0.5),
    "nearest-exact": ("INTERP_NN", 0.5),
    "bilinear": ("INTERP_LINEAR", 1.0),
    "bicubic": ("INTERP_CUBIC", 2.0),
    "lanczos": ("INTERP_LANCZOS3", 3.0),
}  # DALI's name, radius in pixels at scale 1

REGION = np.dtype(
    [
        ("start", np.int32, (2,)),  # of the slice to decode, in the image
        ("shape", np.int32, (2,)),  # of that slice
        ("roi_start", np.float32, (2,)),  # what becomes the output, in the slice
        ("roi_end", np.float32, (2,)),
        ("size", np.float32, (2,)),  # of the output
        ("paste", np.int32, (2,)),  # where the output lies in the window
        ("window", np.int32, (2,)),  # size of the window; larger than `size` where it reaches beyond the image
        ("feasible", np.bool_),  # False: nothing of the window is in the image, or the filter would need its outside
    ]
)
"""One image's GEOMETRY in DALI's terms. All pairs are (y, x)."""


def available() -> str | None:
    """Why DALI cannot be used here, or None where it can."""
    try:
        import nvidia.dali  # noqa: F401
    except (ImportError, OSError) as error:
        return f"NVIDIA DALI cannot be imported ({error})"
    return None


def unsupported(resampling: Resampling) -> str | None:
    """Why DALI cannot resample like this, or None where it can."""
    if resampling.interpolation not in _FILTERS:
        return f"DALI has no {resampling.interpolation} filter"
    if resampling.domain == "tensor" and resampling.interpolation == "nearest":
        return "DALI's nearest samples at pixel centres, torchvision's on tensors at corners"
    if resampling.interpolation == "bicubic" and not resampling.antialias:
        return "DALI's bicubic has a = -0.5, torchvision's without antialias a = -0.75"
    return None


def accepts(header: JpegHeader | None) -> bool:
    """Whether DALI is given this file: those in which it decodes exactly what Pillow does."""
    return (
        header is not None
        and header.complete
        and header.contiguous
        and header.bits == 8
        and header.kind in _KINDS
        and header.color in ("grey", "ycbcr")
        and header.subsampling in _SUBSAMPLINGS
        and header.width * header.height <= MAX_PIXELS
    )


def regions(
    geometry: np.ndarray, widths: np.ndarray, heights: np.ndarray, *, radius: float, antialias: bool
) -> np.ndarray:
    """REGION (n,) that carries out GEOMETRY (n,) on images of these sizes.

    crop -> resize -> window becomes one resampling: the part of the window that lies in the resized image is mapped
    back to the crop, and of the crop only what the filter reaches from there is decoded. radius: the filter's, in
    pixels at scale 1; antialias: it widens when shrinking.
    """
    crop_at, crop = geometry["crop"][:, 1::-1], geometry["crop"][:, :1:-1]
    resize = geometry["resize"][:, ::-1]
    window_at, window = geometry["window"][:, 1::-1], geometry["window"][:, :1:-1]
    first = np.maximum(0, -crop_at)  # of the crop, what lies in the image
    last = np.minimum(crop, np.stack([heights, widths], 1) - crop_at)
    plain = (resize == crop).all(1)
    outside = ((first > 0) | (last < crop)).any(1)

    low = np.maximum(window_at, np.where(plain[:, None], first, 0))
    high = np.minimum(window_at + window, np.where(plain[:, None], last, resize))
    scale = crop / np.maximum(resize, 1)
    reach = np.where(scale == 1, 0, radius * (np.maximum(scale, 1) if antialias else 1) + 1)
    begin = np.maximum(first, np.floor(low * scale - reach)).astype(np.int32)
    end = np.minimum(last, np.ceil(high * scale + reach)).astype(np.int32)

    out = np.empty(len(geometry), REGION)
    out["start"], out["shape"] = crop_at + begin, end - begin
    out["roi_start"], out["roi_end"] = low * scale - begin, high * scale - begin
    out["size"], out["paste"], out["window"] = high - low, low - window_at, window
    out["feasible"] = (high > low).all(1) & (end > begin).all(1) & (plain | ~outside)
    return out


class DaliDecoder:
    """core.protocols.Decoder on DALI's CPU operators; what `accepts` refuses goes to `fallback`.

    threads: how many calls run at once, each on one DALI thread. max_rows: of a batch; tasks are as large as still
    gives each thread one. Raises MissingDependencyError without DALI, ConfigError for a resampling it doesn't have.

        >>> resampling = Resampling("bilinear")
        >>> decoder = DaliDecoder(threads=2, resampling=resampling, max_rows=64, fallback=PillowDecoder(resampling))
        >>> decoder.decode(encoded, range(len(encoded)), resolve).images[0].shape
        (224, 224, 3)
    """

    name = "dali"

    def __init__(self, *, threads: int, resampling: Resampling, max_rows: int, fallback: Decoder):
        if reason := available():
            raise MissingDependencyError(f'decoder="dali": {reason}. Install it by pip install "gpuload[dali]"')
        if reason := unsupported(resampling):
            raise ConfigError(f'decoder="dali": {reason}. Pass decoder="pillow"')
        self._threads, self._resampling, self._fallback = threads, resampling, fallback
        least, most = ROWS_PER_TASK
        self._task = min(max(-(-max_rows // threads), least), most)
        self._state = threading.Condition()  # over the next four, and while a pipeline is built
        self._allowed, self._running = threads, 0
        self._idle: list[_Pipeline] = []
        self._closed = False
        self._pipelines: weakref.WeakSet[_Pipeline] = weakref.WeakSet()
        _decoders.add(self)
        # DALI's own exit handler shuts pipelines down under running calls; this one is registered later, so runs first
        self._exit = partial(_finish_calls, weakref.ref(self))
        atexit.register(self._exit)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._idle)} pipelines idle"
        return f"DaliDecoder(threads={self._threads}, {state}, {self._resampling})"

    def callers(self, threads: int) -> int:
        return threads

    def rows_per_task(self, encoded: EncodedBatch) -> int:
        return self._task

    def sizes(self, encoded: EncodedBatch) -> None:
        return None

    def decode(
        self,
        encoded: EncodedBatch,
        rows: range,
        resolve: Resolve,
        target: Target | None = None,
        stop: np.ndarray = NEVER,
    ) -> DecodedRows:
        """See core.protocols.Decoder. Failures are the fallback's."""
        out = DecodedRows(rows, [None] * len(rows), np.zeros(len(rows), GEOMETRY))
        planned = self._planned(encoded, out, resolve)
        for at in range(0, len(planned.places), self._task):
            places, task = planned.places[at : at + self._task], planned.regions[at : at + self._task]
            with self._pipeline() as pipeline:
                images = _decoded(pipeline, [encoded.encoded(rows[place]) for place in places], task)
            for place, image, region in zip(places, images, task, strict=True):
                out.images[place] = None if image is None else self._windowed(image, region)
        decode_rest(self._fallback, encoded, out, resolve, stop, name=self.name)
        return out

    def close(self) -> None:
        """Free the pipelines; a call in flight frees its own when it ends."""
        atexit.unregister(self._exit)
        with self._state:
            self._closed = True
            idle, self._idle = self._idle, []
            self._state.notify_all()
        idle.clear()

    def _planned(self, encoded: EncodedBatch, out: DecodedRows, resolve: Resolve) -> _Planned:
        """What DALI will do; fills in the geometry of those images."""
        places, sizes = [], []
        for place, row in enumerate(out.rows):
            header = read_header(encoded.encoded(row))
            if header is not None and accepts(header):
                places.append(place)
                sizes.append((header.width, header.height))
        extents = np.array(sizes, np.int64).reshape(-1, 2)
        resolved = _resolved([out.rows[place] for place in places], extents, resolve)
        planned = regions(
            resolved.geometry,
            extents[:, 0],
            extents[:, 1],
            radius=_FILTERS[self._resampling.interpolation][1],
            antialias=self._resampling.antialias,
        )
        taken = planned["feasible"] & resolved.known
        chosen = [place for place, take in zip(places, taken.tolist(), strict=True) if take]
        out.geometry[chosen] = resolved.geometry[taken]
        return _Planned(chosen, planned[taken])

    def _windowed(self, image: np.ndarray, region: np.ndarray) -> np.ndarray:
        """The image in its window: itself where it fills it, else a copy on the fill colour."""
        h, w = region["window"].tolist()
        if image.shape[:2] == (h, w):
            return image
        y, x = region["paste"].tolist()
        canvas = np.empty((h, w, 3), np.uint8)
        canvas[:] = self._resampling.fill
        canvas[y : y + image.shape[0], x : x + image.shape[1]] = image
        return canvas

    def _disinherit(self) -> None:
        """In a forked child: become closed without touching what only the parent's threads can finish."""
        for pipeline in list(self._pipelines):
            pipeline.disown()
        self._state, self._closed, self._running, self._idle = threading.Condition(), True, 0, []

    @contextmanager
    def _pipeline(self) -> Iterator[_Pipeline]:
        """A pipeline for one call. After any exception it is in an unknown state and is not used again."""
        with self._state:
            self._state.wait_for(lambda: self._running < self._allowed or self._closed)
            if self._closed:
                raise EpochCancelledError("this DALI decoder is closed; make a new one")
            pipeline = self._idle.pop() if self._idle else _Pipeline(self._resampling, self._task)
            self._pipelines.add(pipeline)
            self._running += 1
        sound = False
        try:
            yield pipeline
            sound = True
        finally:
            with self._state:
                self._running -= 1
                if sound and not self._closed:
                    self._idle.append(pipeline)
                self._state.notify_all()


@dataclass(frozen=True)
class _Planned:
    """places: of the rows in DecodedRows. regions: REGION (len(places),)."""

    places: list[int]
    regions: np.ndarray


class _Pipeline:
    """One DALI pipeline of one thread: slices of JPEGs in, resampled RGB out. One call at a time."""

    def __init__(self, resampling: Resampling, rows: int):
        from nvidia.dali import Pipeline, fn, types
        from nvidia.dali.tensors import TensorCPU, TensorListCPU

        self._tensor, self._tensors = TensorCPU, TensorListCPU
        kinds = types.DALIDataType
        self._pairs = ("start", "shape", "roi_start", "roi_end", "size")
        # exec_dynamic: outputs belong to whoever holds them. Depth 1: schedule_run starts one run, never fills a queue.
        self._dali = Pipeline(batch_size=rows, num_threads=1, device_id=None, prefetch_queue_depth=1, exec_dynamic=True)
        with self._dali:
            jpegs = fn.external_source(name="jpegs", dtype=kinds.UINT8, ndim=1, no_copy=True)
            pair = {
                name: fn.external_source(
                    name=name, dtype=kinds.INT32 if REGION[name].base == np.int32 else kinds.FLOAT, ndim=1, no_copy=True
                )
                for name in self._pairs
            }
            slices = fn.decoders.image_slice(
                jpegs,
                start=pair["start"],
                shape=pair["shape"],
                axis_names="HW",
                device="cpu",
                output_type=types.DALIImageType.RGB,
                adjust_orientation=False,  # as Pillow
                use_fast_idct=False,
            )
            resized = fn.resize(
                slices,
                size=pair["size"],
                roi_start=pair["roi_start"],
                roi_end=pair["roi_end"],
                interp_type=getattr(types, _FILTERS[resampling.interpolation][0]),
                antialias=resampling.antialias and not resampling.interpolation.startswith("nearest"),
            )
            self._dali.set_outputs(resized)
        self._dali.build()

    def disown(self) -> None:
        """Leak DALI's object: shutting it down waits for threads that a forked child does not have, or crashes."""
        native, self._dali._pipe = self._dali._pipe, None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))

    def run(self, jpegs: Sequence[np.ndarray], planned: np.ndarray) -> list[np.ndarray]:
        """uint8 (h, w, 3) for each. Raises _RunError when any of them cannot be decoded; usable after that."""
        inputs = [np.ascontiguousarray(planned[name]) for name in self._pairs]
        self._dali.feed_input("jpegs", [self._tensor(jpeg) for jpeg in jpegs])
        for name, values in zip(self._pairs, inputs, strict=True):
            self._dali.feed_input(name, self._tensors(values))
        self._dali.schedule_run()
        try:
            (output,) = self._dali.share_outputs()
        except RuntimeError as error:
            raise _RunError(str(error)) from error
        self._dali.release_outputs()
        if output.is_dense_tensor():
            return list(np.asarray(output.as_tensor()))
        return [np.asarray(output[i]) for i in range(len(jpegs))]


class _RunError(Exception):
    """DALI gave up on a run, for one of its images."""


def _decoded(pipeline: _Pipeline, jpegs: Sequence[np.ndarray], planned: np.ndarray) -> list[np.ndarray | None]:
    """The images, None for those that DALI cannot decode. Bisects, since DALI doesn't always say which image it was."""
    try:
        return list(pipeline.run(jpegs, planned))
    except _RunError:
        if len(jpegs) == 1:
            return [None]
        half = len(jpegs) // 2
        return _decoded(pipeline, jpegs[:half], planned[:half]) + _decoded(pipeline, jpegs[half:], planned[half:])


@dataclass(frozen=True)
class _Resolved:
    """geometry: GEOMETRY (n,). known: bool (n,), False where the transform cannot be carried out on that image."""

    geometry: np.ndarray
    known: np.ndarray


def _resolved(rows: list[int], extents: np.ndarray, resolve: Resolve) -> _Resolved:
    known = np.ones(len(rows), np.bool_)
    if not rows:
        return _Resolved(np.zeros(0, GEOMETRY), known)
    try:
        return _Resolved(resolve(rows, extents[:, 0], extents[:, 1]), known)
    except ValueError:  # of at least one: find out which
        geometry = np.zeros(len(rows), GEOMETRY)
        for i, row in enumerate(rows):
            try:
                geometry[i] = resolve([row], extents[i : i + 1, 0], extents[i : i + 1, 1])[0]
            except ValueError:  # the fallback meets it again, and names it
                known[i] = False
        return _Resolved(geometry, known)


_decoders: weakref.WeakSet[DaliDecoder] = weakref.WeakSet()


def _disinherit_all() -> None:
    for decoder in list(_decoders):
        decoder._disinherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disinherit_all)


def _finish_calls(reference: weakref.ref[DaliDecoder]) -> None:
    """At exit: wait for running calls and let no other begin; their threads are daemons that end with the process."""
    decoder = reference()
    if decoder is not None:
        with decoder._state:
            decoder._allowed = 0
            decoder._state.wait_for(lambda: decoder._running == 0, EXIT_WAIT_S)
