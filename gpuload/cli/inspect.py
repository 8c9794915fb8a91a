"""`gpuload inspect`: what a data set holds, told from its index and a few reads.

Owns what is found out and the terminal's view of it; the page is inspect_page.py's. Counts, classes and sizes come from
the index. Dimensions and kinds come from the headers of at most HEADERS images, spread evenly over the data set, which
the answer says; nothing is decoded but the contact sheet's images.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.console import Console

from gpuload.cli.opened import extra_members, fields_of, shards_behind
from gpuload.core.errors import ConfigError, SampleError
from gpuload.core.location import is_local, shown
from gpuload.core.protocols import RangeReader
from gpuload.core.refs import WHOLE_FILE
from gpuload.core.wording import counts, size
from gpuload.decode.jpeg_header import read_header
from gpuload.shards.formats import format_named
from gpuload.shards.table import Finding

if TYPE_CHECKING:
    from gpuload.dataset import ShardDataset

HEADERS, REMOTE_HEADERS = 512, 64
"""Images whose headers are read: local ones take 15 us each, remote ones may be a request each."""

HEADER_BYTES = 16 << 10
"""Holds the header of most photographs; one that hides behind a larger thumbnail is read whole."""


@dataclass(frozen=True)
class FieldSeen:
    """type: in words. samples: how many have it."""

    name: str
    type: str
    samples: int


@dataclass(frozen=True)
class Thumbnail:
    """An image of the contact sheet as JPEG, no larger than asked; b"" where it does not decode."""

    key: str
    label: str
    jpeg: bytes


@dataclass(frozen=True)
class Inspected:
    """name: the data set as the user named it, without credentials. files: shards, or images. bytes: int64 (n,), of
    each image; of those looked at where samples are whole files on remote storage. by_class: (name or number, samples).

    dimensions: int64 (m, 2), width and height, of images whose headers were read; kinds: of the same images.
    """

    name: str
    format: str
    files: int
    samples: int
    bytes: np.ndarray
    fields: tuple[FieldSeen, ...]
    by_class: tuple[tuple[str, int], ...]
    dimensions: np.ndarray
    kinds: Mapping[str, int]
    findings: tuple[Finding, ...]
    thumbnails: tuple[Thumbnail, ...] = ()


def inspect(
    urls: Any,
    *,
    format: str = "auto",
    label: str | None = None,
    thumbnails: int = 0,
    thumbnail_px: int = 160,
    storage_options: Mapping[str, Any] | None = None,
) -> Inspected:
    """What `urls` (as for ShardDataset) holds; damage is among `findings`. thumbnails: how many images to show.

    Raises ShardError where nothing of it can be read.

    >>> inspect("packed/").samples
    1281167
    """
    from gpuload.dataset import ShardDataset  # here, so that `gpuload --help` does not wait for torch

    options = dict(storage_options or {})
    dataset = ShardDataset(
        urls, format=format, fields=("image",), label=label, on_error="skip", storage_options=options
    )
    reader = dataset.new_reader()
    try:
        fields = [_field(dataset, reader, name, refs) for name, refs in extra_members(dataset).items()]
        looked = _spread(len(dataset), HEADERS if is_local(dataset.files[0]) else REMOTE_HEADERS)
        seen = _headers(dataset, reader, looked)
        shown_rows = _spread(len(dataset), thumbnails)
        sheet = _thumbnails(dataset, reader, shown_rows, thumbnail_px)
    finally:
        reader.close()
        dataset.close()
    shards = shards_behind(urls, dataset)
    return Inspected(
        shown(os.fspath(urls) if isinstance(urls, (str, os.PathLike)) else repr(urls)),
        _format(dataset, shards),
        len(shards) or len(dataset.files),
        len(dataset),
        _sizes(dataset, seen),
        tuple(fields),
        _by_class(dataset),
        np.array([found.size for found in seen if found.size is not None], np.int64).reshape(-1, 2),
        Counter(found.kind for found in seen),
        dataset.findings,
        sheet,
    )


@dataclass(frozen=True)
class _Seen:
    """What an image's first bytes say. size: (width, height), None where it has none. bytes: of the file if known."""

    size: tuple[int, int] | None
    kind: str
    bytes: int | None = None


def _headers(dataset: ShardDataset, reader: RangeReader, rows: np.ndarray) -> list[_Seen]:
    refs = dataset.refs(rows)
    short = refs.copy()
    short["length"] = np.where(refs["length"] == WHOLE_FILE, WHOLE_FILE, np.minimum(refs["length"], HEADER_BYTES))
    encoded = reader.read(dataset.files, short)
    found: list[_Seen | None] = []
    for row in range(len(rows)):
        whole = int(encoded.lengths[row]) if refs["length"][row] == WHOLE_FILE else None
        found.append(None if row in encoded.failures else _look(encoded.encoded(row).tobytes(), whole))
    again = [row for row, one in enumerate(found) if one is None]
    more = reader.read(dataset.files, refs[again]) if again else None
    for number, row in enumerate(again):
        assert more is not None
        failed = number in more.failures
        found[row] = None if failed else _look(more.encoded(number).tobytes(), None)
    return [one or _Seen(None, "unreadable") for one in found]


def _look(data: bytes, whole: int | None) -> _Seen | None:
    header = read_header(data)
    if header is not None:
        sampling = header.subsampling
        chroma = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0"}.get(sampling or (0, 0), "")
        kind = f"JPEG {header.kind} {'grey' if header.components == 1 else chroma}".strip()
        return _Seen((header.width, header.height), kind, whole)
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _Seen(image.size, str(image.format), whole)
    except Exception:  # whatever Pillow's plugins raise: no image, or not all of its header
        return None


