"""Samples that carry their number: which they were, for a memory bank, hard examples, or a look at a bad batch.

Owns the data set that a user wraps around another and the Source by which the accelerated path reads it. The number
is one field more, so what `on_error` leaves out or replaces, a collate_fn and torch's path treat it as they do a label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from gpuload.core.batch import EncodedBatch
from gpuload.core.protocols import Source
from gpuload.core.structure import IMAGE, Column, Placed, map_leaves


class Numbered(Dataset):
    """A map-style data set whose samples end with their number: `dataset[i]` is (image, label, i).

    dataset: any other. A dict has it under `name`; a sample that is neither tuple, list nor dict becomes (sample, i),
    as a named tuple does. The number is what the sampler gave; a replaced sample has that of its replacement.

    >>> for images, labels, numbers in DataLoader(Numbered(ImageFolder(root, transform)), batch_size=256): ...
    """

    def __init__(self, dataset: Any, name: str = "number"):
        self.dataset, self.name = dataset, name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return numbered(self.dataset[index], index, self.name)


def numbered(sample: Any, number: Any, name: str) -> Any:
    """The sample, or its slots, with one more field."""
    if isinstance(sample, Mapping):
        return {**sample, name: number}
    return type(sample)([*sample, number]) if type(sample) in (tuple, list) else (sample, number)


class NumberedSource:
    """core.protocols.Source of a Numbered: the inner one's, with a column more."""

    def __init__(self, dataset: Any, inner: Source):
        self._name, self._inner = dataset.name, inner
        self.fetch_threads = inner.fetch_threads
        self.expect, self.cache_stats = (getattr(inner, name, None) for name in ("expect", "cache_stats"))
        fields: list[Any] = []
        map_leaves(fields.append, inner.slots)
        number = Column(sum(field is not IMAGE for field in fields))
        self.slots = None if inner.slots is None else numbered(inner.slots, number, self._name)

    def __len__(self) -> int:
        return len(self._inner)

    def name(self, sample: int) -> tuple[str, str]:
        return self._inner.name(sample)

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        encoded = self._inner.fetch(ids)
        if encoded.samples is None:
            encoded.columns = (*encoded.columns, ids if ids.dtype != object else ids.tolist())
        else:
            pairs = zip(encoded.samples, ids.tolist(), strict=True)
            encoded.samples = [None if placed is None else self._placed(placed, number) for placed, number in pairs]
        return encoded

    def identity(self, ids: np.ndarray) -> tuple[Any, ...] | None:
        return self._inner.identity(ids)

    def _placed(self, placed: Placed, number: Any) -> Placed:
        inside = isinstance(placed.sample, Mapping) or type(placed.sample) in (tuple, list)
        path = placed.path if inside else (0, *placed.path)
        return Placed(numbered(placed.sample, number, self._name), path)

    def sidecars(self) -> Sequence[str]:
        return self._inner.sidecars()

    def close(self) -> None:
        self._inner.close()
