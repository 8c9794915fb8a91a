"""The fast way from planes to the batch: against its reference, and within its limits against Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpuload.kernels import jpeg_header as header
from gpuload.kernels.entropy import DECODED, LAYOUT_SIZE, POINT_SIZE, decode_range, lay_out
from gpuload.kernels.huffman import BUILT, TABLE_SIZE, build_table
from gpuload.kernels.idct import idct_region
from gpuload.kernels.idct_scaled import component_scale, idct_scaled
from gpuload.kernels.jpeg_header import GREY, RGB, YCBCR
from gpuload.kernels.pointwise import lookup_store_reference
from gpuload.kernels.resample_planes import planes_reference, resize_planes, scratch_bytes
from gpuload.kernels.resample_weights import BICUBIC, BILINEAR, BOX, HAMMING, LANCZOS, Axis
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.kernels.jpeg_writer import Jpeg, photograph

FILTERS = [BILINEAR, BICUBIC, LANCZOS, BOX, HAMMING]
IDENTITY = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
SAMPLINGS = {
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "every component its own way": ((2, 1), (1, 2), (2, 2)),
    "grey": ((1, 1),),
}
Planes = list[np.ndarray]


def frame_of(size: tuple[int, int], sampling: tuple[tuple[int, int], ...], scales: tuple[int, ...]) -> np.ndarray:
    """size: (width, height) of the image."""
    h_max, v_max = max(h for h, _ in sampling), max(v for _, v in sampling)
    rows = [
        (0, 0, -(-size[0] * h // h_max), -(-size[1] * v // v_max), h_max // h, v_max // v, scale)
        for (h, v), scale in zip(sampling, scales, strict=True)
    ]
    return np.array(rows, np.int64)


def noise(frame: np.ndarray, contrast: bool = False) -> Planes:
    generator = np.random.default_rng(frame[0, :4].tolist())
    shapes = [(-(-height >> scale), -(-width >> scale)) for _, _, width, height, _, _, scale in frame.tolist()]
    if contrast:
        return [generator.integers(0, 2, shape, dtype=np.uint8) * np.uint8(255) for shape in shapes]
    return [generator.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]


def planes_from(blocks: list[Any], last: list[Any], quant: list[Any], scales: tuple[int, ...]) -> Planes:
    planes = []
    for values, ends, table, scale in zip(blocks, last, quant, scales, strict=True):
        high, wide, _ = values.shape
        plane = np.zeros((8 * high >> scale, 8 * wide >> scale), np.uint8)
        if scale:
            assert idct_scaled(values.reshape(-1), 0, wide, high, table, plane, 0, scale)
        else:
            idct_region(values, ends, table, plane, 0, high, 0, wide)
        planes.append(plane)
    return planes


@dataclass(frozen=True)
class Photo:
    """A file's planes, and what `resized` wants to know of them."""

    planes: Planes
    frame: np.ndarray
    color: int


def photo(data: bytes, sizes: tuple[int, int, int, int] | None = None) -> Photo:
    """sizes: height and width of a crop and of what it becomes, for which the planes are scaled."""
    file, head = np.frombuffer(data, np.uint8), np.empty(header.HEADER_SIZE, np.int32)
    quant = np.zeros((4, 64), np.uint16)
    definitions = np.empty((8, header.HUFFMAN_SIZE), np.uint8)
    assert header.parse_header(file, head, quant, definitions) == header.OURS
    count = int(head[header.COMPONENTS])
    tables = np.empty((8, TABLE_SIZE), np.int32)
    numbers = [*head[header.DC_TABLE :][:count], *(head[header.AC_TABLE :][:count] + 4)]
    for number in numbers:
        assert build_table(definitions[number], bool(number >= 4), tables[number]) == BUILT
    rows = np.zeros(6, np.int32)
    rows[:count], rows[3 : 3 + count] = numbers[:count], numbers[count:]
    wide, high = int(head[header.MCUS_WIDE]), int(head[header.MCUS_HIGH])
    layout = np.empty(LAYOUT_SIZE, np.int32)
    total = lay_out(head, rows, np.array([0, 0, wide, high], np.int32), layout)
    flat, ends = np.zeros(64 * (total + 1), np.int16), np.zeros(total + 1, np.uint8)
    start, points = np.array([head[header.SCAN_START], 0, 0, 0, 0], np.int32), np.zeros((1, POINT_SIZE), np.int32)
    assert decode_range(file, layout, tables.reshape(-1), start, 0, wide * high, 0, points, flat, ends) == DECODED
    sampling = tuple((int(head[header.H + c]), int(head[header.V + c])) for c in range(count))
    blocks, last, at = [], [], 0
    for h, v in sampling:
        shape, end = (high * v, wide * h), at + high * v * wide * h
        blocks.append(flat[64 * at : 64 * end].reshape(*shape, 64))
        last.append(ends[at:end].reshape(shape))
        at = end
    used = [quant[head[header.QUANT_TABLE + c]] for c in range(count)]
    size = int(head[header.WIDTH]), int(head[header.HEIGHT])
    frame = frame_of(size, sampling, (0,) * count)
    if sizes:
        frame[:, 6] = [component_scale(*sizes, row[4], row[5]) for row in frame]
    return Photo(planes_from(blocks, last, used, tuple(frame[:, 6].tolist())), frame, int(head[header.COLOR]))


