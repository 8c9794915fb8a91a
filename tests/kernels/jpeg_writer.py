"""A JPEG of given coefficients, quantisation tables and sampling factors: what no encoder would write, too.

Its Huffman tables hold every symbol, so that any coefficient can be written; Pillow decodes the result, and a test
compares the kernels' pixels with Pillow's, having the exact coefficients in hand.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

import numpy as np
from PIL import Image

ZIGZAG = sorted(range(64), key=lambda k: (k // 8 + k % 8, k // 8 if (k // 8 + k % 8) % 2 else k % 8))
"""Natural index of each zigzag index: diagonal by diagonal, downwards on odd ones, upwards on even ones."""


@dataclass(frozen=True)
class Jpeg:
    """An image of one or three components, and the file that holds it."""

    width: int
    height: int
    sampling: tuple[tuple[int, int], ...]  # (h, v) of each component
    quant: tuple[np.ndarray, ...]  # uint16 (64,), natural order
    coefficients: tuple[np.ndarray, ...]  # int16 (blocks_high, blocks_wide, 64)
    is_ycc: bool = True

    @property
    def h_max(self) -> int:
        return max(h for h, _ in self.sampling)

    @property
    def v_max(self) -> int:
        return max(v for _, v in self.sampling)

    @property
    def last(self) -> list[np.ndarray]:
        """uint8 (blocks_high, blocks_wide) a component: the highest zigzag index of what isn't zero."""
        found = [np.where(blocks[:, :, ZIGZAG] != 0, np.arange(64), 0) for blocks in self.coefficients]
        return [indices.max(axis=2).astype(np.uint8) for indices in found]

    def true_size(self, component: int) -> tuple[int, int]:
        """Width and height of a component without padding."""
        h, v = self.sampling[component]
        return -(-self.width * h // self.h_max), -(-self.height * v // self.v_max)

    def encoded(self) -> bytes:
        """The file: one interleaved scan."""
        count = len(self.sampling)
        parts = [b"\xff\xd8"]
        if not self.is_ycc:
            parts.append(b"\xff\xee" + struct.pack(">H", 14) + b"Adobe\0\x64" + bytes(5))  # transform 0
        for number, table in enumerate(self.quant):
            wide = bool((table > 255).any())
            values = struct.pack(">64H" if wide else ">64B", *(int(table[k]) for k in ZIGZAG))
            parts.append(b"\xff\xdb" + struct.pack(">HB", 3 + len(values), (wide << 4) + number) + values)
        wide_frame = any((table > 255).any() for table in self.quant)
        frame = struct.pack(">BHHB", 8, self.height, self.width, count)
        frame += b"".join(bytes([c + 1, (h << 4) + v, c]) for c, (h, v) in enumerate(self.sampling))
        parts.append((b"\xff\xc1" if wide_frame else b"\xff\xc0") + struct.pack(">H", 2 + len(frame)) + frame)
        parts.append(b"\xff\xc4" + struct.pack(">HB", 35, 0) + bytes([0] * 4 + [16] + [0] * 11 + [*range(16)]))
        parts.append(
            b"\xff\xc4" + struct.pack(">HB", 275, 0x10) + bytes([0] * 7 + [128, 128] + [0] * 7 + [*range(256)])
        )
        scan = bytes([count]) + b"".join(bytes([c + 1, 0]) for c in range(count)) + b"\0\x3f\0"
        parts.append(b"\xff\xda" + struct.pack(">H", 2 + len(scan)) + scan)
        return b"".join([*parts, self._scan(), b"\xff\xd9"])

    def pillow(self) -> np.ndarray:
        """Pillow's pixels, uint8 (height, width, 3)."""
        return np.asarray(Image.open(io.BytesIO(self.encoded())).convert("RGB"))

    def _scan(self) -> bytes:
        bits: list[str] = []
        predicted = [0] * len(self.sampling)
        mcus_wide, mcus_high = -(-self.width // (8 * self.h_max)), -(-self.height // (8 * self.v_max))
        for mcu in range(mcus_wide * mcus_high):
            for c, (h, v) in enumerate(self.sampling):
                for block in range(h * v):
                    row, column = mcu // mcus_wide * v + block // h, mcu % mcus_wide * h + block % h
                    values = self.coefficients[c][row, column, ZIGZAG].tolist()
                    difference, predicted[c] = values[0] - predicted[c], values[0]
                    bits.append(f"{abs(difference).bit_length():05b}" + _extra(difference))
                    bits.append(_ac(values))
        text = "".join(bits)
        text += "1" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")


def _extra(value: int) -> str:
    size = abs(value).bit_length()
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


def _ac(values: list[int]) -> str:
    """The AC coefficients of a block: codes are the symbols themselves, in 8 bits or in 9."""
    out, run = [], 0
    end = max((k for k in range(1, 64) if values[k]), default=0)
    for value in values[1 : end + 1]:
        if value == 0:
            run += 1
            continue
        symbols = [0xF0] * (run // 16) + [run % 16 * 16 + abs(value).bit_length()]
        out += [f"{s:08b}" if s < 128 else f"{s + 128:09b}" for s in symbols]
        out.append(_extra(value))
        run = 0
    return "".join(out) + ("" if end == 63 else f"{0:08b}")


def quality_table(quality: int) -> np.ndarray:
    """A quantisation table such as encoders use: coarser for higher frequencies, by libjpeg's scale of 1 to 100."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    k = np.arange(64)
    base = 12 + 7 * (k // 8 + k % 8) + (k // 8) * (k % 8)
    return np.clip((base * scale + 50) // 100, 1, 255).astype(np.uint16)


def photograph(
    width: int, height: int, sampling: tuple[tuple[int, int], ...], quality: int, seed: int = 0, is_ycc: bool = True
) -> Jpeg:
    """Coefficients as a photograph's: large at low frequencies, more and more zeros at high ones, some blocks flat."""
    generator = np.random.default_rng([width, height, quality, seed])
    h_max, v_max = max(h for h, _ in sampling), max(v for _, v in sampling)
    quant, coefficients = [], []
    for h, v in sampling:
        shape = (-(-height // (8 * v_max)) * v, -(-width // (8 * h_max)) * h, 64)
        k = np.arange(64)
        spread = np.where(k == 0, 350, 500 / (1 + (k // 8 + k % 8)) ** 1.7)
        flat = generator.choice([0.0, 0.2, 1.0, 3.0], shape[:2])[:, :, None]
        drawn = generator.laplace(size=shape) * spread * np.where(k == 0, 1.0, flat)
        table = quality_table(quality)
        quant.append(table)
        limit = 1023 // table.astype(np.int64)
        coefficients.append(np.clip(np.rint(drawn / table), -limit, limit).astype(np.int16))
    return Jpeg(width, height, sampling, tuple(quant), tuple(coefficients), is_ycc)
