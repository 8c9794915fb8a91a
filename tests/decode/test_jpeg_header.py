"""The header walk against Pillow, on files made here and, where GPULOAD_DATA is set, on photographs and odd files."""

from __future__ import annotations

import io
import itertools
import json

import numpy as np
import pytest
from PIL import Image

from gpuload.decode.jpeg_header import read_header

SIZES = [(1, 1), (7, 5), (17, 33), (640, 3), (255, 257)]


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 4), np.uint8)
    channels = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
    return Image.fromarray(
        pixels[..., 0] if channels == 1 else pixels[..., :channels], mode if mode == "CMYK" else None
    )


def encode(image: Image.Image, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def with_sof(marker: int, jpeg: bytes) -> bytes:
    at = jpeg.index(b"\xff\xc0")
    return jpeg[:at] + bytes([0xFF, marker]) + jpeg[at + 2 :]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("factors", [(1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (4, 2)])
def test_reads_size_kind_and_subsampling(size, progressive, factors):
    names = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0"}
    data = encode(picture(*size), progressive=progressive, subsampling=names.get(factors, "4:4:4"))
    if factors not in names:  # Pillow writes no others
        data = patched_factors(data, factors)
    header = read_header(data)
    assert (header.width, header.height) == size == Image.open(io.BytesIO(data)).size
    assert header.kind == ("progressive" if progressive else "baseline")
    assert (header.subsampling, header.components, header.bits, header.color) == (factors, 3, 8, "ycbcr")
    assert (header.adobe_transform, header.orientation) == (None, 1)
    assert header.complete and header.contiguous


def patched_factors(data: bytes, factors: tuple[int, int]) -> bytes:
    """The file with other sampling factors for luma in its frame header; its scan no longer fits."""
    at = next(data.index(sof) for sof in (b"\xff\xc0", b"\xff\xc2") if sof in data)
    return data[: at + 11] + bytes([factors[0] << 4 | factors[1]]) + data[at + 12 :]


def test_reads_grey():
    header = read_header(encode(picture(33, 20, "L")))
    assert (header.components, header.color, header.subsampling) == (1, "grey", (1, 1))


def test_reads_cmyk_and_its_adobe_marker():
    header = read_header(encode(picture(33, 20, "CMYK")))
    assert (header.components, header.color) == (4, "cmyk" if not header.adobe_transform else "ycck")
    assert header.adobe_transform is not None


def test_reads_rgb_stored_as_such():
    header = read_header(encode(picture(33, 20), keep_rgb=True))
    assert (header.color, header.components) == ("rgb", 3)


def test_jfif_wins_over_adobe_and_adobe_over_component_ids():
    jfif = encode(picture(9, 9))
    adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0\0")
    assert read_header(jfif[:2] + adobe + jfif[2:]).color == "ycbcr"
    bare = jfif[:2] + jfif[2 + 2 + 16 :]  # without APP0
    assert read_header(bare).color == "ycbcr"
    assert read_header(bare[:2] + adobe + bare[2:]).color == "rgb"
    assert read_header(bare[:2] + adobe + bare[2:]).adobe_transform == 0


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_reads_exif_orientation(orientation, order):
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F] = "a maker"
    exif[0x0112] = orientation
    exif[0x0131] = "some software"
    data = encode(picture(40, 30), exif=exif)
    assert read_header(data).orientation == Image.open(io.BytesIO(data)).getexif()[0x0112] == orientation


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_impossible_orientation_is_none(value):
    exif = Image.Exif()
    exif[0x0112] = value
    assert read_header(encode(picture(40, 30), exif=exif)).orientation == 1


@pytest.mark.parametrize(
    "marker, kind",
    [(0xC1, "extended"), (0xC3, "lossless"), (0xC9, "arithmetic"), (0xCA, "arithmetic"), (0xC5, "hierarchical")],
)
def test_names_the_other_processes(marker, kind):
    assert read_header(with_sof(marker, encode(picture(20, 10)))).kind == kind


def test_sees_sample_precision():
    data = with_sof(0xC1, encode(picture(20, 10)))
    at = data.index(b"\xff\xc1")
    assert read_header(data[: at + 4] + b"\x0c" + data[at + 5 :]).bits == 12


def test_fill_bytes_are_padding():
    data = encode(picture(20, 10))
    padded = data[:2] + b"\xff\xff\xff" + data[2:]
    assert read_header(padded) == read_header(data)
    Image.open(io.BytesIO(padded)).load()


@pytest.mark.parametrize("stray", [b"\x00", b"junk", b"\xff\x00", b"\xff\x00\xff\x00ab", b"\xff\xd3"])
def test_stray_bytes_are_passed_over_and_told(stray):
    data = encode(picture(20, 10))
    after_app0 = 2 + 2 + 16
    header = read_header(data[:after_app0] + stray + data[after_app0:])
    assert (header.width, header.height, header.complete) == (20, 10, True)
    assert not header.contiguous


def test_complete_means_a_scan_and_an_end_marker():
    data = encode(picture(20, 10))
    assert read_header(data).complete
    assert read_header(data + bytes(40)).complete
    assert not read_header(data[:-1]).complete
    assert not read_header(data[:-2] + bytes(40)).complete
    assert not read_header(data + b"text").complete
    scan = data.index(b"\xff\xda")
    assert not read_header(data[:scan] + b"\xff\xd9").complete
    assert not read_header(data[:scan]).complete


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"GIF89a", bytes(100), b"\xff" * 50])
def test_no_jpeg_is_none(data):
    assert read_header(data) is None


