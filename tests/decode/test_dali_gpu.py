"""DALI's GPU decoder on host memory: DALI's CPU operators, and the very kernel that stores its pixels, by g++.

What only a GPU can show is nvJPEG's pixels and streams; everything else that happens to a batch is here.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuload.augment.run import store_rows
from gpuload.core.batch import DecodedRows, DeviceOutput, EncodedBatch, Target
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.decode.dali_gpu import ON_THE_GPU, DaliGpuDecoder, cut_runs, stored_images
from gpuload.decode.dali_pipeline import REGION, DaliSettings
from gpuload.decode.pillow import PillowDecoder
from tests.decode.test_dali import (
    ENCODED,
    FILL,
    JPEGS,
    bad_images,
    batch,
    beyond_and_resampled,
    decoder,
    differences,
    encode,
    picture,
    random_crop,
    random_resized_crop,
    reference,
    resize_then_centre,
)

ELEMENTS = [np.uint8, np.uint16, np.float32, np.float64]  # 16-bit floats travel as uint16


def on_host(interpolation: str = "bilinear", *, max_rows: int = 64, device_bytes: int = 1 << 30, threads: int = 2):
    resampling = Resampling(interpolation, fill=FILL)
    return DaliGpuDecoder(
        threads=threads, resampling=resampling, max_rows=max_rows, device_bytes=device_bytes, device_id=None,
        settings=DaliSettings(), fallback=PillowDecoder(resampling), device="cpu",
    )  # fmt: skip


def flipped(geometry):
    """The same, with all four pairs of flips by turns."""

    def flips(rows, widths, heights):
        out = geometry(rows, widths, heights)
        out["flip_h"], out["flip_v"] = np.asarray(rows) % 2 == 1, np.asarray(rows) // 2 % 2 == 1
        return out

    return flips


def padded(rows, widths, heights):
    """To 50 x 30, in a window of 64 x 44: the part that the image fills lies elsewhere in each."""
    out = np.zeros(len(rows), GEOMETRY)
    out["crop"][:, 2], out["crop"][:, 3] = widths, heights
    out["resize"] = 50, 30
    rows = np.asarray(rows)
    out["window"] = np.stack([-7 + rows % 40, -9 + rows % 23, rows * 0 + 64, rows * 0 + 44], 1)
    return out


def memory(rows: int, height: int, width: int, dtype, channels_last: bool) -> Target:
    """An empty batch, of values that no table gives, and a table without two equal values."""
    shape = (rows, height, width, 3) if channels_last else (rows, 3, height, width)
    array = np.full(shape, 255, dtype)
    table = np.random.default_rng(1).permuted(np.tile(np.arange(256), (3, 1)), axis=1).astype(dtype)
    if dtype is not np.uint8:
        table = table * 3 + np.arange(3, dtype=dtype)[:, None]
    return Target(array.transpose(0, 3, 1, 2) if channels_last else array, table)


def run_job(made: DaliGpuDecoder, parts, places: np.ndarray, target: Target):
    """What the device does with a batch's job, on host memory."""
    from tests.kernels.host_cuda import host_kernels

    job = made.device_job(parts, places, target)
    upload = np.empty(job.upload_bytes, np.uint8)
    job.write(upload)
    n, c, y, x = target.array.strides
    output = DeviceOutput(target.array.ctypes.data, *target.array.shape[2:], (n, c, y, x))
    job.launch(host_kernels(), upload.ctypes.data, 0, output)
    return job


def expected(encoded: EncodedBatch, geometry, target: Target) -> np.ndarray:
    """The batch by the CPU's DALI decoder and the CPU's kernel."""
    by_cpu = decoder()
    wanted = Target(np.full_like(target.array, 255), target.table)
    store_rows(wanted, by_cpu.decode(encoded, range(len(encoded)), geometry))
    by_cpu.close()
    return wanted.array


@pytest.mark.full
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("geometry", [random_crop, padded])
def test_a_batch_is_the_cpus_to_the_bit(geometry, dtype, channels_last):
    """In both layouts and elements of every size, flips and windows that reach beyond the image included."""
    made = on_host()
    height, width = (40, 48) if geometry is random_crop else (44, 64)
    target = memory(len(JPEGS), height, width, dtype, channels_last)
    out = made.decode(ENCODED, range(len(JPEGS)), flipped(geometry), target)
    assert out.stored == set(range(len(JPEGS))) and out.decoders == {ON_THE_GPU: len(JPEGS)} and not out.failures
    assert out.images == [None] * len(JPEGS)
    job = run_job(made, [out.staged], np.arange(len(JPEGS)), target)
    assert np.array_equal(job.rows, np.arange(len(JPEGS)))
    assert np.array_equal(target.array, expected(ENCODED, flipped(geometry), target))
    made.close()


