"""The process in which one loader lives: `python -m gpuload.cli.bench.worker`, a JSON line in, a JSON line out.

Owns the loop over commands and the clock readings. Which loader does what when is `run.py`'s; the process's memory
is watched from outside (`process.py`), so that nothing here competes with the loader.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, replace
from typing import Any, TextIO

from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import DataKind, files_of, pil_rgb, read_plainly
from gpuload.cli.bench.gil import GilMeter
from gpuload.cli.bench.measure import Epoch
from gpuload.cli.bench.page_cache import evict


class Worker:
    """One loader, built when told. Every public method is a command; its result goes back as JSON."""

    def __init__(self) -> None:
        self.loader: Any = None

    def open(self, name: str, setting: dict[str, Any], spawned_s: float, transform: str, images: int) -> dict[str, Any]:
        """Builds the loader on the first `images` samples and runs one epoch. spawned_s: wall clock of the parent."""
        import torch

        self.name = name
        self.transform = transform
        self.setting = subjects.Setting(**{**setting, "data": DataKind(**_tuples(setting["data"]))})
        torch.set_num_threads(max(1, self.setting.workers))
        labels = subjects.labels(self.setting)
        self.count, self.classes = len(labels), 1 + max(labels)
        self.build(images)
        epoch = self.run_epoch(0.0)
        packed_s = getattr(self.loader, "packed_s", 0.0)
        cold_start_s = time.time() - spawned_s - (epoch.ended_s - epoch.arrivals_s[0]) - packed_s
        return {
            "images": self.count, "classes": self.classes, "cold_start_s": cold_start_s, "epoch": asdict(epoch),
            "plan": self.plan(),
        }  # fmt: skip

    def build(self, images: int) -> dict[str, Any]:
        """The loader for rounds of `images` samples: all of them, as often as fits, in an order that all share."""
        import numpy as np

        shuffled = np.random.default_rng(self.setting.seed).permutation(self.count)
        self.indices = np.resize(shuffled, images).tolist()
        self.loader = None  # the former one's processes end before new ones start
        self.loader = subjects.build(
            self.name, self.setting, transform=self.transform, indices=self.indices, shuffle=True
        )
        return {"packed_s": getattr(self.loader, "packed_s", 0.0)}

    def warm_up(self) -> dict[str, Any]:
        """One epoch of the loader alone: workers started, code compiled, files in the page cache."""
        return {"epoch": asdict(self.run_epoch(0.0))}

    def gil(self) -> dict[str, Any]:
        """One epoch of the loader alone: its images, and the CPU seconds under the GIL, of all CPU seconds."""
        with GilMeter() as meter:
            epoch = self.run_epoch(0.0)
        return {"images": sum(epoch.images), "held_s": meter.held_s, "cpu_s": meter.cpu_s, "looks": meter.looks}

    def plan(self) -> str:
        """What the loader says it does, "" for loaders that say nothing."""
        plan = getattr(self.loader, "plan", None)
        return str(plan()) if plan is not None else ""

    def check(self, images: int) -> dict[str, Any]:
        """Mean absolute difference to Pillow, in levels of 255, of the evaluation transform on the first samples."""
        import numpy as np

        setting, count = self.setting, min(images, self.count)
        few = replace(setting, batch_size=count)
        loader = subjects.build(self.name, few, transform="eval", indices=range(count), shuffle=False)
        got, labels = next(iter(loader))
        mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (subjects.MEAN, subjects.STD))
        levels = (got.float().cpu().numpy() * std + mean) * 255
        truth = read_plainly(setting.data, lambda image: _evaluated(image, setting.size), pil_rgb)
        samples = [truth[i] for i in range(count)]
        each = [float(np.abs(mine - image).mean()) for mine, (image, _) in zip(levels, samples, strict=True)]
        wrong = sum(int(mine) != label for mine, (_, label) in zip(labels, samples, strict=True))
        return {"mean": float(np.mean(each)), "worst": max(each), "images": count, "wrong_labels": wrong}

    def round(self, step_s: float) -> dict[str, Any]:
        """One epoch of the loader alone, then one under a timed step of `step_s`."""
        before_s = _cpu_s()
        alone = self.run_epoch(0.0)
        cpu_s = _cpu_s() - before_s
        stepped = self.run_epoch(step_s)
        return {
            "alone": asdict(alone), "stepped": asdict(stepped), "cpu_s": cpu_s,
            "torch_device_bytes": _torch_device_bytes(self.setting.device),
        }  # fmt: skip

    def cold(self) -> dict[str, Any]:
        """One epoch of the loader alone after its files left the page cache; `cached`: the share that stayed."""
        files = getattr(self.loader, "files", None) or files_of(self.setting.data, self.indices)
        cached = evict(files)
        return {"epoch": asdict(self.run_epoch(0.0)), "cached": cached}

    def storage(self, **arguments: Any) -> dict[str, Any]:
        """Time to the first batch and to the others from a URL; arguments as storage_run.timed's."""
        from gpuload.cli.bench.storage_run import timed

        return asdict(timed(**arguments))

    def train(self, **arguments: Any) -> dict[str, Any]:
        """Trains a model on the loader's batches; arguments as training.train's."""
        from gpuload.cli.bench.training import train

        return asdict(train(self.loader, device=self.setting.device, classes=self.classes, **arguments))

    def run_epoch(self, step_s: float) -> Epoch:
        sync = _synchroniser(self.setting.device)
        arrivals_s: list[float] = []
        waits_s: list[float] = []
        images: list[int] = []
        clock = time.perf_counter
        started_s = ended_s = clock()
        iterator = iter(self.loader)
        while True:
            asked_s = clock()
            batch = next(iterator, None)
            if batch is None:
                return Epoch(started_s, arrivals_s, waits_s, images, ended_s)
            sync()
            now_s = clock()
            arrivals_s.append(now_s)
            waits_s.append(now_s - asked_s)
            images.append(len(batch[0]))
            del batch
            if step_s:
                time.sleep(step_s)
            ended_s = clock()


def _synchroniser(device: str) -> Any:
    """Waits until what the current stream was given is done: only then is a CUDA batch really there."""
    if device != "cuda":
        return lambda: None
    import torch

    return lambda: torch.cuda.current_stream().synchronize()


def _torch_device_bytes(device: str) -> int:
    """The most that torch's allocator ever took of the GPU in this process."""
    if device != "cuda":
        return 0
    import torch

    return int(torch.cuda.max_memory_reserved())


def _evaluated(image: Any, size: int) -> Any:
    """Resize and CenterCrop by Pillow and NumPy alone: float32 (3, size, size), levels of 255."""
    import numpy as np
    from PIL import Image

    shorter, (width, height) = size * 256 // 224, image.size
    scaled = (shorter, shorter * height // width) if width <= height else (shorter * width // height, shorter)
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in scaled)
    return np.asarray(image.crop((left, top, left + size, top + size)), np.float32).transpose(2, 0, 1)


def _cpu_s() -> float:
    """User and system seconds of this process and of all that it started."""
    import psutil

    me = psutil.Process()
    total_s = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answers each line of `commands` until "close" or the end."""
    worker = Worker()
    for line in commands:
        command = json.loads(line)
        what = command.pop("do")
        if what == "close":
            return
        try:
            answer = getattr(worker, what)(**command)
        except Exception as error:  # a loader that fails is a row of the table, not the end of the run
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    # A library that prints must not write into the answers: these keep the real standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
