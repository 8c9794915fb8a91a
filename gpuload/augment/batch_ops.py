"""Operations on finished images and batches: RandomErasing, MixUp, CutMix. What they are, and their draws.

Owns the descriptions, as frozen values with torchvision's names and meanings, and their pure draws: a rectangle or a
share, from a key and a size. Reading torchvision's own objects is `torchvision.py`'s, the pixels are kernels/erase.py's
and kernels/mix.py's. An erased rectangle is drawn from its sample's key, a batch's share from that of the batch's first
sample: a function of (seed, epoch, position of the batch) like everything else, and another one on each rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ConfigError
from gpuload.core.philox import uniforms

ATTEMPTS = 10  # torchvision's, in RandomErasing.get_params
# Streams of a key: the fused operations draw from those numbered from 0.
_ERASING, _CHOOSING, _MIXING = range(1 << 16, (1 << 16) + 3)


@dataclass(frozen=True)
class RandomErasing:
    """With probability p a rectangle of the image set to `value`, one number or one a channel, converted as by torch.

    scale: its area as a part of the image's, from .. to; ratio: its height by its width, from .. to.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    value: tuple[float, ...]


def draw_erasing(keys: np.ndarray) -> np.ndarray:
    """The draws of each sample: float64 (n, 23). keys: uint32 (n, 4)."""
    return uniforms(keys, stream=_ERASING, count=2 * ATTEMPTS + 3)


def rectangles(op: RandomErasing, u: np.ndarray, height: int, width: int) -> np.ndarray:
    """What is erased of images of one size: int32 (n, 4), left, top, width and height, zeros where nothing is.

    u: float64 (n, 23), from `draw_erasing`: ten areas, ten ratios, where the rectangle lies, and whether there is one.
    """
    area = height * width * (op.scale[0] + u[:, :ATTEMPTS] * (op.scale[1] - op.scale[0]))
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    ratio = np.exp(low + u[:, ATTEMPTS : 2 * ATTEMPTS] * (high - low))
    h, w = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (h < height) & (w < width)
    chosen, rows = fits.argmax(axis=1), np.arange(len(u))
    h, w = h[rows, chosen], w[rows, chosen]
    top, left = np.floor(u[:, -3] * (height - h + 1)), np.floor(u[:, -2] * (width - w + 1))
    erased = (u[:, -1] < op.p) & fits[rows, chosen]
    return np.where(erased[:, None], np.stack([left, top, w, h], axis=1), 0).astype(np.int32)


@dataclass(frozen=True)
class _Mixes:
    """num_classes: of labels that are numbers; None: they are probabilities already. alpha: of the Beta distribution.

    labels: where they stand in the batch, a key or an index; None: as torchvision finds them.
    """

    num_classes: int | None = None
    alpha: float = 1.0
    labels: str | int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"{name}: alpha must be a positive number, got {self.alpha!r}")
        if self.num_classes is not None and not self.num_classes > 0:
            raise ConfigError(f"{name}: num_classes must be a positive number or None, got {self.num_classes!r}")


@dataclass(frozen=True)
class MixUp(_Mixes):
    """Each image and label of a batch blended with the one before it, by a share drawn from Beta(alpha, alpha).

    Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018; values as
    torchvision.transforms.v2.MixUp gives them.
    """


@dataclass(frozen=True)
class CutMix(_Mixes):
    """A rectangle of each image replaced by the one before it, labels blended by the rectangle's part of the image.

    Yun, Han, Oh, Chun, Choe and Yoo, "CutMix", ICCV 2019; values as torchvision.transforms.v2.CutMix gives them.
    """


@dataclass(frozen=True)
class OneOf:
    """One of several for each batch. p: how probable each is; they need not add up to 1."""

    ops: tuple[MixUp | CutMix, ...]
    p: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.ops or len(self.ops) != len(self.p) or min(self.p) < 0 or not 0 < sum(self.p) < math.inf:
            raise ConfigError(f"OneOf: needs operations and as many probabilities, got {self.ops} and {self.p}")


BatchOp = MixUp | CutMix | OneOf


@dataclass(frozen=True)
class Mixing:
    """What one batch is mixed by. share: of a label's own in the mixture, and of MixUp's own image.

    box: left, top, right and bottom of CutMix's rectangle in pixels; None: the whole image is blended, by `share`.
    """

    op: MixUp | CutMix
    share: float
    box: tuple[int, int, int, int] | None = None


def draw_mixing(op: BatchOp, key: np.ndarray, height: int, width: int) -> Mixing:
    """What a batch of images of this size is mixed by. key: uint32 (4,), that of the batch's first sample."""
    keys = key[None]
    if isinstance(op, OneOf):
        until = np.cumsum(op.p)
        chosen = np.searchsorted(until, uniforms(keys, stream=_CHOOSING, count=1)[0, 0] * until[-1], side="right")
        return draw_mixing(op.ops[chosen], key, height, width)
    u = uniforms(keys, stream=_MIXING, count=4)[0].tolist()
    share = symmetric_beta(op.alpha, u[0], u[1])
    if isinstance(op, MixUp):
        return Mixing(op, share)
    x, y = int(u[2] * width), int(u[3] * height)  # the rectangle's middle; what lies outside the image is cut off
    half = 0.5 * math.sqrt(1.0 - share)
    half_w, half_h = int(half * width), int(half * height)
    left, top = max(x - half_w, 0), max(y - half_h, 0)
    right, bottom = min(x + half_w, width), min(y + half_h, height)
    return Mixing(op, 1.0 - (right - left) * (bottom - top) / (width * height), (left, top, right, bottom))


def symmetric_beta(alpha: float, u: float, v: float) -> float:
    """A draw from Beta(alpha, alpha), from two uniform ones, without rejection.

    Bailey's polar method gives T = sqrt(2a (1/q - 1)) cos(2 pi v) of Student's distribution with 2a degrees of freedom,
    where q = u**(1/a); and 1/2 + T / (2 sqrt(2a + T**2)) is of Beta(a, a) (Devroye, "Random variate generation in one
    line of code", 1996). Written so that nothing overflows where q is 0.
    """
    q, c = u ** (1.0 / alpha), math.cos(2.0 * math.pi * v)
    far = (1.0 - q) * c * c
    return 0.5 * (1.0 + math.copysign(math.sqrt(far / (q + far)), c))
