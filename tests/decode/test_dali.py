"""The DALI decoder against Pillow: exact where nothing is resampled, near where something is, the same at all times."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpuload.core.batch import EncodedBatch, join_encoded
from gpuload.core.errors import ConfigError, EpochCancelledError, MissingDependencyError
from gpuload.core.geometry import GEOMETRY, Resampling, identity
from gpuload.decode.dali import DaliDecoder, accepts, available, unsupported
from gpuload.decode.jpeg_header import read_header
from gpuload.decode.pillow import PillowDecoder

pytestmark = pytest.mark.skipif(available() is not None, reason=f"decoding by DALI is left out: {available()}")

FILL = (10, 200, 30)


def picture(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Something of a photograph's spectrum: noise at four scales."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    for cell, weight in ((1, 0.08), (4, 0.15), (16, 0.3), (64, 0.47)):
        small = rng.integers(0, 256, (-(-height // cell) + 1, -(-width // cell) + 1, 3), np.uint8)
        scaled = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
        total += weight * np.asarray(scaled, np.float32)
    return Image.fromarray(total.astype(np.uint8)).convert(mode)


def encode(image: Image.Image, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, options.pop("format", "JPEG"), **options)
    return out.getvalue()


def some_jpegs(count: int = 37) -> list[bytes]:
    """Odd sizes; every subsampling that Pillow writes, progressive ones, grey ones, restart intervals."""
    rng = np.random.default_rng(3)
    jpegs = []
    for seed in range(count):
        width, height = (int(n) for n in rng.integers(40, 420, 2))
        options = {"quality": 88, "subsampling": ("4:4:4", "4:2:0", "4:2:2")[seed % 3], "progressive": seed % 5 == 4}
        if seed % 4 == 3:
            options["restart_marker_blocks"] = 7
        jpegs.append(encode(picture(seed, width, height, "L" if seed % 7 == 6 else "RGB"), **options))
    return jpegs


def batch(*parts: bytes) -> EncodedBatch:
    return join_encoded(parts, (), {})


JPEGS = some_jpegs()
ENCODED = batch(*JPEGS)


def whole(rows, widths, heights):
    return identity(widths, heights)


def random_crop(rows, widths, heights):
    """A crop that depends on the row alone, resampled to 48 x 40."""
    out = np.zeros(len(rows), GEOMETRY)
    for i, (row, width, height) in enumerate(zip(rows, widths.tolist(), heights.tolist(), strict=True)):
        rng = np.random.default_rng(row)
        w, h = rng.integers(1, width + 1), rng.integers(1, height + 1)
        out["crop"][i] = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1), w, h
    out["resize"] = 48, 40
    out["window"] = 0, 0, 48, 40
    return out


def crop_only(rows, widths, heights):
    out = random_crop(rows, widths, heights)
    out["resize"] = out["crop"][:, 2:]
    out["window"][:, 2:] = out["resize"]
    return out


def resize_then_centre(rows, widths, heights):
    """Shorter side to 71, then the middle 60 x 64."""
    out = identity(widths, heights)
    short = np.minimum(widths, heights)
    out["resize"] = np.stack([widths * 71 // short, heights * 71 // short], 1)
    out["window"][:, 0] = (out["resize"][:, 0] - 60) // 2
    out["window"][:, 1] = (out["resize"][:, 1] - 64) // 2
    out["window"][:, 2:] = 60, 64
    return out


def resize_then_pad(rows, widths, heights):
    """To 50 x 30, of which a window that reaches out on two or on all sides is kept."""
    out = identity(widths, heights)
    out["resize"] = 50, 30
    out["window"] = np.where(np.asarray(rows)[:, None] % 2 == 0, (-7, -3, 64, 44), (20, 11, 41, 33))
    return out


def crop_beyond(rows, widths, heights):
    """As RandomCrop(padding=...) makes it: no resampling, the crop reaches out of the image, a window in it."""
    out = identity(widths, heights)
    out["crop"] = np.stack([widths * 0 - 9, heights // 2, widths + 20, heights], 1)
    out["resize"] = out["crop"][:, 2:]
    out["window"] = np.stack([widths * 0 + 3, heights * 0 + 2, widths, heights // 2 + 9], 1)
    return out


def beyond_and_resampled(rows, widths, heights):
    out = crop_beyond(rows, widths, heights)
    out["resize"] = 40, 40
    out["window"] = 0, 0, 40, 40
    return out


def decoder(interpolation: str = "bilinear", *, threads: int = 2, max_rows: int = 64, **options) -> DaliDecoder:
    resampling = Resampling(interpolation, fill=FILL, **options)
    return DaliDecoder(threads=threads, resampling=resampling, max_rows=max_rows, fallback=PillowDecoder(resampling))


@pytest.fixture(scope="module")
def dali():
    made = decoder()
    yield made
    made.close()


def reference(encoded: EncodedBatch, geometry, interpolation: str = "bilinear"):
    return PillowDecoder(Resampling(interpolation, fill=FILL)).decode(encoded, range(len(encoded)), geometry)


def differences(images, expected) -> np.ndarray:
    assert [image.shape for image in images] == [image.shape for image in expected]
    pairs = zip(images, expected, strict=True)
    return np.concatenate([np.abs(a.astype(np.int16) - b).ravel() for a, b in pairs])


def checksum(image: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(image))


@pytest.mark.parametrize("geometry", [whole, crop_only, crop_beyond])
def test_without_resampling_pixels_are_pillows_bit_for_bit(dali, geometry):
    out = dali.decode(ENCODED, range(len(ENCODED)), geometry)
    expected = reference(ENCODED, geometry)
    assert differences(out.images, expected.images).max() == 0
    assert out.decoders == {"dali": len(JPEGS)} and not out.failures
    assert np.array_equal(out.geometry, expected.geometry)


BOUNDS = {"bilinear": (0.22, 1, 1), "bicubic": (0.24, 2, 2), "lanczos": (0.3, 3, 3)}  # mean, 99.9%, width of the rim


def rim_and_inside(images, expected, width: int):
    """Absolute differences of all values, and of those that are `width` pixels away from every edge."""
    middle = (slice(width, -width), slice(width, -width))
    inside = differences([image[middle] for image in images], [image[middle] for image in expected])
    return differences(images, expected), inside


def random_resized_crop(rows, widths, heights):
    """RandomResizedCrop(224)'s distribution, without its rejection loop."""
    rng = np.random.default_rng(list(rows))
    area = widths * heights * rng.uniform(0.08, 1, len(rows))
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), len(rows)))
    w = np.clip(np.round(np.sqrt(area * ratio)), 1, widths).astype(int)
    h = np.clip(np.round(np.sqrt(area / ratio)), 1, heights).astype(int)
    out = np.zeros(len(rows), GEOMETRY)
    out["crop"] = np.stack([rng.integers(0, widths - w + 1), rng.integers(0, heights - h + 1), w, h], 1)
    out["resize"] = 224
    out["window"] = 0, 0, 224, 224
    return out


