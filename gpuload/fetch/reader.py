"""D. Which reader reads these files: the kernel's own calls for local paths, fsspec for every other URL, with a cache
where one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuload.core.location import is_local
from gpuload.core.protocols import RangeReader
from gpuload.core.stamp import Stamp
from gpuload.fetch.cache_spec import parse_cache
from gpuload.fetch.cached import CachedReader
from gpuload.fetch.disk_cache import open_store
from gpuload.fetch.local import LocalReader
from gpuload.fetch.remote import RemoteReader
from gpuload.fetch.whole_files import Listed

__all__ = ["CachedReader", "LocalReader", "RemoteReader", "reader_for"]


def reader_for(
    urls: Iterable[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    batches: bool = False,
    cache: str | None = None,
    stamps: Mapping[str, Stamp] | None = None,
    listed: Listed | None = None,
) -> RangeReader:
    """A reader for all of `urls`: local where every one is a path or a file:// URL.

    batches: as LocalReader's. cache: as parse_cache's, of remote files; stamps: of those whose size and version are
    known, and which must not have changed; listed: what is known of files that are samples. Raises ConfigError for a
    cache that cannot be.
    """
    spec = parse_cache(cache)
    if all(is_local(url) for url in urls):
        return LocalReader(batches=batches, stamps=stamps)
    if spec is None:
        return RemoteReader(storage_options=storage_options, stamps=stamps)
    return CachedReader(open_store(spec), storage_options=storage_options, stamps=stamps, listed=listed)
