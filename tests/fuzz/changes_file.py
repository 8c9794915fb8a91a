"""Changes to the order of segments and to the file as a whole: lengths, garbage, others' parts, cut or added tails."""

from __future__ import annotations

from random import Random

from tests.fuzz import bases
from tests.fuzz.parts import BARE, RAW, Part, any_byte, edit, find, joined, split, with_byte


def length_of_a_segment(rng: Random, parts: list[Part]) -> bool:
    places = [i for i, part in enumerate(parts) if part.marker not in BARE and part.marker != RAW]
    if not places:
        return False
    i = rng.choice(places)
    right = len(parts[i].body) + 2
    wrong = rng.choice((0, 1, 2, right - 1, right + 1, right + 2, right // 2, right + 64, 65535, rng.randrange(65536)))
    parts[i] = parts[i]._replace(length=wrong)
    return True


def order_of_segments(rng: Random, parts: list[Part]) -> bool:
    """One dropped, doubled, moved, or two of them swapped: what tells tables, frame, scan and end apart."""
    if len(parts) < 2:
        return False
    i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
    act = rng.randrange(4)
    if act == 0:
        del parts[i]
    elif act == 1:
        parts.insert(j, parts[i])
    elif act == 2:
        parts.insert(j, parts.pop(i))
    else:
        parts[i], parts[j] = parts[j], parts[i]
    return True


def garbage_between_segments(rng: Random, parts: list[Part]) -> bool:
    junk = rng.choice(
        (b"\xff", b"\xff\xff\xff", b"\0", b"\xff\0", b"\xff\x01", b"\xff\xd3", b"\xff\xd8", b"\xff\xd9", b"\xff\xf0",
         b"\xff\xdc\0\4\0\x10", b"\xff\x02\0\2", rng.randbytes(rng.choice((1, 3, 30))), b"\xff\xfe\0\2")
    )  # fmt: skip
    parts.insert(rng.randint(0, len(parts)), Part(RAW, junk))
    return True


def splice(rng: Random, parts: list[Part]) -> bool:
    """Segments of another file: one of them in place of ours of the same marker, or all from some place on."""
    other = split(rng.choice(list(bases.generated().values())))
    if rng.random() < 0.3:
        parts[rng.randint(0, len(parts)) :] = other[rng.randrange(len(other)) :]
        return True
    mine = {part.marker for part in parts}
    common = [part for part in other if part.marker in mine and part.body]
    if not common:
        return False
    part = rng.choice(common)
    place = find(rng, parts, part.marker)
    if place is None:
        return False
    parts[place] = part
    return True


def application_segments(rng: Random, parts: list[Part]) -> bool:
    """JFIF, EXIF, Adobe, ICC and the rest: there or not, cut short, with nonsense inside."""
    known = rng.choice(
        (Part(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), Part(0xE0, b"JFXX\0\x10"), Part(0xEE, b"Adobe\0\x64\0\0\0\0\0"),
         Part(0xEE, b"Adobe\0\x64\0\0\0\0\1"), Part(0xEE, b"Adobe\0\x64\0\0\0\0\2"), Part(0xE2, b"ICC_PROFILE\0\1\1"),
         Part(0xE1, b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"),
         Part(0xE2, b"MPF\0II*\0\x08\0\0\0"),
         Part(0xE1, b"Exif\0\0MM\0*" + rng.randbytes(30)), Part(0xED, b"Photoshop 3.0\x008BIM" + rng.randbytes(20)),
         Part(0xFE, rng.randbytes(20)), Part(0xE2, b"FPXR\0"), Part(0xE0 + rng.randrange(16), rng.randbytes(9)))
    )  # fmt: skip
    i = find(rng, parts, *range(0xE0, 0xF0))
    act = rng.randrange(4)
    if i is None or act < 2:
        body = known.body if rng.random() < 0.6 else known.body[: rng.randrange(len(known.body) + 1)]
        if body and rng.random() < 0.3:
            body = with_byte(rng, body, rng.randrange(len(body)))
        parts.insert(rng.randint(1, max(len(parts) - 2, 1)), known._replace(body=body))
    elif act == 2:
        del parts[i]
    else:
        body = parts[i].body
        for _ in range(rng.randint(1, 4)):
            body = with_byte(rng, body, rng.randrange(len(body)))
        edit(rng, parts, i, body[: rng.choice((len(body), len(body), rng.randrange(len(body))))])
    return True


def tail(rng: Random, parts: list[Part]) -> bool:
    """Cut anywhere, or something behind the end: zeros, noise, another file."""
    data = joined(parts)
    if not data:
        return False
    act = rng.randrange(5)
    if act < 2:
        data = data[: rng.randrange(len(data))]
    elif act == 2:
        data = data[: max(len(data) - rng.randint(1, 4), 0)]
    else:
        data += rng.choice((bytes(64), rng.randbytes(20), rng.choice(list(bases.generated().values()))))
    parts[:] = split(data)
    return True


def bytes_anywhere(rng: Random, parts: list[Part]) -> bool:
    """Bits flipped, bytes replaced, a stretch left out or repeated, with no regard for what they are."""
    data = bytearray(joined(parts))
    if len(data) < 4:
        return False
    act = rng.randrange(4)
    at, other = sorted(rng.randrange(len(data)) for _ in range(2))
    if act == 0:
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif act == 1:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = any_byte(rng)
    elif act == 2:
        del data[at : min(other, at + rng.choice((1, 2, 30, 400)))]
    else:
        data[at:at] = data[at : min(other, at + 200)]
    parts[:] = split(bytes(data))
    return True


WEIGHTS = {
    length_of_a_segment: 3,
    order_of_segments: 5,
    garbage_between_segments: 3,
    splice: 4,
    application_segments: 4,
    tail: 3,
    bytes_anywhere: 4,
}
