"""A damaged JPEG for every seed: a file taken apart into its segments, changed in one to six places, put together.

Flipping bits of a whole file mostly breaks its header, and nothing behind the header is ever reached. So changes know
what they change: a table, a frame, a restart marker, a byte of the scan; lengths are corrected behind most of them.
A seed's file is a pure function of the seed, the base files and the changes. Every fourth seed damages an odd file of
jpeg-conformance, and has no file where there are none. Owns that function; bases.py has the files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from tests.fuzz import bases, changes_file, changes_headers, changes_scan
from tests.fuzz.parts import FRAMES, Part, joined, split

CHEAP_PIXELS = 1 << 19
BOMB_PIXELS = 2 * (1 << 30) // 4 // 3
"""Sizes above what Pillow refuses cost nothing, those up to CHEAP_PIXELS little; a size between is brought down."""

_WEIGHTS = changes_scan.WEIGHTS | changes_headers.WEIGHTS | changes_file.WEIGHTS
KINDS = {change: change.__name__.replace("_", " ") for change in _WEIGHTS}
"""What each kind of change is called."""


@dataclass(frozen=True)
class Mutant:
    """seed's file, what it was made of, and the kinds of changes, in order."""

    seed: int
    base: str
    kinds: tuple[str, ...]
    data: bytes


def mutant(seed: int) -> Mutant | None:
    """The file of a seed; None where it wants one of the odd files and there are none."""
    rng = random.Random(seed)
    is_odd = seed % 4 == 3
    files = bases.odd() if is_odd else bases.generated()
    if not files:
        return None
    base = rng.choice(list(files))
    if not is_odd and rng.random() < 0.25:
        base, parts = "drawn", split(bases.drawn(rng))
    else:
        parts = list(_parts_of(is_odd, base))
    kinds: list[str] = []
    for _ in range(rng.choices(range(1, 7), (8, 5, 3, 2, 1, 1))[0]):
        for _ in range(20):  # one that finds nothing to change makes room for another
            change = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            if change(rng, parts):
                kinds.append(KINDS[change])
                break
    return Mutant(seed, base, tuple(kinds), joined(_cheap(split(joined(parts)))))


@cache
def _parts_of(is_odd: bool, base: str) -> tuple[Part, ...]:
    return tuple(split((bases.odd() if is_odd else bases.generated())[base]))


def _cheap(parts: list[Part]) -> list[Part]:
    for i, part in enumerate(parts):
        if part.marker in FRAMES and len(part.body) >= 5:
            height, width = int.from_bytes(part.body[1:3], "big"), int.from_bytes(part.body[3:5], "big")
            if CHEAP_PIXELS < width * height <= BOMB_PIXELS:
                height = CHEAP_PIXELS // width
                parts[i] = part._replace(body=part.body[:1] + height.to_bytes(2, "big") + part.body[3:])
    return parts
