"""The kernels under the decoder, called one by one on a damaged file, with memory of exactly the size they ask for.

The decoder never hands them what it knows to be wrong; here seek points are negative, huge or another MCU's, windows
are any, and every definition of a Huffman table is built as a DC table and as an AC table, used or not. Owns those
calls and what must hold after them: a status that is one, the same wherever the data lies, and from good points the
blocks that the whole scan gave. What pixels must be is check.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import numpy as np
from gpuload.kernels import entropy, huffman
from gpuload.kernels import jpeg_header as jpeg

from tests.fuzz import guarded

MOST_BLOCKS = 20_000
"""Of an image whose scan is decoded here, too: a megapixel."""
_BUILD_STATUSES = (huffman.BUILT, huffman.OVERFULL, huffman.BAD_SYMBOL)
_HOSTILE = (-(2**31), -65536, -1, 0, 1, 7, 8, 32767, 65536, 2**31 - 1)


@dataclass
class Reading:
    """What the kernels make of a file. left: why Pillow gets it, "" if it doesn't; problems: what they did wrong."""

    left: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Header:
    status: int
    header: np.ndarray
    quant: np.ndarray
    huffman: np.ndarray

    def same(self, other: _Header) -> bool:
        mine, others = (self.header, self.quant, self.huffman), (other.header, other.quant, other.huffman)
        return self.status == other.status and all(map(np.array_equal, mine, others))


def read(data: bytes, rng: Random) -> Reading:
    """Call them all on one file."""
    reading = Reading()
    ending, beginning = guarded.ending_input(data), guarded.beginning_input(data)
    header = _header(ending)
    if not header.same(_header(beginning)):
        reading.problems.append("parse_header: another result for the same data elsewhere")
    if not 0 <= header.status < len(jpeg.REASONS):
        reading.problems.append(f"parse_header: status {header.status}")
    built = [_built(definition.tobytes(), ac) for definition in header.huffman for ac in (False, True)]
    reading.problems += [f"build_table: status {b.status}" for b in built if b.status not in _BUILD_STATUSES]
    tables = [b.table if b.status == huffman.BUILT else None for b in built]
    if header.status != jpeg.OURS:
        reading.left = jpeg.REASONS[header.status]
        return reading
    numbers = [header.header[jpeg.DC_TABLE + c] * 2 for c in range(3)]
    numbers += [(4 + header.header[jpeg.AC_TABLE + c]) * 2 + 1 for c in range(3)]
    if any(tables[number] is None for number in numbers):
        reading.left = "a Huffman table that is no code"
        return reading
    _Scan(header, np.concatenate([tables[number] for number in numbers])).decode(ending, beginning, rng, reading)
    return reading


def _header(data: np.ndarray) -> _Header:
    header = guarded.ending_array((jpeg.HEADER_SIZE,), np.int32, -7)
    quant, tables = guarded.ending_array((4, 64), np.uint16), guarded.ending_array((8, jpeg.HUFFMAN_SIZE), np.uint8, 7)
    return _Header(jpeg.parse_header(data, header, quant, tables), header, quant, tables)


@dataclass(frozen=True)
class _Built:
    status: int
    table: np.ndarray


@lru_cache(maxsize=4096)  # most files share their tables
def _built(definition: bytes, ac: bool) -> _Built:
    table = guarded.ending_array((huffman.TABLE_SIZE,), np.int32, -1)
    return _Built(huffman.build_table(guarded.ending_input(definition), ac, table), table)


