"""F. Decoded pixels into the batch's memory, or into finished samples where something runs per sample.

Owns the two ways in which a row ends: stored by the fused kernel, or handed through the user's own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuload.augment.plan import AugmentPlan
from gpuload.core.batch import DecodedRows, Target
from gpuload.kernels.erase import erase
from gpuload.kernels.pointwise import lookup_store


def store_rows(target: Target, decoded: DecodedRows) -> None:
    """Flip, look up and store each good row that the decoder didn't; then erase, whoever stored it."""
    for place, row in enumerate(decoded.rows):
        image = decoded.images[place]
        if image is not None:
            if image.shape[:2] != target.image_size:
                decoded.failures[row] = ValueError(f"decoded to {image.shape[:2]}, not {target.image_size} pixels")
                continue
            geometry = decoded.geometry[place]
            lookup_store(image, target.table, geometry["flip_h"].item(), geometry["flip_v"].item(), target.array[row])
    if target.rectangles is not None and target.erased is not None:
        left = [] if decoded.staged is None else decoded.staged.rows  # the device erases its own
        rows = np.setdiff1d(np.array(decoded.rows, np.int64), left, assume_unique=True)
        if len(rows):
            erase(target.array, rows, target.rectangles[rows], target.erased)


def finish_rows(
    plan: AugmentPlan, decoded: DecodedRows, keys: np.ndarray, tensor: Callable[[str, int, int], Any]
) -> dict[int, Any]:
    """Row -> the finished image of each good row; what the user's operations raise goes to decoded.failures.

    keys: uint32 (n, 4), the batch's. tensor: (dtype, height, width) -> core memory with `.array` (3, h, w) to fill
    and `.tensor` over it.
    """
    finished: dict[int, Any] = {}
    for place, row in enumerate(decoded.rows):
        image = decoded.images[place]
        if image is None:
            continue
        flip_h, flip_v = decoded.geometry[place]["flip_h"].item(), decoded.geometry[place]["flip_v"].item()
        try:
            if plan.table is None:
                value = _pil(image[:: -1 if flip_v else 1, :: -1 if flip_h else 1])
            else:
                memory = tensor(plan.dtype, image.shape[0], image.shape[1])
                lookup_store(image, plan.table, flip_h, flip_v, memory.array)
                if plan.erasing is not None and plan.erased is not None:
                    rectangles = plan.rectangles(keys[row : row + 1], *image.shape[:2])
                    erase(memory.array[None], np.zeros(1, np.int64), rectangles, plan.erased)
                value = memory.tensor if plan.wrap is None else plan.wrap(memory.tensor)
            finished[row] = value if plan.rest is None else plan.rest(value, keys[row])
        except Exception as error:  # the user's code may raise anything; it is named, not lost
            decoded.failures[row] = error
    return finished


def _pil(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(image))
