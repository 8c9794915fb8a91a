"""What does gpuload's own order cost, does memory stay flat, and how well do its orders shuffle?

Command:  python -m bench.order [--json FILE] [--rounds 7] [--only cost,memory,quality]
Machine:  stands in every line of the JSON file, with versions and commit.
Result:   a line a figure, with its bound where the project promises one. Code 0 where all bounds hold, else 1.
Explanation: below, and docs/design.md.

Everything goes through a DataLoader and its sampler. Costs are medians over epochs, each another permutation; those of
ids are CPU time. Memory is what is resident of this process after the last epoch, and its growth since the third; the
list of paths is read anew for each batch. Quality is that of 1000 classes of 1300 samples that lie sorted on disk, in
batches of 256, beside a random permutation's: how many classes a batch holds, and their entropy; how far the number of
ascents is from a random permutation's, in its standard deviations; the correlation of neighbours. Images a range are
those that one read brings where up to two images between two are read along: reading for a batch alone, or for the
whole window in which a block order shuffles.
"""

from __future__ import annotations

import argparse
import gc
import io
import math
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from torchvision.transforms import Compose, PILToTensor, RandomResizedCrop, ToTensor

from bench.figures import Figure, Part, run
from gpuload import DataLoader, EncodedImage, ShardDataset

CLASSES, A_CLASS, BATCH = 1000, 1300, 256
WINDOW = 72 * 16  # samples of a block order's window
READ_ALONG = 3  # the next image but two is still the same range


class Images:
    """A data set of one small JPEG under many names; only the names take memory."""

    transform = PILToTensor()
    encoded_thread_safe = True

    def __init__(self, paths: Sequence[str]):
        self.paths = paths
        self.data = jpeg_of(32)

    def __len__(self) -> int:
        return len(self.paths)

    def get_encoded(self, index: int) -> tuple[EncodedImage, int]:
        return EncodedImage(self.data), len(self.paths[index])

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.data))), len(self.paths[index])


