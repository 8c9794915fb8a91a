"""The members of a tar file, from its headers alone: names, offsets and lengths, and what is damaged.

Owns the archive format: V7, USTAR, PAX and GNU long names, base-256 numbers, hard links, archives joined end to end.
What members mean together is tar.py's. `tarfile` is not used because it ends quietly at a damaged header, as at the
archive's end, and takes ten times as long.

Format: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuload.shards.urls import ReadAt

BLOCK = 512
REGULAR = frozenset(b"0\0" + b"7")
WITHOUT_DATA = frozenset(b"123456")  # links, devices, folders: whatever their size field says
HARD_LINK, SYMBOLIC_LINK, GNU_SPARSE = b"1"[0], b"2"[0], b"S"[0]
PAX, PAX_GLOBAL, GNU_LONG_NAME, GNU_LONG_LINK = b"x"[0], b"g"[0], b"L"[0], b"K"[0]
MAX_EXTENSION_BYTES = 1 << 20
"""A PAX header or long name beyond this is damage: the longest path that Linux knows is 4096 bytes."""

RECORD_BYTES = 20 * BLOCK
MAX_END_BYTES = 1 << 20
"""Zeros beyond this are a file that was not written to its end: the records of some tapes have 1 MiB, none more."""

RESYNC_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A regular file in the archive. offset, length: of its data. head: its first bytes, where they were asked for."""

    name: str
    offset: int
    length: int
    head: bytes = b""


@dataclass(frozen=True)
class Damage:
    """Bytes that are no tar. at: where. name: the member they belong to, where that is known. note: nothing is lost."""

    at: int
    problem: str
    name: str = ""
    note: bool = False


class Window:
    """Small reads at growing offsets out of larger ones. Not thread-safe."""

    def __init__(self, read_at: ReadAt, *, window_bytes: int):
        self._read_at, self._window_bytes = read_at, window_bytes
        self._start, self._bytes = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        begin = offset - self._start
        if not length:
            return b""  # also at the file's end, where servers refuse to be asked
        if begin < 0 or begin + length > len(self._bytes):
            self._bytes = self._read_at(offset, max(length, self._window_bytes))
            self._start, begin = offset, 0
        return self._bytes[begin : begin + length]


@dataclass(frozen=True)
class _Header:
    name: str
    length: int
    kind: int
    link: str


def scan(window: Window, size: int, *, head_suffix: str, head_bytes: int) -> Iterator[Member | Damage]:
    """Everything in an archive of `size` bytes, in order; after damage, from the next header that can be found.

    The first `head_bytes` of members whose name ends with `head_suffix` (lower case) come along.
    """
    begin, offset, ended, nameless = 0, 0, False, False
    extended: dict[str, str] = {}
    everywhere: dict[str, str] = {}
    seen: dict[str, tuple[int, int]] = {}
    while offset < size:
        block = window.read(offset, BLOCK)
        if len(block) < BLOCK:
            yield Damage(offset, f"cut off inside a header at byte {offset + len(block)}")
            return
        if block.count(0) == BLOCK:
            end = _end(window, begin, offset, size)
            if end.damage is not None:
                yield end.damage
            begin = offset = end.resume
            extended, ended, nameless = {}, True, False
            continue
        header = _parse(block)
        if header is None:
            yield Damage(offset, f"damaged header at byte {offset}")
            offset, extended, nameless = _next_header(window, offset + BLOCK, size), {}, False
            continue
        ended = False
        data, length = offset + BLOCK, header.length
        if header.kind in (PAX, PAX_GLOBAL, GNU_LONG_NAME, GNU_LONG_LINK):
            if length > MAX_EXTENSION_BYTES or data + length > size:
                yield Damage(offset, f"cut off, or damaged, in an extended header at byte {offset}")
                return
            try:
                _extend(header.kind, window.read(data, length), extended, everywhere)
            except ValueError:
                yield Damage(offset, f"damaged extended header at byte {offset}")
                nameless = header.kind != PAX_GLOBAL
            offset = data + _padded(length)
            continue
        options, extended = {**everywhere, **extended}, {}
        if nameless:  # what its name was cut to may be another's
            offset, nameless = _next_header(window, data + _padded(length), size), False
            continue
        name = _clean(options.get("path", header.name))
        if header.kind in REGULAR and not name.endswith("/"):  # by which V7 tells folders; a header's may be cut there
            if options.get("size", "").isdigit():  # PAX, for what 11 octal digits cannot say
                length = int(options["size"])
            if data + length > size:
                yield Damage(offset, f"cut off at byte {size}, inside member {name}", name)
                return
            if any(key.startswith("GNU.sparse") for key in options):
                yield Damage(offset, f"member {name} is stored sparse, which is not supported", name)
            else:
                wanted = name.lower().endswith(head_suffix)
                yield Member(name, data, length, window.read(data, min(length, head_bytes)) if wanted else b"")
                seen[name] = data, length
        elif header.kind == HARD_LINK:
            target = _clean(options.get("linkpath", header.link))
            if target in seen:
                yield Member(name, *seen[target], window.read(seen[target][0], min(seen[target][1], head_bytes)))
            else:
                yield Damage(offset, f"member {name} is a link to {target}, which is not in the archive", name)
        elif header.kind in (SYMBOLIC_LINK, GNU_SPARSE):
            what = "a symbolic link" if header.kind == SYMBOLIC_LINK else "stored sparse"
            yield Damage(offset, f"member {name} is {what}, which is not supported", name)
            if header.kind == GNU_SPARSE:
                offset, extended = _next_header(window, data, size), {}
                continue
        offset = data + (0 if header.kind in WITHOUT_DATA else _padded(length))
    if not ended:
        yield Damage(size, f"it ends at byte {size} without the archive's end mark: members after it may be lost")


