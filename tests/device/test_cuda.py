"""The three rules of CudaDevice against a simulated GPU, and on the real one where there is one."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

import gpuload
from gpuload.core.batch import TensorSpec
from gpuload.core.errors import ConfigError, GpuloadError
from gpuload.device.cuda import CudaDevice, make_device, resolve
from gpuload.device.host import HostDevice, Outgoing
from tests.conformance.sample_data import image_folder, write_images
from tests.device.simulated import GARBAGE, HostWaitedError, SimulatedGpu

SPEC = TensorSpec((3, 5, 7), "float32")
CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu() -> SimulatedGpu:
    return SimulatedGpu()


def device_on(gpu: SimulatedGpu, keep: int = 2) -> CudaDevice:
    return CudaDevice(CUDA, keep=keep, runtime=gpu)


def filled(device: Any, value: int, rows: int = 4, spec: TensorSpec = SPEC) -> Any:
    memory = device.image_memory(spec, rows)
    memory.array[:] = value
    return [memory.tensor, torch.full((rows,), value)]


def test_a_batch_is_ready_on_the_stream_that_it_was_handed_over_to(gpu: SimulatedGpu):
    device = device_on(gpu)
    sent = device.send(Outgoing(filled(device, 3)))
    assert sent.batch[0].view(torch.uint8).eq(GARBAGE).all()  # nothing has run: nobody has waited
    images, labels = device.hand_over(sent, deque())
    assert torch.equal(gpu.read(images), torch.full((4, 3, 5, 7), 3.0))
    assert torch.equal(gpu.read(labels), torch.full((4,), 3))
    assert gpu.copies == 2


def test_the_simulation_shows_a_batch_used_without_its_hand_over(gpu: SimulatedGpu):
    """The checks of these tests, checked."""
    device = device_on(gpu)
    images = device.send(Outgoing(filled(device, 3))).batch[0]
    with pytest.raises(AssertionError, match="record_stream"):
        gpu.read(images)
    gpu.record_stream(images, gpu.current_stream())
    assert not torch.equal(gpu.read(images), torch.full((4, 3, 5, 7), 3.0))
    with pytest.raises(HostWaitedError):
        gpu.current_stream().synchronize()


def test_host_memory_is_kept_and_not_reused_until_its_copy_has_happened(gpu: SimulatedGpu):
    device = device_on(gpu, keep=8)
    sent = [device.send(Outgoing(filled(device, value))) for value in range(6)]  # all are under way: none has run
    for value, one in enumerate(sent):
        assert torch.equal(gpu.read(device.hand_over(one, deque())[0]), torch.full((4, 3, 5, 7), float(value)))


def test_host_memory_comes_back_after_its_copy(gpu: SimulatedGpu):
    device = device_on(gpu, keep=8)
    seen = set()
    for _ in range(12):
        memory = device.image_memory(SPEC, 4)
        seen.add(memory.tensor.data_ptr())
        sent = device.send(Outgoing([memory.tensor]))
        del memory
        gpu.read(device.hand_over(sent, deque())[0])
    assert len(seen) <= 3


def test_a_batch_that_is_never_handed_over_costs_nothing_but_its_memory(gpu: SimulatedGpu):
    device = device_on(gpu)
    dropped = device.send(Outgoing(filled(device, 1)))
    del dropped
    images, _ = device.hand_over(device.send(Outgoing(filled(device, 2))), deque())
    assert torch.equal(gpu.read(images), torch.full((4, 3, 5, 7), 2.0))


def test_each_consumer_thread_is_served_on_its_own_stream(gpu: SimulatedGpu):
    device, seen = device_on(gpu), []
    sent = [device.send(Outgoing(filled(device, value))) for value in (5, 6)]

    def consume(one: Any, value: float) -> None:
        images, _ = device.hand_over(one, deque())
        seen.append(bool(gpu.read(images).eq(value).all()))

    for one, value in zip(sent, (5, 6), strict=True):
        thread = threading.Thread(target=consume, args=(one, value))
        thread.start()
        thread.join()
    assert seen == [True, True]
    assert len({name for _, name in gpu.recorded}) == 2


def test_what_a_users_collate_fn_made_on_its_own_stream_is_ready_too(gpu: SimulatedGpu):
    device = device_on(gpu)
    on_their_host, on_host, seen = torch.full((4,), 7.0), torch.full((2,), 5.0), []
    theirs = gpu.copy(on_their_host, gpu.current_stream())
    sent = device.send(Outgoing([theirs, on_host], foreign=True))

    def consume() -> None:
        seen.extend(gpu.read(tensor) for tensor in device.hand_over(sent, deque()))

    thread = threading.Thread(target=consume)  # another stream is current there
    thread.start()
    thread.join()
    assert torch.equal(seen[0], torch.full((4,), 7.0)) and torch.equal(seen[1], on_host)


class Reported:
    """A job that decodes nothing and reports `status` of its one row."""

    upload_bytes = scratch_bytes = 16
    status = slice(0, 4)
    rows = np.zeros(1, np.int64)

    def __init__(self, status: int):
        self._status = status

    def write(self, upload: np.ndarray) -> None:
        upload[:4] = np.array([self._status], np.int32).view(np.uint8)

    def launch(self, launcher: Any, upload: int, scratch: int, output: Any) -> None:
        ctypes.memmove(scratch, upload, 4)


@pytest.mark.parametrize("ready", [True, False])
def test_an_anomaly_costs_its_own_batch_and_no_other(gpu: SimulatedGpu, ready: bool):
    """Known by the time of the hand-over: that batch is not given. Not known: it is told before the next is taken."""
    device, unjudged = device_on(gpu, keep=8), deque[Any]()

    def made(number: int) -> Any:
        def judge(status: np.ndarray) -> None:
            if status.any():
                raise GpuloadError(f"batch {number}")

        memory = device.image_memory(SPEC, 1)
        done = device.complete(Reported(int(number == 2)), lambda: memory, SPEC, np.zeros(1, np.int64), judge)
        return device.send(Outgoing([done.images], verdicts=(done.verdict,)))

    sent = [made(number) for number in range(4)]
    if ready:
        for stream in gpu.streams:
            stream.advance(len(stream.operations))
    delivered, told = [], []
    for number, one in enumerate(sent):
        try:
            device.judge(unjudged, wait=False)
        except GpuloadError as error:
            told.append((number, str(error)))
        try:
            gpu.read(device.hand_over(one, unjudged)[0])
            delivered.append(number)
        except GpuloadError as error:
            told.append((number, str(error)))
    device.judge(unjudged, wait=True)
    assert delivered == ([0, 1, 3] if ready else [0, 1, 2, 3])
    assert told == [(2 if ready else 3, "batch 2")]


def test_a_job_is_held_until_what_it_launched_is_done(gpu: SimulatedGpu):
    """DALI's pixels are its own: let go earlier, they would be written over under the kernel that reads them."""
    device = device_on(gpu)
    memory = device.image_memory(SPEC, 1)
    done = device.complete(Reported(0), lambda: memory, SPEC, np.zeros(1, np.int64), lambda status: None)
    gc.collect()
    device.judge(deque([done.verdict]), wait=True)


