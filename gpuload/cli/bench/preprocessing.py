"""CPU against GPU preprocessing: what an image takes of each, where they cross, what it costs. Pure arithmetic.

Owns the model. A side takes host seconds an image, spread over the cores, and GPU seconds a batch and an image; both
overlap, so the slower one sets the rate. Its numbers come from a comparison's rows, or from gpu_prediction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpuload.cli.bench import gpu_prediction
from gpuload.cli.bench.run import Outcome, Row

MODELS: Mapping[str, float] = {"ResNet-50": 8000.0, "ResNet-18": 17000.0, "AlexNet": 70000.0}
"""Images/s that one H100 or H200 trains at, the middle of what is published (MLPerf Training and vendors' tables)."""

MOST_CORES = 1024
MOST_BATCH = 2048
SMALLEST_BYTES = 4096
"""Files below this are decoded on the CPU, whatever the device (docs/kernels.md)."""


@dataclass(frozen=True)
class Prices:
    """An hour's price of one host core and of the GPU, in any one currency; None: not given."""

    core: float | None = None
    gpu: float | None = None


@dataclass(frozen=True)
class Side:
    """host_s, gpu_s: seconds an image of a core and of the GPU; gpu_batch_s: of the GPU for every batch besides.

    measured: images/s of the loader alone on this machine, None where all of it is predicted. source: for the reader.
    """

    name: str
    host_s: float
    gpu_s: float = 0.0
    gpu_batch_s: float = 0.0
    measured: float | None = None
    source: str = ""

    def images_per_s(self, *, cores: int, batch_size: int) -> float:
        """What it can make: bound by the host's cores or by the GPU, which has nothing else to do."""
        host = cores / self.host_s
        gpu_s = self.gpu_image_s(batch_size)
        return min(host, 1 / gpu_s) if gpu_s else host

    def gpu_image_s(self, batch_size: int) -> float:
        """GPU seconds an image, its share of the batch's included."""
        return self.gpu_s + self.gpu_batch_s / batch_size

    def cores_for(self, images_per_s: float) -> float:
        """Host cores that are busy at that rate."""
        return images_per_s * self.host_s

    def cost_per_million(self, prices: Prices, *, batch_size: int) -> float | None:
        """What a million images cost in time of cores and GPU, None where a price it needs is not given."""
        gpu_s = self.gpu_image_s(batch_size)
        if prices.core is None or (gpu_s and prices.gpu is None):
            return None
        return 1e6 / 3600 * (self.host_s * prices.core + gpu_s * (prices.gpu or 0.0))

    def resized(self, ratio: float) -> Side:
        """For images of `ratio` times the pixels and bytes; what a batch takes whatever is in it stays."""
        return replace(self, host_s=self.host_s * ratio, gpu_s=self.gpu_s * ratio, measured=None)


@dataclass(frozen=True)
class Crossings:
    """Where the CPU catches up with the GPU, the rest being equal; None: nowhere in reach.

    cores: the least with which the CPU is as fast. batch_size: the least with which the GPU is. pixels_ratio: the
    least size of an image, in times of those measured, from which the GPU is faster.
    """

    cores: int | None
    batch_size: int | None
    pixels_ratio: float | None


def crossings(cpu: Side, gpu: Side, *, cores: int, batch_size: int) -> Crossings:
    """All three, each with the other two as given."""

    def ahead(cores: int, batch_size: int, ratio: float = 1.0) -> bool:
        theirs = cpu.resized(ratio).images_per_s(cores=cores, batch_size=batch_size)
        return gpu.resized(ratio).images_per_s(cores=cores, batch_size=batch_size) > theirs

    with_cores = next((n for n in range(1, MOST_CORES + 1) if not ahead(n, batch_size)), None)
    with_batch = next((n for n in range(1, MOST_BATCH + 1) if ahead(cores, n)), None)
    return Crossings(with_cores, with_batch, _least_ratio(lambda ratio: ahead(cores, batch_size, ratio)))


def _least_ratio(ahead: Callable[[float], bool]) -> float | None:
    """Between a hundredth and a hundred times the pixels, by halving the interval: the GPU only gains with size."""
    low, high = 0.01, 100.0
    if ahead(low):
        return low
    if not ahead(high):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ahead(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Duel:
    """Both sides, on how many cores and in which batches they were measured, and where they cross."""

    cpu: Side
    gpu: Side
    cores: int
    batch_size: int
    crossings: Crossings


def duel(cpu: Outcome, gpu: Outcome | None) -> Duel | None:
    """gpuload's fastest row of each; `gpu` None: predicted. None where gpuload has no row on the CPU."""
    setting = cpu.comparison.setting
    ours = _best(cpu)
    if ours is None:
        return None
    host = _host_side(ours, "CPU")
    theirs = _best(gpu) if gpu is not None else None
    other = _predicted() if theirs is None else _gpu_side(theirs, setting.batch_size)
    where = crossings(host, other, cores=setting.workers, batch_size=setting.batch_size)
    return Duel(host, other, setting.workers, setting.batch_size, where)


def _best(outcome: Outcome) -> Row | None:
    ours = [row for row in outcome.rows if row.figures and row.name in ("gpuload", "gpuload-native", "gpuload-dali")]
    return max(ours, key=lambda row: row.figures["images_per_s"].median, default=None)


def _host_side(row: Row, name: str) -> Side:
    figures = row.figures
    return Side(
        name, figures["cpu_s_per_1000"].median / 1000, measured=figures["images_per_s"].median,
        source=f"{row.name}, measured on this machine",
    )  # fmt: skip


def _predicted() -> Side:
    take = gpu_prediction.predicted()
    return Side("GPU (predicted)", take.host_s, take.image_s, take.batch_s, source=gpu_prediction.SOURCE)


def _gpu_side(row: Row, batch_size: int) -> Side:
    """Host seconds measured; the GPU's from the model's steps where one was trained, else predicted, and said."""
    host = _host_side(row, "GPU")
    training = row.training
    if training is not None and training.inflation is not None and training.inflation > 1:
        extra_s = sum(training.resident_steps_s) / len(training.resident_steps_s) * (training.inflation - 1)
        source = f"{host.source}; the GPU's time by what it adds to a training step"
        return replace(host, gpu_s=extra_s / batch_size, source=source)
    take = gpu_prediction.predicted()
    source = f"{host.source}; the GPU's time is {gpu_prediction.SOURCE}"
    return replace(host, gpu_s=take.image_s, gpu_batch_s=take.batch_s, source=source)
