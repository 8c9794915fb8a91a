"""DALI's GPU decoder: nvJPEG decodes, DALI cuts and resamples, and gpuload's `store` puts the pixels into the batch.

Owns which rows DALI's GPU is given, how a batch is cut into runs whose images fit the memory allowed, and the job that
ends them. The graph is dali_pipeline.py's, how it is set for this GPU dali_probe.py's; what DALI is not given, or
cannot decode, is the fallback's, in the same batch.

    bytes --DALI: decode, slice, resize, a fourth byte a pixel--> pixels --store: window, flips, look-up--> the batch

* DALI's part ends with 8-bit pixels because everything after them is exact where gpuload does it: the table of 256
  values a channel is any chain of ToTensor, ToDtype and Normalize, to the bit, in any type and layout.
  crop_mirror_normalize would be an affine map, rounded in its own way, without bfloat16 and without fill around a
  window; it would save one pass over 8-bit pixels, 51 MB a batch of 256, which an H200 writes and reads again in some
  25 microseconds. In `store` flips cost nothing, nor do places: rows may go anywhere in the batch.
* The pixels are DALI's until `store` has read them: whoever launches the job holds it until then.
* A run is waited for in the decode thread, so that an image that nvJPEG refuses is known while the fallback can still
  take it; meanwhile the other pipeline decodes. No stream of ours and no consumer waits on the host.
* Pixels are further from Pillow's than those of DALI on the CPU by what nvJPEG's IDCT and chroma differ from libjpeg's:
  dali_probe.py measures it on the GPU at hand (DaliSettings.distance). Resampling is the same: see dali.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuload.core.batch import NEVER, DecodedRows, DeviceOutput, EncodedBatch, Target
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Decoder, Launcher, Resolve
from gpuload.decode.dali import PlannedRows, accepts, plan_rows, require, windowed
from gpuload.decode.dali_pipeline import DaliPipeline, DaliSettings, Output, graph, run_around_bad
from gpuload.decode.dali_pool import DaliPool
from gpuload.decode.fallback import decode_rest
from gpuload.decode.jpeg_header import JpegHeader
from gpuload.kernels.device_batch import IMAGE

PIPELINES = 2  # one decodes while the other's results are handed on; each has half of the threads
DEVICE_BYTES_A_PIXEL = 10  # while decoded: RGB, its planes, and the slice cut from it; the rest is DALI's padding
ON_THE_GPU = "dali, on the GPU"


@dataclass(frozen=True)
class DaliStaged:
    """Rows that DALI has decoded and nobody has stored: in the order of `outputs`, all of which have tensors.

    rows: int64 (k,), of the batch. regions: REGION (k,). geometry: GEOMETRY (k,).
    """

    rows: np.ndarray
    regions: np.ndarray
    geometry: np.ndarray
    outputs: tuple[Output, ...]

    def __len__(self) -> int:
        return len(self.rows)


class DaliGpuDecoder:
    """core.protocols.Decoder on one GPU; what `takes` refuses goes to `fallback`, and what nvJPEG cannot decode.

    threads: of the CPU, for what nvJPEG does there. max_rows: of a batch. device_bytes: roughly what decoding may take
    on the GPU; larger batches are cut into more runs, and an image that is too large alone is the fallback's.
    device_id: torch's index; settings: dali_probe.dali_settings(device_id, threads). device: "cpu" is the same on host
    memory: DALI's CPU operators, and a job for kernels that run there.
    Raises MissingDependencyError without DALI, ConfigError for a resampling it doesn't have.
    """

    name = ON_THE_GPU

    def __init__(
        self,
        *,
        threads: int,
        resampling: Resampling,
        max_rows: int,
        device_bytes: int,
        settings: DaliSettings,
        device_id: int | None,
        fallback: Decoder,
        device: str = "gpu",
    ):
        require(resampling)
        self._resampling, self._fallback, self._rows = resampling, fallback, max_rows
        self._most_pixels = device_bytes // (PIPELINES * DEVICE_BYTES_A_PIXEL)
        made = partial(
            graph, resampling, device=device, rows=max_rows, threads=-(-threads // PIPELINES), settings=settings,
            device_id=device_id, channels=4,
        )  # fmt: skip
        self._pool = DaliPool(lambda: DaliPipeline(made()), allowed=PIPELINES)

    def __repr__(self) -> str:
        return f"DaliGpuDecoder({self._rows} rows, {self._pool}, {self._resampling})"

    def callers(self, threads: int) -> int:
        return min(threads, PIPELINES)

    def rows_per_task(self, encoded: EncodedBatch) -> int:
        return self._rows

    def sizes(self, encoded: EncodedBatch) -> None:
        return None

    def takes(self, header: JpegHeader | None) -> bool:
        return accepts(header) and header is not None and header.width * header.height <= self._most_pixels

    def decode(
        self,
        encoded: EncodedBatch,
        rows: range,
        resolve: Resolve,
        target: Target | None = None,
        stop: np.ndarray = NEVER,
    ) -> DecodedRows:
        """See core.protocols.Decoder. With a target, rows are staged; without, they come back as images of the host."""
        out = DecodedRows(rows, [None] * len(rows), np.zeros(len(rows), GEOMETRY))
        planned = plan_rows(encoded, out, resolve, self._resampling, self.takes)
        outputs = list(self._outputs(encoded, rows, planned))
        decoded = [place for output in outputs for place in range(output.begin, output.begin + output.count)]
        places = np.array(planned.places, np.int64)[decoded]
        regions = planned.regions[decoded]
        if target is None:
            images = [image[:, :, :3] for output in outputs for image in output.arrays()]
            for place, image, region in zip(places.tolist(), images, regions, strict=True):
                out.images[place] = windowed(image, region, self._resampling.fill)
        elif len(places) and (regions["window"] == target.image_size).all():
            out.staged = DaliStaged(places + rows.start, regions, out.geometry[places], tuple(outputs))
            out.stored.update(places.tolist())
            out.decoders[self.name] = len(places)
        decode_rest(self._fallback, encoded, out, resolve, stop, name=self.name)
        return out

    def _outputs(self, encoded: EncodedBatch, rows: range, planned: PlannedRows) -> Iterator[Output]:
        """What DALI makes of the planned rows, those without what it cannot decode. Raises DaliDeviceError."""
        for cut in cut_runs(planned.pixels, most_rows=self._rows, most_pixels=self._most_pixels):
            jpegs = [encoded.encoded(rows[place]) for place in planned.places[cut]]
            with self._pool.lease() as pipeline:
                done = list(run_around_bad(pipeline, jpegs, planned.regions[cut], cut.start))
            yield from (output for output in done if output.tensors is not None)

    def device_job(self, staged: Sequence[DaliStaged], places: np.ndarray, target: Target) -> DaliJob:
        """See core.protocols.Decoder."""
        return DaliJob(staged, places, table=target.table, fill=self._resampling.fill)

    def close(self) -> None:
        """Free the pipelines; a call in flight frees its own when it ends. What was staged stays as it is."""
        self._pool.close()


class DaliJob:
    """core.protocols.DeviceJob of what DALI has decoded: one launch, whose images are pixels already.

    Hold it until the launch has run: its pixels are in DALI's memory. `status` is empty: every image is right by now.
    """

    scratch_bytes = 0
    status = slice(0, 0)

    def __init__(
        self, staged: Sequence[DaliStaged], places: np.ndarray, *, table: np.ndarray, fill: tuple[int, int, int]
    ):
        self._outputs = [output for part in staged for output in part.outputs]
        self._table, self._fill = np.ascontiguousarray(table), fill
        self.rows = np.concatenate([part.rows for part in staged])
        addresses = np.concatenate([output.addresses() for output in self._outputs])
        self._base = int(addresses.min())
        self._images = stored_images(
            addresses - self._base,
            places[self.rows],
            np.concatenate([part.regions for part in staged]),
            np.concatenate([part.geometry for part in staged]),
        )

    @property
    def upload_bytes(self) -> int:
        return self._images.nbytes + self._table.nbytes

    def write(self, upload: np.ndarray) -> None:
        """Fill the upload: the images, then the table."""
        upload[: self._images.nbytes] = self._images.view(np.uint8)
        upload[self._images.nbytes : self.upload_bytes] = self._table.reshape(-1).view(np.uint8)

    def launch(self, launcher: Launcher, upload: int, scratch: int, output: DeviceOutput) -> None:
        """Store every image; upload: the address of its copy on the device."""
        n = len(self.rows)
        items = n * output.height * output.width
        launcher.launch(
            f"store_{self._table.dtype.itemsize}", items, n, items, upload, 0, self._base, 0,
            upload + self._images.nbytes, *self._fill, output.address, output.height, output.width, *output.strides,
        )  # fmt: skip


def stored_images(offsets: np.ndarray, places: np.ndarray, regions: np.ndarray, geometry: np.ndarray) -> np.ndarray:
    """IMAGE (n,) of pixels that are resampled already: `store` only windows, flips and looks up.

    offsets: int64 (n,), bytes from the launch's `pixels` to each image's own, of 4 bytes each.
    """
    images = np.zeros(len(offsets), IMAGE)
    images["first_pixel"] = offsets // 4
    images["region"][:, 2:] = images["outputs"][:, 2:] = regions["size"][:, ::-1]
    images["shown"] = -regions["paste"][:, ::-1]
    images["flips"] = np.stack([geometry["flip_h"], geometry["flip_v"]], 1)
    images["place"] = places
    return images


def cut_runs(pixels: np.ndarray, *, most_rows: int, most_pixels: int) -> list[slice]:
    """Runs of as many images together as their pixels allow, in order; an image is never left out.

    >>> cut_runs(np.array([5, 4, 9, 1, 1]), most_rows=2, most_pixels=10)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    runs, start = [], 0
    while start < len(pixels):
        total = np.cumsum(pixels[start : start + most_rows])
        count = max(1, int(np.searchsorted(total, most_pixels, side="right")))
        runs.append(slice(start, start + count))
        start += count
    return runs
