"""gpuload's own JPEG decoder on the CPU: Pillow's pixels, bit for bit, from less work.

A task's images go through two compiled calls that hold no GIL: their headers, which give the sizes from which NumPy
makes the crops of all of them, then everything else (kernels/decode_jpeg.py), straight into the batch's memory where
there is one. Owns what those calls are given: memory to work in, a set a thread, and the rules of the installed Pillow.
A file that the kernels leave to others (progressive, CMYK, PNG), one in whose stream anything is wrong, and a crop that
reaches beyond its image go to the fallback inside the same batch, and are counted under its name.

Equal to Pillow: tests/decode/test_native.py, over all samplings, crops and filters, the odd JPEGs and the photographs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from gpuload.core.batch import NEVER, DecodedRows, EncodedBatch, Target
from gpuload.core.errors import EpochCancelledError
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Decoder, Resolve
from gpuload.decode.device_job import DeviceJob, Staged
from gpuload.decode.entropy_index import NO_TABLES, EntropyIndex
from gpuload.decode.fallback import decode_rest
from gpuload.decode.pillow import cut
from gpuload.decode.staging import Stager
from gpuload.kernels import decode_jpeg as kernels
from gpuload.kernels import huffman, resample
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels import resample_weights as weights
from gpuload.kernels.jpeg_plan import JOB_SIZE

TASK_BYTES = 512 << 10  # encoded: 5 photographs, some 3 ms of work
STAGED_TASK_BYTES = 4 << 20  # where a GPU decodes: 40 photographs, 1.4 ms; at 8 of them staging takes twice as long
MOST_STAGED_BYTES = 1 << 31  # encoded, a batch: the kernels count bytes in 31 bits
TASK_ROWS = (8, 64)  # at least and at most: a task costs some 150 us of Python, and a batch must be shared out
MOST_PIXELS = 1 << 26  # larger images go to Pillow, which has a limit of its own; the kernels count in 32 bits
FROM_POINTS = "native, from seek points"  # how those images are counted whose scan was not walked from its start
ON_THE_GPU = "native, on the GPU"
RECORD_SHARE = 50  # of a file's bytes one in so many is what its seek points may take: 2%
KEPT_BYTES = 256 << 20  # scratch memory kept, a thread; an image that needs more gives it back

_KINDS = {
    "bilinear": weights.BILINEAR,
    "bicubic": weights.BICUBIC,
    "box": weights.BOX,
    "lanczos": weights.LANCZOS,
}  # not "hamming": at some sizes a weight of Pillow's differs in its last bit (fuzz seed 425438), so Pillow resizes
_SAME = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=0)  # the look-up that changes nothing
_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


def allocate(nbytes: int) -> np.ndarray:
    """Memory for the kernels to work in: uint8 (nbytes,), of any contents."""
    return np.empty(nbytes, np.uint8)


@dataclass(frozen=True)
class _Headers:
    """Where some encoded images lie and what their headers say, as kernels.jpeg_header fills them."""

    data: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    header: np.ndarray
    quant: np.ndarray
    huffman: np.ndarray
    verdicts: np.ndarray

    @classmethod
    def read(cls, encoded: EncodedBatch, rows: range) -> _Headers:
        count = len(rows)
        headers = cls(
            np.ascontiguousarray(encoded.data),
            np.ascontiguousarray(encoded.offsets[rows.start : rows.stop], np.int64),
            np.ascontiguousarray(encoded.lengths[rows.start : rows.stop], np.int64),
            np.empty((count, jpeg.HEADER_SIZE), np.int32),
            np.zeros((count, 4, 64), np.uint16),
            np.empty((count, 8, jpeg.HUFFMAN_SIZE), np.uint8),
            np.empty(count, np.int64),
        )
        kernels.read_headers(*vars(headers).values())
        return headers

    def one(self, place: int) -> _Headers:
        """The same of one image."""
        data, *arrays = vars(self).values()
        return _Headers(data, *(array[place : place + 1] for array in arrays))

    def ours(self) -> np.ndarray:
        """The places of the images that the kernels decode: int64 (k,)."""
        pixels = self.header[:, jpeg.WIDTH].astype(np.int64) * self.header[:, jpeg.HEIGHT]
        most = min(MOST_PIXELS, Image.MAX_IMAGE_PIXELS or MOST_PIXELS)  # of larger ones Pillow warns at least
        return np.flatnonzero((self.verdicts == jpeg.OURS) & (pixels <= most))


class NativeDecoder:
    """core.protocols.Decoder on gpuload's kernels.

    fallback: takes what they don't. resize: as PillowDecoder's. index: where seek points are found and, if it learns,
    kept; pixels are the same without. fidelity: "exact", or "fast": crops that become much smaller are decoded at a
    fraction of their size (kernels/decode_scaled.py). device_bytes: not 0: what can be
    is left to a GPU, on which an image may take so many bytes while it is decoded.
    """

    name = "native"

    def __init__(
        self,
        resampling: Resampling,
        fallback: Decoder,
        resize: Callable[[np.ndarray, tuple[int, int]], np.ndarray] | None = None,
        index: EntropyIndex | None = None,
        *,
        fidelity: str = "exact",
        device_bytes: int = 0,
    ):
        self._resampling, self._fallback, self._resize = resampling, fallback, resize
        self._kind = _KINDS.get(resampling.interpolation) if resize is None else None
        self._rule = pass_order() if self._kind is not None else None
        self._index, self._fast = index, fidelity == "fast"
        self._kernels = [kernels.decode_images]
        if self._fast:
            from gpuload.kernels.decode_scaled import decode_scaled_images  # here: it takes 15 s to compile

            self._kernels.append(decode_scaled_images)
        self._fill = np.array(resampling.fill, np.int64)
        self._device_bytes = device_bytes
        self._stager = None
        if device_bytes and index is not None:
            rule = self._rule if self._rule is not None else weights.HORIZONTAL_FIRST
            self._stager = Stager(self._kind or weights.BILINEAR, rule, index, most_bytes=device_bytes)
        self._memory = _Memory()

    def callers(self, threads: int) -> int:
        return threads

    def rows_per_task(self, encoded: EncodedBatch) -> int:
        task_bytes = TASK_BYTES if self._stager is None else STAGED_TASK_BYTES
        usual = task_bytes * len(encoded) // max(1, encoded.data.nbytes)
        return min(max(usual, TASK_ROWS[0]), TASK_ROWS[1])

    def sizes(self, encoded: EncodedBatch) -> np.ndarray:
        return _Headers.read(encoded, range(len(encoded))).header[:, [jpeg.WIDTH, jpeg.HEIGHT]].astype(np.int64)

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
        headers = _Headers.read(encoded, rows)
        ours = headers.ours()
        if len(ours):
            widths, heights = headers.header[ours, jpeg.WIDTH], headers.header[ours, jpeg.HEIGHT]
            try:
                out.geometry[ours] = resolve(rows.start + ours, widths.astype(np.int64), heights.astype(np.int64))
            except ValueError:  # at least one cannot have what is asked: the fallback says which, and why
                ours = ours[:0]
        resampled = np.any(out.geometry["resize"] != out.geometry["crop"][:, 2:], axis=1)
        if self._rule is None and resampled.any():
            self._resize_apart(headers, ours, out, stop)
        elif target is not None:
            if self._stager is not None and len(ours) and encoded.data.nbytes < MOST_STAGED_BYTES:
                ours = self._leave_to_device(self._stager, headers, ours, out, target, stop)
            self._store(headers, ours, out, target, stop)
        else:
            for place in ours.tolist():
                out.images[place] = self._pixels(headers.one(place), out.geometry[place : place + 1], out, stop)
        if stop[0]:
            raise EpochCancelledError("the epoch was cancelled")
        decode_rest(self._fallback, encoded, out, resolve, stop, name=self.name)
        return out

    def seek_points(self, encoded: EncodedBatch) -> list[tuple[int, bytes]]:
        """(key, record) of each image that gets seek points, in any order: for an index that is made ahead."""
        headers, found = _Headers.read(encoded, range(len(encoded))), _Collected()
        job = np.tile(np.array([0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0], np.int32), (len(encoded), 1))  # one pixel of each
        batch, places = np.empty((1, 3, 1, 1, 1), np.uint8), np.zeros(len(encoded), np.int64)
        self._run(headers, headers.ours(), job, places, _SAME, batch, index=found)
        return found.records

    def close(self) -> None:
        """Free the scratch memory, and the index."""
        self._memory = _Memory()
        if self._index is not None:
            self._index.close()

    def _store(self, headers: _Headers, ours: np.ndarray, out: DecodedRows, target: Target, stop: np.ndarray) -> None:
        """Decode into the batch."""
        if not len(ours):
            return
        places = np.arange(out.rows.start, out.rows.stop)
        status = self._run(
            headers, ours, jobs(out.geometry, headers.header), places, target.table_bytes, target.array_bytes,
            stop=stop, index=self._index, out=out,
        )  # fmt: skip
        out.stored.update(np.flatnonzero(status == kernels.DONE).tolist())

    def _leave_to_device(
        self,
        stager: Stager,
        headers: _Headers,
        ours: np.ndarray,
        out: DecodedRows,
        target: Target,
        stop: np.ndarray,
    ) -> np.ndarray:
        """Stage what the GPU can have; the places of the others."""
        height, width = target.image_size
        staged = stager.stage(
            *list(vars(headers).values())[:-1], ours=ours, jobs=jobs(out.geometry, headers.header),
            first_row=out.rows.start, size=(height, width), stop=stop,
        )  # fmt: skip
        if not len(staged):
            return ours
        places = staged.rows - out.rows.start
        out.staged = staged
        out.stored.update(places.tolist())
        out.decoders[ON_THE_GPU] = len(staged)
        return np.setdiff1d(ours, places, assume_unique=True)

    def device_job(self, staged: Sequence[Staged], places: np.ndarray, target: Target) -> DeviceJob:
        """What was staged of a batch as one piece of work. places: int64, by row where it goes."""
        kind = self._kind or weights.BILINEAR
        return DeviceJob(
            staged, places, table=target.table, fill=self._resampling.fill, kind=kind, most_bytes=self._device_bytes
        )

    def _pixels(self, headers: _Headers, geometry: np.ndarray, out: DecodedRows, stop: np.ndarray) -> np.ndarray | None:
        """The window of one image, uint8 (h, w, 3), not flipped; None where it is the fallback's."""
        job = jobs(geometry, headers.header)
        job[:, 10:] = 0
        pixels = np.empty((job[0, 9], job[0, 8], 3), np.uint8)
        batch, first = pixels.transpose(2, 0, 1)[None, ..., None], np.zeros(1, np.int64)
        status = self._run(
            headers, first, job, first, _SAME, batch, pixels=pixels, stop=stop, index=self._index, out=out
        )
        return pixels if status[0] == kernels.DONE else None

    def _resize_apart(self, headers: _Headers, ours: np.ndarray, out: DecodedRows, stop: np.ndarray) -> None:
        """Decode the crops alone, and resize them by others' means."""
        for place in ours.tolist():
            geometry = out.geometry[place : place + 1].copy()
            (w, h), size = geometry["crop"][0, 2:].tolist(), tuple(geometry["resize"][0].tolist())
            window = geometry["window"][0].copy()
            geometry["resize"], geometry["window"] = (w, h), (0, 0, w, h)
            pixels = self._pixels(headers.one(place), geometry, out, stop)
            if pixels is None:
                continue
            if size != (w, h):
                try:
                    pixels = self._resize(pixels, size) if self._resize is not None else self._by_pillow(pixels, size)
                except Exception:  # as for a side that becomes 0: the fallback fails in the same way, and says of what
                    continue
            out.images[place] = cut(pixels, window, self._resampling.fill)

    def _by_pillow(self, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        filters = {"nearest": Image.Resampling.NEAREST, "nearest-exact": Image.Resampling.NEAREST}
        chosen = filters.get(self._resampling.interpolation) or Image.Resampling[self._resampling.interpolation.upper()]
        return np.asarray(Image.fromarray(pixels).resize(size, chosen))

    def _run(
        self,
        headers: _Headers,
        ours: np.ndarray,
        job: np.ndarray,
        places: np.ndarray,
        table: np.ndarray,
        batch: np.ndarray,
        *,
        pixels: np.ndarray = _NO_PIXELS,
        stop: np.ndarray = NEVER,
        index: EntropyIndex | _Collected | None,
        out: DecodedRows | None = None,
    ) -> np.ndarray:
        """decode_images with this thread's memory and the index, over the images `ours`; returns each one's status.

        out: where images that were decoded from seek points are counted.
        """
        memory = self._memory
        status = np.full(len(headers.lengths), kernels.OUTSIDE, np.int64)
        status[ours] = kernels.NOT_BEGUN
        kind, rule = self._kind or weights.BILINEAR, self._rule or weights.HORIZONTAL_FIRST
        learns = index is not None and index.learning
        limits = headers.lengths // RECORD_SHARE if learns else np.zeros(len(headers.lengths), np.int64)
        keys, sizes, records = np.zeros_like(limits, np.uint64), np.zeros_like(limits), np.empty(limits.sum(), np.uint8)
        tables = NO_TABLES if index is None else index.tables
        seek = kernels.NO_POINTS if index is None else kernels.LEARN if learns else kernels.READ
        for decode in self._kernels if (status != kernels.OUTSIDE).any() else ():
            while needed := decode(
                headers.data, headers.offsets, headers.lengths, headers.header, headers.quant, headers.huffman,
                headers.huffman.view(np.uint64), job, places, kind, rule, table, self._fill, self._fast, batch, pixels,
                memory.kept, memory.tables, memory.scratch, *tables, seek, keys, limits, sizes, records, stop, status,
            ):  # fmt: skip
                memory.grow(needed)
        memory.shrink()
        if index is not None and (sizes > 0).any():
            index.add(keys, records, np.cumsum(limits) - limits, np.maximum(sizes, 0))
        if out is not None and (sizes == kernels.FROM_POINTS).any():
            out.decoders[FROM_POINTS] = out.decoders.get(FROM_POINTS, 0) + int((sizes == kernels.FROM_POINTS).sum())
        return status


def jobs(geometry: np.ndarray, header: np.ndarray) -> np.ndarray:
    """GEOMETRY (n,) of images with these headers, as the kernels read it: int32 (n, JOB_SIZE).

    A crop that is not resampled, and of which the window shows nothing but itself, is made a window of the whole image:
    that may reach beyond it.
    """
    out = np.empty((len(geometry), JOB_SIZE), np.int32)
    out[:, :4], out[:, 4:6], out[:, 6:10] = geometry["crop"], geometry["resize"], geometry["window"]
    out[:, 10], out[:, 11] = geometry["flip_h"], geometry["flip_v"]
    plain = (out[:, 2:4] == out[:, 4:6]).all(1)
    plain &= (out[:, 6:8] >= 0).all(1) & (out[:, 6:8] + out[:, 8:10] <= out[:, 2:4]).all(1)
    out[plain, 6:8] += out[plain, :2]
    out[plain, :2] = 0
    out[plain, 2:4] = out[plain, 4:6] = header[plain][:, [jpeg.WIDTH, jpeg.HEIGHT]]
    return out


class _Collected:
    """An index in which nothing is found yet, and everything learned is wanted."""

    tables = NO_TABLES
    learning = True

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []

    def add(self, keys: np.ndarray, records: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> None:
        for i in np.flatnonzero(sizes).tolist():
            self.records.append((int(keys[i]), records[offsets[i] : offsets[i] + sizes[i]].tobytes()))


class _Memory(threading.local):
    """A thread's own: scratch memory, and the Huffman tables that it built last."""

    def __init__(self) -> None:
        self.kept = np.zeros((huffman.KEPT + 1, huffman.KEPT_WORDS), np.uint64)
        self.tables = np.empty(huffman.KEPT * huffman.TABLE_SIZE, np.int32)
        self.scratch = allocate(0)

    def grow(self, nbytes: int) -> None:
        """Make room for the next image: for somewhat larger ones too, so that it stops growing soon."""
        self.scratch = allocate(0)  # the old block goes first
        self.scratch = allocate(max(nbytes, min(nbytes * 3 // 2, KEPT_BYTES)))

    def shrink(self) -> None:
        """Give back what an exceptional image needed."""
        if self.scratch.nbytes > KEPT_BYTES:
            self.scratch = allocate(0)


@cache
def pass_order() -> int | None:
    """By which rule the installed Pillow orders its two passes, found from what it does; None: by none that is known.

    Its versions differ, and the wrong order costs up to 16 levels.
    """
    rules = (weights.HORIZONTAL_FIRST, weights.TALL_VERTICAL_FIRST, weights.SHRINKING_VERTICAL_FIRST)
    right = [rule for rule in rules if all(_explains(rule, *sizes) for sizes in _PROBES)]
    return right[0] if len(right) == 1 else None


_PROBES = (((40, 6), (10, 5)), ((340, 3), (20, 2)), ((40, 60), (10, 20)), ((9, 9), (5, 7)))


def _explains(rule: int, source: tuple[int, int], target: tuple[int, int]) -> bool:
    pixels = np.random.default_rng(1).integers(0, 256, (*source, 3), dtype=np.uint8)
    wanted = np.asarray(Image.fromarray(pixels).resize(target[::-1], Image.Resampling.BICUBIC))
    order = bool(weights.vertical_first(rule, *source, *target))
    axes = weights.Axis(source[0], 0, target[0], 0), weights.Axis(source[1], 0, target[1], 0)
    scratch = np.empty(int(resample.scratch_bytes(*axes, *target, weights.BICUBIC, order)), np.uint8)
    out = np.empty((*target, 3), np.uint8)
    view = out.transpose(2, 0, 1)[..., None]
    resample.resize_store(pixels, *axes, weights.BICUBIC, order, _SAME, False, False, scratch, view)
    return np.array_equal(out, wanted)
