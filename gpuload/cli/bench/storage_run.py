"""One way to begin an epoch from storage, timed: streaming from a URL, or copying it to a local folder first.

Owns the clock and the copy; runs inside a process of its own (worker.py). Who is compared with whom is storage.py's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpuload.cli.bench.page_cache import evict
from gpuload.cli.bench.subjects import pil_transform
from gpuload.core.errors import ConfigError
from gpuload.core.location import is_local
from gpuload.core.wording import size as in_bytes
from gpuload.shards.catalog import tar_shards
from gpuload.shards.folder import FolderError
from gpuload.shards.urls import expand, filesystem, stamps

COPIERS = 16
"""Files copied at once: hides round trips, as a careful copying script would."""

MOST_COPIED_BYTES = 4 << 30
"""Copying stops there and the rest is reckoned at the same rate: a terabyte would take hours to say the same."""


@dataclass(frozen=True)
class Copied:
    """bytes: really copied, of total_bytes. took_s: for that. whole_s: for all, the rest reckoned at the same rate."""

    bytes: int = 0
    total_bytes: int = 0
    took_s: float = 0.0

    @property
    def whole_s(self) -> float:
        return self.took_s * self.total_bytes / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Timed:
    """Seconds since the start, whatever of the copy was only reckoned included. copied_s: until the copy was there, 0
    without one; copied_bytes of total_bytes were really copied. opened_s: until the data set was there. arrivals_s:
    when each batch was; images: how many there were by then."""

    copied_s: float
    copied_bytes: int
    total_bytes: int
    opened_s: float
    arrivals_s: Sequence[float]
    images: Sequence[int]


def timed(
    url: str, *, copy_to: str | None, most_images: int | None, threads: int, batch_size: int, transform: str, size: int
) -> Timed:
    """An epoch of `url` in random order, as far as `most_images`. copy_to: an empty local folder, None for streaming.

    Compiling comes before the clock, indexes are kept in a folder that is new. A local source leaves the page cache.
    """
    import torch

    from gpuload import DataLoader, ShardDataset

    prepared = pil_transform(transform, size)
    _compile(prepared, threads)
    if is_local(url):
        evict([path for path in files_at(url) if os.path.isfile(path)])
    with _new_indexes():
        clock = time.perf_counter
        began_s = clock()
        copied = Copied() if copy_to is None else _copy(url, copy_to)
        began_s -= copied.whole_s - copied.took_s
        dataset = ShardDataset(url if copy_to is None else copy_to, transform=prepared)
        opened_s = clock() - began_s
        loader: Any = DataLoader(
            dataset, batch_size=batch_size, shuffle=True, num_workers=threads, accelerate="require", device="cpu",
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        arrivals_s: list[float] = []
        images: list[int] = []
        for batch in loader:
            arrivals_s.append(clock() - began_s)
            images.append((images[-1] if images else 0) + len(batch[0]))
            if most_images is not None and images[-1] >= most_images:
                break
        dataset.close()
    return Timed(copied.whole_s, copied.bytes, copied.total_bytes, opened_s, arrivals_s, images)


@contextmanager
def _new_indexes() -> Iterator[None]:
    """Indexes are kept in an empty folder meanwhile: what an earlier run left there would be a head start."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="gpuload-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def _compile(transform: Any, threads: int) -> None:
    """A batch of small images through the same loader: kernels are compiled or loaded, threads have been started."""
    from PIL import Image

    from gpuload import DataLoader, ShardDataset

    with tempfile.TemporaryDirectory(prefix="gpuload-bench-") as folder:
        for number in range(2):
            Image.new("RGB", (300, 260), (40 * number, 90, 160)).save(f"{folder}/{number}.jpg")
        dataset = ShardDataset(folder, transform=transform)
        for _ in DataLoader(dataset, batch_size=2, num_workers=threads, device="cpu", accelerate="require"):
            pass


def files_at(url: str) -> list[str]:
    """Every file that has to be copied: tar shards, or all below a folder of images."""
    found: list[str] = []
    for name in expand(url, {}):
        try:
            found += tar_shards(name, {})
        except FolderError:
            found += _below(name)
    return found


def _below(folder: str) -> list[str]:
    if is_local(folder):
        return sorted(os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    system, path = filesystem(folder, {})
    return [system.unstrip_protocol(name) for name in sorted(system.find(path))]


def _copy(url: str, folder: str) -> Copied:
    """Copies to `folder`, up to MOST_COPIED_BYTES. Raises ConfigError where the disk has no room for that."""
    began_s = time.perf_counter()
    files = files_at(url)
    sizes = [stamp.size if stamp is not None else 0 for stamp in stamps(files, {})]
    counted, taken = 0, 0
    while taken < len(files) and (counted < MOST_COPIED_BYTES or not taken):
        counted += sizes[taken]
        taken += 1
    free = shutil.disk_usage(folder).free
    if counted > free:
        raise ConfigError(
            f"copying needs {in_bytes(counted)}, {in_bytes(free)} are free in {folder}; set TMPDIR to a larger disk"
        )
    root = os.path.commonpath([os.path.dirname(file) for file in files])

    def copy(file: str) -> None:
        target = os.path.join(folder, os.path.relpath(file, root))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        system, path = filesystem(file, {})
        system.get_file(path, target)

    with ThreadPoolExecutor(COPIERS) as copiers:
        list(copiers.map(copy, files[:taken]))
    return Copied(counted, sum(sizes), time.perf_counter() - began_s)
