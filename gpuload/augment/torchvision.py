"""torchvision's transforms read into an AugmentPlan: by exact type and attributes, v1 and v2, never by guessing.

Owns the reading, the table behind the pointwise operations (made by running the user's own operations on all 256
values, so that it is bit for bit what they give), and the per-sample rest. What a class
that is not known here does, and all that follows it, runs as the user wrote it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from gpuload.augment import batch_ops, ops
from gpuload.augment.keyed_random import KeyedRandom
from gpuload.augment.plan import AugmentPlan
from gpuload.core.errors import GpuloadError
from gpuload.core.geometry import Resampling


class NotUnderstoodError(GpuloadError):
    """The transform needs torch's own path; the message says why."""


def read_transform(transform: Any, *, dtype: torch.dtype | None = None) -> AugmentPlan:
    """The plan of a transform from a PIL RGB image to a tensor. dtype: cast the finished image to it.

    Raises NotUnderstoodError where the transform needs the PIL image before anything that is known here.
    """
    if transform is None:
        raise NotUnderstoodError("the data set has no transform, so its images are no tensors: give it one")
    if importlib.util.find_spec("torchvision") is None:
        raise NotUnderstoodError("torchvision is not installed, and its transforms are those that gpuload knows")
    chain = list(_flatten(transform))
    reading = _known(chain)
    if reading.erasing is not None and reading.taken < len(chain):  # what follows needs the erased sample
        reading = _known(chain[: reading.erased_after])
    rest = chain[reading.taken :]
    if rest and not reading.geometry and not reading.pointwise:
        raise NotUnderstoodError(
            f"the transform starts with {_name(rest[0])}, which needs the decoded PIL image before any operation "
            "that gpuload carries out itself"
        )
    return _plan(reading, rest, dtype)


def _known(chain: Sequence[Any]) -> _Reading:
    """The prefix of a chain that is known."""
    reading = _Reading()
    for op in chain:
        if not reading.take(op):
            break
        reading.taken += 1
    return reading


@dataclass
class _Reading:
    """The known prefix so far: the first `taken` operations.

    stage: "pil", "uint8" (a tensor of bytes) or "values" (anything pointwise after).
    """

    taken: int = 0

    geometry: list[ops.GeometryOp] = field(default_factory=list)
    pointwise: list[Any] = field(default_factory=list)
    stage: str = "pil"
    resampling: Resampling = Resampling()
    resized: bool = False
    flipped: bool = False
    cropped: bool = False
    fill: tuple[int, int, int] | None = None  # what the operations so far need outside the image, None: nothing
    erasing: batch_ops.RandomErasing | None = None  # after which nothing changes a value or its place
    erased_after: int = 0

    def take(self, op: Any) -> bool:
        """Add `op` to the prefix, or answer False: it, and what follows it, runs per sample."""
        reader = _readers().get(type(op))
        if reader is None or _altered(op):
            return False
        if self.erasing is not None and reader not in (_read_identity, _read_to_pure_tensor):
            return False
        return reader(self, op)

    def geometry_op(self, op: ops.GeometryOp) -> bool:
        flip = isinstance(op, (ops.RandomHorizontalFlip, ops.RandomVerticalFlip))
        if self.stage == "values" and not flip:  # only mirroring commutes with whatever has been done to the values
            return False
        if isinstance(op, (ops.RandomResizedCrop, ops.Resize)):
            if self.resized or self.flipped or (self.cropped and isinstance(op, ops.RandomResizedCrop)):
                return False
            self.resized, self.cropped = True, False
        elif not flip:
            if self.cropped:
                return False
            self.cropped = True
        self.flipped |= flip
        self.geometry.append(op)
        return True

    def resamples(self, op: ops.GeometryOp, source: Any) -> bool:
        value = _mode(source.interpolation)
        tensor = self.stage == "uint8"
        if value not in (_TENSOR_MODES if tensor else _PIL_MODES) or not self.geometry_op(op):
            return False
        antialias = True if not tensor else bool(source.antialias)
        domain = "pil" if not tensor else "tensor" if ".v2." in type(source).__module__ else "tensor-v1"
        self.resampling = Resampling(value, antialias, domain)
        return True

    def fills(self, fill: tuple[int, int, int]) -> bool:
        """Note what an operation needs outside the image; False where another one needs something else there."""
        if self.fill not in (None, fill):
            return False
        self.fill = fill
        return True


