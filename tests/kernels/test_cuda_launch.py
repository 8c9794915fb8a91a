"""Launching: what is asked of CUDA's libraries, in words where they are missing, and on a GPU where there is one.

Without a GPU two stand-ins take CuPy's and Numba's places. They record what they are asked for, and refuse what the
real ones refuse: a call without a current context, a stream that is no int, an argument that isn't of eight bytes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from gpuload.kernels import cuda_launch, cuda_source, decode_segments
from gpuload.kernels.cuda_launch import (
    LEAST_BLOCKS,
    MOST_BLOCKS,
    THREADS,
    CudaKernels,
    GpuKernelsError,
    Installed,
    blocks_for,
    cuda_kernels,
    cure,
    problem,
)

from tests.kernels.segment_batch import SegmentBatch, batch_of, every_kind

ROOT = Path(__file__).resolve().parents[2]
WELL = Installed("14.2.0", 13, "0.30.4", 13, 13000, False)


def test_the_grid_has_a_thread_for_every_item_and_less_than_a_block_too_many():
    for items in (0, 1, 63, 64, 65, 128, 12_345_678, MOST_BLOCKS * 64):
        assert 0 <= blocks_for(items, 64) * 64 - items < 64
    for items in (-64, MOST_BLOCKS * 64 + 1):
        with pytest.raises(ValueError, match="blocks"):
            blocks_for(items, 64)


@pytest.mark.parametrize(
    ("found", "cuda_major", "said"),
    [
        (WELL, 13, ""),
        (replace(WELL, bindings_major=0), 13, ""),
        (replace(WELL, driver=13020), 13, ""),
        (Installed("13.6.0", 12, "0.20.1", 12, 12040, False), 12, ""),
        (Installed("13.6.0", 12, "0.20.1", 12, 13000, False), 12, ""),
        (replace(WELL, cupy="", cupy_major=0), 13, r"CuPy is missing: pip install 'gpuload\[cuda13\]'"),
        (replace(WELL, cupy="", cupy_major=0), 12, r"CuPy is missing: pip install 'gpuload\[cuda12\]'"),
        (replace(WELL, numba_cuda=""), 13, r"numba-cuda is missing: pip install 'gpuload\[cuda13\]'"),
        (replace(WELL, simulator=True), 13, "NUMBA_ENABLE_CUDASIM is set, .*: unset it"),
        (WELL, 12, r"CuPy 14.2.0 is for CUDA 13 .* uninstall cupy-cuda13x, then pip install 'gpuload\[cuda12\]'"),
        (replace(WELL, bindings_major=12), 13, r".* cuda-bindings for CUDA 12 .* 13: pip install 'gpuload\[cuda13\]'"),
        (replace(WELL, driver=0), 13, "there is no NVIDIA driver: .*"),
        (replace(WELL, driver=12080), 13, r".* for CUDA 12.8 .* update the driver to 580, or .* gpuload\[cuda12\]"),
    ],
)
def test_what_is_missing_is_said_with_its_cure(found: Installed, cuda_major: int, said: str):
    assert re.fullmatch(said, problem(found, cuda_major))


def test_errors_of_compilers_are_told_with_a_cure():
    newer = RuntimeError("[222] CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
    assert cure(newer, WELL, 13).endswith("pip install -U nvidia-nvjitlink")
    assert cure(newer, WELL, 12).endswith("pip install -U nvidia-nvjitlink-cu12")
    odd = AttributeError("module 'numba.cuda.types' has no attribute 'NPDatetime'")
    assert "numba-cuda 0.30.4 does not fit numba" in cure(odd, WELL, 13)
    assert "pip install -U 'gpuload[cuda13]'" in cure(OSError("libnvvm.so"), WELL, 13)


def test_without_cupy_and_numba_cuda_the_error_names_the_extra():
    program = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "numba_cuda") or name.startswith("numba.cuda"):
            raise ImportError(f"blocked: {name}")
sys.meta_path.insert(0, Blocked())
from gpuload.kernels.cuda_launch import GpuKernelsError, cuda_kernels
try:
    cuda_kernels(0, 13)
except GpuKernelsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CuPy is missing: pip install 'gpuload[cuda13]'" in done.stdout


class Recorder:
    """What both stand-ins know: launches, and each thread's pushed contexts and CuPy stream."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.compiled: list[str] = []
        self.here = threading.local()
        self.broken = ""

    def record(self, name: str, grid: int, block: int, stream: Any, arguments: tuple[Any, ...]) -> None:
        assert all(type(argument) is int for argument in arguments)
        if self.broken:
            raise RuntimeError(self.broken)
        self.launches.append((self.device(), name, grid, block, stream, arguments))

    def device(self) -> int:
        assert self.here.pushed, "no current context"
        return int(self.here.pushed[-1])


