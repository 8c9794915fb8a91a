"""The reference decoder: Pillow, in threads; its pixels are what torch's DataLoader trains on today.

Owns decoding and geometry, image by image, in Pillow's own operations (or torchvision's on tensors, handed in,
where the transform works on tensors), so that the result is bit for bit torchvision's. Pillow releases the GIL
while it decodes and resizes. Takes every image that Pillow reads, whatever it is called.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from gpuload.core.batch import NEVER, DecodedRows, EncodedBatch, Target
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Resolve

ROWS_PER_TASK = 8  # at ~1.5 ms an image: tasks long enough to hide their ~50 us of Python, short enough to share out

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}


class PillowDecoder:
    """core.protocols.Decoder on Pillow. Holds nothing between calls.

    resize: replaces Pillow's resampling, uint8 (H, W, 3) and (w, h) -> uint8 (h, w, 3); needed where
    resampling.domain is "tensor".
    """

    name = "pillow"

    def __init__(
        self, resampling: Resampling, resize: Callable[[np.ndarray, tuple[int, int]], np.ndarray] | None = None
    ):
        self._resampling, self._resize = resampling, resize

    def callers(self, threads: int) -> int:
        return threads

    def rows_per_task(self, encoded: EncodedBatch) -> int:
        return ROWS_PER_TASK

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
        """See core.protocols.Decoder. Failures are Pillow's own exceptions."""
        out = DecodedRows(rows, [None] * len(rows), np.zeros(len(rows), GEOMETRY))
        opened: dict[int, Image.Image] = {}
        for place, row in enumerate(rows):
            if row in encoded.failures:
                continue
            try:
                opened[place] = Image.open(io.BytesIO(encoded.encoded(row).data))
            except Exception as error:  # a damaged file may raise anything; it is named, not lost
                out.failures[row] = error
        self._place(opened, out, resolve)
        for place, image in opened.items():
            try:
                out.images[place] = self._pixels(image, out.geometry[place])
            except Exception as error:  # as above
                out.failures[rows[place]] = error
        out.decoders[self.name] = sum(image is not None for image in out.images)
        return out

    def close(self) -> None:
        """Nothing to free."""

    def _place(self, opened: dict[int, Image.Image], out: DecodedRows, resolve: Resolve) -> None:
        """Fill in the geometry of the opened images; one that cannot have it becomes a failure."""
        try:
            if opened:
                places = list(opened)
                out.geometry[places] = _resolved(places, opened, out.rows, resolve)
        except ValueError:  # of at least one: find out which
            for place in list(opened):
                try:
                    out.geometry[place] = _resolved([place], opened, out.rows, resolve)[0]
                except ValueError as error:
                    out.failures[out.rows[place]] = error
                    del opened[place]

    def _pixels(self, image: Image.Image, geometry: np.ndarray) -> np.ndarray:
        if image.mode == "RGB":  # convert() would copy it, 0.1 ms of a photograph's 2.5
            image.load()
        else:
            image = image.convert("RGB")
        if self._resize is None:
            return np.asarray(_transformed(image, geometry, self._resampling))
        pixels = cut(np.array(image), geometry["crop"], self._resampling.fill)
        size = (int(geometry["resize"][0]), int(geometry["resize"][1]))
        if size != (pixels.shape[1], pixels.shape[0]):
            pixels = self._resize(pixels, size)
        return cut(pixels, geometry["window"], self._resampling.fill)


def _resolved(places: list[int], opened: dict[int, Image.Image], rows: range, resolve: Resolve) -> np.ndarray:
    sizes = np.array([opened[place].size for place in places], np.int64).reshape(-1, 2)
    return resolve([rows[place] for place in places], sizes[:, 0], sizes[:, 1])


def _transformed(image: Image.Image, geometry: np.ndarray, resampling: Resampling) -> Image.Image:
    image = _cropped(image, geometry["crop"].tolist(), resampling.fill)
    size = tuple(geometry["resize"].tolist())
    if size != image.size:
        image = image.resize(size, _FILTERS[resampling.interpolation])
    return _cropped(image, geometry["window"].tolist(), resampling.fill)


def _cropped(image: Image.Image, box: Sequence[int], fill: tuple[int, int, int]) -> Image.Image:
    x, y, w, h = box
    if (x, y, w, h) == (0, 0, *image.size):
        return image
    inside = x >= 0 and y >= 0 and x + w <= image.width and y + h <= image.height
    if inside or fill == (0, 0, 0):  # Pillow's crop is black outside the image
        return image.crop((x, y, x + w, y + h))
    canvas = Image.new("RGB", (w, h), fill)
    canvas.paste(image, (-x, -y))
    return canvas


def cut(pixels: np.ndarray, box: np.ndarray, fill: tuple[int, int, int]) -> np.ndarray:
    """The box (x, y, w, h) of uint8 (H, W, 3): a view where it lies inside, else a copy on `fill`."""
    x, y, w, h = box.tolist()
    height, width = pixels.shape[:2]
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
    if (right - left, bottom - top) == (w, h):
        return pixels[top:bottom, left:right]
    canvas = np.empty((h, w, 3), np.uint8)
    canvas[:] = fill
    if right > left and bottom > top:
        canvas[top - y : bottom - y, left - x : right - x] = pixels[top:bottom, left:right]
    return canvas
