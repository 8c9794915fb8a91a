"""Batches in the order of streams: right wherever and whenever they are read, and nothing waits for that on the host.

    default stream, side stream  every batch, read by the consumer's current stream and held by nothing but its order
    held                         batches kept over two epochs, while a side stream and later batches keep the GPU busy
    held back                    the default stream is far behind the host, and batches are dropped before it read them
    sync debug                   torch raises where anything calls what synchronises the host, on any thread
    calls                        the CUDA calls of an epoch by the profiler: waits on the host, and copies, a batch

Owns these, and how a profiler's trace is read. The consumer's loop itself never waits: sums stay on the GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.gpu_batches import same_bits
from bench.gpu_loaders import loader, shards
from bench.gpu_section import Bench, Row

BATCH = 64
SYNCHRONISING = (
    "StreamSynchronize", "DeviceSynchronize", "CtxSynchronize", "EventSynchronize", "cudaMemcpy", "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
)  # fmt: skip
"""Calls that wait on the host, by the ends of their names in the runtime ("cuda") and the driver ("cu")."""

LAUNCH = "LaunchKernel"
CALLS = ("cuda_runtime", "cuda_driver")
"""A trace's categories of calls."""

WAITS_PER_BATCH = 0.1
"""While batches are made and taken: what allocates, or the profiler itself, may wait once."""

COPIES_PER_BATCH = 2.0
"""To the device: the upload, and the labels."""


def rows(bench: Bench) -> Iterator[Row]:
    yield bench.tried("default stream", lambda: read_on(bench, torch.cuda.default_stream()))
    yield bench.tried("side stream", lambda: read_on(bench, torch.cuda.Stream()))
    yield bench.tried("held", lambda: held(bench))
    yield bench.tried("held back", lambda: held_back(bench))
    yield bench.tried("sync debug", lambda: sync_debug(bench))
    yield bench.tried("calls", lambda: calls(bench))


def truth_of(bench: Bench) -> list[torch.Tensor]:
    """The images of every batch, from the CPU."""
    return [images for images, _ in loader(_dataset(bench), threads=bench.threads, batch_size=BATCH, device="cpu")]


def on_gpu(bench: Bench, **options: Any) -> Any:
    return loader(_dataset(bench), threads=bench.threads, batch_size=BATCH, device="cuda", **options)


def _dataset(bench: Bench) -> Any:
    return shards(bench.shards, "eval")


def _wrong(mine: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> int:
    return sum(not same_bits(tensor, true) for tensor, true in zip(mine, truth, strict=True))


def read_on(bench: Bench, stream: Any) -> Row:
    """Copies made on the consumer's stream at once, looked at only when the epoch is over."""
    truth = truth_of(bench)
    with torch.cuda.stream(stream):
        copies = [images.clone() for images, _ in on_gpu(bench)]
    torch.cuda.synchronize()
    wrong = _wrong(copies, truth)
    return {"passed": wrong == 0, "batches": len(truth), "wrong": wrong}


def held(bench: Bench) -> Row:
    """Two epochs' batches, and what a side stream made of each behind matrix products."""
    truth = truth_of(bench)
    busy = torch.cuda.Stream()
    matrix = torch.randn(4096, 4096, device="cuda")
    kept: list[torch.Tensor] = []
    batches = on_gpu(bench)
    for _ in range(2):
        for images, _labels in batches:
            busy.wait_stream(torch.cuda.current_stream())  # the consumer's duty, as with any tensor
            with torch.cuda.stream(busy):
                for _ in range(8):
                    matrix = (matrix @ matrix).clamp(-1, 1)
                images.record_stream(busy)
                used = images.mul(1.0)
            kept += [images, used]
    torch.cuda.synchronize()
    wrong = _wrong(kept, [images for images in truth * 2 for _ in range(2)])
    return {"passed": wrong == 0, "held": len(kept), "wrong": wrong}


def held_back(bench: Bench) -> Row:
    """The host runs ahead of the GPU: each batch is dropped while the kernel that will read it still waits."""
    truth = truth_of(bench)
    matrix = torch.randn(4096, 4096, device="cuda")
    copies = []
    for images, _labels in on_gpu(bench):
        for _ in range(16):
            matrix = (matrix @ matrix).clamp(-1, 1)
        copies.append(images.clone())
        del images, _labels
    torch.cuda.synchronize()
    wrong = _wrong(copies, truth)
    return {"passed": wrong == 0, "batches": len(truth), "wrong": wrong}


def _sums(batches: Any) -> list[torch.Tensor]:
    """One epoch, whose sums stay where the batches are."""
    return [images.sum(dtype=torch.float64) + labels.sum() for images, labels in batches]


def sync_debug(bench: Bench) -> Row:
    """A first epoch allocates, which may wait; the second must not."""
    batches = on_gpu(bench)
    first = _sums(batches)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = _sums(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return {"passed": same, "batches": len(second)}


def calls(bench: Bench) -> Row:
    """What an epoch, the second, calls for each batch. At its end the loader may wait, for what the GPU says of it."""
    batches = on_gpu(bench)
    count = len(_sums(batches))
    events = profiled(lambda: _sums(batches))
    called = counted(events)
    if not called:
        return {"passed": None, "left_out": "the profiler saw no CUDA calls: CUPTI is missing, or not permitted here"}
    waited, copies = waits(events), copied(events)
    up = copies.get("HtoD", Copies(0, 0))
    few = sum(waited.values()) <= WAITS_PER_BATCH * count
    return {
        "passed": few and 0 < up.count <= COPIES_PER_BATCH * count,
        "batches": count,
        "waits_per_batch": sum(waited.values()) / count,
        "waits": waited,
        "waits_with_the_epochs_end": sum(n for name, n in called.items() if name.endswith(SYNCHRONISING)),
        "copies_to_gpu_per_batch": up.count / count,
        "bytes_to_gpu_per_image": up.bytes / len(batches.dataset),
        "copies": {kind: copy.count for kind, copy in copies.items()},
        "launches_per_batch": sum(n for name, n in called.items() if LAUNCH in name) / count,
    }


def profiled(run: Callable[[], Any]) -> list[Mapping[str, Any]]:
    """The events of torch's profiler while `run` ran, on all threads, and until the GPU had done what it was given."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[Mapping[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def counted(events: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """How often each function of CUDA's runtime and driver was called, in a trace's events."""
    return Counter(event["name"] for event in events if event.get("cat") in CALLS)


def waits(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How often what waits on the host was called between an epoch's first and last launch, by name."""
    made = [event for event in events if event.get("cat") in CALLS]
    launched = [event["ts"] for event in made if LAUNCH in event["name"]]
    waiting = (event for event in made if event["name"].endswith(SYNCHRONISING))
    first, last = min(launched, default=0), max(launched, default=0)
    return dict(Counter(event["name"] for event in waiting if first < event["ts"] < last))


@dataclass(frozen=True)
class Copies:
    count: int
    bytes: int


def copied(events: Sequence[Mapping[str, Any]]) -> dict[str, Copies]:
    """The copies that the GPU made, by direction: "HtoD", "DtoH", "DtoD". A trace names them "Memcpy HtoD (...)"."""
    found: dict[str, Copies] = {}
    for event in events:
        if event.get("cat") == "gpu_memcpy":
            kind = event["name"].split()[1]
            before = found.get(kind, Copies(0, 0))
            found[kind] = Copies(before.count + 1, before.bytes + int(event.get("args", {}).get("bytes", 0)))
    return found