class _Scan:
    """A scan whose tables are built; they stand in the order of `lay_out`'s rows."""

    def __init__(self, header: _Header, tables: np.ndarray):
        self._header = header.header
        self._tables = guarded.ending_array(tables.shape, np.int32)
        self._tables[:] = tables
        self._wide, self._high = int(self._header[jpeg.MCUS_WIDE]), int(self._header[jpeg.MCUS_HIGH])

    def decode(self, ending: np.ndarray, beginning: np.ndarray, rng: Random, reading: Reading) -> None:
        total = self._wide * self._high
        if total * int(self._header[jpeg.BLOCKS_IN_MCU]) > MOST_BLOCKS:
            reading.left = "an image too large for this check"
            return
        spacing = rng.choice((1, 2, 3, 5, 16, 1000))
        points = guarded.ending_array((-(-total // spacing), entropy.POINT_SIZE), np.int32)
        whole = _Blocks(self._header, (0, 0, self._wide, self._high))
        start = np.array([self._header[jpeg.SCAN_START], 0, 0, 0, 0], np.int32)
        status = whole.range(rng.choice((ending, beginning)), self._tables, start, 0, total, spacing, points)
        if status not in range(len(entropy.ANOMALIES)):
            reading.problems.append(f"decode_range: status {status}")
        elif status:
            reading.left = entropy.ANOMALIES[status]
        left, top = rng.randrange(self._wide), rng.randrange(self._high)
        window = (left, top, rng.randint(1, self._wide - left), rng.randint(1, self._high - top))
        part = _Blocks(self._header, window)
        if status == entropy.DECODED:
            again = part.rows(rng.choice((ending, beginning)), self._tables, spacing, points)
            if again != entropy.DECODED or part.stored() != whole.stored(window):
                reading.problems.append(f"seek points: other blocks than the whole scan's (status {again})")
        self._hostile(rng.choice((ending, beginning)), rng, reading, part, spacing, points)

    def _hostile(
        self, data: np.ndarray, rng: Random, reading: Reading, part: _Blocks, spacing: int, points: np.ndarray
    ) -> None:
        """From points that are no points, and from MCU numbers that are none."""
        total = self._wide * self._high
        everywhere = (*_HOSTILE, data.size - 8, data.size - 1, data.size, rng.randrange(max(data.size, 1)))
        for _ in range(rng.choice((1, 3, 2 * points.size))):
            points[rng.randrange(len(points)), rng.randrange(entropy.POINT_SIZE)] = rng.choice(everywhere)
        point = points[rng.randrange(len(points))].copy()
        limits = (-(2**40), -1, 0, total // 2, total, total + 1, 2**40)
        statuses = (
            part.rows(data, self._tables, spacing, points),
            part.range(data, self._tables, point, rng.choice(limits), rng.choice(limits), 0, points),
            part.range(data, self._tables, point, rng.randint(0, total), total, 0, points),
        )
        if any(status not in range(len(entropy.ANOMALIES)) for status in statuses):
            reading.problems.append(f"hostile seek points: statuses {statuses}")


class _Blocks:
    """Where the blocks of a window, (left, top, width, height) in MCUs, go."""

    def __init__(self, header: np.ndarray, window: tuple[int, int, int, int]):
        self._header, self._window = header, window
        self._layout = guarded.ending_array((entropy.LAYOUT_SIZE,), np.int32)
        rows = np.arange(6, dtype=np.int32)
        count = int(entropy.lay_out(header, rows, np.array(window, np.int32), self._layout))
        self._coefficients = guarded.ending_array(((count + 1) * 64,), np.int16, 7777)
        self._last = guarded.ending_array((count + 1,), np.uint8, 99)

    def range(
        self, data: np.ndarray, tables: np.ndarray, point: np.ndarray, first: int, end: int, spacing: int,
        points: np.ndarray,
    ) -> int:  # fmt: skip
        outputs = (self._coefficients, self._last)
        return entropy.decode_range(data, self._layout, tables, point, first, end, spacing, points, *outputs)

    def rows(self, data: np.ndarray, tables: np.ndarray, spacing: int, points: np.ndarray) -> int:
        """The window, each of its rows from the seek point before it."""
        left, top, wide, high = self._window
        for row in range(top, top + high):
            first = row * int(self._header[jpeg.MCUS_WIDE]) + left
            nearest = first // spacing
            status = self.range(data, tables, points[nearest].copy(), nearest * spacing, first + wide, 0, points)
            if status:
                return status
        return entropy.DECODED

    def stored(self, window: tuple[int, int, int, int] | None = None) -> bytes:
        """All that was stored for a window within this one."""
        left, top, wide, high = window or self._window
        left, top = left - self._window[0], top - self._window[1]
        parts, at = [], 0
        for c in range(int(self._header[jpeg.COMPONENTS])):
            h, v = int(self._header[jpeg.H + c]), int(self._header[jpeg.V + c])
            shape = (self._window[3] * v, self._window[2] * h)
            end = at + shape[0] * shape[1]
            cut = np.s_[top * v : (top + high) * v, left * h : (left + wide) * h]
            parts += [self._last[at:end].reshape(shape)[cut].tobytes()]
            parts += [self._coefficients[64 * at : 64 * end].reshape(*shape, 64)[cut].tobytes()]
            at = end
        return b"".join(parts)
