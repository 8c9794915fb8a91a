"""`gpuload verify`: reads all of a data set again and says what is wrong with it, by name.

Owns the walk and what is asked of each shard and sample: the format's own checks (headers, sizes, CRCs: the shards are
indexed anew for that), those that no reader makes (CRC-32 of stored ZIP members, hashes in MDS's index.json), the
checksums that `gpuload pack` left beside it, whether every image decodes, and whether every field is what its name or
type says. What a format says of itself is its reader's to know (gpuload/shards/).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from gpuload.cli.opened import same_place, shards_behind
from gpuload.cli.pack_note import not_as_noted
from gpuload.cli.progress import bytes_progress, count_progress
from gpuload.config import default_threads
from gpuload.core.errors import SampleError, ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.protocols import RangeReader
from gpuload.core.wording import counts, size
from gpuload.shards.checksums import Sums, image_sum, read_sums, rest_sum
from gpuload.shards.expansion import Shard
from gpuload.shards.fields import PICKLED, parse_field
from gpuload.shards.formats import format_named
from gpuload.shards.manifest import open_manifest
from gpuload.shards.mds import wrong_hash
from gpuload.shards.table import MIXED
from gpuload.shards.tar import LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES
from gpuload.shards.tar_headers import Window
from gpuload.shards.urls import reading, stamp
from gpuload.shards.zip import MAGIC as ZIP_MAGIC
from gpuload.shards.zip import stored_sums

if TYPE_CHECKING:
    from gpuload.dataset import ShardDataset

ROWS = 32
"""Samples a thread takes at a time: 3 MB of photographs."""

RESTORE = "Restore it from a copy, or write it again"
PACK_AGAIN = "Restore it from its source, or pack again"
IN_OTHERS = "bytes outside of the images (names, labels, fields) are not those that were packed"
IN_REST = "its bytes are not those that were packed"
MEND = "Repair or remove it in the source, then write the shard again"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. kind: "shard", "checksum", "image", "field" or "label"; key: "" for a whole shard."""

    kind: str
    shard: str
    key: str
    problem: str
    cure: str

    def __str__(self) -> str:
        where = f"{self.shard}, sample {self.key}" if self.key else self.shard
        return f"{self.kind}: {where}: {self.problem}. {self.cure}"


@dataclass(frozen=True)
class Verified:
    """bytes: of the images that were read. summed: how many shards had checksums. faults: in the order of the samples,
    those of whole shards first."""

    shards: int
    samples: int
    bytes: int
    summed: int
    faults: tuple[Fault, ...]

    @property
    def kinds(self) -> dict[str, int]:
        """How many faults of each kind."""
        return dict(Counter(fault.kind for fault in self.faults))


