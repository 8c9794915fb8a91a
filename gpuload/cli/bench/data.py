"""What the user's data is, and how an ordinary torch script would read it.

Owns the look at a path (class folders, a flat folder, tar shards) and the plain map-style data sets that the
peers read: Pillow and `tarfile`, nothing of gpuload. How gpuload reads the same path is `subjects.py`'s.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from gpuload.core.errors import ConfigError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")


@dataclass(frozen=True)
class DataKind:
    """`kind`: "classes" (a folder a class), "flat" (images side by side) or "tar" (WebDataset shards)."""

    kind: str
    where: str
    shards: tuple[str, ...] = ()

    @property
    def wording(self) -> str:
        return {"classes": "class folders", "flat": "flat folder", "tar": f"{len(self.shards)} tar shards"}[self.kind]


def look_at(where: str) -> DataKind:
    """What lies at `where`, a local folder or one tar file. Raises ConfigError where no images can be found."""
    path = Path(where).expanduser()
    if path.is_file() and path.suffix == ".tar":
        return DataKind("tar", str(path), (str(path),))
    if not path.is_dir():
        raise ConfigError(f"{where}: no folder and no .tar file; give a folder of images, class folders or shards")
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    shards = tuple(entry.path for entry in entries if entry.name.endswith(".tar") and entry.is_file())
    if shards:
        return DataKind("tar", str(path), shards)
    if any(entry.is_file() and _is_image(entry.name) for entry in entries):
        return DataKind("flat", str(path))
    if any(entry.is_dir() and _holds_images(entry.path) for entry in entries):
        return DataKind("classes", str(path))
    raise ConfigError(
        f"no images found in {where}: looked for *.tar, for {'/'.join(IMAGE_SUFFIXES[:3])} files, and for folders that "
        "hold them; give the folder that directly holds the class folders (for ImageNet: .../train)"
    )


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _holds_images(folder: str) -> bool:
    return any(_is_image(name) for _, _, names in os.walk(folder) for name in names)


class FlatFolder:
    """Images of one folder by name; the label is 0. `load`: bytes to image, `transform`: image to sample."""

    def __init__(self, folder: str, transform: Callable[[Any], Any], load: Callable[[bytes], Any]) -> None:
        self.paths = sorted(entry.path for entry in os.scandir(folder) if entry.is_file() and _is_image(entry.name))
        self.labels = [0] * len(self.paths)
        self.transform, self.load = transform, load

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        with open(self.paths[i], "rb") as file:
            data = file.read()
        return self.transform(self.load(data)), self.labels[i]


class ClassFolders(FlatFolder):
    """A folder a class, as torchvision's ImageFolder orders them, for loaders that want bytes rather than Pillow."""

    def __init__(self, folder: str, transform: Callable[[Any], Any], load: Callable[[bytes], Any]) -> None:
        self.paths, self.labels = [], []
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        for label, name in enumerate(classes):
            for parent, _, files in sorted(os.walk(os.path.join(folder, name))):
                found = [os.path.join(parent, file) for file in sorted(files) if _is_image(file)]
                self.paths += found
                self.labels += [label] * len(found)
        self.transform, self.load = transform, load


@dataclass(frozen=True)
class Member:
    """Where one image lies in a tar shard; label from the `.cls` member beside it, None without one."""

    shard: str
    offset: int
    size_bytes: int
    label: int | None


class TarShards:
    """Images of WebDataset shards in their order, read by offset; the index is made once, from the tar headers."""

    def __init__(self, shards: Sequence[str], transform: Callable[[Any], Any], load: Callable[[bytes], Any]) -> None:
        self.members = [member for shard in shards for member in _members(shard)]
        self.labelled = all(member.label is not None for member in self.members)
        self.labels = [member.label or 0 for member in self.members]
        self.transform, self.load = transform, load

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        member = self.members[i]
        with open(member.shard, "rb") as file:
            file.seek(member.offset)
            data = file.read(member.size_bytes)
        return self.transform(self.load(data)), self.labels[i]


def _members(shard: str) -> list[Member]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with tarfile.open(shard) as archive:
        for info in archive:
            if not info.isfile():
                continue
            folder, _, name = info.name.rpartition("/")
            key, _, extension = name.partition(".")
            key = f"{folder}/{key}"
            if _is_image("." + extension):
                images[key] = (info.offset_data, info.size)
            elif extension == "cls":
                content = archive.extractfile(info)
                text = content.read().strip() if content is not None else b""
                if text.isdigit():
                    labels[key] = int(text)
    return [Member(shard, offset, size, labels.get(key)) for key, (offset, size) in images.items()]


def pil_rgb(data: bytes) -> Image.Image:
    """What torchvision's `pil_loader` makes of these bytes."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def read_plainly(data: DataKind, transform: Callable[[Any], Any], load: Callable[[bytes], Any]) -> Any:
    """The map-style data set an ordinary script would write for `data`."""
    if data.kind == "tar":
        return TarShards(data.shards, transform, load)
    return (FlatFolder if data.kind == "flat" else ClassFolders)(data.where, transform, load)


def plain_bytes(data: DataKind) -> Any:
    """The same, its samples (encoded bytes, label): what is packed for peers that read only their own format."""
    return read_plainly(data, lambda data: data, lambda data: data)


def files_of(data: DataKind, indices: Sequence[int]) -> list[str]:
    """The files that hold these samples, each once."""
    plain = plain_bytes(data)
    paths = (plain.members[i].shard if data.kind == "tar" else plain.paths[i] for i in indices)
    return list(dict.fromkeys(paths))
