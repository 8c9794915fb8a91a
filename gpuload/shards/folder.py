"""Image folders: one subfolder a class, as torchvision's ImageFolder reads them, or loose images without classes.

Owns the walk, the order and the labels: sample for sample ImageFolder's. Whole files are referenced, so that nothing
is opened here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import bare, is_local, shown
from gpuload.core.refs import whole_files
from gpuload.core.stamp import stamp_of
from gpuload.shards.keys import Names
from gpuload.shards.table import NO_LABEL, Finding, SampleTable, Strings, join
from gpuload.shards.urls import Options, asked

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision.datasets.folder.IMG_EXTENSIONS."""


class FolderError(ShardError):
    """A ShardError about a folder, and so it reads."""

    def __init__(self, url: str, problem: str, cure: str = ""):
        super().__init__(shown(url), problem, cure)
        self.args = (f"folder {self.url}: {problem}" + (f". {cure}" if cure else ""),)

    def __reduce__(self):
        return (FolderError, (self.url, self.problem, self.cure))


@dataclass(frozen=True)
class Folder:
    """table: its samples; label i is classes[i]. classes: None for loose images.

    versions: of each of the table's files, as its Stamp's text, "" for one whose versions the listing does not tell
    apart; None where it tells none, and for local ones.
    """

    table: SampleTable
    classes: tuple[str, ...] | None
    findings: tuple[Finding, ...] = ()
    versions: Strings | None = None


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def scan_folder(url: str, options: Options) -> Folder:
    """The samples of one folder. Raises FolderError where it is missing, unreadable or holds no image."""
    told: dict[str, str] = {}
    unlisted: list[OSError] = []
    try:
        tree = _local_tree(url, unlisted) if is_local(url) else _remote_tree(url, options, told)
    except FileNotFoundError as error:
        raise FolderError(url, "it does not exist", "Check the path") from error
    except NotADirectoryError as error:
        raise FolderError(url, "it is a file", 'Name the folder that holds it, or leave out format="folder"') from error
    except OSError as error:
        raise FolderError(url, f"it cannot be listed: {error}", "Check its path and permissions") from error
    cure = "Check its permissions and the disk, or pass on_error='skip' to go without what is in it"
    lost = [Finding(str(e.filename), "", f"it cannot be listed: {e.strerror}", cure) for e in unlisted]
    classes = sorted(name for name in tree if name)
    loose = tree.get("", [])
    if not any(tree.values()):
        known = ", ".join(IMAGE_EXTENSIONS)
        raise FolderError(url, f"no image in it (looked for {known})", "Name a folder of images, or of class folders")
    if not any(tree[name] for name in classes):
        problem = f"no class folders: {len(loose)} loose images, all with label 0 unless label= says more"
        note = Finding(url, "", problem, note=True)
        return Folder(_table(url, loose, np.zeros(len(loose), np.int64)), None, (*lost, note), _versions(loose, told))
    findings = lost + [
        Finding(
            os.path.join(url, name),
            "",
            "a class folder without an image",
            f"Remove it, or pass on_error='skip' to keep {name!r} as a class without samples",
        )
        for name in classes
        if not tree[name]
    ]
    if loose:
        problem = f"{len(loose)} images outside of any class folder are left out, as ImageFolder does"
        findings.append(Finding(url, "", problem, note=True))
    paths = [path for name in classes for path in tree[name]]
    labels = np.repeat(np.arange(len(classes)), [len(tree[name]) for name in classes]).astype(np.int64)
    return Folder(_table(url, paths, labels), tuple(classes), tuple(findings), _versions(paths, told))


def images_of(urls: Sequence[str]) -> Folder:
    """Image files named one by one: without labels. Keys are their paths without extension.

    Of URLs, without what must not be shown: where nothing else tells two apart (".../image?id=1"), the second is "-2".
    """
    labels = np.full(len(urls), NO_LABEL, np.int64)
    table = SampleTable(Strings.of(urls), whole_files(np.arange(len(urls))), labels, Strings.of(_keys(urls)))
    return Folder(table, None)