@pytest.mark.parametrize("mixing", [None, gpuload.MixUp(num_classes=3)])
def test_a_batch_that_is_sent_twice_for_want_of_room_is_collated_once(
    gpu: SimulatedGpu, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, mixing: Any
):
    """`skip` moves rows in place, and the host mixes in place: neither twice."""
    write_images(tmp_path)
    (tmp_path / "ant" / "001.jpg").write_bytes(b"no image")
    options: dict[str, Any] = {"batch_size": 5, "num_workers": 1, "decoder": "pillow", "on_error": "skip", "seed": 3}
    options |= {"order": "sequential", "batch_transform": mixing, "device": "cpu"}
    expected = list(gpuload.DataLoader(image_folder(tmp_path), **options))
    refused = threading.Event()

    def second_batch_once() -> Exception | None:
        if gpu.copies != 2 or refused.is_set():
            return None
        refused.set()
        return torch.OutOfMemoryError("full")

    gpu.fails, gpu.launches = second_batch_once, False  # type: ignore[misc]
    monkeypatch.setattr("gpuload.wiring.make_device", lambda *args, **kwargs: device_on(gpu, keep=4))
    loader = gpuload.DataLoader(image_folder(tmp_path), **options, accelerate="require")
    batches = iter(loader)
    assert refused.wait(20)  # while the first one is there to be taken
    for (images, labels), (cpu_images, cpu_labels) in zip(batches, expected, strict=True):
        assert torch.equal(gpu.read(images), cpu_images) and torch.equal(gpu.read(labels), cpu_labels)


