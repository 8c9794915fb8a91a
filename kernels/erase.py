"""Rectangles of a finished batch set to one value a channel: what RandomErasing does to a batch that is stored already.

    out[row, c, y, x] = values[c]      for top <= y < top + height, left <= x < left + width of that row's rectangle

On its own rather than in the kernel that stores a pixel: there every pixel of the batch would ask whether it is
erased, while here work is done for those that are: a tenth of them with RandomErasing's defaults, 18 us an image of
224x224 float32 on one core of a Zen 4.

out: (n, C, H, W), any strides; an element is uint8, float32, float64, or the uint16 bit pattern of a 16-bit float.
rectangles: int32 (k, 4), left, top, width and height in pixels, those of rows `rows`; without width or height nothing
is erased, and what lies outside of the image is left out. values: (C,), of out's type: whoever owns the transform
converts them, since what -1 is in uint8 is torch's to say.

On the GPU (erase.cu) the pixels of all rectangles are one list of items, and `items_of` is its table of contents. It is
CUDA C++, not a CuPy ElementwiseKernel, which can be compiled only where there is a GPU: the file compiles for any GPU,
and for the host under a sanitizer, on a machine that has none. Bound by the bytes written; a store each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpuload.kernels.compile import kernel

ERASED = np.dtype([("first", np.int64), ("row", np.int32), ("left", np.int32), ("top", np.int32), ("width", np.int32)])
"""A rectangle as erase.cu sees it. first: pixels of all rectangles before it."""


def erase_reference(out: np.ndarray, rows: np.ndarray, rectangles: np.ndarray, values: np.ndarray) -> None:
    """NumPy reference of `erase`, for rectangles within the image."""
    for row, (left, top, width, height) in zip(rows, rectangles, strict=True):
        out[row, :, top : top + height, left : left + width] = values[:, None, None]


_TYPES = ("uint8", "uint16", "float32", "float64")


@kernel(f"void({t}[:, :, :, :], int64[::1], int32[:, ::1], {t}[::1])" for t in _TYPES)
def erase(out, rows, rectangles, values):
    n, channels, height, width = out.shape
    for k in range(min(rows.size, rectangles.shape[0])):
        row = rows[k]
        if row < 0 or row >= n:
            continue
        left, top = np.int64(rectangles[k, 0]), np.int64(rectangles[k, 1])
        right, bottom = min(left + rectangles[k, 2], width), min(top + rectangles[k, 3], height)
        left, top = max(left, 0), max(top, 0)
        for c in range(min(channels, values.size)):
            value = values[c]
            for y in range(top, bottom):
                line = out[row, c, y]
                for x in range(left, right):
                    line[x] = value


def items_of(rows: np.ndarray, rectangles: np.ndarray, height: int, width: int) -> np.ndarray:
    """ERASED (k + 1,): what erases something of an image of this size; the last one's `first` counts all the pixels.

    rows: int (n,), those of out, -1 where an image goes nowhere. rectangles: int (n, 4), as `erase` takes them.
    """
    near = np.clip(rectangles[:, :2], 0, (width, height))
    size = np.clip(rectangles[:, :2] + rectangles[:, 2:].astype(np.int64), 0, (width, height)) - near
    picked = np.flatnonzero((size > 0).all(axis=1) & (rows >= 0))
    out = np.zeros(len(picked) + 1, ERASED)
    out["first"][1:] = np.cumsum(size[picked].prod(axis=1))
    out["row"][:-1] = rows[picked]
    out["left"][:-1], out["top"][:-1] = near[picked].T
    out["width"][:-1] = size[picked, 0]
    return out


def erase_on_device(
    launch: Callable[..., None],
    items: np.ndarray,
    address: int,
    values: np.ndarray,
    out: int,
    strides: tuple[int, int, int, int],
) -> None:
    """`erase` of a batch in device memory. launch: (kernel, items, int64...), on the stream that owns the batch.

    items: from `items_of`; address: where its bytes lie on the device. values: (3,), of the batch's type. out: the
    batch's address; strides: of rows, channels, lines and columns, in bytes.
    """
    pixels = int(items["first"][-1])
    if pixels:
        bits = values.view(f"u{values.itemsize}").astype(np.uint64).view(np.int64).tolist()
        launch(f"erase_{values.itemsize}", pixels, len(items) - 1, pixels, address, *bits, out, *strides)