@pytest.mark.parametrize("interpolation", BOUNDS)
@pytest.mark.parametrize("geometry", [random_crop, resize_then_centre])
def test_pixels_stay_near_pillow(interpolation, geometry):
    """Also where images shrink to a tenth; only the rim, where DALI repeats the edge, is further away."""
    made = decoder(interpolation)
    out = made.decode(ENCODED, range(len(ENCODED)), geometry)
    mean, high, rim = BOUNDS[interpolation]
    everything, inside = rim_and_inside(out.images, reference(ENCODED, geometry, interpolation).images, rim)
    assert everything.mean() < mean + 0.05
    assert inside.mean() < mean and np.percentile(inside, 99.9) <= high
    assert out.decoders == {"dali": len(JPEGS)}
    made.close()


def test_the_fill_around_a_window_is_exact(dali):
    out = dali.decode(ENCODED, range(len(ENCODED)), resize_then_pad)
    expected = reference(ENCODED, resize_then_pad).images
    assert differences(out.images, expected).mean() < 0.3
    for row, image in enumerate(out.images):
        outside = np.ones(image.shape[:2], bool)
        outside[(slice(3, 33), slice(7, 57)) if row % 2 == 0 else (slice(0, 19), slice(0, 30))] = False
        assert (image[outside] == FILL).all()
        assert (image[~outside] != FILL).any()