@pytest.mark.full
def test_parts_of_a_batch_and_places_in_any_order():
    """Tasks that took rows 0-11 and 12-36, handed on in the other order, with rows 4 and 30 left out."""
    made = on_host()
    target = memory(37, 40, 48, np.float32, False)
    late, early = (made.decode(ENCODED, rows, random_crop, target).staged for rows in (range(12, 37), range(12)))
    places = np.random.default_rng(2).permutation(37)
    places[[4, 30]] = -1
    run_job(made, [late, early], places, target)
    wanted = expected(ENCODED, random_crop, target)
    for row, place in enumerate(places.tolist()):
        if place >= 0:
            assert np.array_equal(target.array[place], wanted[row])
    for place in set(range(37)) - set(places.tolist()):
        assert (target.array[place] == 255).all()
    made.close()


@pytest.mark.full
def test_images_larger_than_the_memory_allowed_are_the_fallbacks_and_others_run_apart():
    pixels = [np.prod(picture_size(jpeg)) for jpeg in JPEGS]
    most = int(np.sort(pixels)[-4])  # all but three images
    made = on_host(device_bytes=most * 20, max_rows=9)
    target = memory(len(JPEGS), 40, 48, np.uint8, False)
    out = made.decode(ENCODED, range(len(JPEGS)), random_crop, target)
    assert out.decoders == {ON_THE_GPU: len(JPEGS) - 3, "pillow": 3}
    assert len(out.staged.outputs) > 5
    run_job(made, [out.staged], np.arange(len(JPEGS)), target)
    store_rows(target, out)
    large = [row for row in range(len(JPEGS)) if pixels[row] > most]
    assert [row for row, image in enumerate(out.images) if image is not None] == large
    small = np.setdiff1d(np.arange(len(JPEGS)), large)
    assert np.array_equal(target.array[small], expected(ENCODED, random_crop, target)[small])
    made.close()


def picture_size(jpeg: bytes) -> tuple[int, int]:
    from gpuload.decode.jpeg_header import read_header

    header = read_header(jpeg)
    return header.width, header.height


