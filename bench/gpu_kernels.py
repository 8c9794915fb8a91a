"""Each kernel of the GPU path on real batches against its CPU twin, and its time against its bound.

The twin is the same source on this host: Numba's loops, and the CUDA C++ by g++. Both sides get the same memory and
carry out the job's launches one by one; after each the whole memory must be the same, byte for byte, what the kernel
should not have touched included. Then the twin's replaces the GPU's, so that a kernel is never blamed for the one
before it. Without g++ the twins are missing, and the batch that comes out is all that is compared.

    KERNEL         over all cases of gpu_jobs.py: launches, bytes that differ, and in which case first
    batch          what came out against the CPU decoder's batch
    bytes          the upload against the encoded bytes of the segments that it holds
    time, KERNEL   a batch of BATCH random crops, by CUDA events; bound: the bytes that it must move, at the rate at
                   which this GPU copies
    times          of the batch

Owns the comparison, the bounds and these rows.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gpuload.kernels.device_batch import IMAGE, SEGMENT
from gpuload.kernels.entropy import LAYOUT_SIZE
from gpuload.kernels.huffman import TABLE_SIZE
from gpuload.kernels.jpeg_header import HUFFMAN_SIZE

from bench.gpu_jobs import Call, Case, GpuSide, HostSide, Plan, Prepared, Side, cases, prepare, some_files
from bench.gpu_loaders import transform
from bench.gpu_machine import copy_bandwidth
from bench.gpu_section import Bench, Row, in_short
from gpuload.core.protocols import Launcher
from gpuload.decode.launching import launcher_on

IMAGES, PHOTOS = 32, 64
BATCH = 256
REPEATS = 11
KERNELS = (
    "build_tables", "lay_out_images", "decode_segments", "transform_blocks", "to_rgb", "fill_weights", "first_pass",
    "store",
)  # fmt: skip
TAIL = ("to_rgb", "fill_weights", "first_pass", "store")
"""From planes to the batch; the others are the decode."""


def rows(bench: Bench) -> Iterator[Row]:
    major = int((torch.version.cuda or "0").split(".")[0])
    compiled = bench.tried("compile", lambda: {"passed": launcher_on(0, major) is not None})
    yield compiled
    if not compiled["passed"]:
        return
    gpu = launcher_on(0, major)
    yield from compared(bench, partial(GpuSide, launcher_on=gpu))
    batch = prepare(Case("times", some_files(bench.classes, BATCH), transform("train"), torch.float32))
    yield bench.tried("bytes", lambda: bytes_row(batch))
    yield from timed(bench, batch, GpuSide(Plan.of(batch).end, gpu))


def name_of(call: Call) -> str:
    """The kernel's name: store_1 to store_8 are one."""
    return "store" if call.name.startswith("store") else call.name


@dataclass
class Found:
    """What became of one kernel, or of the batch. first: the case in which bytes differed first, or what went wrong."""

    launches: int = 0
    wrong_bytes: int = 0
    first: str = ""
    errors: list[str] = field(default_factory=list)

    def add(self, wrong_bytes: int, where: str) -> None:
        self.launches += 1
        self.wrong_bytes += wrong_bytes
        if wrong_bytes and not self.first:
            self.first = where

    def row(self, name: str) -> Row:
        if self.errors:
            return {"row": name, "passed": False, "error": self.errors[0], "launches": self.launches}
        if not self.launches:
            return {"row": name, "passed": None, "left_out": "not launched"}
        first = {"first_in": self.first} if self.first else {}
        right = not self.wrong_bytes
        return {"row": name, "passed": right, "launches": self.launches, "wrong_bytes": self.wrong_bytes, **first}


def twin() -> Launcher | str:
    """The kernels on this host, or why there are none."""
    if shutil.which("g++") is None:
        return "g++ is missing, so there are no CPU twins"
    try:
        from tests.kernels.host_cuda import host_kernels
    except ImportError as error:
        return f"no CPU twins: {error}"
    return host_kernels()


