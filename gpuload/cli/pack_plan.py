"""What `gpuload pack` writes, decided before the first byte is: samples, fields, shards.

Owns which of a source's members are fields, what stands for image, label and key, and the digest of all that decides:
a second run that finds the same digest goes on where the first one ended. Nothing is written here.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.cli.opened import extra_members, fields_of, may_be_image, same_place, shards_behind
from gpuload.cli.pack_note import shard_name
from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.protocols import RangeReader
from gpuload.core.refs import WHOLE_FILE
from gpuload.shards.arrow import is_huggingface
from gpuload.shards.columns import KEY_NAMES
from gpuload.shards.folder import is_image
from gpuload.shards.keys import as_text
from gpuload.shards.table import NO_LABEL, Strings
from gpuload.shards.urls import Options, Stamp, stamps
from gpuload.shards.write_mds import MdsWriter
from gpuload.shards.write_parquet import ParquetWriter
from gpuload.shards.write_samples import Schema, Writer, split
from gpuload.shards.write_tar import TarWriter, unique_keys
from gpuload.shards.write_tfrecord import TfrecordWriter

if TYPE_CHECKING:
    from gpuload.dataset import ShardDataset

WRITERS: dict[str, Callable[[Schema], Writer]] = {
    "tar": TarWriter,
    "tfrecord": TfrecordWriter,
    "parquet": ParquetWriter,
    "mds": MdsWriter,
}
EXTENSIONS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"RIFF": "webp",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


@dataclass(frozen=True)
class Plan:
    """files: what refs name. images, fields: SAMPLE_REF (n,) in them, fields by name, length MISSING where there is
    none. whole: images are whole files. lengths: int64 (n,), of the images. extensions: str (n,), of the images' files,
    "" where the source has none. labels: int64 (n,), NO_LABEL for none. bounds: shards + 1 rows. digest: of all that
    decides. sources: files that the source names. seen: int64, a hash of each one's version, 0 where it is not there.
    left_out: why images that are files of their own are not in it. notes: what the format does not keep as it was.
    """

    files: Sequence[str]
    keys: Strings
    labels: np.ndarray | None
    images: np.ndarray
    whole: bool
    lengths: np.ndarray
    extensions: np.ndarray
    fields: Mapping[str, np.ndarray]
    schema: Schema
    writer: Writer
    sizes: np.ndarray
    bounds: np.ndarray
    digest: str
    sources: Sequence[str]
    seen: np.ndarray
    left_out: tuple[ShardError, ...]
    notes: tuple[str, ...]

    def shards(self, folder: str, name: str) -> list[str]:
        return [shard_name(f"{folder}/{name}", n, self.writer.suffix) for n in range(len(self.bounds) - 1)]


def plan(source: Any, dataset: ShardDataset, reader: RangeReader, *, format: str, shard_bytes: int) -> Plan:
    """What packing this data set writes. source: what it was made of, as it was given. dataset: with fields=("image",
    "key"). reader: of its files.

    Raises ConfigError, and ShardError where a file may not be read.
    """
    readable = _readable(source, dataset)
    ids, lengths = readable.ids, readable.lengths
    images = dataset.refs(ids)
    members = extra_members(dataset)
    extensions = _extensions(dataset, images)
    labels, own = dataset.labels, dataset.label_member
    if not own:
        labels = dataset.known_labels  # those that some samples have are nowhere else
    if format == "tar" and own and own not in dataset.encodings and dataset.label is None:
        labels = None  # a tar's own members go through, whatever is around the number
    replaced = {KEY_NAMES[0] if format != "tar" else "", own if labels is not None else ""}
    fields = tuple(field for field in fields_of(dataset, reader, members) if field.name not in replaced)
    classes = None if dataset.classes is None else tuple(dataset.classes)
    labels = None if labels is None else labels[ids]
    image = str(extensions[0]) or _first_extension(dataset, reader, images[:1])
    unlabelled = labels is not None and bool((labels == NO_LABEL).any())
    schema = Schema(fields, labels is not None, classes, image, unlabelled)
    writer = WRITERS[format](schema)
    (names,) = dataset.columns(ids)
    keys = unique_keys(names) if format == "tar" else Strings.of(map(as_text, names))
    refs = {field.name: members[field.name] for field in fields}
    field_bytes = {name: column["length"].astype(np.int64) for name, column in refs.items()}
    sizes = writer.sample_bytes(keys, lengths, field_bytes)
    bounds = split(sizes, shard_bytes=shard_bytes, overhead_bytes=writer.overhead_bytes)
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{format} {shard_bytes} {schema}\n".encode("utf-8", "surrogateescape"))
    for version in readable.versions:
        # Of a file without a version another run cannot know whether it is the same one: it never goes on.
        state.update(f"{version} {'' if version is None or version.version else uuid.uuid4().hex}\n".encode())
    for part in (keys.text, keys.bounds.tobytes(), lengths.tobytes(), *(field_bytes[name].tobytes() for name in refs)):
        state.update(part)
    if labels is not None:
        state.update(labels.tobytes())
    return Plan(
        dataset.files, keys, labels, images, readable.whole, lengths, extensions, refs,
        schema, writer, sizes, bounds, state.hexdigest(), readable.sources, _seen(readable.versions), readable.left_out,
        _renamed(names, format) + writer.notes,
    )  # fmt: skip


def extension_of(data: bytes) -> str:
    """What files that begin so are called; jpg where it cannot be told."""
    return next((name for magic, name in EXTENSIONS.items() if data.startswith(magic)), "jpg")


def _renamed(names: Sequence[str], format: str) -> tuple[str, ...]:
    changed = [text for name in names if (text := as_text(name)) != name] if format != "tar" else []
    return (f"{len(changed)} keys are no UTF-8 and have %XX for such bytes, as {changed[0]!r}",) if changed else ()


@dataclass(frozen=True)
class _Readable:
    """ids: int64 (n,), samples that can be read, as far as that is known before. whole, lengths, left_out: as Plan's.

    versions: of `sources`, by which another run knows whether they are the same; None: not there.
    """

    ids: np.ndarray
    whole: bool
    lengths: np.ndarray
    sources: Sequence[str]
    versions: Sequence[Stamp | None]
    left_out: tuple[ShardError, ...] = ()


def _readable(source: Any, dataset: ShardDataset) -> _Readable:
    """That files may be read is asked here, before anything is written. Raises ShardError; on_error="skip": for all."""
    ids = np.arange(len(dataset))
    refs = dataset.refs(ids)
    whole = bool((refs["length"] == WHOLE_FILE).all())
    if is_huggingface(source):
        return _Readable(ids, whole, refs["length"].astype(np.int64), (), [Stamp(len(dataset), source._fingerprint)])
    failed: list[ShardError] = []
    skipped = failed if dataset.on_error == "skip" else None
    files = shards_behind(source, dataset) or dataset.files
    versions = stamps(files, dataset.storage_options, failed=skipped)
    if not whole:  # shards that are not there are among the data set's findings
        return _Readable(ids, whole, refs["length"].astype(np.int64), files, versions)
    for number, path in enumerate(files):
        if versions[number] is not None and is_local(path) and not os.access(path, os.R_OK):
            error = ShardError(path, "it may not be read", "Change its permissions, or remove it, before packing")
            if skipped is None:
                raise error
            skipped.append(error)
            versions[number] = None
    lengths = np.array([-1 if version is None else version.size for version in versions], np.int64)[refs["file"]]
    ids = np.flatnonzero(lengths >= 0)
    if not len(ids):
        raise failed[0]
    return _Readable(ids, whole, lengths[ids], files, versions, tuple(failed))


def _seen(versions: Sequence[Stamp | None]) -> np.ndarray:
    """In this process, and of a million files in 8 MB."""
    return np.array([0 if version is None else hash(version) for version in versions], np.int64)


def require_unchanged(plan: Plan, options: Options) -> None:
    """Raises ShardError where a file of the source is another one by now: shards may hold both."""
    if not plan.sources:
        return
    now = _seen(stamps(plan.sources, options, failed=[]))
    changed = np.flatnonzero((now != plan.seen) & (now != 0))
    if len(changed):
        more = f" (and {len(changed) - 1} more files)" if len(changed) > 1 else ""
        cure = "Delete the shards and their .pack.json, and pack again"
        raise ShardError(shown(plan.sources[changed[0]]), f"it changed while it was packed{more}", cure)


def _extensions(dataset: ShardDataset, images: np.ndarray) -> np.ndarray:
    """str (n,): what the images' files are called in the source, as a folder's or a tar's are; else ""."""
    if not dataset.members:
        names = [path.rpartition(".")[2].lower() if is_image(path) else "" for path in dataset.files]
        return np.array(names, np.str_)[images["file"]]
    found = np.full(len(images), "", "<U32")
    for name in dataset.members:
        if may_be_image(dataset, name):
            found[same_place(dataset.member_refs(name, np.arange(len(images))), images)] = name
    return found


def _first_extension(dataset: ShardDataset, reader: RangeReader, first: np.ndarray) -> str:
    encoded = reader.read(dataset.files, first)
    return extension_of(b"" if encoded.failures else encoded.encoded(0)[:8].tobytes())


def check_format(format: str) -> None:
    """Raises ConfigError for one that is not written."""
    if format not in WRITERS:
        raise ConfigError(f"format={format!r} is not written. Use {' or '.join(map(repr, WRITERS))}")