@pytest.mark.parametrize("interpolation", BOUNDS)
@pytest.mark.parametrize("geometry", [random_resized_crop, resize_then_centre])
def test_photographs_stay_near_pillow(photos, interpolation, geometry):
    encoded = batch(*(path.read_bytes() for path in sorted(photos.glob("*.JPEG"))[::4]))
    made = decoder(interpolation)
    out = made.decode(encoded, range(len(encoded)), geometry)
    mean, high, rim = BOUNDS[interpolation]
    everything, inside = rim_and_inside(out.images, reference(encoded, geometry, interpolation).images, rim)
    assert everything.mean() < mean and np.percentile(everything, 99.9) <= high
    assert np.percentile(inside, 99.9 if interpolation == "lanczos" else 99.98) <= high
    made.close()


def test_nearest_takes_pillows_pixels_but_for_ties():
    made = decoder("nearest")
    found = differences(
        made.decode(ENCODED, range(len(ENCODED)), random_crop).images, reference(ENCODED, random_crop, "nearest").images
    )
    assert (found != 0).mean() < 0.02
    made.close()


def test_bilinear_without_antialias_is_torchvisions_on_tensors():
    torch = pytest.importorskip("torch")
    made = decoder(antialias=False, domain="tensor")
    out = made.decode(ENCODED, range(len(ENCODED)), random_crop)
    expected = []
    for crop in reference(ENCODED, crop_only).images:
        tensor = torch.from_numpy(np.array(crop)).permute(2, 0, 1)[None].float()
        scaled = torch.nn.functional.interpolate(tensor, (40, 48), mode="bilinear", antialias=False)
        expected.append(scaled[0].permute(1, 2, 0).round().to(torch.uint8).numpy())
    found = differences(out.images, expected)
    assert found.max() <= 1 and found.mean() < 0.01
    made.close()


def test_images_of_different_sizes_come_out_in_one_batch(dali):
    out = dali.decode(ENCODED, range(len(ENCODED)), whole)
    assert [image.shape[1::-1] for image in out.images] == [Image.open(io.BytesIO(jpeg)).size for jpeg in JPEGS]


def test_exif_orientation_is_not_applied(dali):
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = batch(encode(picture(1, 90, 50), exif=exif))
    (image,) = dali.decode(encoded, range(1), whole).images
    assert image.shape == (50, 90, 3)
    assert np.array_equal(image, reference(encoded, whole).images[0])


def test_no_rows_one_row_and_rows_from_the_middle(dali):
    nothing = dali.decode(ENCODED, range(4, 4), random_crop)
    assert nothing.images == [] and nothing.decoders == {} and len(nothing.geometry) == 0
    everything = dali.decode(ENCODED, range(len(ENCODED)), random_crop)
    for rows in (range(0, 1), range(36, 37), range(5, 16)):
        out = dali.decode(ENCODED, rows, random_crop)
        assert out.rows == rows
        assert all(np.array_equal(a, everything.images[row]) for a, row in zip(out.images, rows, strict=True))
        assert np.array_equal(out.geometry, everything.geometry[rows.start : rows.stop])


def test_pixels_depend_on_nothing_but_bytes_and_geometry():
    """1 thread against 4 at once; whole batch against single rows; any order and company; large and small tasks."""
    alone = decoder(threads=1, max_rows=1)
    expected = [
        checksum(alone.decode(ENCODED, range(row, row + 1), random_crop).images[0]) for row in range(len(JPEGS))
    ]
    alone.close()

    crowd = decoder(threads=4, max_rows=128)
    order = list(range(len(JPEGS))) * 3
    random.Random(1).shuffle(order)
    encoded = batch(*(JPEGS[i] for i in order))
    found: dict[int, int] = {}

    def shuffled_crop(rows, widths, heights):
        return random_crop([order[row] for row in rows], widths, heights)

    def work(start: int) -> None:
        for first in range(start * 7, len(order), 4 * 7):
            rows = range(first, min(first + 7, len(order)))
            for row, image in zip(rows, crowd.decode(encoded, rows, shuffled_crop).images, strict=True):
                found[row] = checksum(image)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    crowd.close()
    assert [found[row] for row in range(len(order))] == [expected[i] for i in order]


