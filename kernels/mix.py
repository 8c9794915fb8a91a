"""MixUp and CutMix of a finished batch: each image with the one before it, the first with the last.

    mix   out[i] = (1 - share) x[i - 1] + share x[i]                       x: (n, length), images or labels, flat
    cut   out[i, :, top:bottom, left:right] = x[i - 1, ...], the rest x[i]     x: (n, C, H, W)
    names out[i, c] = (1 - share) [labels[i - 1] == c] + share [labels[i] == c]     labels: (n,) -> (n, classes)

torchvision rolls the batch, multiplies, multiplies again and adds, four passes with each result rounded to the batch's
type; here it is one pass with the same roundings in the same order, so values are torchvision's bit for bit: products
in float32 (float64 for float64) and never contracted with the sum. Both products of a 16-bit float are rounded to 16
bits before they are added.

On the CPU a batch is mixed in place, from its last row up, so that each row is read before it is written over; only the
last row must be kept, and columns are independent: a stretch of them at a time, whose piece of the last row stays in
the cache, and different stretches in different threads if the caller likes. 40 us an image of 224x224 float32 on one
core of a Zen 4, where torch's passes take 630; 160 for float16 and 56 for bfloat16, torch's 340. These two are uint16
bit patterns, converted by integer arithmetic that LLVM turns into vectors.

On the GPU (mix.cu) an item is an element of the new batch, which is other memory than the old: in place each thread
would walk down the rows, too few of them to keep the memory busy. It is CUDA C++, not a CuPy ElementwiseKernel: that
can be compiled only where there is a GPU, has no bfloat16 in older CuPys, and would leave contraction to its options.
Bound by memory: the batch read once (its second reading is the neighbour's, from the cache) and written once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpuload.kernels.compile import kernel
from gpuload.kernels.simd import inner

_STRETCH = 4096  # elements: 16 KB of float32, half of a core's first cache


def mix_reference(x: np.ndarray, share: float) -> np.ndarray:
    """NumPy reference of `mix`, for float32 and float64: another array (n, length)."""
    kind = x.dtype.type
    return np.roll(x, 1, axis=0) * kind(1.0 - share) + x * kind(share)


def cut_reference(x: np.ndarray, left: int, top: int, right: int, bottom: int) -> np.ndarray:
    """NumPy reference of `cut`: another array (n, C, H, W)."""
    out = x.copy()
    out[:, :, top:bottom, left:right] = np.roll(x, 1, axis=0)[:, :, top:bottom, left:right]
    return out


def mix_names(labels: np.ndarray, classes: int, share: float) -> np.ndarray:
    """float32 (n, classes): each sample's label and its partner's, by their shares. labels: integers (n,).

    Raises ValueError for a label that is none of the classes.
    """
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise ValueError(f"label {wrong} is none of num_classes={classes} classes, which are numbered from 0")
    out, rows = np.zeros((len(labels), classes), np.float32), np.arange(len(labels))
    out[rows, np.roll(labels, 1)] = np.float32(1.0 - share)
    out[rows, labels] += np.float32(share)
    return out


@inner
def half_to_float(bits):
    """The float32 of a float16's bit pattern. Exact."""
    magnitude = np.uint32(np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13))
    value = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112))  # of another bias; maybe subnormal
    wide = np.float32(value).view(np.uint32)
    wide = wide | np.uint32(0x7F800000) if magnitude >= np.uint32(0x0F800000) else wide  # infinity, NaN
    return np.uint32(wide | np.uint32(np.uint32(bits & np.uint16(0x8000)) << np.uint32(16))).view(np.float32)


@inner
def float_to_half(value):
    """The bit pattern of the nearest float16, ties to even."""
    wide = np.float32(value).view(np.uint32)
    magnitude = np.uint32(wide & np.uint32(0x7FFFFFFF))
    odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
    normal = np.uint32(np.uint32(magnitude + odd + np.uint32(0xFFF - 0x38000000 + 2**32)) >> np.uint32(13))
    # The last bit of 0.5 is a float16's smallest: adding it rounds a subnormal to that.
    summed = np.float32(np.uint32(magnitude).view(np.float32) + np.float32(0.5))
    small = np.uint32(np.float32(summed).view(np.uint32) - np.uint32(0x3F000000))
    near = small if magnitude < np.uint32(0x38800000) else normal
    near = np.uint32(0x7C00) if magnitude >= np.uint32(0x477FF000) else near  # from 65520 on: infinity
    near = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else near
    return np.uint16(near | np.uint32(np.uint32(wide >> np.uint32(16)) & np.uint32(0x8000)))


