"""Checksums of a packed shard, kept beside it: CRC-32 of each image, and of all else in the file.

Owns the file and what is summed. `gpuload pack` writes it before the shard gets its name, so that it also says whether
a shard is whole; `gpuload verify` compares. Images have sums of their own so that damage has a name.

    {"algorithm": "crc32", "size": bytes of the shard, "images": [8 hex digits, ...], "rest": 8 hex digits,
     "images_in_rest": whether "rest" is of all bytes}

CRC-32 is what ZIP and PNG have: `zlib.crc32`. It finds all damage within 32 neighbouring bits, and lets one in 2**32 of
any other pass. Of a photograph of 110 kB it takes 26 us, SHA-256 140 with the help of the processor's instructions for
it (Emerald Rapids), reading and writing it 60; and who can change a shard can change what lies beside it, too.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import is_signed, shown
from gpuload.shards.urls import Options, ReadAt, read_optional

SUFFIX = ".gpuload-sums"
ALGORITHM = "crc32"
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Sums:
    """See above; digests in hexadecimal. images: in the order of the samples."""

    size: int
    images: tuple[str, ...]
    rest: str
    images_in_rest: bool = False

    def to_json(self) -> bytes:
        return json.dumps({"algorithm": ALGORITHM} | vars(self), indent=0).encode()


def read_sums(shard: str, options: Options) -> Sums | None:
    """Those kept beside this shard; None where there are none. Raises ShardError where they cannot be read."""
    url = shard + SUFFIX
    text = None if is_signed(shard) else read_optional(url, options)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found["algorithm"] != ALGORITHM:
            raise ValueError(f"sums by {found['algorithm']}")
        return Sums(int(found["size"]), tuple(map(str, found["images"])), found["rest"], bool(found["images_in_rest"]))
    except (ValueError, KeyError, TypeError) as error:
        cure = "Delete it, or pack again"
        raise ShardError(shown(url), f"no checksums, or damaged: {type(error).__name__}: {error}", cure) from error


def image_sum(data: memoryview | bytes) -> str:
    return sum_text(zlib.crc32(data))


def rest_sum(read_at: ReadAt, size: int, images: np.ndarray) -> str:
    """That of a file but for its images. images: int64 (n, 2), where each begins and ends; any order.

    "" for a file that is shorter than `size`: it never had that sum.
    """
    state = at = 0
    for start, stop in [*sorted(images.tolist()), (size, size)]:
        while at < start:
            part = read_at(at, min(READ_BYTES, start - at))
            if not part:
                return ""
            state = zlib.crc32(part, state)
            at += len(part)
        at = max(at, stop)
    return sum_text(state)


def sum_text(crc: int) -> str:
    return f"{crc:08x}"
