"""From what the user named to one table of samples: the format is recognised, shards are indexed, classes are found.

Owns the choice between folder, list of images and shards, what a folder of shards holds, and the policy towards damage
(`on_error`). Which format a shard has is formats.py's; each format's reading is its own file's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import bare, is_local, is_signed, shown
from gpuload.core.stamp import Stamp
from gpuload.shards.arrow import is_huggingface, scan_huggingface
from gpuload.shards.folder import FolderError, images_of, is_image, join_folders, scan_folder
from gpuload.shards.formats import NAMES, SHARD_FORMATS, format_named
from gpuload.shards.manifest import open_manifest
from gpuload.shards.mds import shards_in_index
from gpuload.shards.table import Finding, SampleTable, Strings
from gpuload.shards.urls import Options, asked, expand, is_folder, read_optional

FORMATS = ("auto", "folder", "images", *NAMES)
POLICIES = ("raise", "skip")
CLASSES_FILE = "classes.json"


@dataclass(frozen=True)
class Catalog:
    """A data set's samples. format: as FORMATS, or "huggingface". classes: names by label, where they are known.

    stamps: of the shards, as they were when they were indexed. versions: of a folder's images, as Folder's. listed: the
    samples came from a listing or an object, which may be another one when it is asked again.
    """

    format: str
    table: SampleTable
    classes: tuple[str, ...] | None
    findings: tuple[Finding, ...]
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    versions: Strings | None = None

    @property
    def listed(self) -> bool:
        return self.format in ("folder", "images", "huggingface")


def open_catalog(
    urls: Any,
    *,
    format: str,
    on_error: str,
    options: Options,
) -> Catalog:
    """All samples that `urls` names. Raises ConfigError, and ShardError for the first thing that cannot be used.

    urls: a path or URL, several, or a `datasets.Dataset`. With on_error="skip" what is whole is used and the rest is
    in `findings`.
    """
    choose("format", format, FORMATS)
    choose("on_error", on_error, POLICIES)
    if is_huggingface(urls):
        scan = scan_huggingface(urls)
        names, found = ["datasets.Dataset"], Catalog("huggingface", scan.table, scan.classes, scan.findings)
    else:
        names = expand(urls, options)
        found = _open(names, format, on_error, options, alone=isinstance(urls, (str, os.PathLike)) and len(names) == 1)
    if on_error == "raise":
        _raise_first([finding for finding in found.findings if not finding.note])
    if not len(found.table):
        raise ShardError(shown(names[0]), "no sample in it" + _and_more(names), "Name data that holds images")
    return found


def _open(names: list[str], format: str, on_error: str, options: Options, *, alone: bool) -> Catalog:
    if format == "auto" and is_image(bare(names[0])) and not alone and not _is_folder(names[0], options):
        format = "images"
    if format == "auto" and _is_folder(names[0], options) and not _shards_in(names[0], options, "auto"):
        format = "folder"
    if format in ("folder", "images"):
        folders = [images_of(names)] if format == "images" else [scan_folder(name, options) for name in names]
        folder = join_folders(folders)
        return Catalog(format, folder.table, folder.classes, folder.findings, versions=folder.versions)
    shards = [shard for name in names for shard in shards_of(name, options, format)]
    scan = open_manifest(shards, options, format=format, tolerant=on_error == "skip")
    notes: list[Finding] = []
    classes = scan.classes if scan.classes is not None else _read_classes(shards, options, notes)
    known = format_named(shards[0], format)
    return Catalog(known.name if known else format, scan.table, classes, (*scan.findings, *notes), scan.stamps)


def shards_of(url: str, options: Options, format: str = "auto") -> list[str]:
    """The shards that `url` means: itself, or those in it where it is a folder. Raises FolderError for none."""
    if not _is_folder(url, options):
        if is_local(url) and not os.path.lexists(url) and "." not in os.path.basename(url):  # no file's name
            raise FolderError(url, "it does not exist", "Check the path")
        return [url]
    shards = _shards_in(url, options, format)
    if not shards:
        wanted = f".{format} file" if format != "auto" else "shard"
        raise FolderError(url, f"no {wanted} in it", 'Name the shards, or pass format="folder" for images')
    return shards


def tar_shards(url: str, options: Options) -> list[str]:
    """`shards_of` for tars alone."""
    return shards_of(url, options, "tar")


def _is_folder(url: str, options: Options) -> bool:
    """By its name where that says what it is: fsspec answers by downloading the file, over HTTP."""
    if not is_local(url) and (format_named(url) is not None or is_image(bare(url))):
        return False
    return is_folder(url, options)


def choose(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not known. Use {' or '.join(map(repr, choices))}")


def _shards_in(url: str, options: Options, format: str) -> list[str]:
    """A folder's shards: those of the first format of which it has some, MDS's by its index.json.

    Where images or their folders lie beside them, an archive among these is none of the data: only tars count then,
    as they always did.
    """
    prefix = url.rstrip("/")
    names = sorted(name for name in _names_in(url, options) if not name.startswith("."))
    if "index.json" in names and format in ("auto", "mds"):
        found = shards_in_index(url, options)
        if found:
            return found
    for known in SHARD_FORMATS:
        mine = [f"{prefix}/{name}" for name in names if known.named(name)]
        if mine and format in ("auto", known.name):
            return mine if known.name == "tar" or format != "auto" or not _holds_images(url, names) else []
    return []


def _holds_images(url: str, names: list[str]) -> bool:
    return any(is_image(name) or (is_local(url) and os.path.isdir(os.path.join(url, name))) for name in names)


def _names_in(url: str, options: Options) -> list[str]:
    if is_local(url):
        return os.listdir(url)
    listed = asked(url, options, lambda system, path: system.ls(path, detail=False))
    return [name.rstrip("/").rpartition("/")[2] for name in listed]


def _read_classes(shards: list[str], options: Options, notes: list[Finding]) -> tuple[str, ...] | None:
    """The class names that `gpuload pack` keeps beside its shards: names by label.

    Others' files may be called so, and servers have a page for any name: what is no such list is left aside, with a
    note.
    """
    folders = {shard.rpartition("/")[0] for shard in shards}
    if len(folders) != 1 or is_signed(shards[0]):
        return None
    folder = folders.pop()
    url = f"{folder}/{CLASSES_FILE}" if folder else CLASSES_FILE
    text = read_optional(url, options)
    if text is None:  # nobody promised one
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    names = found.get("classes") if isinstance(found, dict) else None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return tuple(names)
    problem = 'it is no list of class names, {"classes": ["name of 0", ...]}: left aside'
    notes.append(Finding(url, "", problem, note=True))
    return None


def _raise_first(findings: list[Finding]) -> None:
    if findings:
        first = findings[0]
        problem = f"sample {first.key}: {first.problem}" if first.key else first.problem
        more = f" (and {len(findings) - 1} more findings)" if len(findings) > 1 else ""
        raise ShardError(shown(first.shard), problem + more, first.cure)


def _and_more(names: list[str]) -> str:
    return f", nor in {len(names) - 1} more" if len(names) > 1 else ""