def _keys(urls: Sequence[str]) -> list[str]:
    named = {url: bare(url) for url in urls}
    keys = {name: os.path.splitext(name)[0] for name in named.values()}
    if len(keys) == len(named):
        return [keys[named[url]] for url in urls]
    names = Names(keys.values())
    by_url: dict[str, str] = {}
    seen: set[str] = set()
    for url, name in named.items():
        by_url[url] = names.free(keys[name]) if name in seen else keys[name]
        seen.add(name)
    return [by_url[url] for url in urls]


def join_folders(folders: Sequence[Folder]) -> Folder:
    """Several folders as one data set: labels by the sorted names of all their classes.

    Raises FolderError where some have class folders and others have not.
    """
    if len(folders) == 1:
        return folders[0]
    flat = [folder for folder in folders if folder.classes is None]
    if flat and len(flat) < len(folders):
        first = flat[0].findings[0].shard
        raise FolderError(first, "it has no class folders, other folders of the list have", "Read them separately")
    findings = tuple(finding for folder in folders for finding in folder.findings)
    versions = Strings.of(text for folder in folders for text in folder.versions or [""] * len(folder.table.files))
    if flat:
        return Folder(join([folder.table for folder in folders]), None, findings, versions)
    classes = sorted({name for folder in folders for name in folder.classes or ()})
    tables = []
    for folder in folders:
        table = folder.table
        renumbered = np.array([classes.index(name) for name in folder.classes or ()], np.int64)
        tables.append(SampleTable(table.files, table.images, renumbered[table.labels], table.keys))
    return Folder(join(tables), tuple(classes), findings, versions)


def _table(root: str, paths: list[str], labels: np.ndarray) -> SampleTable:
    start = len(root.rstrip("/")) + 1
    keys = Strings.of(os.path.splitext(path[start:])[0] for path in paths)
    return SampleTable(Strings.of(paths), whole_files(np.arange(len(paths))), labels, keys)


def _local_tree(url: str, unlisted: list[OSError]) -> dict[str, list[str]]:
    """Class name -> its images in ImageFolder's order; "" -> the images that lie loose.

    unlisted: gets the errors of folders below, whose images nobody sees.
    """
    with os.scandir(url) as entries:
        found = [(entry.name, entry.is_dir()) for entry in entries]
    tree = {"": sorted(os.path.join(url, name) for name, folder in found if not folder and is_image(name))}
    for name, folder in found:
        if folder:
            below = os.walk(os.path.join(url, name), onerror=unlisted.append, followlinks=True)
            walk = sorted((root, files) for root, _, files in below)
            tree[name] = [os.path.join(root, file) for root, files in walk for file in sorted(files) if is_image(file)]
    return tree


def _versions(paths: list[str], told: dict[str, str]) -> Strings | None:
    return Strings.of(told.get(path, "") for path in paths) if told else None


def _remote_tree(url: str, options: Options, told: dict[str, str]) -> dict[str, list[str]]:
    """As `_local_tree`'s. told: becomes path -> Stamp's text, of those whose versions the listing tells apart."""
    below = asked(url, options, _files_below)
    prefix = url.rstrip("/")
    tree: dict[str, list[str]] = {"": []}
    # A folder's own files come before those of its subfolders, and folders in the order of their paths.
    for folder, slash, name in sorted((path.rpartition("/") for path in below), key=lambda p: (p[0], p[2])):
        images = tree.setdefault(folder.split("/")[0], [])
        if is_image(name):
            images.append(f"{prefix}/{folder}{slash}{name}")
            if version := below.pop(f"{folder}{slash}{name}"):
                told[images[-1]] = version
    return tree


def _files_below(system: Any, top: str) -> dict[str, str]:
    """Path below `top` -> Stamp's text, "" where it has no version."""
    root = top.strip("/")
    below = len(root) + 1 if root else 0  # some file systems (WebDAV) find paths without the slash that they begin with
    stamps = {path.lstrip("/")[below:]: stamp_of(info) for path, info in system.find(top, detail=True).items()}
    return {path: str(stamp) if stamp is not None and stamp.version else "" for path, stamp in stamps.items()}
