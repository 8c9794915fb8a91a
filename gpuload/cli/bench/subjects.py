"""The loaders that are compared, and how each is built on the same samples with the same transform.

Owns names, what is needed to run each, and the construction; every one is what its users would write. A batch is
(float32 images (N, 3, H, W) normalised with ImageNet's mean and deviation, labels), on the device that was asked for.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuload.cli.bench.data import DataKind, pil_rgb, read_plainly
from gpuload.core.errors import ConfigError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Subject:
    """One row of the table: what it is called, what it is in one line, and what it needs beside gpuload[bench]."""

    name: str
    what: str
    module: str = ""
    """What must be importable."""
    cure: str = ""
    """What installs it."""


DALI = "pip install 'gpuload[dali]'"

SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("torch", "torch's DataLoader, torchvision on Pillow, worker processes"),
        Subject("torch-v2", "torch's DataLoader, torchvision.io.decode_image and v2 on tensors, worker processes"),
        Subject("gpuload-native", 'gpuload.DataLoader(decoder="native"), threads'),
        Subject("gpuload-pillow", 'gpuload.DataLoader(decoder="pillow"), threads'),
        Subject("gpuload-dali", 'gpuload.DataLoader(decoder="dali"), threads', "nvidia.dali", DALI),
        Subject("gpuload-fallback", "gpuload.DataLoader(accelerate=False): torch's path, worker processes"),
        Subject("dali", "DALI's own pipeline, threads", "nvidia.dali", DALI),
        Subject(
            "webdataset", "WebDataset and its WebLoader, torchvision on Pillow, worker processes; its own tar shards",
            "webdataset", "pip install webdataset",
        ),
        Subject(
            "streaming", "MosaicML's StreamingDataset, torchvision on Pillow, worker processes; its own MDS shards",
            "streaming", "pip install mosaicml-streaming",
        ),
        Subject("gpuload", "gpuload.DataLoader with its defaults, threads"),
    )
}  # fmt: skip
BASELINE = "torch"
PEERS = ("torch", "torch-v2", "dali", "webdataset", "streaming")
ALIASES = {"torchvision-v2": "torch-v2"}
OWN_FORMAT = ("webdataset", "streaming")
"""They read only what their own writers wrote: the samples are packed before anything is timed."""


@dataclass(frozen=True)
class Setting:
    """What all loaders of one run share. workers: processes for torch, threads for the others. size: output pixels."""

    data: DataKind
    device: str
    workers: int
    batch_size: int
    size: int = 224
    seed: int = 0
    shared_dataset: bool = False
    """torch reads gpuload's ShardDataset too, so that the import is the only difference (the demo)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """More arguments for gpuload's own DataLoader; the peers have none."""
    cold: bool = False
    """Files are about to leave the page cache, so nobody keeps them mapped: DALI does unless told otherwise."""
    scratch: str = ""
    """An existing folder for what a peer packs, removed by whoever made it."""


def chosen(against: Sequence[str], decoders: Sequence[str]) -> list[str]:
    """Names of the rows for `--against` and `--decoder`, in the table's order; torch's own is always there."""
    against = [ALIASES.get(name, name) for name in against]
    ours = {"native", "pillow", "dali", "fallback", "auto"}
    for option, given, known in (("--against", against, {*PEERS, *ALIASES}), ("--decoder", decoders, ours)):
        for name in given:
            if name not in known:
                raise ConfigError(f"{option} {name}: not known; choose from {', '.join(sorted(known))}")
    named = {"gpuload" if name == "auto" else f"gpuload-{name}" for name in decoders}
    return [name for name in SUBJECTS if name == BASELINE or name in against or name in named]


def absent(name: str) -> str:
    """Why this loader cannot run here, "" where it can."""
    subject = SUBJECTS[name]
    if not subject.module:
        return ""
    try:
        found = importlib.util.find_spec(subject.module)
    except ModuleNotFoundError:  # no package `nvidia` at all
        found = None
    return "" if found else f"absent: {subject.cure}"


def scratch_folder(setting: Setting, peer: str) -> str:
    """A new folder for what `peer` packs. Raises ConfigError where the setting has no room for it."""
    if not setting.scratch:
        raise ConfigError(f"{peer} needs a folder to pack its shards into: Setting.scratch names none")
    return tempfile.mkdtemp(prefix=f"{peer}-", dir=setting.scratch)


def build(name: str, setting: Setting, *, transform: str, indices: Sequence[int], shuffle: bool) -> Any:
    """The loader, whose epoch is the samples `indices` (repeats allowed). transform: see pil_transform."""
    if name == "dali":
        from gpuload.cli.bench.dali_peer import DaliLoader

        return DaliLoader(setting, transform=transform, indices=indices, shuffle=shuffle)
    if name in OWN_FORMAT:
        peer = _own_format(name)(setting, transform=transform, indices=indices, shuffle=shuffle)
        return OnDevice(peer) if setting.device == "cuda" else peer
    from torch.utils.data import Subset

    dataset = Subset(_dataset(name, setting, transform), list(indices))
    shared: dict[str, Any] = {
        "batch_size": setting.batch_size,
        "shuffle": shuffle,
        "num_workers": setting.workers,
        "persistent_workers": setting.workers > 0,
        "pin_memory": setting.device == "cuda",
    }
    if name in ("torch", "torch-v2"):
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(dataset, **shared)
        return OnDevice(loader) if setting.device == "cuda" else loader
    from gpuload import DataLoader as GpuloadDataLoader

    decoder = {"gpuload-native": "native", "gpuload-pillow": "pillow", "gpuload-dali": "dali"}.get(name, "auto")
    shared |= {"device": setting.device, **setting.options}
    if name == "gpuload-fallback":
        loader = GpuloadDataLoader(dataset, **shared, accelerate=False)
        return OnDevice(loader) if setting.device == "cuda" else loader
    return GpuloadDataLoader(dataset, **shared, decoder=decoder, accelerate="require")


def _own_format(name: str) -> Any:
    if name == "webdataset":
        from gpuload.cli.bench.webdataset_peer import WebDatasetLoader

        return WebDatasetLoader
    from gpuload.cli.bench.streaming_peer import StreamingLoader

    return StreamingLoader


def labels(setting: Setting) -> list[int]:
    """The label of every image, found as a plain script would; their number is the data set's size."""
    return read_plainly(setting.data, lambda image: image, lambda data: data).labels


