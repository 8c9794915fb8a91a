"""A JPEG taken apart into its segments and put together again, and what all changes to them share.

Any bytes have parts: what is no segment is raw. Owns `Part` and the choice of places and bytes; what is changed, and
how often (`WEIGHTS`), is in changes_scan.py, changes_headers.py and changes_file.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

RAW = -1
"""The `marker` of what is no segment: entropy-coded bytes, garbage, the rest of a file whose segments make no sense."""
SOI, EOI, SOS, DQT, DHT, DRI, RST0, TEM = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD, 0xD0, 0x01
BARE = frozenset({SOI, EOI, TEM, *range(RST0, RST0 + 8)})
FRAMES = frozenset(range(0xC0, 0xD0)) - {DHT, 0xC8, 0xCC}


class Part(NamedTuple):
    """A segment (marker and payload), a bare marker, or raw bytes. length: as written, where it isn't the right one."""

    marker: int
    body: bytes = b""
    length: int | None = None

    def encoded(self) -> bytes:
        if self.marker == RAW:
            return self.body
        if self.marker in BARE and not self.body:
            return bytes([0xFF, self.marker])
        length = len(self.body) + 2 if self.length is None else self.length
        return bytes([0xFF, self.marker]) + (length & 0xFFFF).to_bytes(2, "big") + self.body


def split(data: bytes) -> list[Part]:
    """The parts of any bytes; `joined` gives the same bytes back."""
    parts: list[Part] = []
    at, in_scan = 0, False
    while at < len(data):
        marker = (_BEHIND_SCAN if in_scan else _MARKER).search(data, at)
        start = marker.start() if marker else len(data)
        if start > at:
            parts.append(Part(RAW, data[at:start]))
        if marker is None:
            break
        code, at, in_scan = data[start + 1], start + 2, False
        if code in BARE:
            parts.append(Part(code))
            continue
        end = at + int.from_bytes(data[at : at + 2], "big")
        if end < at + 2 or end > len(data):
            parts.append(Part(RAW, data[start:]))
            break
        parts.append(Part(code, data[at + 2 : end]))
        at, in_scan = end, code == SOS
    return parts


_MARKER, _BEHIND_SCAN = re.compile(rb"\xff[^\0\xff]", re.DOTALL), re.compile(rb"\xff[^\0\xff\xd0-\xd7]", re.DOTALL)


def joined(parts: list[Part]) -> bytes:
    return b"".join(part.encoded() for part in parts)


Change = Callable[[random.Random, list[Part]], bool]
"""Edits the parts in place; False where there was nothing that it could change. Its name is the kind of change."""


def find(rng: random.Random, parts: list[Part], *markers: int) -> int | None:
    """The place of one of the parts that have such a marker and aren't empty."""
    places = [i for i, part in enumerate(parts) if part.marker in markers and part.body]
    return rng.choice(places) if places else None


def any_byte(rng: random.Random) -> int:
    return rng.choice(_TELLING) if rng.random() < 0.6 else rng.randrange(256)


_TELLING = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 18, 33, 34, 63, 64, 65, 127, 128, 239, 240, 254, 255)


def edit(rng: random.Random, parts: list[Part], i: int, body: bytes) -> None:
    """The part's new payload; one in eight keeps the length that it had."""
    part = parts[i]
    stale = part.marker != RAW and rng.random() < 0.125
    parts[i] = part._replace(body=body, length=len(part.body) + 2 if stale else None)


def with_byte(rng: random.Random, body: bytes, at: int, value: int | None = None) -> bytes:
    return body[:at] + bytes([any_byte(rng) if value is None else value]) + body[at + 1 :]
