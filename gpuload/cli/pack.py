"""`gpuload pack`: any data set that gpuload reads, as shards that it and others read fast.

Owns the run: what is already there, the order of steps, and the files beside the shards. pack_plan.py decides from keys
and sizes alone what is written, so that a second run knows what is missing and writes the same bytes; that the source
is still the same, it knows from the stamps (size and time, or etag) of all its files. Writing is pack_write.py's.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from gpuload.cli.index import index
from gpuload.cli.pack_plan import Plan, check_format, plan
from gpuload.cli.pack_write import new_file, write_shards
from gpuload.cli.progress import bytes_progress
from gpuload.core.errors import ConfigError
from gpuload.core.location import is_local
from gpuload.shards.arrow import is_huggingface
from gpuload.shards.catalog import CLASSES_FILE
from gpuload.shards.mds import INDEX
from gpuload.shards.urls import expand
from gpuload.shards.write_mds import MdsWriter

UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


@dataclass(frozen=True)
class Packed:
    """shards: their paths, in order. resumed: how many of them an earlier run had written. notes: what the format could
    not keep as it was."""

    shards: tuple[str, ...]
    samples: int
    bytes: int
    resumed: int
    notes: tuple[str, ...] = ()


def pack(
    src: Any,
    dst: str | os.PathLike[str],
    format: str = "tar",
    shard_size: str | int = "128MB",
    *,
    name: str | None = None,
    label: str | Callable[[str], int] | Sequence[Any] | None = None,
    entropy: bool = True,
    make_index: bool = True,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Packed:
    """Write the samples of `src` (as for ShardDataset) to `dst`/NAME-000000.tar and so on; NAME by default is dst's.

    format: "tar" (WebDataset), "tfrecord" (tf.train.Example), "parquet" (Hugging Face) or "mds" (MosaicML streaming).
    Keys, labels and all other fields are kept, the images' bytes unchanged; `classes.json` keeps the class names, a
    file beside each shard its checksums. make_index: also index and manifest, and with `entropy` the JPEGs' seek
    points. Run again, it continues with the shards that are missing. Raises ConfigError, also for a source that changed
    since; ShardError, also for a full disk; SampleError for an image that cannot be read.

    >>> pack("photos/", "packed/", shard_size="64MB")
    """
    from gpuload.dataset import ShardDataset  # here, so that `gpuload --help` does not wait for torch

    check_format(format)
    shard_bytes = parse_bytes(shard_size)
    options = dict(storage_options or {})
    given = [] if is_huggingface(src) else expand(src, options)
    folder = os.path.abspath(os.fspath(dst))
    name = name or os.path.basename(folder)
    _keep_apart(given, folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the shards' folder cannot be made: {error}. Choose another one") from error
    with ExitStack() as stack:
        stack.enter_context(_alone(folder, name))
        dataset = ShardDataset(given or src, fields=("image",), label=label, on_error=on_error, storage_options=options)
        stack.callback(dataset.close)
        reader = dataset.new_reader()
        stack.callback(reader.close)
        decided = plan(src, dataset, reader, format=format, shard_bytes=shard_bytes)
        shards = decided.shards(folder, name)
        _record(folder, name, decided, shards)
        if dataset.classes is not None:
            classes = {"classes": dataset.classes}
            _replace(f"{folder}/{CLASSES_FILE}", json.dumps(classes, ensure_ascii=False).encode())
        advance = stack.enter_context(bytes_progress(f"packing {name}", int(decided.sizes.sum()), shown=progress))
        resumed = write_shards(decided, shards, reader, advance=advance)
        if isinstance(decided.writer, MdsWriter):
            _replace(f"{folder}/{INDEX}", _mds_index(decided, decided.writer, shards))
    if make_index:
        index(shards, entropy=entropy, progress=progress)
    size = sum(map(os.path.getsize, shards))
    return Packed(tuple(shards), len(decided.keys), size, resumed, decided.writer.notes)


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


def _keep_apart(urls: Iterable[str], folder: str) -> None:
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


def _replace(path: str, content: bytes) -> None:
    with new_file(path) as file:
        file.write(content)


def _record(folder: str, name: str, plan: Plan, shards: list[str]) -> None:
    """Note what is being packed, or find the same note. Raises ConfigError where `folder` holds something else."""
    path = f"{folder}/{name}.pack.json"
    note = {"plan": plan.digest, "samples": len(plan.keys), "shards": len(shards)}
    cure = "Choose an empty folder or another name, or delete what is there"
    if os.path.exists(path):
        with open(path, "rb") as file:
            if json.load(file) != note:
                what = "other samples, from files that changed since, or with another size or format"
                raise ConfigError(f"{folder} holds {name!r} packed from {what}. {cure}")
        return
    mine = [*shards, f"{folder}/{INDEX}"] if isinstance(plan.writer, MdsWriter) else shards
    taken = [shard for shard in mine if os.path.exists(shard)]
    if taken:
        raise ConfigError(f"{taken[0]} exists and was not written by gpuload pack {name!r}. {cure}")
    _replace(path, json.dumps(note).encode())


def _mds_index(plan: Plan, writer: MdsWriter, shards: list[str]) -> bytes:
    counts = (plan.bounds[1:] - plan.bounds[:-1]).tolist()
    sizes = map(os.path.getsize, shards)
    return writer.index(list(zip(map(os.path.basename, shards), sizes, counts, strict=True)))


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


def pack_command(
    src: Annotated[str, typer.Argument(help="What ShardDataset reads: folder of images, shards, pattern or URL.")],
    dst: Annotated[str, typer.Argument(help="Folder for the shards.")],
    format: Annotated[str, typer.Option(help="Format to write: tar, tfrecord, parquet or mds.")] = "tar",
    shard_size: Annotated[str, typer.Option(help="Largest shard, such as 128MB or 1GiB.")] = "128MB",
    name: Annotated[str | None, typer.Option(help="Shards are NAME-000000.tar; DST's name if not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Where labels are: cls, txt, json:field, labels.csv.")] = None,
    entropy: Annotated[bool, typer.Option(help="Find seek points, by which crops of JPEGs decode faster.")] = True,
    make_index: Annotated[bool, typer.Option("--index/--no-index", help="Make index and manifest, too.")] = True,
    on_error: Annotated[str, typer.Option(help="raise, or skip: leave out what is damaged.")] = "raise",
) -> None:
    """Write a data set as shards. Run it again after an interruption: it continues."""
    done = pack(
        src, dst, format, shard_size,
        name=name, label=label, entropy=entropy, make_index=make_index, on_error=on_error, progress=True,
    )  # fmt: skip
    console = Console(stderr=True)
    for note in done.notes:
        console.print(note, style="yellow", markup=False, highlight=False)
    earlier = f", {done.resumed} of them written earlier" if done.resumed else ""
    size = f"{done.samples} samples, {done.bytes / 1e6:.1f} MB in {len(done.shards)} shards"
    console.print(f"{size}{earlier}: {dst}", markup=False, highlight=False)
