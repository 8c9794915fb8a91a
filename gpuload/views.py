"""Several views of one image, for training on pairs: the transform that makes them.

Owns what a transform of several views is and that it can be told from any other callable: torch's path calls it, the
accelerated path reads the transforms in it. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuload.core.errors import ConfigError


class Views:
    """A transform that gives a list, in the image's place: what each of its own transforms makes of the image.

    transforms: at least one, each called with the image and drawing for itself. A batch then holds a list of batches
    of images, one a view, as torch's default_collate makes it; views may differ in size. Raises ConfigError.

    >>> ImageFolder(root, Views([augment, augment]))            # SimCLR: [(n, 3, 224, 224)] * 2
    >>> ImageFolder(root, Views([large] * 2 + [small] * 8))     # DINO: 2 of (n, 3, 224, 224), 8 of (n, 3, 96, 96)
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]):
        if not isinstance(transforms, Sequence) or not transforms or not all(map(callable, transforms)):
            raise ConfigError(f"Views takes a list of transforms, at least one, got {transforms!r}")
        self.transforms = tuple(transforms)

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]

    def __repr__(self) -> str:
        return f"Views([{', '.join(map(repr, self.transforms))}])"
