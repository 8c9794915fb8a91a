"""One JPEG to pixels, without a loader: what `gpuload.decode_jpeg` is."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpuload.config import FIDELITIES
from gpuload.core.batch import join_encoded
from gpuload.core.errors import ConfigError, SampleError, sample_error
from gpuload.core.geometry import Resampling, identity
from gpuload.decode.native import NativeDecoder
from gpuload.decode.pillow import PillowDecoder

Box = tuple[int, int, int, int]


def decode_jpeg(
    data: Any,
    crop: Box | None = None,
    size: tuple[int, int] | None = None,
    *,
    interpolation: str = "bilinear",
    fidelity: str = "exact",
) -> np.ndarray:
    """Decode a JPEG to RGB, uint8 (height, width, 3), the same bytes as Pillow's convert("RGB"), crop and resize.

    data: bytes, bytearray, memoryview or a uint8 array; files that are no baseline JPEG, and other formats that Pillow
    reads, are decoded by Pillow. crop: (x, y, width, height) in pixels, within the image; only what it needs is
    transformed. size: (width, height) to which the crop is resampled. interpolation: "nearest", "bilinear", "bicubic",
    "box", "hamming" or "lanczos". fidelity: "exact", or "fast": crops that are made at least 3.5 times smaller are
    decoded at a fraction of their size, and are within 0.6 of 255 of Pillow on average. EXIF orientation is left alone.

    Raises SampleError, which is also Pillow's own error, where Pillow cannot decode the data, and ConfigError for a
    crop, size, filter or fidelity that cannot be had.

        pixels = gpuload.decode_jpeg(open("cat.jpg", "rb").read(), crop=(40, 10, 200, 200), size=(224, 224))
    """
    if size is not None and min(size) < 1:
        raise ConfigError(f"size must be (width, height) of 1 and more, got {size!r}")
    encoded = join_encoded([data])

    def resolve(rows: Any, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        geometry = identity(widths, heights)
        if crop is not None:
            x, y, w, h = crop
            if x < 0 or y < 0 or w < 1 or h < 1 or x + w > widths[0] or y + h > heights[0]:
                raise ValueError(f"crop={crop!r} does not lie within the {int(widths[0])} x {int(heights[0])} image")
            geometry["crop"] = crop
            geometry["resize"] = geometry["window"][:, 2:] = (w, h)
        if size is not None:
            geometry["resize"] = geometry["window"][:, 2:] = size
        return geometry

    decoded = _decoder(interpolation, fidelity).decode(encoded, range(1), resolve)
    image = decoded.images[0]
    if image is None:
        error = decoded.failures[0]
        if isinstance(error, ValueError) and str(error).startswith("crop="):
            raise ConfigError(str(error)) from None
        named: SampleError = sample_error("data", 0, "", error)
        raise named from error
    return image


@cache
def _decoder(interpolation: str, fidelity: str) -> NativeDecoder:
    if fidelity not in FIDELITIES:
        raise ConfigError(f"fidelity must be one of {', '.join(map(repr, FIDELITIES))}, got {fidelity!r}")
    if interpolation not in ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"):
        raise ConfigError(f"interpolation must be one of Pillow's filters, got {interpolation!r}")
    resampling = Resampling(interpolation)
    return NativeDecoder(resampling, PillowDecoder(resampling), fidelity=fidelity)
