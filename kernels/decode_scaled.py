"""Images that shrink so much that a fraction of their pixels suffices: what `fidelity="fast"` does in another way.

Same call, same walk over the scan as decode_jpeg.py; but each component is transformed at 1/2, 1/4 or 1/8 of its size,
where that leaves 3.5 samples and more for an output, and its plane is resized at its own resolution, colours converted
after (resample_planes.py). Mean error at most 0.6 of 255, 99.9% of values within 8 of the exact ones.

A file of its own because it takes as long to compile as all the rest, and is only loaded where it was asked for.
"""

from __future__ import annotations

import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.decode_jpeg import SCALED, SIGNATURE, Index, Memory, Style, each_with, frame_of
from gpuload.kernels.idct import idct_rows
from gpuload.kernels.idct_scaled import idct_scaled_rows
from gpuload.kernels.jpeg_header import COLOR, COMPONENTS, QUANT_TABLE, H, V
from gpuload.kernels.jpeg_plan import CROP, FLIP_H, FLIP_V, window_of
from gpuload.kernels.resample_planes import planes_scratch_bytes, planes_store
from gpuload.kernels.resample_weights import Axis
from numba import njit


@njit(nogil=True)
def _frame(header, region, scales):
    """What resample_planes.py calls a frame, int64 (components, 7)."""
    whole = frame_of(header, region)
    frame = np.empty((np.int64(header[COMPONENTS]), 7), np.int64)
    for c in range(frame.shape[0]):
        frame[c, :6] = whole[c]
        frame[c, 0] >>= scales[c]
        frame[c, 1] >>= scales[c]
        frame[c, 6] = scales[c]
    return frame


@njit(nogil=True)
def _scaled_plane(header, region, c, scale, scratch, start):
    """Component c of the region: uint8 (rows, columns), within scratch from `start` on."""
    rows = (8 >> scale) * region.mcus_high * np.int64(header[V + c])
    columns = (8 >> scale) * region.mcus_wide * np.int64(header[H + c])
    return scratch[start : start + rows * columns].reshape(rows, columns)


@njit(nogil=True)
def _passes_bytes(header, plan, kind, scales):
    height, width = plan.bottom - plan.top, plan.right - plan.left
    return planes_scratch_bytes(
        _frame(header, plan.region, scales), plan.vertical, plan.horizontal, height, width, kind
    )


@njit(nogil=True)
def _transform(header, quant, region, row, coefficients, last, scratch, at, scales):
    block, start = np.int64(0), at.planes
    for c in range(header[COMPONENTS]):
        h, v, n = np.int64(header[H + c]), np.int64(header[V + c]), 8 >> scales[c]
        plane, table = _scaled_plane(header, region, c, scales[c], scratch, start), quant[header[QUANT_TABLE + c]]
        if scales[c]:
            idct_scaled_rows(coefficients, block, region.mcus_wide * h, v, table, plane, n * v * row, scales[c])
        else:
            idct_rows(coefficients, block, region.mcus_wide * h, v, last, table, plane, n * v * row)
        block += region.mcus_wide * h * v
        start += plane.size


@njit(nogil=True)
def _finish(header, plan, job, style, scratch, at, scales, out, pixels):
    luma = _scaled_plane(header, plan.region, 0, scales[0], scratch, at.planes)
    blue, red = luma, luma
    if header[COMPONENTS] == 3:
        blue = _scaled_plane(header, plan.region, 1, scales[1], scratch, at.planes + luma.size)
        red = _scaled_plane(header, plan.region, 2, scales[2], scratch, at.planes + luma.size + blue.size)
    vertical, horizontal = plan.vertical, plan.horizontal
    down = Axis(vertical.in_size, -np.int64(job[CROP + 1]), vertical.out_size, vertical.out_start)
    along = Axis(horizontal.in_size, -np.int64(job[CROP]), horizontal.out_size, horizontal.out_start)
    target = window_of(job, plan, style.table, style.fill, out)
    return planes_store(
        luma, blue, red, _frame(header, plan.region, scales), np.int64(header[COLOR]), down, along, style.kind,
        style.table, job[FLIP_H] != 0, job[FLIP_V] != 0, scratch[at.passes : at.points], target,
    )  # fmt: skip


_each = each_with(SCALED, _passes_bytes, _transform, _finish)


@kernel([SIGNATURE])
def decode_scaled_images(
    data, offsets, lengths, headers, quant, huffman, words, jobs, places, kind, rule, table, fill, fast, out, pixels,
    kept, tables, scratch, fixed, learned, base, size, seek, keys, record_limits, record_sizes, records, stop, status,
):  # fmt: skip
    """`decode_images` for those that it left as SCALED."""
    style, index = Style(kind, rule, table, fill, fast), Index(fixed, learned, base, size, seek)
    memory = Memory(kept, tables, scratch)
    return _each(
        data, offsets, lengths, headers, quant, huffman, words, jobs, places, style, index, memory, keys, record_limits,
        record_sizes, records, out, pixels, stop, status,
    )  # fmt: skip