@dataclass(frozen=True)
class _End:
    """Blocks of zeros. resume: where the next header lies, or the archive's size. damage: what does not fit an end."""

    resume: int
    damage: Damage | None = None


def _end(window: Window, begin: int, zeros: int, size: int) -> _End:
    """What the zeros at byte `zeros` are, of an archive that begins at `begin`.

    An archive ends with two blocks of them, or with as many as fill its last record. Another archive may be joined to
    it, and tapes have rests of older ones behind it. All other zeros are what was lost: a sector, a page, or all that
    a copy had not reached.
    """
    offset = zeros
    while offset < size and not any(window.read(offset, BLOCK)):
        offset = min(offset + BLOCK, size)
    joined = offset < size and looks_like_tar(window.read(offset, BLOCK))
    resume = offset if joined else _next_header(window, offset, size)
    whole = offset - zeros == 2 * BLOCK or (offset - begin) % RECORD_BYTES == 0
    lone = offset == zeros + BLOCK < size
    if lone or (joined and not whole) or offset < resume < size or offset - zeros > MAX_END_BYTES:
        problem = f"{offset - zeros} bytes of zeros at byte {zeros}, where a header should be"
        return _End(resume, Damage(zeros, problem))
    if resume > offset:
        return _End(resume, Damage(offset, f"{size - offset} bytes after the archive's end are left out", note=True))
    return _End(resume)


def looks_like_tar(block: bytes) -> bool:
    """Whether a file that begins with these 512 bytes can be a tar: a header, or an empty archive's zeros."""
    return len(block) == BLOCK and (block.count(0) == BLOCK or _parse(block) is not None)


def _parse(block: bytes) -> _Header | None:
    """The header in these 512 bytes, or None where checksum or numbers are wrong."""
    checksum = _number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if checksum != total and checksum != total - 256 * sum(b >= 128 for b in block[:148] + block[156:]):
        return None
    length = _number(block[124:136])
    if length is None or length < 0:
        return None
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = f"{_text(block[345:500])}/{name}"
    return _Header(name, length, block[156], _text(block[157:257]))


def _number(field: bytes) -> int | None:
    if field[0] in (0x80, 0xFF):  # GNU: big-endian, two's complement, in base 256
        value = int.from_bytes(field[1:], "big")
        return value if field[0] == 0x80 else value - (1 << 8 * (len(field) - 1))
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _clean(name: str) -> str:
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _extend(kind: int, data: bytes, extended: dict[str, str], everywhere: dict[str, str]) -> None:
    """Raises ValueError for what is no extension, such as zeros."""
    if data[:1] == b"\0":
        raise ValueError("zeros")
    if kind == GNU_LONG_NAME:
        extended["path"] = _text(data)
    elif kind == GNU_LONG_LINK:
        extended["linkpath"] = _text(data)
    else:
        (extended if kind == PAX else everywhere).update(_records(data))


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """PAX records: "length keyword=value\\n", the length counting itself. Raises ValueError for anything else."""
    while data and data[0]:
        digits, _, _ = data[:20].partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(data) or data[int(digits) - 1] != 0x0A:
            raise ValueError("no PAX record")
        keyword, _, value = data[len(digits) + 1 : int(digits) - 1].partition(b"=")
        yield keyword.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape")
        data = data[int(digits) :]


def _next_header(window: Window, offset: int, size: int) -> int:
    """The next block from `offset` on that is a header, or `size`. An image may hold "ustar", not its checksum too."""
    while offset < size:
        part = window.read(offset, min(RESYNC_BYTES, size - offset))
        for at in range(0, len(part) - BLOCK + 1, BLOCK):
            if part[at + 257 : at + 262] == b"ustar" and _parse(part[at : at + BLOCK]) is not None:
                return offset + at
        offset += max(len(part) // BLOCK, 1) * BLOCK
    return size
