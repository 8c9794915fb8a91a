"""A transform as a value: which operations are fused, the table behind them, and what is left to run per sample.

Owns `AugmentPlan` and how it prints. Made by `torchvision.py`, carried out by `run.py` and the decoders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.augment import params
from gpuload.augment.batch_ops import RandomErasing, draw_erasing, rectangles
from gpuload.augment.ops import CenterCrop, GeometryOp, RandomCrop, RandomResizedCrop, Resize
from gpuload.core.batch import TensorSpec
from gpuload.core.geometry import Resampling


@dataclass(frozen=True, eq=False)
class AugmentPlan:
    """What happens to each image after decoding.

    geometry: fused, in order. resampling: how pixels are resampled; resize: what does it where not Pillow
    (uint8 (H, W, 3), (w, h) -> uint8 (h, w, 3)). pointwise: the names of the operations that `table` stands
    for; table: (3, 256) of the batch's element type (uint16 bit patterns for 16-bit floats), None where the
    rest starts from the PIL image. dtype: the table's, torch's name. rest: what runs per sample after that, None
    if nothing; rest_names: what it is. The rest is given a PIL image or, with a table, a tensor. wrap: makes that
    tensor, and what is finished one by one, of the class that the operations give (tv_tensors.Image); None: plain.
    erasing: what is erased of the finished image; erased: (3,), of the table's type, what is put there.
    """

    geometry: tuple[GeometryOp, ...]
    resampling: Resampling
    resize: Callable[[np.ndarray, tuple[int, int]], np.ndarray] | None
    pointwise: tuple[str, ...]
    table: np.ndarray | None
    dtype: str
    rest: Callable[[Any, np.ndarray], Any] | None = None
    rest_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    wrap: Callable[[Any], Any] | None = None
    erasing: RandomErasing | None = None
    erased: np.ndarray | None = None

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(w, h) after the geometry where it is the same for every image, else None."""
        size = None
        for op in self.geometry:
            if isinstance(op, (RandomResizedCrop, CenterCrop, RandomCrop)):
                size = (op.width, op.height)
            elif isinstance(op, Resize):
                size = (op.width, op.height) if op.width is not None and op.height is not None else None
        return size

    @property
    def resizes(self) -> bool:
        """Whether images are resampled."""
        return any(isinstance(op, (RandomResizedCrop, Resize)) for op in self.geometry)

    def tensor_spec(self, channels_last: bool) -> TensorSpec | None:
        """The image's part of a batch where nothing runs per sample, else None; open where images differ in size."""
        if self.table is None or self.rest is not None:
            return None
        width, height = self.output_size or (0, 0)
        return TensorSpec((3, height, width), self.dtype, channels_last)

    def same_as(self, other: AugmentPlan) -> bool:
        """Whether both do the same to every image: an engine made for one serves the other."""
        tables = (self.table is None) == (other.table is None) and np.array_equal(self.table, other.table)  # type: ignore[arg-type]
        mine = (self.geometry, self.resampling, self.dtype, self.pointwise, self.rest, self.wrap, self.erasing)
        theirs = (other.geometry, other.resampling, other.dtype, other.pointwise, other.rest, other.wrap, other.erasing)
        return tables and mine == theirs

    def draw(self, keys: np.ndarray) -> tuple[np.ndarray, ...]:
        """The batch's random draws (params.draw)."""
        return params.draw(self.geometry, keys)

    def rectangles(self, keys: np.ndarray, height: int, width: int) -> np.ndarray | None:
        """What is erased of finished images of one size, int32 (n, 4) as batch_ops.rectangles; None: nothing ever."""
        if self.erasing is None:
            return None
        return rectangles(self.erasing, draw_erasing(keys), height, width)

    def steps(self) -> list[tuple[str, str, str]]:
        """(step, where it runs, shape after it) of each, for people."""
        shape = "H x W x 3 uint8"
        rows = []
        for op in self.geometry:
            size = AugmentPlan((op,), self.resampling, None, (), None, "uint8").output_size
            if size is not None:
                shape = f"{size[1]} x {size[0]} x 3 uint8"
            elif isinstance(op, Resize):
                shape = "h x w x 3 uint8"
            rows.append((_describe(op), "fused", shape))
        if self.table is not None:
            size = self.output_size
            shape = f"3 x {size[1]} x {size[0]} {self.dtype}" if size else f"3 x h x w {self.dtype}"
            rows.append((" + ".join(self.pointwise), "fused", shape))
            if self.erasing is not None:
                rows.append((_describe(self.erasing), "fused", shape))
        rows.extend((name, "per sample", "") for name in self.rest_names)
        return rows

    def __str__(self) -> str:
        rows = [("decode", "fused", "H x W x 3 uint8"), *self.steps()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _describe(op: GeometryOp | RandomErasing) -> str:
    given = {name: value for name, value in vars(op).items() if value not in (None, False, (0, 0, 0, 0))}
    return f"{type(op).__name__}({', '.join(f'{name}={_short(value)}' for name, value in given.items())})"


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
