"""The shards of a plan, written side by side: each appears under its name when it is whole and on disk.

Owns the threads, the order of steps, and what is left when one of them cannot go on: whole shards, and nothing else.
What a shard holds is pack_plan.py's, reading it is pack_read.py's, its bytes are the writers' (shards/write_*.py), the
file is pack_file.py's.

Threads are enough: reading, writing and summing let the others run. Disks are waited for on threads of their own, so
that the next shard is read meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from gpuload.cli.pack_file import PartialFile
from gpuload.cli.pack_plan import Plan
from gpuload.cli.pack_read import SampleReader, damaged, files_alone
from gpuload.config import default_threads
from gpuload.core.errors import ShardError
from gpuload.core.protocols import RangeReader
from gpuload.shards.checksums import SUFFIX, Sums, image_sum, read_sums

MOST_THREADS = 8
"""More write no faster to any one disk."""


class _StoppedError(Exception):
    """Another thread failed, or the user interrupts: this shard is given up."""


@dataclass(frozen=True)
class _Whole:
    """A shard and its checksums, written but for their names."""

    shard: PartialFile
    sums: PartialFile

    def keep(self, *, sync: bool) -> None:
        """The shard comes last: where it is, its checksums are."""
        try:
            self.sums.complete(sync=sync)
        except BaseException:
            self.shard.abandon()
            raise
        self.shard.complete(sync=sync)


def write_shards(
    plan: Plan, shards: Sequence[str], reader: RangeReader, *, sync: bool, advance: Callable[[int], None]
) -> int:
    """Write those that are not there yet; returns how many were. advance: hears of bytes that are done.

    sync: each gets its name once it is on disk. Raises ShardError for a full disk, SampleError for an image that cannot
    be read; all threads have ended then.
    """
    todo, there = [], 0
    for number, path in enumerate(shards):
        if _is_whole(path, plan.bounds[number + 1] - plan.bounds[number]):
            advance(int(plan.sizes[plan.bounds[number] : plan.bounds[number + 1]].sum()))
            there += 1
        else:
            todo.append(number)
    threads = min(MOST_THREADS, default_threads())
    with ThreadPoolExecutor(threads, "gpuload-sync") as disk, ThreadPoolExecutor(threads, "gpuload-pack") as pool:
        work = _Work(plan, reader, advance, disk if sync else None, threads)
        try:
            jobs = [pool.submit(work.shard, number, shards[number]) for number in todo]
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            work.stopped.set()
    errors = [error for job in [*jobs, *work.kept] if (error := job.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, _StoppedError))[:1]:
        raise error
    return there


def _is_whole(path: str, samples: int) -> bool:
    if not os.path.exists(path):
        return False
    try:
        sums = read_sums(path, {})
    except ShardError:
        return False
    return sums is not None and sums.size == os.path.getsize(path) and len(sums.images) == samples


class _Work:
    """What the threads share. disk: threads that wait for it, None where nobody does."""

    def __init__(
        self,
        plan: Plan,
        reader: RangeReader,
        advance: Callable[[int], None],
        disk: ThreadPoolExecutor | None,
        threads: int,
    ):
        self._plan, self._reader, self._advance, self._disk = plan, reader, advance, disk
        self._alone = files_alone(plan)
        self._turns = threading.BoundedSemaphore(2 * threads)  # shards that wait for the disk hold open files
        self.stopped = threading.Event()
        self.kept: list[Future[None]] = []

    def shard(self, number: int, path: str) -> None:
        """Write one. A thread of the pool."""
        if self.stopped.is_set():
            raise _StoppedError
        whole = self._write(range(int(self._plan.bounds[number]), int(self._plan.bounds[number + 1])), path)
        if self._disk is None:
            whole.keep(sync=False)
            return
        self._turns.acquire()
        self.kept.append(self._disk.submit(self._keep, whole))

    def _keep(self, whole: _Whole) -> None:
        try:
            whole.keep(sync=True)
        except BaseException:
            self.stopped.set()
            raise
        finally:
            self._turns.release()

    def _write(self, rows: range, path: str) -> _Whole:
        plan = self._plan
        images: list[str] = []
        places: list[tuple[int, int]] = []
        file = PartialFile(path)
        try:
            shard = plan.writer.open(file, len(rows))
            source = SampleReader(plan, self._reader, alone=self._alone)
            for part in source.parts(rows):
                if self.stopped.is_set():
                    raise _StoppedError
                for row, sample in zip(part, source.samples(part), strict=True):
                    try:
                        start = shard.add(sample)
                    except ValueError as error:
                        raise damaged(plan, row, error) from error
                    images.append(image_sum(sample.image))
                    if start >= 0:
                        places.append((start, start + len(sample.image)))
                        file.leave_out(*places[-1])
                file.flush()
                self._advance(int(plan.sizes[part.start : part.stop].sum()))
            shard.finish()
            known = len(places) == len(images)
            rest = file.rest(np.array(places, np.int64).reshape(-1, 2))
            sums = PartialFile(path + SUFFIX)
        except BaseException:
            file.abandon()
            raise
        sums.write(Sums(file.size, tuple(images), rest, not known).to_json())
        return _Whole(file, sums)
