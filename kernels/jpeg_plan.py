"""What is asked of one image, before a bit of it is decoded: which pixels, which MCUs, how much memory.

A job is the image's row of GEOMETRY as numbers. Resampling reads some pixels around the crop's part that is kept,
upsampling some samples around those, and both come in whole MCUs. Owns that arithmetic, and the division of a thread's
scratch memory; carries nothing out.

    job    int32 (JOB_SIZE,)    crop x, y, w, h; size after resampling w, h; window x, y, w, h; flips: 0 or 1
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gpuload.kernels.entropy import POINT_SIZE
from gpuload.kernels.jpeg_header import BLOCKS_IN_MCU, H_MAX, HEIGHT, MCUS_HIGH, MCUS_WIDE, V_MAX, WIDTH, H, V
from gpuload.kernels.resample_weights import Axis, source_span, vertical_first
from gpuload.kernels.seek_points import FINEST_SPACING
from numba import njit

JOB_SIZE = 12
CROP, SIZE, WINDOW, FLIP_H, FLIP_V = 0, 4, 6, 10, 11

LONGEST_SIDE = 65535  # of what the resampling kernels make


class Region(NamedTuple):
    """Pixels [top, bottom) x [left, right) of the image, and the MCUs that they take."""

    left: int
    top: int
    right: int
    bottom: int
    mcu_left: int
    mcu_top: int
    mcus_wide: int
    mcus_high: int


@njit(nogil=True)
def region_of(header, left, top, right, bottom):
    h, v = np.int64(header[H_MAX]), np.int64(header[V_MAX])
    # An upsampled pixel reads one sample more on each side: that covers as many pixels as an MCU has blocks there.
    mcu_left, mcu_top = max(left - h, 0) // (8 * h), max(top - v, 0) // (8 * v)
    mcu_right = min((right + h + 8 * h - 1) // (8 * h), np.int64(header[MCUS_WIDE]))
    mcu_bottom = min((bottom + v + 8 * v - 1) // (8 * v), np.int64(header[MCUS_HIGH]))
    return Region(left, top, right, bottom, mcu_left, mcu_top, mcu_right - mcu_left, mcu_bottom - mcu_top)


class Plan(NamedTuple):
    """What a job comes to: outputs [top, bottom) x [left, right) of the resampled crop, from pixels of the region."""

    region: Region
    vertical: Axis
    horizontal: Axis
    left: int
    top: int
    right: int
    bottom: int
    resampled: bool
    vertical_first: bool


@njit(nogil=True)
def planned(header, job, kind, rule):
    """The plan of a job that fits its image: see `fits`."""
    x, y, w, h = np.int64(job[0]), np.int64(job[1]), np.int64(job[2]), np.int64(job[3])
    wide, high = np.int64(job[SIZE]), np.int64(job[SIZE + 1])
    left, top = max(np.int64(job[WINDOW]), 0), max(np.int64(job[WINDOW + 1]), 0)
    right = min(np.int64(job[WINDOW]) + np.int64(job[WINDOW + 2]), wide)
    bottom = min(np.int64(job[WINDOW + 1]) + np.int64(job[WINDOW + 3]), high)
    if wide == w and high == h:
        region = region_of(header, x + left, y + top, x + right, y + bottom)
        axis = Axis(np.int64(1), np.int64(0), np.int64(1), np.int64(0))
        return Plan(region, axis, axis, left, top, right, bottom, False, False)
    zero = np.int64(0)
    rows = source_span(Axis(h, zero, high, top), kind, bottom - top)
    columns = source_span(Axis(w, zero, wide, left), kind, right - left)
    region = region_of(header, x + columns.start, y + rows.start, x + columns.stop, y + rows.stop)
    vertical, horizontal = Axis(h, rows.start, high, top), Axis(w, columns.start, wide, left)
    first = vertical_first(rule, h, w, high, wide)
    return Plan(region, vertical, horizontal, left, top, right, bottom, True, first)


@njit(nogil=True)
def fits(header, job):
    """Whether the crop lies in the image and something of the window in what becomes of it."""
    for i in range(FLIP_H):
        if not -(1 << 28) < job[i] < 1 << 28:
            return False
    if job[0] < 0 or job[1] < 0 or job[2] < 1 or job[3] < 1:
        return False
    if job[0] + job[2] > header[WIDTH] or job[1] + job[3] > header[HEIGHT]:
        return False
    for axis in range(2):
        size, start, count = job[SIZE + axis], job[WINDOW + axis], job[WINDOW + 2 + axis]
        if not (0 < size <= LONGEST_SIDE and count > 0 and start < size and start + count > 0):
            return False
    return True


@njit(nogil=True)
def window_of(job, plan, table, fill, out):
    """The part of out (3, H, W, size) that the plan's outputs go to; what lies beside it is filled."""
    high, wide = np.int64(job[WINDOW + 3]), np.int64(job[WINDOW + 2])
    height, width = plan.bottom - plan.top, plan.right - plan.left
    if height < high or width < wide:
        for c in range(3):
            for y in range(high):
                for x in range(wide):
                    for k in range(out.shape[3]):
                        out[c, y, x, k] = table[c, fill[c], k]
    y, x = plan.top - job[WINDOW + 1], plan.left - job[WINDOW]
    if job[FLIP_V]:
        y = high - y - height
    if job[FLIP_H]:
        x = wide - x - width
    return out[:, y : y + height, x : x + width]


@njit(nogil=True)
def _lines(size):
    return (size + 63) // 64 * 64


class Scratch(NamedTuple):
    """Where each piece of the scratch memory begins, in bytes; the coefficients of a row of MCUs are the first."""

    last: int
    planes: int
    pixels: int
    rows: int
    passes: int
    points: int
    total: int


@njit(nogil=True)
def divided(header, region, passes_bytes, seek):
    blocks = region.mcus_wide * np.int64(header[BLOCKS_IN_MCU])
    wide = region.right - region.left
    last = _lines(128 * (blocks + 1))
    planes = last + _lines(blocks + 1)
    pixels = planes + 64 * blocks * region.mcus_high
    rows = pixels + _lines(3 * wide * (region.bottom - region.top))
    passes = rows + _lines(3 * wide)
    points = passes + _lines(passes_bytes + 64)
    total = points + 4 * POINT_SIZE * (point_rows(header) if seek else 0)
    return Scratch(last, planes, pixels, rows, passes, points, total)


@njit(nogil=True)
def point_rows(header):
    """Rows for a seek point every FINEST_SPACING MCUs."""
    return (np.int64(header[MCUS_WIDE]) * np.int64(header[MCUS_HIGH]) + FINEST_SPACING - 1) // FINEST_SPACING


@njit(nogil=True)
def plane_of(header, region, c, scratch, start):
    """Component c of the region: uint8 (rows, columns), within scratch from `start` on."""
    rows = 8 * region.mcus_high * np.int64(header[V + c])
    columns = 8 * region.mcus_wide * np.int64(header[H + c])
    return scratch[start : start + rows * columns].reshape(rows, columns)
