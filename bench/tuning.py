"""Does the tuner's model tell the truth, and is what it chooses as good as what an exhaustive search finds?

Command:  python -m bench.tuning [--json FILE] [--only NAME,...] [--seconds 3] [--photos DIR]
Machine:  stands in every line of the JSON file, with versions and commit.
Result:   a line a pipeline. Code 0 where all bounds hold, else 1.
Explanation: docs/tuning.md.

Each pipeline is a data set and a consumer that something is the matter with, on the real engine with real threads, in
a process of its own. Storage is a `get_encoded` that sleeps; images are JPEGs made in memory, or the photographs of
--photos (GPULOAD_DATA's). For each: `gpuload tune`'s search, its prediction beside a run of its own (bound: 15%); a
loader that tunes itself, from its 200th batch on, beside the best of a grid of fixed settings, the two in turn (bound:
0.95); and how long a 30 ms step waits under what the same search recommends for it (bound: 1%, where the machine can
feed it: the best setting is 1.1 times as fast).
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms

from gpuload import EncodedImage, Limits, Setting, ShardDataset
from gpuload.cli.bench.machine import this_machine, versions
from gpuload.cli.tune.consumer import timed
from gpuload.cli.tune.measure import Session, Tuned, run
from gpuload.cli.tune.search import search, within

PREDICTED_WITHIN, OF_BEST, STARVED = 0.15, 0.95, 0.01
FEEDS = 1.1  # times the step's rate that a loader must make alone to be asked for 1% starved
SETTLED_AFTER = 200  # batches
ROUNDS = 3  # of the loader that tunes itself and the best fixed setting, in turn


class Made:
    """A data set of one JPEG. latency_s: what reading one takes, jittered by `jitter` of it; link: reads at once.

    slow_from: reads without latency before it begins.
    """

    encoded_thread_safe = True

    def __init__(
        self, size: tuple[int, int], *, out: int, latency_s: float = 0.0, jitter: float = 0.0, link: int = 0,
        slow_from: int | None = None, transform: Any = None,
    ):  # fmt: skip
        small = np.random.default_rng(0).integers(0, 256, (max(2, size[1] // 12), max(2, size[0] // 12), 3), np.uint8)
        data = io.BytesIO()
        Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(data, "jpeg", quality=90)
        self.data, self.latency_s, self.jitter, self.slow_from = data.getvalue(), latency_s, jitter, slow_from
        self.link = threading.Semaphore(link) if link else None
        self.reads = itertools.count()
        crop = [transforms.RandomResizedCrop(out), transforms.RandomHorizontalFlip()]
        self.transform = transforms.Compose([*(crop if out else []), transforms.ToTensor(), *(transform or [])])

    def __len__(self) -> int:
        return 1 << 20

    def get_encoded(self, index: int) -> tuple[EncodedImage, int]:
        latency_s = self.latency_s
        if self.slow_from is not None and next(self.reads) < self.slow_from:
            latency_s = 0.0
        if latency_s:
            waits_s = latency_s * (random.lognormvariate(0, self.jitter) if self.jitter else 1.0)
            if self.link is None:
                time.sleep(waits_s)
            else:
                with self.link:
                    time.sleep(waits_s)
        return EncodedImage(self.data), index

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.data))), index


class Sleeping:
    """An operation that waits, as one that asks a server."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, image: Any) -> Any:
        time.sleep(self.seconds)
        return image


@dataclass(frozen=True)
class Pipeline:
    """step_ms: of the consumer; memory: bytes for batches ahead; cores: how many the process may use."""

    what: str
    make: Callable[[], Any]
    batch_size: int = 32
    step_ms: float = 10.0
    jitter: float = 0.1
    memory: int | None = None
    cores: int | None = None


def small(**more: Any) -> Callable[[], Made]:
    return lambda: Made((320, 240), **{"out": 64, **more})


