"""Entropy decoding against a decoder that reads T.81 bit by bit, against Pillow's pixels, and from every seek point."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gpuload.kernels import entropy
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels.huffman import TABLE_SIZE, build_table, codes_reference
from PIL import Image

FACTORS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:4:0": (1, 2), "4:2:0": (2, 2), "4:1:1": (4, 1), "4:1:0": (1, 4)}
WRITTEN_AS = {"4:4:4": 0, "4:2:2": 1, "4:4:0": 1, "4:2:0": 2, "4:1:1": 2, "4:1:0": 2}
"""Pillow's subsampling with as many blocks an MCU: with other factors in its header the same scan is another image."""


def encoded(width: int, height: int, kind: str, seed: int = 0, **options: object) -> bytes:
    """A JPEG of width x height pixels, half gradient and half noise; `kind`: grey, or a key of FACTORS."""
    h, v = FACTORS.get(kind, (1, 1))
    across, down = -(-width // (8 * h)), -(-height // (8 * v))  # MCUs
    code = WRITTEN_AS.get(kind, 0)
    w, t = (8, 16)[code > 0] * across, (8, 16)[code > 1] * down
    y, x = np.mgrid[:t, :w]
    noise = np.random.default_rng(seed).integers(-60, 60, (t, w, 3)) * (x > w // 2)[:, :, None]
    pixels = np.clip(np.stack([x * 4, y * 4, x + y], 2) % 200 + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    image = Image.fromarray(pixels).convert("L") if kind == "grey" else Image.fromarray(pixels)
    image.save(out, "JPEG", subsampling=code, **options)  # type: ignore[arg-type]
    data = bytearray(out.getvalue())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    if kind != "grey":
        data[frame + 11] = h << 4 | v
    return bytes(data)


@dataclass
class Scan:
    """A file and all that decoding its scan needs."""

    data: np.ndarray
    header: np.ndarray
    quant: np.ndarray
    huffman: np.ndarray
    tables: np.ndarray
    rows: np.ndarray

    @property
    def wide(self) -> int:
        return int(self.header[jpeg.MCUS_WIDE])

    @property
    def mcus(self) -> int:
        return self.wide * int(self.header[jpeg.MCUS_HIGH])

    def start(self) -> np.ndarray:
        return np.array([self.header[jpeg.SCAN_START], 0, 0, 0, 0], np.int32)


def scan_of(data: bytes) -> Scan | None:
    header, quant = np.zeros(jpeg.HEADER_SIZE, np.int32), np.zeros((4, 64), np.uint16)
    huffman, tables = np.zeros((8, 272), np.uint8), np.zeros((8, TABLE_SIZE), np.int32)
    array = np.frombuffer(data, np.uint8)
    if jpeg.parse_header(array, header, quant, huffman):
        return None
    dc, ac = header[jpeg.DC_TABLE : jpeg.DC_TABLE + 3], header[jpeg.AC_TABLE : jpeg.AC_TABLE + 3] + 4
    rows = np.concatenate([dc, ac]).astype(np.int32)
    if any(build_table(huffman[row], bool(row > 3), tables[row]) for row in rows):
        return None
    return Scan(array, header, quant, huffman, tables.ravel(), rows)


@dataclass
class Blocks:
    """Coefficients and `last` by component: (blocks_high, blocks_wide, 64) and (blocks_high, blocks_wide)."""

    coefficients: list[np.ndarray]
    last: list[np.ndarray]
    status: int
    point: np.ndarray

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Blocks)
        mine, others = self.coefficients + self.last, other.coefficients + other.last
        return len(mine) == len(others) and all(map(np.array_equal, mine, others))

    def cut(self, scan: Scan, window: tuple[int, int, int, int]) -> Blocks:
        left, top, wide, high = window

        def part(component: int, array: np.ndarray) -> np.ndarray:
            h, v = scan.header[jpeg.H + component], scan.header[jpeg.V + component]
            return array[top * v : (top + high) * v, left * h : (left + wide) * h]

        return Blocks(
            [part(c, a) for c, a in enumerate(self.coefficients)],
            [part(c, a) for c, a in enumerate(self.last)],
            self.status,
            self.point,
        )


class Decoder:
    """One scan's outputs, poisoned: what decoding leaves alone stays wrong."""

    def __init__(self, scan: Scan, window: tuple[int, int, int, int] | None = None):
        self.scan = scan
        self.window = window or (0, 0, scan.wide, int(scan.header[jpeg.MCUS_HIGH]))
        self.layout = np.zeros(entropy.LAYOUT_SIZE, np.int32)
        self.blocks = entropy.lay_out(scan.header, scan.rows, np.array(self.window, np.int32), self.layout)
        self.coefficients = np.full((self.blocks + 1) * 64, 7777, np.int16)
        self.last = np.full(self.blocks + 1, 99, np.uint8)

    def range(self, point: np.ndarray, first: int, end: int, spacing: int = 0, points: np.ndarray | None = None) -> int:
        s, points = self.scan, np.zeros((0, 5), np.int32) if points is None else points
        outputs = (self.coefficients, self.last)
        return entropy.decode_range(s.data, self.layout, s.tables, point, first, end, spacing, points, *outputs)

    def rows(self, spacing: int, points: np.ndarray) -> int:
        """The window, each of its rows from the seek point before it."""
        left, top, wide, high = self.window
        for row in range(top, top + high):
            first = row * self.scan.wide + left
            nearest = first // spacing
            status = self.range(points[nearest].copy(), nearest * spacing, first + wide)
            if status:
                return status
        return entropy.DECODED

    def result(self, status: int, point: np.ndarray) -> Blocks:
        coefficients, last, at = [], [], 0
        for c in range(self.scan.header[jpeg.COMPONENTS]):
            high = self.window[3] * int(self.scan.header[jpeg.V + c])
            wide = self.window[2] * int(self.scan.header[jpeg.H + c])
            coefficients.append(self.coefficients[64 * at : 64 * (at + high * wide)].reshape(high, wide, 64))
            last.append(self.last[at : at + high * wide].reshape(high, wide))
            at += high * wide
        assert at == self.blocks
        return Blocks(coefficients, last, status, point)


def decoded(scan: Scan, spacing: int = 0, points: np.ndarray | None = None) -> Blocks:
    decoder, point = Decoder(scan), scan.start()
    return decoder.result(decoder.range(point, 0, scan.mcus, spacing, points), point)


class Anomaly(Exception):
    pass


class ReferenceBits:
    def __init__(self, data: bytes, at: int):
        self.data, self.at, self.used = data, at, 0

    def state(self) -> tuple[int, int]:
        return self.at, self.used

    def bit(self) -> int:
        pair = self.data[self.at : self.at + 2]
        if not pair or (pair[0] == 0xFF and pair[1:] != b"\0"):
            raise Anomaly
        bit = pair[0] >> (7 - self.used) & 1
        self.used += 1
        if self.used == 8:
            self.at, self.used = self.at + (2 if pair[0] == 0xFF else 1), 0
        return bit

    def symbol(self, codes: dict[tuple[int, int], int]) -> int:
        code = 0
        for length in range(1, 17):
            code = code << 1 | self.bit()
            if (length, code) in codes:
                return codes[length, code]
        raise Anomaly

    def value(self, length: int) -> int:
        value = 0
        for _ in range(length):
            value = value << 1 | self.bit()
        return value if length == 0 or value >> (length - 1) else value - (1 << length) + 1

    def marker(self, code: int) -> None:
        """Drop what is left of a byte, pass over fill bytes, and expect this marker."""
        self.at, self.used = self.at + (self.used > 0) * (1 + (self.data[self.at] == 0xFF)), 0
        rest = self.data[self.at :]
        name = rest.lstrip(b"\xff")
        if not name or len(name) == len(rest) or name[0] != code:
            raise Anomaly
        self.at += len(rest) - len(name) + 1


def decoded_reference(scan: Scan) -> tuple[list[np.ndarray], list[tuple[int, int, int, int, int]]]:
    """Coefficients by component, and the state at every MCU: T.81 F.2 as it is written."""
    header = scan.header
    count = int(header[jpeg.COMPONENTS])
    h, v = header[jpeg.H : jpeg.H + count].tolist(), header[jpeg.V : jpeg.V + count].tolist()
    codes = [codes_reference(scan.huffman[row]) for row in scan.rows]
    high = int(header[jpeg.MCUS_HIGH])
    result = [np.zeros((high * v[c], scan.wide * h[c], 64), np.int64) for c in range(count)]
    bits = ReferenceBits(scan.data.tobytes(), int(header[jpeg.SCAN_START]))
    predictors, states = [0, 0, 0], []
    interval = int(header[jpeg.RESTART_INTERVAL])
    for mcu in range(scan.mcus):
        if interval and mcu and mcu % interval == 0:
            bits.marker(0xD0 + (mcu // interval - 1) % 8)
            predictors = [0, 0, 0]
        states.append((*bits.state(), *predictors))
        for c in range(count):
            for block in range(h[c] * v[c]):
                target = result[c][mcu // scan.wide * v[c] + block // h[c], mcu % scan.wide * h[c] + block % h[c]]
                predictors[c] += bits.value(bits.symbol(codes[c]))
                target[0] = predictors[c]
                k = 1
                while k < 64:
                    run, size = divmod(bits.symbol(codes[3 + c]), 16)
                    if size == 0 and run < 15:
                        break
                    k += run
                    if k > 63:
                        raise Anomaly
                    target[jpeg.ZIGZAG[k]] = bits.value(size)
                    k += 1
                if abs(target[0]) > 32767:
                    raise Anomaly
    bits.marker(0xD9)
    return result, states


def last_of(coefficients: np.ndarray) -> np.ndarray:
    index = np.arange(64) * (coefficients[..., jpeg.ZIGZAG] != 0)
    return index.max(-1)


KINDS = ["grey", *FACTORS]


@pytest.mark.parametrize("restarts", [{}, {"restart_marker_blocks": 1}, {"restart_marker_blocks": 5}])
@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_and_seek_points_are_those_of_the_standard(kind: str, restarts: dict[str, int]):
    for quality, (width, height) in zip((100, 92, 30, 75), ((61, 43), (33, 70), (1, 1), (9, 97)), strict=True):
        scan = scan_of(encoded(width, height, kind, quality=quality, optimize=quality == 92, **restarts))
        assert scan is not None
        points = np.full((scan.mcus, 5), -1, np.int32)
        got = decoded(scan, 1, points)
        expected, states = decoded_reference(scan)
        assert got.status == entropy.DECODED
        for c, known in enumerate(expected):
            assert np.array_equal(got.coefficients[c], known)
            assert np.array_equal(got.last[c], last_of(known))
        assert points.tolist() == [list(state) for state in states]


@pytest.mark.parametrize("restarts", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_every_range_decoded_from_its_nearest_point_is_the_same(kind: str, restarts: int):
    rng = np.random.default_rng(1)
    scan = scan_of(encoded(75, 59, kind, quality=88, restart_marker_blocks=restarts))
    assert scan is not None
    whole = decoded(scan)
    for spacing in (*range(1, scan.mcus + 2), 1000):
        points = np.full((-(-scan.mcus // spacing), 5), -1, np.int32)
        assert decoded(scan, spacing, points) == whole
        for _ in range(6):
            left, top = int(rng.integers(scan.wide)), int(rng.integers(scan.mcus // scan.wide))
            window = (left, top, int(rng.integers(1, scan.wide - left + 1)),
                      int(rng.integers(1, scan.mcus // scan.wide - top + 1)))  # fmt: skip
            decoder = Decoder(scan, window)
            assert decoder.result(decoder.rows(spacing, points), points[0]) == whole.cut(scan, window)
    # Ranges in pieces, each going on where the last one stopped.
    decoder, point, at = Decoder(scan), scan.start(), 0
    while at < scan.mcus:
        end = min(scan.mcus, at + int(rng.integers(1, 6)))
        assert decoder.range(point, at, end) == entropy.DECODED
        at = end
    assert decoder.result(0, point) == whole and np.array_equal(point, whole.point)


def written(scan: Scan, data: bytes, rng: np.random.Generator) -> bytes:
    """The grey image `data`, its scan replaced by symbols that no encoder would choose, each followed by any bits."""
    dc, ac = ({s: format(c, f"0{n}b") for (n, c), s in codes_reference(scan.huffman[row]).items()} for row in (0, 4))
    bits = ""

    def symbol(codes: dict[int, str], run: int, size: int) -> None:
        nonlocal bits
        bits += codes[run << 4 | size] + "".join(map(str, rng.integers(0, 2, size)))

    for _ in range(scan.mcus):
        symbol(dc, 0, int(rng.choice([4, rng.integers(10)])))  # of 4 bits: may begin as the end of a block does
        k, ends = 0, rng.choice([0, 0.1, 0.5])
        longest, largest = int(rng.choice([1, 3, 16])), int(rng.choice([2, 10]))
        while k < 63:
            run = int(min(rng.integers(longest), 62 - k))
            if rng.random() < ends:
                symbol(ac, 0, 0)
                break
            zeros = k + 16 <= 63 and rng.random() < ends
            symbol(ac, *((15, 0) if zeros else (run, int(rng.integers(1, largest + 1)))))
            k += 16 if zeros else run + 1
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return data[: scan.header[jpeg.SCAN_START]] + body + b"\xff\xd9"


@pytest.mark.parametrize("seed", range(6))
def test_symbols_in_any_order_are_read_as_the_standard_says(seed: int):
    """Among them zeros before the end, full blocks before what looks like an end, and the largest values."""
    data = encoded(64, 24, "grey")
    scan = scan_of(data)
    assert scan is not None
    scan.data = np.frombuffer(written(scan, data, np.random.default_rng(seed)), np.uint8)
    points = np.full((scan.mcus, 5), -1, np.int32)
    got = decoded(scan, 1, points)
    (expected,), states = decoded_reference(scan)
    assert got.status == entropy.DECODED
    assert np.array_equal(got.coefficients[0], expected) and np.array_equal(got.last[0], last_of(expected))
    assert points.tolist() == [list(state) for state in states]


def grey_pixels(scan: Scan, blocks: Blocks) -> np.ndarray:
    """The plain inverse DCT, in float64."""
    u = np.arange(8)
    basis = np.cos((2 * u[:, None] + 1) * u * np.pi / 16) * np.where(u == 0, np.sqrt(1 / 8), 1 / 2)  # (x, u)
    table = scan.quant[scan.header[jpeg.QUANT_TABLE]].astype(np.float64)
    spectrum = (blocks.coefficients[0] * table).reshape(*blocks.coefficients[0].shape[:2], 8, 8)
    pixels = np.einsum("yv,ijvu,xu->iyjx", basis, spectrum, basis)
    plane = pixels.reshape(spectrum.shape[0] * 8, spectrum.shape[1] * 8) + 128
    return np.clip(np.rint(plane), 0, 255)[: scan.header[jpeg.HEIGHT], : scan.header[jpeg.WIDTH]]


@pytest.mark.parametrize("quality", [5, 50, 95, 100])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (37, 90), (131, 64)])
def test_grey_pixels_are_pillows(size: tuple[int, int], quality: int):
    data = encoded(*size, "grey", quality=quality)
    scan = scan_of(data)
    assert scan is not None
    assert np.abs(grey_pixels(scan, decoded(scan)) - np.asarray(Image.open(io.BytesIO(data)))).max() <= 1


@pytest.mark.parametrize("kind", ["grey", "4:2:0"])
def test_a_scan_cut_anywhere_is_an_anomaly(kind: str):
    data = encoded(33, 21, kind, quality=90, restart_marker_blocks=2)
    scan = scan_of(data)
    assert scan is not None and decoded(scan).status == entropy.DECODED
    statuses = set()
    for size in range(int(scan.header[jpeg.SCAN_START]) + 1, len(data)):
        scan.data = np.frombuffer(data[:size], np.uint8)
        statuses.add(decoded(scan).status)
    assert statuses == {entropy.ENDS_EARLY, entropy.BAD_RESTART, entropy.NO_END}


@pytest.mark.parametrize("kind", ["grey", "4:2:2"])
@pytest.mark.parametrize("restarts", [0, 3])
def test_damage_is_an_anomaly_here_wherever_it_is_one_in_the_standard(kind: str, restarts: int):
    data = encoded(40, 33, kind, quality=85, restart_marker_blocks=restarts, optimize=True)
    scan = scan_of(data)
    assert scan is not None
    rng = np.random.default_rng(2)
    start, outcomes = int(scan.header[jpeg.SCAN_START]), [0, 0]
    for _ in range(300):
        damaged = np.frombuffer(data, np.uint8).copy()
        at = rng.integers(start, len(data), rng.integers(1, 3))
        damaged[at] = np.where(rng.random(at.size) < 0.3, 0xFF, damaged[at] ^ 1 << rng.integers(8))
        if rng.random() < 0.1:
            damaged = np.delete(damaged, at)
        scan.data = damaged
        points = np.zeros((scan.mcus, 5), np.int32)
        got = decoded(scan, 1, points)
        try:
            expected, states = decoded_reference(scan)
        except Anomaly:
            outcomes[0] += 1
            assert got.status != entropy.DECODED
        else:
            outcomes[1] += 1
            assert got.status == entropy.DECODED, entropy.ANOMALIES[got.status]
            assert all(map(np.array_equal, got.coefficients, expected))
            assert points.tolist() == [list(state) for state in states]
    assert min(outcomes) > 15


def test_restart_markers_may_have_fill_bytes_and_must_be_in_order():
    data = encoded(64, 16, "grey", restart_marker_blocks=4)
    scan = scan_of(data)
    assert scan is not None
    whole = decoded(scan)
    at = data.index(b"\xff\xd1", int(scan.header[jpeg.SCAN_START]))
    scan.data = np.frombuffer(data[:at] + b"\xff\xff" + data[at:], np.uint8)
    assert decoded(scan).status == entropy.DECODED and decoded(scan) == whole
    for wrong, status in (
        (data[:at] + b"\xff\xd2" + data[at + 2 :], entropy.BAD_RESTART),
        (data[:at] + b"\x12\x34" + data[at:], entropy.BYTES_LEFT),
        (data[:-2] + b"\x12" + data[-2:], entropy.BYTES_LEFT),
        (data[:-2], entropy.NO_END),
    ):
        scan.data = np.frombuffer(wrong, np.uint8)
        assert decoded(scan).status == status


def test_a_damaged_seek_point_reads_nothing_beyond_the_data():
    scan = scan_of(encoded(61, 43, "4:2:0", restart_marker_blocks=5))
    assert scan is not None
    rng = np.random.default_rng(3)
    for _ in range(500):
        points = rng.integers(-(2**31), 2**31, (scan.mcus, 5)).astype(np.int32)
        points[:, 0] = rng.choice([-1, 0, len(scan.data) - 1, len(scan.data), rng.integers(2**31)], scan.mcus)
        decoder = Decoder(scan, (1, 1, 2, 2))
        assert 0 <= decoder.rows(1, points) < len(entropy.ANOMALIES)


def test_photographs_decode_whole_and_from_seek_points(photos: Path):
    rng, compared = np.random.default_rng(4), 0
    for path in sorted(photos.rglob("*.JPEG"))[::8]:
        data = path.read_bytes()
        scan = scan_of(data)
        assert scan is not None
        points = np.zeros((-(-scan.mcus // 16), 5), np.int32)
        whole = decoded(scan, 16, points)
        assert whole.status == entropy.DECODED, path
        left, top = int(rng.integers(scan.wide)), int(rng.integers(scan.mcus // scan.wide))
        window = (left, top, (scan.wide - left + 1) // 2, (scan.mcus // scan.wide - top + 1) // 2)
        decoder = Decoder(scan, window)
        assert decoder.result(decoder.rows(16, points), points[0]) == whole.cut(scan, window)
        image = Image.open(io.BytesIO(data))
        image.draft("L", image.size)  # libjpeg's luma as it is, without colour
        if image.mode == "L" and scan.header[jpeg.H_MAX] == scan.header[jpeg.H] == 1:
            assert np.abs(grey_pixels(scan, whole) - np.asarray(image)).max() <= 1
            compared += 1
    assert compared > 20


def test_odd_files_decode_here_only_where_pillow_decodes_them(real_data: Path):
    good = 0
    for path in sorted((real_data / "jpeg-conformance").iterdir()):
        scan = scan_of(path.read_bytes()) if path.suffix in (".jpg", ".jpeg") else None
        if (
            scan is not None
            and scan.mcus < 100_000
            and decoded(scan, 1, np.zeros((scan.mcus, 5), np.int32)).status == 0
        ):
            with Image.open(path) as image:
                image.load()
            good += 1
    assert good > 20


def sound(data: bytes, at: int, restarts: bool) -> bool:
    """What `sound_tail` must find, by the search that it is."""
    while (at := data.find(b"\xff", at)) >= 0 and at + 1 < len(data):
        code = data[at + 1]
        if code == 0xD9:
            return True
        if code not in (0, 0xFF) and not (restarts and 0xD0 <= code <= 0xD7):
            return False
        at += 1 if code == 0xFF else 2
    return False


def test_a_tail_is_sound_up_to_its_end_marker():
    rng, found = np.random.default_rng(7), set()
    for _ in range(3000):
        common = rng.choice(
            [0x12, 0xFF, 0x00, 0xD0, 0xD9, 0xC4], int(rng.integers(40)), p=[0.8, 0.08, 0.06, 0.02, 0.02, 0.02]
        )
        data, at, restarts = common.astype(np.uint8), int(rng.integers(20)), bool(rng.integers(2))
        wanted = sound(data.tobytes(), at, restarts)
        assert entropy.sound_tail(data, at, restarts) == wanted
        found.add(wanted)
    assert found == {False, True}
