"""MosaicML's MDS shards: samples of named columns behind a table of offsets, and an index.json beside them.

Owns the layout, and which column is the image, the label and the key. A shard describes itself, so that it is read
without index.json, which only says which shards there are. Values of other columns are fields.py's.

    samples: uint32 | offsets: uint32 (samples + 1) | JSON: column names, encodings, sizes | samples
    sample:  uint32 sizes of the columns that have no fixed one | the columns' bytes, in the order of their names

Format: MosaicML streaming, streaming/base/format/mds/writer.py and docs "Dataset format".
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards.columns import IMAGE_NAMES, KEY_NAMES, LABEL_NAMES, as_key, looks_like_image, preferred
from gpuload.shards.expansion import Shard
from gpuload.shards.fields import parse_field
from gpuload.shards.table import NO_LABEL, Finding, SampleTable, ShardScan, Strings, as_label, missing
from gpuload.shards.tar import LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES
from gpuload.shards.tar_headers import Window
from gpuload.shards.urls import Options, read_optional, reading, stamp

INDEX = "index.json"
PIECE_BYTES = 8 << 20
HASHES = frozenset(kind for kind in hashlib.algorithms_guaranteed if not kind.startswith("shake"))
"""Those of MosaicML's writer that need no other package: its xxhash ones do."""

REWRITE = "Write it again, or pass on_error='skip' to use the samples that are whole"

ENCODED = ("jpeg", "png", "jpeg_array", "jpegarray", "bytes")
"""Encodings that keep an image file's bytes. "pil" keeps pixels, which nothing here decodes."""

INTEGERS = frozenset("int uint8 uint16 uint32 uint64 int8 int16 int32 int64 str_int".split())


def shards_in_index(folder: str, options: Options) -> list[str] | None:
    """The shards that a folder's index.json names, in its order; None where there is no such file, or another one.

    Raises ShardError for names that lead out of the folder.
    """
    url = f"{folder.rstrip('/')}/{INDEX}"
    names = [file["basename"] for file in _files_in_index(url, options)]
    for name in names:
        if name.startswith("/") or ".." in name.split("/") or "://" in name:
            raise ShardError(shown(url), f"it names a shard outside of its folder: {name}", "Do not use it")
    return [f"{folder.rstrip('/')}/{posixpath.normpath(name)}" for name in names] or None


def _files_in_index(url: str, options: Options) -> list[dict[str, Any]]:
    """What an index.json says of each shard's file: basename, bytes, hashes; [] where it is another one, or none."""
    text = read_optional(url, options)
    try:
        index = json.loads(text or b"null")
        entries = [entry for entry in index["shards"] if entry.get("format") == "mds"]
        files = [entry.get("zip_data") or entry["raw_data"] for entry in entries]
        return [{**file, "basename": str(file["basename"])} for file in files]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def wrong_hash(url: str, options: Options) -> str:
    """What of a shard is not as the index.json beside it says, size and hashes; "" where all is, or nothing is said.

    Reads all of it, for hashes of HASHES; others are not compared. Raises ShardError.
    """
    folder, _, name = url.rpartition("/")
    files = _files_in_index(f"{folder}/{INDEX}" if folder else INDEX, options)
    told = next((file for file in files if file["basename"] == name), None)
    if told is None:
        return ""
    size = stamp(url, options).size
    if told.get("bytes") not in (None, size):
        return f"it has {size} bytes, and {INDEX} says {told['bytes']}"
    hashes = told.get("hashes")
    hashes = hashes if isinstance(hashes, dict) else {}
    states = {kind: hashlib.new(kind) for kind in hashes if kind in HASHES}
    if not states:
        return ""
    with reading(url, options) as read_at:
        for begin in range(0, size, PIECE_BYTES):
            piece = read_at(begin, min(PIECE_BYTES, size - begin))
            for state in states.values():
                state.update(piece)
    wrong = [kind for kind, state in states.items() if state.hexdigest() != hashes[kind]]
    return f"its {wrong[0]} is not the one that {INDEX} says" if wrong else ""


def scan_mds(shard: Shard) -> ShardScan:
    """Index one shard by its offsets and its samples' first bytes. Raises ShardError where it is none."""
    window_bytes = LOCAL_WINDOW_BYTES if is_local(shard.file) else REMOTE_WINDOW_BYTES
    with reading(shard.file, shard.options) as read_at:
        window = Window(read_at, window_bytes=window_bytes)
        layout = _layout(shard, window)
        return _samples(shard, window, layout)


@dataclass(frozen=True)
class _Layout:
    """offsets: int64 (samples + 1). names, encodings, sizes: of the columns, a size None where samples say it."""

    offsets: np.ndarray
    names: Sequence[str]
    encodings: Sequence[str]
    sizes: Sequence[int | None]

    def columns(self, head: bytes, start: int) -> dict[str, tuple[int, int]] | None:
        """Name -> (offset, length) in the file of a sample at `start` that begins with `head`, and its end under ""."""
        variable = sum(size is None for size in self.sizes)
        if len(head) < 4 * variable:
            return None
        told = iter(np.frombuffer(head, "<u4", variable).tolist())
        at, found = start + 4 * variable, {}
        for name, size in zip(self.names, self.sizes, strict=True):
            length = next(told) if size is None else size
            found[name] = at, length
            at += length
        found[""] = at, 0
        return found


