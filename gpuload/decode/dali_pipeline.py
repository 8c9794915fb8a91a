"""One DALI pipeline on either device: regions of JPEGs in, resampled pixels out. The same graph, device by device.

Owns how GEOMETRY becomes DALI's terms (REGION: a slice of the source, a region of interest in it, an output size), the
graph that carries REGION out, and how a run that one image spoils still gives all others. Leaves what DALI is given,
and on which threads, to dali.py (CPU) and dali_gpu.py (GPU).

    jpegs --decode (cpu, or mixed: nvJPEG)--> slice --resize of the region of interest--> [a fourth byte a pixel]

Where DALI decodes whole images, the slice is cut from them on the same device, so that resampling never sees what lies
beyond the crop, as with Pillow; a resize by region of interest alone would let its filter reach there.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.errors import GpuloadError
from gpuload.core.geometry import Resampling

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

_FED = ("start", "shape", "roi_start", "roi_end", "size")


def unsupported(resampling: Resampling) -> str | None:
    """Why DALI cannot resample like this, or None where it can."""
    if resampling.interpolation not in _FILTERS:
        return f"DALI has no {resampling.interpolation} filter"
    if resampling.domain == "tensor" and resampling.interpolation == "nearest":
        return "DALI's nearest samples at pixel centres, torchvision's on tensors at corners"
    if resampling.interpolation == "bicubic" and not resampling.antialias:
        return "DALI's bicubic has a = -0.5, torchvision's without antialias a = -0.75"
    return None


def regions(geometry: np.ndarray, widths: np.ndarray, heights: np.ndarray, resampling: Resampling) -> np.ndarray:
    """REGION (n,) that carries out GEOMETRY (n,) on images of these sizes.

    crop -> resize -> window becomes one resampling: the part of the window that lies in the resized image is mapped
    back to the crop, and of the crop only what the filter reaches from there is decoded; with antialias it reaches
    farther when shrinking.
    """
    radius = _FILTERS[resampling.interpolation][1]
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
    reach = np.where(scale == 1, 0, radius * (np.maximum(scale, 1) if resampling.antialias else 1) + 1)
    begin = np.maximum(first, np.floor(low * scale - reach)).astype(np.int32)
    end = np.minimum(last, np.ceil(high * scale + reach)).astype(np.int32)

    out = np.empty(len(geometry), REGION)
    out["start"], out["shape"] = crop_at + begin, end - begin
    out["roi_start"], out["roi_end"] = low * scale - begin, high * scale - begin
    out["size"], out["paste"], out["window"] = high - low, low - window_at, window
    out["feasible"] = (high > low).all(1) & (end > begin).all(1) & (plain | ~outside)
    return out


@dataclass(frozen=True)
class DaliSettings:
    """How DALI decodes: on a GPU found by dali_probe.py, then fixed, since pixels may depend on it.

    decode_regions: slices are decoded; else whole images, from which the slice is cut. hw_decoder_load: the share of a
    run that the GPU's JPEG engines take, 0 for none. distance: mean absolute difference of the probe's decoded images
    to libjpeg's, of 255.
    """

    decode_regions: bool = True
    hw_decoder_load: float = 0.0
    distance: float = 0.0


def graph(
    resampling: Resampling,
    *,
    device: str,
    rows: int,
    threads: int,
    settings: DaliSettings,
    device_id: int | None = None,
    channels: int = 3,
) -> Any:
    """DALI's pipeline, not built: the inputs are "jpegs" and the fields of REGION that it needs.

    device: "cpu", which needs no driver, or "gpu". device_id: which GPU, torch's index; None lets the graph be checked
    and serialised where there is none. channels: 3, or 4, of which the last is 0: what device_batch.py calls pixels.
    """
    from nvidia.dali import Pipeline, fn, types

    kinds = types.DALIDataType
    decoding: dict[str, Any] = {
        "device": "mixed" if device == "gpu" else "cpu",
        "output_type": types.DALIImageType.RGB,
        "adjust_orientation": False,  # as Pillow
        "use_fast_idct": False,
    }
    if device == "gpu":
        decoding["jpeg_fancy_upsampling"] = True  # libjpeg's chroma
        decoding["hw_decoder_load"] = settings.hw_decoder_load
        decoding["affine"] = False  # threads bound to cores would be the same cores in every rank of a node
    # exec_dynamic: outputs belong to whoever holds them. Depth 1: schedule_run starts one run, never fills a queue.
    made = Pipeline(
        batch_size=rows, num_threads=threads, device_id=device_id, prefetch_queue_depth=1, exec_dynamic=True
    )
    with made:
        jpegs = fn.external_source(name="jpegs", dtype=kinds.UINT8, ndim=1, no_copy=True)
        fed: dict[str, Any] = {
            name: fn.external_source(
                name=name, dtype=kinds.INT32 if REGION[name].base == np.int32 else kinds.FLOAT, ndim=1, no_copy=True
            )
            for name in _FED
        }
        where = {"start": fed["start"], "shape": fed["shape"], "axis_names": "HW"}
        if settings.decode_regions:
            slices: Any = fn.decoders.image_slice(jpegs, **where, **decoding)
        else:
            slices = fn.slice(fn.decoders.image(jpegs, **decoding), **where)
        pixels: Any = fn.resize(
            slices,
            size=fed["size"],
            roi_start=fed["roi_start"],
            roi_end=fed["roi_end"],
            interp_type=getattr(types, _FILTERS[resampling.interpolation][0]),
            antialias=resampling.antialias and not resampling.interpolation.startswith("nearest"),
        )
        if channels != 3:
            pixels = fn.pad(pixels, axes=[2], shape=[channels])
        made.set_outputs(pixels)
    return made


class RunError(Exception):
    """DALI gave up on a run, most often for one of its images."""


class DaliDeviceError(GpuloadError, RuntimeError):
    """The GPU, or its memory, failed under DALI: no other image would fare better."""


_DEVICE_TROUBLE = re.compile(
    r"CUDA (runtime|driver) API error|CUDA allocation failed|an't allocate \d+ bytes|out of memory|bad_alloc"
)
"""What DALI says then. A file that nvJPEG cannot decode is an "nvJPEG error", or names the sample."""


@dataclass(frozen=True)
class Output:
    """Pixels of images [begin, begin + count) of what was asked; `tensors` is None where DALI cannot decode them.

    tensors: DALI's TensorListCPU or TensorListGPU, uint8, (h, w, channels) each. Its memory is free for others once
    this is gone, whatever a GPU may still read.
    """

    begin: int
    count: int
    tensors: Any

    def addresses(self) -> np.ndarray:
        """Where each image begins: int64 (count,)."""
        first, last = self.tensors[0].data_ptr(), self.tensors[self.count - 1].data_ptr()
        size = math.prod(self.tensors[0].shape())
        if self.tensors.is_dense_tensor() and last - first == (self.count - 1) * size:
            return first + np.arange(self.count, dtype=np.int64) * size
        return np.array([self.tensors[i].data_ptr() for i in range(self.count)], np.int64)

    def arrays(self) -> list[np.ndarray]:
        """Each image on the host: views of DALI's memory where it is the host's, copies of a GPU's."""
        tensors = self.tensors.as_cpu()
        if tensors.is_dense_tensor():
            return list(np.asarray(tensors.as_tensor()))
        return [np.asarray(tensors[i]) for i in range(self.count)]


