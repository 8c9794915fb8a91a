"""From what the user named to one table of samples: the format is recognised, shards are indexed, classes are found.

Owns the choice of format and the policy towards damage (`on_error`). Each format's reading is its own file's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import is_local, shown
from gpuload.shards.folder import FolderError, join_folders, scan_folder
from gpuload.shards.manifest import open_manifest
from gpuload.shards.table import Finding, SampleTable
from gpuload.shards.urls import Options, asked, expand, is_folder, read_optional

FORMATS = ("auto", "folder", "tar")
POLICIES = ("raise", "skip")
TAR_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")  # compressed ones are met with a reason
CLASSES_FILE = "classes.json"


@dataclass(frozen=True)
class Catalog:
    """A data set's samples. format: "folder" or "tar". classes: names by label, where they are known."""

    format: str
    table: SampleTable
    classes: tuple[str, ...] | None
    findings: tuple[Finding, ...]


def open_catalog(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str,
    on_error: str,
    options: Options,
) -> Catalog:
    """All samples that `urls` names. Raises ConfigError, and ShardError for the first thing that cannot be used.

    With on_error="skip" what is whole is used and the rest is in `findings`.
    """
    choose("format", format, FORMATS)
    choose("on_error", on_error, POLICIES)
    names = expand(urls, options)
    if format == "auto":
        format = "folder" if _holds_images(names[0], options) else "tar"
    if format == "folder":
        folder = join_folders([scan_folder(name, options) for name in names])
        table, classes, findings = folder.table, folder.classes, folder.findings
    else:
        shards = [shard for name in names for shard in tar_shards(name, options)]
        scan = open_manifest(shards, options, tolerant=on_error == "skip")
        table, findings = scan.table, scan.findings
        classes = _read_classes(shards, options)
    if on_error == "raise":
        _raise_first([finding for finding in findings if not finding.note])
    if not len(table):
        raise ShardError(shown(names[0]), "no sample in it" + _and_more(names), "Name data that holds images")
    return Catalog(format, table, classes, findings)


def tar_shards(url: str, options: Options) -> list[str]:
    """The tar files that `url` means: itself, or those in it where it is a folder. Raises FolderError for none."""
    if not is_folder(url, options):
        if is_local(url) and not os.path.lexists(url) and "." not in os.path.basename(url):  # no file's name
            raise FolderError(url, "it does not exist", "Check the path")
        return [url]
    shards = _tars_in(url, options)
    if not shards:
        raise FolderError(url, "no .tar file in it", 'Name the shards, or pass format="folder" for images')
    return shards


def choose(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not known. Use {' or '.join(map(repr, choices))}")


def _holds_images(url: str, options: Options) -> bool:
    return is_folder(url, options) and not _tars_in(url, options)


def _tars_in(url: str, options: Options) -> list[str]:
    prefix = url.rstrip("/")
    if is_local(url):
        names = os.listdir(url)
    else:
        listed = asked(url, options, lambda system, path: system.ls(path, detail=False))
        names = [name.rstrip("/").rpartition("/")[2] for name in listed]
    return [f"{prefix}/{name}" for name in sorted(names) if name.endswith(TAR_NAMES) and not name.startswith(".")]


def _read_classes(shards: list[str], options: Options) -> tuple[str, ...] | None:
    """The class names that `gpuload pack` keeps beside its shards: names by label."""
    folders = {shard.rpartition("/")[0] for shard in shards}
    if len(folders) != 1:
        return None
    folder = folders.pop()
    url = f"{folder}/{CLASSES_FILE}" if folder else CLASSES_FILE
    text = read_optional(url, options)
    if text is None:  # nobody promised one
        return None
    try:
        names = json.loads(text)
        return tuple(str(name) for name in names["classes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(shown(url), f"no list of class names: {error!r}", 'It should be {"classes": [...]}') from error


def _raise_first(findings: list[Finding]) -> None:
    if findings:
        first = findings[0]
        problem = f"sample {first.key}: {first.problem}" if first.key else first.problem
        more = f" (and {len(findings) - 1} more findings)" if len(findings) > 1 else ""
        raise ShardError(shown(first.shard), problem + more, first.cure)


def _and_more(names: list[str]) -> str:
    return f", nor in {len(names) - 1} more" if len(names) > 1 else ""
