"""Changes to the entropy-coded data: bits, bytes, markers in its midst, restart markers and their interval."""

from __future__ import annotations

import re
from random import Random

from tests.fuzz.parts import DHT, DQT, DRI, EOI, RAW, RST0, SOI, SOS, TEM, Part, any_byte, find


def _scan(rng: Random, parts: list[Part]) -> int | None:
    """The place of a scan's data: what stands behind a scan header."""
    raw = [i for i in range(1, len(parts)) if parts[i].marker == RAW and parts[i].body]
    places = [i for i in raw if parts[i - 1].marker == SOS]
    return rng.choice(places) if places else None


def bits_of_the_scan(rng: Random, parts: list[Part]) -> bool:
    if (i := _scan(rng, parts)) is None:
        return False
    body = bytearray(parts[i].body)
    for _ in range(rng.randint(1, 8)):
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    parts[i] = Part(RAW, bytes(body))
    return True


def bytes_of_the_scan(rng: Random, parts: list[Part]) -> bool:
    """Some replaced, inserted or left out."""
    if (i := _scan(rng, parts)) is None:
        return False
    body = parts[i].body
    at, count = rng.randrange(len(body)), rng.choice((1, 1, 2, 3, 8, 40))
    new = b"" if rng.random() < 0.3 else bytes(any_byte(rng) for _ in range(count))
    parts[i] = Part(RAW, body[:at] + new + body[at + rng.choice((0, count)) :])
    return True


def another_scan(rng: Random, parts: list[Part]) -> bool:
    """Random bits, ones or zeros from some byte on: codes of every length, runs beyond the block, values of 15 bits."""
    if (i := _scan(rng, parts)) is None:
        return False
    body = parts[i].body
    keep = rng.choice((0, rng.randrange(len(body))))
    fill = rng.choice((None, None, 0, 0xFF, 0xFE, rng.randrange(256)))
    rest = len(body) - keep + rng.randrange(64)
    new = rng.randbytes(rest) if fill is None else bytes([fill]) * rest
    parts[i] = Part(RAW, body[:keep] + new.replace(b"\xff", b"\xff\0"))
    return True


def marker_in_the_scan(rng: Random, parts: list[Part]) -> bool:
    if (i := _scan(rng, parts)) is None:
        return False
    body = parts[i].body
    at = rng.choice((rng.randrange(len(body)), rng.randrange(len(body)), 0, len(body)))
    code = rng.choice((EOI, EOI, SOI, SOS, DHT, DQT, DRI, TEM, 0xC0, 0xE0, 0xFE, 0xFF, 0, RST0 + rng.randrange(8)))
    parts[i] = Part(RAW, body[:at] + bytes([0xFF] * rng.choice((1, 1, 2, 5)) + [code]) + body[at:])
    return True


def restart_markers(rng: Random, parts: list[Part]) -> bool:
    """One doubled, dropped, renumbered, moved, or two of them swapped; or a scan made of another interval's pieces."""
    if (i := _scan(rng, parts)) is None:
        return False
    pieces = re.split(rb"(\xff[\xd0-\xd7])", parts[i].body)
    if len(pieces) < 3:
        return False
    at, other = (rng.randrange(1, len(pieces), 2) for _ in range(2))
    act = rng.randrange(6)
    if act == 0:
        pieces[at] *= 2
    elif act == 1:
        pieces[at] = b""
    elif act == 2:
        pieces[at] = bytes([0xFF, RST0 + rng.randrange(8)])
    elif act == 3:
        pieces[at], pieces[other] = pieces[other], pieces[at]
    elif act == 4:
        pieces[at - 1], pieces[other - 1] = pieces[other - 1], pieces[at - 1]
    else:
        del pieces[at : at + 2]
    parts[i] = Part(RAW, b"".join(pieces))
    return True


def restart_interval(rng: Random, parts: list[Part]) -> bool:
    """Another one, one where there was none, or a segment of a wrong size."""
    interval = rng.choice((0, 1, 2, 3, 7, 8, 255, 65535, rng.randrange(65536)))
    body = interval.to_bytes(2, "big")[: rng.choice((2, 2, 2, 2, 1, 0))] + bytes(rng.choice((0, 0, 0, 0, 1)))
    i = find(rng, parts, DRI)
    if i is not None and rng.random() < 0.7:
        parts[i] = Part(DRI, body)
    else:
        parts.insert(rng.randint(1, len(parts)), Part(DRI, body))
    return True


WEIGHTS = {
    bits_of_the_scan: 8,
    bytes_of_the_scan: 5,
    another_scan: 4,
    marker_in_the_scan: 5,
    restart_markers: 5,
    restart_interval: 3,
}
