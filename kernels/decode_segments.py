"""Entropy decoding of a whole batch, a thread a segment: the scalar decoder of the CPU, from seek points, on the GPU.

What the CPU decodes one segment after the other has no need to wait: a seek point is all that a segment needs of the
one before it. So a batch is a list of segments (device_batch.py), some hundred for each image, and every one is an
item for a thread that shares nothing with its neighbours but tables. This is Numba and not CUDA C++ because the
decoder is `entropy.decode_mcus`, `entropy.lay_out` and `huffman.build_table` themselves, compiled once more: bits that
the GPU reads differently from the CPU cannot come from a second copy of the rules.

Three launches, in this order, each writing all that the next ones read; all arguments int64, addresses and counts:

    build_tables(items, tables, definitions, definitions_size, built)
    lay_out_images(items, images, layouts, status)
    decode_segments(items, segments, images, layouts, data, data_size, built, n_tables, coefficients, last,
                    total_blocks, status)

What the file's bytes say is not trusted: a definition that is no code leaves a table that knows no code, and bits that
are wrong end their segment with an anomaly and whatever blocks came before it. What the host wrote is trusted: images,
segments and tables name what exists. Of an image's anomalies any one may remain in `status`. MCUs outside its window
all go to the image's last block, which threads may write at once: nothing is read from there.

Owns the items, the CPU's loops over them and the GPU's entries; leaves launching to cuda_launch.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from gpuload.kernels.array_at import array_at, bytes_at, int16_at, int32_at, uint8_at
from gpuload.kernels.compile import on_demand
from gpuload.kernels.device_batch import IMAGE, SEGMENT, TABLE
from gpuload.kernels.entropy import BIT, BYTE, LAYOUT_SIZE, POINT_SIZE, PREDICTOR, decode_mcus, lay_out
from gpuload.kernels.huffman import BUILT, LIMITS, LONG, TABLE_SIZE, build_table

_scalar = numba.njit(nogil=True, error_model="numpy", _nrt=False)
# Compiled for their CPU signatures only; CUDA needs functions that may still be compiled.
_lay_out = _scalar(lay_out.py_func)
_build_table = _scalar(build_table.py_func)

_images_at = array_at(IMAGE, readonly=True)
_segments_at = array_at(SEGMENT, readonly=True)
_tables_at = array_at(TABLE, readonly=True)

_IMAGE_SIZE = IMAGE.itemsize
_ROWS = IMAGE.fields["dc"][1]  # type: ignore[index]

cuda: Any
"""numba.cuda, once `cuda_entries` was asked for: the entries' global, as Numba's simulator wants it."""


@_scalar
def _built(definitions, begin, is_ac, table):
    """Whether the definition that begins there lies within `definitions` and is a code; table is filled if so."""
    size = np.int64(definitions.size)
    if begin + 16 > size:
        return False
    symbols = np.int64(0)
    for length in range(16):
        symbols += np.int64(definitions[begin + length])
    if begin + 16 + symbols > size:
        return False
    return _build_table(definitions[begin:], is_ac, table) == BUILT


@_scalar
def _build_one(item, items, tables, definitions, definitions_size, built):
    table = int32_at(built + 4 * TABLE_SIZE * item, np.int64(TABLE_SIZE))
    asked = _tables_at(tables, items)[item]
    if not _built(bytes_at(definitions, definitions_size), np.int64(asked.begin), asked.is_ac != 0, table):
        for i in range(TABLE_SIZE):  # every window is looked for among the long codes, of which there is none
            table[i] = LONG if i < LIMITS else 0


@_scalar
def _lay_out_one(item, items, images, layouts, status):
    image = _images_at(images, items)[item]
    rows = int32_at(images + _IMAGE_SIZE * item + _ROWS, np.int64(6))  # dc, then ac
    _lay_out(image.header, rows, image.window, int32_at(layouts + 4 * LAYOUT_SIZE * item, np.int64(LAYOUT_SIZE)))
    int32_at(status, items)[item] = 0


@_scalar
def _decode_one(item, items, segments, images, layouts, data, data_size, built, n_tables, coefficients, last,
                total_blocks, status, points):  # fmt: skip
    """points: int32 (1, POINT_SIZE), of this thread alone."""
    segment = _segments_at(segments, items)[item]
    number, mcu = np.int64(segment.image), np.int64(segment.mcu)
    known = _images_at(images, number + 2)
    first, end = known[number].first_block, known[number + 1].first_block
    point = points[0]
    point[BYTE], point[BIT] = segment.byte, segment.bit
    for c in range(3):
        point[PREDICTOR + c] = segment.predictors[c]
    anomaly = decode_mcus(
        bytes_at(data, data_size),
        int32_at(layouts + 4 * LAYOUT_SIZE * number, np.int64(LAYOUT_SIZE)),
        int32_at(built, n_tables * TABLE_SIZE),
        point,
        mcu,
        mcu + np.int64(segment.count),
        np.int64(0),  # leaves no points
        points,
        int16_at(coefficients, total_blocks * 64)[first * 64 : end * 64],
        uint8_at(last, total_blocks)[first:end],
    )
    if anomaly:
        int32_at(status, number + 1)[number] = anomaly


@on_demand(["void(int64, int64, int64, int64, int64)"])
def build_tables(items, tables, definitions, definitions_size, built):
    """`built` of all tables, on the CPU."""
    for item in range(items):
        _build_one(item, items, tables, definitions, definitions_size, built)


@on_demand(["void(int64, int64, int64, int64)"])
def lay_out_images(items, images, layouts, status):
    """`layouts` and a clean `status` of all images, on the CPU."""
    for item in range(items):
        _lay_out_one(item, items, images, layouts, status)


@on_demand([f"void({', '.join(12 * ['int64'])})"])
def decode_segments(items, segments, images, layouts, data, data_size, built, n_tables, coefficients, last,
                    total_blocks, status):  # fmt: skip
    """`coefficients`, `last` and `status` from all segments, on the CPU."""
    points = np.empty((1, POINT_SIZE), np.int32)
    for item in range(items):
        _decode_one(item, items, segments, images, layouts, data, data_size, built, n_tables, coefficients, last,
                    total_blocks, status, points)  # fmt: skip


def _build_tables(items, tables, definitions, definitions_size, built):
    item = np.int64(cuda.grid(1))
    if item < items:
        _build_one(item, items, tables, definitions, definitions_size, built)


def _lay_out_images(items, images, layouts, status):
    item = np.int64(cuda.grid(1))
    if item < items:
        _lay_out_one(item, items, images, layouts, status)


def _decode_segments(items, segments, images, layouts, data, data_size, built, n_tables, coefficients, last,
                     total_blocks, status):  # fmt: skip
    item = np.int64(cuda.grid(1))
    if item < items:
        points = cuda.local.array((1, POINT_SIZE), np.int32)
        _decode_one(item, items, segments, images, layouts, data, data_size, built, n_tables, coefficients, last,
                    total_blocks, status, points)  # fmt: skip


class Entry(NamedTuple):
    """A function for `numba.cuda.jit`, and the number of its int64 arguments."""

    function: Callable[..., None]
    arguments: int


def cuda_entries() -> dict[str, Entry]:
    """The GPU's entries by name, to be compiled by the caller; ImportError where numba.cuda is missing."""
    global cuda
    from numba import cuda

    return {
        "build_tables": Entry(_build_tables, 5),
        "lay_out_images": Entry(_lay_out_images, 4),
        "decode_segments": Entry(_decode_segments, 12),
    }
