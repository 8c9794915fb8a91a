"""`gpuload pack`: any data set that gpuload reads, as tar shards that it reads fastest.

Owns the run: what is already there, writing shard after shard, and what is left when it is killed or the disk is full.
The encoded bytes go through unchanged. Layout and sizes are shards/write_tar.py's.

A shard is written under a temporary name and renamed when it is whole and on disk. Its content is decided before the
first byte is written, from keys and sizes alone, so that a second run knows what is missing and writes the same bytes;
that the source is still the same, it knows from the stamps (size and time, or etag) of all its files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any

import fsspec
import numpy as np
import typer
from rich.console import Console

from gpuload.cli.index import index
from gpuload.cli.progress import bytes_progress
from gpuload.core.errors import ConfigError, ShardError, sample_error
from gpuload.core.location import is_local, shown
from gpuload.core.refs import SAMPLE_REF, WHOLE_FILE
from gpuload.shards.catalog import CLASSES_FILE, choose, tar_shards
from gpuload.shards.table import MISSING, Strings
from gpuload.shards.tar import COMPRESSED
from gpuload.shards.urls import Stamp, expand, is_folder, reading, stamps
from gpuload.shards.write_tar import END, header, padding, sample_bytes, split, unique_keys

if TYPE_CHECKING:
    from gpuload.dataset import ShardDataset

FORMATS = ("tar",)
READ_BYTES = 16 << 20
"""Read and written at once: sequential to a disk, little memory."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


@dataclass(frozen=True)
class Packed:
    """shards: their paths, in order. resumed: how many of them an earlier run had written."""

    shards: tuple[str, ...]
    samples: int
    bytes: int
    resumed: int


@dataclass(frozen=True)
class _Plan:
    """members: extension -> SAMPLE_REF (n,) in `files`, length MISSING where there is none. labels: int64 (n,), to be
    written as `.cls`, or None where that is among the members. bounds: shards + 1 rows. digest: of all that decides.
    """

    files: Any
    keys: Strings
    members: Mapping[str, np.ndarray]
    labels: np.ndarray | None
    sizes: np.ndarray
    bounds: np.ndarray
    digest: str


@dataclass(frozen=True)
class _Source:
    """urls: what is read. original: unpacked copy -> the compressed shard that it was made of."""

    urls: list[str]
    original: Mapping[str, str]


