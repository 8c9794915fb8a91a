"""The operating system's page cache: files are put out of it, and it is looked at whether they went.

Owns nothing else. No rights are needed for files that may be read; file systems in memory and some network mounts keep
their pages whatever they are told, and the caller says so by the share that `evict` answers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

LOOKED_AT = 64
"""Files that are looked at afterwards, evenly over all: each look reads a byte, which may bring neighbours back."""


def evict(paths: Sequence[str]) -> float | None:
    """Drops the files' pages. Returns the share of files looked at that are still cached, None where none can tell.

    Pages that are not on disk yet are written first. Raises OSError for a file that cannot be opened.
    """
    if not hasattr(os, "posix_fadvise"):
        return None
    for path in paths:
        with open(path, "rb") as file:
            if os.access(path, os.W_OK):
                os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    looks = [_cached(path) for path in paths[:: max(1, len(paths) // LOOKED_AT)]]
    known = [look for look in looks if look is not None]
    return sum(known) / len(known) if known else None


def _cached(path: str) -> bool | None:
    """Whether the middle of a file can be read without its disk, None where the system does not say."""
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return None
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return None
        try:
            os.preadv(file.fileno(), [bytearray(1)], size // 2, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                return None
            raise
    return True
