"""Changes to tables, frame and scan headers: values that no encoder writes, in segments mostly of the right size."""

from __future__ import annotations

from random import Random

from tests.fuzz.parts import DHT, DQT, FRAMES, RAW, SOS, Part, any_byte, edit, find, with_byte


def quantisation_table(rng: Random, parts: list[Part]) -> bool:
    """Values of 0, 1, 255 or 65535, 16 bits instead of 8, another number, a table cut short, or one that follows."""
    if (i := find(rng, parts, DQT)) is None:
        return False
    body = parts[i].body
    act = rng.randrange(5)
    if act == 0:
        body = body[:1] + bytes([rng.choice((0, 1, 255))]) * (len(body) - 1)
    elif act == 1:
        wide = rng.choice((0, 1, 255, 256, 32767, 65535)).to_bytes(2, "big")
        body = bytes([0x10 | body[0] & 3]) + b"".join(rng.choice((wide, rng.randbytes(2))) for _ in range(64))
    elif act == 2:
        body = with_byte(rng, body, 0)
    elif act == 3:
        body = body[: rng.randrange(len(body))]
    else:
        body += bytes([any_byte(rng)]) + rng.randbytes(rng.choice((0, 3, 63, 64, 64, 128)))
    edit(rng, parts, i, body)
    return True


def counts_of_a_huffman_table(rng: Random, parts: list[Part]) -> bool:
    """One count or two changed: codes too many for their length, none at all, more or fewer than symbols."""
    if (i := find(rng, parts, DHT)) is None or len(parts[i].body) < 17:
        return False
    body = bytearray(parts[i].body)
    before = sum(body[1:17])
    for _ in range(rng.choice((1, 1, 2, 16))):
        at = rng.randint(1, 16)
        body[at] = rng.choice((0, 1, 2, body[at] + 1 & 255, max(body[at] - 1, 0), any_byte(rng)))
    if rng.random() < 0.7:  # as many symbols as codes
        symbols = bytes(body[17 : 17 + before])
        body[17 : 17 + before] = (symbols + rng.randbytes(16 * 255))[: sum(body[1:17])]
    edit(rng, parts, i, bytes(body))
    return True


def symbols_of_a_huffman_table(rng: Random, parts: list[Part]) -> bool:
    """Runs and sizes that no encoder means, symbols twice, or in another order."""
    if (i := find(rng, parts, DHT)) is None or len(parts[i].body) < 18:
        return False
    body = bytearray(parts[i].body)
    for _ in range(rng.choice((1, 2, 5))):
        at, other = rng.randrange(17, len(body)), rng.randrange(17, len(body))
        body[at] = rng.choice((body[other], 0, 0x0F, 0xF0, 0xFF, any_byte(rng)))
    edit(rng, parts, i, bytes(body))
    return True