def compared(bench: Bench, side_of: Any) -> Iterator[Row]:
    """A row a kernel, one for the batch. side_of: makes the side that is looked at, given its size in bytes."""
    photos = some_files(bench.photos, PHOTOS) if bench.photos is not None else []
    found = {name: Found() for name in (*KERNELS, "batch")}
    on_host = twin()
    for case in cases(some_files(bench.classes, IMAGES), photos):
        try:
            prepared = prepare(case)
            nbytes = Plan.of(prepared).end
            host = None if isinstance(on_host, str) else HostSide(nbytes, on_host)
            for name, wrong in steps(prepared, side_of(nbytes), host):
                found[name].add(wrong, case.name)
                yield {"row": name, "round": case.name, "passed": wrong == 0, "wrong_bytes": wrong}
        except StepError as error:
            found[error.name].errors.append(f"{case.name}: {error}")
            break  # the device is in no state for another case
        except Exception as error:  # of the host's: a case that cannot be staged, a twin that g++ does not compile
            traceback.print_exc()
            found["batch"].errors.append(f"{case.name}: {in_short(error)}")
    for name in KERNELS:
        yield {"row": name, "passed": None, "left_out": on_host} if isinstance(on_host, str) else found[name].row(name)
    yield found["batch"].row("batch")


class StepError(Exception):
    """A kernel that could not be launched, or did not come to its end."""

    def __init__(self, name: str, error: Exception):
        super().__init__(in_short(error))
        self.name = name


def steps(prepared: Prepared, looked_at: Side, twin: Side | None) -> Iterator[tuple[str, int]]:
    """The kernels in order and how many bytes each got wrong, then "batch" and the wrong bytes of the rows it made."""
    plan = Plan.of(prepared)
    memory = np.zeros(plan.end, np.uint8)
    prepared.job.write(memory[: prepared.job.upload_bytes])
    looked_at.write(memory)
    mine = plan.calls(prepared, looked_at.address)
    if twin is not None:
        twin.write(memory)
        images = 0
        for call, true in zip(mine, plan.calls(prepared, twin.address), strict=True):
            twin.launch(true.name, true.items, *true.arguments)
            _launch(looked_at, call)
            wanted = twin.read()
            wrong = _read(looked_at, call) != wanted
            images = true.items if true.name == "lay_out_images" else images
            for part in unwanted(true, images, memory, twin.address):
                wrong[part] = False
            yield name_of(call), int(wrong.sum())
            looked_at.write(wanted)
        looked_at.write(memory)
    for call in mine:  # once more, all by itself
        _launch(looked_at, call)
    batch = plan.batch(prepared, _read(looked_at, mine[-1]))[prepared.rows]
    expected = prepared.expected[prepared.rows]
    size = expected.dtype.itemsize
    yield "batch", int((batch.view(f"u{size}") != expected.view(f"u{size}")).sum()) * size


def _launch(side: Side, call: Call) -> None:
    try:
        side.launch(call.name, call.items, *call.arguments)
    except Exception as error:
        raise StepError(name_of(call), error) from error


def _read(side: Side, call: Call) -> np.ndarray:
    """Here an address that a kernel got wrong is heard of."""
    try:
        return side.read()
    except Exception as error:
        raise StepError(name_of(call), error) from error


def unwanted(call: Call, images: int, memory: np.ndarray, address: int) -> list[slice]:
    """What decode_segments may leave as it likes: the block of each image that takes what nobody wants, where threads
    write over each other."""
    if call.name != "decode_segments":
        return []
    at, coefficients, last = (call.arguments[i] - address for i in (2, 8, 9))
    ends = memory[at:][: IMAGE.itemsize * (images + 1)].view(IMAGE)["first_block"][1:].tolist()
    blocks = [slice(coefficients + 128 * (end - 1), coefficients + 128 * end) for end in ends]
    return blocks + [slice(last + end - 1, last + end) for end in ends]


