"""Should decode threads share one DALI pipeline or own one each, and what remains of DALI's own random crop?

Command:  python -m bench.dali_pipeline [FOLDER] [--threads 2] [--rounds 7]
          FOLDER: JPEGs at any depth; $GPULOAD_DATA/photos where not given.
Machine:  printed first.
Result:   2 cores of an AMD EPYC (Zen 4) shared with other work, DALI 2.4, 334 ImageNet photographs, medians of 7:
          DALI's own random crop   190 images/s (165 to 545), 2.00 ms of CPU an image
          one pipeline, shared     235 images/s (185 to 506), 2.06 ms
          a pipeline a thread      215 images/s (149 to 565), 2.04 ms
          Four threads wanted each core meanwhile: the rates say little, the CPU time is what to compare.
Explanation: the CPU time is the same within 3%, though DALI's own crop also flips and normalises
          in it. So nothing is lost where each caller has a pipeline of one thread (gpuload/decode/dali.py), and it is
          simpler: no queue of runs shared by callers, no thread that waits for the last image of a batch, a bad image
          stops one caller's task, and a caller's Python runs while its own DALI thread is idle.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import queue
import resource
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BATCH, SIZE, BATCHES = 64, 224, 12


@dataclass(frozen=True)
class Photos:
    """jpegs: encoded, uint8 each. crops: int32 (n, 4) as (y, x, h, w), RandomResizedCrop's distribution."""

    jpegs: Sequence[np.ndarray]
    crops: np.ndarray


def read_photos(folder: Path) -> Photos:
    rng = np.random.default_rng(0)
    jpegs, crops = [], []
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")):
        data = path.read_bytes()
        width, height = Image.open(io.BytesIO(data)).size
        area, ratio = width * height * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = min(width, max(1, round(np.sqrt(area * ratio)))), min(height, max(1, round(np.sqrt(area / ratio))))
        jpegs.append(np.frombuffer(data, np.uint8))
        crops.append((rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w))
    if not jpegs:
        raise SystemExit(f"{folder} holds no JPEGs: name a folder that does")
    return Photos(jpegs, np.array(crops, np.int32))


def pipeline(*, rows: int, threads: int, depth: int, own_crops: bool) -> Any:
    from nvidia.dali import Pipeline, fn, types

    made = Pipeline(batch_size=rows, num_threads=threads, device_id=None, prefetch_queue_depth=depth)
    decoding: dict[str, Any] = {"device": "cpu", "output_type": types.DALIImageType.RGB, "adjust_orientation": False}
    with made:
        jpegs = fn.external_source(name="jpegs", dtype=types.DALIDataType.UINT8, ndim=1, no_copy=True)
        if own_crops:
            pixels = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1], **decoding)
        else:
            start, shape = (
                fn.external_source(name=n, dtype=types.DALIDataType.INT32, ndim=1) for n in ("start", "shape")
            )
            pixels = fn.decoders.image_slice(jpegs, start=start, shape=shape, axis_names="HW", **decoding)
        output: Any = fn.resize(
            pixels, size=[SIZE, SIZE], interp_type=types.DALIInterpType.INTERP_LINEAR, antialias=True
        )
        if own_crops:
            mean, std = ([255 * v for v in values] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
            flips = fn.random.coin_flip(probability=0.5)
            output = fn.crop_mirror_normalize(output, output_layout="CHW", mean=mean, std=std, mirror=flips)
        made.set_outputs(output)
    made.build()
    return made


def feed(made, photos: Photos, ids: Sequence[int], *, own_crops: bool) -> None:
    made.feed_input("jpegs", [photos.jpegs[i] for i in ids])
    if not own_crops:
        made.feed_input("start", np.ascontiguousarray(photos.crops[ids, :2]))
        made.feed_input("shape", np.ascontiguousarray(photos.crops[ids, 2:]))


def end_run(made) -> np.ndarray:
    (output,) = made.share_outputs()
    made.release_outputs()
    return np.asarray(output.as_tensor())


def one_pipeline(photos: Photos, batches: Sequence[Sequence[int]], threads: int, *, own_crops: bool):
    """Two batches under way, all DALI threads on each. Returns what runs them all and calls `take` with each result."""
    made = pipeline(rows=BATCH, threads=threads, depth=2, own_crops=own_crops)

    fresh = True

    def run(take: Callable[[int, np.ndarray], None]) -> None:
        nonlocal fresh
        for ahead in batches[:2]:
            feed(made, photos, ahead, own_crops=own_crops)
        made.schedule_run()
        if not fresh:  # DALI's first one starts as many runs as the queue is deep
            made.schedule_run()
        fresh = False
        for number in range(len(batches)):
            pixels = end_run(made)
            if number + 2 < len(batches):
                feed(made, photos, batches[number + 2], own_crops=own_crops)
                made.schedule_run()
            take(number, pixels)

    return run


def own_pipelines(photos: Photos, batches: Sequence[Sequence[int]], threads: int):
    """Each thread takes the next part of a batch to a pipeline of its own. Returns what one_pipeline does."""
    rows = -(-BATCH // threads)
    made = [pipeline(rows=rows, threads=1, depth=1, own_crops=False) for _ in range(threads)]

    def run(take: Callable[[int, np.ndarray], None]) -> None:
        tasks: queue.SimpleQueue = queue.SimpleQueue()
        for number, ids in enumerate(batches):
            for at in range(0, BATCH, rows):
                tasks.put((number, ids[at : at + rows]))

        def work(mine) -> None:
            while True:
                try:
                    number, ids = tasks.get_nowait()
                except queue.Empty:
                    return
                feed(mine, photos, ids, own_crops=False)
                mine.schedule_run()
                take(number, end_run(mine))

        callers = [threading.Thread(target=work, args=(mine,)) for mine in made]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    return run


def checksums(run) -> dict[int, list[int]]:
    """Of every image, by batch and sorted: parts of a batch end in any order."""
    found: dict[int, list[int]] = {}
    run(lambda number, pixels: found.setdefault(number, []).extend(zlib.crc32(image) for image in pixels))
    return {number: sorted(sums) for number, sums in found.items()}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("GPULOAD_DATA", ".")) / "photos")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args(arguments)
    photos = read_photos(asked.folder)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, len(photos.jpegs), BATCH).tolist() for _ in range(BATCHES)]
    ways = {
        "DALI's own random crop": one_pipeline(photos, batches, asked.threads, own_crops=True),
        "one pipeline, shared": one_pipeline(photos, batches, asked.threads, own_crops=False),
        "a pipeline a thread": own_pipelines(photos, batches, asked.threads),
    }
    told = [checksums(run) for name, run in ways.items() if name != "DALI's own random crop"]
    if told[0] != told[1]:
        print("the two ways to run the same crops give different pixels: not timed")
        return 1
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, {asked.threads} threads, {len(photos.jpegs)} photographs")
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu_ms: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(asked.rounds):
        for name, run in ways.items():
            began, used = time.perf_counter(), cpu_s()
            run(lambda number, pixels: None)
            rates[name].append(BATCH * BATCHES / (time.perf_counter() - began))
            cpu_ms[name].append((cpu_s() - used) / (BATCH * BATCHES) * 1e3)
    for name in ways:
        low, middle, high = min(rates[name]), statistics.median(rates[name]), max(rates[name])
        cpu = statistics.median(cpu_ms[name])
        print(f"{name:<24} {middle:6.0f} images/s ({low:.0f} to {high:.0f}), {cpu:.2f} ms of CPU an image")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
