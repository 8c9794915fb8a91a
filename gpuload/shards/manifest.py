"""The manifest of a data set: the indexes of all its shards in one file, so that starting costs one read.

Owns building the indexes in parallel, joining them, and whether a stored manifest still fits every shard. It lies
beside the shards where they share a local folder that can be written, else in the cache directory; what was uploaded
with remote shards is read from beside them.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuload.core.errors import ShardError
from gpuload.core.location import bare, cache_dir, is_local, server_of, shown
from gpuload.core.stamp import Stamp
from gpuload.core.threads import ask_all
from gpuload.shards.index import load, load_beside, open_index, store, to_arrays
from gpuload.shards.table import Finding, ShardScan, join_scans
from gpuload.shards.urls import Options, stamps

BUILD_THREADS = 8
"""Indexing waits for disks and servers, and holds the GIL in between: 8 hide the waiting, more add nothing."""

SUFFIX = ".manifest.gpuload"


def manifest_paths(urls: list[str]) -> list[str]:
    """Where the manifest of exactly these shards may lie, the preferred place first.

    Beside the shards it is named after their names, not their folder's: a data set may move with its manifest.
    """
    absolute = [os.path.abspath(url) if is_local(url) else url for url in urls]
    beside = _beside(absolute)
    paths = [beside] if beside is not None and is_local(beside) else []
    paths.append(os.path.join(cache_dir(), "manifest", f"{_digest(chr(10).join(absolute))[:32]}{SUFFIX}"))
    return paths


def _beside(urls: list[str]) -> str | None:
    """None for shards of several folders."""
    split = [url.rpartition("/") for url in urls]  # of a URL as well: os.path takes a slash from webdav://a.tar
    folders = {folder + slash for folder, slash, _ in split}
    names = "\n".join(name for _, _, name in split)
    return f"{folders.pop()}{_digest(names)[:12]}{SUFFIX}" if len(folders) == 1 else None


def open_manifest(
    urls: list[str],
    options: Options,
    *,
    format: str = "auto",
    tolerant: bool = False,
    rebuild: bool = False,
    on_shard: Callable[[str], None] = lambda url: None,
) -> ShardScan:
    """All samples of these shards, in order. `on_shard` hears of each shard that was indexed.

    format: of all of them, or "auto" for the one that each has. Raises ShardError for a shard that cannot be read or is
    none of that format; tolerant: it becomes a finding, and as long as there is one, no manifest is kept. One shard's
    index is its own manifest. Of shards whose server tells neither time nor etag nothing is kept here: where nothing
    lies beside them, they are indexed anew each time, and a warning says so.
    """
    unusable: list[ShardError] = []
    found_stamps = stamps(urls, options, failed=unusable if tolerant else None)
    urls = [url for url, version in zip(urls, found_stamps, strict=True) if version is not None]
    versions = [version for version in found_stamps if version is not None]
    by_url = dict(zip(urls, versions, strict=True))
    names = [os.path.basename(bare(url)) for url in urls]
    stamps_told = [str(version) for version in versions]
    servers = sorted({server_of(url, options) for url in {is_local(url): url for url in urls}.values()})
    meta = {"kind": "manifest", "format": format, "names": names, "stamps": stamps_told, "server": servers}
    kept = _tell_versions(urls, versions) and len(urls) > 1
    stored = None if rebuild else _stored(urls, versions, meta, options, kept=kept)
    if stored is not None:
        return replace(stored, stamps=by_url)
    scans = _build(urls, versions, options, format, rebuild, unusable if tolerant else None, on_shard)
    if not scans:
        raise unusable[0]
    whole = replace(join_scans(scans), stamps=by_url)
    if unusable:
        lost = tuple(Finding(error.url, "", error.problem, error.cure) for error in unusable)
        return replace(whole, findings=whole.findings + lost)
    if kept:
        store(manifest_paths(urls), to_arrays(whole, meta, urls, versions))
    return whole


def _stored(
    urls: list[str], versions: list[Stamp], meta: Mapping[str, Any], options: Options, *, kept: bool
) -> ShardScan | None:
    """From this machine, else from beside remote shards, and then from this machine the next time."""
    for path in manifest_paths(urls) if kept else ():
        stored = load(path, meta, urls, versions)
        if stored is not None:
            return stored
    uploaded = _beside(urls) if len(urls) > 1 else None
    stored = load_beside(uploaded, meta, urls, versions, options) if uploaded is not None else None
    if stored is not None and kept:
        store(manifest_paths(urls), to_arrays(stored, meta, urls, versions))
    return stored


def _tell_versions(urls: list[str], versions: list[Stamp]) -> bool:
    """Whether every shard's stamp tells its versions apart; else one warning for all of them."""
    silent = [url for url, version in zip(urls, versions, strict=True) if not version.version]
    if silent:
        more = f" (and of {len(silent) - 1} more shards)" if len(silent) > 1 else ""
        warnings.warn(
            f"the server tells neither etag nor modification time of {shown(silent[0])}{more}: no index can be kept, "
            "and it is indexed anew at each start. Serve it by one that does, or copy it to disk",
            stacklevel=2,
        )
    return not silent


def _build(
    urls: list[str],
    versions: list[Stamp],
    options: Options,
    format: str,
    rebuild: bool,
    failed: list[ShardError] | None,
    on_shard: Callable[[str], None],
) -> list[ShardScan]:
    scans: dict[int, ShardScan] = {}

    def open_one(number: int) -> ShardScan:
        return open_index(urls[number], versions[number], options, format=format, rebuild=rebuild)

    for answered in ask_all(open_one, range(len(urls)), threads=BUILD_THREADS, name="gpuload-index"):
        try:
            scans[answered.number] = answered.get()
        except ShardError as error:
            if failed is None:
                raise
            failed.append(error)
        on_shard(urls[answered.number])
    return [scans[number] for number in sorted(scans)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
