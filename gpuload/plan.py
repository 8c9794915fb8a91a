"""What a loader will do and why, as a value: the decision between the two paths, made without doing anything.

Owns that decision, the choice of decoder, and how both print (`loader.explain()`). Carrying it out is
`wiring.py`'s, `accelerated.py`'s and torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data.dataloader import default_collate

from gpuload.adapters.timm import as_torchvision
from gpuload.augment.ops import RandomCrop
from gpuload.augment.plan import AugmentPlan
from gpuload.augment.torchvision import NotUnderstoodError, read_transform
from gpuload.batch_transform import known_batch_transform
from gpuload.core.batch import TensorSpec
from gpuload.core.errors import ConfigError, MissingDependencyError
from gpuload.core.geometry import Resampling
from gpuload.decode import dali
from gpuload.sources import Understood, understand
from gpuload.views import Views


@dataclass(frozen=True, eq=False)
class LoaderPlan:
    """How a loader's batches come about.

    accelerated: gpuload's path, or torch's. reasons: why torch's, empty otherwise. steps: (step, where it
    runs, what comes out), in order. notes: what is worth knowing. The rest is None on torch's path.
    augments: what is done to each image, or for each view of it. specs: the images of a batch, a view each, where they
    are stored directly; empty where samples are finished one by one, as are those of a batch whose images differ in
    size. in_list: a sample holds a list of views in the image's place.
    on_gpu: the decoder runs on the GPU, where batches are delivered to one.
    ignored: arguments of gpuload's own that were given and do nothing on torch's path.
    """

    accelerated: bool
    reasons: tuple[str, ...] = ()
    steps: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    understood: Understood | None = None
    augments: tuple[AugmentPlan, ...] = ()
    specs: tuple[TensorSpec, ...] = ()
    in_list: bool = False
    decoder: str = ""
    on_gpu: bool = False
    threads: int = 0
    ignored: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = "gpuload: accelerated" if self.accelerated else "gpuload: torch's own path, not accelerated"
        lines = [head, *(f"  because {reason}" for reason in self.reasons)]
        if self.understood is not None:
            lines.append(f"  data: {self.understood.what}")
        widths = [max((len(row[column]) for row in self.steps), default=0) for column in range(3)]
        for number, row in enumerate(self.steps):
            cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"  {number + 1:2}  {cells}".rstrip())
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def plan_loader(loader: Any) -> LoaderPlan:
    """The plan of a gpuload.DataLoader as it stands now. Opens no file and starts no thread."""
    reasons = []
    if loader.accelerate is False:
        reasons.append("accelerate=False was given")
    if loader.worker_init_fn is not None:
        reasons.append("worker_init_fn was given, which asks for worker processes")
    if loader.multiprocessing_context is not None:
        reasons.append("multiprocessing_context was given, which asks for worker processes")
    dtype = known_dtype(loader.dtype)
    try:
        understood = understand(loader.dataset)
        augments = tuple(
            read_transform(as_torchvision(transform), dtype=dtype) for transform in _transforms(understood.transform)
        )
    except NotUnderstoodError as error:
        reasons.append(str(error))
    if reasons:
        where = f"{int(loader.num_workers)} worker processes" if loader.num_workers else "the caller's process"
        notes: tuple[str, ...] = ()
        if not loader.num_workers and loader.accelerate is not False:
            notes = ("num_workers is 0 or omitted: torch's path then does all work in the training loop's process",)
        ignored = _ignored(loader)
        if ignored:
            notes += (f"without effect on this path: {', '.join(ignored)}",)
        return LoaderPlan(False, tuple(reasons), (("dataset[i], collate_fn", where, ""),), notes, ignored=ignored)
    return _accelerated(loader, understood, augments)


def _transforms(transform: Any) -> tuple[Any, ...]:
    """The transform of each view."""
    return transform.transforms if type(transform) is Views else (transform,)


def _accelerated(loader: Any, understood: Understood, augments: tuple[AugmentPlan, ...]) -> LoaderPlan:
    in_list = type(understood.transform) is Views
    mixing = known_batch_transform(loader.batch_transform)
    if mixing is not None and in_list:
        raise ConfigError(f"{type(mixing).__name__} mixes one image a sample, and these have several views of it")
    direct = loader.batch_sampler is not None and loader.collate_fn is default_collate
    decoder = {choose_decoder(loader.decoder, augment.resampling) for augment in augments}.pop()  # all choose the same
    specs = _specs(augments, loader.memory_format is torch.channels_last, decoder) if direct else ()
    threads = loader.decode_threads
    where = f"{threads} thread{'s' if threads != 1 else ''}" if threads else "the caller's thread"
    on_gpu = bool(specs) and all(gpu_decodes(loader, augment, decoder) for augment in augments)
    if len(augments) > 1 and any(isinstance(op, RandomCrop) for augment in augments for op in augment.geometry):
        on_gpu = False  # the one that refuses an image by its size: another view of it would be with the GPU by then
    steps = [
        ("order", "the caller's thread", f"ids from {type(loader._index_sampler).__name__}"),
        ("read", "fetch threads" if threads else where, "encoded bytes"),
        (f"decode ({decoder})", where, "H x W x 3 uint8"),
    ]
    for number, augment in enumerate(augments):
        view = f"view {number + 1}: " if in_list else ""
        for name, kind, shape in augment.steps():
            steps.append((f"{view}{name}", where if kind == "fused" else f"{where}, per sample", shape))
    for spec in specs:
        layout = "channels_last" if spec.channels_last else "contiguous"
        shape = "3 x h x w" if spec.open else " x ".join(map(str, spec.shape))
        how = "fused, where a batch's images are JPEGs that come out alike" if spec.open else "fused"
        steps.append(("store into the batch", f"{where}, {how}", f"n x {shape} {spec.dtype}, {layout}"))
    if not specs:
        steps.append(("collate_fn" if not direct else "default_collate", f"{where}, one batch at a time", ""))
    if mixing is not None:
        steps.append((type(mixing).__name__, "where batches are delivered", "labels as float, n x classes"))
    where_to = "on the GPU where one works, else on the CPU" if loader.device == "auto" else f"on {loader.device}"
    steps.append(("hand over", "the caller's thread", where_to))
    notes = tuple(dict.fromkeys((*understood.notes, *(note for augment in augments for note in augment.notes))))
    if loader.fidelity == "fast" and (decoder != "native" or not all(map(native_resize, augments))):
        whose = f"decoder={decoder!r}" if decoder != "native" else "a transform that resizes tensors or by this filter"
        notes += (f'fidelity="fast" does nothing with {whose}',)
    if on_gpu and loader.device != "cpu":
        which = "JPEGs whose seek points are known" if decoder == "native" else "JPEGs"
        how = "; a first epoch, or `gpuload index`, makes them known" if decoder == "native" else ""
        notes += (f"{which} are decoded and transformed on the GPU that batches go to, if any{how}",)
    return LoaderPlan(True, (), tuple(steps), notes, understood, augments, specs, in_list, decoder, on_gpu, threads)


def _specs(augments: tuple[AugmentPlan, ...], channels_last: bool, decoder: str) -> tuple[TensorSpec, ...]:
    """Each view's images of a batch where all are stored directly, else none: a batch is made in one way."""
    specs = [spec for augment in augments if (spec := augment.tensor_spec(channels_last)) is not None]
    # other decoders know an image's size when it is decoded, and only one view's size may be found batch by batch
    unknown = any(spec.open for spec in specs) and (decoder != "native" or len(augments) > 1)
    return () if unknown or len(specs) < len(augments) else tuple(specs)