def jpeg_of(size: int) -> bytes:
    """A photograph-like JPEG: smooth shapes under noise, 4:2:0."""
    rng, data = np.random.default_rng(0), io.BytesIO()
    coarse = Image.fromarray(rng.integers(0, 256, (size // 16, size // 16, 3), np.uint8)).resize((size, size))
    pixels = np.asarray(coarse, np.int16) + rng.integers(-12, 13, (size, size, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(data, "jpeg", quality=90)
    return data.getvalue()


def loader_of(dataset: Any, order: str = "shuffle", batch: int = BATCH, **more: Any) -> DataLoader:
    return DataLoader(dataset, batch, order=order, seed=1, device="cpu", **more)


def sampled(length: int, order: str = "shuffle", epoch: int = 0) -> Iterator[int]:
    """Ids of an epoch, as a loader draws them."""
    loader = loader_of(range(length), order)
    loader.set_epoch(epoch)
    return iter(loader.sampler)


def timed(work: Callable[[int], Any], rounds: int) -> float:
    """Median CPU seconds of work(epoch), after one that is not counted."""
    seconds = []
    for epoch in range(rounds + 1):
        began = time.thread_time()
        work(epoch)
        seconds.append(time.thread_time() - began)
    return median(seconds[1:])


def costs(rounds: int) -> Iterator[Figure]:
    for order, first_ms, million_s in (("shuffle", 1.0, 0.1), ("block", None, None)):
        many = loader_of(range(10**9), order)

        def first(epoch: int, many: DataLoader = many) -> None:
            many.set_epoch(epoch)
            next(iter(many.sampler))

        yield Figure(f"{order}: first id of 10^9", timed(first, 20 * rounds) * 1e3, "ms", first_ms)
        million = loader_of(range(10**6), order)

        def whole(epoch: int, million: DataLoader = million) -> None:
            million.set_epoch(epoch)
            for _ in million.sampler:
                pass

        yield Figure(f"{order}: a million ids", timed(whole, rounds), "s", million_s)

    loader = loader_of(Images(["a path"] * 10**6), accelerate="require")
    next(iter(loader))  # compiled, threads started
    starts, firsts = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        batches = iter(loader)
        starts.append(time.perf_counter() - began)
        next(batches)
        firsts.append(time.perf_counter() - began)
        del batches
    yield Figure("iterator start, 10^6 samples", median(starts) * 1e3, "ms", 5.0)
    yield Figure("first batch of 256, 10^6 samples", median(firsts) * 1e3, "ms")
    yield from boundary(rounds)


def boundary(rounds: int) -> Iterator[Figure]:
    """What an epoch's end costs a loop: time beyond that between two batches where it only takes them, and its wait
    where each step takes twice as long as a batch, so that batches lie ready."""
    crop = Compose([RandomResizedCrop(224), ToTensor()])
    for batch, size, transform, promised in ((64, 512, crop, True), (256, 32, PILToTensor(), False)):
        name = f"{batch} of {size} x {size}"
        with TemporaryDirectory() as folder:
            write_shard(Path(folder) / "images.tar", jpeg_of(size), batch * 30)
            dataset = ShardDataset(f"{folder}/images.tar", fields=("image",), transform=transform)
            loader = loader_of(dataset, batch=batch, accelerate="require")
            between, across = waits(loader, rounds, step_s=0.0)
            _, waited = waits(loader, rounds, step_s=2 * between)
            del loader
        bound = between * 1e3 if promised else None
        yield Figure(f"between two batches, {name}", between * 1e3, "ms")
        yield Figure(f"epoch boundary beyond it, {name}", (across - between) * 1e3, "ms", bound)
        yield Figure(f"epoch boundary behind a step, {name}", waited * 1e3, "ms", bound)


def waits(loader: DataLoader, epochs: int, step_s: float) -> tuple[float, float]:
    """Median seconds in which a loop waits for a batch, and for an epoch's first one after the first epoch."""
    between, across = [], []
    asked = None
    for _ in range(epochs + 1):
        for number, _ in enumerate(loader):
            if asked is not None:
                (between if number else across).append(time.perf_counter() - asked)
            time.sleep(step_s)
            asked = time.perf_counter()
    return median(between), median(across)


def write_shard(path: Path, data: bytes, images: int) -> None:
    """A tar of so many copies of one JPEG."""
    with tarfile.open(path, "w") as shard:
        for i in range(images):
            member = tarfile.TarInfo(f"{i:06d}.jpg")
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))


def memory(epochs: int = 20) -> Iterator[Figure]:
    """Growth from the third epoch to the last, of whole epochs and of the first batches of 10^7 samples."""
    for name, paths, batches in (
        ("20,000 samples", 20_000, 10**6),
        ("10^7 paths, 100 batches an epoch", 10**7, 100),
    ):
        loader = loader_of(Images([f"train/n{i // A_CLASS:08d}/{i}.jpeg" for i in range(paths)]), accelerate="require")
        resident = []
        for _ in range(epochs):
            for number, _ in enumerate(loader, 1):
                if number == batches:
                    break
            gc.collect()
            resident.append(resident_bytes())
        yield Figure(f"resident, {name}", resident[-1] / 1e6, "MB")
        yield Figure(f"growth over {epochs} epochs, {name}", (resident[-1] / resident[2] - 1) * 100, "%", 5.0)
        del loader


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def quality(epochs: int = 3) -> Iterator[Figure]:
    length = CLASSES * A_CLASS
    for order in ("random", "shuffle", "block"):
        found: dict[tuple[str, str], list[float]] = {}
        for epoch in range(epochs):
            if order == "random":
                ids = np.random.default_rng(epoch).permutation(length)
            else:
                ids = np.fromiter(sampled(length, order, epoch), np.int64, length)
            for name, value in qualities(ids).items():
                found.setdefault(name, []).append(value)
        for (name, unit), values in found.items():
            yield Figure(f"{order}: {name}", float(np.mean(values)), unit)


def qualities(ids: np.ndarray) -> dict[tuple[str, str], float]:
    """Of an order of a data set sorted by class."""
    n = len(ids)
    ascents = (np.diff(ids) > 0).sum()
    batches = ids[: n // BATCH * BATCH].reshape(-1, BATCH)[::7]
    counts = [np.unique(batch // A_CLASS, return_counts=True)[1] / BATCH for batch in batches]
    windows = ids[: n // WINDOW * WINDOW].reshape(-1, WINDOW)[::7]
    return {
        ("classes a batch", ""): float(np.mean([len(shares) for shares in counts])),
        ("class entropy a batch", "bits"): float(np.mean([-(shares * np.log2(shares)).sum() for shares in counts])),
        ("ascents off", "standard deviations"): float(abs(ascents - (n - 1) / 2) / math.sqrt((n + 1) / 12)),
        ("correlation of neighbours", ""): float(np.corrcoef(ids[:-1], ids[1:])[0, 1]),
        ("images a range, a batch", ""): images_a_range(batches),
        ("images a range, a window", ""): images_a_range(windows),
    }


def images_a_range(groups: np.ndarray) -> float:
    ranges = 1 + (np.diff(np.sort(groups, axis=1), axis=1) > READ_ALONG).sum(axis=1)
    return float(groups.size / ranges.sum())


PARTS: dict[str, Part] = {
    "cost": lambda asked: costs(asked.rounds),
    "memory": lambda asked: memory(),
    "quality": lambda asked: quality(),
}


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.order", description=(__doc__ or "").splitlines()[0])
    return run(parser, PARTS, argv, rounds=7)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
