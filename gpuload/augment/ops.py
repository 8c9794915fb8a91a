"""The geometry operations that gpuload carries out itself, as frozen values. torchvision's names and meanings.

Owns no behaviour beyond a description of each: draws and boxes are `params.py`'s, reading transforms is
`torchvision.py`'s. Everything that maps one 8-bit pixel to one value is no operation here but a row of a
table (`plan.AugmentPlan.table`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random area and aspect ratio of the image, resampled to (height, width)."""

    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]


@dataclass(frozen=True)
class Resize:
    """To (height, width), or the shorter side to `shorter` with the longer at most `max_size`. Pixels."""

    height: int | None = None
    width: int | None = None
    shorter: int | None = None
    max_size: int | None = None


@dataclass(frozen=True)
class CenterCrop:
    """The middle (height, width); an image smaller than that is padded with zeros around it."""

    height: int
    width: int


@dataclass(frozen=True)
class RandomCrop:
    """A random (height, width) of the image padded by (left, top, right, bottom) pixels of `fill`.

    pad_if_needed: widen the padding where the image is still smaller than the crop.
    """

    height: int
    width: int
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_if_needed: bool = False


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrored left-right with probability p."""

    p: float


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Mirrored top-bottom with probability p."""

    p: float


GeometryOp = RandomResizedCrop | Resize | CenterCrop | RandomCrop | RandomHorizontalFlip | RandomVerticalFlip