class DaliPipeline:
    """A built graph. One call at a time."""

    def __init__(self, built_from: Any):
        from nvidia.dali.tensors import TensorCPU, TensorListCPU

        self._tensor, self._tensors = TensorCPU, TensorListCPU
        self._dali = built_from
        self._dali.build()

    def disown(self) -> None:
        """Leak DALI's object: shutting it down waits for threads that a forked child does not have, or crashes."""
        native, self._dali._pipe = self._dali._pipe, None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))

    def run(self, jpegs: Sequence[np.ndarray], planned: np.ndarray) -> Any:
        """DALI's list of outputs, finished. Raises RunError when any cannot be decoded; usable after that.

        jpegs: uint8 each. planned: REGION (n,). Waits for the work without the GIL; any stream may then use the pixels.
        """
        inputs = [np.ascontiguousarray(planned[name]) for name in _FED]
        self._dali.feed_input("jpegs", [self._tensor(jpeg) for jpeg in jpegs])
        for name, values in zip(_FED, inputs, strict=True):
            self._dali.feed_input(name, self._tensors(values))
        self._dali.schedule_run()
        try:
            (tensors,) = self._dali.share_outputs()
        except RuntimeError as error:
            raise RunError(str(error)) from error
        self._dali.release_outputs()
        return tensors


def run_around_bad(
    pipeline: DaliPipeline, jpegs: Sequence[np.ndarray], planned: np.ndarray, begin: int = 0
) -> Iterator[Output]:
    """All images, in order, those without `tensors` that DALI cannot decode. Bisects: DALI doesn't always say which.

    Raises DaliDeviceError where it is not for an image that a run failed.
    """
    try:
        yield Output(begin, len(jpegs), pipeline.run(jpegs, planned))
        return
    except RunError as error:
        if _DEVICE_TROUBLE.search(str(error)):
            raise DaliDeviceError(
                f"DALI could not use the GPU: {str(error).strip().splitlines()[0][:300]}. Where its memory ran out, "
                'lower batch_size; else restart the process, or pass decoder="native"'
            ) from error
        if len(jpegs) == 1:
            yield Output(begin, 1, None)
            return
    half = len(jpegs) // 2
    yield from run_around_bad(pipeline, jpegs[:half], planned[:half], begin)
    yield from run_around_bad(pipeline, jpegs[half:], planned[half:], begin + half)
