"""The index of one shard: its table, kept beside it as `<shard>.gpuload`, or in the cache directory.

Owns where an index lies and whether it still fits its shard (size and time or etag). Making the table is the
format's. An index that is stale, damaged or of another version is made again; one that cannot be stored anywhere
costs the next start the same work, as does one of a shard whose versions its server does not tell apart.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from gpuload.core.location import cache_dir, is_local
from gpuload.shards.array_file import Arrays, read_arrays, write_arrays
from gpuload.shards.table import Finding, SampleTable, Strings
from gpuload.shards.tar import ShardScan, scan_tar
from gpuload.shards.urls import Options, Stamp

SUFFIX = ".gpuload"
ENTROPY_SUFFIX = ".gpuload-entropy"
"""Of the file beside a shard that holds its images' seek points (decode/entropy_file.py)."""


def index_paths(url: str) -> list[str]:
    """Where the index of a shard may lie, the preferred place first."""
    absolute = os.path.abspath(url) if is_local(url) else url
    cached = os.path.join(cache_dir(), "index", hashlib.sha256(absolute.encode()).hexdigest()[:32] + SUFFIX)
    return [url + SUFFIX, cached] if is_local(url) else [cached]


def sidecars_of(shards: Iterable[str]) -> list[str]:
    """The files of seek points that lie beside these shards."""
    paths = [shard + ENTROPY_SUFFIX for shard in shards if is_local(shard)]
    return [path for path in paths if os.path.exists(path)]


def open_index(url: str, stamp: Stamp, options: Options, *, rebuild: bool = False) -> ShardScan:
    """The shard's samples, from its index where that still fits, else from its headers. Raises ShardError."""
    if not stamp.version:
        return scan_tar(url, stamp.size, options)
    meta = {"kind": "index", "stamp": str(stamp)}
    if not rebuild:
        for path in index_paths(url):
            found = read_arrays(path)
            if found is not None and {name: found.meta.get(name) for name in meta} == meta:
                return from_arrays(found, files=[url])
    scan = scan_tar(url, stamp.size, options)
    store(index_paths(url), to_arrays(scan, meta))
    return scan


def store(paths: list[str], content: Arrays) -> str | None:
    """Write to the first of `paths` that can be written; None where none can."""
    for path in paths:
        if kept_read_only(os.path.dirname(path) or "."):
            continue
        try:
            write_arrays(path, content)
        except OSError:
            continue
        return path
    return None


def kept_read_only(folder: str) -> bool:
    """Whether nobody may write there: root could, and must not leave files in a data set that is kept read-only."""
    return os.path.isdir(folder) and not os.stat(folder).st_mode & 0o222


def to_arrays(scan: ShardScan, meta: Mapping[str, Any]) -> Arrays:
    """A scan as it is stored: files by number, so that shards may move with their index."""
    table = scan.table
    number = {file: i for i, file in enumerate(table.files)}
    findings = [{**asdict(finding), "shard": number[finding.shard]} for finding in scan.findings]
    arrays = {
        "images": table.images,
        "labels": table.labels,
        "key_text": np.frombuffer(table.keys.text, np.uint8),
        "key_bounds": table.keys.bounds,
        **{f"member:{name}": refs for name, refs in table.members.items()},
    }
    return Arrays({**meta, "findings": findings}, arrays)


def from_arrays(stored: Arrays, *, files: list[str]) -> ShardScan:
    """The inverse of `to_arrays`; `files` as they are called now."""
    arrays = stored.arrays
    table = SampleTable(
        Strings.of(files),
        arrays["images"],
        arrays["labels"],
        Strings(arrays["key_text"].tobytes(), arrays["key_bounds"]),
        {name.removeprefix("member:"): refs for name, refs in arrays.items() if name.startswith("member:")},
    )
    findings = [Finding(**{**finding, "shard": files[finding["shard"]]}) for finding in stored.meta["findings"]]
    return ShardScan(table, tuple(findings))
