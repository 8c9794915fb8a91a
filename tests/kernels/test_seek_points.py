"""Keys against XXH64's own library, records against the decoder's points and a reader of single bits, slots against a
dict; and what damaged or hostile records do: nothing."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
import pytest
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels import seek_points

from tests.kernels.test_entropy import decoded, encoded, scan_of

_BYTES = "Array(uint8, 1, 'C', readonly=True)"
_SLOTS = "Array(uint64, 2, 'C', readonly=True)"


@numba.njit([f"uint64({_BYTES})"])
def content_key(data):
    return seek_points.content_key(data)


@numba.njit(["int64(int32[:, ::1], int64, int64, int64, int64, int64, int64, uint64, uint8[::1])"])
def pack(points, count, spacing, mcus, components, data_size, most_bytes, key, out):
    return seek_points.pack(points, count, spacing, mcus, components, data_size, most_bytes, key, out)


@numba.njit(["int64(int64, int64, uint64, int64, int64, int64, int64, int32[:, ::1])"])
def unpack(address, length, key, mcus, components, scan_start, data_size, points):
    return seek_points.unpack(address, length, key, mcus, components, scan_start, data_size, points)


@numba.njit([f"int64({_SLOTS}, uint64)"])
def find(slots, key):
    return seek_points.find(slots, key)


@numba.njit([f"int64({_SLOTS}, {_SLOTS}, int64, int64, uint64, int64, int64, int64, int64, int32[:, ::1])"])
def points_of(fixed, learned, base, size, key, mcus, components, scan_start, data_size, points):
    return seek_points.points_of(
        fixed, learned, base, size, key, mcus, components, scan_start, data_size, points
    )  # fmt: skip


@dataclass(frozen=True)
class Image:
    """What a record speaks of: points every `spacing` MCUs as decoding left them, and the JPEG's own numbers."""

    points: np.ndarray
    mcus: int
    components: int
    data_size: int
    key: np.uint64
    spacing: int = seek_points.FINEST_SPACING

    @property
    def scan_start(self) -> int:
        return int(self.points[0, 0])

    def record(self, most_bytes: int) -> bytes:
        out = np.full(most_bytes + 64, 0xA5, np.uint8)
        room = out[:most_bytes]
        size = pack(self.points, len(self.points), self.spacing, self.mcus, self.components, self.data_size,
                    most_bytes, self.key, room)  # fmt: skip
        assert 0 <= size <= most_bytes and (out[size:] == 0xA5).all()
        return out[:size].tobytes()

    def step_that_fits(self, most_bytes: int) -> int:
        """Which multiple of the spacing is the first to fit; 0: none."""
        position = self.points[:, 0].astype(np.int64) * 8 + self.points[:, 1]
        for step in range(1, len(self.points)):
            columns = [np.diff(position[::step]), *self.points[step::step, 2:].T]
            width = sum(int(column.max() - column.min()).bit_length() for column in columns)
            if 30 + -(-len(columns[0]) * width // 8) <= most_bytes:
                return step
        return 0

    def read(self, record: bytes, rows: int | None = None) -> np.ndarray | None:
        """The points of a record that ends where no memory is; None where it is refused."""
        rows = len(self.points) if rows is None else rows
        points = np.full((rows + 2, 5), -77, np.int32)
        with record_at_the_edge(record) as address:
            spacing = unpack(address, len(record), self.key, self.mcus, self.components, self.scan_start,
                             self.data_size, points[1:-1])  # fmt: skip
        assert (points[[0, -1]] == -77).all()
        count = -(-self.mcus // spacing) if spacing else 0
        assert (points[1 + count : -1] == -77).all() or not spacing
        return points[1 : 1 + count] if spacing else None


def image_of(data: bytes, spacing: int = seek_points.FINEST_SPACING) -> Image:
    scan = scan_of(data)
    assert scan is not None
    points = np.zeros((-(-scan.mcus // spacing), 5), np.int32)
    assert decoded(scan, spacing, points).status == 0
    components = int(scan.header[jpeg.COMPONENTS])
    return Image(points, scan.mcus, components, len(data), np.uint64(content_key(scan.data)), spacing)


@contextlib.contextmanager
def record_at_the_edge(record: bytes) -> Iterator[int]:
    """The address of a copy whose last byte is the last that can be read."""
    page = mmap.PAGESIZE
    edge = -(-len(record) // page) * page
    memory = mmap.mmap(-1, edge + page)
    memory[edge - len(record) : edge] = record
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + edge), ctypes.c_size_t(page), 0) == 0
    yield start + edge - len(record)


def checked(body: bytes, key: np.uint64) -> bytes:
    """A record of these bytes behind the checksum that they should have."""
    return (seek_points.content_key_reference(body, int(key)) & 0xFFFFFFFF).to_bytes(4, "little") + body


KNOWN = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


@pytest.mark.parametrize("data", KNOWN)
def test_known_keys(data: bytes):
    assert content_key(np.frombuffer(data, np.uint8)) == seek_points.content_key_reference(data) == KNOWN[data]


def lengths() -> Iterator[bytes]:
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    yield from (data[size % 8 : size % 8 + size] for size in [*range(301), 4097])


def test_keys_of_all_lengths_are_those_of_the_specification():
    for data in lengths():
        assert content_key(np.frombuffer(data, np.uint8)) == seek_points.content_key_reference(data), len(data)


def test_keys_and_seeded_checksums_are_those_of_the_xxhash_library():
    xxhash = pytest.importorskip("xxhash")
    for data in lengths():
        assert content_key(np.frombuffer(data, np.uint8)) == xxhash.xxh64_intdigest(data), len(data)
        assert seek_points.content_key_reference(data, 2**63 + 11) == xxhash.xxh64_intdigest(data, 2**63 + 11)


SHAPES = [(16, 16), (40, 24), (250, 131), (700, 500)]
KINDS = ["4:4:4", "4:2:0", "grey"]


@pytest.mark.parametrize(("width", "height"), SHAPES, ids=lambda size: str(size))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"quality": 30}, {"quality": 95}, {"quality": 75, "restart_marker_blocks": 7}])
def test_a_record_gives_back_the_decoders_points(width: int, height: int, kind: str, options: dict[str, int]):
    image = image_of(encoded(width, height, kind, **options))
    for most_bytes in (8 * len(image.points) + 30, image.data_size // 50, 45):
        step = image.step_that_fits(most_bytes)
        record = image.record(most_bytes)
        if step == 0:
            assert record == b""
            continue
        found = image.read(record)
        assert found is not None
        np.testing.assert_array_equal(found, image.points[::step])
        np.testing.assert_array_equal(found, seek_points.unpack_reference(record, image.scan_start))


def test_points_at_a_width_of_zero_bits_need_no_bytes():
    """A plain image: every segment is as long as the others, no predictor differs from another."""
    points = np.array([[100, 0, 0, 0, 0], *([100 + 3 * i, 0, -5, 7, 7] for i in range(1, 9))], np.int32)
    image = Image(points, 33, 3, 1000, np.uint64(2**64 - 1))
    record = image.record(30)
    assert len(record) == seek_points.RECORD_HEADER
    np.testing.assert_array_equal(image.read(record), points)
    np.testing.assert_array_equal(seek_points.unpack_reference(record, 100), points)


def test_extremes_of_a_column_survive():
    points = np.array([[600, 0, 0, 0, 0], [600, 1, -32768, 32767, 0], [2**27, 7, 32767, 0, -1]], np.int32)
    image = Image(points, 9, 3, 2**27 + 1, np.uint64(5))
    assert image.record(100) == b"", "28 + 16 + 15 + 1 bits don't fit in one load: not what a photograph has"
    points[2, 2] = -32000
    record = image.record(100)
    np.testing.assert_array_equal(image.read(record), points)
    np.testing.assert_array_equal(seek_points.unpack_reference(record, 600), points)


@pytest.fixture(scope="module")
def small() -> Image:
    return image_of(encoded(90, 50, "4:2:0", quality=60))


def test_every_flipped_bit_of_a_record_is_refused(small: Image):
    record = small.record(1000)
    assert small.read(record) is not None
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        assert small.read(bytes(flipped)) is None, bit


def test_a_record_of_another_image_or_length_is_refused(small: Image):
    record = small.record(1000)
    others = [
        replace(small, key=small.key ^ np.uint64(1)),
        replace(small, mcus=small.mcus - 1),
        replace(small, components=1),
        replace(small, data_size=small.data_size + 1),
    ]
    assert all(other.read(record) is None for other in others)
    assert all(small.read(record[:size]) is None for size in range(len(record)))
    assert small.read(record + b"\0") is None
    assert small.read(record, rows=len(small.points) - 1) is None


def test_a_wrong_record_with_a_right_checksum_stays_within_data_and_points(small: Image):
    """Nobody writes such records; reading them must still be harmless."""
    record, accepted = small.record(1000), 0
    generator = np.random.default_rng(1)
    for _ in range(3000):
        body = bytearray(record[4:])
        for at in generator.integers(0, 30, generator.integers(1, 4)):
            body[at] = generator.integers(256)
        found = small.read(checked(bytes(body), small.key))
        if found is not None:
            position = found[:, 0].astype(np.int64) * 8 + found[:, 1]
            assert (np.diff(position) > 0).all() and (found[:, 1] >> 3 == 0).all()
            assert small.scan_start == found[0, 0] and found[-1, 0] < small.data_size
            accepted += 1
    assert accepted > 100, "the test must reach the points"
    version = bytearray(record[4:])
    version[0] += 1
    assert small.read(checked(bytes(version), small.key)) is None


def test_points_that_no_decoder_leaves_get_no_record(small: Image):
    shuffled = replace(small, points=np.ascontiguousarray(small.points[[0, 2, 1, *range(3, len(small.points))]]))
    odd_start = replace(small, points=small.points + np.array([0, 1, 0, 0, 0], np.int32))
    for image in (shuffled, odd_start, replace(small, mcus=small.mcus + 8), replace(small, key=np.uint64(0))):
        assert image.record(1000) == b""
    assert replace(small, points=small.points[:1], mcus=4).record(1000) == b"", "the start alone says nothing"


def test_slots_find_what_a_dict_finds():
    generator = np.random.default_rng(3)
    keys = generator.integers(1, 2**64, 680, np.uint64)
    keys[:40] = np.uint64(1023) + np.arange(40, dtype=np.uint64) * np.uint64(1024)  # all begin in the last slot
    rows = np.stack([keys, np.arange(680, dtype=np.uint64), np.ones(680, np.uint64)], 1)
    slots = np.zeros((1024, 3), np.uint64)
    assert seek_points.fill_slots(slots, rows) == 680
    assert seek_points.fill_slots(slots, rows[:5]) == 0, "a key has one slot"
    for row in rows:
        np.testing.assert_array_equal(slots[find(slots, row[0])], row)
    known = set(keys.tolist())
    assert all(find(slots, key) == -1 for key in generator.integers(1, 2**64, 2000, np.uint64) if int(key) not in known)
    assert find(slots, np.uint64(0)) == -1


@pytest.mark.parametrize("size", [1, 8, 1024])
def test_a_full_table_ends_every_search(size: int):
    slots = np.ones((size, 3), np.uint64)
    assert find(slots, np.uint64(2 * size)) == find(slots, np.uint64(0)) == -1
    assert seek_points.fill_slots(slots, np.full((1, 3), 7, np.uint64)) == 0


def slots_with(key: np.uint64, begin: int, length: int) -> np.ndarray:
    slots = np.zeros((4, 3), np.uint64)
    assert seek_points.fill_slots(slots, np.array([[key, begin, length]], np.uint64)) == 1
    return slots


def test_either_table_gives_an_images_points_and_a_damaged_one_gives_way(small: Image):
    record = np.frombuffer(b"....." + small.record(1000), np.uint8).copy()
    base, size = record.ctypes.data, len(record)
    none = np.zeros((1, 3), np.uint64)

    def spacing(fixed: np.ndarray, learned: np.ndarray) -> int:
        points = np.zeros(small.points.shape, np.int32)
        found = points_of(fixed, learned, base, size, small.key, small.mcus, small.components, small.scan_start,
                          small.data_size, points)  # fmt: skip
        assert not found or np.array_equal(points, small.points)
        return int(found)

    fixed, learned = slots_with(small.key, base + 5, size - 5), slots_with(small.key, 5, size - 5)
    assert spacing(none, none) == 0
    assert spacing(fixed, none) == spacing(none, learned) == seek_points.FINEST_SPACING
    assert spacing(slots_with(small.key, base + 4, size - 5), learned) == seek_points.FINEST_SPACING
    for begin, length in [(5, size - 4), (size + 1, 0), (2**64 - 1, size - 5), (5, 2**64 - 1), (6, size - 5), (0, 0)]:
        assert spacing(none, slots_with(small.key, begin, length)) == 0


def test_every_photograph_has_a_record_in_2_percent_of_its_bytes(photos: Path):
    none: list[str] = []
    point_bytes: list[float] = []
    spacings: dict[int, int] = {}
    for path in sorted(photos.rglob("*.JPEG")):
        data = path.read_bytes()
        image = image_of(data)
        record = image.record(len(data) // 50)
        found = image.read(record) if record else None
        if found is None:
            none.append(f"{path.name}: {len(data)} bytes, {image.mcus} MCUs")
            continue
        step = image.step_that_fits(len(data) // 50)
        np.testing.assert_array_equal(found, image.points[::step])
        spacings[4 * step] = spacings.get(4 * step, 0) + 1
        if image.components == 3:
            point_bytes.append(len(record) / len(found))
    print(f"photographs by spacing: {dict(sorted(spacings.items()))}; {np.median(point_bytes):.2f} bytes a point")
    assert len(spacings) > 1 and not none
