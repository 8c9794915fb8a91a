"""Parquet files with a column of encoded images, by pyarrow.

Owns the row groups, and finding values in the file: where pages are neither compressed nor in a dictionary (what
`datasets` writes today) an image is a range of the file; all else is expanded once. A range is used only where the
file's bytes were compared with what pyarrow read, so that no page header has to be parsed or trusted here.

Format: parquet.apache.org/docs/file-format, "Plain" encoding: uint32 length, then the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import shown
from gpuload.shards.arrow_columns import BATCH_ROWS, REWRITE, ArrowSamples, Roles, pyarrow, roles_of
from gpuload.shards.expansion import Expansion, Shard, expansion
from gpuload.shards.range_file import BLOCK_BYTES, RangeFile
from gpuload.shards.table import Finding, ShardScan, missing
from gpuload.shards.urls import reading

MAGIC = b"PAR1"
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
        except (pa.ArrowException, OSError) as error:
            cure = "Write it again: a Parquet file's directory stands at its end"
            raise ShardError(url, f"no Parquet file, or cut off: {str(error).rstrip('.')}", cure) from error
        schema = parquet.schema_arrow
        roles = roles_of(shard.url, schema, lambda name: _first(pa, parquet, name))
        files = [shard.file, expanded.path]
        samples = ArrowSamples(shard, roles, expanded, lambda: files if expanded.used else files[:1])
        row = 0
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            expanded.check(group.total_byte_size)
            places = _Places(file, expanded, group, roles)
            end = row + group.num_rows
            try:
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[number], use_threads=False):
                    samples.add(batch, places, first_row=row)
                    row += len(batch)
            except (pa.ArrowException, OSError) as error:
                problem = f"rows {row} to {end - 1} cannot be read: {error}"
                findings.append(Finding(shard.url, "", problem, REWRITE))
            row = end
    return samples.finish(findings)


class _Places:
    """Where a row group's values lie: images in the file if they are found there, the rest in the expansion."""

    def __init__(self, file: RangeFile, expanded: Expansion, group: Any, roles: Roles):
        self._file, self._expanded = file, expanded
        self._at, self._end = _plain_pages(group, f"{roles.image}.bytes" if roles.nested else roles.image)

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


def _plain_pages(group: Any, path: str) -> tuple[int, int]:
    """The bytes of the file in which a column's values may lie as they are; none where they are compressed."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == path and column.compression == "UNCOMPRESSED":
            start = column.data_page_offset
            if column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            return start, start + column.total_compressed_size
    return 0, 0


def _first(pa: Any, parquet: Any, name: str) -> Any:
    """The first value of a column that is not null, among those of its first rows."""
    try:
        batches: Iterator[Any] = parquet.iter_batches(BATCH_ROWS, columns=[name], use_threads=False)
        values = next(batches, None)
        return next((value for value in values.column(0).to_pylist() if value is not None), None) if values else None
    except (pa.ArrowException, OSError):
        return None