def choose_decoder(asked: str, resampling: Resampling) -> str:
    """Which decoder runs: the one that was asked for, else gpuload's own.

    Raises MissingDependencyError or ConfigError where DALI was asked for and cannot.
    """
    if asked == "dali":
        if reason := dali.available():
            raise MissingDependencyError(f'decoder="dali": {reason}. Install it by pip install "gpuload[dali]"')
        if reason := dali.unsupported(resampling):
            raise ConfigError(f'decoder="dali": {reason}. Pass decoder="native"')
    return "native" if asked == "auto" else asked


def gpu_decodes(loader: Any, augment: AugmentPlan, decoder: str) -> bool:
    """Whether images that go into the batch directly may be decoded on a GPU."""
    if decoder != "native" or not loader.max_device_bytes:
        return decoder == "dali" and loader.max_device_bytes > 0
    resized = native_resize(augment) and augment.resampling.interpolation != "lanczos"
    return loader.entropy_index != "off" and (resized or not augment.resizes)


def native_resize(augment: AugmentPlan) -> bool:
    """Whether gpuload's own decoder also resizes, by Pillow's arithmetic."""
    return augment.resize is None and augment.resampling.interpolation in ("bilinear", "bicubic", "box", "lanczos")


def _ignored(loader: Any) -> tuple[str, ...]:
    """What was asked of gpuload that torch's path does not do."""
    usual = {"dtype": None, "memory_format": None, "on_error": "raise", "fidelity": "exact"}
    given = [f"{name}={getattr(loader, name)!r}" for name, value in usual.items() if getattr(loader, name) != value]
    if loader.decoder == "dali":
        given.append("decoder='dali'")
    if loader.config is not None:
        given.append(f"config={str(loader.config)!r}")
    if str(loader.device) not in ("auto", "cpu"):
        given.append(f"device={loader.device!r}")
    return tuple(given)


def known_dtype(dtype: Any) -> torch.dtype | None:
    """dtype, if batches can have it. Raises ConfigError otherwise."""
    if dtype is None or dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return dtype
    raise ConfigError(
        f"dtype must be torch.uint8, .float16, .bfloat16, .float32, .float64 or None (as it comes), got {dtype!r}"
    )
