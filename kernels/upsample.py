"""Subsampled components brought to the image's resolution, bit for bit as libjpeg-turbo 3 does it.

Where both directions are doubled, or one of them is, libjpeg interpolates ("fancy" upsampling): samples lie at the
centres of the pixels that they stand for, so each pixel takes 3/4 of the nearer sample and 1/4 of the further one.

    s[i]          = 3 near[i] + far[i]                       near, far: the two rows next to the pixel's row
    pixel[2i]     = (3 s[i] + s[i - 1] + 8) >> 4             h2v2; rounding alternates, so that it has no bias
    pixel[2i + 1] = (3 s[i] + s[i + 1] + 7) >> 4
    h2v1          : far = near, and 4 and 8 for 8 and 7
    pixel         = (3 near + far + 1 or 2) >> 2             h1v2: 1 in even rows, 2 in odd ones

Beyond the component's true size (ceil(image * h / h_max), without the padding to whole blocks) stands its last sample
again. Everything else (4:1:1, 4:1:0, and doubled columns of at most 2 samples) is replication.

plane: uint8 (rows, columns), C-contiguous, may be a part of its component: it must hold the samples from `first_sample`
to `end_sample` both ways. shape: int64 (6,), top, left, width, height, h_expand, v_expand: which sample is plane[0, 0],
the component's true size, pixels a sample each way. Owns one component's rows; color.py puts components together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpuload.kernels.simd import Memory, inner, splat, vector_code

_LANES, _FEW = 16, 4


def upsample_reference(samples: np.ndarray, h_expand: int, v_expand: int) -> np.ndarray:
    """NumPy reference: a component cut to its true size -> (height * v_expand, width * h_expand)."""
    smooth = interpolates(h_expand, v_expand, samples.shape[1])
    if not smooth:
        return samples.repeat(v_expand, axis=0).repeat(h_expand, axis=1)
    values = samples.astype(np.int64)
    if v_expand == 2:
        padded = np.pad(values, ((1, 1), (0, 0)), mode="edge")
        values = np.stack([3 * values + padded[:-2], 3 * values + padded[2:]], axis=1).reshape(-1, samples.shape[1])
    if h_expand == 1:
        bias = np.resize([1, 2], len(values))[:, None]
        return ((values + bias) >> 2).astype(np.uint8)
    padded = np.pad(values, ((0, 0), (1, 1)), mode="edge")
    even, odd, shift = (8, 7, 4) if v_expand == 2 else (1, 2, 2)
    pairs = [(3 * values + padded[:, :-2] + even) >> shift, (3 * values + padded[:, 2:] + odd) >> shift]
    return np.stack(pairs, axis=2).reshape(len(values), -1).astype(np.uint8)


def _interpolates(h_expand, v_expand, width):
    """Whether libjpeg interpolates a component of this true width: the only rule, for rows and columns alike."""
    if h_expand == 2:
        return v_expand <= 2 and width > 2
    return h_expand == 1 and v_expand == 2


interpolates = inner(_interpolates)


@inner
def first_sample(start, expand, smooth):
    """The first sample (row or column) that pixels from `start` on need."""
    return max(start // expand - (1 if smooth and expand == 2 else 0), 0)


@inner
def end_sample(end, expand, smooth, size):
    """One past the last sample that pixels before `end` need, of a component of `size` samples that way."""
    return min((end - 1) // expand + (2 if smooth and expand == 2 else 1), size)


def _emit_double(lanes: int) -> Any:
    def double(near: Memory, far: Memory, i: Any, out: Memory, at: Any, even: Any, odd: Any) -> None:
        """Samples from i on, as many as there are lanes, to twice as many pixels; reads one more on each side."""
        before, here, after = (
            near.load(i, lanes, 8, k).widen(16, signed=False) * 3 + far.load(i, lanes, 8, k).widen(16, signed=False)
            for k in (-1, 0, 1)
        )
        triple, builder = here * 3, near.builder
        left = (triple + before + splat(builder, even, lanes, 16)) >> 4
        right = (triple + after + splat(builder, odd, lanes, 16)) >> 4
        out.store(at, (left | right << 8).split())  # cheaper than two narrowings and a zip

    return vector_code(double)


_double, _double_few = _emit_double(_LANES), _emit_double(_FEW)


@vector_code
def _blend(near: Memory, far: Memory, i: Any, out: Memory, at: Any, bias: Any) -> None:
    """16 pixels between two rows."""
    here, there = (row.load(i, _LANES, 8).widen(16, signed=False) for row in (near, far))
    out.store(at, ((here * 3 + there + splat(near.builder, bias, _LANES, 16)) >> 2).narrow(8))


@inner
def doubled_pixel(near, far, left, width, x, even, odd):
    """Pixel x of a row that is interpolated along x: what `_double` computes, one by one and up to the edges."""
    i = x >> 1
    j = i + 1 if x & 1 else i - 1
    j = i if j < 0 or j >= width else j  # beyond the edge stands the edge
    here = 3 * np.int64(near[i - left]) + np.int64(far[i - left])
    there = 3 * np.int64(near[j - left]) + np.int64(far[j - left])
    return (3 * here + there + (odd if x & 1 else even)) >> 4


@inner
def _double_row(near, far, left, width, x0, x1, even, odd, out):
    start = max((x0 + 1) >> 1, 1)  # whole samples, with neighbours that exist: what vectors can do
    end = min(x1 >> 1, width - 1)
    if end - start >= _LANES:
        i = start
        while i < end:
            i = min(i, end - _LANES)  # the last one overlaps its predecessor
            _double(near, far, i - left, out, 2 * i - x0, even, odd)
            i += _LANES
    elif end - start >= _FEW:  # the rows of thumbnails
        i = start
        while i < end:
            i = min(i, end - _FEW)
            _double_few(near, far, i - left, out, 2 * i - x0, even, odd)
            i += _FEW
    else:
        end = start = min(max(start, (x0 + 1) >> 1), (x1 + 1) >> 1)
    for x in range(x0, min(2 * start, x1)):
        out[x - x0] = doubled_pixel(near, far, left, width, x, even, odd)
    for x in range(max(2 * end, x0), x1):
        out[x - x0] = doubled_pixel(near, far, left, width, x, even, odd)


@inner
def _blend_row(near, far, left, x0, x1, bias, out):
    count = x1 - x0
    if count >= _LANES:
        i = 0
        while i < count:
            i = min(i, count - _LANES)
            _blend(near, far, i + x0 - left, out, i, bias)
            i += _LANES
    else:
        for i in range(count):
            k = i + x0 - left
            out[i] = (3 * np.int64(near[k]) + np.int64(far[k]) + bias) >> 2


@inner
def holds(plane, shape, y0, y1, x0, x1):
    """Whether a plane has all that pixels [y0, y1) x [x0, x1) take, and they lie in the image. shape: as in `frame`."""
    top, left, width, height = shape[0], shape[1], shape[2], shape[3]
    h_expand, v_expand = shape[4], shape[5]
    if not (0 < h_expand <= 4 and 0 < v_expand <= 4 and 0 < width < 65536 and 0 < height < 65536):  # JPEG's own limits
        return False
    if not (0 <= y0 < y1 <= height * v_expand and 0 <= x0 < x1 <= width * h_expand):
        return False
    smooth = interpolates(h_expand, v_expand, width)
    if not (0 <= top <= first_sample(y0, v_expand, smooth) and 0 <= left <= first_sample(x0, h_expand, smooth)):
        return False
    below, beyond = end_sample(y1, v_expand, smooth, height), end_sample(x1, h_expand, smooth, width)
    return below <= top + plane.shape[0] and beyond <= left + plane.shape[1]


@inner
def upsample_row(plane, shape, y, x0, x1, out):
    """Pixels [x0, x1) of row y to out[: x1 - x0]; the caller knows that the plane `holds` them and out has room."""
    top, left, width, height = shape[0], shape[1], shape[2], shape[3]
    h_expand, v_expand = shape[4], shape[5]
    row = y // v_expand
    near = plane[row - top]
    if not interpolates(h_expand, v_expand, width):
        column = x0 // h_expand - left
        ahead = h_expand - x0 % h_expand
        for i in range(x1 - x0):
            out[i] = near[column]
            ahead -= 1
            if ahead == 0:
                ahead = h_expand
                column += 1
        return
    other = row
    if v_expand == 2:
        other = min(row + 1, height - 1) if y & 1 else max(row - 1, 0)
    far = plane[other - top]
    if h_expand == 2:
        even, odd = (8, 7) if v_expand == 2 else (4, 8)
        _double_row(near, far, left, width, x0, x1, even, odd, out)
    else:
        _blend_row(near, far, left, x0, x1, 1 + (y & 1), out)
