"""The shards of a plan, written side by side: each under a temporary name, renamed when it is whole and on disk.

Owns the files, the threads, and what is left when one of them cannot go on: whole shards, and nothing else. What a
shard holds is pack_plan.py's, its bytes are the writers' (gpuload/shards/write_*.py).

Threads are enough: reading, writing and summing let the others run.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import BinaryIO

import numpy as np

from gpuload.cli.pack_plan import Plan, extension_of
from gpuload.config import default_threads
from gpuload.core.errors import GpuloadError, ShardError, sample_error
from gpuload.core.location import shown
from gpuload.core.protocols import RangeReader
from gpuload.core.refs import SAMPLE_REF, WHOLE_FILE
from gpuload.shards.checksums import SUFFIX, Sums, image_sum, read_sums, rest_sum
from gpuload.shards.write_samples import Sample

READ_BYTES = 8 << 20
"""Read at once, a thread: sequential to a disk, little memory."""

BUFFER_BYTES = 1 << 20
MOST_THREADS = 8
"""More write no faster to any one disk."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class _StoppedError(Exception):
    """Another thread failed, or the user interrupts: this shard is given up."""


def write_shards(plan: Plan, shards: Sequence[str], reader: RangeReader, *, advance: Callable[[int], None]) -> int:
    """Write those that are not there yet; returns how many were. advance: hears of bytes that are done.

    Raises ShardError for a full disk, SampleError for an image that cannot be read; all threads have ended then.
    """
    todo, there = [], 0
    for number, path in enumerate(shards):
        if _is_whole(path, plan.bounds[number + 1] - plan.bounds[number]):
            advance(int(plan.sizes[plan.bounds[number] : plan.bounds[number + 1]].sum()))
            there += 1
        else:
            todo.append(number)
    stopped = threading.Event()
    with ThreadPoolExecutor(min(MOST_THREADS, default_threads()), "gpuload-pack") as pool:
        try:
            jobs = [
                pool.submit(_write_shard, plan, number, shards[number], reader, advance, stopped) for number in todo
            ]
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
    errors = [error for job in jobs if (error := job.exception()) is not None]
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


def _write_shard(
    plan: Plan, number: int, path: str, reader: RangeReader, advance: Callable[[int], None], stopped: threading.Event
) -> None:
    if stopped.is_set():
        raise _StoppedError
    rows = range(int(plan.bounds[number]), int(plan.bounds[number + 1]))
    images, places = [], []
    with new_file(path) as file:
        shard = plan.writer.open(file, len(rows))
        for part in _parts(plan, rows):
            if stopped.is_set():
                raise _StoppedError
            for row, sample in zip(part, _samples(plan, part, reader), strict=True):
                try:
                    start = shard.add(sample)
                except ValueError as error:
                    raise _sample_error(plan, row, error) from error
                images.append(image_sum(sample.image))
                places.append((start, start + len(sample.image)))
            advance(int(plan.sizes[part.start : part.stop].sum()))
        shard.finish()
        file.flush()
        known = all(start >= 0 for start, _ in places)
        size = file.seek(0, os.SEEK_END)
        ranges = np.array(places if known else [], np.int64).reshape(-1, 2)
        rest = rest_sum(lambda offset, length: os.pread(file.fileno(), length, offset), size, ranges)
        with new_file(path + SUFFIX) as sums:
            sums.write(Sums(size, tuple(images), rest, not known).to_json())


def _parts(plan: Plan, rows: range) -> Iterator[range]:
    """These samples in pieces of about READ_BYTES."""
    start = rows.start
    while start < rows.stop:
        ends = np.cumsum(plan.sizes[start : rows.stop])
        stop = start + max(1, int(np.searchsorted(ends, READ_BYTES, "right")))
        yield range(start, stop)
        start = stop


def _samples(plan: Plan, rows: range, reader: RangeReader) -> Iterator[Sample]:
    """Raises SampleError for what cannot be read, or is not what it was when packing began."""
    part = slice(rows.start, rows.stop)
    names = [field.name for field in plan.schema.fields]
    columns = [plan.images[part], *(plan.fields[name][part] for name in names)]
    refs = np.concatenate(columns).astype(SAMPLE_REF)
    wanted = np.flatnonzero((refs["length"] >= 0) | (refs["length"] == WHOLE_FILE))
    place = np.full(len(refs), -1)
    place[wanted] = np.arange(len(wanted))
    encoded = reader.read(plan.files, refs[wanted])
    data, offsets, lengths = encoded.data.data, encoded.offsets.tolist(), encoded.lengths.tolist()
    for row, places in zip(rows, place.reshape(len(columns), len(rows)).T.tolist(), strict=True):
        failure = next((encoded.failures[at] for at in places if at in encoded.failures), None)
        if failure is None and lengths[places[0]] != plan.lengths[row]:
            now, then = lengths[places[0]], plan.lengths[row]
            failure = OSError(f"it had {then} bytes when packing began and has {now} now")
        if failure is not None:
            raise _sample_error(plan, row, failure) from failure
        image = data[offsets[places[0]] :][: lengths[places[0]]]
        values = [data[offsets[at] :][: lengths[at]] if at >= 0 else None for at in places[1:]]
        extension = str(plan.extensions[row]) or extension_of(bytes(image[:8]))
        label = None if plan.labels is None else int(plan.labels[row])
        yield Sample(plan.keys[row], label, image, extension, tuple(values))


def _sample_error(plan: Plan, row: int, cause: BaseException) -> Exception:
    return sample_error(shown(plan.files[int(plan.images["file"][row])]), row, plan.keys[row], cause)


@contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """A file that appears under `path` when the block ends, whole and on disk, or not at all.

    Raises ShardError where nothing can be written, which is what an OSError in the block is taken for.
    """
    folder, base = os.path.split(path)
    temporary = f"{folder}/.{base}.partial"
    try:
        with open(temporary, "w+b", buffering=BUFFER_BYTES) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.close()  # what it still buffers has nowhere to go either
                raise
        os.replace(temporary, path)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, GpuloadError) or not isinstance(error, OSError):
            raise
        if error.errno not in NO_SPACE:
            raise ShardError(path, f"it cannot be written: {error}", "Check the disk") from error
        cure = "Make room, then run the same command again: it goes on with this shard"
        raise ShardError(path, f"no room for it: {error.strerror}", cure) from error