def _thumbnails(dataset: ShardDataset, reader: RangeReader, rows: np.ndarray, px: int) -> tuple[Thumbnail, ...]:
    if not len(rows):
        return ()
    encoded = reader.read(dataset.files, dataset.refs(rows))
    labels, classes, found = dataset.labels, dataset.classes, []
    for row, sample in enumerate(rows.tolist()):
        label = "" if labels is None else _class_name(int(labels[sample]), classes)
        data = b"" if row in encoded.failures else encoded.encoded(row).tobytes()
        found.append(Thumbnail(dataset.name(sample)[1], label, _small(data, px)))
    return tuple(found)


def _small(data: bytes, px: int) -> bytes:
    made = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (2 * px, 2 * px))
            small = image.convert("RGB")
            small.thumbnail((px, px))
            small.save(made, "JPEG", quality=80)
    except Exception:  # whatever Pillow's plugins raise
        return b""
    return made.getvalue()


def _spread(n: int, count: int) -> np.ndarray:
    """int64: at most `count` of n rows, evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).astype(np.int64))


def _field(dataset: ShardDataset, reader: RangeReader, name: str, refs: np.ndarray) -> FieldSeen:
    samples = int((refs["length"] >= 0).sum())
    try:
        field = fields_of(dataset, reader, {name: refs})[0]
    except SampleError as error:
        return FieldSeen(name, f"damaged ({error.problem})", samples)
    return FieldSeen(name, field.dtype + "[]" * field.ndim if field.dtype else field.kind, samples)


def _format(dataset: ShardDataset, shards: Sequence[str]) -> str:
    if not shards:
        return "image files" if dataset.files and not dataset.members else "datasets.Dataset"
    known = format_named(shards[0], dataset.format)
    return known.name if known is not None else dataset.format


def _sizes(dataset: ShardDataset, seen: Sequence[_Seen]) -> np.ndarray:
    lengths = dataset.refs(np.arange(len(dataset)))["length"]
    if (lengths >= 0).all():
        return lengths.astype(np.int64)
    if all(map(is_local, dataset.files)):
        return np.array([os.path.getsize(path) for path in dataset.files if os.path.exists(path)], np.int64)
    return np.array([found.bytes for found in seen if found.bytes is not None], np.int64)


def _by_class(dataset: ShardDataset) -> tuple[tuple[str, int], ...]:
    if dataset.labels is None:
        return ()
    labels, samples = np.unique(dataset.labels, return_counts=True)
    found = dict(zip(labels.tolist(), samples.tolist(), strict=True))
    for label in range(len(dataset.classes or ())):
        found.setdefault(label, 0)  # a class without samples is worth knowing
    return tuple((_class_name(label, dataset.classes), found[label]) for label in sorted(found))


def _class_name(label: int, classes: Sequence[str] | None) -> str:
    return classes[label] if classes is not None and 0 <= label < len(classes) else str(label)


def lines(found: Inspected) -> list[str]:
    """The data set in a few lines of text."""
    low, mid, high = np.percentile(found.bytes, [0, 50, 100]) if len(found.bytes) else (0, 0, 0)
    text = [
        f"{found.name}: {found.format}, {found.samples} samples in {found.files} files",
        f"images: {size(found.bytes.sum())}, median {size(mid)}, {size(low)} to {size(high)}",
    ]
    if len(found.dimensions):
        width, height = np.median(found.dimensions, axis=0)
        least, most = found.dimensions.min(axis=0), found.dimensions.max(axis=0)
        text.append(
            f"dimensions: median {width:.0f} x {height:.0f}, {least[0]} to {most[0]} wide, {least[1]} to {most[1]} high"
        )
    text.append(f"kinds: {counts(found.kinds)} (of {sum(found.kinds.values())} headers read)")
    if found.by_class:
        least_n, most_n = min(n for _, n in found.by_class), max(n for _, n in found.by_class)
        text.append(f"classes: {len(found.by_class)}, {least_n} to {most_n} samples each")
    else:
        text.append("classes: no labels")
    text += [f"field {seen.name}: {seen.type}, in {seen.samples} samples" for seen in found.fields]
    return text + [f"{'note' if finding.note else 'finding'}: {finding}" for finding in found.findings]


def inspect_command(
    url: Annotated[str, typer.Argument(help="What ShardDataset reads: shards, a folder, a pattern, a URL.")],
    html: Annotated[str | None, typer.Option(help="Also write a page with charts and a contact sheet here.")] = None,
    thumbnails: Annotated[int, typer.Option(help="Images on the contact sheet.")] = 48,
    format: Annotated[str, typer.Option(help="The shards' format, where it cannot be told.")] = "auto",
    label: Annotated[str | None, typer.Option(help="Where labels are: cls, txt, json:field, labels.csv.")] = None,
) -> None:
    """Say what a data set holds: format, fields, classes, sizes and dimensions; with --html also show it."""
    from gpuload.cli.inspect_page import page_of

    found = inspect(url, format=format, label=label, thumbnails=thumbnails if html else 0)
    console = Console()
    for line in lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if html:
        try:
            with open(html, "w", encoding="utf-8", errors="replace") as file:
                file.write(page_of(found))
        except OSError as error:
            raise ConfigError(f"--html {html} cannot be written: {error}. Choose another path") from error
        console.print(f"page: {html}", markup=False, highlight=False, soft_wrap=True)
