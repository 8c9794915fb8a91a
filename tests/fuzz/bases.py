"""The files that are mutated: small JPEGs of every structure, generated, and odd ones from decoders' own test suites.

Small, so that an input costs little: 8x8 to 96x96 pixels, but for four that are large enough for seek points.
Generated are all samplings, grey, CMYK, RGB, restart intervals, progressive and optimised files, EXIF, an ICC profile,
wide quantisation tables, and coefficients of any size at odd sampling factors (tests/kernels/jpeg_writer.py); more of
those can be drawn. The odd ones are there where GPULOAD_DATA names them.
"""

from __future__ import annotations

import io
import os
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.augment.pictures import picture
from tests.kernels.jpeg_writer import Jpeg, photograph, quality_table

MOST_BYTES, MOST_PIXELS = 12_000, 256 * 256
"""Of an odd file that is mutated, too."""


@cache
def generated() -> dict[str, bytes]:
    """Name -> file; the same on every machine with the same Pillow and NumPy."""
    return dict(_written_by_pillow() | _written_by_hand())


@cache
def odd() -> dict[str, bytes]:
    """Name -> file, of jpeg-conformance; empty without GPULOAD_DATA."""
    folder = Path(os.environ.get("GPULOAD_DATA", "")) / "jpeg-conformance"
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.jp*g"))}
    return {name: data for name, data in files.items() if len(data) <= MOST_BYTES and _is_small(data)}


def drawn(rng: Random) -> bytes:
    """A right file of up to 24 x 24 pixels, its sampling factors, tables and coefficients drawn."""
    sampling = rng.choice(_legal_samplings())
    width, height, quality = rng.randint(1, 24), rng.randint(1, 24), rng.choice((5, 30, 60, 90, 100))
    if rng.random() < 0.7:
        return photograph(width, height, sampling, quality, rng.randrange(1 << 30), rng.random() < 0.8).encoded()
    quant = quality_table(quality) * rng.choice((1, 1, 20, 300))
    return _loud(width, height, sampling, quant, rng.choice((3, 1023, 2047, 16000))).encoded()


@cache
def _legal_samplings() -> list[tuple[tuple[int, int], ...]]:
    """What libjpeg allows and both decode: integer ratios, at most 10 blocks an MCU."""

    def legal(factors: tuple[tuple[int, int], ...]) -> bool:
        h_max, v_max = (max(each) for each in zip(*factors, strict=True))
        whole = all(h_max % h == 0 and v_max % v == 0 for h, v in factors)
        return whole and sum(h * v for h, v in factors) <= 10

    one = [(h, v) for h in (1, 2, 3, 4) for v in (1, 2, 3, 4)]
    grey: tuple[tuple[int, int], ...] = ((1, 1),)
    return [grey] * 8 + [factors for factors in product(one, repeat=3) if legal(factors)]


def _is_small(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.width * image.height <= MOST_PIXELS
    except Exception:  # what Pillow cannot open costs nothing to decode
        return True


def _saved(width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    with io.BytesIO() as out:
        picture(width, height, mode=mode).save(out, "JPEG", **options)
        return out.getvalue()


def _written_by_pillow() -> dict[str, bytes]:
    files = {}
    sizes = ((8, 8), (17, 9), (33, 40), (64, 48), (95, 24), (16, 96), (61, 61))
    for number, (width, height) in enumerate(sizes):
        for code, name in enumerate(("444", "422", "420")):
            options: dict[str, Any] = {"subsampling": code, "quality": (25, 60, 85, 97)[number % 4]}
            options["optimize"] = bool(number % 2)
            if number % 3 == 0:
                options["restart_marker_blocks"] = 1 + number
            if number % 3 == 1:
                options["restart_marker_rows"] = 1
            files[f"{name} {width}x{height}"] = _saved(width, height, **options)
        files[f"grey {width}x{height}"] = _saved(width, height, "L", quality=40 + 9 * number, optimize=bool(number % 2))
    for number, options in enumerate(({}, {"subsampling": 0}, {"restart_marker_rows": 1}, {"mode": "L"})):
        files[f"indexed {number}"] = _saved(150 - 20 * number, 90 + 15 * number, quality=97, **options)
    turned = Image.Exif()
    turned[0x0112], turned[0x010F], turned[0x011A] = 6, "maker", 72.0
    files["exif"] = _saved(40, 25, exif=turned, dpi=(72, 72), comment=b"a comment")
    files["icc"] = _saved(25, 40, icc_profile=bytes(range(200)))
    files["rgb"] = _saved(31, 23, keep_rgb=True, subsampling=0)
    files["cmyk"] = _saved(24, 31, "CMYK")
    for code in (0, 2):
        files[f"progressive {code}"] = _saved(43, 37, subsampling=code, progressive=True)
    files["progressive grey"] = _saved(29, 33, "L", progressive=True, restart_marker_blocks=2)
    coarse: Any = [[1 + 3 * k for k in range(64)], [255] * 64]
    files["coarse tables"] = _saved(48, 33, qtables=coarse, subsampling=2)
    return files


def _written_by_hand() -> dict[str, bytes]:
    one = (1, 1)
    samplings = {
        "440": ((1, 2), one, one),
        "411": ((4, 1), one, one),
        "410": ((1, 4), one, one),
        "chroma 2x1": ((2, 2), (2, 1), (1, 2)),
        "chroma first": (one, (2, 2), one),
        "all 2x1": ((2, 1), (2, 1), (2, 1)),
        "444": (one, one, one),
        "grey": (one,),
    }
    files = {
        f"written {name}": photograph(37 + 4 * number, 50 - 5 * number, factors, 70 - 5 * number).encoded()
        for number, (name, factors) in enumerate(samplings.items())
    }
    files["written rgb"] = photograph(20, 27, (one, one, one), 80, is_ycc=False).encoded()
    files["wide tables"] = _loud(18, 25, (one, one, one), quality_table(30) * 97, 300).encoded()
    files["loud 420"] = _loud(21, 19, ((2, 2), one, one), np.full(64, 255, np.uint16), 2047).encoded()
    files["loud grey"] = _loud(25, 17, (one,), np.full(64, 65535, np.uint16), 1023).encoded()
    return files


def _loud(width: int, height: int, sampling: tuple[tuple[int, int], ...], quant: np.ndarray, most: int) -> Jpeg:
    """Coefficients of any size up to `most`: sums that overflow 16 bits on every way to a pixel."""
    generator = np.random.default_rng([width, height, most])
    h_max, v_max = max(h for h, _ in sampling), max(v for _, v in sampling)
    coefficients = []
    for h, v in sampling:
        shape = (-(-height // (8 * v_max)) * v, -(-width // (8 * h_max)) * h, 64)
        kept = generator.random(shape) < generator.choice([0.02, 0.3, 1.0], (*shape[:2], 1))
        coefficients.append((generator.integers(-most, most + 1, shape) * kept).astype(np.int16))
    return Jpeg(width, height, sampling, (quant,) * len(sampling), tuple(coefficients))
