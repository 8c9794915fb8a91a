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
from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import is_local
from gpuload.core.protocols import RangeReader
from gpuload.core.refs import WHOLE_FILE
from gpuload.shards.arrow import is_huggingface
from gpuload.shards.columns import KEY_NAMES, LABEL_NAMES, preferred
from gpuload.shards.folder import is_image
from gpuload.shards.table import Strings
from gpuload.shards.urls import Stamp, stamps
from gpuload.shards.write_mds import MdsWriter
from gpuload.shards.write_parquet import ParquetWriter
from gpuload.shards.write_samples import Field, Schema, Writer, split
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
    "" where the source has none. labels: int64 (n,). bounds: shards + 1 rows. digest: of all that decides.
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

    def shards(self, folder: str, name: str) -> list[str]:
        return [f"{folder}/{name}-{number:06d}{self.writer.suffix}" for number in range(len(self.bounds) - 1)]


def plan(source: Any, dataset: ShardDataset, reader: RangeReader, *, format: str, shard_bytes: int) -> Plan:
    """What packing this data set writes. source: what it was made of, as it was given. reader: of its files.

    Raises ConfigError, and ShardError where a file may not be read.
    """
    ids = np.arange(len(dataset))
    images = dataset.refs(ids)
    whole = bool((images["length"] == WHOLE_FILE).all())
    versions = _versions(source, dataset)
    members = extra_members(dataset)
    lengths = _sizes_of_files(dataset, versions) if whole else images["length"].astype(np.int64)
    extensions = _extensions(dataset, images)
    labels = dataset.labels
    if labels is not None and dataset.label is None and format == "tar" and "cls" in members:
        labels = None  # as they are written there, whatever is around the number
    fields = _kept(fields_of(dataset, reader, members), label=labels is not None, format=format)
    classes = None if dataset.classes is None else tuple(dataset.classes)
    schema = Schema(fields, labels is not None, classes, str(extensions[0]) or _first_extension(dataset, reader))
    writer = WRITERS[format](schema)
    names = (dataset.name(row)[1] for row in ids.tolist())
    keys = unique_keys(names) if format == "tar" else Strings.of(names)
    refs = {field.name: members[field.name] for field in fields}
    field_bytes = {name: column["length"].astype(np.int64) for name, column in refs.items()}
    sizes = writer.sample_bytes(keys, lengths, field_bytes)
    bounds = split(sizes, shard_bytes=shard_bytes, overhead_bytes=writer.overhead_bytes)
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{format} {shard_bytes} {schema}\n".encode("utf-8", "surrogateescape"))
    for version in versions:
        # Of a file without a version another run cannot know whether it is the same one: it never goes on.
        state.update(f"{version} {'' if version is not None and version.version else uuid.uuid4().hex}\n".encode())
    for part in (keys.text, keys.bounds.tobytes(), lengths.tobytes(), *(field_bytes[name].tobytes() for name in refs)):
        state.update(part)
    if labels is not None:
        state.update(labels.tobytes())
    return Plan(
        dataset.files, keys, labels, images, whole, lengths, extensions, refs,
        schema, writer, sizes, bounds, state.hexdigest(),
    )  # fmt: skip


def extension_of(data: bytes) -> str:
    """What files that begin so are called; jpg where it cannot be told."""
    return next((name for magic, name in EXTENSIONS.items() if data.startswith(magic)), "jpg")


def _versions(source: Any, dataset: ShardDataset) -> list[Stamp | None]:
    """By which another run knows whether the source is the same one."""
    if is_huggingface(source):
        return [Stamp(len(dataset), source._fingerprint)]
    return stamps(shards_behind(source, dataset) or list(dataset.files), dataset.storage_options)


def _sizes_of_files(dataset: ShardDataset, versions: Sequence[Stamp | None]) -> np.ndarray:
    """Of each sample's own file. That they may be read is asked here, before anything is written."""
    for path in dataset.files:
        if is_local(path) and not os.access(path, os.R_OK):
            raise ShardError(path, "it may not be read", "Change its permissions, or remove it, before packing")
    sizes = np.array([version.size for version in versions if version is not None], np.int64)
    return sizes[dataset.refs(np.arange(len(dataset)))["file"]]


def _extensions(dataset: ShardDataset, images: np.ndarray) -> np.ndarray:
    """str (n,): what the images' files are called in the source, as a folder's or a tar's are; else ""."""
    if not dataset.members:
        paths = [os.path.splitext(path)[1][1:].lower() if is_image(path) else "" for path in dataset.files]
        return np.array(paths, np.str_)[images["file"]]
    found = np.full(len(images), "", "<U32")
    for name in dataset.members:
        if may_be_image(dataset, name):
            found[same_place(dataset.member_refs(name, np.arange(len(images))), images)] = name
    return found


def _kept(fields: Sequence[Field], *, label: bool, format: str) -> tuple[Field, ...]:
    """The fields but for those that label and key are written in place of."""
    replaced = set()
    if label:
        integers = [f.name for f in fields if f.kind == "number" and np.dtype(f.dtype).kind in "iu"]
        replaced |= {"cls", *preferred(integers, LABEL_NAMES)[:1]}
        replaced |= {"tfrecord": {LABEL_NAMES[0]}, "tar": set()}.get(format, {LABEL_NAMES[1]})
    replaced |= {KEY_NAMES[0]} if format != "tar" else set()
    return tuple(field for field in fields if field.name not in replaced)


def _first_extension(dataset: ShardDataset, reader: RangeReader) -> str:
    encoded = reader.read(dataset.files, dataset.refs(np.arange(1)))
    return extension_of(b"" if encoded.failures else encoded.encoded(0)[:8].tobytes())


def check_format(format: str) -> None:
    """Raises ConfigError for one that is not written."""
    if format not in WRITERS:
        raise ConfigError(f"format={format!r} is not written. Use {' or '.join(map(repr, WRITERS))}")
