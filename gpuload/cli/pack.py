"""`gpuload pack`: any data set that gpuload reads, as shards that it and others read fast.

Owns the run: what is already there, the order of steps, and the files beside the shards. pack_plan.py decides from keys
and sizes alone what is written, so that a second run knows what is missing and writes the same bytes; that the source
is still the same, it knows from the stamps (size and time, or etag) of all its files. Writing is pack_write.py's.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gpuload.cli.index import index
from gpuload.cli.pack_file import new_file
from gpuload.cli.pack_note import Note, names_digest, record
from gpuload.cli.pack_plan import Plan, check_format, plan, require_unchanged
from gpuload.cli.pack_write import write_shards
from gpuload.cli.progress import bytes_progress
from gpuload.core.errors import ConfigError
from gpuload.core.location import is_local
from gpuload.shards.arrow import is_huggingface
from gpuload.shards.mds import INDEX
from gpuload.shards.urls import expand
from gpuload.shards.write_mds import MdsWriter

if TYPE_CHECKING:
    from gpuload.dataset import ShardDataset

UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


@dataclass(frozen=True)
class Packed:
    """shards: their paths, in order. resumed: how many of them an earlier run had written. notes: what was left out,
    and what the format could not keep as it was."""

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
    sync: bool = True,
    progress: bool = False,
) -> Packed:
    """Write the samples of `src` (as for ShardDataset) to `dst`/NAME-000000.tar and so on; NAME by default is dst's.

    format: "tar" (WebDataset), "tfrecord" (tf.train.Example), "parquet" (Hugging Face) or "mds" (MosaicML streaming).
    Keys, labels and all other fields are kept, the images' bytes unchanged; `classes.json` keeps the class names, a
    file beside each shard its checksums. make_index: also index and manifest, and with `entropy` the JPEGs' seek
    points. Run again, it continues with the shards that are missing. sync: a shard gets its name once it is on disk; if
    not, the system writes it when it will, as after `cp`. Raises ConfigError, also for a source that changed
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
        dataset = ShardDataset(
            given or src, fields=("image", "key"), label=label, on_error=on_error, storage_options=options
        )
        stack.callback(dataset.close)
        reader = dataset.new_reader()
        stack.callback(reader.close)
        decided = plan(src, dataset, reader, format=format, shard_bytes=shard_bytes)
        shards = decided.shards(folder, name)
        _record(f"{folder}/{name}", dataset, decided, shards)
        advance = stack.enter_context(bytes_progress(f"packing {name}", int(decided.sizes.sum()), shown=progress))
        resumed = write_shards(decided, shards, reader, sync=sync, advance=advance)
        require_unchanged(decided, options)
        if isinstance(decided.writer, MdsWriter):
            with new_file(f"{folder}/{INDEX}") as file:
                file.write(_mds_index(decided, decided.writer, shards))
    if make_index:
        index(shards, entropy=entropy, progress=progress)
    size = sum(map(os.path.getsize, shards))
    notes = (*_left_out(dataset, decided), *decided.notes)
    return Packed(tuple(shards), len(decided.keys), size, resumed, notes)


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


def _record(stem: str, dataset: ShardDataset, plan: Plan, shards: list[str]) -> None:
    mine = [*shards, f"{os.path.dirname(stem)}/{INDEX}"] if isinstance(plan.writer, MdsWriter) else shards
    labels = dataset.known_labels is not None or dataset.classes is not None
    note = Note(plan.digest, len(plan.keys), len(shards), labels, names_digest(dataset.classes))
    record(stem, note, mine, dataset.classes)


def _left_out(dataset: ShardDataset, plan: Plan) -> list[str]:
    lost = [*(finding for finding in dataset.findings if not finding.note), *plan.left_out]
    more = f" (and {len(lost) - 1} more findings)" if len(lost) > 1 else ""
    return [f"left out: {lost[0]}{more}"] if lost else []


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
    sync: Annotated[bool, typer.Option(help="Name a shard once it is on disk; --no-sync: as `cp`.")] = True,
) -> None:
    """Write a data set as shards. Run it again after an interruption: it continues."""
    done = pack(
        src, dst, format, shard_size,
        name=name, label=label, entropy=entropy, make_index=make_index, on_error=on_error, sync=sync, progress=True,
    )  # fmt: skip
    console = Console(stderr=True)
    for note in done.notes:
        console.print(note, style="yellow", markup=False, highlight=False)
    earlier = f", {done.resumed} of them written earlier" if done.resumed else ""
    size = f"{done.samples} samples, {done.bytes / 1e6:.1f} MB in {len(done.shards)} shards"
    console.print(f"{size}{earlier}: {dst}", markup=False, highlight=False)
