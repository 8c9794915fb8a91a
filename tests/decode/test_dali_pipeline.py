"""DALI's graph on both devices: the GPU's by DALI's own checks, which need no GPU, the CPU's by its pixels."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from gpuload.core.geometry import Resampling
from gpuload.decode.dali_pipeline import (
    DaliDeviceError,
    DaliPipeline,
    DaliSettings,
    Output,
    RunError,
    graph,
    regions,
    run_around_bad,
)
from gpuload.decode.jpeg_header import read_header
from tests.decode.test_dali import JPEGS, broken_tables, crop_only, random_crop, resize_then_centre

FILTERS = ["nearest", "nearest-exact", "bilinear", "bicubic", "lanczos"]
ARRAYS = [np.frombuffer(jpeg, np.uint8) for jpeg in JPEGS]


def planned(geometry, resampling: Resampling) -> np.ndarray:
    headers = [read_header(jpeg) for jpeg in JPEGS]
    widths, heights = (np.array([getattr(h, side) for h in headers], np.int64) for side in ("width", "height"))
    return regions(geometry(range(len(JPEGS)), widths, heights), widths, heights, resampling)


@pytest.mark.full
@pytest.mark.parametrize("decode_regions", [True, False])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_the_gpus_graph_passes_dalis_own_checks(interpolation, decode_regions):
    """Operators, argument names, types and devices: all that DALI checks before it needs a GPU."""
    settings = DaliSettings(decode_regions, hw_decoder_load=0.375)
    made = graph(Resampling(interpolation), device="gpu", rows=128, threads=3, settings=settings, channels=4)
    told = made.serialize()
    assert (b"DecoderSlice" in told or b"ImageSlice" in told) == decode_regions
    for wanted in (b"mixed", b"gpu", b"Resize", b"Pad", b"jpeg_fancy_upsampling", b"hw_decoder_load", b"roi_start"):
        assert wanted in told, wanted
    assert np.float32(0.375).tobytes() in told


@pytest.mark.full
def test_dalis_checks_are_ones_that_can_fail():
    """What the test above relies on: a graph with an operator on the wrong device is refused without a GPU."""
    from nvidia.dali import Pipeline, fn, types

    made = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with pytest.raises((RuntimeError, ValueError, KeyError)):
        with made:
            jpegs = fn.external_source(name="jpegs", dtype=types.DALIDataType.UINT8, ndim=1)
            made.set_outputs(fn.resize(fn.decoders.image(jpegs, device="mixed"), device="cpu", size=[8, 8]))
        made.serialize()
    with pytest.raises((RuntimeError, ValueError, KeyError)):
        with made:
            made.set_outputs(fn.decoders.image(jpegs, device="mixed", hw_decoder_lode=0.5))
        made.serialize()


@pytest.mark.full
@pytest.mark.parametrize("geometry", [crop_only, random_crop, resize_then_centre])
def test_a_slice_cut_from_a_whole_image_gives_the_same_pixels(geometry):
    """So whether regions are decoded is a question of speed alone; the fourth byte is 0."""
    want = planned(geometry, Resampling())
    found = []
    for decode_regions in (True, False):
        settings = DaliSettings(decode_regions)
        made = DaliPipeline(graph(Resampling(), device="cpu", rows=64, threads=2, settings=settings, channels=4))
        found.append(Output(0, len(ARRAYS), made.run(ARRAYS, want)).arrays())
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)
        assert a.shape[2] == 4 and not a[:, :, 3].any() and a[:, :, :3].any()


@pytest.mark.full
@pytest.mark.parametrize("geometry", [random_crop, crop_only])  # all alike, all different
def test_addresses_are_where_the_images_are(geometry):
    made = DaliPipeline(graph(Resampling(), device="cpu", rows=64, threads=2, settings=DaliSettings(), channels=4))
    output = Output(0, len(ARRAYS), made.run(ARRAYS, planned(geometry, Resampling())))
    found = output.addresses()
    assert found.dtype == np.int64
    assert found.tolist() == [image.__array_interface__["data"][0] for image in output.arrays()]


class RunsButFor:
    """A pipeline that gives up on a run with one of these numbers in it, and says so."""

    def __init__(self, bad: set[int], problem: str = "Failed to decode a sample"):
        self.bad, self.problem, self.runs = bad, problem, 0

    def run(self, jpegs, planned):
        self.runs += 1
        if self.bad & set(jpegs):
            raise RunError(self.problem)
        return list(jpegs)


@pytest.mark.parametrize("bad", [set(), {0}, {46}, {5, 6, 30}, set(range(47))])
def test_a_run_is_halved_until_every_bad_image_is_alone(bad):
    pipeline = RunsButFor(bad)
    outputs = list(run_around_bad(pipeline, list(range(47)), np.arange(47)))
    assert [i for o in outputs for i in range(o.begin, o.begin + o.count)] == list(range(47))
    assert {o.begin for o in outputs if o.tensors is None} == bad
    assert all(o.tensors == list(range(o.begin, o.begin + o.count)) for o in outputs if o.tensors is not None)
    assert pipeline.runs <= 1 + 12 * len(bad)


@pytest.mark.parametrize(
    "problem",
    [
        "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered",
        "CUDA driver API error CUDA_ERROR_OUT_OF_MEMORY (2)",
        "CUDA allocation failed",
        "Can't allocate 123456 bytes on device 0.",
    ],
)
def test_a_failing_gpu_is_not_taken_for_bad_images(problem):
    pipeline = RunsButFor({3}, problem)
    with pytest.raises(DaliDeviceError, match="lower batch_size") as told:
        list(run_around_bad(pipeline, list(range(8)), np.arange(8)))
    assert problem.splitlines()[0] in str(told.value) and pipeline.runs == 1


@pytest.mark.full
def test_real_runs_are_usable_after_bad_images():
    made = DaliPipeline(graph(Resampling(), device="cpu", rows=64, threads=2, settings=DaliSettings()))
    want = planned(random_crop, Resampling())

    def sums(jpegs):
        outputs = list(run_around_bad(made, jpegs, want))
        images = [image for o in outputs for image in (o.arrays() if o.tensors is not None else [None])]
        return [None if image is None else zlib.crc32(np.ascontiguousarray(image)) for image in images]

    good = sums(ARRAYS)
    rows = random.Random(2).sample(range(len(ARRAYS)), 5)
    bad = [np.frombuffer(broken_tables(jpeg), np.uint8) if i in rows else ARRAYS[i] for i, jpeg in enumerate(JPEGS)]
    assert sums(bad) == [None if i in rows else s for i, s in enumerate(good)]
    assert sums(ARRAYS) == good and None not in good
