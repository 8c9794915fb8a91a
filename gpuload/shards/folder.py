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
from gpuload.core.location import is_local, shown
from gpuload.core.refs import whole_files
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
    """table: its samples; label i is classes[i]. classes: None for loose images."""

    table: SampleTable
    classes: tuple[str, ...] | None
    findings: tuple[Finding, ...] = ()


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def scan_folder(url: str, options: Options) -> Folder:
    """The samples of one folder. Raises FolderError where it is missing, unreadable or holds no image."""
    try:
        tree = _local_tree(url) if is_local(url) else _remote_tree(url, options)
    except FileNotFoundError as error:
        raise FolderError(url, "it does not exist", "Check the path") from error
    except NotADirectoryError as error:
        raise FolderError(url, "it is a file", 'Name the folder that holds it, or leave out format="folder"') from error
    except OSError as error:
        raise FolderError(url, f"it cannot be listed: {error}", "Check its path and permissions") from error
    classes = sorted(name for name in tree if name)
    loose = tree.get("", [])
    if not any(tree.values()):
        known = ", ".join(IMAGE_EXTENSIONS)
        raise FolderError(url, f"no image in it (looked for {known})", "Name a folder of images, or of class folders")
    if not any(tree[name] for name in classes):
        problem = f"no class folders: {len(loose)} loose images, all with label 0 unless label= says more"
        note = Finding(url, "", problem, note=True)
        return Folder(_table(url, loose, np.zeros(len(loose), np.int64)), None, (note,))
    findings = [
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
    return Folder(_table(url, paths, labels), tuple(classes), tuple(findings))


def images_of(urls: Sequence[str]) -> Folder:
    """Image files named one by one: without labels. Keys are their paths."""
    keys = Strings.of(os.path.splitext(url)[0] for url in urls)
    labels = np.full(len(urls), NO_LABEL, np.int64)
    return Folder(SampleTable(Strings.of(urls), whole_files(np.arange(len(urls))), labels, keys), None)


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
    if flat:
        return Folder(join([folder.table for folder in folders]), None, findings)
    classes = sorted({name for folder in folders for name in folder.classes or ()})
    tables = []
    for folder in folders:
        table = folder.table
        renumbered = np.array([classes.index(name) for name in folder.classes or ()], np.int64)
        tables.append(SampleTable(table.files, table.images, renumbered[table.labels], table.keys))
    return Folder(join(tables), tuple(classes), findings)


def _table(root: str, paths: list[str], labels: np.ndarray) -> SampleTable:
    start = len(root.rstrip("/")) + 1
    keys = Strings.of(os.path.splitext(path[start:])[0] for path in paths)
    return SampleTable(Strings.of(paths), whole_files(np.arange(len(paths))), labels, keys)


def _local_tree(url: str) -> dict[str, list[str]]:
    """Class name -> its images in ImageFolder's order; "" -> the images that lie loose."""
    with os.scandir(url) as entries:
        found = [(entry.name, entry.is_dir()) for entry in entries]
    tree = {"": sorted(os.path.join(url, name) for name, folder in found if not folder and is_image(name))}
    for name, folder in found:
        if folder:
            walk = sorted((root, files) for root, _, files in os.walk(os.path.join(url, name), followlinks=True))
            tree[name] = [os.path.join(root, file) for root, files in walk for file in sorted(files) if is_image(file)]
    return tree


def _remote_tree(url: str, options: Options) -> dict[str, list[str]]:
    below = asked(url, options, _files_below)
    prefix = url.rstrip("/")
    tree: dict[str, list[str]] = {"": []}
    # A folder's own files come before those of its subfolders, and folders in the order of their paths.
    for folder, slash, name in sorted((path.rpartition("/") for path in below), key=lambda p: (p[0], p[2])):
        images = tree.setdefault(folder.split("/")[0], [])
        if is_image(name):
            images.append(f"{prefix}/{folder}{slash}{name}")
    return tree


def _files_below(system: Any, top: str) -> list[str]:
    top = top.rstrip("/")
    return [path[len(top) + 1 :] for path in system.find(top)]
