"""What happens to one image between its decoded pixels and the batch: the canonical form of a transform's geometry.

    decoded (H, W, 3) --crop--> region --resize--> resized --window--> output --flips--> batch

Owns the struct dtype in which sizes, boxes and flips travel from `augment/` (which draws them) to
`decode/` (which carries them out), so that neither imports the other. All boxes are (x, y, w, h) in
pixels; a box that reaches beyond its image is filled with `fill` there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GEOMETRY = np.dtype(
    [
        ("crop", np.int32, (4,)),  # region of the decoded image
        ("resize", np.int32, (2,)),  # (w, h) to which that region is resampled; equal to its size: no resampling
        ("window", np.int32, (4,)),  # region of the resampled image that is kept
        ("flip_h", np.bool_),  # mirror left-right, last
        ("flip_v", np.bool_),  # mirror top-bottom, last
    ]
)


@dataclass(frozen=True)
class Resampling:
    """How pixels are resampled; the same for every image of a plan.

    interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos" (Pillow's names).
    antialias: widen the filter when shrinking (Pillow always does).
    domain: "pil" (Pillow's integer resize), "tensor" or "tensor-v1" (torchvision v2 or v1 on uint8 tensors):
        whose pixels the exact decoders reproduce.
    fill: RGB for what lies outside the image in `crop` or `window`.
    """

    interpolation: str = "bilinear"
    antialias: bool = True
    domain: str = "pil"
    fill: tuple[int, int, int] = (0, 0, 0)


def identity(widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """GEOMETRY (n,) that keeps whole images. widths, heights: int (n,), pixels."""
    out = np.zeros(len(widths), GEOMETRY)
    out["crop"][:, 2], out["crop"][:, 3] = widths, heights
    out["resize"] = out["crop"][:, 2:]
    out["window"][:, 2:] = out["crop"][:, 2:]
    return out
