"""From planes to RGB: libjpeg's fixed-point YCbCr conversion, and the walk over an image's rows that feeds it.

Owns both, and the plain cases: grey, and components that are RGB already. Leaves CMYK to Pillow.

With b = Cb - 128, r = Cr - 128, coefficients of 16 fractional bits, each sum rounded once and clamped to 0..255:

    R = Y + (91881 r + 32768 >> 16)                      1.40200
    G = Y + (-22554 b - 46802 r + 32768 >> 16)           0.34414, 0.71414
    B = Y + (116130 b + 32768 >> 16)                     1.77200

Vectors hold 16 bits a lane, so what exceeds them is split: 91881 = 65536 + 26345, 46802 = 65536 - 18734 and
116130 = 2 * 65536 - 14942, the whole multiples added after the shift; the result is the same number.

Planes: uint8, C-contiguous, each at its component's own resolution (upsample.py says what they must hold). RGB: uint8
(H, W, 3), C-contiguous. frame: int64 (3, 6), each component's shape (upsample.py). rows: uint8 (3, at least x1 - x0),
to work in: what is upsampled stays in the first cache, 1.5 KB for 500 pixels.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.idct import clamped
from gpuload.kernels.simd import Memory, Vector, inner, vector_code
from gpuload.kernels.upsample import holds, upsample_row

_LANES = 16


def ycc_to_rgb_reference(luma: np.ndarray, blue: np.ndarray, red: np.ndarray) -> np.ndarray:
    """NumPy reference: three arrays of one shape -> (..., 3)."""
    y, b, r = luma.astype(np.int64), blue.astype(np.int64) - 128, red.astype(np.int64) - 128
    channels = [
        y + ((91881 * r + 32768) >> 16),
        y + ((-22554 * b - 46802 * r + 32768) >> 16),
        y + ((116130 * b + 32768) >> 16),
    ]
    return np.stack([np.clip(channel, 0, 255) for channel in channels], axis=-1).astype(np.uint8)


def _store_pixels(out: Memory, at: Any, red: Vector, green: Vector, blue: Vector) -> None:
    """16 pixels, interleaved, as three vectors of 16 bytes: what byte shuffles of every processor can do."""
    pairs = red.zip(green)
    third = blue.pick(blue, [*range(_LANES), *range(_LANES)])
    lanes = [lane for i in range(_LANES) for lane in (2 * i, 2 * i + 1, 2 * _LANES + i)]
    for part in range(3):
        start = part * _LANES
        out.store(at, pairs.pick(third, lanes[start : start + _LANES]), start)


@vector_code
def _convert(luma: Memory, blue: Memory, red: Memory, at: Any, out: Memory, pixel: Any) -> None:
    """16 pixels from `at` on."""
    y, b, r = (plane.load(at, _LANES, 8).widen(16, signed=False) for plane in (luma, blue, red))
    b, r = b - 128, r - 128

    def fraction(chroma: Vector, factor: int) -> Vector:  # (chroma * factor + 32768) >> 16, in 16 bits
        product = (chroma + chroma).widen(32, signed=True) * factor
        return ((product >> 16).narrow(16) + 1) >> 1

    wide = b.widen(32, signed=True) * -22554 + r.widen(32, signed=True) * 18734 + 32768
    channels = (y + r + fraction(r, 26345), y - r + (wide >> 16).narrow(16), y + b + b + fraction(b, -14942))
    _store_pixels(out, pixel, *(channel.clamp(0, 255).narrow(8) for channel in channels))


@vector_code
def _repeat(luma: Memory, at: Any, out: Memory, pixel: Any) -> None:
    """16 grey pixels."""
    y = luma.load(at, _LANES, 8)
    for part in range(3):
        out.store(pixel, y.pick(y, [(part * _LANES + k) // 3 for k in range(_LANES)]), part * _LANES)


@vector_code
def _interleave(red: Memory, green: Memory, blue: Memory, at: Any, out: Memory, pixel: Any) -> None:
    """16 pixels whose components are RGB."""
    _store_pixels(out, pixel, *(plane.load(at, _LANES, 8) for plane in (red, green, blue)))


@inner
def ycc_pixel(luma, blue, red, out):
    """One pixel into out[:3], scalar."""
    y, b, r = np.int64(luma), np.int64(blue) - 128, np.int64(red) - 128
    out[0] = clamped(y + ((91881 * r + 32768) >> 16), 0, 255)
    out[1] = clamped(y + ((-22554 * b - 46802 * r + 32768) >> 16), 0, 255)
    out[2] = clamped(y + ((116130 * b + 32768) >> 16), 0, 255)


@inner
def ycc_to_rgb_row(luma, blue, red, out):
    """A row of the image: as many pixels as the shortest of luma, blue, red and out (W, 3) has."""
    count = min(luma.size, blue.size, red.size, out.shape[0]) if out.shape[1] == 3 else 0
    if count < _LANES:
        for i in range(count):
            ycc_pixel(luma[i], blue[i], red[i], out[i])
        return
    i = 0
    while i < count:
        i = min(i, count - _LANES)  # the last one overlaps its predecessor
        _convert(luma, blue, red, i, out, 3 * i)
        i += _LANES


@inner
def rgb_to_rgb_row(red, green, blue, out):
    """The same for components that are RGB."""
    count = min(red.size, green.size, blue.size, out.shape[0]) if out.shape[1] == 3 else 0
    if count < _LANES:
        for i in range(count):
            out[i, 0], out[i, 1], out[i, 2] = red[i], green[i], blue[i]
        return
    i = 0
    while i < count:
        i = min(i, count - _LANES)
        _interleave(red, green, blue, i, out, 3 * i)
        i += _LANES


@inner
def gray_to_rgb_row(luma, out):
    """A row of a grey image: as many pixels as the shorter of luma and out (W, 3) has."""
    count = min(luma.size, out.shape[0]) if out.shape[1] == 3 else 0
    if count < _LANES:
        for i in range(count):
            for channel in range(3):
                out[i, channel] = luma[i]
        return
    i = 0
    while i < count:
        i = min(i, count - _LANES)
        _repeat(luma, i, out, 3 * i)
        i += _LANES


@numba.njit(inline="always")  # functions without reference counts must not return arrays
def _component_row(plane, shape, y, x0, x1, row):
    """Row y of a component at the image's resolution: a view of its plane where nothing is to be done, else `row`."""
    if shape[4] == 1 and shape[5] == 1:
        return plane[y - shape[0], x0 - shape[1] : x1 - shape[1]]
    upsample_row(plane, shape, y, x0, x1, row)
    return row


