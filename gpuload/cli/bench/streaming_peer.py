"""MosaicML's StreamingDataset on the same samples, as its users write it: its MDS shards, its order, its loader.

Owns nothing but that. The samples are packed by its own writer before anything is timed, JPEG bytes unchanged, and
read from the local folder: a download is what `gpuload bench --storage` is for.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuload.cli.bench.data import pil_rgb, plain_bytes
from gpuload.cli.bench.subjects import Setting, pil_transform, scratch_folder


class StreamingLoader:
    """An epoch is `indices` long, its samples drawn by StreamingDataset. packed_s: what packing took."""

    def __init__(self, setting: Setting, *, transform: str, indices: Sequence[int], shuffle: bool) -> None:
        streaming: Any = importlib.import_module("streaming")
        began_s = time.perf_counter()
        folder = scratch_folder(setting, "streaming")
        _pack(streaming, setting, list(dict.fromkeys(indices)), folder)
        self.packed_s = time.perf_counter() - began_s
        self.files = [str(path) for path in Path(folder).iterdir()]
        dataset = streaming.StreamingDataset(
            local=folder, shuffle=shuffle, batch_size=setting.batch_size, epoch_size=len(indices),
            num_canonical_nodes=1, shuffle_seed=setting.seed,
        )  # fmt: skip
        self.loader = streaming.StreamingDataLoader(
            dataset, batch_size=setting.batch_size, num_workers=setting.workers,
            persistent_workers=setting.workers > 0, pin_memory=setting.device == "cuda",
            collate_fn=_Collated(pil_transform(transform, setting.size)),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _Collated:
    """Samples as the shards hold them to a batch, in a worker process that may have been spawned: so no lambda."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        from torch.utils.data import default_collate

        return default_collate([(self.transform(pil_rgb(sample["image"])), sample["label"]) for sample in samples])


def _pack(streaming: Any, setting: Setting, rows: Sequence[int], folder: str) -> None:
    samples = plain_bytes(setting.data)
    with streaming.MDSWriter(out=folder, columns={"image": "bytes", "label": "int"}) as writer:
        for row in rows:
            data, label = samples[row]
            writer.write({"image": data, "label": label})