def _dataset(name: str, setting: Setting, transform: str) -> Any:
    ours = name.startswith("gpuload") and name != "gpuload-fallback"
    if name == "torch-v2":
        return read_plainly(setting.data, tensor_transform(transform, setting.size), _decode_tensor)
    pil = pil_transform(transform, setting.size)
    if setting.data.kind == "classes":
        from torchvision.datasets import ImageFolder

        return ImageFolder(setting.data.where, transform=pil)
    if ours or setting.shared_dataset:
        from gpuload import ShardDataset

        labels = None
        if setting.data.kind == "tar":
            plain = read_plainly(setting.data, pil, pil_rgb)
            labels = None if plain.labelled else plain.labels
        return ShardDataset(setting.data.where, transform=pil, label=labels)
    return read_plainly(setting.data, pil, pil_rgb)


def pil_transform(kind: str, size: int) -> Any:
    """The transform that ImageNet scripts use, for Pillow images: "train" or "eval"; "flip" for images of this size."""
    from torchvision import transforms as t

    geometry = {
        "train": [t.RandomResizedCrop(size), t.RandomHorizontalFlip()],
        "eval": [t.Resize(size * 256 // 224), t.CenterCrop(size)],
        "flip": [t.RandomHorizontalFlip()],
    }[kind]
    return t.Compose([*geometry, t.ToTensor(), t.Normalize(MEAN, STD)])


def tensor_transform(kind: str, size: int) -> Any:
    """The same on uint8 tensors, by torchvision v2."""
    import torch
    from torchvision.transforms import v2

    geometry = {
        "train": [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()],
        "eval": [v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)],
        "flip": [v2.RandomHorizontalFlip()],
    }[kind]
    return v2.Compose([*geometry, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def _decode_tensor(data: bytes) -> Any:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)


class OnDevice:
    """A host loader whose batches are copied to the GPU as training scripts do it: pinned, non_blocking."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.packed_s, self.files = getattr(loader, "packed_s", 0.0), getattr(loader, "files", [])

    def __iter__(self) -> Iterator[Any]:
        for images, labels in self.loader:
            yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