PIPELINES = {
    "local": Pipeline("no latency", small(out=96), step_ms=20),
    "slow storage": Pipeline("2 ms an image", small(latency_s=0.002), step_ms=12),
    "jittery storage": Pipeline("2 ms, log-normal, sigma 1", small(latency_s=0.002, jitter=1.0), step_ms=20),
    "full link": Pipeline("2 ms, 6 reads at once", small(latency_s=0.002, link=6), step_ms=8),
    "slow decode": Pipeline("1600 x 1200", lambda: Made((1600, 1200), out=224), batch_size=16, step_ms=30),
    "tiny images": Pipeline("32 x 32", lambda: Made((32, 32), out=0), batch_size=256, step_ms=2),
    "small batches": Pipeline("batches of 4", small(out=96), batch_size=4, step_ms=3),
    "jittery consumer": Pipeline("steps of 25 ms, 60% jitter", small(out=96), step_ms=25, jitter=0.6),
    "only takes": Pipeline("a consumer without a step", small(out=96), step_ms=0.0),
    "one core": Pipeline("one core, 0.5 ms an image", small(latency_s=0.0005), step_ms=30, cores=1),
    "tight memory": Pipeline("room for 3 batches", small(latency_s=0.002), step_ms=20, memory=3 * 32 * 3 * 64 * 64 * 4),
    "slow from mid-run": Pipeline("1 ms an image from batch 200 on", small(latency_s=0.001, slow_from=1 << 40)),
    "waiting transform": Pipeline("an operation that waits 2 ms", small(transform=[Sleeping(0.002)]), step_ms=30),
}


def photographs(where: str) -> Pipeline:
    train = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
                                transforms.ToTensor()])  # fmt: skip
    return Pipeline("the photographs", lambda: ShardDataset(where, transform=train), batch_size=32, step_ms=40)


@dataclass(frozen=True)
class Row:
    """One pipeline's figures; images/s but where a name says otherwise. feedable: the last bound is asked for."""

    pipeline: str
    what: str
    chosen: str
    predicted: float
    verified: float
    first_guess: float
    first_measured: float
    online: float
    online_setting: str
    best_fixed: float
    best_setting: str
    settings_tried: int
    starved_30ms: float
    step_30ms: str
    feedable: bool

    @property
    def missed(self) -> list[str]:
        found = []
        if abs(self.predicted / self.verified - 1) > PREDICTED_WITHIN:
            found.append(f"predicted {self.predicted / self.verified - 1:+.0%}")
        if self.online < OF_BEST * self.best_fixed:
            found.append(f"online {self.online / self.best_fixed:.2f} of the best")
        if self.feedable and self.starved_30ms > STARVED:
            found.append(f"starved {self.starved_30ms:.1%}")
        return found

    def __str__(self) -> str:
        starved = f"{self.starved_30ms:.1%}" if self.feedable else f"({self.starved_30ms:.1%})"
        return (
            f"{self.pipeline:24} predicted {self.predicted:7.0f}  verified {self.verified:7.0f} "
            f"({self.predicted / self.verified - 1:+4.0%})  online {self.online:7.0f} = "
            f"{self.online / self.best_fixed:.2f} of {self.best_fixed:7.0f}  starved at 30 ms {starved:>8}"
            f"{'   MISSED: ' + ', '.join(self.missed) if self.missed else ''}"
        )


