"""Random draws and image sizes to boxes: pure, vectorised over the images of a batch.

Distributions are torchvision's (RandomResizedCrop's ten attempts and its fallback to the largest central crop
within the ratios; half-to-even rounding). Each operation draws from its own stream of the sample's key, so a
box depends on (key, operation, width, height) and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpuload.augment.ops import (
    CenterCrop,
    GeometryOp,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from gpuload.core.geometry import identity
from gpuload.core.philox import uniforms

ATTEMPTS = 10  # torchvision's, in RandomResizedCrop.get_params
_DRAWS = {RandomResizedCrop: 2 * ATTEMPTS + 2, RandomCrop: 2, RandomHorizontalFlip: 1, RandomVerticalFlip: 1}


def draw(ops: Sequence[GeometryOp], keys: np.ndarray) -> tuple[np.ndarray, ...]:
    """All uniform draws of a batch, one float64 (n, k) an operation. keys: uint32 (n, 4)."""
    return tuple(
        uniforms(keys, stream=number, count=_DRAWS[type(op)]) if type(op) in _DRAWS else np.empty((len(keys), 0))
        for number, op in enumerate(ops)
    )


def resolve(
    ops: Sequence[GeometryOp], draws: Sequence[np.ndarray], widths: np.ndarray, heights: np.ndarray
) -> np.ndarray:
    """GEOMETRY (n,) of images of these sizes. widths, heights: int (n,), pixels; draws: from `draw`, the same rows.

    Raises ValueError where a RandomCrop without padding is larger than an image, as torchvision does.
    """
    out = identity(widths, heights)
    resized = False
    for number, op in enumerate(ops):
        u = draws[number]
        if isinstance(op, RandomResizedCrop):
            out["crop"] = random_resized_crop(op, u, out["crop"][:, 2], out["crop"][:, 3])
            out["resize"] = (op.width, op.height)
            out["window"] = (0, 0, op.width, op.height)
            resized = True
        elif isinstance(op, Resize):
            out["crop"] = _composed(out["crop"], out["window"])
            out["resize"] = resized_size(op, out["window"][:, 2], out["window"][:, 3])
            out["window"] = 0
            out["window"][:, 2:] = out["resize"]
            resized = True
        elif isinstance(op, RandomHorizontalFlip):
            out["flip_h"] ^= u[:, 0] < op.p
        elif isinstance(op, RandomVerticalFlip):
            out["flip_v"] ^= u[:, 0] < op.p
        else:
            box = _crop_box(op, u, out["window"][:, 2], out["window"][:, 3])
            # the flips come last in the canonical form: a crop of a mirrored image is the mirrored crop's mirror image
            box[:, 0] = np.where(out["flip_h"], out["window"][:, 2] - box[:, 0] - box[:, 2], box[:, 0])
            box[:, 1] = np.where(out["flip_v"], out["window"][:, 3] - box[:, 1] - box[:, 3], box[:, 1])
            out["window"] = box
    if not resized:  # a window alone is a crop alone: nothing outside it need be decoded
        out["crop"] = out["window"]
        out["resize"] = out["window"][:, 2:]
        out["window"][:, :2] = 0
    return out


def random_resized_crop(op: RandomResizedCrop, u: np.ndarray, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Boxes (x, y, w, h) int32 (n, 4). u: float64 (n, 22): ten areas, ten ratios, then the place of the box."""
    widths, heights = widths.astype(np.int64), heights.astype(np.int64)
    area = (widths * heights)[:, None] * (op.scale[0] + u[:, :ATTEMPTS] * (op.scale[1] - op.scale[0]))
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    ratio = np.exp(low + u[:, ATTEMPTS : 2 * ATTEMPTS] * (high - low))
    w = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    h = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (w > 0) & (w <= widths[:, None]) & (h > 0) & (h <= heights[:, None])
    chosen = fits.argmax(axis=1)
    rows = np.arange(len(widths))
    w, h, found = w[rows, chosen], h[rows, chosen], fits[rows, chosen]
    x = np.floor(u[:, -1] * (widths - w + 1)).astype(np.int64)
    y = np.floor(u[:, -2] * (heights - h + 1)).astype(np.int64)
    if not found.all():
        whole = widths / heights
        fallback_w = np.where(whole > op.ratio[1], np.rint(heights * op.ratio[1]).astype(np.int64), widths)
        fallback_h = np.where(whole < op.ratio[0], np.rint(widths / op.ratio[0]).astype(np.int64), heights)
        w, h = np.where(found, w, fallback_w), np.where(found, h, fallback_h)
        x = np.where(found, x, (widths - fallback_w) // 2)
        y = np.where(found, y, (heights - fallback_h) // 2)
    return np.stack([x, y, w, h], axis=1).astype(np.int32)


def resized_size(op: Resize, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """(w, h) int32 (n, 2) of the resized images."""
    if op.shorter is None and op.height is not None:
        return np.broadcast_to(np.array([op.width, op.height], np.int32), (len(widths), 2))
    widths, heights = widths.astype(np.int64), heights.astype(np.int64)
    short, long = np.minimum(widths, heights), np.maximum(widths, heights)
    if op.shorter is None:  # max_size alone: the longer side
        new_long = np.full(len(widths), op.max_size)
        new_short = (op.max_size * short / long).astype(np.int64)
    else:
        new_short = np.full(len(widths), op.shorter)
        new_long = (op.shorter * long / short).astype(np.int64)
        if op.max_size is not None:
            too_long = new_long > op.max_size
            new_short = np.where(too_long, (op.max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(too_long, op.max_size, new_long)
    portrait = widths <= heights
    size = [np.where(portrait, new_short, new_long), np.where(portrait, new_long, new_short)]
    return np.stack(size, axis=1).astype(np.int32)


def _crop_box(op: CenterCrop | RandomCrop, u: np.ndarray, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    if isinstance(op, CenterCrop):
        xs = _centred(op.width, widths)
        ys = _centred(op.height, heights)
    else:
        left, top, right, bottom = op.padding
        xs = _random_start(op, op.width, widths, left, right, u[:, 1])
        ys = _random_start(op, op.height, heights, top, bottom, u[:, 0])
    sizes = np.broadcast_to(np.array([op.width, op.height]), (len(widths), 2))
    return np.column_stack([xs, ys, sizes]).astype(np.int32)


def _centred(crop: int, size: np.ndarray) -> np.ndarray:
    padding = np.maximum(crop - size, 0) // 2
    return np.rint((np.maximum(size, crop) - crop) / 2).astype(np.int64) - padding


def _random_start(op: RandomCrop, crop: int, size: np.ndarray, before: int, after: int, u: np.ndarray) -> np.ndarray:
    padded = size.astype(np.int64) + before + after
    extra = np.maximum(crop - padded, 0) if op.pad_if_needed else np.zeros(len(size), np.int64)
    padded = padded + 2 * extra
    if (padded < crop).any():
        worst = int(np.argmin(padded))
        raise ValueError(
            f"Required crop size {(op.height, op.width)} is larger than the input image ({int(size[worst])} pixels "
            f"with a padding of {before + after}, along one side)"
        )
    return np.floor(u * (padded - crop + 1)).astype(np.int64) - before - extra


def _composed(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    box = inner.copy()
    box[:, :2] += outer[:, :2]
    return box
