"""Several data sets as one, each drawn as often as its weight says.

Owns the map-style data set that a user makes, and the Source by which the accelerated path reads a batch of it from
the parts' own Sources. Which sample stands where is `sampling/mixing.py`'s, pure.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from gpuload.core.batch import EncodedBatch, join_encoded
from gpuload.core.errors import ConfigError
from gpuload.core.protocols import Source
from gpuload.sampling.mixing import Mixture


class MixedDataset(Dataset):
    """Samples of several map-style data sets, in given proportions, by their place in the mixture.

    datasets: with samples of the same structure, and with the same transform where they are to be accelerated.
    weights: one a data set, in any unit. length: of the mixture; None: the shortest in which every sample comes at
    least once, while the data sets that are used up before begin again. seed: of what stands where.

    With `order="sequential"` every 1,024 consecutive samples have the proportions to within a sample or two; any other
    order shuffles them once more. Lengths are looked at once, here. Raises ConfigError.

    >>> loader = DataLoader(MixedDataset([photos, sketches], [3, 1]), batch_size=256, order="sequential")
    """

    def __init__(self, datasets: Sequence[Any], weights: Sequence[float], length: int | None = None, *, seed: int = 0):
        self.datasets, self.weights, self.seed = list(datasets), tuple(weights), seed
        for dataset in self.datasets:
            if isinstance(dataset, IterableDataset):
                raise ConfigError(f"{type(dataset).__name__} is an IterableDataset: mixed are data sets with an index")
        lengths = tuple(len(dataset) for dataset in self.datasets)
        if length is None:
            self.mixture = Mixture.of_all(lengths, self.weights, seed)
        else:
            self.mixture = Mixture(lengths, self.weights, length, seed)

    def __len__(self) -> int:
        return self.mixture.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several at once: their places are computed together."""
        drawn = self.mixture.at(np.array([self.position(index) for index in indices], np.int64))
        pairs = zip(drawn.part.tolist(), drawn.sample.tolist(), strict=True)
        return [self.datasets[part][sample] for part, sample in pairs]

    def position(self, index: Any) -> int:
        """`index` as a place from 0. Raises TypeError and IndexError."""
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {place} is out of range for a mixture of {len(self)} samples")
        return place % len(self)

    def __repr__(self) -> str:
        parts = ", ".join(f"{weight:g} x {data!r}" for weight, data in zip(self.weights, self.datasets, strict=True))
        return f"MixedDataset({parts}: {len(self)} samples)"


class MixedSource:
    """sources: the parts' own, in their order; closed with this one. Raises ConfigError where their slots differ."""

    def __init__(self, dataset: MixedDataset, sources: Sequence[Source]):
        self._dataset, self._sources = dataset, list(sources)
        self.fetch_threads = min(source.fetch_threads for source in sources)
        self.slots = sources[0].slots
        for number, source in enumerate(sources):
            if source.slots != self.slots:
                self.close()
                raise ConfigError(
                    f"the data sets of a mixture need samples of the same structure: number 0 has "
                    f"{_structure(self.slots)}, number {number} {_structure(source.slots)}"
                )

    def __len__(self) -> int:
        return len(self._dataset)

    def name(self, sample: int) -> tuple[str, str]:
        try:
            place = self._dataset.position(sample)
        except (TypeError, IndexError):
            return type(self._dataset).__name__, ""
        drawn = self._dataset.mixture.at(np.array([place]))
        return self._sources[int(drawn.part[0])].name(int(drawn.sample[0]))

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        failures: dict[int, BaseException] = {}
        rows, places = [], []
        for row, index in enumerate(ids.tolist()):
            try:
                places.append(self._dataset.position(index))
                rows.append(row)
            except (TypeError, IndexError) as error:
                failures[row] = error
        drawn = self._dataset.mixture.at(np.array(places, np.int64))
        parts = []
        for number in np.unique(drawn.part).tolist():
            mine = np.flatnonzero(drawn.part == number)
            parts.append(_Part(np.array(rows)[mine], self._sources[number].fetch(drawn.sample[mine])))
        encoded = _joined(len(ids), parts)
        encoded.failures.update(failures)
        return encoded

    def identity(self, ids: np.ndarray) -> tuple[Any, ...] | None:
        try:
            places = np.array([self._dataset.position(index) for index in ids.tolist()], np.int64)
        except (TypeError, IndexError):
            return None
        drawn = self._dataset.mixture.at(places)
        found = [
            source.identity(drawn.sample[drawn.part == number])
            for number, source in enumerate(self._sources)
            if (drawn.part == number).any()
        ]
        return None if None in found else tuple(found)

    def sidecars(self) -> Sequence[str]:
        return [file for source in self._sources for file in source.sidecars()]

    def close(self) -> None:
        for source in self._sources:
            source.close()


@dataclass(frozen=True)
class _Part:
    """Some rows of a batch, as one data set gave them."""

    rows: np.ndarray
    encoded: EncodedBatch


def _joined(n: int, parts: Sequence[_Part]) -> EncodedBatch:
    """One batch of n rows; those of no part have 0 bytes."""
    if not parts:
        return join_encoded([b""] * n)
    offsets, lengths = np.zeros(n, np.int64), np.zeros(n, np.int64)
    failures: dict[int, BaseException] = {}
    at = 0
    for part in parts:
        offsets[part.rows], lengths[part.rows] = part.encoded.offsets + at, part.encoded.lengths
        failures.update({int(part.rows[row]): error for row, error in part.encoded.failures.items()})
        at += len(part.encoded.data)
    columns = tuple(
        _column(n, [part.rows for part in parts], values)
        for values in zip(*(part.encoded.columns for part in parts), strict=True)
    )
    samples = None
    if parts[0].encoded.samples is not None:
        samples = _column(n, [part.rows for part in parts], [part.encoded.samples for part in parts])
    data = np.concatenate([part.encoded.data for part in parts])
    return EncodedBatch(data, offsets, lengths, columns, failures, samples)


def _column(n: int, rows: Sequence[np.ndarray], values: Sequence[Any]) -> Any:
    """The parts' values in the batch's order: an array where all are arrays of one type, else a list."""
    kinds = {value.dtype if isinstance(value, np.ndarray) else None for value in values}
    if len(kinds) == 1 and None not in kinds:
        column = np.zeros(n, kinds.pop())
        for places, value in zip(rows, values, strict=True):
            column[places] = value
        return column
    listed: list[Any] = [None] * n
    for places, value in zip(rows, values, strict=True):
        for place, entry in zip(
            places.tolist(), value.tolist() if isinstance(value, np.ndarray) else value, strict=True
        ):
            listed[place] = entry
    return listed


def _structure(slots: Any) -> str:
    return "one of its own a sample" if slots is None else repr(slots)