def measured(name: str, pipeline: Pipeline, seconds: float) -> Row:
    """All of one pipeline's figures, in this process."""
    if pipeline.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: pipeline.cores])
    consumer, data = timed(pipeline.step_ms, pipeline.jitter), pipeline.make()
    tuned = Tuned(data, pipeline.batch_size, {"device": "cpu", "entropy_index": "off"})
    with_itself = Session(tuned.loader(within(tuned, pipeline.memory)), consumer)
    with_itself.take(SETTLED_AFTER)
    if getattr(data, "slow_from", None) is not None:
        data.slow_from = 0
        with_itself.take(SETTLED_AFTER)
    with_itself.rest()
    found = search(tuned, consumer, seconds=seconds, memory_bytes=pipeline.memory)
    tried = {setting: run(tuned.loader(setting), consumer, seconds=seconds / 3) for setting in grid(found.limits)}
    best = max(tried, key=lambda setting: tried[setting].images_per_s)
    fixed = Session(tuned.loader(best), consumer)
    rates: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for session, into in zip((with_itself, fixed), rates, strict=True):
            session.fill()
            into.append(session.measure(seconds).images_per_s)
            session.rest()
    online_setting = with_itself.setting
    for session in (with_itself, fixed):
        session.close()
    for_30ms = search(tuned, timed(30.0, 0.1), seconds=seconds, memory_bytes=pipeline.memory)
    alone = max(found.together.images_per_s, median(rates[1]))
    choice = found.rounds[min(1, len(found.rounds) - 1)]
    return Row(
        pipeline=name,
        what=pipeline.what,
        chosen=str(found.chosen.setting),
        predicted=found.chosen.images_per_s,
        verified=found.verified.images_per_s,
        first_guess=choice.prediction.images_per_s,
        first_measured=choice.run.images_per_s,
        online=median(rates[0]),
        online_setting=str(online_setting),
        best_fixed=median(rates[1]),
        best_setting=str(best),
        settings_tried=len(tried),
        starved_30ms=for_30ms.verified.starved,
        step_30ms=str(for_30ms.chosen.setting),
        feedable=alone >= FEEDS * pipeline.batch_size / 0.030,
    )


def grid(allowed: Limits) -> list[Setting]:
    """Fixed settings within the limits: few and many fetch threads, decode threads and batches ahead."""
    cores = int(allowed.cores)
    threads = sorted({1, cores, 8 * cores})
    asked = [
        Setting(fetch, decode, depth)
        for fetch, depths in ((2, (2, 4, 12, 40)), (8, (12, 40)), (32, (40,)))
        for decode in threads
        for depth in depths
    ]
    return sorted({allowed.clipped(setting) for setting in asked})


def in_processes(names: Sequence[str], asked: argparse.Namespace) -> Iterator[Row]:
    """Each pipeline in a process of its own, since one sets its affinity, and threads of a former one may linger."""
    for name in names:
        done = subprocess.run(
            [sys.executable, "-m", "bench.tuning", "--one", name, "--seconds", str(asked.seconds), "--photos",
             str(asked.photos)],
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{name}: its process ended with code {done.returncode}")
        yield Row(**json.loads(done.stdout.splitlines()[-1]))


def main(argv: Sequence[str]) -> int:
    """Prints the rows and appends each as a JSON line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="append a line a pipeline here")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--photos", default=photos_here(), help="a folder of photographs")
    parser.add_argument("--only", default="", help="comma-separated names of pipelines")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    pipelines = {**PIPELINES, **({"photographs": photographs(asked.photos)} if asked.photos else {})}
    if asked.one:
        sys.stdout.write(json.dumps(asdict(measured(asked.one, pipelines[asked.one], asked.seconds))) + "\n")
        return 0
    names = [name.strip() for name in asked.only.split(",") if name.strip()] or list(pipelines)
    unknown = [name for name in names if name not in pipelines]
    if unknown:
        parser.error(f"no pipeline {', '.join(unknown)}; there are {', '.join(pipelines)}")
    sys.stdout.write(f"{this_machine()}\n")
    rows = []
    for row in in_processes(names, asked):
        rows.append(row)
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        if asked.json is not None:
            at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            line = {**asdict(row), "missed": row.missed, "seconds": asked.seconds, "machine": asdict(this_machine()),
                    "versions": versions(), "at": at}  # fmt: skip
            with asked.json.open("a") as out:
                out.write(json.dumps(line) + "\n")
    return 1 if any(row.missed for row in rows) else 0


def photos_here() -> str:
    """GPULOAD_DATA's, "" without."""
    where = os.environ.get("GPULOAD_DATA", "")
    return str(Path(where) / "photos") if where else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
