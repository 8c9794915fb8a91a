"""What `cache=` says: how much of remote data may be kept, and where.

Owns the words. Keeping is disk_cache.py's and cache_store.py's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpuload.core.errors import ConfigError
from gpuload.core.location import cache_dir

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?$", re.IGNORECASE)


@dataclass(frozen=True)
class CacheSpec:
    """limit_bytes: at most so many. folder: where on disk; None for this process's memory."""

    limit_bytes: int
    folder: str | None


def parse_cache(cache: str | None) -> CacheSpec | None:
    """None, "200GB" (in the user's cache directory), "200GB:/nvme" or "memory:32GB". Raises ConfigError.

    >>> parse_cache("200GB:/nvme")
    CacheSpec(limit_bytes=200000000000, folder='/nvme')
    """
    if cache is None:
        return None
    if isinstance(cache, str):
        where, _, rest = cache.partition(":")
        in_memory = where.strip().lower() == "memory"
        size = _SIZE.match((rest if in_memory else where).strip())
        if size and (limit := int(float(size[1]) * _UNITS[(size[2] or "").lower()])) > 0:
            folder = None if in_memory else os.path.expanduser(rest) or os.path.join(cache_dir(), "shards")
            return CacheSpec(limit, folder and os.path.abspath(folder))
    raise ConfigError(f'cache={cache!r} is not understood. Write "200GB:/nvme", "200GB" or "memory:32GB"')