def verify(
    urls: Any,
    *,
    format: str = "auto",
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Verified:
    """Read everything that `urls` (as for ShardDataset) names. Raises ShardError where nothing of it can be read.

    threads: None for one a core.

    >>> verify("packed/").faults
    ()
    """
    from gpuload.dataset import ShardDataset  # here, so that `gpuload --help` does not wait for torch

    options = dict(storage_options or {})

    def opened() -> ShardDataset:
        return ShardDataset(urls, format=format, fields=("image",), on_error="skip", storage_options=options)

    dataset = opened()
    shards = shards_behind(urls, dataset)
    gone = not_as_noted(shards, options)
    if shards:
        dataset.close()
        with count_progress("indexing", len(shards), shown=progress) as advance:
            open_manifest(
                shards, options, format=format, tolerant=True, rebuild=True, on_shard=lambda url: advance(1)
            )  # fmt: skip
        dataset = opened()
    reader = dataset.new_reader()
    try:
        walk = _Walk(dataset, reader, options)
        ids = np.arange(len(dataset))
        blocks = [ids[start : start + ROWS] for start in range(0, len(ids), ROWS)]
        with ThreadPoolExecutor(threads or default_threads(), "gpuload-verify") as pool:
            with count_progress("checksums of shards", len(shards), shown=progress) as advance:
                faults = [f for found in _each(pool, walk.shard, shards, lambda _: advance(1)) for f in found]
            total = int(np.maximum(dataset.refs(ids)["length"], 0).sum()) or len(ids)
            with bytes_progress("samples", total, shown=progress) as advance:
                checked = list(_each(pool, walk.samples, blocks, lambda block: advance(block.bytes)))
    finally:
        reader.close()
        dataset.close()
    lost = [Fault("shard", shown(f.shard), f.key, f.problem, f.cure) for f in dataset.findings if not f.note]
    lost += [Fault("shard", error.url, "", error.problem, PACK_AGAIN) for error in gone]
    found = [fault for block in checked for fault in block.faults]
    named = {fault.shard for fault in found if fault.kind == "checksum"}
    faults = [*lost, *(f for f in faults if f.problem != IN_REST or f.shard not in named), *found]
    return Verified(len(shards), len(ids), sum(b.bytes for b in checked), len(walk.sums), tuple(faults))


@dataclass(frozen=True)
class _Block:
    bytes: int
    faults: tuple[Fault, ...]


class _Walk:
    """What is asked of each shard, then of each block of samples. Any thread."""

    def __init__(self, dataset: ShardDataset, reader: RangeReader, options: Mapping[str, Any]):
        self._dataset, self._reader, self._options = dataset, reader, options
        self._files = list(dataset.files)
        self._numbers = {file: number for number, file in enumerate(self._files)}
        self._images = dataset.refs(np.arange(len(dataset)))
        self._expected: dict[int, str] = {}
        self._stored: dict[tuple[int, int], int] = {}  # (file, offset) of stored ZIP members -> CRC-32
        lost = {shown(finding.shard) for finding in dataset.findings if not finding.note and not finding.key}
        self._lost = lost - set(map(shown, self._files))  # nothing of them can be read, which is said once
        self.sums: dict[str, Sums] = {}

    def shard(self, url: str) -> list[Fault]:
        """Its size, and all bytes that are no image's, by the checksums beside it; those of images are kept."""
        if shown(url) in self._lost:
            return []
        try:
            sums = read_sums(url, self._options)
            if sums is None:
                return self._by_its_format(url)
            bytes_now = stamp(url, self._options).size
        except ShardError as error:
            return [Fault("checksum", error.url, "", error.problem, error.cure)]
        self.sums[url] = sums
        rows = np.flatnonzero(self._images["file"] == self._numbers.get(url, -1))
        if bytes_now != sums.size:
            return [self._shard_fault(url, f"it has {bytes_now} bytes, and was packed with {sums.size}")]
        if len(rows) == len(sums.images):
            self._expected.update(zip(rows.tolist(), sums.images, strict=True))
        elif not sums.images_in_rest:
            return [self._shard_fault(url, f"it has {len(rows)} samples, and was packed with {len(sums.images)}")]
        refs = self._images[rows[:0] if sums.images_in_rest else rows]
        ranges = np.stack([refs["offset"], refs["offset"] + refs["length"]], axis=1)
        window_bytes = LOCAL_WINDOW_BYTES if is_local(url) else REMOTE_WINDOW_BYTES
        with reading(url, self._options) as read_at:
            window = Window(read_at, window_bytes=window_bytes)
            same = rest_sum(window.read, sums.size, ranges) == sums.rest
        return [] if same else [self._shard_fault(url, IN_REST if sums.images_in_rest else IN_OTHERS)]

    def _by_its_format(self, url: str) -> list[Fault]:
        """What the shard or its index.json says of its bytes, where nothing that is packed does. Raises ShardError."""
        known = format_named(url)
        if known is not None and known.name == "mds":
            wrong = wrong_hash(url, self._options)
            return [Fault("checksum", shown(url), "", wrong, RESTORE)] if wrong else []
        with reading(url, self._options) as read_at:
            is_zip = read_at(0, 4) in ZIP_MAGIC
        if is_zip and url in self._numbers:
            sums = stored_sums(Shard.at(url, stamp(url, self._options), self._options))
            self._stored.update(((self._numbers[url], start), crc) for start, crc in sums.items())
        return []

    def samples(self, ids: np.ndarray) -> _Block:
        """Each image against its checksum and through a decoder; each field through its parser."""
        encoded = self._reader.read(self._files, self._images[ids])
        faults = [fault for row, sample in enumerate(ids.tolist()) for fault in self._image(encoded, row, sample)]
        for name in self._dataset.members:
            encoding = self._dataset.encodings.get(name, "")
            if encoding != PICKLED and not encoding.startswith(MIXED):
                faults += self._field(name, encoding, ids)
        classes, labels = self._dataset.classes, self._dataset.labels
        if classes is not None and labels is not None:
            for sample in ids[(labels[ids] < 0) | (labels[ids] >= len(classes))].tolist():
                problem = f"its label {labels[sample]} is none of the {len(classes)} classes"
                faults.append(self._fault("label", sample, problem, "Correct the label, or the list of classes"))
        return _Block(int(encoded.lengths.sum()), tuple(faults))

    def _image(self, encoded: Any, row: int, sample: int) -> Iterator[Fault]:
        from gpuload.decode.single import decode_jpeg  # here: the compiler takes 0.4 s to import

        if row in encoded.failures:
            yield self._fault("image", sample, f"it cannot be read: {encoded.failures[row]}", MEND)
            return
        data = encoded.encoded(row)
        expected = self._expected.get(sample)
        if expected is not None and image_sum(data.data) != expected:
            yield self._fault("checksum", sample, "the image is not the one that was packed", PACK_AGAIN)
        stored = self._stored.get((int(self._images["file"][sample]), int(self._images["offset"][sample])))
        if stored is not None and zlib.crc32(data.data) != stored:
            yield self._fault("checksum", sample, "its CRC-32 is not the one in the archive's directory", RESTORE)
        try:
            decode_jpeg(data)
        except SampleError as error:
            yield self._fault("image", sample, error.problem, MEND)

    def _field(self, name: str, encoding: str, ids: np.ndarray) -> Iterator[Fault]:
        refs, images = self._dataset.member_refs(name, ids), self._images[ids]
        mine = (refs["length"] >= 0) & ~same_place(refs, images)
        encoded = self._reader.read(self._files, refs[mine])
        for row, sample in enumerate(ids[mine].tolist()):
            try:
                if row in encoded.failures:
                    raise encoded.failures[row]
                parse_field(name, encoding, encoded.encoded(row).tobytes())
            except (OSError, ValueError) as error:
                yield self._fault("field", sample, f"its field {name}: {error}", MEND)

    def _shard_fault(self, url: str, problem: str) -> Fault:
        return Fault("checksum", shown(url), "", problem, PACK_AGAIN)

    def _fault(self, kind: str, sample: int, problem: str, cure: str) -> Fault:
        shard, key = self._dataset.name(sample)
        return Fault(kind, shard, key, problem, cure)


def _each(
    pool: ThreadPoolExecutor, work: Callable[[Any], Any], items: Iterable[Any], done: Callable[[Any], None]
) -> Iterator[Any]:
    """work(item) of all, in order; what is not begun is dropped where one raises."""
    jobs = [pool.submit(work, item) for item in items]
    try:
        for job in jobs:
            result = job.result()
            done(result)
            yield result
    finally:
        for job in jobs:
            job.cancel()


def verify_command(
    urls: Annotated[list[str], typer.Argument(help="What ShardDataset reads: shards, folders, patterns, URLs.")],
    format: Annotated[str, typer.Option(help="The shards' format, where it cannot be told.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="Threads that read and decode.", show_default="one a core")
    ] = None,
) -> None:
    """Read everything again: checksums, structure, every image and field. Exit code 1 if something is wrong."""
    found = verify(urls[0] if len(urls) == 1 else urls, format=format, threads=threads, progress=True)
    for fault in found.faults:
        typer.echo(str(fault))
    summed = f", {found.summed} of {found.shards} shards with checksums" if found.shards else ""
    wrong = f"{len(found.faults)} findings ({counts(found.kinds)})" if found.faults else "all whole"
    console = Console(stderr=True)
    console.print(f"{found.samples} samples, {size(found.bytes)} of images{summed}: {wrong}", highlight=False)
    if found.faults:
        raise typer.Exit(1)
