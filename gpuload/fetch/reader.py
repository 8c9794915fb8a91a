"""D. Which reader reads these files: the kernel's own calls for local paths, fsspec for every other URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuload.core.location import is_local
from gpuload.core.protocols import RangeReader
from gpuload.fetch.local import LocalReader
from gpuload.fetch.remote import RemoteReader

__all__ = ["LocalReader", "RemoteReader", "reader_for"]


def reader_for(
    urls: Iterable[str], *, storage_options: Mapping[str, Any] | None = None, batches: bool = False
) -> RangeReader:
    """A reader for all of `urls`: local where every one is a path or a file:// URL. batches: as LocalReader's."""
    if all(is_local(url) for url in urls):
        return LocalReader(batches=batches)
    return RemoteReader(storage_options=storage_options)
