"""How many images a second does each loader bring to the GPU, with nothing behind it?

Contenders read the same tar shards, random crops of 224 pixels, flipped and normalised, float32, batches of 256 on the
GPU, with as many threads or worker processes. They take turns within a round, and each round begins with another one;
a pass is about PASS_S of its own rate. Owns the contenders and the rounds; what the figures mean is gpuload/cli/bench's
(measure.py).

    gpuload native   decoder="native", device="cuda"
    gpuload CPU      the same with max_device_bytes=0: decoded on the CPU, finished batches copied
    gpuload dali     decoder="dali", device="cuda"
    dali             DALI's own pipeline
    torchvision GPU  torchvision.io.decode_jpeg(device="cuda"), transforms v2 on the GPU; worker processes read
    torch            torch's DataLoader, torchvision on Pillow, worker processes, pinned memory
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from bench.gpu_loaders import cpu_s, timed_epoch
from bench.gpu_section import Bench, Row, in_short
from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import look_at, read_plainly
from gpuload.cli.bench.measure import images_per_s, rotations, spread

BATCH = 256
SIZE = 224
ROUNDS = 5
PASS_S = 1.2
"""Ten times a GPU loader's burst of batches ahead; five rounds of all contenders stay within the section's time."""

FIRST_IMAGES = 4 * BATCH
MOST_IMAGES = 1 << 16


class OnTheGpu:
    """torchvision's decoder and transforms on the GPU, as its users would write it; worker processes read the files."""

    def __init__(self, setting: subjects.Setting, indices: Sequence[int]):
        from torch.utils.data import DataLoader, Subset
        from torchvision.transforms import v2

        files = read_plainly(setting.data, lambda data: data, lambda data: data)
        self._loader = DataLoader(
            Subset(files, list(indices)), batch_size=setting.batch_size, shuffle=True, num_workers=setting.workers,
            persistent_workers=setting.workers > 0, collate_fn=flat, pin_memory=False,
        )  # fmt: skip
        self._crop = v2.Compose([v2.RandomResizedCrop(setting.size, antialias=True), v2.RandomHorizontalFlip()])
        self._finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(subjects.MEAN, subjects.STD)])

    def __iter__(self) -> Iterator[Any]:
        from torchvision.io import ImageReadMode, decode_jpeg

        for data, lengths, labels in self._loader:
            images = decode_jpeg(list(data.split(lengths)), mode=ImageReadMode.RGB, device="cuda")
            batch = self._finish(torch.stack([self._crop(image) for image in images]))
            yield batch, labels.to("cuda", non_blocking=True)


def flat(samples: Sequence[tuple[bytes, int]]) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """Files side by side in one tensor: each by itself would take a descriptor of shared memory."""
    data = torch.frombuffer(bytearray(b"".join(data for data, _ in samples)), dtype=torch.uint8)
    return data, [len(file) for file, _ in samples], torch.tensor([label for _, label in samples])


Build = Callable[[subjects.Setting, Sequence[int]], Any]


def subject(name: str, setting: subjects.Setting, indices: Sequence[int]) -> Any:
    """A loader of `gpuload bench`."""
    return subjects.build(name, setting, transform="train", indices=indices, shuffle=True)


def decoded_on_cpu(setting: subjects.Setting, indices: Sequence[int]) -> Any:
    """gpuload's finished batches, copied to the GPU."""
    return subject("gpuload-native", replace(setting, options={"max_device_bytes": 0}), indices)


CONTENDERS: Mapping[str, Build] = {
    "gpuload native": partial(subject, "gpuload-native"),
    "gpuload CPU": decoded_on_cpu,
    "gpuload dali": partial(subject, "gpuload-dali"),
    "dali": partial(subject, "dali"),
    "torchvision GPU": OnTheGpu,
    "torch": partial(subject, "torch"),
}
OURS = "gpuload native"


def setting_of(bench: Bench, device: str = "cuda") -> subjects.Setting:
    return subjects.Setting(look_at(str(bench.shards)), device, bench.threads, BATCH, SIZE)


def indices_of(images: int, count: int) -> list[int]:
    """`images` ids of `count` images, each as often as fits."""
    return [i % count for i in range(images)]


