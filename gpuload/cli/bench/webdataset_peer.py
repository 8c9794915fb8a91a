"""WebDataset on the same samples, as its users write it: its shards, its shuffle, its loader.

Owns nothing but that. The samples are packed by its own writer before anything is timed, JPEG bytes unchanged, in the
order of the round, which is a random one; shards are drawn with replacement, as its documentation says for training.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from gpuload.cli.bench.data import pil_rgb, plain_bytes
from gpuload.cli.bench.subjects import Setting, pil_transform, scratch_folder

SHUFFLED = 1000
"""Samples in its shuffle buffer: the number of its own examples."""


class WebDatasetLoader:
    """An epoch is as many batches as `indices` fill, in whole batches a worker. packed_s: what packing took."""

    def __init__(self, setting: Setting, *, transform: str, indices: Sequence[int], shuffle: bool) -> None:
        wds: Any = importlib.import_module("webdataset")
        from torch.utils.data import default_collate

        began_s = time.perf_counter()
        workers = setting.workers if shuffle else min(1, setting.workers)
        self.files = _pack(wds, setting, list(dict.fromkeys(indices)), shards=4 * max(1, workers) if shuffle else 1)
        self.packed_s = time.perf_counter() - began_s
        self.batches = -(-len(indices) // setting.batch_size)
        dataset = wds.WebDataset(self.files, resampled=shuffle, shardshuffle=False, seed=setting.seed)
        if shuffle:
            dataset = dataset.shuffle(SHUFFLED)
        dataset = (
            dataset.to_tuple("jpg", "cls")
            .map_tuple(_Decoded(pil_transform(transform, setting.size)), int)
            .batched(setting.batch_size, collation_fn=default_collate)
            .with_epoch(-(-self.batches // max(1, workers)))
        )
        self.loader = wds.WebLoader(
            dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0,
            pin_memory=setting.device == "cuda",
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.batches)


class _Decoded:
    """Bytes to sample, in a worker process that may have been spawned: so no lambda."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, data: bytes) -> Any:
        return self.transform(pil_rgb(data))


def _pack(wds: Any, setting: Setting, rows: Sequence[int], *, shards: int) -> list[str]:
    """Paths of the shards, filled evenly with the samples `rows` in their order."""
    folder = scratch_folder(setting, "webdataset")
    samples = plain_bytes(setting.data)
    each = -(-len(rows) // shards)
    with wds.ShardWriter(f"{folder}/%06d.tar", maxcount=each, verbose=0) as writer:
        for number, row in enumerate(rows):
            data, label = samples[row]
            writer.write({"__key__": f"{number:09d}", "jpg": data, "cls": str(label).encode()})
    return [f"{folder}/{number:06d}.tar" for number in range(-(-len(rows) // each))]