_BLACK = (0, 0, 0)
_PIL_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
_TENSOR_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")


def _mode(interpolation: Any) -> str:
    """The name of an InterpolationMode, of the string that v2 takes in its place, or of Pillow's number for it."""
    value = getattr(interpolation, "value", interpolation)
    if isinstance(value, int):
        from PIL import Image

        return Image.Resampling(value).name.lower()
    return value


def _read_resized_crop(reading: _Reading, op: Any) -> bool:
    (height, width), scale, ratio = op.size, op.scale, op.ratio
    if not (0 < scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
        return False
    return reading.resamples(ops.RandomResizedCrop(int(height), int(width), tuple(scale), tuple(ratio)), op)


def _read_resize(reading: _Reading, op: Any) -> bool:
    size = [op.size] if isinstance(op.size, int) else list(op.size) if op.size is not None else []
    if len(size) == 2:
        return op.max_size is None and reading.resamples(ops.Resize(height=size[0], width=size[1]), op)
    shorter = size[0] if size else None
    if shorter is not None and op.max_size is not None and op.max_size <= shorter:
        return False  # torchvision raises when it is called: let it
    return reading.resamples(ops.Resize(shorter=shorter, max_size=op.max_size), op)


def _read_center_crop(reading: _Reading, op: Any) -> bool:
    crop = ops.CenterCrop(int(op.size[0]), int(op.size[1]))
    return reading.fill in (None, _BLACK) and reading.geometry_op(crop) and reading.fills(_BLACK)


def _read_random_crop(reading: _Reading, op: Any) -> bool:
    padding = _padding(op)
    if padding is None or min(padding) < 0:
        return False
    crop = ops.RandomCrop(int(op.size[0]), int(op.size[1]), padding, bool(op.pad_if_needed))
    if not (any(padding) or op.pad_if_needed):
        return reading.geometry_op(crop)
    fill = tuple(op.fill) if isinstance(op.fill, (tuple, list)) else (op.fill,) * 3
    if op.padding_mode != "constant" or len(fill) != 3 or not all(type(v) is int and 0 <= v <= 255 for v in fill):
        return False
    if reading.stage == "uint8" and fill is op.fill and ".v2." not in type(op).__module__:
        return False  # v1 pads tensors with one number only, and raises when it is called: let it
    return reading.fill in (None, fill) and reading.geometry_op(crop) and reading.fills(fill)


def _padding(op: Any) -> tuple[int, int, int, int] | None:
    """RandomCrop's (left, top, right, bottom), None where it is nothing that torchvision pads by."""
    if op.padding is None or isinstance(op.padding, int):
        return (op.padding or 0,) * 4
    if ".v2." in type(op).__module__:
        left, right, top, bottom = op.padding  # as v2 keeps it
        return left, top, right, bottom
    sides = {1: (0, 0, 0, 0), 2: (0, 1, 0, 1), 4: (0, 1, 2, 3)}.get(len(op.padding))
    return None if sides is None else tuple(op.padding[side] for side in sides)


def _read_flip(make: Callable[[float], ops.GeometryOp]) -> Callable[[_Reading, Any], bool]:
    return lambda reading, op: reading.geometry_op(make(float(op.p)))


def _read_to_tensor(reading: _Reading, op: Any) -> bool:
    if reading.stage != "pil":
        return False
    reading.pointwise.append(op)
    reading.stage = "values" if type(op).__name__ == "ToTensor" else "uint8"
    return True


def _read_pointwise(reading: _Reading, op: Any) -> bool:
    if reading.stage == "pil":
        return False
    reading.pointwise.append(op)
    reading.stage = "values"
    return True


def _read_erasing(reading: _Reading, op: Any) -> bool:
    value = op.value if isinstance(op.value, (tuple, list)) else [op.value]
    numbers = len(value) in (1, 3) and all(type(number) in (int, float) for number in value)
    (least, most), (low, high) = op.scale, op.ratio
    if reading.stage == "pil" or not numbers or not (0 <= least <= most <= 1 and 0 < low <= high):
        return False  # random values, or what raises when it is called
    reading.erasing = batch_ops.RandomErasing(float(op.p), (least, most), (low, high), tuple(map(float, value)))
    reading.erased_after = reading.taken
    return True


def _read_identity(reading: _Reading, op: Any) -> bool:
    return True


def _read_to_pure_tensor(reading: _Reading, op: Any) -> bool:
    if reading.stage != "pil":  # v2's leaves a PIL image alone
        reading.pointwise.append(op)
    return True


_READERS: dict[type, Callable[[_Reading, Any], bool]] = {}


def _readers() -> dict[type, Callable[[_Reading, Any], bool]]:
    """Exact class -> how it is read. Built when first needed: torchvision is optional."""
    if not _READERS:
        import torchvision.transforms as v1
        import torchvision.transforms.v2 as v2

        table = {torch.nn.Identity: _read_identity, v2.Identity: _read_identity, v2.ToPureTensor: _read_to_pure_tensor}
        for module in (v1, v2):
            table |= {
                module.RandomResizedCrop: _read_resized_crop,
                module.Resize: _read_resize,
                module.CenterCrop: _read_center_crop,
                module.RandomCrop: _read_random_crop,
                module.RandomHorizontalFlip: _read_flip(ops.RandomHorizontalFlip),
                module.RandomVerticalFlip: _read_flip(ops.RandomVerticalFlip),
                module.ToTensor: _read_to_tensor,
                module.PILToTensor: _read_to_tensor,
                module.ConvertImageDtype: _read_pointwise,
                module.Normalize: _read_pointwise,
                module.RandomErasing: _read_erasing,
            }
        _READERS.update(table | {v2.ToImage: _read_to_tensor, v2.ToDtype: _read_pointwise})
    return _READERS


def read_batch_transform(transform: Any) -> batch_ops.BatchOp | None:
    """The description of a batch transform, None where it is nothing that is known: a callable, to be called.

    Known are `batch_ops`' own, and torchvision's MixUp, CutMix and RandomChoice of them, by exact type and unaltered.
    """
    if isinstance(transform, batch_ops.BatchOp):
        return transform
    if importlib.util.find_spec("torchvision") is None:
        return None
    import torchvision.transforms.v2 as v2

    kinds: dict[type, Any] = {v2.MixUp: batch_ops.MixUp, v2.CutMix: batch_ops.CutMix}
    kind = type(transform)
    if kind not in (*kinds, v2.RandomChoice) or _altered(transform):
        return None
    if kind is v2.RandomChoice:
        inner = [read_batch_transform(op) for op in transform.transforms]
        known = tuple(op for op in inner if isinstance(op, (batch_ops.MixUp, batch_ops.CutMix)))
        return batch_ops.OneOf(known, tuple(transform.p)) if len(known) == len(inner) else None
    if transform._labels_getter is not kind(num_classes=1)._labels_getter:  # a function of the user's
        return None
    return kinds[kind](transform.num_classes, transform.alpha)


def _altered(op: Any) -> bool:
    """Whether this instance does something else than its class: by hooks, or methods of its own."""
    if getattr(op, "_forward_hooks", None) or getattr(op, "_forward_pre_hooks", None):
        return True
    return any(callable(getattr(type(op), name, None)) for name in vars(op))


def _flatten(transform: Any) -> Iterator[Any]:
    import torchvision.transforms as v1
    import torchvision.transforms.v2 as v2

    if type(transform) in (v1.Compose, v2.Compose) and not _altered(transform):
        for op in transform.transforms:
            yield from _flatten(op)
    else:
        yield transform


def _name(op: Any) -> str:
    return getattr(op, "__name__", type(op).__name__)


def _plan(reading: _Reading, rest: Sequence[Any], dtype: torch.dtype | None) -> AugmentPlan:
    probe = _probe(reading.pointwise) if reading.pointwise else None
    notes: list[str] = []
    if probe is None and not rest:
        raise NotUnderstoodError("the transform leaves PIL images, of which torch makes no batch")
    erased = None
    if probe is not None and reading.erasing is not None:  # as torchvision puts it into an image, then as the image's
        erased = torch.empty(3, 1, 1, dtype=probe.dtype)
        erased[...] = torch.tensor(reading.erasing.value)[:, None, None]
        erased = erased if dtype is None else erased.to(dtype)
    if probe is not None and not rest and dtype is not None:
        probe = probe.to(dtype)
    if rest:
        notes.append(
            f"{', '.join(map(_name, rest))}: run as given, one sample at a time, in the loader's threads; torch's "
            "random draws there are keyed by sample; draws from Python's or NumPy's global generators are not"
        )
    resampling = replace(reading.resampling, fill=reading.fill or _BLACK)
    return AugmentPlan(
        geometry=tuple(reading.geometry),
        resampling=resampling,
        resize=_tensor_resize(resampling) if resampling.domain != "pil" else None,
        pointwise=tuple(_name(op) for op in reading.pointwise),
        table=None if probe is None else _bits(probe),
        dtype="uint8" if probe is None else str(probe.dtype).removeprefix("torch."),
        rest=_Rest(tuple(rest), dtype) if rest else None,
        rest_names=tuple(map(_name, rest)),
        notes=tuple(notes),
        wrap=None if probe is None or type(probe) is torch.Tensor else type(probe),
        erasing=reading.erasing,
        erased=None if erased is None else _bits(erased)[:, 0],
    )


def _probe(pointwise: Sequence[Any]) -> torch.Tensor:
    """What the operations make of an image that holds every byte value once in every channel: (3, 1, 256)."""
    from PIL import Image

    value: Any = Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2))
    for op in pointwise:
        try:
            value = op(value)
        except Exception as error:  # it will say the same of every image, on torch's path, where the user expects it
            raise NotUnderstoodError(f"{_name(op)} raises {type(error).__name__}: {error}") from error
    if tuple(value.shape) != (3, 1, 256):
        names = ", ".join(map(_name, pointwise))
        raise NotUnderstoodError(f"{names} gave shape {tuple(value.shape)} for a 1 x 256 image")
    return value


