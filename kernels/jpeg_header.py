"""What a JPEG says before its first scan, read by compiled code: sizes, sampling, tables, and whether it is ours.

Chunks of images are decoded in one call that holds no GIL, so their headers cannot be read by Python. Owns the walk
over the markers, as libjpeg does it (stray bytes are passed over and counted, repeated 0xFF bytes are padding, the
last of repeated tables wins), and the verdict: `OURS`, or the reason why Pillow gets the image. Leaves the building
of look-up tables to `huffman.py`, coefficients to `entropy.py`, and a pixel limit to the caller.

    header   int32 (HEADER_SIZE,)    one number a field; the indices are below, per component `FIELD + c`
    quant    uint16 (4, 64)          quantisation tables in natural order, 8 * v + u; of those named in QUANT_SEEN
    huffman  uint8 (8, 272)          as in the file: 16 counts of codes by length, then their symbols, then zeros;
                                     rows 0 to 3 are DC tables, 4 to 7 AC; all zero where there was none

Source: ITU-T T.81, annex B; TIFF 6.0 for EXIF; libjpeg for colours and for what is an error.
"""

from __future__ import annotations

import numba
import numpy as np
from gpuload.kernels.compile import kernel

WIDTH, HEIGHT, COMPONENTS, PRECISION, KIND, COLOR = 0, 1, 2, 3, 4, 5
"""As stored; KIND is the frame marker's second byte, 0xC0 to 0xCF, 0 where there was none."""
RESTART_INTERVAL, SCAN_START, MCUS_WIDE, MCUS_HIGH, BLOCKS_IN_MCU, H_MAX, V_MAX = 6, 7, 8, 9, 10, 11, 12
"""SCAN_START is the offset of the first entropy-coded byte; the interval is in MCUs, 0: none."""
ORIENTATION, ADOBE, JFIF, STRAY_BYTES, QUANT_SEEN, STOPPED_AT = 13, 14, 15, 16, 17, 18
"""EXIF's 1 to 8; the Adobe marker's transform or -1; 0 or 1; between segments; a bit a table; where the walk ended."""
ID, H, V, QUANT_TABLE, DC_TABLE, AC_TABLE = 20, 24, 28, 32, 36, 40
"""By component. A single component's H and V are 1, whatever the file says: its scan is not interleaved."""
HEADER_SIZE = 44

GREY, YCBCR, RGB = 0, 1, 2
"""What COLOR says of 1 or 3 components."""

REASONS = (
    "ours",
    "not a JPEG",
    "the data ends before the first scan",
    "a marker that is not allowed here",
    "a segment of a wrong length",
    "a bad quantisation table",
    "a bad Huffman table",
    "a width or height of zero",
    "bad sampling factors",
    "a scan before the frame header",
    "a scan that does not fit its frame",
    "a table that no segment defines",
    "progressive",
    "lossless",
    "arithmetic coding",
    "hierarchical",
    "samples that are not of 8 bits",
    "neither 1 nor 3 components",
    "several scans",
    "sampling ratios that are no integers, or more than 10 blocks an MCU",
    "a side that libjpeg finds too long",
)
"""What `parse_header` returned, in words."""
OURS, NOT_JPEG, TRUNCATED, BAD_MARKER, BAD_LENGTH, BAD_QUANT, BAD_HUFFMAN, ZERO_SIZE, BAD_SAMPLING = range(9)
NO_FRAME, BAD_SCAN, MISSING_TABLE = range(9, 12)
PROGRESSIVE, LOSSLESS, ARITHMETIC, HIERARCHICAL, NOT_8_BIT, OTHER_COMPONENTS, SEVERAL_SCANS = range(12, 19)
OTHER_SAMPLING, TOO_LARGE = range(19, 21)

LONGEST_SIDE = 65500

HUFFMAN_SIZE = 16 + 256
MOST_BLOCKS_IN_MCU = 10

