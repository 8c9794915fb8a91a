"""One batch on its way: what was decided about it (BatchPlan), its bytes (EncodedBatch), its pixels (DecodedRows).

Owns the values that stages hand to each other, lettered as in docs/design.md. No stage keeps one after
passing it on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuload.core.philox import sample_keys
from gpuload.core.structure import Placed


@dataclass(frozen=True)
class TensorSpec:
    """Shape and element type of one image in the batch. shape: (C, H, W); dtype: torch's name, e.g. "float32".

    H and W are 0 where only a batch's images say how large they are: `of_size` then makes the spec of each batch.
    """

    shape: tuple[int, int, int]
    dtype: str
    channels_last: bool = False

    @property
    def open(self) -> bool:
        """Whether only a batch's images say how large they are."""
        return self.shape[1:] == (0, 0)

    def of_size(self, height: int, width: int) -> TensorSpec:
        return TensorSpec((self.shape[0], height, width), self.dtype, self.channels_last)


@dataclass(frozen=True)
class BatchPlan:
    """B. What batch `number` of epoch `epoch` holds.

    ids: int64 (n,), dataset indices in the batch's order; object where the sampler gave other keys. positions:
    int64 (n,), their places in the epoch's order over all ranks. seed, key_epoch: with a position, the random key of a
    sample; keys are computed where they are used, as the consumer's thread is the dearest.
    single: the "batch" is one sample of a loader without automatic batching (`batch_size=None`).
    """

    number: int
    ids: np.ndarray
    positions: np.ndarray
    seed: int = 0
    key_epoch: int = 0
    single: bool = False
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def keys(self) -> np.ndarray:
        """The counter-based random key of each sample: uint32 (n, 4)."""
        return sample_keys(seed=self.seed, epoch=self.key_epoch, positions=self.positions)

    def first_key(self) -> np.ndarray:
        """That of the first sample, for what is drawn once a batch: uint32 (4,)."""
        return sample_keys(seed=self.seed, epoch=self.key_epoch, positions=self.positions[:1])[0]

    def same_as(self, other: BatchPlan) -> bool:
        """Whether both give the same batch of the same data."""
        mine = (self.number, self.seed, self.key_epoch, self.single, self.epoch)
        theirs = (other.number, other.seed, other.key_epoch, other.single, other.epoch)
        return (
            mine == theirs and np.array_equal(self.ids, other.ids) and np.array_equal(self.positions, other.positions)
        )


@dataclass
class EncodedBatch:
    """D. The encoded bytes of a batch: one flat buffer.

    data: uint8 (total,). offsets, lengths: int64 (n,), where each sample lies in `data`.
    columns: the samples' other fields, one entry a Column of the source's slots: an array (n,) or a list of n.
    samples: instead of columns, where samples need not be alike: each as it came, None where it failed.
    failures: row -> the error for samples that could not be read; their length is 0.
    """

    data: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    columns: tuple[Any, ...] = ()
    failures: dict[int, BaseException] = field(default_factory=dict)
    samples: list[Placed | None] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def encoded(self, row: int) -> np.ndarray:
        """The bytes of sample `row`: uint8 (length,), a view."""
        start = self.offsets[row]
        return self.data[start : start + self.lengths[row]]


def join_encoded(
    parts: Sequence[Any], columns: tuple[Any, ...] = (), failures: dict[int, BaseException] | None = None
) -> EncodedBatch:
    """An EncodedBatch of separate buffers (bytes, memoryview, uint8 arrays); a failed row's part is empty."""
    views = [np.frombuffer(part, np.uint8) for part in parts]
    lengths = np.array([v.size for v in views], np.int64)
    ends = np.cumsum(lengths)
    data = np.concatenate(views) if views else np.empty(0, np.uint8)
    return EncodedBatch(data, ends - lengths, lengths, columns, failures or {})


NEVER = np.zeros(1, np.uint8)
"""The stop flag of work that nobody stops."""


@dataclass(frozen=True)
class Target:
    """F. Where the rows of a batch end: a decoder may put them there itself.

    memory: the whole batch's, (n, 3, H, W), any strides, an element's bytes side by side; or what gives it when it is
    first needed, since a device may make all rows: then size is (H, W). table: (3, 256), what is stored for each value
    of each channel, of its type. rectangles: int32 (n, 4), left, top, width and height of what is then set to `erased`,
    (3,) of that type, in each row; None: nothing is.
    """

    memory: np.ndarray | Callable[[], np.ndarray]
    table: np.ndarray
    rectangles: np.ndarray | None = None
    erased: np.ndarray | None = None
    size: tuple[int, int] | None = None

    # No cached_property: before Python 3.12 all instances share its lock, which a fork may find held for ever.

    @property
    def array(self) -> np.ndarray:
        """The memory: (n, 3, H, W)."""
        return self.memory if isinstance(self.memory, np.ndarray) else self.memory()

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of the batch's images."""
        height, width = self.size or self.array.shape[2:]
        return height, width

    @property
    def array_bytes(self) -> np.ndarray:
        """array as uint8 (n, 3, H, W, bytes of an element)."""
        return self.array[..., None].view(np.uint8)

    @property
    def table_bytes(self) -> np.ndarray:
        """table as uint8 (3, 256, bytes of an element)."""
        return np.ascontiguousarray(self.table)[..., None].view(np.uint8)


@dataclass(frozen=True)
class DeviceOutput:
    """Where a batch's images go on the device: the address of element (0, 0, 0, 0), an image's sizes, strides in bytes.

    strides: of an image, a channel, a row, a column.
    """

    address: int
    height: int
    width: int
    strides: tuple[int, int, int, int]


@dataclass
class DecodedRows:
    """E. Pixels of some rows of a batch, geometry applied except for the flips.

    rows: the rows of the batch. images: for each, uint8 (h, w, 3), any strides, or None. stored: the places (in rows)
    of those that the decoder put into the batch itself, flips and all. staged: what it left for the device, if it has
    one; those rows count as stored. geometry: GEOMETRY (len(rows),). failures: row -> error. decoders: how many images
    each decoder took.
    """

    rows: range
    images: list[np.ndarray | None]
    geometry: np.ndarray
    failures: dict[int, BaseException] = field(default_factory=dict)
    decoders: dict[str, int] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    staged: Any = None
