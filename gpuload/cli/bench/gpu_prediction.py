"""What gpuload's kernels should take of an H200, where none has measured it yet: the numbers, in one place.

Owns the numbers of docs/kernels.md, "On the GPU", which says where each comes from: bounds by memory and by dependent
instructions, for 256 ImageNet photographs (60 KB of scan each), RandomResizedCrop(224) to float32, written down before
anything ran on a GPU. Whoever shows them calls them predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "predicted for an H200 from memory and instruction counts (docs/kernels.md, On the GPU), not measured"

BATCH = 256
FIXED_US = {"build_tables": 20, "lay_out_images": 5, "decode_segments": 350, "fill_weights": 10}
"""Launches as long as their longest thread. A smaller batch takes as long, and so does a larger one until its segments
fill the GPU, at some 2,800 images: 132 multiprocessors of 2,048 threads, 94 segments an image."""

GROWING_US = {"transform_blocks": 80, "to_rgb": 60, "first_pass": 50, "store_4": 60}
"""Launches that are bound by what they move or compute, for BATCH images. The upload beside them is 62 KB an image, a
microsecond of PCIe."""

STAGING_US, JOINING_US = 33, 12
"""The host's part of an image: finding and copying the bytes, and writing them into the upload, on one core."""


@dataclass(frozen=True)
class GpuTake:
    """Seconds of GPU: batch_s of every batch, image_s of every image. host_s: CPU seconds of an image."""

    batch_s: float
    image_s: float
    host_s: float


def predicted() -> GpuTake:
    """For the photographs above.

    >>> take = predicted()
    >>> round(1000 * (take.batch_s + 256 * take.image_s), 3)
    0.635
    """
    return GpuTake(
        batch_s=sum(FIXED_US.values()) / 1e6,
        image_s=sum(GROWING_US.values()) / BATCH / 1e6,
        host_s=(STAGING_US + JOINING_US) / 1e6,
    )