# fmt: off
ZIGZAG = np.array([
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
], np.uint8)
# fmt: on
"""The natural index, 8 * v + u, of each zigzag index."""


@numba.njit(nogil=True)
def _u16(data, at):
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@numba.njit(nogil=True)
def _begins_with(data, at, end, text):
    if end - at < len(text):
        return False
    for i in range(len(text)):
        if data[at + i] != text[i]:
            return False
    return True


@numba.njit(nogil=True)
def _too_short(data, at, end, marker):
    """Whether Pillow, which reads these segments' fields without looking at their length, gives the file up."""
    if marker == 0xE0:
        return end - at < 7 and _begins_with(data, at, end, b"JFIF")
    if marker == 0xEE:
        return end - at < 7 and _begins_with(data, at, end, b"Adobe")
    if marker == 0xE2:
        return end - at < 14 and _begins_with(data, at, end, b"ICC_PROFILE\0")
    return marker == 0xED and _begins_with(data, at, end, b"Photoshop 3.0\0") and _resources_break_off(data, at, end)


@numba.njit(nogil=True)
def _resources_break_off(data, at, end):
    """Whether a list of Photoshop's resources ends between the number of one and its name's length."""
    place = at + 14
    while _begins_with(data, place, end, b"8BIM") and place + 6 <= end:
        if place + 6 == end:
            return True
        resolution = _u16(data, place + 4) == 0x03ED
        place += 7 + np.int64(data[place + 6])
        place += (place - at) & 1
        if place + 4 > end:
            return False
        size = _u16(data, place) << 16 | _u16(data, place + 2)
        if resolution and min(size, end - place - 4) < 14:
            return False
        place += 4 + size
        place += (place - at) & 1
    return False


@numba.njit(nogil=True)
def _read_quant(data, at, end, header, quant):
    while at < end:
        wide = np.int64(data[at]) >> 4
        row = np.int64(data[at]) & 15
        at += 1
        if wide > 1 or row > 3 or at + (64 << wide) > end:
            return BAD_QUANT
        for i in range(64):
            value = _u16(data, at + 2 * i) if wide else np.int64(data[at + i])
            quant[row, ZIGZAG[i]] = value
        at += 64 << wide
        header[QUANT_SEEN] |= 1 << row
    return OURS


@numba.njit(nogil=True)
def _read_huffman(data, at, end, huffman):
    while at < end:
        if at + 17 > end:
            return BAD_HUFFMAN
        which = np.int64(data[at])
        row = (which >> 4) * 4 + (which & 3)
        if which & 0xEC:
            return BAD_HUFFMAN
        symbols = 0
        for i in range(16):
            symbols += np.int64(data[at + 1 + i])
        if symbols > 256 or at + 17 + symbols > end:
            return BAD_HUFFMAN
        for i in range(HUFFMAN_SIZE):
            huffman[row, i] = data[at + 1 + i] if i < 16 + symbols else np.uint8(0)
        at += 17 + symbols
    return OURS


