"""gpuload's own JPEG decoder on the CPU: Pillow's pixels, bit for bit, from less work.

The scan is decoded whole, as Pillow does, so that Pillow's verdict on damage stands. What follows is done for the crop
alone: of the coefficients those that its pixels need are kept, transformed, upsampled and converted, and resampled
straight to the output's window. Owns that order, the scratch memory and the cache of Huffman tables; the arithmetic is
in `kernels/`. A file that the kernels leave to others (progressive, CMYK, PNG), one in whose stream anything is wrong,
and a crop that reaches beyond its image go to the fallback inside the same batch, and are counted under its name.

Equal to Pillow: tests/decode/test_native.py, over all samplings, crops and filters, the odd JPEGs and the photographs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from gpuload.core.batch import DecodedRows, EncodedBatch
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Decoder, Resolve
from gpuload.decode.fallback import decode_rest
from gpuload.kernels import color, entropy, huffman, idct, resample
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels import resample_weights as weights

ROWS_PER_TASK = 8  # at ~1.2 ms an image: as for Pillow
MOST_PIXELS = 1 << 26  # larger images go to Pillow, which has a limit of its own; the kernels count in 32 bits
LONGEST_SIDE = 65535  # of what the resampling kernel makes
MOST_TABLES = 512  # built Huffman tables kept, 5 KB each: most files share a few, optimised ones have their own
KEPT_BYTES = 64 << 20  # scratch memory kept, a thread and a purpose; an image that needs more gives it back

_KINDS = {
    "bilinear": weights.BILINEAR,
    "bicubic": weights.BICUBIC,
    "box": weights.BOX,
    "hamming": weights.HAMMING,
    "lanczos": weights.LANCZOS,
}
_SAME = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=0)  # the look-up that changes nothing


@dataclass(frozen=True)
class _Parsed:
    """A header that is ours. header, quant, huffman: as kernels.jpeg_header fills them."""

    data: np.ndarray
    header: np.ndarray
    quant: np.ndarray
    huffman: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return int(self.header[jpeg.WIDTH]), int(self.header[jpeg.HEIGHT])


@dataclass(frozen=True)
class _Region:
    """Pixels [top, bottom) x [left, right) of an image."""

    left: int
    top: int
    right: int
    bottom: int


class NativeDecoder:
    """core.protocols.Decoder on gpuload's kernels. fallback: takes what they don't; resize: as PillowDecoder's."""

    name = "native"
    rows_per_task: int | None = ROWS_PER_TASK

    def __init__(
        self,
        resampling: Resampling,
        fallback: Decoder,
        resize: Callable[[np.ndarray, tuple[int, int]], np.ndarray] | None = None,
    ):
        self._resampling, self._fallback, self._resize = resampling, fallback, resize
        self._kind = _KINDS.get(resampling.interpolation) if resize is None else None
        self._rule = pass_order() if self._kind is not None else None
        self._tables = _Tables()
        self._scratch = _Scratch()

    def callers(self, threads: int) -> int:
        return threads

    def decode(self, encoded: EncodedBatch, rows: range, resolve: Resolve) -> DecodedRows:
        """See core.protocols.Decoder. Failures are the fallback's."""
        out = DecodedRows(rows, [None] * len(rows), np.zeros(len(rows), GEOMETRY))
        parsed: dict[int, _Parsed] = {}
        for place, row in enumerate(rows):
            header = None if row in encoded.failures else _parsed(encoded.encoded(row))
            if header is not None:
                parsed[place] = header
        self._place(parsed, out, resolve)
        for place, header in parsed.items():
            try:
                out.images[place] = self._pixels(header, out.geometry[place])
            except ValueError:  # sizes that a kernel refuses: Pillow then has them, or says why not
                out.images[place] = None
        decode_rest(self._fallback, encoded, out, resolve, name=self.name)
        return out

    def close(self) -> None:
        """Free the scratch memory."""
        self._scratch = _Scratch()

    def _place(self, parsed: dict[int, _Parsed], out: DecodedRows, resolve: Resolve) -> None:
        """Fill in the geometry; what cannot have it is left to the fallback, which says why."""
        if not parsed:
            return
        places = list(parsed)
        sizes = np.array([parsed[place].size for place in places], np.int64)
        try:
            out.geometry[places] = resolve([out.rows[place] for place in places], sizes[:, 0], sizes[:, 1])
        except ValueError:
            parsed.clear()

    def _pixels(self, parsed: _Parsed, geometry: np.ndarray) -> np.ndarray | None:
        """The window of the image, uint8 (h, w, 3); None where it is the fallback's."""
        x, y, w, h = geometry["crop"].tolist()
        width, height = parsed.size
        if x < 0 or y < 0 or x + w > width or y + h > height or min(w, h) < 1:
            return None
        resized_w, resized_h = geometry["resize"].tolist()
        at_x, at_y, window_w, window_h = geometry["window"].tolist()
        left, right = max(at_x, 0), min(at_x + window_w, resized_w)
        top, bottom = max(at_y, 0), min(at_y + window_h, resized_h)
        if right <= left or bottom <= top or max(resized_w, resized_h) > LONGEST_SIDE:
            return None
        whole = (right - left, bottom - top) == (window_w, window_h)
        if whole:
            out = inner = np.empty((window_h, window_w, 3), np.uint8)
        else:
            out = np.empty((window_h, window_w, 3), np.uint8)
            out[:] = self._resampling.fill
            inner = np.empty((bottom - top, right - left, 3), np.uint8)
        if (resized_w, resized_h) == (w, h):
            done = self._decode(parsed, _Region(x + left, y + top, x + right, y + bottom), inner)
        else:
            done = self._resized(parsed, (x, y, w, h), (resized_w, resized_h), (left, top), inner)
        if not done:
            return None
        if not whole:
            out[top - at_y : bottom - at_y, left - at_x : right - at_x] = inner
        return out

    def _resized(
        self,
        parsed: _Parsed,
        crop: tuple[int, int, int, int],
        size: tuple[int, int],
        start: tuple[int, int],
        out: np.ndarray,
    ) -> bool:
        """Outputs from `start` on of the crop resampled to `size`."""
        x, y, w, h = crop
        if self._kind is None or self._rule is None:
            pixels = np.empty((h, w, 3), np.uint8)
            if not self._decode(parsed, _Region(x, y, x + w, y + h), pixels):
                return False
            resized = self._resize(pixels, size) if self._resize is not None else self._by_pillow(pixels, size)
            out[:] = resized[start[1] : start[1] + out.shape[0], start[0] : start[0] + out.shape[1]]
            return True
        wide = weights.pixels_read(weights.Axis(w, 0, size[0], start[0]), self._kind, out.shape[1])
        high = weights.pixels_read(weights.Axis(h, 0, size[1], start[1]), self._kind, out.shape[0])
        source = self._scratch.take("pixels", (high.stop - high.start, wide.stop - wide.start, 3), np.uint8)
        region = _Region(x + wide.start, y + high.start, x + wide.stop, y + high.stop)
        if not self._decode(parsed, region, source):
            return False
        vertical = weights.Axis(h, high.start, size[1], start[1])
        horizontal = weights.Axis(w, wide.start, size[0], start[0])
        order = weights.vertical_first(self._rule, h, w, size[1], size[0])
        needed = resample.scratch_bytes(vertical, horizontal, *out.shape[:2], self._kind, order)
        scratch = self._scratch.take("passes", (int(needed),), np.uint8)
        target = out.transpose(2, 0, 1)[..., None]
        resample.resize_store(
            source, vertical, horizontal, self._kind, order, _SAME, False, False, scratch, target
        )  # fmt: skip
        return True

    def _by_pillow(self, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        filters = {"nearest": Image.Resampling.NEAREST, "nearest-exact": Image.Resampling.NEAREST}
        chosen = filters.get(self._resampling.interpolation) or Image.Resampling[self._resampling.interpolation.upper()]
        return np.asarray(Image.fromarray(pixels).resize(size, chosen))

    def _decode(self, parsed: _Parsed, region: _Region, out: np.ndarray) -> bool:
        """The region's pixels; False where something in the stream is wrong: Pillow then says what."""
        header = parsed.header
        count = int(header[jpeg.COMPONENTS])
        h, v = header[jpeg.H : jpeg.H + count].tolist(), header[jpeg.V : jpeg.V + count].tolist()
        h_max, v_max = max(h), max(v)
        wide, high = int(header[jpeg.MCUS_WIDE]), int(header[jpeg.MCUS_HIGH])
        # An upsampled pixel reads one sample more on each side: that covers as many pixels as an MCU has blocks there.
        first_x, first_y = max(region.left - h_max, 0) // (8 * h_max), max(region.top - v_max, 0) // (8 * v_max)
        end_x = min(-(-(region.right + h_max) // (8 * h_max)), wide)
        end_y = min(-(-(region.bottom + v_max) // (8 * v_max)), high)
        window = np.array([first_x, first_y, end_x - first_x, end_y - first_y], np.int32)
        rows = np.zeros(6, np.int32)
        tables = self._tables.of(parsed, count, rows)
        if tables is None:
            return False
        layout = np.empty(entropy.LAYOUT_SIZE, np.int32)
        blocks = entropy.lay_out(header, rows, window, layout)
        coefficients = self._scratch.take("coefficients", ((blocks + 1) * 64,), np.int16)
        last = self._scratch.take("last", (blocks + 1,), np.uint8)
        point = np.array([header[jpeg.SCAN_START], 0, 0, 0, 0], np.int32)
        if entropy.decode_range(
            parsed.data, layout, tables, point, 0, wide * high, 0, _NO_POINTS, coefficients, last
        ):  # fmt: skip
            return False
        planes, frame, at = [], np.empty((count, 6), np.int64), 0
        width, height = parsed.size
        for c in range(count):
            shape = (int(window[3]) * v[c], int(window[2]) * h[c])
            end = at + shape[0] * shape[1]
            plane = self._scratch.take(f"plane {c}", (8 * shape[0], 8 * shape[1]), np.uint8)
            quant = parsed.quant[header[jpeg.QUANT_TABLE + c]]
            block = coefficients[64 * at : 64 * end].reshape(*shape, 64)
            idct.idct_region(block, last[at:end].reshape(shape), quant, plane, 0, shape[0], 0, shape[1])
            planes.append(plane)
            frame[c] = (
                8 * first_y * v[c],
                8 * first_x * h[c],
                -(-width * h[c] // h_max),
                -(-height * v[c] // v_max),
                h_max // h[c],
                v_max // v[c],
            )
            at = end
        row = self._scratch.take("rows", (3, region.right - region.left), np.uint8)
        box = (region.top, region.bottom, region.left, region.right, row, out, 0, 0)
        if count == 1:
            return bool(color.gray_region_to_rgb(planes[0], frame[0], *box))
        is_ycc = header[jpeg.COLOR] == jpeg.YCBCR
        return bool(color.region_to_rgb(planes[0], planes[1], planes[2], frame, is_ycc, *box))


_NO_POINTS = np.zeros((1, entropy.POINT_SIZE), np.int32)


def _parsed(data: np.ndarray) -> _Parsed | None:
    header = np.empty(jpeg.HEADER_SIZE, np.int32)
    quant = np.zeros((4, 64), np.uint16)
    tables = np.empty((8, jpeg.HUFFMAN_SIZE), np.uint8)
    if jpeg.parse_header(data, header, quant, tables) != jpeg.OURS:
        return None
    if int(header[jpeg.WIDTH]) * int(header[jpeg.HEIGHT]) > MOST_PIXELS:
        return None
    return _Parsed(data, header, quant, tables)


class _Tables:
    """Built Huffman tables by what the file says of them. Used from several threads: each step is one of dict's own."""

    def __init__(self) -> None:
        self._built: dict[bytes, np.ndarray | None] = {}

    def of(self, parsed: _Parsed, count: int, rows: np.ndarray) -> np.ndarray | None:
        """The tables of an image end to end, and in rows (6,) where each component's are; None if one is no code."""
        found: list[np.ndarray] = []
        place: dict[int, int] = {}
        for c in range(count):
            for ac, field in ((0, jpeg.DC_TABLE), (1, jpeg.AC_TABLE)):
                number = 4 * ac + int(parsed.header[field + c])
                if number not in place:
                    table = self._table(parsed.huffman[number], bool(ac))
                    if table is None:
                        return None
                    place[number] = len(found)
                    found.append(table)
                rows[3 * ac + c] = place[number]
        return np.concatenate(found)

    def _table(self, definition: np.ndarray, ac: bool) -> np.ndarray | None:
        key = definition.tobytes() + bytes([ac])
        if key not in self._built:
            if len(self._built) >= MOST_TABLES:
                self._built.clear()
            table = np.empty(huffman.TABLE_SIZE, np.int32)
            built = huffman.build_table(definition, ac, table) == huffman.BUILT
            self._built[key] = table if built else None
            return table if built else None
        return self._built.get(key)


class _Scratch(threading.local):
    """Arrays to work in, a set a thread; grown to what is needed, up to KEPT_BYTES each."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def take(self, purpose: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """An array of any contents; the next one for the same purpose may be the same memory."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        block = self._kept.get(purpose)
        if block is None or block.nbytes < nbytes:
            block = np.empty(nbytes, np.uint8)
            if nbytes <= KEPT_BYTES:
                self._kept[purpose] = block
        return block[:nbytes].view(dtype).reshape(shape)


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
    order = weights.vertical_first(rule, *source, *target)
    axes = weights.Axis(source[0], 0, target[0], 0), weights.Axis(source[1], 0, target[1], 0)
    scratch = np.empty(int(resample.scratch_bytes(*axes, *target, weights.BICUBIC, order)), np.uint8)
    out = np.empty((*target, 3), np.uint8)
    view = out.transpose(2, 0, 1)[..., None]
    resample.resize_store(pixels, *axes, weights.BICUBIC, order, _SAME, False, False, scratch, view)
    return np.array_equal(out, wanted)