def bytes_of(array: np.ndarray) -> np.ndarray:
    return array[..., None].view(np.uint8)


def store(
    planes: Planes,
    frame: np.ndarray,
    color: int,
    vertical: Axis,
    horizontal: Axis,
    kind: int,
    out: np.ndarray,
    table: np.ndarray = IDENTITY,
    flips: tuple[bool, bool] = (False, False),
) -> bool:
    """resize_planes with scratch memory of the exact size, full of noise, and a guard behind it."""
    needed = scratch_bytes(frame, vertical, horizontal, *out.shape[1:], kind)
    scratch = np.random.default_rng(3).integers(0, 256, needed + 64, dtype=np.uint8)
    guard = scratch[needed:].copy()
    how = vertical, horizontal, kind, bytes_of(table), *flips
    done = resize_planes(*(planes * 3)[:3], frame, color, *how, scratch[:needed], bytes_of(out))
    assert np.array_equal(scratch[needed:], guard)
    return bool(done)


def resized(planes: Planes, frame: np.ndarray, color: int, vertical: Axis, horizontal: Axis, kind: int) -> np.ndarray:
    out = np.full((vertical.out_size, horizontal.out_size, 3), 113, np.uint8)
    assert store(planes, frame, color, vertical, horizontal, kind, out.transpose(2, 0, 1))
    return out


def between(shares: tuple[float, float], size: int, out_size: int) -> Axis:
    """The axis of a crop, at least one pixel of `size`."""
    first, last = sorted(int(share * (size - 1)) for share in shares)
    return Axis(last + 1 - first, -first, out_size, 0)


SIZES = st.one_of(st.integers(1, 6), st.integers(1, 90))
SHARES = st.tuples(st.floats(0, 1), st.floats(0, 1))


@settings(max_examples=100, deadline=None)
@given(
    size=st.tuples(SIZES, SIZES),
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    color=st.sampled_from([YCBCR, RGB]),
    scales=st.tuples(*[st.integers(0, 3)] * 3),
    crop=st.tuples(SHARES, SHARES),
    out_size=st.tuples(SIZES, SIZES),
    kind=st.sampled_from(FILTERS),
    contrast=st.booleans(),
)
@example((1, 1), "4:2:0", YCBCR, (0, 0, 0), ((0.0, 1.0), (0.0, 1.0)), (33, 17), BICUBIC, True)
@example((2, 900), "4:2:0", YCBCR, (0, 0, 0), ((0.0, 1.0), (0.0, 1.0)), (40, 3), LANCZOS, True)
@example((900, 2), "4:4:4", RGB, (1, 1, 1), ((0.0, 1.0), (0.0, 1.0)), (3, 40), LANCZOS, True)
@example((700, 500), "4:2:2", YCBCR, (0, 0, 0), ((0.0, 1.0), (0.0, 1.0)), (2, 1), BILINEAR, False)
@example((90, 70), "4:1:1", YCBCR, (0, 0, 0), ((0.5, 0.5), (0.5, 0.5)), (90, 70), BILINEAR, False)
def test_any_planes_give_what_the_reference_gives(
    size: tuple[int, int],
    sampling: str,
    color: int,
    scales: tuple[int, ...],
    crop: tuple[tuple[float, float], tuple[float, float]],
    out_size: tuple[int, int],
    kind: int,
    contrast: bool,
):
    frame = frame_of(size, SAMPLINGS[sampling], scales[: len(SAMPLINGS[sampling])])
    color = GREY if sampling == "grey" else color
    planes = noise(frame, contrast)
    vertical, horizontal = between(crop[0], size[1], out_size[1]), between(crop[1], size[0], out_size[0])
    out = resized(planes, frame, color, vertical, horizontal, kind)
    off = np.abs(out.astype(int) - planes_reference(planes, frame, color, vertical, horizontal, kind))
    assert off.max() <= 4  # a middle value that is rounded the other way, times 1.8 and what a filter makes of it
    if vertical.in_size > 4 and horizontal.in_size > 4:  # else a row, or all of them, may be one value rounded one way
        assert off.sum() <= 0.3 * off.size + 40


