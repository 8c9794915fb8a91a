"""What a JPEG says of itself before its first scan: size, coding process, sampling, orientation.

Decoders need the size before they can draw a crop, and the kind of file before they accept it; asking an
image library costs more than the walk over a dozen markers. Owns that walk, as libjpeg does it: stray bytes
between segments are passed over, repeated 0xFF bytes are padding. Leaves tables and entropy-coded data to
the decoders, and any verdict on a file that is no JPEG to Pillow.

Source: ITU-T T.81, annex B; TIFF 6.0 for EXIF; the Adobe marker as libjpeg reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack_from

import numpy as np

_SOI, _EOI, _SOS, _APP0, _APP1, _APP14 = 0xD8, 0xD9, 0xDA, 0xE0, 0xE1, 0xEE
_KINDS = {
    0xC0: "baseline",
    0xC1: "extended",
    0xC2: "progressive",
    0xC3: "lossless",
    0xC9: "arithmetic",
    0xCA: "arithmetic",
    0xCB: "arithmetic",
} | dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical")
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # TEM and RSTn: markers without a length
_TRAILING_BYTES = 64  # zeros after EOI are tolerated up to here: writers pad to a block
_ORIENTATION_TAG, _SHORT = 0x0112, 3


@dataclass(frozen=True)
class JpegHeader:
    """Frame header and what surrounds it, unvalidated beyond its own bounds.

    width, height: pixels as stored. components: 1, 3 or 4. bits: of a sample. kind: "baseline", "extended",
    "progressive", "lossless", "arithmetic" or "hierarchical". color: what the samples mean, by libjpeg's
    rules: "grey", "ycbcr", "rgb", "cmyk", "ycck" or "unknown". subsampling: (h, v), luma samples for each chroma
    sample, (1, 1) for a single component; None where chroma planes differ or the ratio is no integer.
    adobe_transform: of the Adobe marker, None without one. orientation: EXIF's, 1 to 8, 1 without one.
    contiguous: no stray bytes stand between the segments. complete: a scan begins, and the data ends with an
    end marker (zeros may follow it).
    """

    width: int
    height: int
    components: int
    bits: int
    kind: str
    color: str
    subsampling: tuple[int, int] | None
    adobe_transform: int | None
    orientation: int
    contiguous: bool
    complete: bool


def read_header(data: np.ndarray | bytes) -> JpegHeader | None:
    """The header of one encoded image, or None where libjpeg would find no JPEG frame of known size in it.

    data: uint8 (n,), contiguous, or bytes. Never raises for what the bytes hold, reads nothing beyond them.

        >>> header = read_header(path.read_bytes())
        >>> header.width, header.height, header.kind
        (500, 375, 'baseline')
    """
    view = memoryview(data)  # type: ignore[arg-type]  # NumPy's stubs declare the buffer protocol from Python 3.12 on
    size = len(view)
    if size < 4 or view[0] != 0xFF or view[1] != _SOI:
        return None
    kind: str | None = None
    frame = view[:0]
    jfif, adobe, orientation, scan, contiguous = False, None, 1, False, True
    at = 2
    while at + 4 <= size:
        if view[at] != 0xFF:  # a stray byte
            contiguous = False
            at += 1
            continue
        marker = view[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0 or marker in _BARE:
            contiguous = False
            at += 2
            continue
        if marker == _SOI:
            return None  # libjpeg: two SOI markers
        if marker == _EOI or marker == _SOS:
            scan = marker == _SOS
            break
        start, at = at + 4, at + 2 + (view[at + 2] << 8 | view[at + 3])
        if at < start or at > size:
            break
        if marker in _KINDS:
            if kind is not None:
                return None  # libjpeg: two SOF markers
            kind, frame = _KINDS[marker], view[start:at]
        elif marker == _APP0:
            jfif = jfif or (at - start >= 12 and view[start : start + 5] == b"JFIF\0")
        elif marker == _APP1:
            if view[start : start + 6] == b"Exif\0\0":
                orientation = _exif_orientation(view[start + 6 : at])
        elif marker == _APP14 and at - start >= 12 and view[start : start + 5] == b"Adobe":
            adobe = view[start + 11]
    if kind is None or len(frame) < 6:
        return None
    bits, height, width, components = unpack_from(">BHHB", frame)
    if not (width and height and components) or len(frame) != 6 + 3 * components:
        return None
    return JpegHeader(
        width,
        height,
        components,
        bits,
        kind,
        _color(components, bytes(frame[6::3]), jfif, adobe),
        _subsampling(bytes(frame[7::3])),
        adobe,
        orientation,
        contiguous,
        scan and _ends(view),
    )


def _ends(view: memoryview) -> bool:
    if view[-1] == _EOI and view[-2] == 0xFF:
        return True
    return bytes(view[-_TRAILING_BYTES:]).rstrip(b"\0").endswith(b"\xff\xd9")


def _color(components: int, ids: bytes, jfif: bool, adobe: int | None) -> str:
    """libjpeg's default_decompress_parms: JFIF wins over Adobe, Adobe over component ids."""
    if components == 1:
        return "grey"
    if components == 3:
        if jfif:
            return "ycbcr"
        if adobe is not None:
            return "rgb" if adobe == 0 else "ycbcr"
        return "rgb" if ids == b"RGB" else "ycbcr"
    if components == 4:
        return "ycck" if adobe else "cmyk"
    return "unknown"


def _subsampling(factors: bytes) -> tuple[int, int] | None:
    if len(factors) == 1:
        return 1, 1
    luma, chroma = factors[0], factors[1]
    h, v, ch, cv = luma >> 4, luma & 15, chroma >> 4, chroma & 15
    if not (ch and cv) or h % ch or v % cv or h < ch or v < cv or any(f != chroma for f in factors[2:3]):
        return None
    return h // ch, v // cv


def _exif_orientation(tiff: memoryview) -> int:
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (entries,) = unpack_from(order + "H", tiff, directory)
    for at in range(directory + 2, min(directory + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind = unpack_from(order + "HH", tiff, at)
        if tag == _ORIENTATION_TAG:
            value = unpack_from(order + "H", tiff, at + 8)[0] if kind == _SHORT else 1
            return value if 1 <= value <= 8 else 1
    return 1
