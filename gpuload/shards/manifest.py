"""The manifest of a data set: the indexes of all its shards in one file, so that starting costs one read.

Owns building the indexes in parallel, joining them, and whether a stored manifest still fits every shard. It lies
beside the shards where they share a local folder that can be written, else in the cache directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from gpuload.shards.array_file import read_arrays
from gpuload.shards.index import cache_dir, from_arrays, open_index, store, to_arrays
from gpuload.shards.table import join
from gpuload.shards.tar import ShardScan
from gpuload.shards.urls import Options, Stamp, is_local, stamps

BUILD_THREADS = 8
"""Indexing waits for disks and servers, and holds the GIL in between: 8 hide the waiting, more add nothing."""

SUFFIX = ".manifest.gpuload"


def manifest_paths(urls: list[str]) -> list[str]:
    """Where the manifest of exactly these shards may lie, the preferred place first.

    Beside the shards it is named after their names, not their folder's: a data set may move with its manifest.
    """
    paths = []
    absolute = [os.path.abspath(url) if is_local(url) else url for url in urls]
    folders = {os.path.dirname(url) for url in absolute}
    if len(folders) == 1 and is_local(absolute[0]):
        names = "\n".join(os.path.basename(url) for url in absolute)
        paths.append(os.path.join(folders.pop(), f"{_digest(names)[:12]}{SUFFIX}"))
    paths.append(os.path.join(cache_dir(), "manifest", f"{_digest(chr(10).join(absolute))[:32]}{SUFFIX}"))
    return paths


def open_manifest(
    urls: list[str],
    options: Options,
    *,
    rebuild: bool = False,
    on_shard: Callable[[str], None] = lambda url: None,
) -> ShardScan:
    """All samples of these shards, in order. `on_shard` hears of each shard that was indexed. Raises ShardError.

    One shard's index is its own manifest.
    """
    versions = stamps(urls, options)
    names = [os.path.basename(url) for url in urls]
    meta = {"kind": "manifest", "names": names, "stamps": [str(version) for version in versions]}
    if len(urls) > 1 and not rebuild:
        for path in manifest_paths(urls):
            found = read_arrays(path)
            if found is not None and {name: found.meta.get(name) for name in meta} == meta:
                return from_arrays(found, files=urls)
    scans = _build(urls, versions, options, rebuild, on_shard)
    findings = tuple(finding for scan in scans for finding in scan.findings)
    whole = ShardScan(join([scan.table for scan in scans]), findings)
    if len(urls) > 1:
        store(manifest_paths(urls), to_arrays(whole, meta))
    return whole


def _build(
    urls: list[str], versions: list[Stamp], options: Options, rebuild: bool, on_shard: Callable[[str], None]
) -> list[ShardScan]:
    scans: dict[int, ShardScan] = {}
    with ThreadPoolExecutor(min(BUILD_THREADS, len(urls)), thread_name_prefix="gpuload-index") as pool:
        futures = {
            pool.submit(open_index, url, version, options, rebuild=rebuild): number
            for number, (url, version) in enumerate(zip(urls, versions, strict=True))
        }
        try:
            for future in as_completed(futures):
                scans[futures[future]] = future.result()
                on_shard(urls[futures[future]])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [scans[number] for number in range(len(urls))]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