class ReusableContext:
    """Numba's `gpus[i]`: entered many times, by many threads."""

    def __init__(self, recorder: Recorder, device: int):
        self.recorder, self.device = recorder, device

    def __enter__(self) -> None:
        here = self.recorder.here
        here.pushed = [*getattr(here, "pushed", []), self.device]

    def __exit__(self, *_: object) -> None:
        self.recorder.here.pushed.pop()


def numba_stand_in(recorder: Recorder) -> SimpleNamespace:
    class Configured:
        def __init__(self, name: str):
            self.name = name

        def __getitem__(self, launch: tuple[int, int, Any]) -> Any:
            return lambda *arguments: recorder.record(self.name, *launch, arguments)

    def jit(signature: str, lto: bool) -> Any:
        def compile_(function: Any) -> Configured:
            recorder.device()
            count = signature.removeprefix("void(").removesuffix(")").split(", ")
            assert count == function.__code__.co_argcount * ["int64"] and not lto
            name = function.__name__.removeprefix("_")
            recorder.compiled.append(name)
            return Configured(name)

        return compile_

    def external_stream(pointer: int) -> tuple[str, int]:
        assert recorder.device() is not None and type(pointer) is int and pointer
        return "numba", pointer

    return SimpleNamespace(
        gpus=[ReusableContext(recorder, device) for device in range(3)],
        jit=jit,
        external_stream=external_stream,
        legacy_default_stream=lambda: ("numba", 0),
    )


def cupy_stand_in(recorder: Recorder, with_from_external: bool) -> SimpleNamespace:
    class Stream:
        def __init__(self, pointer: int):
            self.pointer = pointer

        def __enter__(self) -> None:
            recorder.here.stream = ("cupy", self.pointer)

        def __exit__(self, *_: object) -> None:
            recorder.here.stream = None

    class Kernel:
        def __init__(self, name: str):
            self.name, self.is_compiled = name, False

        def compile(self) -> None:
            recorder.device()
            recorder.compiled.append(self.name)
            self.is_compiled = True

        def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[int, ...]) -> None:
            assert self.is_compiled
            recorder.record(self.name, *grid, *block, recorder.here.stream, arguments)

    class RawModule:
        def __init__(self, *, code: str, options: tuple[str, ...]):
            assert options == cuda_source.OPTIONS
            self.code = code

        def get_function(self, name: str) -> Kernel:
            assert "__global__" in self.code
            return Kernel(name)

    Stream.null = Stream(0)  # type: ignore[attr-defined]
    if with_from_external:
        Stream.from_external = staticmethod(lambda other: Stream(other.__cuda_stream__()[1]))  # type: ignore[attr-defined]
    streams = SimpleNamespace(Stream=Stream, ExternalStream=lambda pointer, device: Stream(pointer))
    return SimpleNamespace(RawModule=RawModule, cuda=streams)


@pytest.fixture(params=[True, False], ids=["CuPy 14", "CuPy 13"])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    stand_in = numba_stand_in(recorder)
    monkeypatch.setattr(numba, "cuda", stand_in, raising=False)
    monkeypatch.setattr(decode_segments, "cuda", stand_in, raising=False)
    monkeypatch.setitem(sys.modules, "numba.cuda", stand_in)
    monkeypatch.setitem(sys.modules, "cupy", cupy_stand_in(recorder, request.param))
    monkeypatch.setattr(cuda_launch, "installed", lambda: WELL)
    monkeypatch.setattr(cuda_launch, "_made", {})
    return recorder


def test_all_kernels_are_compiled_on_their_device_before_the_first_launch(recorder: Recorder):
    kernels = CudaKernels(1, 13)
    every_name = {*decode_segments.cuda_entries(), *(name for names in cuda_source.NAMES.values() for name in names)}
    assert sorted(recorder.compiled) == sorted(every_name) and recorder.launches == []
    assert recorder.here.pushed == []
    for name in every_name:
        kernels.launch(name, 1, 1, 2, stream=7)
    assert [launch[:2] for launch in recorder.launches] == [(1, name) for name in every_name]
    assert "device=1" in repr(kernels)


