"""Arrow files, as Hugging Face `datasets` keeps what it loaded, and its Dataset objects themselves.

Owns finding the values of memory-mapped columns in their files: an uncompressed Arrow buffer lies in the file as it is
in memory, so an image is a range of the file. Which file that is, the system says (/proc/self/maps). Where there is no
such file (data made in memory, other systems), values are expanded once.

Format: arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication (IPC)".
"""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import is_local, local_path, shown
from gpuload.core.stamp import Stamp
from gpuload.shards.arrow_columns import ArrowSamples, pyarrow, roles_of
from gpuload.shards.expansion import Expansion, Shard, expansion
from gpuload.shards.table import ShardScan, missing

MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
"""A file with a footer, and a stream as `datasets` writes it."""

BATCH_ROWS = 1024


def scan_arrow(shard: Shard) -> ShardScan:
    """Index one Arrow file or stream. Raises ShardError, MissingDependencyError."""
    pa = pyarrow(shard.url)
    if not is_local(shard.file):
        raise ShardError(shown(shard.url), "Arrow files are read where they can be memory-mapped", "Copy it to disk")
    try:
        with pa.memory_map(local_path(shard.file)) as source:
            opener = pa.ipc.open_file if source.read(6) == MAGIC[0] else pa.ipc.open_stream
            source.seek(0)
            table = opener(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ShardError(shown(shard.url), f"no Arrow file, or cut off: {error}", "Write it again") from error
    return _scan(shard, table, table.schema)


def is_huggingface(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, told without importing the package."""
    return type(data).__module__.startswith("datasets.") and hasattr(data, "features") and hasattr(data, "data")


def refuse_other_huggingface(data: Any) -> None:
    """Raises ConfigError for what else `datasets` has: splits by name, and streams."""
    if type(data).__module__.startswith("datasets.") and not is_huggingface(data):
        kind = type(data).__name__
        cure = 'Pass one split of it that is a Dataset, such as load_dataset(name, split="train")'
        raise ConfigError(f"a datasets.{kind} has no rows by number. {cure}")


def scan_huggingface(dataset: Any) -> ShardScan:
    """The rows of a `datasets.Dataset`, in its order. Raises ConfigError for one that transforms its rows."""
    kind = dataset.format["type"]
    if kind is not None:
        problem = f"the Dataset has the format {kind!r} (set_transform, with_format), which is not applied here"
        raise ConfigError(f"{problem}. Pass dataset.with_format(None), and what it did as transform=")
    name = f"datasets://{dataset._fingerprint}"  # names the content: any change makes another one
    stamp = Stamp(dataset.data.nbytes, dataset._fingerprint)
    shard = Shard.at(name, stamp, {})
    order = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    return _scan(shard, dataset.data.table, dataset.features.arrow_schema, order)


def _scan(shard: Shard, table: Any, schema: Any, order: np.ndarray | None = None) -> ShardScan:
    """order: int (n,), the table's rows that are the samples; None: all, as they stand."""

    def first(name: str) -> Any:
        return next((v for v in table.column(name).slice(0, BATCH_ROWS).to_pylist() if v is not None), None)

    roles = roles_of(shard.url, schema, first)
    with expansion(shard, "arrow") as expanded:
        places = _Places(expanded, shard.file)
        samples = ArrowSamples(shard, roles, expanded, lambda: places.files)
        row = 0
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            samples.add(batch, places, first_row=row)
            row += len(batch)
    return samples.finish([], order)


class _Places:
    """Where values lie: in the files that the process has mapped into its memory, or in the expansion.

    file: as its user calls the one that is read, whatever links lead to it.
    """

    def __init__(self, expanded: Expansion, file: str):
        self._expanded = expanded
        self._called = {os.path.realpath(local_path(file)): file}
        self._mapped = _mapped_files()
        self._starts = [mapped.start for mapped in self._mapped]
        self._numbers: dict[str, int] = {}

    @property
    def files(self) -> list[str]:
        return list(self._numbers)

    def __call__(self, values: Any, images: bool) -> np.ndarray:
        refs = missing(len(values))
        valid = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        if not len(valid):
            return refs
        wide = str(values.type).startswith("large")
        _, bounds_buffer, data = values.buffers()
        bounds = np.frombuffer(bounds_buffer, np.int64 if wide else np.int32)
        bounds = bounds[values.offset : values.offset + len(values) + 1].astype(np.int64)
        lengths = np.diff(bounds)[valid]
        file = self._file_of(data.address, data.size) if data is not None else None
        if file is not None:
            refs["file"][valid] = self._number(file.path)
            refs["offset"][valid] = bounds[:-1][valid] + data.address - file.start + file.offset
            refs["length"][valid] = lengths
            return refs
        for row, length in zip(valid.tolist(), lengths.tolist(), strict=True):
            start = self._expanded.write(values[row].as_buffer())
            refs[row] = self._number(self._expanded.path), start, length
        return refs

    def _number(self, path: str) -> int:
        return self._numbers.setdefault(self._called.get(path, path), len(self._numbers))

    def _file_of(self, address: int, size: int) -> _Mapped | None:
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0 or address + size > self._mapped[place].stop:
            return None
        return self._mapped[place]


@dataclass(frozen=True)
class _Mapped:
    """A part of a file in this process's memory: addresses start to stop are its bytes from `offset` on."""

    start: int
    stop: int
    offset: int
    path: str


def _mapped_files() -> list[_Mapped]:
    """By address. Format: proc_pid_maps(5). Empty where the system does not tell."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            rows = [line.rstrip("\n").split(maxsplit=5) for line in lines]
    except OSError:
        return []
    found = []
    for row in rows:
        if len(row) == 6 and os.path.isfile(row[5]):  # not those that were deleted, devices, or the heap
            start, stop = (int(part, 16) for part in row[0].split("-"))
            found.append(_Mapped(start, stop, int(row[2], 16), row[5]))
    return found
