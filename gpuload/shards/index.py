"""The index of one shard: its table, kept beside it as `<shard>.gpuload`, or in the cache directory.

Owns where an index lies and whether it still fits its shard (size and time or etag), and the expansion of it, where
there is one. Beside remote shards lies what was uploaded with them: made elsewhere, it fits shards of the sizes that it
names, and is kept in the cache directory with what the server says of their versions. Making the table is the
format's. An index that is stale, damaged or of another version is made again; one that cannot be stored anywhere costs
the next start the same work.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gpuload.core.location import cache_dir, is_local, is_signed, server_of
from gpuload.core.stamp import Stamp
from gpuload.shards.array_file import Arrays, parse_arrays, read_arrays, write_arrays
from gpuload.shards.expansion import expansion_path, purpose_of
from gpuload.shards.formats import scan_shard
from gpuload.shards.table import Finding, SampleTable, ShardScan, Strings
from gpuload.shards.urls import Options, read_optional

SUFFIX = ".gpuload"
ENTROPY_SUFFIX = ".gpuload-entropy"
"""Of the file beside a shard that holds its images' seek points (decode/entropy_file.py)."""


def index_paths(url: str) -> list[str]:
    """Where the index of a shard may lie, the preferred place first."""
    absolute = os.path.abspath(url) if is_local(url) else url
    digest = hashlib.sha256(absolute.encode("utf-8", "surrogateescape")).hexdigest()
    cached = os.path.join(cache_dir(), "index", digest[:32] + SUFFIX)
    return [url + SUFFIX, cached] if is_local(url) else [cached]


def sidecars_of(shards: Iterable[str]) -> list[str]:
    """The files of seek points that lie beside these shards."""
    paths = [shard + ENTROPY_SUFFIX for shard in shards if is_local(shard)]
    return [path for path in paths if os.path.exists(path)]


def open_index(url: str, stamp: Stamp, options: Options, *, format: str = "auto", rebuild: bool = False) -> ShardScan:
    """The shard's samples, from its index where that still fits, else from the shard itself. Raises ShardError."""
    meta = {"kind": "index", "format": format, "stamps": [str(stamp)], "server": server_of(url, options)}
    if stamp.version and not rebuild:
        for path in index_paths(url):
            scan = load(path, meta, [url], [stamp])
            if scan is not None:
                return scan
    scan = None if rebuild else load_beside(url + SUFFIX, meta, [url], [stamp], options)
    scan = scan or scan_shard(url, stamp, options, format=format)
    if stamp.version:
        store(index_paths(url), to_arrays(scan, meta, [url], [stamp]))
    return scan


def load(path: str, meta: Mapping[str, Any], urls: Sequence[str], versions: Sequence[Stamp]) -> ShardScan | None:
    """What is stored there if its meta is this one, of shards called `urls` now; None where it cannot be used."""
    found = read_arrays(path)
    if found is None or {name: found.meta.get(name) for name in meta} != dict(meta):
        return None
    return from_arrays(found, urls, versions)


def load_beside(
    url: str, meta: Mapping[str, Any], shards: Sequence[str], versions: Sequence[Stamp], options: Options
) -> ShardScan | None:
    """What lies at `url`, beside remote shards, if it is whole and of shards of these names and sizes. One request.

    None for what names expansions, too: they are on the machine that made it. Raises ShardError where the server fails.
    """
    if is_local(url) or "::" in url or is_signed(url):  # a signature is of one file
        return None
    data = read_optional(url, options)
    try:
        found = parse_arrays(data) if data is not None else None
        if found is None or found.meta["format"] not in (meta["format"], "auto"):
            return None
        same = all(found.meta.get(name) == meta[name] for name in meta if name not in ("format", "stamps", "server"))
        sizes = [int(stamp.partition(":")[0]) for stamp in found.meta["stamps"]]
        expanded = any(purpose for _, purpose in found.meta["files"])
        if not same or expanded or sizes != [version.size for version in versions]:
            return None
        return from_arrays(found, shards, versions)
    except (LookupError, TypeError, ValueError):  # whole, but by nothing that writes as we do
        return None


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


def to_arrays(scan: ShardScan, meta: Mapping[str, Any], urls: Sequence[str], versions: Sequence[Stamp]) -> Arrays:
    """A scan of these shards as it is stored: files by shard and purpose, so that shards may move with their index."""
    table = scan.table
    number = {url: i for i, url in enumerate(urls)}
    expanded = {
        expansion_path(url, version, ""): i for i, (url, version) in enumerate(zip(urls, versions, strict=True))
    }
    files = []
    for file in table.files:
        purpose = "" if file in number else purpose_of(file)
        files.append([number[file] if file in number else expanded[file.removesuffix(purpose)], purpose])
    findings = [{**asdict(finding), "shard": number[finding.shard]} for finding in scan.findings]
    arrays = {
        "images": table.images,
        "labels": table.labels,
        "key_text": np.frombuffer(table.keys.text, np.uint8),
        "key_bounds": table.keys.bounds,
        **{f"member:{name}": refs for name, refs in table.members.items()},
    }
    described = {"files": files, "findings": findings, "classes": scan.classes, "encodings": dict(table.encodings)}
    described["label"] = table.label
    return Arrays({**meta, **described}, arrays)


def from_arrays(stored: Arrays, urls: Sequence[str], versions: Sequence[Stamp]) -> ShardScan | None:
    """The inverse of `to_arrays`, of shards as they are called now; None where an expansion is gone or elsewhere."""
    arrays, meta = stored.arrays, stored.meta
    files = []
    for number, purpose in meta["files"]:
        files.append(expansion_path(urls[number], versions[number], purpose) if purpose else urls[number])
        if purpose and not os.path.exists(files[-1]):
            return None
    table = SampleTable(
        Strings.of(files),
        arrays["images"],
        arrays["labels"],
        Strings(arrays["key_text"].tobytes(), arrays["key_bounds"]),
        {name.removeprefix("member:"): refs for name, refs in arrays.items() if name.startswith("member:")},
        meta["encodings"],
        {path: urls[number] for path, (number, purpose) in zip(files, meta["files"], strict=True) if purpose},
        meta["label"],
    )
    findings = tuple(Finding(**{**finding, "shard": urls[finding["shard"]]}) for finding in meta["findings"])
    classes = meta["classes"]
    return ShardScan(table, findings, None if classes is None else tuple(classes))
