"""Seek points of whole shards, made ahead of the first run: a sidecar beside each shard, or a part of the node's file.

Owns the walk over a shard's images on all cores, and where what it finds is kept. Seek points, their files and how a
loader uses them are gpuload/decode/'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.config import default_threads
from gpuload.core.geometry import Resampling
from gpuload.core.location import is_local
from gpuload.core.protocols import RangeReader
from gpuload.decode.entropy_file import sidecar_is_whole, write_sidecar
from gpuload.decode.entropy_index import EntropyIndex
from gpuload.fetch.reader import reader_for
from gpuload.shards.index import ENTROPY_SUFFIX, kept_read_only
from gpuload.shards.table import SampleTable

ROWS = 32  # images a task: 3 MB of photographs, 20 ms of work


@dataclass(frozen=True)
class Scans:
    """images: how many were looked at; indexed: how many of them have seek points now. Others are no JPEGs of a kind
    that has seek points, damaged, too small to profit, or there was nowhere to keep theirs."""

    images: int = 0
    indexed: int = 0


def index_scans(
    shards: Sequence[str],
    table: SampleTable,
    options: Mapping[str, Any],
    *,
    rebuild: bool = False,
    on_bytes: Callable[[int], None] = lambda nbytes: None,
) -> Scans:
    """Make the sidecars that are missing or older than their shards, with `rebuild` all.

    table: the samples; its files are `shards`. Where nothing can be written beside a shard, its seek points go to the
    cache directory's file, which all loaders of this node look into. Raises SampleError for no image: one that has no
    seek points is decoded without.
    """
    from gpuload.decode.native import NativeDecoder  # here, as wherever its kernels may have to be compiled first
    from gpuload.decode.pillow import PillowDecoder

    done = Scans()
    decoder = NativeDecoder(Resampling(), PillowDecoder(Resampling()))
    reader = reader_for(shards, storage_options=options)
    try:
        with ThreadPoolExecutor(default_threads()) as pool:
            for number, shard in enumerate(shards):
                refs = table.images[table.images["file"] == number]
                if rebuild or not _fresh(shard):
                    found = _walk(decoder, reader, pool, shards, refs, on_bytes)
                    done = Scans(done.images + len(refs), done.indexed + _keep(shard, found))
                else:
                    on_bytes(int(refs["length"].sum()))
    finally:
        reader.close()
    return done


def _fresh(shard: str) -> bool:
    if not is_local(shard):
        return False
    try:
        newer = os.stat(shard + ENTROPY_SUFFIX).st_mtime >= os.stat(shard).st_mtime
    except OSError:
        return False
    return newer and sidecar_is_whole(shard + ENTROPY_SUFFIX)


def _walk(
    decoder: Any,
    reader: RangeReader,
    pool: ThreadPoolExecutor,
    shards: Sequence[str],
    refs: np.ndarray,
    on_bytes: Callable[[int], None],
) -> list[tuple[int, bytes]]:
    def task(start: int) -> list[tuple[int, bytes]]:
        part = refs[start : start + ROWS]
        found: list[tuple[int, bytes]] = decoder.seek_points(reader.read(shards, part))
        on_bytes(int(part["length"].sum()))
        return found

    return [one for part in pool.map(task, range(0, len(refs), ROWS)) for one in part]


def _keep(shard: str, found: Sequence[tuple[int, bytes]]) -> int:
    """Write the shard's sidecar, or where that is impossible to the learned file; returns how many are kept now."""
    keys = np.array([key for key, _ in found], np.uint64)
    path = shard + ENTROPY_SUFFIX
    if is_local(shard) and not kept_read_only(os.path.dirname(path) or "."):
        try:
            write_sidecar(path, keys, [record for _, record in found])
        except OSError:
            pass
        else:
            return len(found)
    index = EntropyIndex(learn=True)
    sizes = np.array([len(record) for _, record in found], np.int64)
    index.add(keys, np.frombuffer(b"".join(record for _, record in found), np.uint8), np.cumsum(sizes) - sizes, sizes)
    kept = sum(map(index.holds, keys.tolist()))
    index.close()
    return kept