@inner
def _fits(y0, y1, x0, x1, rows, count, out, out_y, out_x):
    """Whether the region is one, and there are rows and a target for it."""
    region = 0 <= y0 < y1 and 0 <= x0 < x1 and rows.shape[0] >= count and rows.shape[1] >= x1 - x0
    target = 0 <= out_y <= out.shape[0] - (y1 - y0) and 0 <= out_x <= out.shape[1] - (x1 - x0)
    return region and target and out.shape[2] == 3


@inner
def _convert_rows(plane0, plane1, plane2, frame, is_ycc, y0, y1, x0, x1, rows, out, out_y, out_x):
    shape0, shape1, shape2 = frame[0], frame[1], frame[2]
    scratch0, scratch1, scratch2 = rows[0, : x1 - x0], rows[1, : x1 - x0], rows[2, : x1 - x0]
    for y in range(y0, y1):
        row0 = _component_row(plane0, shape0, y, x0, x1, scratch0)
        row1 = _component_row(plane1, shape1, y, x0, x1, scratch1)
        row2 = _component_row(plane2, shape2, y, x0, x1, scratch2)
        target = out[out_y + y - y0, out_x : out_x + x1 - x0]
        if is_ycc:
            ycc_to_rgb_row(row0, row1, row2, target)
        else:
            rgb_to_rgb_row(row0, row1, row2, target)


@inner
def _repeat_rows(luma, shape, y0, y1, x0, x1, rows, out, out_y, out_x):
    scratch = rows[0, : x1 - x0]
    for y in range(y0, y1):
        row = _component_row(luma, shape, y, x0, x1, scratch)
        gray_to_rgb_row(row, out[out_y + y - y0, out_x : out_x + x1 - x0])


_PLANE, _TARGET = "uint8[:, ::1]", "int64, int64, int64, int64, uint8[:, ::1], uint8[:, :, ::1], int64, int64"


@kernel([f"boolean({_PLANE}, {_PLANE}, {_PLANE}, int64[:, ::1], b1, {_TARGET})"])
def region_to_rgb(plane0, plane1, plane2, frame, is_ycc, y0, y1, x0, x1, rows, out, out_y, out_x):
    """Pixels [y0, y1) x [x0, x1) of an image of three components to out[out_y :, out_x :].

    False, and nothing is written, where the arrays do not hold what that takes.
    """
    if frame.shape[0] != 3 or frame.shape[1] != 6 or not _fits(y0, y1, x0, x1, rows, 3, out, out_y, out_x):
        return False
    if not (holds(plane0, frame[0], y0, y1, x0, x1) and holds(plane1, frame[1], y0, y1, x0, x1)):
        return False
    if not holds(plane2, frame[2], y0, y1, x0, x1):
        return False
    _convert_rows(plane0, plane1, plane2, frame, is_ycc, y0, y1, x0, x1, rows, out, out_y, out_x)
    return True


@kernel([f"boolean({_PLANE}, int64[::1], {_TARGET})"])
def gray_region_to_rgb(luma, shape, y0, y1, x0, x1, rows, out, out_y, out_x):
    """The same of an image of one component: `shape` is its row of a frame."""
    if shape.size != 6 or not _fits(y0, y1, x0, x1, rows, 1, out, out_y, out_x):
        return False
    if not holds(luma, shape, y0, y1, x0, x1):
        return False
    _repeat_rows(luma, shape, y0, y1, x0, x1, rows, out, out_y, out_x)
    return True