@numba.njit(nogil=True)
def _read_frame(data, at, end, kind, header):
    """The fields of a frame header; returns what is wrong with it, or why it isn't ours."""
    if end - at < 6 or end - at != 6 + 3 * np.int64(data[at + 5]):
        return BAD_LENGTH
    header[KIND] = kind
    header[PRECISION] = data[at]
    header[HEIGHT] = _u16(data, at + 1)
    header[WIDTH] = _u16(data, at + 3)
    components = np.int64(data[at + 5])
    header[COMPONENTS] = components
    if header[WIDTH] == 0 or header[HEIGHT] == 0 or components == 0:
        return ZERO_SIZE
    if header[WIDTH] > LONGEST_SIDE or header[HEIGHT] > LONGEST_SIDE:
        return TOO_LARGE
    if kind > 0xC8:
        return ARITHMETIC
    if kind > 0xC4:
        return HIERARCHICAL
    if kind == 0xC3:
        return LOSSLESS
    if kind == 0xC2:
        return PROGRESSIVE
    if header[PRECISION] != 8:
        return NOT_8_BIT
    if components != 1 and components != 3:
        return OTHER_COMPONENTS
    for c in range(components):
        spec = at + 6 + 3 * c
        header[ID + c] = data[spec]
        h = np.int64(data[spec + 1]) >> 4
        v = np.int64(data[spec + 1]) & 15
        if h < 1 or h > 4 or v < 1 or v > 4 or data[spec + 2] > 3:
            return BAD_SAMPLING
        header[H + c] = 1 if components == 1 else h
        header[V + c] = 1 if components == 1 else v
        header[QUANT_TABLE + c] = data[spec + 2]
        header[H_MAX] = max(header[H_MAX], header[H + c])
        header[V_MAX] = max(header[V_MAX], header[V + c])
    ours = True
    for c in range(components):
        ours = ours and header[H_MAX] % header[H + c] == 0 and header[V_MAX] % header[V + c] == 0
        header[BLOCKS_IN_MCU] += header[H + c] * header[V + c]
    header[MCUS_WIDE] = (header[WIDTH] + 8 * header[H_MAX] - 1) // (8 * header[H_MAX])
    header[MCUS_HIGH] = (header[HEIGHT] + 8 * header[V_MAX] - 1) // (8 * header[V_MAX])
    return OURS if ours and header[BLOCKS_IN_MCU] <= MOST_BLOCKS_IN_MCU else OTHER_SAMPLING


@numba.njit(nogil=True)
def _read_scan(data, at, end, header, huffman):
    """The scan header, in a frame that is ours."""
    components = np.int64(header[COMPONENTS])
    if end - at < 1 or data[at] < 1 or data[at] > 4 or end - at != 4 + 2 * np.int64(data[at]):
        return BAD_LENGTH
    if np.int64(data[at]) < components:
        return SEVERAL_SCANS
    if np.int64(data[at]) > components or data[end - 3] != 0 or data[end - 2] != 63 or data[end - 1] != 0:
        return BAD_SCAN
    for c in range(components):
        which = np.int64(data[at + 2 + 2 * c])
        if np.int64(data[at + 1 + 2 * c]) != header[ID + c] or which & 0xCC:
            return BAD_SCAN  # libjpeg takes components in any order; nobody writes them so
        for other in range(c):
            if header[ID + other] == header[ID + c]:
                return BAD_SCAN
        header[DC_TABLE + c] = which >> 4
        header[AC_TABLE + c] = which & 15
        codes_dc = 0
        codes_ac = 0
        for i in range(16):
            codes_dc += np.int64(huffman[which >> 4, i])
            codes_ac += np.int64(huffman[4 + (which & 15), i])
        if codes_dc == 0 or codes_ac == 0 or not header[QUANT_SEEN] >> header[QUANT_TABLE + c] & 1:
            return MISSING_TABLE
    return OURS


@numba.njit(nogil=True)
def _read_orientation(data, at, end):
    """EXIF's orientation from the TIFF structure in [at, end), 1 where it has none that makes sense."""
    if end - at < 8 or data[at] != data[at + 1] or (data[at] != 73 and data[at] != 77):
        return 1
    little = data[at] == 73  # II, else MM
    directory = np.int64(0)
    for i in range(4):
        directory = directory << 8 | np.int64(data[at + (7 - i if little else 4 + i)])
    first = at + directory
    if first + 2 > end:
        return 1
    entries = np.int64(data[first + little]) << 8 | np.int64(data[first + 1 - little])
    for entry in range(entries):
        start = first + 2 + 12 * entry
        if start + 12 > end:
            return 1
        if data[start + little] == 0x01 and data[start + 1 - little] == 0x12:
            kind = np.int64(data[start + 2 + little]) << 8 | np.int64(data[start + 3 - little])
            value = np.int64(data[start + 8 + little]) << 8 | np.int64(data[start + 9 - little])
            return value if kind == 3 and 1 <= value <= 8 else 1  # 3: SHORT
    return 1


