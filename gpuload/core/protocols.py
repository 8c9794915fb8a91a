"""Contracts between layers: who calls, on which thread, in which order, who owns the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gpuload.core.batch import NEVER, DecodedRows, DeviceOutput, EncodedBatch, Target

Resolve = Callable[[Sequence[int] | np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(rows of the batch, widths, heights) -> GEOMETRY (len(rows),). Pure: any thread, any number of times.

Raises ValueError where one of these images cannot have what the transform asks (a crop larger than it)."""


class Source(Protocol):
    """An understood data set. Called from one thread at a time unless a method says otherwise.

    `slots` describes the sample: it is what `__getitem__` returns with the image replaced by
    `core.structure.IMAGE` and each other leaf by its column number (see core/structure.py).
    """

    @property
    def slots(self) -> Any: ...

    def __len__(self) -> int: ...

    def name(self, sample: int) -> tuple[str, str]:
        """(shard URL or file, key inside it) for messages. Any thread."""
        ...

    def fetch(self, ids: np.ndarray) -> EncodedBatch:
        """Bytes and columns of these samples. Raises nothing that concerns one sample: that goes to `failures`.

        Called on up to `fetch_threads` threads at once.
        """
        ...

    fetch_threads: int

    def identity(self, ids: np.ndarray) -> tuple[Any, ...] | None:
        """What `fetch` would go by, as a value: equal while these samples are the same. None: only reading tells.

        Reads nothing, and runs none of the user's code.
        """
        ...

    def sidecars(self) -> Sequence[str]:
        """Files of seek points that lie beside the data (decode/entropy_index.py)."""
        ...

    def close(self) -> None:
        """Free files and threads. No call follows."""
        ...


class RangeReader(Protocol):
    """Reads byte ranges of files (fetch/reader.py). Thread-safe; bounded; `close()` ends its threads and files."""

    def read(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        """refs: SAMPLE_REF (n,). Returns data, offsets, lengths, failures; no columns."""
        ...

    def close(self) -> None: ...


class Launcher(Protocol):
    """Runs a kernel once for each of `items`, on the device, in order behind what it launched before."""

    def launch(self, name: str, items: int, *arguments: int) -> None: ...


class DeviceJob(Protocol):
    """E, F. What a decoder left of a batch for the device, as one piece of work. Any thread, once.

    rows: int64 (k,), the rows of the batch that it makes. The device gives it upload_bytes of page-locked memory to
    `write` to, copies them, and gives `launch` the address of the copy, and that of scratch_bytes which nobody else
    uses before the launched work is done. status: where in that scratch memory k int32 are then, 0 for each image that
    is right.
    """

    rows: np.ndarray

    @property
    def upload_bytes(self) -> int: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def status(self) -> slice: ...

    def write(self, upload: np.ndarray) -> None: ...

    def launch(self, launcher: Launcher, upload: int, scratch: int, output: DeviceOutput) -> None: ...


class Decoder(Protocol):
    """E. Encoded bytes to pixels, geometry applied except for the flips. Thread-safe.

    `rows_per_task`: how many rows of a batch one call should take.
    `callers`: how many threads should call at once, given the number of decode threads asked for.
    `close()` frees what it holds; no call follows. A new object works after a fork.
    """

    name: str

    def rows_per_task(self, encoded: EncodedBatch) -> int: ...

    def callers(self, threads: int) -> int: ...

    def sizes(self, encoded: EncodedBatch) -> np.ndarray | None:
        """(width, height) of every image, int64 (n, 2), zeros where unknown; None where only decoding would tell."""
        ...

    def decode(
        self,
        encoded: EncodedBatch,
        rows: range,
        resolve: Resolve,
        target: Target | None = None,
        stop: np.ndarray = NEVER,
    ) -> DecodedRows:
        """Never raises for a bad image: it is None in `images` and named in `failures`.

        target: rows may be put there instead of into `images`. stop: uint8 (1,); once it isn't 0 nobody wants the rows,
        and the call may raise EpochCancelledError.
        """
        ...

    def close(self) -> None: ...


class DeviceDecoder(Decoder, Protocol):
    """A decoder that may leave rows for the device."""

    def device_job(self, staged: Sequence[Any], places: np.ndarray, target: Target) -> DeviceJob:
        """What `decode` staged of a batch's rows, in their order. places: int64, where each row goes in the batch."""
        ...
