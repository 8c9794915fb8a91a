"""timm: what its own transform classes are in torchvision's words, so that `timm.data.create_transform` is understood.

timm's crop draws its box and resizes as torchvision's does, and MaybeToTensor is ToTensor where the image comes from
PIL; they differ in the class and in the generator that they draw from. What has no equal stays as it is: a crop whose
filter is drawn at random (`interpolation="random"`), AutoAugment's family, erasing of several boxes or by one colour.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any


def as_torchvision(transform: Any) -> Any:
    """`transform`, with timm's classes replaced by torchvision's of the same distribution; itself where it has none."""
    if "timm.data.transforms" not in sys.modules:
        return transform
    from torchvision import transforms

    if type(transform) is not transforms.Compose:
        return _equal(transform)
    steps = [as_torchvision(step) for step in transform.transforms]
    same = all(new is old for new, old in zip(steps, transform.transforms, strict=True))
    return transform if same else transforms.Compose(steps)


def _equal(step: Any) -> Any:
    from timm.data import random_erasing
    from timm.data import transforms as timm_transforms

    readers: dict[type, Callable[[Any], Any]] = {
        timm_transforms.RandomResizedCropAndInterpolation: _crop,
        timm_transforms.MaybeToTensor: _to_tensor,
        random_erasing.RandomErasing: _erasing,
    }
    reader = readers.get(type(step))
    return step if reader is None else reader(step)


def _crop(step: Any) -> Any:
    from torchvision import transforms

    if isinstance(step.interpolation, (tuple, list)):
        return step
    return transforms.RandomResizedCrop(step.size, step.scale, step.ratio, step.interpolation)


def _to_tensor(step: Any) -> Any:
    from torchvision import transforms

    return transforms.ToTensor()


def _erasing(step: Any) -> Any:
    """One box, drawn as torchvision draws it; its pixels are zero, or normal noise."""
    from torchvision import transforms

    if (step.min_count, step.max_count) != (1, 1) or step.rand_color:
        return step
    return transforms.RandomErasing(
        p=step.probability,
        scale=(step.min_area, step.max_area),
        ratio=(math.exp(step.log_aspect_ratio[0]), math.exp(step.log_aspect_ratio[1])),
        value="random" if step.per_pixel else 0,
    )
