"""DALI's own pipeline on the same samples: its readers, its decoders, its crops, as its users write it.

Owns nothing but that; DALI's names are reached through `Any`, its generated stubs know neither its constants nor
arithmetic on data nodes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpuload.cli.bench.data import read_plainly
from gpuload.cli.bench.subjects import MEAN, STD, Setting


class DaliLoader:
    """DALI's pipeline with its own file readers, decoders and crops.

    The pipeline never stops: an epoch is a number of batches, and the next one's are already being made. That is how
    it is used, and why its first batch and its epoch boundary cost nothing after the first time.
    """

    def __init__(self, setting: Setting, *, transform: str, indices: Sequence[int], shuffle: bool) -> None:
        dali: Any = importlib.import_module("nvidia.dali")
        dali_math: Any = importlib.import_module("nvidia.dali.math")
        fn: Any = importlib.import_module("nvidia.dali.fn")
        types = dali.types

        gpu = setting.device == "cuda"
        side, shorter = setting.size, setting.size * 256 // 224
        data = read_plainly(setting.data, lambda image: image, lambda data: data)

        def centre(room: Any) -> Any:
            half = room // 2  # torchvision rounds the half pixel of an odd rest to even, DALI would round it up
            return fn.cast(half + (room & 1) * (half & 1), dtype=types.FLOAT) / dali_math.max(room, 1)

        @dali.pipeline_def
        def pipe():  # type: ignore[no-untyped-def]
            if setting.data.kind == "tar":
                encoded, labels = fn.readers.webdataset(
                    paths=list(setting.data.shards), ext=["jpg;jpeg;png", "cls"], random_shuffle=shuffle, name="reader",
                    missing_component_behavior="empty", dont_use_mmap=setting.cold,
                )  # fmt: skip
                labels = fn.pad(labels, fill_value=ord(" "))
            else:
                encoded, labels = fn.readers.file(
                    files=[data.paths[i] for i in indices], labels=[data.labels[i] for i in indices],
                    random_shuffle=shuffle, name="reader", dont_use_mmap=setting.cold,
                )  # fmt: skip
            decoder: dict[str, Any] = {
                "device": "mixed" if gpu else "cpu",
                "output_type": types.RGB,
                "adjust_orientation": False,  # Pillow and torchvision do not rotate by EXIF either
                "jpeg_fancy_upsampling": True,
            }
            if transform == "train":
                images = fn.decoders.image_random_crop(
                    encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], num_attempts=10, **decoder
                )
                images = fn.resize(images, size=[side, side], interp_type=types.INTERP_LINEAR, antialias=True)
                place = {"mirror": fn.random.coin_flip()}
            elif transform == "flip":
                images = fn.decoders.image(encoded, **decoder)
                place = {"mirror": fn.random.coin_flip()}
            else:
                height, width = (fn.peek_image_shape(encoded, dtype=types.INT32)[i] for i in (0, 1))
                short = dali_math.min(height, width)
                height, width = shorter * height // short, shorter * width // short
                size = fn.cast(fn.stack(height, width), dtype=types.FLOAT)
                images = fn.decoders.image(encoded, **decoder)
                images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=True)
                place = {"crop_pos_y": centre(height - side), "crop_pos_x": centre(width - side)}
            images = fn.crop_mirror_normalize(
                images, crop=(side, side), dtype=types.FLOAT, output_layout="CHW",
                mean=[255 * m for m in MEAN], std=[255 * s for s in STD], **place,
            )  # fmt: skip
            return images, labels

        self.on_tar = setting.data.kind == "tar"
        self.batches = -(-len(indices) // setting.batch_size)
        self.pipeline = pipe(
            batch_size=setting.batch_size, num_threads=max(1, setting.workers), device_id=0 if gpu else None,
            seed=setting.seed + 1,
        )  # fmt: skip
        self.pipeline.build()

    def __iter__(self) -> Iterator[Any]:
        import torch

        for _ in range(self.batches):
            images, labels = self.pipeline.run()
            if self.on_tar:
                numbers = torch.from_numpy(numbers_of(np.asarray(labels.as_tensor())))
            else:
                numbers = torch.from_dlpack(labels.as_tensor()).flatten()
            yield torch.from_dlpack(images.as_tensor()), numbers


def numbers_of(texts: np.ndarray) -> np.ndarray:
    """Labels int64 (N,) from `.cls` members, uint8 (N, L), padded with spaces; 0 where one is no number.

    A batch at once: text by text it would take DALI's consumer longer than DALI takes for a small image.
    """
    numbers = np.zeros(len(texts), np.int64)
    digits = (texts >= ord("0")) & (texts <= ord("9"))
    for column, digit in zip(texts.T, digits.T, strict=True):
        numbers = np.where(digit, 10 * numbers + column - ord("0"), numbers)
    return np.where((digits | (texts <= ord(" "))).all(axis=1), numbers, 0)
