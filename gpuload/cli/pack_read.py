"""The samples of a shard as `gpuload pack` reads them: a few MB at a time, in order.

Owns the pieces and what is said of a sample that cannot be read, or is not what it was when packing began. Ranges of
shards and remote files come through the data set's reader. Files of this machine, an image each, are read here: their
sizes are known from the plan, so that a file takes three calls of the system and no new memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.cli.pack_plan import Plan, extension_of
from gpuload.core.errors import sample_error
from gpuload.core.location import is_local, local_path, shown
from gpuload.core.protocols import RangeReader
from gpuload.core.refs import SAMPLE_REF, WHOLE_FILE
from gpuload.shards.table import NO_LABEL
from gpuload.shards.write_samples import Sample

READ_BYTES = 8 << 20
"""Read at once, a thread: sequential to a disk, little memory."""

FILES_BYTES = 2 << 20
"""The same of files, which are read one by one in any case: what stays in the processor's cache until it is written."""


@dataclass(frozen=True)
class _Read:
    """What came of some samples. images: None for one with an entry in `failures`; values: the fields, see Sample."""

    images: Sequence[memoryview | None]
    values: Sequence[tuple[memoryview | None, ...]]
    failures: dict[int, BaseException]


def files_alone(plan: Plan) -> bool:
    """Whether all that a plan reads are whole files of this machine. Looks at each."""
    return plan.whole and not plan.fields and all(map(is_local, plan.files))


class SampleReader:
    """One thread's. What it gives is overwritten when more is read. alone: `files_alone` of the plan."""

    def __init__(self, plan: Plan, reader: RangeReader, *, alone: bool):
        self._plan, self._reader, self._alone = plan, reader, alone
        self._at_once = FILES_BYTES if self._alone else READ_BYTES
        self._buffer = memoryview(b"")

    def parts(self, rows: range) -> Iterator[range]:
        """These samples in the pieces to ask for."""
        ends = np.cumsum(self._plan.sizes[rows.start : rows.stop])
        start = 0
        while start < len(rows):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + self._at_once, "right")))
            yield rows[start:stop]
            start = stop

    def samples(self, rows: range) -> Iterator[Sample]:
        """Raises SampleError."""
        plan, part = self._plan, slice(rows.start, rows.stop)
        lengths = plan.lengths[part].tolist()
        read = self._files(rows, lengths) if self._alone else self._ranges(rows, lengths)
        numbers = [NO_LABEL] * len(rows) if plan.labels is None else plan.labels[part].tolist()
        labels = [None if number == NO_LABEL else number for number in numbers]
        known = zip(plan.keys[part], labels, plan.extensions[part].tolist(), strict=True)
        for place, (key, label, extension) in enumerate(known):
            image = read.images[place]
            if image is None:
                raise damaged(plan, rows[place], read.failures[place]) from read.failures[place]
            yield Sample(key, label, image, extension or extension_of(bytes(image[:8])), read.values[place])

    def _files(self, rows: range, lengths: list[int]) -> _Read:
        room = sum(lengths) + 1  # one more byte, by which a file that has grown is seen
        if len(self._buffer) < room:
            self._buffer = memoryview(bytearray(max(room, FILES_BYTES)))
        files = self._plan.images["file"][rows.start : rows.stop].tolist()
        images: list[memoryview | None] = []
        failures: dict[int, BaseException] = {}
        at = 0
        for place, (file, length) in enumerate(zip(files, lengths, strict=True)):
            into = self._buffer[at : at + length + 1]
            try:
                got = _read_file(local_path(self._plan.files[file]), into)
                if got != length:
                    raise _changed(length, got)
                images.append(into[:length])
            except OSError as error:
                failures[place] = error
                images.append(None)
            at += length
        return _Read(images, [()] * len(rows), failures)

    def _ranges(self, rows: range, known: list[int]) -> _Read:
        plan, part, n = self._plan, slice(rows.start, rows.stop), len(rows)
        columns = [plan.images[part], *(plan.fields[field.name][part] for field in plan.schema.fields)]
        refs = np.concatenate(columns).astype(SAMPLE_REF)
        wanted = np.flatnonzero((refs["length"] >= 0) | (refs["length"] == WHOLE_FILE))
        encoded = self._reader.read(plan.files, refs[wanted])
        data, lengths = encoded.data.data, encoded.lengths.tolist()
        found: list[memoryview | None] = [None] * len(refs)
        failures: dict[int, BaseException] = {}
        for number, (place, start, length) in enumerate(
            zip(wanted.tolist(), encoded.offsets.tolist(), lengths, strict=True)
        ):
            found[place] = data[start : start + length]
            if number in encoded.failures:
                failures.setdefault(place % n, encoded.failures[number])
            elif place < n and length != known[place]:
                failures[place] = _changed(known[place], length)
        for place in failures:
            found[place] = None
        fields = [found[start : start + n] for start in range(n, len(found), n)]
        return _Read(found[:n], list(zip(*fields, strict=True)) if fields else [()] * n, failures)


def damaged(plan: Plan, row: int, cause: BaseException) -> Exception:
    """A SampleError that names this sample."""
    return sample_error(shown(plan.files[int(plan.images["file"][row])]), row, plan.keys[row], cause)


def _changed(then: int, now: int) -> OSError:
    return OSError(f"it had {then} bytes when packing began and has {now} now")


def _read_file(path: str, into: memoryview) -> int:
    """How long the file is; its bytes, as far as there is room."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        got = os.readv(fd, (into,))
        while 0 < got < len(into) - 1:  # the last byte is room for what must not be there
            more = os.readv(fd, (into[got:],))
            if not more:
                break
            got += more
        return got if got < len(into) else os.fstat(fd).st_size
    finally:
        os.close(fd)
