"""The compiled header parser against Pillow, gpuload's Python walk over the same markers, and hand-made damage."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gpuload.kernels import jpeg_header as jpeg
from PIL import Image

from gpuload.decode.jpeg_header import read_header


def parsed(data: bytes) -> SimpleNamespace:
    header = np.full(jpeg.HEADER_SIZE, -7, np.int32)
    quant, huffman = np.zeros((4, 64), np.uint16), np.full((8, 272), 7, np.uint8)
    status = jpeg.parse_header(np.frombuffer(data, np.uint8), header, quant, huffman)
    return SimpleNamespace(status=status, header=header, quant=quant, huffman=huffman)


def encoded(size: tuple[int, int] = (37, 21), mode: str = "RGB", **options: object) -> bytes:
    width, height = size
    y, x, c = np.mgrid[:height, :width, : len(mode)]
    pixels = ((x * 5 + y * 3 + c * 40) % 251).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels, mode).save(out, "JPEG", **options)
    return out.getvalue()


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload


def inserted(data: bytes, extra: bytes, before: int = 0xDA) -> bytes:
    at = data.index(bytes([0xFF, before]))
    return data[:at] + extra + data[at:]


@pytest.mark.parametrize("subsampling, factors", [(0, (1, 1)), (1, (2, 1)), (2, (2, 2))])
@pytest.mark.parametrize("size", [(1, 1), (37, 21), (16, 16), (640, 3)])
def test_what_pillow_writes_is_ours_to_the_last_field(
    subsampling: int, factors: tuple[int, int], size: tuple[int, int]
):
    data = encoded(size, subsampling=subsampling, quality=83, optimize=True, restart_marker_blocks=5)
    got = parsed(data)
    h = got.header
    assert got.status == jpeg.OURS and jpeg.REASONS[got.status] == "ours"
    assert (h[jpeg.WIDTH], h[jpeg.HEIGHT], h[jpeg.COMPONENTS], h[jpeg.PRECISION]) == (*size, 3, 8)
    assert [(h[jpeg.H + c], h[jpeg.V + c]) for c in range(3)] == [factors, (1, 1), (1, 1)]
    assert (h[jpeg.H_MAX], h[jpeg.V_MAX]) == factors and h[jpeg.BLOCKS_IN_MCU] == factors[0] * factors[1] + 2
    assert h[jpeg.MCUS_WIDE] == -(-size[0] // (8 * factors[0])) and h[jpeg.MCUS_HIGH] == -(-size[1] // (8 * factors[1]))
    assert h[jpeg.RESTART_INTERVAL] == 5 and h[jpeg.COLOR] == jpeg.YCBCR and h[jpeg.KIND] == 0xC0
    assert [h[jpeg.QUANT_TABLE + c] for c in range(3)] == [0, 1, 1]
    assert [h[jpeg.DC_TABLE + c] for c in range(3)] == [h[jpeg.AC_TABLE + c] for c in range(3)] == [0, 1, 1]
    scan = data.index(b"\xff\xda")
    assert h[jpeg.SCAN_START] == scan + 14 and h[jpeg.STRAY_BYTES] == 0
    for table, values in Image.open(io.BytesIO(data)).quantization.items():
        assert got.quant[table].tolist() == list(values)
    at = data.index(b"\xff\xc4")
    assert data[at + 5 : at + 21] == got.huffman[0, :16].tobytes()


def test_a_single_component_has_no_subsampling_whatever_it_says():
    data = bytearray(encoded((20, 9), "L"))
    at = data.index(b"\xff\xc0")
    data[at + 11] = 0x22
    got = parsed(bytes(data))
    assert got.status == jpeg.OURS and got.header[jpeg.H] == got.header[jpeg.V] == got.header[jpeg.BLOCKS_IN_MCU] == 1
    assert (got.header[jpeg.MCUS_WIDE], got.header[jpeg.MCUS_HIGH]) == (3, 2) and got.header[jpeg.COLOR] == jpeg.GREY


def test_fill_bytes_and_stray_bytes_are_passed_over():
    data = encoded()
    plain = parsed(data)
    filled = parsed(inserted(data, b"\xff\xff\xff"))
    assert filled.status == jpeg.OURS and filled.header[jpeg.STRAY_BYTES] == 0
    stray = parsed(inserted(data, b"\x00abc\xff\x00\xff\xd3", before=0xC0))
    assert stray.status == jpeg.OURS and stray.header[jpeg.STRAY_BYTES] == 8
    assert filled.header[jpeg.SCAN_START] == plain.header[jpeg.SCAN_START] + 3
    assert np.array_equal(stray.huffman, plain.huffman) and np.array_equal(stray.quant, plain.quant)


def test_tables_of_16_bits_and_repeated_tables_count():
    values = np.arange(64) * 500 + 1
    got = parsed(inserted(encoded(), segment(0xDB, b"\x10" + values.astype(">u2").tobytes())))
    assert got.status == jpeg.OURS
    assert got.quant[0][jpeg.ZIGZAG].tolist() == values.tolist()
    assert got.quant[0][:3].tolist() == [1, 501, 2501]  # natural: (0, 0), then along u


def test_adobe_and_jfif_decide_the_colours_as_in_libjpeg():
    adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0\0")
    data = encoded()
    both = parsed(inserted(data, adobe))
    assert both.header[jpeg.COLOR] == jpeg.YCBCR and both.header[jpeg.ADOBE] == 0 and both.header[jpeg.JFIF] == 1
    bare = data[:2] + data[20:]  # without APP0
    assert parsed(bare).header[jpeg.JFIF] == 0 and parsed(bare).header[jpeg.COLOR] == jpeg.YCBCR
    assert parsed(inserted(bare, adobe)).header[jpeg.COLOR] == jpeg.RGB
    assert parsed(encoded(keep_rgb=True, subsampling=0)).header[jpeg.COLOR] == jpeg.RGB


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["little", "big"])
def test_orientation_is_read_from_exif(orientation: int, order: str):
    def n(value: int, size: int) -> bytes:
        return value.to_bytes(size, order)  # type: ignore[arg-type]

    other = n(0x0100, 2) + n(4, 2) + n(1, 4) + n(9, 4)
    entry = n(0x0112, 2) + n(3, 2) + n(1, 4) + n(orientation, 2) + b"\0\0"
    tiff = (b"II" if order == "little" else b"MM") + n(42, 2) + n(8, 4) + n(2, 2) + other + entry + n(0, 4)
    data = inserted(encoded(), segment(0xE1, b"Exif\0\0" + tiff), before=0xDB)
    assert parsed(data).header[jpeg.ORIENTATION] == orientation
    for cut in range(len(tiff) - 4):  # whatever is missing: 1, and nothing read beyond
        got = parsed(inserted(encoded(), segment(0xE1, b"Exif\0\0" + tiff[:cut]), before=0xDB))
        assert got.header[jpeg.ORIENTATION] == 1 or cut >= len(tiff) - 4


def changed(data: bytes, marker: int, offset: int, value: bytes) -> bytes:
    at = data.index(bytes([0xFF, marker])) + offset
    return data[:at] + value + data[at + len(value) :]


def without(data: bytes, marker: int) -> bytes:
    at = data.index(bytes([0xFF, marker]))
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


CASES = {
    "progressive": (lambda d: encoded(progressive=True), jpeg.PROGRESSIVE),
    "four components": (lambda d: encoded(mode="CMYK"), jpeg.OTHER_COMPONENTS),
    "arithmetic": (lambda d: changed(d, 0xC0, 1, b"\xc9"), jpeg.ARITHMETIC),
    "lossless": (lambda d: changed(d, 0xC0, 1, b"\xc3"), jpeg.LOSSLESS),
    "hierarchical": (lambda d: changed(d, 0xC0, 1, b"\xc5"), jpeg.HIERARCHICAL),
    "12 bits": (lambda d: changed(d, 0xC0, 4, b"\x0c"), jpeg.NOT_8_BIT),
    "extended": (lambda d: changed(d, 0xC0, 1, b"\xc1"), jpeg.OURS),
    "no height": (lambda d: changed(d, 0xC0, 5, b"\0\0"), jpeg.ZERO_SIZE),
    "no width": (lambda d: changed(d, 0xC0, 7, b"\0\0"), jpeg.ZERO_SIZE),
    "sampling of 0": (lambda d: changed(d, 0xC0, 11, b"\x01"), jpeg.BAD_SAMPLING),
    "sampling of 3 to 2": (lambda d: changed(d, 0xC0, 11, b"\x31\0\2\x21"), jpeg.OTHER_SAMPLING),
    "18 blocks": (lambda d: changed(d, 0xC0, 11, b"\x44"), jpeg.OTHER_SAMPLING),
    "4:1:1": (lambda d: changed(d, 0xC0, 11, b"\x41"), jpeg.OURS),
    "a scan of one component": (
        lambda d: d[: d.index(b"\xff\xda")] + segment(0xDA, b"\x01\x01\0\0\x3f\0"),
        jpeg.SEVERAL_SCANS,
    ),
    "components in another order": (lambda d: changed(d, 0xDA, 5, b"\2\x11\1\0"), jpeg.BAD_SCAN),
    "part of the spectrum": (lambda d: changed(d, 0xDA, 12, b"\x05"), jpeg.BAD_SCAN),
    "no frame": (lambda d: without(d, 0xC0), jpeg.NO_FRAME),
    "two frames": (lambda d: inserted(d, d[d.index(b"\xff\xc0") :][:19]), jpeg.BAD_MARKER),
    "no quantisation table": (lambda d: without(without(d, 0xDB), 0xDB), jpeg.MISSING_TABLE),
    "no Huffman table": (lambda d: without(d, 0xC4), jpeg.MISSING_TABLE),
    "a table that says 255 codes": (lambda d: changed(d, 0xC4, 5, b"\xff\xff"), jpeg.BAD_HUFFMAN),
    "a table of number 4": (lambda d: changed(d, 0xC4, 4, b"\x04"), jpeg.BAD_HUFFMAN),
    "quantisation table 4": (lambda d: changed(d, 0xDB, 4, b"\x04"), jpeg.BAD_QUANT),
    "an interval of 3 bytes": (lambda d: inserted(d, segment(0xDD, b"abc")), jpeg.BAD_LENGTH),
    "a length of 1": (lambda d: changed(d, 0xDB, 2, b"\0\1"), jpeg.BAD_LENGTH),
    "the end before a scan": (lambda d: inserted(d, b"\xff\xd9\0\0"), jpeg.BAD_MARKER),
    "an unknown marker": (lambda d: inserted(d, segment(0xF0, b"")), jpeg.BAD_MARKER),
    "a number of lines": (lambda d: inserted(d, segment(0xDC, b"\0\5")), jpeg.OURS),  # libjpeg doesn't read it either
    "arithmetic conditioning": (lambda d: inserted(d, segment(0xCC, b"\x20\1")), jpeg.ARITHMETIC),
    "a PNG": (lambda d: b"\x89PNG\r\n\x1a\n" + d, jpeg.NOT_JPEG),
    "nothing": (lambda d: b"", jpeg.NOT_JPEG),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_ours_has_a_reason(case: str):
    make, status = CASES[case]
    assert jpeg.REASONS[parsed(make(encoded(subsampling=0))).status] == jpeg.REASONS[status]


def test_a_cut_header_is_truncated_wherever_the_cut_is():
    data = encoded()
    start = parsed(data).header[jpeg.SCAN_START]
    for size in range(4, start):
        assert parsed(data[:size]).status == jpeg.TRUNCATED
    assert parsed(data[:start]).status == jpeg.OURS


def test_any_damage_gives_some_verdict():
    rng = np.random.default_rng(0)
    data = encoded()
    start = int(parsed(data).header[jpeg.SCAN_START])
    for _ in range(3000):
        damaged = np.frombuffer(data[: start + 2], np.uint8).copy()
        for _ in range(rng.integers(1, 5)):
            damaged[rng.integers(start)] = rng.choice([0, 1, 0xFF, rng.integers(256)])
        got = parsed(damaged.tobytes())
        assert 0 <= got.status < len(jpeg.REASONS)
        if got.status == jpeg.OURS:
            assert 1 <= got.header[jpeg.BLOCKS_IN_MCU] <= jpeg.MOST_BLOCKS_IN_MCU and got.header[jpeg.MCUS_WIDE] > 0


def test_real_files_say_what_the_python_walk_says(real_data: Path):
    files = [path for folder in ("photos", "jpeg-conformance") for path in sorted((real_data / folder).rglob("*"))]
    ours = 0
    for path in files:
        if path.suffix.lower() not in (".jpg", ".jpeg"):
            continue
        data = path.read_bytes()
        got, known = parsed(data), read_header(data)
        h = got.header
        ours += got.status == jpeg.OURS
        if got.status == jpeg.OURS:
            assert known is not None and known.kind in ("baseline", "extended") and known.components in (1, 3)
        if known is None or not got.header[jpeg.SCAN_START]:
            continue
        assert (h[jpeg.WIDTH], h[jpeg.HEIGHT], h[jpeg.COMPONENTS], h[jpeg.PRECISION], h[jpeg.ORIENTATION]) == (
            known.width, known.height, known.components, known.bits, known.orientation
        ), path  # fmt: skip
        assert (h[jpeg.STRAY_BYTES] == 0) == known.contiguous, path
        if got.status == jpeg.OURS:
            assert ("grey", "ycbcr", "rgb")[h[jpeg.COLOR]] == known.color
    assert ours > 300


RESOURCE = b"8BIM\x04\x04\0\0\0\0\0\x05titleX"
RESOLUTION = b"8BIM\x03\xed\x03abc\0\0\0\x10" + bytes(16)
APPLICATION = {
    "JFIF": (0xE0, b"JFIF\0\1\2\1\0H\0H\0\0"),
    "Adobe": (0xEE, b"Adobe\0d\0\0\0\0\1"),
    "ICC": (0xE2, b"ICC_PROFILE\0\1\1" + bytes(9)),
    "Photoshop": (0xED, b"Photoshop 3.0\0" + RESOURCE + RESOLUTION + RESOURCE),
    "MPF": (0xE2, b"MPF\0II*\0\x08\0\0\0"),
    "Exif": (0xE1, b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"),
}


@pytest.mark.filterwarnings(
    "ignore:Corrupt EXIF data", "ignore:Truncated File Read", "ignore:Image appears to be a malformed MPO"
)
@pytest.mark.parametrize("name", APPLICATION)
def test_application_segments_cut_anywhere_are_ours_where_pillow_takes_them(name: str):
    marker, payload = APPLICATION[name]
    data, verdicts = encoded(), set()
    for size in range(len(payload) + 1):
        file = inserted(data, segment(marker, payload[:size]), before=0xC0)
        try:
            Image.open(io.BytesIO(file)).load()
            taken = True
        except OSError:
            taken = False
        assert (parsed(file).status == jpeg.OURS) == taken, size
        verdicts.add(taken)
    assert True in verdicts


@pytest.mark.parametrize("marker", range(0xC0, 0x100))
def test_a_marker_without_a_length_is_passed_over_where_pillow_passes_over_it(marker: int):
    for extra in (b"", b"\0"):
        file = inserted(encoded(), bytes([0xFF, marker]) + extra, before=0xDB)
        try:
            Image.open(io.BytesIO(file)).load()
        except OSError:
            assert parsed(file).status != jpeg.OURS