def another_huffman_table(rng: Random, parts: list[Part]) -> bool:
    """A whole one of random shape: short codes or long ones, full or nearly so, in place of one or before it."""
    if (i := find(rng, parts, DHT)) is None:
        return False
    counts: list[int] = []
    room = 1
    for _ in range(16):
        room = min(room * 2, 1 << 16)
        counts.append(min(rng.choice((0, 0, 1, 2, room // 2, room, max(room - 1, 0))), room, 256 - sum(counts)))
        room -= counts[-1]
    top = rng.choice((11, 15, 15, 255))
    symbols = bytes(rng.choice((0, rng.randint(0, top), rng.randint(0, top))) for _ in range(sum(counts)))
    table = Part(DHT, parts[i].body[:1] + bytes(min(count, 255) for count in counts) + symbols)
    parts[i : i + rng.choice((0, 1))] = [table]
    return True


def number_of_a_table(rng: Random, parts: list[Part]) -> bool:
    """DC for AC, 0 for 1, or a number that no table may have."""
    if (i := find(rng, parts, DHT, DQT)) is None:
        return False
    number = rng.choice((0, 1, 2, 3, 0x10, 0x11, 0x12, 0x13, 4, 0x14, 0x20, 255))
    edit(rng, parts, i, with_byte(rng, parts[i].body, 0, number))
    return True


def size_of_the_image(rng: Random, parts: list[Part]) -> bool:
    """A little more or less, nothing, 65535; the scan then ends too soon, or too late."""
    if (i := find(rng, parts, *FRAMES)) is None or len(parts[i].body) < 5:
        return False
    body = parts[i].body
    sides = [int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")]
    for side in rng.choice(((0,), (1,), (0, 1))):
        sides[side] = rng.choice(
            (0, 1, 7, 8, 9, 16, 17, 255, 256, 32768, 65500, 65535, sides[side] + 1, sides[side] + 8, sides[side] - 1,
             sides[side] ^ 16, rng.randrange(128))
        )  # fmt: skip
    high, wide = (max(side, 0).to_bytes(3, "big")[-2:] for side in sides)
    parts[i] = parts[i]._replace(body=body[:1] + high + wide + body[5:])
    return True


def components_of_the_frame(rng: Random, parts: list[Part]) -> bool:
    """Sampling factors, ids, table numbers; or another number of components."""
    if (i := find(rng, parts, *FRAMES)) is None or len(parts[i].body) < 9:
        return False
    body = parts[i].body
    count = (len(body) - 6) // 3
    spec = 6 + 3 * rng.randrange(count)
    act = rng.randrange(5)
    if act < 2:
        factors = rng.choice((0x11, 0x12, 0x21, 0x22, 0x14, 0x41, 0x44, 0x31, 0x33, 0x23, 0x01, 0x10, 0, 0x51, 255))
        body = with_byte(rng, body, spec + 1, factors)
    elif act == 2:
        body = with_byte(rng, body, spec, rng.choice((0, 1, 2, 3, 82, 71, 66, 255)))
    elif act == 3:
        body = with_byte(rng, body, spec + 2, rng.choice((0, 1, 2, 3, 4, 255)))
    else:
        count = rng.choice((0, 1, 2, 3, 4, 5, 255))
        body = with_byte(rng, body, 5, count)
        if rng.random() < 0.7:
            body = (body + bytes([1, 0x11, 0, 2, 0x11, 1, 3, 0x11, 1, 4, 0x11, 0]))[: 6 + 3 * count]
    edit(rng, parts, i, body)
    return True


def process_or_precision(rng: Random, parts: list[Part]) -> bool:
    """Extended, progressive, lossless, arithmetic, hierarchical; samples of 12 bits, 0 or 255."""
    if (i := find(rng, parts, *FRAMES)) is None:
        return False
    if rng.random() < 0.6:
        parts[i] = parts[i]._replace(marker=rng.choice((0xC0, 0xC1, 0xC1, *sorted(FRAMES), 0xC8, 0xCC)))
    else:
        parts[i] = parts[i]._replace(body=with_byte(rng, parts[i].body, 0, rng.choice((0, 1, 7, 8, 9, 12, 16, 255))))
    return True


def scan_header(rng: Random, parts: list[Part]) -> bool:
    """Another table, component, spectral selection or bit position; fewer components, one twice, a wrong size."""
    if (i := find(rng, parts, SOS)) is None or len(parts[i].body) < 6:
        return False
    body = parts[i].body
    act = rng.randrange(4)
    if act == 0:
        body = with_byte(rng, body, len(body) - rng.randint(1, 3))
    elif act == 1:
        at = rng.randrange(1, len(body) - 3)
        body = with_byte(rng, body, at, rng.choice((0, 1, 2, 3, 0x10, 0x11, 0x22, 0x33, 0x44, body[1])))
    elif act == 2:
        count = rng.choice((0, 1, 2, 3, 4, 5, 255))
        body = bytes([count]) + (body[1:-3] + bytes(8))[: 2 * min(count, 6)] + body[-3:]
    else:
        body = with_byte(rng, body, rng.randrange(len(body)))
    edit(rng, parts, i, body)
    return True


def other_way_to_say_it(rng: Random, parts: list[Part]) -> bool:
    """The same image: tables in one segment or many, wider, or numbered otherwise; other ids, fill bytes, SOF1."""
    act = rng.randrange(5)
    if act == 0:
        return _renumbered(rng, parts)
    if act == 1:
        return _renamed(rng, parts)
    if act == 2:
        return _widened(rng, parts)
    if act == 3:
        return _merged(parts)
    parts[:] = [Part(RAW, b"\xff" * rng.randrange(3)) if i % 2 else parts[i // 2] for i in range(2 * len(parts))]
    parts[:] = [part._replace(marker=0xC1) if part.marker == 0xC0 else part for part in parts]
    return True


def _renumbered(rng: Random, parts: list[Part]) -> bool:
    """Huffman tables get each other's numbers, and the scan knows it."""
    order = rng.sample(range(4), 4)
    if any(part.marker == DHT and _end_of_table(part.body) != len(part.body) for part in parts):
        return False
    for i, part in enumerate(parts):
        if part.marker == DHT:
            parts[i] = Part(DHT, with_byte(rng, part.body, 0, part.body[0] & 0x10 | order[part.body[0] & 3]))
        elif part.marker == SOS:
            body = bytearray(part.body)
            for at in range(2, len(body) - 3, 2):
                body[at] = order[body[at] >> 4 & 3] << 4 | order[body[at] & 3]
            parts[i] = Part(SOS, bytes(body))
    return True


def _renamed(rng: Random, parts: list[Part]) -> bool:
    """The components get other ids, in frame and scan."""
    names = rng.choice((bytes(rng.sample(range(256), 3)), b"RGB", b"\0\1\2"))
    for i, part in enumerate(parts):
        step = {SOS: 2}.get(part.marker, 3 if part.marker in FRAMES else 0)
        if step:
            body = bytearray(part.body)
            for c, at in enumerate(range(1 if step == 2 else 6, len(body) - (3 if step == 2 else 0), step)):
                body[at] = names[c % 3]
            parts[i] = part._replace(body=bytes(body))
    return True


def _widened(rng: Random, parts: list[Part]) -> bool:
    """A quantisation table of bytes becomes one of 16 bits, its values larger or not."""
    i = find(rng, parts, DQT)
    if i is None or len(parts[i].body) != 65 or parts[i].body[0] > 3:
        return False
    factor = rng.choice((1, 1, 3, 200))
    values = b"".join(min(value * factor, 65535).to_bytes(2, "big") for value in parts[i].body[1:])
    parts[i] = Part(DQT, bytes([parts[i].body[0] | 0x10]) + values)
    return True


def _merged(parts: list[Part]) -> bool:
    """All tables of a kind in one segment."""
    for marker in (DHT, DQT):
        places = [i for i, part in enumerate(parts) if part.marker == marker]
        if len(places) > 1:
            parts[places[0]] = Part(marker, b"".join(parts[i].body for i in places))
            for i in reversed(places[1:]):
                del parts[i]
    return True


def _end_of_table(body: bytes) -> int:
    return 17 + sum(body[1:17])


WEIGHTS = {
    other_way_to_say_it: 14,
    quantisation_table: 4,
    counts_of_a_huffman_table: 4,
    symbols_of_a_huffman_table: 3,
    another_huffman_table: 3,
    number_of_a_table: 2,
    size_of_the_image: 4,
    components_of_the_frame: 4,
    process_or_precision: 2,
    scan_header: 4,
}
