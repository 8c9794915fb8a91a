"""`gpuload index`: makes the indexes and the manifest of shards ahead of the first run.

Owns the command only; what an index is and where it lies is shards/index.py's and shards/manifest.py's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from gpuload.cli.progress import bytes_progress, count_progress
from gpuload.core.location import is_local
from gpuload.shards.catalog import shards_of
from gpuload.shards.manifest import open_manifest
from gpuload.shards.table import Finding
from gpuload.shards.urls import expand


@dataclass(frozen=True)
class Indexed:
    """What was found in the shards. findings: damage, and samples that cannot be used. scans: images that were looked
    at for seek points, and how many of them have some now."""

    shards: int
    samples: int
    findings: tuple[Finding, ...]
    scans: int = 0
    seekable: int = 0


def index(
    urls: str | os.PathLike[str] | Iterable[str],
    *,
    entropy: bool | None = None,
    rebuild: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Indexed:
    """Index these shards, all of them anew with `rebuild`. Raises ShardError where one cannot be read.

    entropy: also look for the seek points of each JPEG, for which all data is read. None: of local shards.
    """
    options = dict(storage_options or {})
    shards = [shard for url in expand(urls, options) for shard in shards_of(url, options)]
    with count_progress("indexing", len(shards), shown=progress) as advance:
        scan = open_manifest(shards, options, rebuild=rebuild, on_shard=lambda url: advance(1))
    if not (all(map(is_local, shards)) if entropy is None else entropy):
        return Indexed(len(shards), len(scan.table), scan.findings)
    from gpuload.entropy_sidecars import index_scans  # here: it takes 0.4 s to import

    with bytes_progress("finding seek points", int(scan.table.images["length"].sum()), shown=progress) as advance:
        scans = index_scans(list(scan.table.files), scan.table, options, rebuild=rebuild, on_bytes=advance)
    return Indexed(len(shards), len(scan.table), scan.findings, scans.images, scans.indexed)


def index_command(
    urls: Annotated[list[str], typer.Argument(help="Shards: paths, patterns, folders or URLs.")],
    entropy: Annotated[
        bool | None,
        typer.Option(help="Find seek points in the JPEGs, for which all data is read.", show_default="local shards"),
    ] = None,
    rebuild: Annotated[bool, typer.Option(help="Index again what is indexed already.")] = False,
) -> None:
    """Make the index of each shard and the manifest of all, so that training starts at once and crops decode fast."""
    console = Console(stderr=True)
    done = index(urls, entropy=entropy, rebuild=rebuild, progress=True)
    for finding in done.findings:
        console.print(str(finding), style="yellow", markup=False, highlight=False)
    seek = f", seek points of {done.seekable} of {done.scans} images new" if done.scans else ""
    console.print(f"{done.samples} samples in {done.shards} shards, {len(done.findings)} findings{seek}")