def test_what_is_no_tensor_or_is_elsewhere_already_stays_as_it_is(gpu: SimulatedGpu):
    device = device_on(gpu)
    elsewhere = torch.empty(3, device="meta")
    batch = {"image": filled(device, 1)[0], "names": ["a", "b"], "extra": (elsewhere, None, 4)}
    out = device.hand_over(device.send(Outgoing(batch)), deque())
    assert out["names"] == ["a", "b"] and out["extra"][0] is elsewhere and out["extra"][1:] == (None, 4)
    assert gpu.copies == 1


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_types_and_layouts_arrive_as_they_were_filled(gpu: SimulatedGpu, dtype: str, channels_last: bool):
    device = device_on(gpu)
    memory = device.image_memory(TensorSpec((3, 5, 7), dtype, channels_last), 3)
    values = torch.arange(3 * 105).reshape(3, 3, 5, 7).remainder(200).to(getattr(torch, dtype))
    bits = values.view(torch.int16).numpy().view(np.uint16) if "16" in dtype else values.numpy()
    memory.array[:] = bits
    (images,) = device.hand_over(device.send(Outgoing([memory.tensor])), deque())
    assert torch.equal(gpu.read(images), values)
    assert images.dtype is getattr(torch, dtype)
    assert images.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_loader_on_the_device_gives_the_cpus_batches(
    gpu: SimulatedGpu, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, threads: int, on_error: str
):
    write_images(tmp_path)
    if on_error == "skip":
        (tmp_path / "ant" / "000.jpg").write_bytes(b"no image")
    data = image_folder(tmp_path)
    options: dict[str, Any] = {"batch_size": 5, "num_workers": threads, "decoder": "pillow", "on_error": on_error}
    expected = list(gpuload.DataLoader(data, device="cpu", **options))
    monkeypatch.setattr("gpuload.wiring.make_device", lambda *args, **kwargs: device_on(gpu, keep=4))
    loader = gpuload.DataLoader(data, device="cpu", accelerate="require", **options)
    for _ in range(2):
        held = list(loader)
        assert len(held) == len(expected)
        for (images, labels), (cpu_images, cpu_labels) in zip(held, expected, strict=True):
            assert torch.equal(gpu.read(images), cpu_images)
            assert torch.equal(gpu.read(labels), cpu_labels)


def test_what_device_means(monkeypatch: pytest.MonkeyPatch):
    assert resolve("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="'xpu'"):
        resolve("xpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="nvidia-smi"):
        resolve("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve("auto") == resolve("cuda") == torch.device("cuda", 1)
    assert resolve("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="there are 2 GPUs"):
        resolve("cuda:2")


def test_a_rank_that_stays_on_gpu_0_is_warned(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "0")
    resolve("auto")
    monkeypatch.setenv("LOCAL_RANK", "3")
    resolve("cuda:0")  # asked for by number: meant
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"torch\.cuda\.set_device\(3\)"):
        resolve("auto")


def test_a_process_forked_from_one_that_used_cuda_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.warns(UserWarning, match="go to the CPU.*forked"):
        assert resolve("auto") == torch.device("cpu")
    assert resolve("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match='"spawn"'):
        resolve("cuda")


def test_the_device_is_resolved_when_iteration_starts(tmp_path: Any):
    write_images(tmp_path)
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: asking for one is no error")
    loader = gpuload.DataLoader(image_folder(tmp_path), device="cuda:0", decoder="pillow")
    with pytest.raises(ConfigError, match="finds no usable CUDA GPU"):
        iter(loader)


def test_make_device_on_the_cpu():
    assert isinstance(make_device(torch.device("cpu"), keep=1, pinned=False), HostDevice)


@pytest.mark.gpu
@pytest.mark.parametrize("channels_last", [False, True])
def test_real_copies_arrive_on_the_consumers_stream(channels_last: bool):
    device = make_device(CUDA, keep=3, pinned=False)
    spec = TensorSpec((3, 224, 224), "float32", channels_last)
    side = torch.cuda.Stream()
    sums = []
    with torch.cuda.stream(side):
        for value in range(40):
            images, labels = device.hand_over(device.send(Outgoing(filled(device, value, 64, spec))), deque())
            assert images.device == CUDA and images.is_contiguous(
                memory_format=torch.channels_last if channels_last else torch.contiguous_format
            )
            sums.append((images.double().mean(), labels.double().mean()))
            del images, labels
    torch.cuda.synchronize()
    assert [(a.item(), b.item()) for a, b in sums] == [(float(v), float(v)) for v in range(40)]


@pytest.mark.gpu
def test_a_real_loader_gives_the_cpus_batches(tmp_path: Any):
    write_images(tmp_path)
    data = image_folder(tmp_path)
    options: dict[str, Any] = {"batch_size": 5, "num_workers": 2, "decoder": "pillow", "accelerate": "require"}
    expected = list(gpuload.DataLoader(data, device="cpu", **options))
    held = list(gpuload.DataLoader(data, device="cuda:0", **options))
    assert len(held) == len(expected)
    for (images, labels), (cpu_images, cpu_labels) in zip(held, expected, strict=True):
        assert images.device == labels.device == CUDA
        assert torch.equal(images.cpu(), cpu_images) and torch.equal(labels.cpu(), cpu_labels)
