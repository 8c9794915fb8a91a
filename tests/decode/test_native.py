"""gpuload's own decoder against Pillow's pixels, bit for bit: samplings, crops, filters, damage, threads."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpuload.augment import ops, params
from gpuload.core.batch import DecodedRows, EncodedBatch, Target, join_encoded
from gpuload.core.errors import EpochCancelledError
from gpuload.core.geometry import Resampling, identity
from gpuload.core.philox import sample_keys
from gpuload.core.protocols import Decoder
from gpuload.decode import native as native_module
from gpuload.decode.native import NativeDecoder, pass_order
from gpuload.decode.pillow import PillowDecoder
from tests.augment.pictures import encoded, every_kind, picture

GEOMETRIES: dict[str, list[ops.GeometryOp]] = {
    "whole": [],
    "random crop, resized": [ops.RandomResizedCrop(37, 41, (0.08, 1.0), (0.75, 4 / 3))],
    "resize and centre": [ops.Resize(shorter=40), ops.CenterCrop(33, 31)],
    "resize, centre beyond the image": [ops.Resize(shorter=20), ops.CenterCrop(33, 45)],
    "random crop with padding": [ops.RandomCrop(29, 23, (4, 4, 4, 4), True)],
    "random crop": [ops.RandomCrop(5, 7)],
    "one axis unchanged": [ops.Resize(height=24, width=61)],
    "enlarged": [ops.Resize(height=131, width=97)],
}


def decoded(
    decoder: Decoder, batch: EncodedBatch, geometry: Sequence[ops.GeometryOp], seed: int = 3, **more: Any
) -> DecodedRows:
    draws = params.draw(geometry, sample_keys(seed=seed, epoch=0, positions=np.arange(len(batch))))

    def resolve(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        picked = np.asarray(rows)
        return params.resolve(geometry, [u[picked] for u in draws], widths, heights)

    return decoder.decode(batch, range(len(batch)), resolve, **more)


def native(resampling: Resampling | None = None) -> NativeDecoder:
    resampling = resampling or Resampling()
    return NativeDecoder(resampling, PillowDecoder(resampling))


def assert_pillows(files: Sequence[bytes], geometry: Sequence[ops.GeometryOp], resampling: Resampling) -> DecodedRows:
    batch = join_encoded(files)
    wanted = decoded(PillowDecoder(resampling), batch, geometry)
    got = decoded(native(resampling), batch, geometry)
    assert got.failures.keys() == wanted.failures.keys()
    for mine, theirs in zip(got.images, wanted.images, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.shape == theirs.shape and np.array_equal(mine, theirs)
    assert np.array_equal(got.geometry, wanted.geometry)
    return got


def sampled_files() -> list[bytes]:
    """Every subsampling that Pillow writes, grey, restarts, optimised tables, odd sizes and qualities."""
    files = []
    for number, (width, height) in enumerate(((61, 24), (33, 57), (64, 64), (17, 90), (120, 47), (40, 41))):
        for sampling in (0, 1, 2):
            options = {"subsampling": sampling, "quality": 20 + 13 * number, "optimize": bool(number % 2)}
            if number % 3 == 0:
                options["restart_marker_blocks"] = 1 + number
            out = io.BytesIO()
            picture(width, height).save(out, "JPEG", **options)
            files.append(out.getvalue())
        out = io.BytesIO()
        picture(width, height).convert("L").save(out, "JPEG", quality=80)
        files.append(out.getvalue())
    return files


FILES = sampled_files()


@pytest.mark.parametrize("name", GEOMETRIES)
def test_pixels_are_pillows_for_every_sampling_and_geometry(name: str):
    got = assert_pillows(FILES, GEOMETRIES[name], Resampling())
    beyond = {"random crop with padding"}  # a crop that reaches beyond its image is the fallback's
    if name not in beyond:
        assert got.decoders == {"native": len(FILES)}


@pytest.mark.parametrize("filter_name", ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"])
def test_pixels_are_pillows_for_every_filter(filter_name: str):
    for geometry in ("random crop, resized", "resize and centre", "enlarged"):
        got = assert_pillows(FILES[:12], GEOMETRIES[geometry], Resampling(filter_name))
        assert got.decoders == {"native": 12}


def test_a_hamming_filter_is_pillows_where_its_weights_are_not_those_of_the_formula():
    """33 x 15 to 3 x 4: one pixel in some ten thousand differed by 1."""
    generator = np.random.default_rng(0)
    noise = (Image.fromarray(generator.integers(0, 256, (33, 15, 3), dtype=np.uint8)) for _ in range(1500))
    files = [encoded(image, quality=100, subsampling=0) for image in noise]
    assert_pillows(files, [ops.Resize(height=3, width=4)], Resampling("hamming"))


def test_many_random_crops_equal_those_of_the_whole_image():
    crop = [ops.RandomResizedCrop(16, 16, (0.01, 1.0), (0.3, 3.0))]
    for seed in range(12):
        assert_pillows(FILES, crop, Resampling("bicubic"))
        batch = join_encoded(FILES)
        mine, theirs = decoded(native(), batch, crop, seed), decoded(PillowDecoder(Resampling()), batch, crop, seed)
        assert all(np.array_equal(a, b) for a, b in zip(mine.images, theirs.images, strict=True))


LAYOUTS = {
    "contiguous": lambda n, h, w: np.full((n, 3, h, w), 77),
    "channels last": lambda n, h, w: np.full((n, h, w, 3), 77).transpose(0, 3, 1, 2),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["random crop, resized", "resize, centre beyond the image", "random crop"])
def test_rows_are_stored_into_the_batch_flipped_and_looked_up(name: str, layout: str, dtype: type):
    fill = (9, 200, 31)
    geometry = [*GEOMETRIES[name], ops.RandomHorizontalFlip(0.5), ops.RandomVerticalFlip(0.5)]
    files = [*FILES, b"no image", *every_kind().values()]
    batch, resampling = join_encoded(files), Resampling(fill=fill)
    table = np.random.default_rng(2).integers(0, 250, (3, 256)).astype(dtype)
    wanted = decoded(PillowDecoder(resampling), batch, geometry)
    shapes = {image.shape[:2] for image in wanted.images if image is not None}
    ((height, width),) = shapes
    target = Target(LAYOUTS[layout](len(files), height, width).astype(dtype, order="K"), table)
    got = decoded(native(resampling), batch, geometry, target=target)
    assert len(got.stored) == got.decoders["native"] > len(FILES) - 1
    assert got.failures.keys() == wanted.failures.keys()
    flips = set()
    for place, image in enumerate(wanted.images):
        if place not in got.stored:
            assert (target.array[place] == 77).all()
            assert np.array_equal(got.images[place], image)
            continue
        flip_h, flip_v = wanted.geometry["flip_h"][place], wanted.geometry["flip_v"][place]
        flips.add((bool(flip_h), bool(flip_v)))
        flipped = image[:: -1 if flip_v else 1, :: -1 if flip_h else 1]
        assert np.array_equal(target.array[place], np.stack([table[c][flipped[..., c]] for c in range(3)]))
    assert len(flips) == 4


@pytest.mark.parametrize("nearest", [True, False])
def test_a_resize_that_is_impossible_fails_its_own_image_as_with_pillow(nearest: bool):
    resampling = Resampling("nearest") if nearest else Resampling(domain="tensor")

    def resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        if min(size) < 1:
            raise RuntimeError("a side of nothing")
        return np.asarray(Image.fromarray(pixels).resize(size))

    apart = None if nearest else resize
    batch = join_encoded([FILES[0], encoded(picture(400, 1)), FILES[1]])
    pillow = PillowDecoder(resampling, apart)
    geometry = [ops.Resize(shorter=8, max_size=90)]
    wanted = decoded(pillow, batch, geometry)
    got = decoded(NativeDecoder(resampling, pillow, apart), batch, geometry)
    assert list(got.failures) == list(wanted.failures) == [1]
    assert repr(got.failures[1]) == repr(wanted.failures[1])
    assert all(np.array_equal(a, b) for a, b in zip(got.images, wanted.images, strict=True))


def test_work_that_is_stopped_begins_no_image():
    stop, table = np.ones(1, np.uint8), np.zeros((3, 256), np.uint8)
    target = Target(np.full((len(FILES), 3, 41, 37), 77, np.uint8), table)
    with pytest.raises(EpochCancelledError):
        decoded(native(), join_encoded(FILES), GEOMETRIES["random crop, resized"], target=target, stop=stop)
    assert (target.array == 77).all()


def test_memory_grows_to_what_an_image_needs_and_no_more_than_the_limit_is_kept(monkeypatch):
    taken = []
    allocate = native_module.allocate
    monkeypatch.setattr(native_module, "allocate", lambda nbytes: taken.append(nbytes) or allocate(nbytes))
    monkeypatch.setattr(native_module, "KEPT_BYTES", 1 << 20)
    decoder, crop = native(), GEOMETRIES["random crop, resized"]
    small, large = join_encoded(FILES[:4]), join_encoded([encoded(picture(1500, 900))])
    decoded(decoder, small, [])
    before = len(taken)
    decoded(decoder, small, crop)
    decoded(decoder, small, crop)
    assert len(taken) <= before + 2
    got = decoded(decoder, large, [])
    assert got.decoders == {"native": 1} and max(taken) > 1 << 20
    assert decoder._memory.scratch.nbytes <= 1 << 20
    assert np.array_equal(got.images[0], decoded(PillowDecoder(Resampling()), large, []).images[0])


def test_small_images_are_cut_into_larger_tasks():
    tiny = encoded(picture(16, 16))
    assert native().rows_per_task(join_encoded([tiny] * 300)) == 64
    assert native().rows_per_task(join_encoded([encoded(picture(700, 500), quality=95)] * 4)) == 8
    assert native().rows_per_task(join_encoded([])) >= 1


def test_other_kinds_go_to_the_fallback_inside_the_batch():
    files = [*every_kind().values(), FILES[0]]
    got = assert_pillows(files, GEOMETRIES["random crop, resized"], Resampling())
    assert got.decoders["native"] >= 1 and got.decoders["pillow"] >= 1
    assert sum(got.decoders.values()) == len(files)


@pytest.mark.parametrize("name", ["whole", "random crop, resized", "random crop"])
def test_damage_has_pillows_verdict_and_costs_no_neighbour(name: str):
    good = FILES[3]
    generator = np.random.default_rng(8)
    files: list[bytes] = [good]
    for _ in range(150):
        damaged = bytearray(FILES[int(generator.integers(len(FILES)))])
        kind = generator.integers(3)
        if kind == 0:
            damaged = damaged[: int(generator.integers(len(damaged)))]
        else:
            for _ in range(int(generator.integers(1, 4))):
                damaged[int(generator.integers(2 if kind == 1 else len(damaged) // 2, len(damaged)))] ^= 1 << int(
                    generator.integers(8)
                )
        files += [bytes(damaged), good]
    got = assert_pillows(files, GEOMETRIES[name], Resampling())
    assert len(got.failures) > 10
    if name == "whole":
        clean = decoded(native(), join_encoded([good]), []).images[0]
        assert all(np.array_equal(got.images[place], clean) for place in range(0, len(files), 2))


def test_what_follows_the_crop_is_judged_as_pillow_judges_it():
    """A crop is decoded to its last row only; files that end or change behind that row are still refused or taken."""
    base = FILES[8]  # 64 x 64
    end = len(base) - 2
    files = [base, base[:end], base[: end - 1], base[: end - 40], base[:end] + b"\xff\xd0\xff\xd9", base + b"tail"]
    inserts = (
        b"\xff\xc4",
        b"\xff\xd3",
        b"\xff\xff\xff",
        b"\xff\x00",
        b"\xff\xda\0\x04",
        b"\xff\xd9",
        b"\xff\xe0\0\x08abcdef",
    )
    files += [base[: end - 30] + inserted + base[end - 30 :] for inserted in inserts]
    batch = join_encoded(files)
    for top in range(0, 60, 4):

        def resolve(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
            geometry = identity(widths, heights)
            geometry["crop"] = (9, top, 21, 4)  # noqa: B023
            geometry["resize"] = geometry["window"][:, 2:] = (21, 4)
            return geometry

        got = native().decode(batch, range(len(batch)), resolve)
        wanted = PillowDecoder(Resampling()).decode(batch, range(len(batch)), resolve)
        assert got.failures.keys() == wanted.failures.keys() and len(wanted.failures) >= 3
        assert got.decoders["native"] >= 2
        for mine, theirs in zip(got.images, wanted.images, strict=True):
            assert np.array_equal(mine, theirs)


def test_threads_share_one_decoder_and_change_nothing():
    decoder, batch, crop = native(), join_encoded(FILES), GEOMETRIES["random crop, resized"]
    wanted = decoded(decoder, batch, crop).images
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            got = decoded(decoder, batch, crop).images
            wrong.extend(number for a, b in zip(got, wanted, strict=True) if not np.array_equal(a, b))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_images_that_are_kept_are_not_overwritten():
    decoder, batch, crop = native(), join_encoded(FILES), GEOMETRIES["random crop, resized"]
    kept = decoded(decoder, batch, crop).images
    copies = [None if image is None else image.copy() for image in kept]
    for seed in range(4):
        decoded(decoder, batch, crop, seed)
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_a_crop_larger_than_the_image_is_a_failure_as_pillows():
    got = assert_pillows([encoded(picture(20, 20)), encoded(picture(90, 80))], [ops.RandomCrop(30, 30)], Resampling())
    assert list(got.failures) == [0] and got.images[1] is not None


def test_the_order_of_passes_of_the_installed_pillow_is_known():
    assert pass_order() is not None


def test_the_odd_jpegs_have_pillows_pixels_and_verdicts(real_data: Path):
    files = [path.read_bytes() for path in sorted((real_data / "jpeg-conformance").glob("*.jp*g"))]
    for geometry in (GEOMETRIES["whole"], GEOMETRIES["random crop, resized"]):
        got = assert_pillows(files, geometry, Resampling())
        assert got.decoders["native"] > 30 and len(got.failures) > 3


def test_photographs_have_pillows_pixels(photos: Path):
    files = [path.read_bytes() for path in sorted(photos.rglob("*.JPEG"))[::5]]
    for geometry in ([], [ops.RandomResizedCrop(224, 224, (0.08, 1.0), (0.75, 4 / 3))]):
        got = assert_pillows(files, geometry, Resampling())
        assert got.decoders["native"] > 0.9 * len(files)