def test_a_launch_is_its_items_in_blocks_and_its_arguments_as_integers(recorder: Recorder):
    kernels = CudaKernels(0, 13)
    items = 64 * 1000 + 1
    kernels.launch("decode_segments", items, np.int32(items), np.uint64(1 << 40), stream=9)
    kernels.launch("lay_out_images", 3, 3, 0, stream=9)
    kernels.launch("to_rgb", items, np.int16(5), items, 1 << 40, stream=9)
    kernels.launch("to_rgb", 1, 1, 1, stream=0)
    kernels.launch("build_tables", 1, 1, stream=0)
    block = cuda_source.BLOCK
    assert recorder.launches == [
        (0, "decode_segments", 1001, THREADS, ("numba", 9), (items, 1 << 40)),
        (0, "lay_out_images", LEAST_BLOCKS, THREADS, ("numba", 9), (3, 0)),
        (0, "to_rgb", -(-items // block), block, ("cupy", 9), (5, items, 1 << 40)),
        (0, "to_rgb", 1, block, ("cupy", 0), (1, 1)),
        (0, "build_tables", LEAST_BLOCKS, THREADS, ("numba", 0), (1,)),
    ]


def test_no_items_are_no_launch(recorder: Recorder):
    CudaKernels(0, 13).launch("to_rgb", 0, 1, 0, stream=9)
    assert recorder.launches == []


def test_a_stream_is_taken_over_once(recorder: Recorder):
    kernels = CudaKernels(0, 13)
    for _ in range(3):
        kernels.launch("build_tables", 1, 1, stream=9)
    assert len({id(launch[4]) for launch in recorder.launches}) == 1


def test_what_cuda_refuses_names_the_kernel_and_an_unknown_name_is_a_mistake(recorder: Recorder):
    kernels = CudaKernels(2, 13)
    recorder.broken = "[719] CUDA_ERROR_LAUNCH_FAILED"
    for name in ("decode_segments", "to_rgb"):
        with pytest.raises(GpuKernelsError, match=f"device 2 did not take {name} for 5 items: RuntimeError: .719"):
            kernels.launch(name, 5, 5, stream=9)
        assert recorder.here.pushed == []
    with pytest.raises(ValueError, match="no kernel is named 'decode'"):
        kernels.launch("decode", 5, 5, stream=9)


def test_a_device_is_compiled_for_once_whoever_asks(recorder: Recorder):
    found: list[CudaKernels] = []
    threads = [threading.Thread(target=lambda: found.append(cuda_kernels(1, 13))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and len(found) == 4
    assert len(recorder.compiled) == len(set(recorder.compiled))
    assert cuda_kernels(0, 13) is not found[0]


def test_a_compiler_that_fails_is_a_clear_error(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise AttributeError("no attribute 'NPDatetime'")

    monkeypatch.setattr(numba.cuda, "jit", broken)
    with pytest.raises(GpuKernelsError, match="device 0: AttributeError: no attribute .* does not fit numba"):
        cuda_kernels(0, 13)


class OnDevice:
    """Host arrays' copies on the GPU, through CuPy."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[np.ndarray, Any]] = {}

    def address_of(self, array: np.ndarray) -> int:
        import cupy

        if id(array) not in self.held:
            self.held[id(array)] = array, cupy.asarray(array.view(np.uint8))
        return int(self.held[id(array)][1].data.ptr)

    def fetch(self) -> None:
        for array, copy in self.held.values():
            array.view(np.uint8)[:] = copy.get()


def run_on_gpu(batch: SegmentBatch) -> None:
    """On a stream of its own, from copies and back."""
    import cupy
    import torch

    kernels, device = cuda_kernels(0, int(str(torch.version.cuda).split(".")[0])), OnDevice()
    with cupy.cuda.Stream(non_blocking=True) as stream:

        def launch(name: str, items: int, *arguments: int) -> None:
            kernels.launch(name, items, items, *arguments, stream=stream.ptr)

        batch.run(launch, device.address_of)
        stream.synchronize()
        device.fetch()
    for array in batch.written():
        array.assert_untouched_beside()


@pytest.mark.gpu
@pytest.mark.parametrize("spacing", [1, 5, 1000])
def test_segments_decode_on_the_gpu_as_on_the_cpu(spacing: int):
    files = every_kind(restarts=7)
    batch = batch_of(files, [None] * len(files), spacing)
    run_on_gpu(batch)
    for image in range(len(files)):
        batch.assert_is_expected(image)


@pytest.mark.gpu
def test_any_thread_launches_on_its_own_stream():
    files = every_kind()
    failed: list[BaseException] = []

    def work(spacing: int) -> None:
        try:
            for seed in range(5):
                batch = batch_of(files, [None] * len(files), spacing, seed)
                run_on_gpu(batch)
                for image in range(len(files)):
                    batch.assert_is_expected(image)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(spacing,)) for spacing in (3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@pytest.mark.gpu
def test_damage_on_the_gpu_stays_within_its_image():
    files = every_kind(restarts=3)
    batch = batch_of(files, [None] * len(files), 4)
    mine = batch.segments["byte"][batch.segments["image"] == 3]
    batch.data[mine[0] : mine[-1]] = np.random.default_rng(0).integers(0, 256, mine[-1] - mine[0])
    run_on_gpu(batch)
    assert batch.status.values[3] > 0
    for image in set(range(len(files))) - {3}:
        batch.assert_is_expected(image)
