"""G. Images and columns to the batch that torch's DataLoader would have made, or to the user's collate_fn.

Owns the two ways: built directly where torch's default_collate would stack and convert, with the same structure,
types and values; else finished samples, one list, handed to whatever collate_fn the user gave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import default_collate, default_convert

from gpuload.augment.keyed_random import KeyedRandom
from gpuload.core.batch import BatchPlan, EncodedBatch
from gpuload.core.protocols import Source
from gpuload.core.structure import EncodedImage, Placed, fill, mapping_like, place, replaced


class DirectCollate:
    """default_collate with the images stacked already, one batch of them or a list of those, one a view.

    Numeric columns are converted whole, the rest by torch.
    """

    def __init__(self, source: Source):
        self._source = source

    def __call__(self, images: Any, encoded: EncodedBatch, keep: np.ndarray, plan: BatchPlan) -> Any:
        if len(plan) == 0:
            return default_collate([])  # it raises, and torch's loader with it
        if encoded.samples is None and all(isinstance(column, np.ndarray) for column in encoded.columns):
            columns = [torch.from_numpy(column[keep]) for column in encoded.columns]
            return fill(_listed(self._source.slots), images, columns)
        placed = _samples(self._source, encoded, keep)
        path = placed[0].path
        if any(other.path != path for other in placed):
            single = [list(views) for views in zip(*images, strict=True)] if isinstance(images, list) else images
            return default_collate([sample.with_image(image) for sample, image in zip(placed, single, strict=True)])
        return replaced(default_collate([sample.with_image(0) for sample in placed]), path, images)


class SampleCollate:
    """Finished samples to collate_fn, a user's one batch at a time; its torch draws are keyed by batch.

    pin_memory: pin what it returns, as torch does, for the accelerator of this name.
    """

    def __init__(self, source: Source, collate_fn: Callable[[Any], Any], pinned_for: str | None):
        self._source, self._collate_fn, self._pinned_for = source, collate_fn, pinned_for
        torchs_own = collate_fn in (default_collate, default_convert)
        self._one_at_a_time: Any = nullcontext() if torchs_own else threading.Lock()

    def __call__(self, images: Any, encoded: EncodedBatch, keep: np.ndarray, plan: BatchPlan) -> Any:
        placed = _samples(self._source, encoded, keep)
        samples = [sample.with_image(image) for sample, image in zip(placed, images, strict=True)]
        with self._one_at_a_time, KeyedRandom(plan.first_key() if len(plan) else np.zeros(4, np.uint32)):
            batch = self._collate_fn(samples[0] if plan.single else samples)
        return pin_memory(batch, self._pinned_for) if self._pinned_for is not None else batch


def _samples(source: Source, encoded: EncodedBatch, keep: np.ndarray) -> list[Placed]:
    """The samples of the rows to keep, without their images."""
    if encoded.samples is not None:
        return [sample for row in keep.tolist() if (sample := encoded.samples[row]) is not None]
    columns = [_values(column, keep) for column in encoded.columns]
    hollow = [fill(source.slots, EncodedImage(b""), [column[at] for column in columns]) for at in range(len(keep))]
    path = place(hollow[0]).path if hollow else ()
    return [Placed(sample, path) for sample in hollow]


def _values(column: Any, keep: np.ndarray) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [values[row] for row in keep.tolist()]


def _listed(slots: Any) -> Any:
    """The slots with tuples as lists, which is what default_collate makes of them; named tuples stay."""
    if isinstance(slots, Mapping):
        return mapping_like(slots, {key: _listed(value) for key, value in slots.items()})
    if not isinstance(slots, (tuple, list)):
        return slots
    parts = [_listed(value) for value in slots]
    if hasattr(slots, "_fields"):
        return type(slots)(*parts)
    return parts if isinstance(slots, tuple) else type(slots)(parts)