def test_more_callers_than_threads_wait_their_turn():
    made = decoder(threads=1)
    expected = [checksum(image) for image in made.decode(ENCODED, range(len(ENCODED)), random_crop).images]
    found: list[list[int]] = []

    def work() -> None:
        for _ in range(3):
            images = made.decode(ENCODED, range(len(ENCODED)), random_crop).images
            found.append([checksum(image) for image in images])

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 15
    assert "1 pipelines idle" in repr(made)
    made.close()


@pytest.mark.parametrize("geometry", [random_crop, whole])
def test_held_images_are_never_overwritten(geometry):
    made = decoder()
    held, sums = [], []
    for number in range(30):
        encoded = batch(*(JPEGS[(number * 5 + i) % len(JPEGS)] for i in range(11)))
        images = made.decode(encoded, range(11), geometry).images
        del encoded
        held.append([image[::1] for image in images])
        sums.append([checksum(image) for image in images])
    assert len({tuple(s) for s in sums}) > 20
    assert [[checksum(image) for image in images] for images in held] == sums
    made.close()
    del made
    assert [[checksum(image) for image in images] for images in held] == sums


def broken_tables(jpeg: bytes) -> bytes:
    """Every header field is right, but a Huffman table has more codes than there can be: only a decoder finds out."""
    at = jpeg.index(b"\xff\xc4")
    return jpeg[: at + 5] + b"\xff" * 16 + jpeg[at + 21 :]


