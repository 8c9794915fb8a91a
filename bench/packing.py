"""Is packing as fast as copying, are TFRecords read as fast as tf.data reads them, and what does fetching cost?

Command:  python -m bench.packing [--json FILE] [--rounds 7] [--only pack,tfrecord,fetch] [--images 4000]
Needs:    tensorflow-cpu for tf.data's half (tools/install.py peers); without it that half is left out
Machine:  stands in every line of the JSON file, with versions and commit.
Result:   a line a figure, with the floor that the project promises where it has one. Code 0 where all hold, else 1.
Explanation: below, and docs/benchmarks.md.

Nothing is read from a disk: files were just written. They are copies of $GPULOAD_DATA/photos under many names, or of
made JPEGs of about that size. Rounds of the contenders take turns; figures are medians, ratios medians of each round's.

pack      `pack` of class folders to tar shards without an index beside `cp -r` of them, wall time. First in a file
          system in memory where there is one (/dev/shm), so that neither waits for a disk; both leave their files in
          the page cache. Then where temporary files are, `cp -r` followed by `sync`, since a packed shard gets its name
          once it is on disk. Python's start is not counted: `the command` says what it adds.
tfrecord  What a user of each gets. tf.data checks the CRCs of all records in each epoch. Here that is done once, when
          the index is made; an epoch then reads the images alone. Both on one CPU, and CPU seconds are counted. tf.data
          goes through TFRecordDataset in C++ (`reduce`), its fastest way, and in a Python loop. Ours: ShardDataset(...)
          without an index, which reads all, checks all and keeps an index; then its reader in batches of 64, in order.
fetch     Shards in full shuffle, batches of 64. A loader that decodes to RandomResizedCrop(224) on all CPUs: the CPU
          seconds of its fetch stage among those of the process. Its reader alone, on one thread, and `cat` of the
          shards: bytes of images a second of each.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from bench.figures import Figure, Part, run
from gpuload import DataLoader, ShardDataset
from gpuload.cli.pack import pack

BATCH, CLASSES = 64, 20
MEMORY = Path("/dev/shm")
CROP = Compose([RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor()])


def encoded_images() -> list[bytes]:
    """Photographs where there are some, else what is about their size."""
    photos = Path(os.environ.get("GPULOAD_DATA", "")) / "photos"
    if os.environ.get("GPULOAD_DATA") and photos.is_dir():
        return [path.read_bytes() for path in sorted(photos.iterdir())]
    made = []
    for seed in range(16):
        rng, data = np.random.default_rng(seed), io.BytesIO()
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize((512, 384))
        pixels = np.asarray(coarse, np.int16) + rng.integers(-20, 21, (384, 512, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(data, "jpeg", quality=90)
        made.append(data.getvalue())
    return made


def write_folder(folder: Path, count: int) -> Path:
    """So many files in class folders."""
    images = encoded_images()
    for number in range(count):
        place = folder / f"class{number % CLASSES:02d}" / f"image{number:06d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(images[number % len(images)])
    return folder


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def temporary(above: Path | None) -> Iterator[Path]:
    """A folder that goes, and a cache of its own."""
    with TemporaryDirectory(dir=above) as folder:
        before = os.environ.get("XDG_CACHE_HOME")
        decode_first()  # its compiled code is kept in the user's cache
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        try:
            yield Path(folder)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def decode_first() -> None:
    """Load what a loader compiles."""
    with TemporaryDirectory() as folder:
        source = write_folder(Path(folder) / "in", 8)
        for format in ("tar", "tfrecord"):
            pack(source, f"{folder}/{format}", format)
            next(iter(photo_loader(ShardDataset(f"{folder}/{format}", transform=CROP), batch=8)))


# pack


def packing(asked: argparse.Namespace) -> Iterator[Figure]:
    room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 150_000 * asked.images
    yield from beside_cp(asked, MEMORY if room else None, "in memory" if room else "page cache", sync=False, floor=0.5)
    yield from beside_cp(asked, None, "on disk", sync=True, floor=None)
    with temporary(None) as folder:
        write_folder(folder / "in", 1)
        command = [sys.executable, "-m", "gpuload", "pack", str(folder / "in"), str(folder / "out"), "--no-index"]
        yield Figure("pack: the command, one image", seconds(lambda: run_quietly(command)), "s")


def beside_cp(
    asked: argparse.Namespace, above: Path | None, where: str, *, sync: bool, floor: float | None
) -> Iterator[Figure]:
    with temporary(above) as folder:
        source = write_folder(folder / "in", asked.images)
        megabytes = sum(path.stat().st_size for path in source.rglob("*.jpg")) / 1e6

        def copy() -> None:
            run_quietly(["cp", "-r", str(source), str(folder / "copy")])
            if sync:
                os.sync()

        def packed() -> None:
            pack(source, folder / "shards", make_index=False, sync=sync)

        times: dict[str, list[float]] = {"copy": [], "shards": []}
        for _ in range(asked.rounds + 1):  # the first is not counted
            for name, work in (("copy", copy), ("shards", packed)):
                os.sync()  # what was removed is gone, and nobody's writes are in the way
                times[name].append(seconds(work))
                shutil.rmtree(folder / name)
    ratios = [theirs / ours for theirs, ours in zip(times["copy"][1:], times["shards"][1:], strict=True)]
    copying = "cp -r, sync" if sync else "cp -r"
    yield Figure(f"pack, {where}", megabytes / median(times["shards"][1:]), "MB/s")
    yield Figure(f"{copying}, {where}", megabytes / median(times["copy"][1:]), "MB/s")
    yield Figure(f"pack over {copying}, {where}", median(ratios), "x", above=floor)


def run_quietly(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# tfrecord


def tfrecord(asked: argparse.Namespace) -> Iterator[Figure]:
    with temporary(MEMORY if MEMORY.is_dir() else None) as folder, one_cpu():
        source = write_folder(folder / "in", asked.images)
        shards = pack(source, folder / "shards", "tfrecord", make_index=False).shards
        shutil.rmtree(source)
        times: dict[str, list[float]] = {"index": [], "epoch": []}
        with tf_data(shards) as theirs:
            for _ in range(asked.rounds + 1):
                times["index"].append(cpu_seconds(lambda: index_of(shards, folder)))
                dataset = ShardDataset(list(shards), fields=("image",))
                assert len(dataset) == asked.images, len(dataset)
                reader = dataset.new_reader(batches=True)
                times["epoch"].append(cpu_seconds(partial(read_all, dataset, reader, np.arange(len(dataset)))))
                reader.close()
                dataset.close()
                for name, spent in theirs().items():
                    times.setdefault(name, []).append(spent)
    rates = {name: asked.images / median(values[1:]) for name, values in times.items()}
    yield Figure("TFRecord: index, all CRCs", rates["index"], "samples/s of a CPU")
    yield Figure("TFRecord: an epoch's reading", rates["epoch"], "samples/s of a CPU")
    if "reduce" not in times:
        sys.stdout.write("tf.data is left out: tensorflow-cpu is not installed\n")
        return
    yield Figure("tf.data: TFRecordDataset in C++", rates["reduce"], "samples/s of a CPU")
    yield Figure("tf.data: TFRecordDataset in a Python loop", rates["loop"], "samples/s of a CPU")

    def over(*names: str, than: str) -> float:
        rounds = zip(*(times[name][1:] for name in (*names, than)), strict=True)
        return median(spent[-1] / sum(spent[:-1]) for spent in rounds)

    yield Figure("TFRecord: an epoch over tf.data's in C++", over("epoch", than="reduce"), "x", above=1.0)
    yield Figure("TFRecord: index over tf.data's epoch in C++", over("index", than="reduce"), "x", above=1.0)
    first = "TFRecord: index and epoch over tf.data's epoch"
    yield Figure(f"{first} in C++", over("index", "epoch", than="reduce"), "x")
    yield Figure(f"{first} in Python", over("index", "epoch", than="loop"), "x")


def index_of(shards: Sequence[str], folder: Path) -> None:
    for kept in [*(folder / "shards").glob("*.gpuload"), *(folder / "cache").rglob("*.gpuload")]:
        kept.unlink()
    ShardDataset(list(shards), fields=("image",)).close()


def read_all(dataset: ShardDataset, reader: object, ids: np.ndarray) -> int:
    """Bytes of these images, read in batches."""
    total = 0
    for first in range(0, len(ids), BATCH):
        encoded = reader.read(dataset.files, dataset.refs(ids[first : first + BATCH]))  # type: ignore[attr-defined]
        assert not encoded.failures, encoded.failures
        total += int(encoded.lengths.sum())
    return total


def cpu_seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


@contextmanager
def one_cpu() -> Iterator[None]:
    """This process, and those that it starts, on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def tf_data(shards: Sequence[str]) -> Iterator[Callable[[], dict[str, float]]]:
    """Asks a process with TensorFlow for the CPU seconds of each way through these shards; {} where there is none."""
    if find_spec("tensorflow") is None:
        yield lambda: {}
        return
    command = [sys.executable, "-m", "bench.tf_data", *shards]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        ask, answer = process.stdin, process.stdout

        def once() -> dict[str, float]:
            ask.write("\n")
            ask.flush()
            told = answer.readline().split()
            return {name: float(value) for name, value in (part.split("=") for part in told)}

        yield once
        ask.close()