@pytest.mark.parametrize("seed", range(5))
def test_runs_keep_within_rows_and_pixels_and_leave_nothing_out(seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(1, 100, rng.integers(0, 60))
    runs = cut_runs(pixels, most_rows=7, most_pixels=120)
    assert [i for run in runs for i in range(run.start, run.stop)] == list(range(len(pixels)))
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        assert 1 <= run.stop - run.start <= 7 and pixels[run].sum() <= 120
        if following is not None and run.stop - run.start < 7:
            assert pixels[run].sum() + pixels[following.start] > 120
    assert cut_runs(np.array([500, 3]), most_rows=7, most_pixels=120) == [slice(0, 1), slice(1, 2)]


@pytest.mark.full
@pytest.mark.parametrize("copies", [1, 4])
def test_one_bad_image_never_costs_its_neighbours(copies):
    """Bad ones are named, with the same verdict as Pillow's; good ones are as without them."""
    made, count = on_host(), 60
    rows = random.Random(5).sample(range(count), 6 * copies)
    kinds = dict(zip(rows, list(bad_images()) * copies, strict=True))
    good = [JPEGS[i % len(JPEGS)] for i in range(count)]
    mixed = batch(*(bad_images()[kinds[row]] if row in kinds else good[row] for row in range(count)))
    target = memory(count, 40, 48, np.uint8, False)
    out = made.decode(mixed, range(count), random_crop, target)
    assert {row: type(e) for row, e in out.failures.items()} == {
        row: type(e) for row, e in reference(mixed, random_crop).failures.items()
    }
    assert sorted(out.failures) == sorted(rows)
    run_job(made, [out.staged], np.arange(count), target)
    wanted = expected(batch(*good), random_crop, target)
    for row in range(count):
        assert (target.array[row] == (255 if row in kinds else wanted[row])).all()
    made.close()


@pytest.mark.full
def test_pixels_wait_for_the_job_through_later_batches():
    """What is staged is not overwritten by what is decoded after it, as long as it is held."""
    made = on_host()
    target = memory(11, 40, 48, np.uint8, False)
    held = [
        made.decode(batch(*(JPEGS[(number * 5 + i) % len(JPEGS)] for i in range(11))), range(11), random_crop, target)
        for number in range(12)
    ]
    made.close()
    for number, out in enumerate(held):
        run_job(made, [out.staged], np.arange(11), target)
        encoded = batch(*(JPEGS[(number * 5 + i) % len(JPEGS)] for i in range(11)))
        assert np.array_equal(target.array, expected(encoded, random_crop, target))


@pytest.mark.full
def test_without_a_target_images_come_back_to_the_host():
    made, by_cpu = on_host(), decoder()
    for geometry in (random_crop, padded):
        out = made.decode(ENCODED, range(5, 30), geometry)
        wanted = by_cpu.decode(ENCODED, range(5, 30), geometry)
        assert out.staged is None and out.decoders == {ON_THE_GPU: 25} and not out.stored
        assert differences(out.images, wanted.images).max() == 0
        assert np.array_equal(out.geometry, wanted.geometry)
    made.close()
    by_cpu.close()


@pytest.mark.full
def test_what_cannot_be_staged_is_the_fallbacks():
    """Other formats, resampling beyond the image, and images of another size than the batch's, which then fail."""
    made = on_host()
    target = memory(4, 40, 48, np.uint8, False)
    mixed = batch(JPEGS[0], encode(picture(1, 60, 41), format="PNG"), JPEGS[1], encode(picture(2, 60, 41, "CMYK")))
    out = made.decode(mixed, range(4), random_crop, target)
    assert out.decoders == {ON_THE_GPU: 2, "pillow": 2} and out.stored == {0, 2}
    assert out.staged.rows.tolist() == [0, 2]
    beyond = memory(4, 40, 40, np.uint8, False)
    assert made.decode(ENCODED, range(4), beyond_and_resampled, beyond).decoders == {"pillow": 4}
    other = memory(4, 41, 48, np.uint8, False)
    out = made.decode(ENCODED, range(4), random_crop, other)
    assert out.staged is None and not out.stored
    store_rows(other, out)
    assert sorted(out.failures) == [0, 1, 2, 3]
    nothing = made.decode(ENCODED, range(3, 3), random_crop, target)
    assert nothing == DecodedRows(range(3, 3), [], nothing.geometry)
    made.close()


@pytest.mark.full
@pytest.mark.parametrize("geometry", [random_resized_crop, resize_then_centre])
def test_photographs_stay_near_pillow(photos, geometry):
    """A whole batch against exact pixels: DALI's resampling is all that differs here (on a GPU, nvJPEG too)."""
    encoded = batch(*(path.read_bytes() for path in sorted(photos.glob("*.JPEG"))[::4]))
    wanted = np.stack(reference(encoded, geometry).images).transpose(0, 3, 1, 2)
    target = Target(np.zeros(wanted.shape, np.uint8), np.tile(np.arange(256, dtype=np.uint8), (3, 1)))
    made = on_host(max_rows=128)
    out = made.decode(encoded, range(len(encoded)), geometry, target)
    run_job(made, [out.staged], np.arange(len(encoded)), target)
    store_rows(target, out)
    off = np.abs(target.array.astype(np.int16) - wanted)
    assert off.mean() < 0.22 and np.percentile(off, 99.9) <= 1
    made.close()


def test_an_image_tells_store_where_its_pixels_are_and_what_to_show():
    """Sizes are (y, x) in REGION and (x, y) in IMAGE; 5 x 3 pixels stand at (2, 1) of a window."""
    region = np.zeros(2, REGION)
    region["size"], region["paste"], region["window"] = (3, 5), (1, 2), (8, 9)
    geometry = np.zeros(2, GEOMETRY)
    geometry["flip_h"] = [True, False]
    images = stored_images(np.array([0, 240]), np.array([7, 1]), region, geometry)
    assert images["first_pixel"].tolist() == [0, 60] and images["place"].tolist() == [7, 1]
    assert images["outputs"].tolist() == images["region"].tolist() == [[0, 0, 5, 3]] * 2
    assert images["shown"].tolist() == [[-2, -1]] * 2 and images["flips"].tolist() == [[1, 0], [0, 0]]
    assert not images["resampled"].any()


@pytest.mark.full
def test_the_decoder_says_what_it_is():
    made = on_host(threads=5)
    assert made.callers(5) == 2 and made.callers(1) == 1 and made.rows_per_task(ENCODED) == 64
    assert "64 rows" in repr(made) and "idle" in repr(made)
    made.close()
    assert "closed" in repr(made)


@pytest.mark.gpu
def test_on_a_gpu_pixels_are_near_the_cpus_and_the_same_each_time():
    pytest.importorskip("nvidia.dali")
    from gpuload.decode.dali_probe import dali_settings

    settings = dali_settings(0, 4)
    resampling = Resampling(fill=FILL)
    made = DaliGpuDecoder(
        threads=4, resampling=resampling, max_rows=64, device_bytes=1 << 30, device_id=0, settings=settings,
        fallback=PillowDecoder(resampling),
    )  # fmt: skip
    by_cpu = decoder()
    for geometry in (random_crop, padded):
        first = made.decode(ENCODED, range(len(JPEGS)), geometry)
        again = made.decode(ENCODED, range(len(JPEGS)), geometry)
        assert first.decoders == {ON_THE_GPU: len(JPEGS)}
        assert differences(first.images, again.images).max() == 0
        off = differences(first.images, by_cpu.decode(ENCODED, range(len(JPEGS)), geometry).images)
        assert off.mean() < settings.distance + 1
    made.close()
    by_cpu.close()
