"""A batch of segments as the host stages it, made one by one by slow and obvious code, and the memory it decodes into.

Each segment's bytes lie apart from all others, among bytes that are noise, and each array that a kernel writes lies
between two zones that no kernel may touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels.device_batch import DATA_PADDING, IMAGE, SEGMENT, TABLE
from gpuload.kernels.entropy import DECODED, LAYOUT_SIZE
from gpuload.kernels.huffman import TABLE_SIZE

from tests.kernels.test_entropy import KINDS, Decoder, Scan, decoded, encoded, scan_of

Window = tuple[int, int, int, int]
Launch = Callable[..., None]
"""(name, items, *arguments of the kernel)"""

BESIDE = 512
"""Elements on either side of an array."""


class Guarded:
    """`count` elements of poison between two zones of it."""

    def __init__(self, dtype: type, count: int):
        self.poison = np.iinfo(dtype).max // 3
        self.whole = np.full(count + 2 * BESIDE, self.poison, dtype)
        self.values = self.whole[BESIDE : BESIDE + count]

    def assert_untouched_beside(self) -> None:
        assert (self.whole[:BESIDE] == self.poison).all() and (self.whole[-BESIDE:] == self.poison).all()


def host_address(array: np.ndarray) -> int:
    return array.ctypes.data


@dataclass
class SegmentBatch:
    """images, segments, tables, definitions, data: device_batch.py. scans, windows: each image's."""

    images: np.ndarray
    segments: np.ndarray
    tables: np.ndarray
    definitions: np.ndarray
    data: np.ndarray
    scans: list[Scan] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, blocks = len(self.images) - 1, int(self.images["first_block"][-1])
        self.built = Guarded(np.int32, len(self.tables) * TABLE_SIZE)
        self.layouts = Guarded(np.int32, n * LAYOUT_SIZE)
        self.status = Guarded(np.int32, n)
        self.coefficients = Guarded(np.int16, blocks * 64)
        self.last = Guarded(np.uint8, blocks)

    def run(self, launch: Launch, address_of: Callable[[np.ndarray], int] = host_address) -> None:
        """The three launches, in order; address_of: where the kernels find an array."""

        def inside(array: Guarded) -> int:
            return address_of(array.whole) + BESIDE * array.whole.itemsize

        images, tables, built = address_of(self.images), len(self.tables), inside(self.built)
        layouts, status = inside(self.layouts), inside(self.status)
        launch("build_tables", tables, address_of(self.tables), address_of(self.definitions), len(self.definitions),
               built)  # fmt: skip
        launch("lay_out_images", len(self.images) - 1, images, layouts, status)
        launch("decode_segments", len(self.segments), address_of(self.segments), images, layouts,
               address_of(self.data), len(self.data), built, tables, inside(self.coefficients), inside(self.last),
               len(self.last.values), status)  # fmt: skip

    def written(self) -> list[Guarded]:
        return [self.built, self.layouts, self.status, self.coefficients, self.last]

    def assert_same(self, other: SegmentBatch) -> None:
        """All that was written, but for the blocks that take what nobody wants, and which anomaly of several it was."""
        assert np.array_equal(self.built.values, other.built.values)
        assert np.array_equal(self.layouts.values, other.layouts.values)
        assert np.array_equal(self.status.values > 0, other.status.values > 0)
        for image in range(len(self.images) - 1):
            assert all(map(np.array_equal, self.decoded(image), other.decoded(image)))

    def decoded(self, image: int) -> tuple[np.ndarray, np.ndarray]:
        """coefficients (blocks, 64) and last (blocks,) of an image, without the block that takes what nobody wants."""
        first, end = (int(self.images["first_block"][image + k]) for k in range(2))
        return self.coefficients.values.reshape(-1, 64)[first : end - 1], self.last.values[first : end - 1]

    def assert_is_expected(self, image: int) -> None:
        """As the CPU decodes the whole scan, cut to the window."""
        expected = decoded(self.scans[image]).cut(self.scans[image], self.windows[image])
        coefficients, last = self.decoded(image)
        assert np.array_equal(coefficients, np.concatenate([part.reshape(-1, 64) for part in expected.coefficients]))
        assert np.array_equal(last, np.concatenate([part.ravel() for part in expected.last]))
        assert self.status.values[image] == DECODED


def batch_of(files: Sequence[bytes], windows: Sequence[Window | None], spacing: int, seed: int = 0) -> SegmentBatch:
    """The segments that each image's window needs, cut at every `spacing` MCUs; no window: the whole image."""
    rng = np.random.default_rng(seed)
    images = np.zeros(len(files) + 1, IMAGE)
    segments, definitions, scans, whole_windows = [], dict[tuple[bytes, bool], int](), list[Scan](), list[Window]()
    data = bytearray()
    for number, (file, asked) in enumerate(zip(files, windows, strict=True)):
        scan = scan_of(file)
        assert scan is not None
        window = asked or (0, 0, scan.wide, int(scan.header[jpeg.MCUS_HIGH]))
        scans.append(scan)
        whole_windows.append(window)
        image = images[number]
        image["header"], image["window"] = scan.header, window
        for c in range(scan.header[jpeg.COMPONENTS]):
            for name, row in (("dc", scan.rows[c]), ("ac", scan.rows[3 + c])):
                counts = scan.huffman[row][:16]
                key = scan.huffman[row][: 16 + counts.sum(dtype=int)].tobytes(), name == "ac"
                image[name][c] = definitions.setdefault(key, len(definitions))
        images[number + 1]["first_block"] = image["first_block"] + Decoder(scan, window).blocks + 1
        points = np.zeros((scan.mcus, 5), np.int32)
        assert decoded(scan, 1, points).status == DECODED
        left, top, wide, high = window
        for row in range(top, top + high):
            end = row * scan.wide + left + wide
            first = (row * scan.wide + left) // spacing * spacing
            for mcu in range(first, end, spacing):
                count = min(spacing, end - mcu)
                behind = points[mcu + count][0] + 2 if mcu + count < scan.mcus else len(scan.data)
                data += rng.bytes(int(rng.integers(3)))
                segment = (len(data), mcu, number, count, points[mcu][2:], points[mcu][1])
                segments.append(np.array(segment, SEGMENT))
                data += scan.data[points[mcu][0] : behind].tobytes()
    tables = np.zeros(len(definitions), TABLE)
    text = b""
    for i, (definition, is_ac) in enumerate(definitions):
        tables[i] = len(text), is_ac
        text += definition
    data += bytes(DATA_PADDING)
    return SegmentBatch(
        images, np.array(segments, SEGMENT), tables, np.frombuffer(text, np.uint8).copy(),
        np.frombuffer(data, np.uint8).copy(), scans, whole_windows,
    )  # fmt: skip


def every_kind(restarts: int = 0, width: int = 75, height: int = 59) -> list[bytes]:
    """One image of each sampling; every second one with its own Huffman tables."""
    return [
        encoded(width + 9 * i, height, kind, seed=i, quality=60 + 5 * i, optimize=i % 2 == 0,
                restart_marker_blocks=restarts)
        for i, kind in enumerate(KINDS)
    ]  # fmt: skip
