"""Which data sets the accelerated path understands, and how their samples are located.

Owns the recognition (by identity of the methods that make samples, never by isinstance alone: a subclass that
overrides one of them means something else) and one small Source a kind. What is not recognised runs torch's path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, Subset

from gpuload.augment.torchvision import NotUnderstoodError
from gpuload.config import LOCAL_FETCH_THREADS, REMOTE_FETCH_THREADS
from gpuload.core.batch import EncodedBatch, join_encoded
from gpuload.core.protocols import Source
from gpuload.core.refs import as_ids, whole_files
from gpuload.core.structure import IMAGE, Column, Placed, place
from gpuload.dataset import ShardDataset
from gpuload.fetch.reader import LocalReader
from gpuload.mixed import MixedDataset, MixedSource
from gpuload.numbered import Numbered, NumberedSource
from gpuload.shards.arrow import is_huggingface

_ONE_THREAD = "get_encoded is called from one thread at a time; encoded_thread_safe = True lets several call it"


@dataclass(frozen=True)
class Understood:
    """A data set that the accelerated path can run: what it is, its Source and its image transform.

    open_source: makes the Source; it opens files and is closed by whoever asked for it. notes: worth knowing.
    """

    what: str
    transform: Any
    open_source: Callable[[], Source]
    notes: tuple[str, ...] = ()


def understand(dataset: Dataset[Any]) -> Understood:
    """How to read `dataset` without calling its `__getitem__`. Raises NotUnderstoodError that says why not."""
    kind = type(dataset)
    if isinstance(dataset, IterableDataset):
        raise NotUnderstoodError(f"{kind.__name__} is an IterableDataset: only its own iterator knows its samples")
    if kind is Subset:
        inner = understand(dataset.dataset)  # type: ignore[attr-defined]
        what = f"Subset of {inner.what}"
        return Understood(what, inner.transform, lambda: SubsetSource(dataset, inner.open_source()), inner.notes)
    if kind is Numbered:
        inner = understand(dataset.dataset)  # type: ignore[attr-defined]
        what = f"{inner.what}, numbered"
        return Understood(what, inner.transform, lambda: NumberedSource(dataset, inner.open_source()), inner.notes)
    if kind is MixedDataset:
        return _mixed(dataset)  # type: ignore[arg-type]
    if callable(getattr(dataset, "get_encoded", None)) and not isinstance(dataset, ShardDataset):
        _nothing_overrides(dataset)
        if not hasattr(dataset, "transform"):
            raise NotUnderstoodError(f"{kind.__name__} has get_encoded but no `transform` to apply to its images")
        notes = () if getattr(dataset, "encoded_thread_safe", False) else (_ONE_THREAD,)
        what = f"{kind.__name__}, through get_encoded"
        return Understood(what, dataset.transform, lambda: EncodedSource(dataset), notes)
    if isinstance(dataset, ShardDataset):
        _same_methods(dataset, ShardDataset, ("__getitem__", "__len__", "get_encoded", "refs", "columns"))
        return Understood(repr(dataset), dataset.transform, lambda: ShardSource(dataset))
    return _folder(dataset)


def _mixed(dataset: MixedDataset) -> Understood:
    parts = [understand(part) for part in dataset.datasets]
    transform = parts[0].transform
    if any(part.transform is not transform and part.transform != transform for part in parts):
        raise NotUnderstoodError("the data sets of a mixture have transforms of their own: pass one object to all")
    what = "mixture of " + ", ".join(part.what for part in parts)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Understood(what, transform, lambda: MixedSource(dataset, [part.open_source() for part in parts]), notes)


def _folder(dataset: Dataset[Any]) -> Understood:
    kind = type(dataset).__name__
    folder = sys.modules.get("torchvision.datasets.folder")
    if folder is None or not isinstance(dataset, folder.DatasetFolder):
        raise NotUnderstoodError(
            f"{kind} is not a data set that gpuload knows (torchvision's ImageFolder and DatasetFolder, their Subset, "
            f"gpuload.ShardDataset, or any with get_encoded){_wrap_it(dataset)}"
        )
    _same_methods(dataset, folder.DatasetFolder, ("__getitem__", "__len__"))
    loader = dataset.loader
    if loader is folder.default_loader:
        import torchvision

        if torchvision.get_image_backend() != "PIL":
            raise NotUnderstoodError(f"torchvision's image backend is {torchvision.get_image_backend()}, not PIL")
    elif loader is not folder.pil_loader:
        raise NotUnderstoodError(f"{kind} loads its images with {getattr(loader, '__name__', loader)!r}")
    return Understood(f"{kind} at {dataset.root}", dataset.transform, lambda: FolderSource(dataset))


def _wrap_it(dataset: Any) -> str:
    return ": ShardDataset(dataset, transform=...) reads it as it lies" if is_huggingface(dataset) else ""


def _nothing_overrides(dataset: Any) -> None:
    """Refuse a class that changes what samples are below the one that says how they are encoded."""
    for kind in type(dataset).__mro__:
        if "get_encoded" in vars(kind):
            return
        changed = {"__getitem__", "__getitems__", "__len__"} & vars(kind).keys()
        if changed:
            raise NotUnderstoodError(f"{kind.__name__} overrides {min(changed)} but not get_encoded")


def _same_methods(dataset: Any, base: type, names: Sequence[str]) -> None:
    kind = type(dataset)
    for name in names:
        if getattr(kind, name) is not getattr(base, name) or name in vars(dataset):
            raise NotUnderstoodError(f"{kind.__name__} overrides {base.__name__}.{name}")
    if hasattr(kind, "__getitems__"):
        raise NotUnderstoodError(f"{kind.__name__} defines __getitems__")


class FolderSource:
    """torchvision's ImageFolder and DatasetFolder: a file a sample. Looks at `samples` anew for each batch."""

    slots = (IMAGE, Column(0))

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self._reader = LocalReader()
        # a user's method is called from one thread
        self.fetch_threads = LOCAL_FETCH_THREADS if dataset.target_transform is None else 1

    def __len__(self) -> int:
        return len(self._dataset.samples)

    def name(self, sample: int) -> tuple[str, str]:
        try:
            return str(self._dataset.samples[sample][0]), ""
        except (IndexError, TypeError):
            return str(self._dataset.root), ""

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        failures: dict[int, BaseException] = {}
        paths: list[str] = []
        targets: list[Any] = []
        for row, sample in enumerate(ids.tolist()):
            try:
                path, target = self._dataset.samples[sample]
                if self._dataset.target_transform is not None:
                    target = self._dataset.target_transform(target)
            except Exception as error:  # out of range, or the user's method: this sample's error
                failures[row] = error
                path, target = "", None
            paths.append(str(path))
            targets.append(target)
        encoded = self._reader.read(paths, whole_files(np.arange(len(paths))))
        encoded.failures.update(failures)
        encoded.columns = (_column(targets),)
        return encoded

    def identity(self, ids: np.ndarray) -> tuple[Any, ...] | None:
        samples = self._dataset.samples
        if self._dataset.target_transform is not None or type(samples) is not list:
            return None
        try:
            found = tuple(samples[sample] for sample in ids.tolist())
        except (IndexError, TypeError):
            return None
        return found if all(type(sample) is tuple and type(sample[1]) is int for sample in found) else None

    def sidecars(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._reader.close()


class EncodedSource:
    """Any map-style data set with `get_encoded`. One thread at a time unless it says `encoded_thread_safe = True`."""

    slots = None  # samples need not be alike: each keeps its own structure

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self.fetch_threads = LOCAL_FETCH_THREADS if getattr(dataset, "encoded_thread_safe", False) else 1

    def __len__(self) -> int:
        return len(self._dataset)

    def name(self, sample: int) -> tuple[str, str]:
        return type(self._dataset).__name__, ""

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        failures: dict[int, BaseException] = {}
        parts: list[Any] = []
        samples: list[Placed | None] = []
        for row, key in enumerate(ids.tolist()):
            try:
                placed = place(self._dataset.get_encoded(key))
                parts.append(_bytes(placed.image.data))
                samples.append(Placed(placed.with_image(None), placed.path))
            except Exception as error:  # the user's method may raise anything: this sample's error
                failures[row] = error
                parts.append(b"")
                samples.append(None)
        encoded = join_encoded(parts, (), failures)
        encoded.samples = samples
        return encoded

    def identity(self, ids: np.ndarray) -> None:
        return None

    def sidecars(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing of ours to free."""


class ShardSource:
    """gpuload.ShardDataset: ranges of shards, columns from its index."""

    def __init__(self, dataset: ShardDataset):
        self._dataset = dataset
        self._reader = dataset.new_reader(batches=True)
        self.fetch_threads = LOCAL_FETCH_THREADS if isinstance(self._reader, LocalReader) else REMOTE_FETCH_THREADS
        self.slots = dataset.slots
        self.expect = None if isinstance(self._reader, LocalReader) else self._expect
        self.cache_stats = getattr(self._reader, "cache_stats", None)

    def __len__(self) -> int:
        return len(self._dataset)

    def _expect(self, ids: np.ndarray) -> object:
        """These are read soon (lookahead.py)."""
        return self._reader.expect(self._dataset.files, self._dataset.refs(ids))  # type: ignore[attr-defined]

    def name(self, sample: int) -> tuple[str, str]:
        if not isinstance(sample, int) or not -len(self) <= sample < len(self):
            return repr(self._dataset), ""
        return self._dataset.name(sample)

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        length = len(self)
        failures: dict[int, BaseException] = {}
        for row, sample in enumerate(ids.tolist()):
            if not isinstance(sample, int):
                failures[row] = TypeError(f"index {sample!r} is no integer")
            elif not -length <= sample < length:
                failures[row] = IndexError(f"index {sample} is out of range for a data set of {length} samples")
        outside = np.isin(np.arange(len(ids)), list(failures))
        if outside.all():
            return join_encoded([b""] * len(ids), (), failures)
        safe = np.where(outside, 0, ids).astype(np.int64)
        safe[safe < 0] += length
        encoded = self._reader.read(self._dataset.files, self._dataset.refs(safe))
        encoded.columns = self._dataset.columns(safe, failures)
        encoded.failures.update(failures)
        encoded.lengths[list(encoded.failures)] = 0
        return encoded

    def identity(self, ids: np.ndarray) -> tuple[Any, ...] | None:
        if ids.dtype == object or ids.min(initial=0) < 0 or ids.max(initial=0) >= len(self):
            return None
        return self._dataset.identity(ids)

    def sidecars(self) -> Sequence[str]:
        return self._dataset.sidecars()

    def close(self) -> None:
        self._reader.close()


class SubsetSource:
    """torch's Subset of a source: its ids are the inner data set's through `indices`."""

    def __init__(self, subset: Any, inner: Source):
        self._subset, self._inner = subset, inner
        self.fetch_threads = inner.fetch_threads
        known = isinstance(subset.indices, (list, range)) and hasattr(inner, "expect")
        self.expect = self._expect if known and inner.expect is not None else None  # type: ignore[attr-defined]
        self.cache_stats = getattr(inner, "cache_stats", None)

    def _expect(self, ids: np.ndarray) -> object:
        inner = as_ids([self._subset.indices[sample] for sample in ids.tolist()])
        return self._inner.expect(inner)  # type: ignore[attr-defined]

    @property
    def slots(self) -> Any:
        return self._inner.slots

    def __len__(self) -> int:
        return len(self._subset.indices)

    def name(self, sample: int) -> tuple[str, str]:
        try:
            return self._inner.name(self._subset.indices[sample])
        except Exception:  # as in fetch, which says what it was
            return type(self._subset).__name__, ""

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        failures: dict[int, BaseException] = {}
        inner: list[Any] = []
        for row, sample in enumerate(ids.tolist()):
            try:
                inner.append(self._subset.indices[sample])
            except Exception as error:  # indices may be any sequence of the user's
                failures[row] = error
                inner.append(0)  # whatever that gives is not delivered
        encoded = self._inner.fetch(as_ids(inner))
        encoded.failures.update(failures)
        return encoded

    def identity(self, ids: np.ndarray) -> tuple[Any, ...] | None:
        indices = self._subset.indices
        if not isinstance(indices, (list, range)):
            return None  # any sequence of the user's
        try:
            return self._inner.identity(as_ids([indices[sample] for sample in ids.tolist()]))
        except (IndexError, TypeError):
            return None

    def sidecars(self) -> Sequence[str]:
        return self._inner.sidecars()

    def close(self) -> None:
        self._inner.close()


def _bytes(data: Any) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data, np.uint8)


def _column(values: list[Any]) -> Any:
    if all(type(value) is int for value in values):
        return np.array(values, np.int64)
    return values