def test_no_frame_two_frames_or_no_size_is_none():
    data = encode(picture(20, 10))
    at = data.index(b"\xff\xc0")
    end = at + 2 + 17
    assert read_header(data[:at] + data[end:]) is None
    assert read_header(data[:end] + data[at:]) is None
    assert read_header(data[: at + 5] + b"\0\0" + data[at + 7 :]) is None
    assert read_header(data[:at] + data[at:end].replace(b"\x00\x11", b"\x00\x0e", 1) + data[end:]) is None


def test_other_formats_under_a_jpeg_name_are_none():
    for kind in ("PNG", "GIF", "BMP", "WEBP"):
        out = io.BytesIO()
        picture(12, 9).save(out, kind)
        assert read_header(out.getvalue()) is None


def test_bytes_and_arrays_read_alike():
    data = encode(picture(31, 17))
    read_only = np.frombuffer(data, np.uint8)
    inside = np.concatenate([np.zeros(5, np.uint8), read_only, np.zeros(5, np.uint8)])[5:-5]
    assert read_header(data) == read_header(read_only) == read_header(inside)


def test_nothing_is_read_beyond_the_data_and_nothing_is_raised():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(picture(40, 30), exif=exif, progressive=True)
    for end in range(min(len(data), 900)):
        header = read_header(data[:end])
        assert header is None or not header.complete
    rng = np.random.default_rng(7)
    original = np.frombuffer(data, np.uint8)
    for _ in range(3000):
        damaged = original[: rng.integers(4, len(original) + 1)].copy()
        for _ in range(rng.integers(1, 6)):
            damaged[rng.integers(2, min(700, len(damaged)))] = rng.choice([0, 1, 0xD8, 0xFF, rng.integers(256)])
        header = read_header(damaged)
        assert header is None or (header.width > 0 and header.height > 0 and header.components > 0)


def test_reads_photographs_as_pillow_does(photos):
    for path in sorted(photos.glob("*.JPEG")):
        data = path.read_bytes()
        header, image = read_header(data), Image.open(path)
        assert ((header.width, header.height), header.bits, header.complete) == (image.size, 8, True), path.name
        assert {1: "L", 3: "RGB", 4: "CMYK"}[header.components] == image.mode, path.name
        assert header.orientation == image.getexif().get(0x0112, 1), path.name
        if header.components == 3:
            luma, chroma = image.layer[0], image.layer[1]
            assert header.subsampling == (luma[1] // chroma[1], luma[2] // chroma[2]), path.name


def test_agrees_with_pillow_on_odd_files(real_data):
    entries = json.loads((real_data / "jpeg-conformance/manifest.json").read_text())
    checked = 0
    for entry in entries:
        header = read_header((real_data / "jpeg-conformance" / entry["file"]).read_bytes())
        if entry["pillow"] != "decodes":
            continue
        if not entry["info"].startswith("JPEG"):
            assert header is None, entry["file"]
            continue
        size = f"({header.width}, {header.height})"
        mode = {1: "L", 3: "RGB", 4: "CMYK"}[header.components]
        progressive = int(header.kind == "progressive")
        assert f"JPEG {mode} {size} prog={progressive}" == entry["info"], entry["file"]
        checked += 1
    assert checked > 60


def test_truncated_odd_files_raise_nothing(real_data):
    for path in itertools.chain(
        (real_data / "jpeg-conformance").glob("*.jp*g"), (real_data / "formats/damaged/loose").glob("*")
    ):
        data = path.read_bytes()
        for end in {0, 1, 3, 10, len(data) // 3, len(data) // 2, len(data) - 1}:
            header = read_header(data[:end])
            assert header is None or header.width > 0, path.name