@pytest.mark.parametrize("kind", FILTERS)
def test_what_keeps_its_size_is_not_changed(kind: int):
    frame = frame_of((90, 70), SAMPLINGS["4:4:4"], (0, 0, 0))
    planes = noise(frame)
    out = resized(planes, frame, RGB, Axis(41, -20, 41, 0), Axis(67, -11, 67, 0), kind)
    assert np.array_equal(out, np.stack(planes, axis=-1)[20:61, 11:78])


@pytest.mark.parametrize("kind", FILTERS)
def test_a_flat_image_stays_flat(kind: int):
    for sampling, scales in (("4:2:0", (0, 0, 0)), ("4:2:0", (2, 1, 1)), ("4:4:4", (0, 0, 0)), ("4:4:4", (3, 3, 3))):
        frame = frame_of((900, 700), SAMPLINGS[sampling], scales)
        for level in (0, 77, 255):
            planes = [np.full_like(plane, level) for plane in noise(frame)]
            for width, height in ((224, 150), (1, 2), (900, 31)):
                out = resized(planes, frame, RGB, Axis(699, 0, height, 0), Axis(870, -3, width, 0), kind)
                assert (out == level).all()


def limits(fast: list[np.ndarray], exact: list[np.ndarray]) -> None:
    """What issue and documentation promise of the fast fidelity."""
    off = np.concatenate([np.abs(a.astype(int) - b).ravel() for a, b in zip(fast, exact, strict=True)])
    assert off.mean() <= 0.6
    assert np.quantile(off, 0.999) <= 8


CROPS = [
    ((0, 0, 201, 155), (64, 64)),
    ((33, 20, 120, 99), (96, 80)),
    ((7, 3, 41, 60), (70, 90)),
    ((5, 9, 190, 1), (50, 3)),
]


@pytest.mark.parametrize("kind", [BILINEAR, BICUBIC])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, "RGB"])
def test_unscaled_planes_give_nearly_pillows_pixels(sampling: str, kind: int):
    factors = SAMPLINGS.get(sampling, SAMPLINGS["4:4:4"])
    image = photograph(201, 155, factors, 92, is_ycc=sampling != "RGB")
    softer = zip(image.coefficients, (3, 9, 9), strict=False)  # such as hardly leave 0 to 255, where the orders differ
    blocks = [(values / divisor).astype(np.int16) for values, divisor in softer]
    image = Jpeg(201, 155, factors, image.quant, tuple(blocks), image.is_ycc)
    color = GREY if sampling == "grey" else YCBCR if image.is_ycc else RGB
    none = (0,) * len(factors)
    frame, planes = frame_of((201, 155), factors, none), planes_from(blocks, image.last, list(image.quant), none)
    pillow = Image.fromarray(image.pillow())
    fast, exact = [], []
    for (x, y, w, h), (width, height) in CROPS:
        fast.append(resized(planes, frame, color, Axis(h, -y, height, 0), Axis(w, -x, width, 0), kind))
        exact.append(np.asarray(pillow.crop((x, y, x + w, y + h)).resize((width, height), kind)))
    limits(fast, exact)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from([np.uint8, np.uint16, np.float32, np.float64]),
    flips=st.tuples(st.booleans(), st.booleans()),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    channels_last=st.booleans(),
)
def test_any_type_layout_and_mirror(dtype: Any, flips: tuple[bool, bool], height: int, width: int, channels_last: bool):
    frame = frame_of((43, 29), SAMPLINGS["4:2:0"], (0, 0, 0))
    planes = noise(frame)
    vertical, horizontal = Axis(25, -3, height, 0), Axis(37, -5, width, 0)
    table = np.random.default_rng(1).integers(0, 255, (3, 256)).astype(dtype)
    shape = (3, 4, height, width + 2)
    batch: np.ndarray = np.full(shape, 113, dtype)
    if channels_last:
        batch = np.full((3, height, width + 2, 4), 113, dtype).transpose(0, 3, 1, 2)
    reference = batch.copy()
    assert store(planes, frame, YCBCR, vertical, horizontal, BICUBIC, batch[1, :3, :, 1:-1], table, flips)
    image = resized(planes, frame, YCBCR, vertical, horizontal, BICUBIC)
    lookup_store_reference(image, table, *flips, reference[1, :3, :, 1:-1])
    assert np.array_equal(batch, reference)