@inner
def bfloat_to_float(bits):
    """The float32 of a bfloat16's bit pattern. Exact."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@inner
def float_to_bfloat(value):
    """The bit pattern of the nearest bfloat16, ties to even."""
    wide = np.float32(value).view(np.uint32)
    odd = np.uint32(np.uint32(wide >> np.uint32(16)) & np.uint32(1))
    near = np.uint32(np.uint32(wide + odd + np.uint32(0x7FFF)) >> np.uint32(16))
    return np.uint16(np.uint32(0x7FC0) if value != value else near)


# Both kernels walk alike. One walk with the conversions as arguments would be compiled anew at every start: Numba keeps
# nothing on disk that holds the address of a function.


@kernel(f"void({t}[:, ::1], int64, int64, {t}, {t})" for t in ("float32", "float64"))
def _mix(x, begin, end, theirs, own):
    last = np.empty(_STRETCH, x.dtype)
    for start in range(begin, end, _STRETCH):
        count = min(_STRETCH, end - start)
        last[:count] = x[-1][start : start + count]
        for i in range(len(x) - 1, -1, -1):
            before = x[i - 1][start : start + count] if i > 0 else last[:count]
            here = x[i][start : start + count]
            for j in range(count):
                here[j] = before[j] * theirs + here[j] * own


@inner
def _widen(bits, brain):
    return bfloat_to_float(bits) if brain else half_to_float(bits)


@inner
def _narrow(value, brain):
    return float_to_bfloat(value) if brain else float_to_half(value)


@kernel(["void(uint16[:, ::1], int64, int64, float32, float32, b1)"])
def _mix_16(x, begin, end, theirs, own, brain):
    last = np.empty(_STRETCH, np.uint16)
    for start in range(begin, end, _STRETCH):
        count = min(_STRETCH, end - start)
        last[:count] = x[-1][start : start + count]
        for i in range(len(x) - 1, -1, -1):
            before = x[i - 1][start : start + count] if i > 0 else last[:count]
            here = x[i][start : start + count]
            for j in range(count):
                other = _widen(_narrow(_widen(before[j], brain) * theirs, brain), brain)
                mine = _widen(_narrow(_widen(here[j], brain) * own, brain), brain)
                here[j] = _narrow(other + mine, brain)


TYPES = ("float16", "bfloat16", "float32", "float64")
"""What can be mixed, by torch's names."""


def mix(x: np.ndarray, dtype: str, share: float, begin: int = 0, end: int | None = None) -> None:
    """Mix a batch in place, or of each row the elements from `begin` to `end`, counted as they lie in memory.

    x: (n, ...), channels first or last. dtype: torch's name; x holds uint16 bit patterns where it has 16 bits.
    """
    if not x.size:
        return
    rows = _in_memory_order(x).reshape(len(x), -1)
    length = rows.shape[1]
    span = max(begin, 0), length if end is None else min(end, length)
    if dtype in ("float16", "bfloat16"):
        _mix_16(rows, *span, np.float32(1.0 - share), np.float32(share), dtype == "bfloat16")
    else:
        kind = np.dtype(dtype).type
        _mix(rows, *span, kind(1.0 - share), kind(share))


@kernel(f"void(uint{bits}[:, :, :, ::1], int64, int64, int64, int64)" for bits in (8, 16, 32, 64))
def _cut(x, left, top, right, bottom):
    n, planes, height, width = x.shape
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    last = np.empty((planes, height, width), x.dtype)
    for i in range(n, -1, -1):  # the last image's aside, each from the one before it, the first's from aside
        before = x[i - 1] if i > 0 else last
        here = x[i] if i < n else last
        for plane in range(planes):
            for y in range(top, bottom):
                source, target = before[plane, y], here[plane, y]
                for j in range(left, right):
                    target[j] = source[j]


def cut(x: np.ndarray, left: int, top: int, right: int, bottom: int) -> None:
    """Cut a batch in place. x: (n, C, H, W), channels first or last in memory, elements of any type."""
    lines = _in_memory_order(x)
    if lines is not x:  # a line is W pixels of C elements, all of one plane
        n, height, width, channels = lines.shape
        lines = lines.reshape(n, 1, height, width * channels)
        left, right = left * channels, right * channels
    _cut(lines.view(f"u{x.itemsize}"), left, top, right, bottom)


def _in_memory_order(x: np.ndarray) -> np.ndarray:
    for ordered in (x, np.moveaxis(x, 1, -1)):
        if ordered.flags.c_contiguous:
            return ordered
    raise ValueError(f"a batch's rows must lie one behind the other, got strides {x.strides} for shape {x.shape}")


def mix_on_device(launch: Callable[..., None], dtype: str, n: int, length: int, x: int, share: float, out: int) -> None:
    """`mix` of n rows in device memory at address x into other memory at out. dtype: torch's name.

    launch: (kernel, items, int64...), on the stream that owns both.
    """
    items = n * length
    launch(f"mix_{dtype}", items, n, items, x, length, _bits(1.0 - share), _bits(share), out)


def cut_on_device(
    launch: Callable[..., None],
    itemsize: int,
    shape: tuple[int, int, int, int],
    channels_last: bool,
    x: int,
    box: tuple[int, int, int, int],
    out: int,
) -> None:
    """`cut` of a batch (n, C, H, W) in device memory at address x into other memory at out. box: as `cut` takes it."""
    n, channels, height, width = shape
    length, step_x = channels * height * width, channels if channels_last else 1
    steps = (length, step_x * width, height, step_x, width)
    launch(f"cut_{itemsize}", n * length, n, n * length, x, *steps, *box, out)


def mix_names_on_device(launch: Callable[..., None], n: int, classes: int, labels: int, share: float, out: int) -> None:
    """`mix_names` of n labels, int64 at address labels, into float32 (n, classes) at out."""
    items = n * classes
    launch("mix_names", items, n, items, labels, classes, _bits(1.0 - share), _bits(share), out)


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))
