"""Parquet files with a column of encoded images, by pyarrow.

Owns the row groups, and finding values in the file: where pages are neither compressed nor in a dictionary (what
`datasets` writes today) an image is a range of the file; all else is expanded once. A range is used only where the
file's bytes were compared with what pyarrow read, so that no page header has to be trusted here.

Format: parquet.apache.org/docs/file-format, "Plain" encoding: uint32 length, then the bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import shown
from gpuload.shards.arrow_columns import (
    BATCH_ROWS,
    REWRITE,
    ArrowSamples,
    Roles,
    first_value,
    no_rows,
    pyarrow,
    roles_of,
)
from gpuload.shards.expansion import Expansion, Shard, expansion
from gpuload.shards.range_file import BLOCK_BYTES, RangeFile
from gpuload.shards.table import Finding, ShardScan, missing
from gpuload.shards.urls import reading

MAGIC = b"PAR1"
DICTIONARY_PAGE = b"\x15\x04\x15"
"""A page header begins so, before the page's size: Thrift's compact protocol, fields 1 (2, a dictionary) and 2."""

REPEATED_BYTES = 64 << 20
"""Memory for values that rows repeat: a dictionary of a few KB may hold one of 15 MB, and each row name it."""

SEARCH_BYTES = 1 << 20
"""How far behind one value the next may begin: a page's header and levels, and two images in its statistics."""


def scan_parquet(shard: Shard) -> ShardScan:
    """Index one file. Raises ShardError where it cannot be read or holds no images, MissingDependencyError."""
    pa, url = pyarrow(shard.url), shown(shard.url)
    findings: list[Finding] = []
    with reading(shard.file, shard.options) as read_at, expansion(shard, "parquet") as expanded:
        file = RangeFile(read_at, shard.stamp.size)
        try:
            settings = {"buffer_size": BLOCK_BYTES, "pre_buffer": False, "page_checksum_verification": True}
            parquet = pa.parquet.ParquetFile(file, **settings)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            cure = "Write it again: a Parquet file's directory stands at its end"
            raise ShardError(url, f"no Parquet file, or cut off: {str(error).rstrip('.')}", cure) from error
        schema, groups = parquet.schema_arrow, [parquet.metadata.row_group(n) for n in range(parquet.num_row_groups)]
        expanded.check(sum(group.total_byte_size for group in groups))
        if not parquet.metadata.num_rows:
            return no_rows(shard)
        roles = roles_of(shard.url, schema, lambda name: _first(pa, parquet, name, file))
        files = [shard.file, expanded.path]
        samples = ArrowSamples(shard, roles, expanded, lambda: files if expanded.used else files[:1])
        row = 0
        for number, group in enumerate(groups):
            end = row + group.num_rows
            try:
                columns = _columns(parquet, number)
                places = _Places(file, expanded, columns, roles)
                rows = _rows_at_once(file, columns)
                for batch in parquet.iter_batches(rows, row_groups=[number], use_threads=False):
                    samples.add(batch, places, first_row=row)
                    row += len(batch)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                problem = f"rows {row} to {end - 1} cannot be read: {error}"
                findings.append(Finding(shard.url, "", problem, REWRITE))
            row = end
    return samples.finish(findings)


class _Places:
    """Where a row group's values lie: images in the file if they are found there, the rest in the expansion."""

    def __init__(self, file: RangeFile, expanded: Expansion, columns: list[Any], roles: Roles):
        self._file, self._expanded = file, expanded
        self._at, self._end = _plain_pages(columns, f"{roles.image}.bytes" if roles.nested else roles.image)

    def __call__(self, values: Any, images: bool) -> np.ndarray:
        refs = missing(len(values))
        for row, value in enumerate(values):
            if value.is_valid:
                data = value.as_py()
                found = self._find(data) if images and self._at < self._end else -1
                refs[row] = (0, found, len(data)) if found >= 0 else (1, self._expanded.write(data), len(data))
        return refs

    def _find(self, value: bytes) -> int:
        stored = len(value).to_bytes(4, "little") + value
        if self._file.pread(self._at, len(stored)) != stored:
            step = self._file.pread(self._at, len(stored) + SEARCH_BYTES).find(stored)
            if step < 0 or self._at + step + len(stored) > self._end:
                self._at = self._end  # encoded in another way from here on
                return -1
            self._at += step
        start = self._at + 4
        self._at += len(stored)
        return start


def _columns(parquet: Any, number: int) -> list[Any]:
    """What a row group's columns are described as. A row is read first: there pyarrow makes errors of descriptions
    that are damaged, which end the process where they are asked for."""
    next(parquet.iter_batches(1, row_groups=[number], use_threads=False), None)
    group = parquet.metadata.row_group(number)
    return [group.column(place) for place in range(group.num_columns)]


def _plain_pages(columns: list[Any], path: str) -> tuple[int, int]:
    """The bytes of the file in which a column's values may lie as they are; none where they are compressed."""
    for column in columns:
        if column.path_in_schema == path and column.compression == "UNCOMPRESSED":
            start = _first_page(column)
            return start, start + column.total_compressed_size
    return 0, 0


def _first_page(column: Any) -> int:
    start = int(column.data_page_offset)
    return min(start, column.dictionary_page_offset) if column.dictionary_page_offset else start


def _rows_at_once(file: RangeFile, columns: list[Any]) -> int:
    """How many rows of a group with these columns may be asked for, however often they repeat a value."""
    longest = sum(_longest_repeated(file, column) for column in columns if column.physical_type == "BYTE_ARRAY")
    return min(BATCH_ROWS, max(1, REPEATED_BYTES // max(1, longest)))


def _longest_repeated(file: RangeFile, column: Any) -> int:
    """Bytes that no value is longer than, where pages do not hold each row's own; else 0."""
    head = file.pread(_first_page(column), len(DICTIONARY_PAGE) + 5)
    if head.startswith(DICTIONARY_PAGE):
        size = 0
        for place, byte in enumerate(head[len(DICTIONARY_PAGE) :]):
            size |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return size >> 1  # zigzag
    shares = any("DICTIONARY" in encoding or encoding == "DELTA_BYTE_ARRAY" for encoding in column.encodings)
    return int(column.total_uncompressed_size) if shares else 0


def _first(pa: Any, parquet: Any, name: str, file: RangeFile) -> Any:
    """The first value of a column that is not null; None also where what comes before it is damaged."""
    try:
        for number in range(parquet.num_row_groups):
            rows = _rows_at_once(file, _columns(parquet, number))
            for batch in parquet.iter_batches(rows, row_groups=[number], columns=[name], use_threads=False):
                value = first_value(pa, batch.column(0))
                if value is not None:
                    return value
        return None
    except (pa.ArrowException, OSError):
        return None
