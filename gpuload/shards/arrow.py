"""Arrow files, as Hugging Face `datasets` keeps what it loaded, and its Dataset objects themselves.

Owns finding values in their files: an uncompressed Arrow buffer lies in the file as it is in memory, so an image is a
range of the file. Of what is memory-mapped the system says which file that is (/proc/self/maps); a remote file is read
message by message, each a record batch of which it is known where it came from. Where there is no such file (data made
in memory, compressed buffers, other systems), values are expanded once.

Format: arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication (IPC)".
"""

from __future__ import annotations

import bisect
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import is_local, local_path, shown
from gpuload.core.stamp import Stamp
from gpuload.shards.arrow_columns import ArrowSamples, first_value, no_rows, pyarrow, roles_of
from gpuload.shards.expansion import Expansion, Shard, expansion
from gpuload.shards.range_file import RangeFile
from gpuload.shards.table import ShardScan, missing
from gpuload.shards.urls import reading

MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
"""A file with a footer, and a stream as `datasets` writes it."""

BATCH_ROWS = 1024


def scan_arrow(shard: Shard) -> ShardScan:
    """Index one Arrow file or stream. Raises ShardError, MissingDependencyError."""
    pa = pyarrow(shard.url)
    if not is_local(shard.file):
        return _scan_messages(pa, shard)
    try:
        with pa.memory_map(local_path(shard.file)) as source:
            opener = pa.ipc.open_file if source.read(6) == MAGIC[0] else pa.ipc.open_stream
            source.seek(0)
            table = _validated(pa, opener(source).read_all())
        return _scan(shard, table, table.schema) if len(table) else no_rows(shard)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ShardError(shown(shard.url), f"no Arrow file, or cut off: {error}", "Write it again") from error


def _validated(pa: Any, table: Any) -> Any:
    """The table, or batch. Raises ArrowInvalid for offsets that lead elsewhere: what follows them ends the process.

    Texts are looked at as bytes: one that is no UTF-8 is that sample's.
    """
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    for column in table.columns:
        (column.cast(plain[column.type]) if column.type in plain else column).validate(full=True)
    return table


def _scan_messages(pa: Any, shard: Shard) -> ShardScan:
    """Of a remote file, which is read once from its beginning to its end."""
    with reading(shard.file, shard.options) as read_at, expansion(shard, "arrow") as expanded:
        file = RangeFile(read_at, shard.stamp.size)
        places = _Places(expanded, shard.file, [])
        samples: ArrowSamples | None = None
        row = 0
        try:
            messages, schema = _opened(pa, file)
            if any(pa.types.is_dictionary(kind) for kind in schema.types):
                cure = "Copy it to disk, or write it without dictionaries"
                raise ShardError(shown(shard.url), "a column of it is a dictionary, which is only read locally", cure)
            for message in messages:
                batch = _validated(pa, pa.ipc.read_record_batch(message, schema))
                if not len(batch):
                    continue
                body, end = message.body, file.tell()
                places.mapped = [_Mapped(body.address, body.address + body.size, end - body.size, shard.file)]
                samples = samples or _samples(shard, schema, batch, expanded, places)
                for start in range(0, len(batch), BATCH_ROWS):
                    samples.add(batch.slice(start, BATCH_ROWS), places, first_row=row + start)
                row += len(batch)
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise ShardError(shown(shard.url), f"no Arrow file, or cut off: {error}", "Write it again") from error
    return samples.finish([]) if samples is not None else no_rows(shard)


def _opened(pa: Any, file: RangeFile) -> tuple[Iterator[Any], Any]:
    """(record batches' messages, schema): a file with a footer holds a stream behind its first 8 bytes.

    Raises pyarrow's errors, and EOFError where batches that the footer names do not come.
    """
    footed = file.pread(0, 6) == MAGIC[0]
    count = pa.ipc.open_file(file).num_record_batches if footed else None
    file.seek(8 if footed else 0)
    reader = iter(pa.ipc.MessageReader.open_stream(pa.PythonFile(file, mode="r")))
    head = next(reader, None)
    if head is None:
        raise EOFError("it ends before its schema")

    def messages() -> Iterator[Any]:
        came = 0
        for message in reader:
            came += 1
            yield message
        if count is not None and came != count:
            raise EOFError(f"its footer names {count} batches, and {came} come one after the other")

    return messages(), pa.ipc.read_schema(head)


def _samples(shard: Shard, schema: Any, batch: Any, expanded: Expansion, places: _Places) -> ArrowSamples:
    """batch: the first one, or a table, by whose values columns are told apart."""
    pa = pyarrow(shard.url)
    roles = roles_of(shard.url, schema, lambda name: first_value(pa, batch.column(name)))
    return ArrowSamples(shard, roles, expanded, lambda: places.files)


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
    batches, mapped = table.to_batches(max_chunksize=BATCH_ROWS), _mapped_files()
    with expansion(shard, f"arrow_{_layout(batches, mapped)}") as expanded:
        places = _Places(expanded, shard.file, mapped)
        samples = _samples(shard, schema, table, expanded, places)
        row = 0
        for batch in batches:
            samples.add(batch, places, first_row=row)
            row += len(batch)
    return samples.finish([], order)


def _layout(batches: list[Any], mapped: list[_Mapped]) -> str:
    """A digest of what decides which values are expanded, and in which order.

    A Dataset that was loaded into memory has the fingerprint of the same one in its files, and may have other batches:
    their expansions hold other bytes.
    """
    state = hashlib.sha256()
    for batch in batches:
        buffers = [buffer for column in batch.columns for buffer in column.buffers()]
        in_files = [buffer is not None and _part_of(mapped, buffer) is not None for buffer in buffers]
        state.update(f"{len(batch)} {in_files}\n".encode())
    return state.hexdigest()[:16]


class _Places:
    """Where values lie: in the files of which parts are in memory, or in the expansion.

    file: as its user calls the one that is read, whatever links lead to it. mapped: those parts, by address.
    """

    def __init__(self, expanded: Expansion, file: str, mapped: list[_Mapped]):
        self._expanded, self.mapped = expanded, mapped
        self._called = {os.path.realpath(local_path(file)): file} if is_local(file) else {}
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
        end = values.offset + len(values) + 1
        bounds = np.frombuffer(bounds_buffer, np.int64 if wide else np.int32, end)[values.offset :].astype(np.int64)
        lengths = np.diff(bounds)[valid]
        file = _part_of(self.mapped, data) if data is not None else None
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


@dataclass(frozen=True)
class _Mapped:
    """A part of a file in this process's memory: addresses start to stop are its bytes from `offset` on."""

    start: int
    stop: int
    offset: int
    path: str


def _part_of(mapped: list[_Mapped], buffer: Any) -> _Mapped | None:
    """Which of these holds all of an Arrow buffer; none holds an empty one, which lies anywhere, as in a library."""
    if not buffer.size:
        return None
    place = bisect.bisect_right(mapped, buffer.address, key=attrgetter("start")) - 1
    return mapped[place] if place >= 0 and buffer.address + buffer.size <= mapped[place].stop else None


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