def bad_images() -> dict[str, bytes]:
    jpeg = JPEGS[0]
    return {
        "empty": b"",
        "text": b"this is not an image",
        "truncated": jpeg[: len(jpeg) * 6 // 10],
        "header only": jpeg[: jpeg.index(b"\xff\xda")],
        "tables": broken_tables(jpeg),
        "zeros": bytes(5000),
    }


@pytest.mark.parametrize("copies", [1, 5])
def test_one_bad_image_never_costs_its_neighbours(dali, copies):
    """3% of 200 bad, then 15%: good ones come out as without them, bad ones are named, and the decoder goes on."""
    count = 200
    good = [JPEGS[i % len(JPEGS)] for i in range(count)]
    undisturbed = dali.decode(batch(*good), range(count), random_crop)
    rows = random.Random(5).sample(range(count), 6 * copies)
    kinds = dict(zip(rows, list(bad_images()) * copies, strict=True))
    mixed = batch(*(bad_images()[kinds[row]] if row in kinds else good[row] for row in range(count)))

    out = dali.decode(mixed, range(count), random_crop)
    assert sorted(out.failures) == sorted(rows)
    assert all(out.images[row] is None for row in rows)
    expected = reference(mixed, random_crop)
    assert {row: type(e) for row, e in out.failures.items()} == {row: type(e) for row, e in expected.failures.items()}
    for row in set(range(count)) - set(rows):
        assert np.array_equal(out.images[row], undisturbed.images[row])
    assert out.decoders["dali"] == count - len(rows) and sum(out.decoders.values()) == count - len(rows)

    after = dali.decode(batch(*good), range(count), random_crop)
    assert [checksum(image) for image in after.images] == [checksum(image) for image in undisturbed.images]


def test_what_dali_is_not_given_pillow_decodes(dali):
    others = [
        encode(picture(1, 60, 41), format="PNG"),
        encode(picture(2, 60, 41, "CMYK")),
        encode(picture(3, 60, 41), keep_rgb=True),
        JPEGS[0] + b"text after the end",
        JPEGS[0][:20] + b"\0\0" + JPEGS[0][20:],
    ]
    encoded = batch(JPEGS[1], *others, JPEGS[2])
    out = dali.decode(encoded, range(7), random_crop)
    assert out.decoders == {"dali": 2, "pillow": 5}
    expected = reference(encoded, random_crop)
    for row in range(1, 6):
        assert np.array_equal(out.images[row], expected.images[row])
    assert np.array_equal(out.geometry, expected.geometry)


def test_resampling_what_lies_beyond_the_image_is_pillows(dali):
    out = dali.decode(ENCODED, range(6), beyond_and_resampled)
    assert out.decoders == {"pillow": 6}
    expected = PillowDecoder(Resampling(fill=FILL)).decode(ENCODED, range(6), beyond_and_resampled)
    assert differences(out.images, expected.images).max() == 0


def test_samples_that_could_not_be_read_are_left_alone(dali):
    encoded = join_encoded([JPEGS[0], b"", JPEGS[1]], (), {1: OSError("disk gone")})
    out = dali.decode(encoded, range(3), random_crop)
    assert out.images[1] is None and out.failures == {} and out.decoders == {"dali": 2}
    assert all(out.images[row] is not None for row in (0, 2))


def test_an_image_that_the_transform_cannot_take_fails_alone(dali):
    def picky(rows, widths, heights):
        if (np.asarray(rows) % 5 == 2).any():
            raise ValueError("the crop is larger than the image")
        return random_crop(rows, widths, heights)

    out = dali.decode(ENCODED, range(12), picky)
    assert sorted(out.failures) == [2, 7]
    assert all("larger than the image" in str(error) for error in out.failures.values())
    undisturbed = dali.decode(ENCODED, range(12), random_crop)
    for row in set(range(12)) - {2, 7}:
        assert np.array_equal(out.images[row], undisturbed.images[row])


def test_odd_and_broken_files_among_good_ones(dali, real_data):
    """All conformance files between good ones. Verdicts are Pillow's, but for scans whose lines all decode and whose
    end Pillow dislikes (see the module's docstring)."""
    entries = json.loads((real_data / "jpeg-conformance/manifest.json").read_text())
    odd = [(real_data / "jpeg-conformance" / entry["file"]).read_bytes() for entry in entries]
    parts = [part for i, data in enumerate(odd) for part in (data, JPEGS[i % len(JPEGS)])]
    encoded = batch(*parts)
    out = dali.decode(encoded, range(len(parts)), random_crop)
    expected = reference(encoded, random_crop)
    assert set(out.failures) <= set(expected.failures)
    assert len(set(expected.failures) - set(out.failures)) <= 5
    near = [row for row in range(len(parts)) if expected.images[row] is not None]
    everything, inside = rim_and_inside([out.images[row] for row in near], [expected.images[row] for row in near], 1)
    assert everything.mean() < 0.25 and np.percentile(inside, 99.9) <= 2
    good = batch(*(part for i, part in enumerate(parts) if i % 2))

    def same_crops(rows, widths, heights):
        return random_crop([2 * row + 1 for row in rows], widths, heights)

    for i, image in enumerate(dali.decode(good, range(len(good)), same_crops).images):
        assert np.array_equal(image, out.images[2 * i + 1])


def test_accepts_is_decided_by_the_header():
    assert all(accepts(read_header(jpeg)) for jpeg in JPEGS)
    assert accepts(read_header(JPEGS[0] + bytes(30)))
    assert not accepts(None)
    for refused in ("truncated", "header only", "text", "empty"):
        assert not accepts(read_header(bad_images()[refused]))
    at = JPEGS[0].index(b"\xff\xc0")
    for sof, bits in ((0xC1, 12), (0xC3, 8), (0xC9, 8)):
        assert not accepts(read_header(JPEGS[0][:at] + bytes([0xFF, sof, 0, 17, bits]) + JPEGS[0][at + 5 :]))
    bomb = JPEGS[0][: at + 5] + b"\xff\xff\xff\xff" + JPEGS[0][at + 9 :]
    assert read_header(bomb).width == 65535 and not accepts(read_header(bomb))


def test_tasks_are_as_large_as_still_gives_each_thread_one():
    assert decoder(threads=2, max_rows=64).rows_per_task(ENCODED) == 32
    assert decoder(threads=4, max_rows=64).rows_per_task(ENCODED) == 16
    assert decoder(threads=16, max_rows=64).rows_per_task(ENCODED) == 8
    assert decoder(threads=1, max_rows=512).rows_per_task(ENCODED) == 32
    assert decoder(threads=3, max_rows=1).rows_per_task(ENCODED) == 8
    assert decoder(threads=3).callers(3) == 3


@pytest.mark.parametrize(
    "resampling",
    [
        Resampling("box"),
        Resampling("hamming"),
        Resampling("nearest", domain="tensor"),
        Resampling("bicubic", antialias=False, domain="tensor"),
    ],
)
def test_filters_that_dali_does_not_have_are_refused(resampling):
    assert unsupported(resampling)
    with pytest.raises(ConfigError, match='decoder="pillow"'):
        DaliDecoder(threads=1, resampling=resampling, max_rows=8, fallback=PillowDecoder(resampling))


def test_without_dali_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert "cannot be imported" in available()
    with pytest.raises(MissingDependencyError, match=r"gpuload\[dali\]"):
        decoder()


def test_importing_the_module_imports_no_dali():
    run("import sys, gpuload.decode.dali\nassert not any(m.startswith('nvidia') for m in sys.modules)")


def test_a_closed_decoder_says_so():
    made = decoder()
    made.decode(ENCODED, range(2), random_crop)
    made.close()
    made.close()
    with pytest.raises(EpochCancelledError, match="closed"):
        made.decode(ENCODED, range(2), random_crop)


def test_close_lets_calls_in_flight_end():
    made = decoder(threads=3)
    ended = []

    def work() -> None:
        try:
            while True:
                ended.append(len(made.decode(ENCODED, range(8), random_crop).images))
        except EpochCancelledError:
            ended.append(-1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(ended) < 6:
        threads[0].join(0.01)
    made.close()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert ended.count(-1) == 3 and set(ended) == {8, -1}


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {here!r})
from test_dali import ENCODED, checksum, decoder, random_crop
made = decoder()
first = [checksum(i) for i in made.decode(ENCODED, range(8), random_crop).images]
def loop():
    while True:
        made.decode(ENCODED, range(37), random_crop)
"""


def run(code: str, **names: str) -> str:
    """What the code prints, in an interpreter of its own, which must end well and say nothing on stderr."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "state",
    [
        "",
        "made.close()",
        "held = made.decode(ENCODED, range(8), random_crop)",
        "for _ in range(3): threading.Thread(target=loop, daemon=True).start()\ntime.sleep(0.2)",
    ],
    ids=["idle", "closed", "images held", "calls in flight"],
)
def test_the_interpreter_exits_quietly(state):
    run(SCRIPT.format(here=str(Path(__file__).parent)) + state)


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_starts_clean(busy):
    """The child exits as usual, the inherited decoder says that it is closed, a new one gives the same pixels."""
    start = "threading.Thread(target=loop, daemon=True).start()\ntime.sleep(0.1)\n" if busy else ""
    fork = """
from gpuload.core.errors import EpochCancelledError
pid = os.fork()
if pid == 0:
    try:
        made.decode(ENCODED, range(2), random_crop)
    except EpochCancelledError:
        print("closed", flush=True)
    again = [checksum(i) for i in decoder().decode(ENCODED, range(8), random_crop).images]
    sys.exit(0 if again == first else 1)
deadline = time.monotonic() + 30
while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
    if time.monotonic() > deadline:
        os.kill(pid, 9)
    time.sleep(0.01)
print(ended[1])
assert [checksum(i) for i in made.decode(ENCODED, range(8), random_crop).images] == first
"""
    assert run(SCRIPT.format(here=str(Path(__file__).parent)) + start + fork).split() == ["closed", "0"]
