"""Writing tar shards: which samples go into which shard, and the same bytes for the same samples.

Owns the layout (USTAR, a PAX header where a name needs one; owner, time and mode fixed, members sorted by extension as
WebDataset does) and the sizes, which are known before anything is written. Reading and files are the caller's.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Mapping

import numpy as np

from gpuload.shards.table import Strings

BLOCK = 512
END = b"\0" * (2 * BLOCK)
USTAR_NAME_BYTES = 100
USTAR_FILE_BYTES = 8**11


def header(name: str, length: int) -> bytes:
    """The header blocks of a member."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = length, 0o644, 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(length: int) -> bytes:
    """What fills a member's last block."""
    return b"\0" * (-length % BLOCK)


def sample_bytes(keys: Strings, lengths: Mapping[str, np.ndarray]) -> np.ndarray:
    """int64 (n,): what each sample takes in a tar. lengths: extension -> int64 (n,), negative where it has none."""
    total = np.zeros(len(keys), np.int64)
    key_bytes = np.diff(keys.bounds)
    for extension, length in lengths.items():
        has = length >= 0
        total += np.where(has, BLOCK + -(-length // BLOCK) * BLOCK, 0)
        plain = keys.text.isascii() and extension.isascii()
        long = (key_bytes + len(extension) + 1 > USTAR_NAME_BYTES) | (length >= USTAR_FILE_BYTES)
        for row in np.flatnonzero(has & (long if plain else np.True_)).tolist():
            total[row] += len(header(f"{keys[row]}.{extension}", int(length[row]))) - BLOCK
    return total


def split(sizes: np.ndarray, *, shard_bytes: int) -> np.ndarray:
    """int64 (shards + 1,): shard i holds samples bounds[i] to bounds[i + 1]. A larger sample is a shard of its own.

    sizes: int64 (n,), n > 0, of each sample in the tar. Shards are filled in order, up to `shard_bytes`.
    """
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        begin = bounds[-1]
        room = shard_bytes - len(END) + (ends[begin - 1] if begin else 0)
        bounds.append(max(begin + 1, int(np.searchsorted(ends, room, "right"))))
    return np.array(bounds, np.int64)


def unique_keys(keys: Iterable[str]) -> Strings:
    """Keys that survive a tar of samples: no dot in the base name, which would end the key there, and none twice.

    >>> list(unique_keys(["a/x.y", "a/x_y", "b/x_y"]))
    ['a/x_y', 'a/x_y-2', 'b/x_y']
    """
    taken: set[str] = set()
    found = []
    for key in keys:
        folder, base = os.path.split(key)
        key = wanted = os.path.join(folder, base.replace(".", "_"))
        number = 1
        while key in taken:
            number += 1
            key = f"{wanted}-{number}"
        taken.add(key)
        found.append(key)
    return Strings.of(found)
