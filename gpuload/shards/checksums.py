"""Checksums of a packed shard, kept beside it: SHA-256 of each image, and of all else in the file.

Owns the file and what is summed. `gpuload pack` writes it before the shard gets its name, so that it also says whether
a shard is whole; `gpuload verify` compares. Images have sums of their own so that damage has a name.

    {"size": bytes of the shard, "images": [hex, ...], "rest": hex, "images_in_rest": whether "rest" is of all bytes}
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import shown
from gpuload.shards.urls import Options, ReadAt, read_optional

SUFFIX = ".gpuload-sums"
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Sums:
    """See above; digests in hexadecimal. images: in the order of the samples."""

    size: int
    images: tuple[str, ...]
    rest: str
    images_in_rest: bool = False

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=0).encode()


def read_sums(shard: str, options: Options) -> Sums | None:
    """Those kept beside this shard; None where there are none. Raises ShardError where they cannot be read."""
    url = shard + SUFFIX
    text = read_optional(url, options)
    if text is None:
        return None
    try:
        found = json.loads(text)
        return Sums(int(found["size"]), tuple(map(str, found["images"])), found["rest"], bool(found["images_in_rest"]))
    except (ValueError, KeyError, TypeError) as error:
        cure = "Delete it, or pack again"
        raise ShardError(shown(url), f"no checksums, or damaged: {error!r}", cure) from error


def image_sum(data: memoryview | bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def rest_sum(read_at: ReadAt, size: int, images: np.ndarray) -> str:
    """The digest of a file but for its images. images: int64 (n, 2), where each begins and ends; any order."""
    state, at = hashlib.sha256(), 0
    for start, stop in [*sorted(images.tolist()), (size, size)]:
        while at < start:
            part = read_at(at, min(READ_BYTES, start - at))
            if not part:
                return state.hexdigest()  # shorter than it was: never the same
            state.update(part)
            at += len(part)
        at = max(at, stop)
    return state.hexdigest()