def _bits(values: torch.Tensor) -> np.ndarray:
    """(3, values a channel), for NumPy; 16-bit floats as their bit patterns."""
    table = values.reshape(3, -1).as_subclass(torch.Tensor).contiguous()
    if table.dtype in (torch.float16, torch.bfloat16):
        return table.view(torch.int16).numpy().view(np.uint16).copy()
    if table.dtype not in (torch.uint8, torch.float32, torch.float64):
        raise NotUnderstoodError(f"images of type {table.dtype} are made by torch's path only")
    return table.numpy().copy()


def _tensor_resize(resampling: Resampling) -> Callable[[np.ndarray, tuple[int, int]], np.ndarray]:
    import torchvision.transforms.functional as v1
    import torchvision.transforms.v2.functional as v2

    resize: Any = v2.resize if resampling.domain == "tensor" else v1.resize
    mode = v1.InterpolationMode(resampling.interpolation)

    def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        out = resize(tensor, [size[1], size[0]], interpolation=mode, antialias=resampling.antialias)
        return out.permute(1, 2, 0).numpy()

    return resized


@dataclass(frozen=True)
class _Rest:
    """The user's own operations on one sample. dtype: cast what they give to it."""

    ops: tuple[Any, ...]
    dtype: torch.dtype | None

    def __call__(self, image: Any, key: np.ndarray) -> Any:
        """The finished sample's image. image: PIL image or tensor; key: uint32 (4,), the sample's random key."""
        with KeyedRandom(key):
            for op in self.ops:
                image = op(image)
        return image.to(self.dtype) if self.dtype is not None and isinstance(image, torch.Tensor) else image