# fetch


def fetch(asked: argparse.Namespace) -> Iterator[Figure]:
    with temporary(MEMORY if MEMORY.is_dir() else None) as folder:
        source = write_folder(folder / "in", asked.images)
        shards = pack(source, folder / "shards", shard_size="32MB").shards
        shutil.rmtree(source)
        rates: dict[str, list[float]] = {"reader": [], "cat": [], "loader": []}
        shares, images_per_s = [], []
        dataset = ShardDataset(list(shards), transform=CROP)
        reader = dataset.new_reader(batches=True)
        image_bytes = int(dataset.refs(np.arange(len(dataset)))["length"].sum())
        loader = photo_loader(dataset, batch=BATCH)
        for number in range(asked.rounds + 1):
            ids = np.random.default_rng(number).permutation(len(dataset))
            spent = seconds(partial(read_all, dataset, reader, ids))
            rates["reader"].append(image_bytes / spent / 1e9)
            rates["cat"].append(image_bytes / seconds(lambda: run_quietly(["cat", *shards])) / 1e9)
            cpu_began = time.process_time()
            spent = seconds(lambda: [None for _ in loader])
            cpu_s = time.process_time() - cpu_began
            rates["loader"].append(image_bytes / spent / 1e9)
            (stage,) = [stage for stage in loader.stats().stages if stage.name == "fetch"]
            shares.append(100 * stage.cpu_s / cpu_s)
            images_per_s.append(len(dataset) / spent)
        reader.close()
        dataset.close()
    yield Figure("fetch stage's share of the loader's CPU", median(shares[1:]), "%", below=5.0)
    yield Figure("that loader", median(images_per_s[1:]), "images/s")
    for name, values in rates.items():
        yield Figure(f"full shuffle: {name}" if name != "cat" else "cat of the shards", median(values[1:]), "GB/s")
    for name in ("reader", "loader"):
        ratios = [ours / cat for ours, cat in zip(rates[name][1:], rates["cat"][1:], strict=True)]
        yield Figure(f"full shuffle: {name} over cat", median(ratios), "x")


def photo_loader(dataset: ShardDataset, *, batch: int) -> DataLoader:
    return DataLoader(dataset, batch, order="shuffle", seed=0, device="cpu", accelerate="require")


PARTS: dict[str, Part] = {"pack": packing, "tfrecord": tfrecord, "fetch": fetch}


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=4000)
    return run(parser, PARTS, argv, rounds=7)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
