"""How much a reader may have open, in flight, held and unanswered: the one home of the readers' defaults.

Owns the numbers and their reasons. Readers take them as keywords and decide nothing about them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuload.core.retry import ATTEMPTS, BACKOFF_S, TIMEOUT_S

KIB, MIB = 1 << 10, 1 << 20

CHUNK_BYTES = 8 * MIB
"""What a cache keeps as one: object stores reach their bandwidth at 8 MiB a request, and 200 GB are 24,000 files."""


@dataclass(frozen=True)
class LocalLimits:
    """Knobs of LocalReader.

    threads: callers' own thread included; more than one works only where files answer slowly (cold disks, network
    mounts), where 8 requests in flight hide most of a millisecond's latency. max_open_files: far below the usual
    limit of 1024 a process, of which the user's program wants most. gap_bytes: the tar headers, labels and JSON
    between two neighbouring images; reading 16 KiB from the page cache costs less than another call. max_range_bytes:
    a call that long is sequential to any disk, and short enough to be shared among threads.
    """

    threads: int = 8
    max_open_files: int = 128
    gap_bytes: int = 16 * KIB
    max_range_bytes: int = 8 * MIB


@dataclass(frozen=True)
class RemoteLimits:
    """Knobs of RemoteReader.

    gap_bytes: a request costs 10 to 50 ms, in which an object store sends about this much. max_range_bytes: object
    stores reach their bandwidth at 8 MiB a request. max_ranges, max_bytes: in flight over all callers; small
    ranges need many to hide their latency, a dozen large ones fill a link, and more only leave the CPU's caches (S3 by
    loopback, 2 busy cores, 8, 16 and 32 at once: 1.4, 1.2 and 0.9 of parallel GETs). max_held_bytes:
    of what was read because it is expected (`expect`): two windows of a block order, of 128 MB of ImageNet each.
    timeout_s: the longest time without a byte. attempts: in a row that bring nothing; one that brought a part goes on
    behind it, at most resumptions times. backoff_s: the wait doubles from it each time, with jitter, so that readers
    that failed together do not come back together. threads: for file systems without an asynchronous implementation.
    """

    gap_bytes: int = 256 * KIB
    max_range_bytes: int = 8 * MIB
    max_ranges: int = 64
    max_bytes: int = 96 * MIB
    max_held_bytes: int = 288 * MIB
    timeout_s: float = TIMEOUT_S
    attempts: int = ATTEMPTS
    resumptions: int = 32
    backoff_s: float = BACKOFF_S
    threads: int = 8