@dataclass
class Running:
    """A contender on its way through the rounds. reason: why it has no figures, "" if it has."""

    name: str
    loader: Any = None
    images_per_s: list[float] = field(default_factory=list)
    cpu_s_per_image: list[float] = field(default_factory=list)
    reason: str = ""

    def attempt(self, step: Callable[[], None]) -> None:
        """Takes a step unless one has failed: a loader that fails is a row without figures, not the end of the run."""
        if self.reason:
            return
        try:
            step()
        except Exception as error:
            traceback.print_exc()
            self.reason = in_short(error)
            self.loader = None

    def prepare(self, setting: subjects.Setting, count: int) -> None:
        """Two short epochs, which start and compile everything and tell the rate; then the loader for the rounds."""
        build = CONTENDERS[self.name]
        loader = build(setting, indices_of(FIRST_IMAGES, count))
        for _ in range(2):
            epoch = timed_epoch(loader)
        del loader  # its processes end before new ones start
        rate = images_per_s(epoch, workers=1)
        self.loader = build(setting, indices_of(pass_images(rate, workers=setting.workers), count))
        timed_epoch(self.loader)

    def round(self, workers: int) -> None:
        before_s = cpu_s()
        epoch = timed_epoch(self.loader)
        self.cpu_s_per_image.append((cpu_s() - before_s) / sum(epoch.images))
        self.images_per_s.append(images_per_s(epoch, workers=workers))


def pass_images(rate: float, *, workers: int) -> int:
    """Whole batches: about PASS_S, and more than the burst that comes first and is left out."""
    return BATCH * max(2 * workers + 8, min(round(rate * PASS_S), MOST_IMAGES) // BATCH)


def rows(bench: Bench) -> Iterator[Row]:
    """A row a contender and round as it comes, with `round` in it; at the end one a contender, of all rounds."""
    setting = setting_of(bench)
    count = len(subjects.labels(setting))
    running = {name: Running(name, reason=absent(name)) for name in CONTENDERS}
    for entrant in running.values():
        entrant.attempt(partial(entrant.prepare, setting, count))
    slowest_s = 0.0
    for number, order in enumerate(rotations(list(CONTENDERS), ROUNDS)):
        began_s = bench.left_s()
        if began_s < slowest_s and number:
            break
        for name in order:
            entrant = running[name]
            entrant.attempt(partial(entrant.round, setting.workers))
            if not entrant.reason:
                yield {"row": name, "round": number, "passed": None, "images_per_s": entrant.images_per_s[-1]}
        slowest_s = max(slowest_s, began_s - bench.left_s())
    all_rates = {name: entrant.images_per_s for name, entrant in running.items()}
    for entrant in running.values():
        yield summary(entrant, all_rates)


def absent(name: str) -> str:
    """Why a contender cannot run here, "" where it can."""
    return subjects.absent(name) if name == "dali" else subjects.absent("gpuload-dali") if "dali" in name else ""


def summary(entrant: Running, all_rates: Mapping[str, Sequence[float]]) -> Row:
    """Medians and ranges over the rounds; ratios are taken within each round. A peer that fails is nobody's failure."""
    row = {"row": entrant.name, "passed": None}
    if entrant.reason and not entrant.reason.startswith("absent"):
        return {**row, "passed": False if entrant.name.startswith("gpuload") else None, "error": entrant.reason}
    if not entrant.images_per_s:
        return {**row, "left_out": entrant.reason or "no time left"}
    rates = spread(entrant.images_per_s)
    ratios = {}
    for other, its_rates in all_rates.items() if entrant.name == OURS else ():
        pairs = list(zip(entrant.images_per_s, its_rates, strict=False))
        if pairs and other != OURS:
            ratios[f"ratio_to_{other.replace(' ', '_').lower()}"] = spread(mine / its for mine, its in pairs).median
    return {
        **row,
        "images_per_s": rates.median,
        "low": rates.low,
        "high": rates.high,
        **ratios,
        "cpu_ms_per_image": 1000 * spread(entrant.cpu_s_per_image).median,
        "rounds": len(entrant.images_per_s),
        "batch_size": BATCH,
        **told(entrant.loader),
    }


def told(loader: Any) -> Row:
    """What gpuload's loader says of who decoded."""
    stats = getattr(loader, "stats", None)
    return {} if stats is None else {"decoders": dict(stats().decoders)}
