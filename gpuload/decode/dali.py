"""DALI's CPU decoder: the crop's part of a JPEG is decoded and resampled in one DALI run a task.

Owns which files DALI is given, on either device, and the CPU's tasks. Leaves the graph to dali_pipeline.py, every other
file to a fallback decoder, and flips, normalising and storing to the kernels that read these pixels.

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

Concurrency: dali_pool.py. Images are views of DALI's output buffers, which live while a view does
(test_held_images_are_never_overwritten). The encoded bytes are read in place and no longer than the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuload.core.batch import NEVER, DecodedRows, EncodedBatch, Target
from gpuload.core.errors import ConfigError, MissingDependencyError
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Decoder, Resolve
from gpuload.decode.dali_pipeline import DaliPipeline, DaliSettings, graph, regions, run_around_bad, unsupported
from gpuload.decode.dali_pool import DaliPool
from gpuload.decode.fallback import decode_rest
from gpuload.decode.jpeg_header import JpegHeader, read_header

__all__ = ["DaliDecoder", "accepts", "available", "unsupported"]

ROWS_PER_TASK = (8, 32)  # least and most: a run costs ~1 ms of CPU whatever its size (8 rows 6%, 32 rows 1.5% of a run)
MAX_PIXELS = 178_956_970  # Pillow refuses larger ones as decompression bombs: let it say so

_KINDS = ("baseline", "extended", "progressive")
_SUBSAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))


def available() -> str | None:
    """Why DALI cannot be used here, or None where it can."""
    try:
        import nvidia.dali  # noqa: F401
    except (ImportError, OSError) as error:
        return f"NVIDIA DALI cannot be imported ({error})"
    return None


def require(resampling: Resampling) -> None:
    """Raises MissingDependencyError without DALI, ConfigError for a resampling that it doesn't have."""
    if reason := available():
        raise MissingDependencyError(f'decoder="dali": {reason}. Install it by pip install "gpuload[dali]"')
    if reason := unsupported(resampling):
        raise ConfigError(f'decoder="dali": {reason}. Pass decoder="pillow"')


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
        require(resampling)
        self._threads, self._resampling, self._fallback = threads, resampling, fallback
        least, most = ROWS_PER_TASK
        self._task = min(max(-(-max_rows // threads), least), most)
        made = partial(graph, resampling, device="cpu", rows=self._task, threads=1, settings=DaliSettings())
        self._pool = DaliPool(lambda: DaliPipeline(made()), allowed=threads)

    def __repr__(self) -> str:
        return f"DaliDecoder(threads={self._threads}, {self._pool}, {self._resampling})"

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
        planned = plan_rows(encoded, out, resolve, self._resampling)
        for at in range(0, len(planned.places), self._task):
            places, task = planned.places[at : at + self._task], planned.regions[at : at + self._task]
            with self._pool.lease() as pipeline:
                done = list(run_around_bad(pipeline, [encoded.encoded(rows[place]) for place in places], task))
            images = [image for part in done for image in (part.arrays() if part.tensors is not None else [None])]
            for place, image, region in zip(places, images, task, strict=True):
                out.images[place] = None if image is None else windowed(image, region, self._resampling.fill)
        decode_rest(self._fallback, encoded, out, resolve, stop, name=self.name)
        return out

    def close(self) -> None:
        """Free the pipelines; a call in flight frees its own when it ends."""
        self._pool.close()


@dataclass(frozen=True)
class PlannedRows:
    """What DALI will do. places: of the rows in DecodedRows. regions: REGION; pixels: int64, of the whole image."""

    places: list[int]
    regions: np.ndarray
    pixels: np.ndarray


def plan_rows(
    encoded: EncodedBatch,
    out: DecodedRows,
    resolve: Resolve,
    resampling: Resampling,
    takes: Callable[[JpegHeader | None], bool] = accepts,
) -> PlannedRows:
    """Which rows DALI takes and how; fills in the geometry of those images."""
    found, sizes = [], []
    for place, row in enumerate(out.rows):
        header = read_header(encoded.encoded(row))
        if header is not None and takes(header):
            found.append(place)
            sizes.append((header.width, header.height))
    extents = np.array(sizes, np.int64).reshape(-1, 2)
    resolved = _resolved([out.rows[place] for place in found], extents, resolve)
    planned = regions(resolved.geometry, extents[:, 0], extents[:, 1], resampling)
    taken = planned["feasible"] & resolved.known
    places = [place for place, take in zip(found, taken.tolist(), strict=True) if take]
    out.geometry[places] = resolved.geometry[taken]
    return PlannedRows(places, planned[taken], extents[taken].prod(1))


def windowed(image: np.ndarray, region: np.void | np.ndarray, fill: tuple[int, int, int]) -> np.ndarray:
    """The image in its window: itself where it fills it, else a copy on the fill colour."""
    h, w = region["window"].tolist()
    if image.shape[:2] == (h, w):
        return image
    y, x = region["paste"].tolist()
    canvas = np.empty((h, w, 3), np.uint8)
    canvas[:] = fill
    canvas[y : y + image.shape[0], x : x + image.shape[1]] = image
    return canvas


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