@settings(max_examples=40, deadline=None)
@given(
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    scales=st.tuples(*[st.integers(0, 2)] * 3),
    sizes=st.tuples(*[st.integers(1, 60)] * 4),
    crop=st.tuples(SHARES, SHARES),
    window=st.tuples(SHARES, SHARES),
    kind=st.sampled_from(FILTERS),
)
def test_a_window_needs_only_its_part_of_the_planes(
    sampling: str,
    scales: tuple[int, ...],
    sizes: tuple[int, ...],
    crop: tuple[tuple[float, float], tuple[float, float]],
    window: tuple[tuple[float, float], tuple[float, float]],
    kind: int,
):
    factors = SAMPLINGS[sampling]
    color = GREY if sampling == "grey" else YCBCR
    frame = frame_of(sizes[:2], factors, scales[: len(factors)])
    planes = noise(frame)
    vertical, horizontal = between(crop[0], sizes[1], sizes[3]), between(crop[1], sizes[0], sizes[2])
    whole = resized(planes, frame, color, vertical, horizontal, kind).transpose(2, 0, 1)
    top, bottom = sorted(int(share * (sizes[3] - 1)) for share in window[0])
    left, right = sorted(int(share * (sizes[2] - 1)) for share in window[1])
    expected = whole[:, top : bottom + 1, left : right + 1]
    axes = vertical._replace(out_start=top), horizontal._replace(out_start=left)
    out = np.full_like(expected, 113)
    assert store(planes, frame, color, *axes, kind, out) and np.array_equal(out, expected)
    for c, axis in np.ndindex(len(planes), 2):  # cut what can be cut, from the front and from the back
        for end in (0, 1):
            while planes[c].shape[axis] > 1:
                shorter, moved = planes.copy(), frame.copy()
                moved[c, axis] += 1 - end
                shorter[c] = np.ascontiguousarray(np.delete(planes[c], -end, axis))
                out[:] = 113
                if not store(shorter, moved, color, *axes, kind, out):
                    break
                assert np.array_equal(out, expected)
                planes, frame = shorter, moved
            else:
                continue
            assert (out == 113).all()


def test_photographs_are_within_the_limits(photos: Path):
    generator = np.random.default_rng(8)
    paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[::12]
    assert paths
    for kind in (BILINEAR, BICUBIC):
        fast, exact = [], []
        for path in paths:
            image = Image.open(io.BytesIO(path.read_bytes()))
            own = photo(path.read_bytes())
            x, y = (int(generator.integers(0, size // 2)) for size in image.size)
            w, h = int(generator.integers(1, image.width - x + 1)), int(generator.integers(1, image.height - y + 1))
            fast.append(resized(own.planes, own.frame, own.color, Axis(h, -y, 224, 0), Axis(w, -x, 224, 0), kind))
            crop = image.convert("RGB").crop((x, y, x + w, y + h))
            exact.append(np.asarray(crop.resize((224, 224), kind)))
        limits(fast, exact)


@pytest.mark.parametrize("sampling", ["4:2:0", "4:4:4"])
def test_large_crops_from_scaled_planes_are_within_the_limits(sampling: str, photos: Path):
    """A mosaic of photographs: sharper than what a camera makes of so many pixels."""
    paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[::9]
    mosaic = Image.new("RGB", (2000, 1500))
    for k, place in enumerate(np.ndindex(4, 4)):
        mosaic.paste(Image.open(paths[k]).convert("RGB"), (500 * place[1], 375 * place[0]))
    file = io.BytesIO()
    mosaic.save(file, "JPEG", quality=90, subsampling=sampling)
    mosaic = Image.open(file).convert("RGB")
    for kind in (BILINEAR, BICUBIC):
        fast, exact = [], []
        for x, y, w, h in [(0, 0, 2000, 1500), (301, 77, 1433, 1301), (903, 501, 800, 777)]:
            own = photo(file.getvalue(), (h, w, 100, 100))
            assert own.frame[:, 6].any()
            fast.append(resized(own.planes, own.frame, own.color, Axis(h, -y, 100, 0), Axis(w, -x, 100, 0), kind))
            exact.append(np.asarray(mosaic.crop((x, y, x + w, y + h)).resize((100, 100), kind)))
        limits(fast, exact)