def _layout(shard: Shard, window: Window) -> _Layout:
    url, size = shown(shard.url), shard.stamp.size
    count = int.from_bytes(window.read(0, 4), "little")
    begin = 4 + 4 * (count + 1)
    if size < 8 or begin > size:
        raise ShardError(url, f"no MDS shard: its {size} bytes have no room for {count} offsets", REWRITE)
    offsets = np.frombuffer(window.read(4, begin - 4), "<u4").astype(np.int64)
    if len(offsets) != count + 1 or not begin <= offsets[0] <= size or (np.diff(offsets) < 0).any():
        raise ShardError(url, "no MDS shard, or damaged: its offsets do not ascend", REWRITE)
    try:
        config = json.loads(window.read(begin, int(offsets[0]) - begin))
        names, encodings, sizes = (config[f"column_{what}"] for what in ("names", "encodings", "sizes"))
        sizes = [int(size) if size else None for size in sizes]
        if not len(names) == len(encodings) == len(sizes) or min([0, *(s for s in sizes if s)]) < 0:
            raise ValueError("columns without encodings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ShardError(url, f"no MDS shard, or damaged: its description of columns: {error}", REWRITE) from error
    return _Layout(offsets, [str(name) for name in names], [str(encoding) for encoding in encodings], sizes)


def _samples(shard: Shard, window: Window, layout: _Layout) -> ShardScan:
    encodings = dict(zip(layout.names, layout.encodings, strict=True))
    findings: list[Finding] = []
    places: dict[str, list[tuple[int, int]]] = {name: [] for name in layout.names}
    rows: list[int] = []
    keys: list[str] = []
    labels: list[int] = []
    image = ""
    label = next(iter(preferred([n for n in encodings if encodings[n] in INTEGERS], LABEL_NAMES)), None)
    key = next(iter(preferred([n for n in encodings if encodings[n] in INTEGERS | {"str"}], KEY_NAMES)), None)
    variable = sum(size is None for size in layout.sizes)
    for row, (start, stop) in enumerate(zip(layout.offsets[:-1].tolist(), layout.offsets[1:].tolist(), strict=True)):
        if stop > shard.stamp.size:
            lost = len(layout.offsets) - 1 - row
            problem = f"cut off at byte {shard.stamp.size}: {lost} of its {lost + row} samples are lost"
            findings.append(Finding(shard.url, "", problem, REWRITE))
            break
        columns = layout.columns(window.read(start, 4 * variable), start)
        if columns is None or columns.pop("")[0] != stop:
            problem = f"the column sizes at byte {start} do not add up to the sample's {stop - start} bytes"
            findings.append(Finding(shard.url, f"{row:08d}", problem, REWRITE))
            continue
        image = image or _image_column(shard, window, encodings, columns)
        number, name = _value(window, label, encodings, columns), _value(window, key, encodings, columns)
        labels.append(NO_LABEL if number is None else as_label(int(number)))
        keys.append((as_key(str(name)) if name is not None else "") or f"{row:08d}")
        rows.append(row)
        for name, place in columns.items():
            places[name].append(place)
    if not rows and not findings:
        findings.append(Finding(shard.url, "", "it holds no sample", note=True))
    refs = {name: _refs(column) for name, column in places.items()}
    images = refs.pop(image) if image else np.zeros(0, SAMPLE_REF)
    table = SampleTable(
        Strings.of([shard.file]),
        images,
        np.array(labels, np.int64),
        Strings.of(keys),
        refs if image else {},
        {name: f"mds:{encodings[name]}" for name in refs} if image else {},
        label=label or "",
    )
    return ShardScan(table, tuple(findings))


def _refs(column: list[tuple[int, int]]) -> np.ndarray:
    refs = missing(len(column))
    refs["offset"], refs["length"] = np.array(column, np.int64).reshape(-1, 2).T
    return refs


def _value(
    window: Window, name: str | None, encodings: Mapping[str, str], columns: Mapping[str, tuple[int, int]]
) -> Any:
    """A small column's value; None where there is no such column, or its bytes are not what they should be."""
    try:
        return parse_field(name, f"mds:{encodings[name]}", window.read(*columns[name])) if name is not None else None
    except ValueError:
        return None


def _image_column(
    shard: Shard, window: Window, encodings: Mapping[str, str], columns: Mapping[str, tuple[int, int]]
) -> str:
    """The column of images: of an image's encoding, or bytes that begin as an image does."""
    able = [name for name, encoding in encodings.items() if encoding in ENCODED]
    candidates = [name for name in able if encodings[name] != "bytes"]
    candidates += [n for n in able if encodings[n] == "bytes" and looks_like_image(window.read(columns[n][0], 4))]
    candidates = candidates or preferred(able, IMAGE_NAMES)
    if not candidates:
        known = ", ".join(f"{name} ({encoding})" for name, encoding in encodings.items())
        cure = "Write images with the encoding jpeg, png or bytes; pil keeps pixels"
        raise ShardError(shown(shard.url), f"no column of it holds encoded images. There are: {known}", cure)
    return (preferred(candidates, IMAGE_NAMES) or candidates)[0]