def pack(
    src: str | os.PathLike[str] | Iterable[str],
    dst: str | os.PathLike[str],
    format: str = "tar",
    shard_size: str | int = "128MB",
    *,
    name: str | None = None,
    label: str | Callable[[str], int] | None = None,
    entropy: bool = True,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Packed:
    """Write the samples of `src` (as for ShardDataset) to `dst`/NAME-000000.tar and so on; NAME by default is dst's.

    Keys, labels (`.cls`) and all other members are kept, the images' bytes unchanged; `classes.json` keeps the class
    names. Index and manifest are made, and with `entropy` the JPEGs' seek points, in a file beside each shard. Run
    again, it continues after the last whole shard. Raises ConfigError, also for a source that changed since;
    ShardError, also for a full disk; SampleError for an image that cannot be read.

    >>> pack("photos/", "packed/", shard_size="64MB")
    """
    from gpuload.dataset import ShardDataset  # here, so that `gpuload --help` does not wait for torch

    choose("format", format, FORMATS)
    shard_bytes = parse_bytes(shard_size)
    options = dict(storage_options or {})
    given = expand(src, options)
    folder = os.path.abspath(os.fspath(dst))
    name = name or os.path.basename(folder)
    _keep_apart(given, folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the shards' folder cannot be made: {error}. Choose another one") from error
    with ExitStack() as stack:
        stack.enter_context(_alone(folder, name))
        source = stack.enter_context(_unpacked(given, folder, options))
        dataset = ShardDataset(source.urls, fields=("image",), label=label, on_error=on_error, storage_options=options)
        stack.callback(dataset.close)
        plan = _plan(dataset, source, shard_bytes)
        shards = [f"{folder}/{name}-{number:06d}.tar" for number in range(len(plan.bounds) - 1)]
        _record(folder, name, plan, shards)
        if dataset.classes is not None:
            _replace(f"{folder}/{CLASSES_FILE}", json.dumps({"classes": dataset.classes}, ensure_ascii=False).encode())
        reader = dataset.new_reader()
        stack.callback(reader.close)
        advance = stack.enter_context(bytes_progress(f"packing {name}", int(plan.sizes.sum()), shown=progress))
        resumed = 0
        for number, path in enumerate(shards):
            rows = range(int(plan.bounds[number]), int(plan.bounds[number + 1]))
            size = int(plan.sizes[rows.start : rows.stop].sum()) + len(END)
            if os.path.exists(path) and os.path.getsize(path) == size:
                resumed += 1
                advance(size)
                continue
            with _new_file(path, size) as file:
                for part in _parts(plan, rows, dataset, reader):
                    _write(file, part, path, size)
                    advance(len(part))
                _write(file, END, path, size)
    index(shards, entropy=entropy, progress=progress)
    return Packed(tuple(shards), len(plan.keys), sum(map(os.path.getsize, shards)), resumed)


def parse_bytes(size: str | int) -> int:
    """Bytes of "128MB", "64 MiB", "1.5G" or a number. Raises ConfigError.

    >>> parse_bytes("128MB"), parse_bytes("1KiB")
    (128000000, 1024)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", str(size).strip().upper())
    number = float(match[1]) * UNITS[match[2] or ""] if match else 0
    if number < 1:
        raise ConfigError(f"shard_size={size!r} is no size. Write it as 128MB, 64MiB or a number of bytes")
    return int(number)


def _keep_apart(urls: list[str], folder: str) -> None:
    """Raises ConfigError where the source and the folder for its shards lie in each other: one would be the other."""
    target = os.path.realpath(folder)
    for url in urls:
        if not is_local(url):
            continue
        source = os.path.realpath(url)
        if source == target:
            how = "is the source itself"
        elif target.startswith(os.path.join(source, "")):
            how = f"lies in the source {url}"
        elif source.startswith(os.path.join(target, "")):
            how = f"holds the source {url}"
        else:
            continue
        raise ConfigError(f"the folder for the shards, {folder}, {how}. Choose one beside the source")


def _plan(dataset: ShardDataset, source: _Source, shard_bytes: int) -> _Plan:
    ids = np.arange(len(dataset))
    refs = dataset.refs(ids)
    versions = stamps([source.original.get(file, file) for file in dataset.files], dataset.storage_options)
    if dataset.members:
        members = {extension: dataset.member_refs(extension, ids) for extension in dataset.members}
    else:
        members = _whole_members(dataset, refs, versions)
    lengths = {extension: column["length"] for extension, column in members.items()}
    labels = dataset.labels
    if labels is not None and (dataset.label is not None or "cls" not in members):
        lengths["cls"] = np.array([len(str(label)) for label in labels.tolist()], np.int64)
        members.pop("cls", None)
    else:
        labels = None  # the .cls members go through as they are
    keys = unique_keys(dataset.name(row)[1] for row in ids.tolist())
    sizes = sample_bytes(keys, lengths)
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{shard_bytes} {sorted(lengths)} {dataset.classes}".encode())
    for version in versions:
        # Of a file without a version another run cannot know whether it is the same one: it never goes on.
        state.update(f"{version} {'' if version is not None and version.version else uuid.uuid4().hex}\n".encode())
    for part in (keys.text, keys.bounds.tobytes(), *(lengths[key].tobytes() for key in sorted(lengths))):
        state.update(part)
    if labels is not None:
        state.update(labels.tobytes())
    bounds = split(sizes, shard_bytes=shard_bytes)
    return _Plan(dataset.files, keys, members, labels, sizes, bounds, state.hexdigest())


def _whole_members(dataset: ShardDataset, refs: np.ndarray, versions: list[Stamp | None]) -> dict[str, np.ndarray]:
    """A folder's files as members named by their extension. That they may be read is asked here."""
    files = list(dataset.files)
    for path in files:
        if is_local(path) and not os.access(path, os.R_OK):
            raise ShardError(path, "it may not be read", "Change its permissions, or remove it, before packing")
    refs = refs.copy()
    refs["length"] = [version.size for version in versions if version is not None]
    extensions = np.array([os.path.splitext(path)[1][1:].lower() for path in files])
    members = {}
    for extension in np.unique(extensions).tolist():
        column = refs.copy()
        column["length"][extensions != extension] = MISSING
        members[extension] = column
    return members


def _parts(plan: _Plan, rows: range, dataset: ShardDataset, reader: Any) -> Iterator[bytes]:
    """The tar blocks of these samples, in pieces of about READ_BYTES. Raises SampleError for what cannot be read."""
    start = rows.start
    while start < rows.stop:
        ends = np.cumsum(plan.sizes[start : rows.stop])
        stop = start + max(1, int(np.searchsorted(ends, READ_BYTES, "right")))
        yield _blocks(plan, range(start, stop), dataset, reader)
        start = stop


def _blocks(plan: _Plan, rows: range, dataset: ShardDataset, reader: Any) -> bytes:
    names = sorted([*plan.members, "cls"] if plan.labels is not None else plan.members)
    wanted = [
        (row, name)
        for row in rows
        for name in names
        if name not in plan.members or plan.members[name]["length"][row] >= 0
    ]
    stored = [(row, name) for row, name in wanted if name in plan.members]
    refs = np.array([plan.members[name][row] for row, name in stored], SAMPLE_REF)
    expected = refs["length"].tolist()
    if not dataset.members:
        refs["length"] = WHOLE_FILE
    encoded = reader.read(plan.files, refs)
    data = encoded.data.data
    where = {place: number for number, place in enumerate(stored)}
    blocks: list[Any] = []
    for row, name in wanted:
        number = where.get((row, name))
        if number is None:
            assert plan.labels is not None
            content: Any = str(plan.labels[row]).encode()
        else:
            length = int(encoded.lengths[number])
            failure = encoded.failures.get(number)
            if failure is None and length != expected[number]:
                failure = OSError(f"it had {expected[number]} bytes when packing began and has {length} now")
            if failure is not None:
                shard, key = dataset.name(row)
                raise sample_error(shard, row, key, failure) from failure
            content = data[encoded.offsets[number] : encoded.offsets[number] + length]
        blocks += [header(f"{plan.keys[row]}.{name}", len(content)), content, padding(len(content))]
    return b"".join(blocks)


@contextmanager
def _new_file(path: str, size: int) -> Iterator[IO[bytes]]:
    """A file that appears under `path` when the block ends, whole and on disk, or not at all."""
    folder, base = os.path.split(path)
    temporary = f"{folder}/.{base}.partial"
    try:
        with open(temporary, "wb") as file:
            yield file
            _write(file, b"", path, size)
        os.replace(temporary, path)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _write(file: IO[bytes], part: bytes, path: str, size: int) -> None:
    """Write; an empty part: everything to disk. Raises ShardError where there is no room."""
    try:
        if part:
            file.write(part)
        else:
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.close()  # what it still buffers has nowhere to go either
        if error.errno not in NO_SPACE:
            raise ShardError(path, f"it cannot be written: {error}", "Check the disk") from error
        cure = "Make room, then run the same command again: it goes on with this shard"
        raise ShardError(path, f"no room for its {size} bytes: {error.strerror}", cure) from error


def _replace(path: str, content: bytes) -> None:
    with _new_file(path, len(content)) as file:
        _write(file, content, path, len(content))


def _record(folder: str, name: str, plan: _Plan, shards: list[str]) -> None:
    """Note what is being packed, or find the same note. Raises ConfigError where `folder` holds something else."""
    path = f"{folder}/{name}.pack.json"
    note = {"plan": plan.digest, "samples": len(plan.keys), "shards": len(shards)}
    cure = "Choose an empty folder or another name, or delete what is there"
    if os.path.exists(path):
        with open(path, "rb") as file:
            if json.load(file) != note:
                what = "other samples, from files that changed since, or with another size"
                raise ConfigError(f"{folder} holds {name!r} packed from {what}. {cure}")
        return
    taken = [shard for shard in shards if os.path.exists(shard)]
    if taken:
        raise ConfigError(f"{taken[0]} exists and was not written by gpuload pack. {cure}")
    _replace(path, json.dumps(note).encode())


@contextmanager
def _alone(folder: str, name: str) -> Iterator[None]:
    """Nobody else packs under this name meanwhile. The lock ends with the process, however that ends."""
    path = f"{folder}/.{name}.lock"
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "wb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another gpuload pack is writing {name!r} to {folder}. Wait for it to end") from error
        except OSError as error:
            raise ConfigError(f"nothing can be written to {folder}: {error}. Choose another folder") from error
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


@contextmanager
def _unpacked(given: list[str], folder: str, options: dict[str, Any]) -> Iterator[_Source]:
    """What is `given`, compressed shards replaced by unpacked copies in `folder`, which are deleted in the end."""
    copies: dict[str, str] = {}
    urls = []
    try:
        for named in given:
            for url in [named] if _is_image_folder(named, options) else tar_shards(named, options):
                kind = None if is_folder(url, options) else _compression(url, options)
                if kind is not None:
                    copy = f"{folder}/.unpacked-{len(copies):06d}.tar"
                    copies[copy] = url
                    _unpack(url, kind, copy, options)
                urls.append(copy if kind is not None else url)
        yield _Source(urls, copies)
    finally:
        for copy in copies:
            for path in (copy, f"{copy}.gpuload"):
                with suppress(FileNotFoundError):
                    os.unlink(path)


def _is_image_folder(url: str, options: dict[str, Any]) -> bool:
    if not is_folder(url, options):
        return False
    try:
        tar_shards(url, options)
    except ShardError:
        return True
    return False


def _compression(url: str, options: dict[str, Any]) -> str | None:
    try:
        with reading(url, options) as read_at:
            first = read_at(0, 8)
    except ShardError:  # ShardDataset says what is wrong with it, or leaves it out
        return None
    return next((kind for magic, kind in COMPRESSED.items() if first.startswith(magic)), None)


def _unpack(url: str, kind: str, copy: str, options: dict[str, Any]) -> None:
    compression = {"bzip2": "bz2"}.get(kind, kind)
    try:
        with fsspec.open(url, "rb", compression=compression, **options) as packed, open(copy, "wb") as file:
            while part := packed.read(READ_BYTES):
                _write(file, part, copy, file.tell() + len(part))
    except ValueError as error:  # fsspec: no package for this compression
        raise ShardError(shown(url), f"it is compressed ({kind}), and {error}", "Unpack it first") from error
    except (OSError, EOFError) as error:
        raise ShardError(shown(url), f"it cannot be unpacked: {shown(str(error))}", "Write it again") from error


def pack_command(
    src: Annotated[str, typer.Argument(help="Folder of images, tar shards (pattern or folder), or URL.")],
    dst: Annotated[str, typer.Argument(help="Folder for the shards.")],
    format: Annotated[str, typer.Option(help="Format to write: tar.")] = "tar",
    shard_size: Annotated[str, typer.Option(help="Largest shard, such as 128MB or 1GiB.")] = "128MB",
    name: Annotated[str | None, typer.Option(help="Shards are NAME-000000.tar; DST's name if not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Member that holds the label: cls, txt, json:field.")] = None,
    entropy: Annotated[bool, typer.Option(help="Find seek points, by which crops of JPEGs decode faster.")] = True,
    on_error: Annotated[str, typer.Option(help="raise, or skip: leave out what is damaged.")] = "raise",
) -> None:
    """Write a data set as tar shards, with index and manifest. Run it again after an interruption: it continues."""
    done = pack(src, dst, format, shard_size, name=name, label=label, entropy=entropy, on_error=on_error, progress=True)
    earlier = f", {done.resumed} of them written earlier" if done.resumed else ""
    size = f"{done.samples} samples, {done.bytes / 1e6:.1f} MB in {len(done.shards)} shards"
    Console(stderr=True).print(f"{size}{earlier}: {dst}", markup=False, highlight=False)
