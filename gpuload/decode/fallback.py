"""What one decoder leaves, another takes: in the same batch, image by image, counted under the other's name."""

from __future__ import annotations

import numpy as np

from gpuload.core.batch import DecodedRows, EncodedBatch
from gpuload.core.errors import EpochCancelledError
from gpuload.core.protocols import Decoder, Resolve


def decode_rest(
    fallback: Decoder, encoded: EncodedBatch, out: DecodedRows, resolve: Resolve, stop: np.ndarray, *, name: str
) -> None:
    """Count what `name` has decoded, and have `fallback` decode every row without an image that could be read."""
    left = [place for place, image in enumerate(out.images) if image is None and place not in out.stored]
    done = len(out.rows) - len(left) - sum(out.decoders.values())  # what is counted by now has a name of its own
    if done:
        out.decoders[name] = done
    for place in left:
        row = out.rows[place]
        if row in encoded.failures:
            continue
        if stop[0]:
            raise EpochCancelledError("the epoch was cancelled")
        part = fallback.decode(encoded, range(row, row + 1), resolve)
        out.images[place], out.geometry[place] = part.images[0], part.geometry[0]
        out.failures.update(part.failures)
        for other, count in part.decoders.items():
            if count:
                out.decoders[other] = out.decoders.get(other, 0) + count