def bytes_row(prepared: Prepared) -> Row:
    """What is copied to the GPU for a batch, labels left out."""
    job = prepared.job
    return {
        "passed": None,
        "images": len(prepared.rows),
        "copied_bytes_per_image": job.upload_bytes / len(prepared.rows),
        "touched_bytes_per_image": job.touched_bytes / len(prepared.rows),
        "copied_per_touched": job.upload_bytes / job.touched_bytes,
    }


def moved_bytes(prepared: Prepared, calls: Sequence[Call]) -> dict[str, int]:
    """What each kernel must at least read and write, by device_batch.py's arrays; of a job that is one group."""
    job = prepared.job
    upload = np.zeros(job.upload_bytes, np.uint8)
    job.write(upload)
    items = {name_of(call): call.items for call in calls}
    images = upload[: IMAGE.itemsize * (items["lay_out_images"] + 1)].view(IMAGE)  # the upload begins with them
    totals = images[-1]
    blocks, pixels, middle, weights = (int(totals[f"first_{name}"]) for name in ("block", "pixel", "middle", "weight"))
    return {
        "build_tables": items["build_tables"] * (HUFFMAN_SIZE + 4 * TABLE_SIZE),
        "lay_out_images": items["lay_out_images"] * (IMAGE.itemsize + 4 * LAYOUT_SIZE),
        "decode_segments": job.touched_bytes + items["decode_segments"] * SEGMENT.itemsize + 129 * blocks,
        "transform_blocks": (129 + 64) * blocks,
        "to_rgb": 64 * blocks + 4 * pixels,
        "fill_weights": 4 * weights,
        "first_pass": 4 * (pixels + middle),
        "store": 4 * middle + prepared.expected.nbytes,
    }


def timed(bench: Bench, prepared: Prepared, side: GpuSide) -> Iterator[Row]:
    """The batch REPEATS times over; medians."""
    calls = Plan.of(prepared).calls(prepared, side.address)
    times_s: dict[str, float] = {}

    def measure() -> Row:
        times_s.update(kernel_times_s(prepared, side, calls))
        total_s = sum(times_s.values())
        tail_s = sum(times_s[name] for name in TAIL)
        return {
            "passed": None,
            "images": len(prepared.rows),
            "us": 1e6 * total_s,
            "images_per_s": len(prepared.rows) / total_s,
            "tail_share_of_decode": tail_s / (total_s - tail_s),
        }

    found = bench.tried("times", measure)
    if times_s:
        rate = copy_bandwidth()
        items = {name_of(call): call.items for call in calls}
        for name, nbytes in moved_bytes(prepared, calls).items():
            yield {
                "row": f"time, {name}",
                "passed": None,
                "us": 1e6 * times_s[name],
                "bound_us": 1e6 * nbytes / rate,
                "times_the_bound": times_s[name] * rate / nbytes,
                "bytes": nbytes,
                "items": items[name],
                "ns_per_item": 1e9 * times_s[name] / items[name],
            }
    yield found


def kernel_times_s(prepared: Prepared, side: GpuSide, calls: Sequence[Call]) -> dict[str, float]:
    """Seconds of GPU time of each kernel, medians."""
    memory = np.zeros(Plan.of(prepared).end, np.uint8)
    prepared.job.write(memory[: prepared.job.upload_bytes])
    side.write(memory)
    matrix = torch.ones(8192, 8192, device="cuda")
    taken_s: dict[str, list[float]] = {name: [] for name in KERNELS}
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        # Some milliseconds, in which all launches are queued: else the host's own time would be in theirs.
        torch.mm(matrix, matrix)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            side.launch(call.name, call.items, *call.arguments)
            event.record()
        torch.cuda.synchronize()
        for call, (begin, end) in zip(calls, pairwise(events), strict=True):
            taken_s[name_of(call)].append(begin.elapsed_time(end) / 1e3)
    return {name: float(np.median(values)) for name, values in taken_s.items() if values}
