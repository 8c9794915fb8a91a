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

from gpuload.cli.progress import count_progress
from gpuload.shards.catalog import tar_shards
from gpuload.shards.manifest import open_manifest
from gpuload.shards.table import Finding
from gpuload.shards.urls import expand


@dataclass(frozen=True)
class Indexed:
    """What was found in the shards. findings: damage, and samples that cannot be used."""

    shards: int
    samples: int
    findings: tuple[Finding, ...]


def index(
    urls: str | os.PathLike[str] | Iterable[str],
    *,
    rebuild: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Indexed:
    """Index these tar shards, all of them anew with `rebuild`. Raises ShardError where one cannot be read."""
    options = dict(storage_options or {})
    shards = [shard for url in expand(urls, options) for shard in tar_shards(url, options)]
    with count_progress("indexing", len(shards), shown=progress) as advance:
        scan = open_manifest(shards, options, rebuild=rebuild, on_shard=lambda url: advance(1))
    return Indexed(len(shards), len(scan.table), scan.findings)


def index_command(
    urls: Annotated[list[str], typer.Argument(help="Tar shards: paths, patterns, folders or URLs.")],
    rebuild: Annotated[bool, typer.Option(help="Index again what is indexed already.")] = False,
) -> None:
    """Make the index of each shard and the manifest of all, so that training starts at once."""
    console = Console(stderr=True)
    done = index(urls, rebuild=rebuild, progress=True)
    for finding in done.findings:
        console.print(str(finding), style="yellow", markup=False, highlight=False)
    console.print(f"{done.samples} samples in {done.shards} shards, {len(done.findings)} findings")