@numba.njit(nogil=True)
def _color(header):
    """libjpeg's rule: JFIF wins over Adobe, Adobe over component ids."""
    if header[COMPONENTS] == 1:
        return GREY
    if header[JFIF]:
        return YCBCR
    if header[ADOBE] >= 0:
        return RGB if header[ADOBE] == 0 else YCBCR
    return RGB if header[ID] == 82 and header[ID + 1] == 71 and header[ID + 2] == 66 else YCBCR


@kernel(["int64(Array(uint8, 1, 'C', readonly=True), int32[::1], uint16[:, ::1], uint8[:, ::1])"])
def parse_header(data, header, quant, huffman):
    """Read one file's headers up to its first scan: `OURS` (0), or an index into `REASONS`.

    Fills header, quant and huffman (the module says how), as far as it came; reads nothing beyond data. Where the
    frame is not ours, the size and, if a scan follows, the orientation are still right.
    """
    header[:] = 0
    huffman[:] = 0
    header[ORIENTATION], header[ADOBE] = 1, -1
    size = np.int64(data.size)
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8 or data[2] != 0xFF:
        return NOT_JPEG
    verdict = NO_FRAME
    at = np.int64(2)
    while at + 4 <= size:
        header[STOPPED_AT] = at
        if data[at] != 0xFF:
            header[STRAY_BYTES] += 1
            at += 1
            continue
        marker = np.int64(data[at + 1])
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0 or 0xD0 <= marker <= 0xD7:  # RSTn have no length; TEM has none either, but Pillow refuses it
            header[STRAY_BYTES] += 2
            at += 2
            continue
        start = at + 4
        end = at + 2 + _u16(data, at + 2)
        frame = 0xC0 <= marker <= 0xCF and marker != 0xC4 and marker != 0xC8 and marker != 0xCC
        if not (frame or marker == 0xC4 or marker == 0xCC or 0xDA <= marker <= 0xDD or 0xE0 <= marker <= 0xEF
                or marker == 0xFE):  # fmt: skip
            return BAD_MARKER
        if end < start:
            return BAD_LENGTH
        if end > size:
            return TRUNCATED
        failed = OURS
        if frame:
            if header[KIND]:
                return BAD_MARKER  # two frames
            verdict = _read_frame(data, start, end, marker, header)
            if verdict == BAD_LENGTH or verdict == ZERO_SIZE:
                return verdict
        elif marker == 0xC4:
            failed = _read_huffman(data, start, end, huffman)
        elif marker == 0xCC:  # its conditioning; nobody writes one without the other, and libjpeg may refuse it
            failed = ARITHMETIC
        elif marker == 0xDB:
            failed = _read_quant(data, start, end, header, quant)
        elif marker == 0xDD:
            if end - start != 2:
                return BAD_LENGTH
            header[RESTART_INTERVAL] = _u16(data, start)
        elif _too_short(data, start, end, marker):
            return BAD_LENGTH
        elif marker == 0xE0:
            if end - start >= 14 and _begins_with(data, start, end, b"JFIF\0"):
                header[JFIF] = 1
        elif marker == 0xE1:
            if _begins_with(data, start, end, b"Exif\0\0"):
                header[ORIENTATION] = _read_orientation(data, start + 6, end)
        elif marker == 0xEE:
            if end - start >= 12 and _begins_with(data, start, end, b"Adobe"):
                header[ADOBE] = data[start + 11]
        elif marker == 0xDA:
            header[SCAN_START] = end
            header[COLOR] = _color(header)
            return verdict if verdict else _read_scan(data, start, end, header, huffman)
        if failed:
            return failed
        at = end
    header[STOPPED_AT] = size
    return TRUNCATED
