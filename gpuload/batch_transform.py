"""G. MixUp and CutMix of a collated batch, on the device where its images are.

Owns where a batch's images and labels stand in its structure, as torchvision's own transforms find them, and which
kernel gets them. What is drawn is augment/batch_ops.py's, the arithmetic kernels/mix.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gpuload.augment.batch_ops import BatchOp, Mixing, draw_mixing
from gpuload.augment.torchvision import read_batch_transform
from gpuload.core.errors import ConfigError
from gpuload.core.structure import replaced

Mixer = Callable[[Any, np.ndarray], Callable[..., Any]]


@dataclass(frozen=True)
class BatchMixing:
    """What one batch is mixed by, and the paths of its images and labels: a key or an index a level."""

    mixing: Mixing
    images: tuple[Any, ...]
    labels: tuple[Any, ...]


def known_batch_transform(transform: Any) -> BatchOp | None:
    """What DataLoader's batch_transform= asks for. Raises ConfigError for what is no operation that is known."""
    op = None if transform is None else read_batch_transform(transform)
    if transform is not None and op is None:
        raise ConfigError(
            "batch_transform must be gpuload's MixUp, CutMix or OneOf, or torchvision's MixUp, CutMix or RandomChoice "
            f"of them, unaltered, got {transform!r}. Apply anything else to the batches that the loader gives"
        )
    return op


def mixer(op: BatchOp) -> Mixer:
    """What `Work` calls with a batch on the host and its first sample's key; what comes back mixes it anywhere."""

    def planned(batch: Any, key: np.ndarray) -> Callable[..., Any]:
        return partial(mix_batch, plan=plan_mixing(batch, op, key))

    return planned


def plan_mixing(batch: Any, op: BatchOp, key: np.ndarray) -> BatchMixing:
    """How a batch that is still on the host will be mixed. key: uint32 (4,), its first sample's.

    Images: the first tensor (n, C, H, W), float, or for CutMix of any type. Labels: int (n,), or probabilities
    (n, classes).
    Raises ConfigError for a batch that has no such images and labels, ValueError for a label that is no class.
    """
    at = next((path for path in _tensors(batch, ()) if _at(batch, path).dim() == 4), None)
    if at is None:
        raise ConfigError(f"{_name(op)}: the batch has no images: there is no tensor (n, C, H, W) in it")
    images = _at(batch, at)
    mixing = draw_mixing(op, key, images.shape[2], images.shape[3])
    where = _labels_in(batch, mixing)
    _check(mixing, images, _at(batch, where))
    return BatchMixing(mixing, at, where)


def mix_batch(batch: Any, plan: BatchMixing, *, in_place: bool, launch: Callable[..., None] | None = None) -> Any:
    """The batch with its images and labels mixed, labels as float (n, classes), and what else it holds untouched.

    in_place: the memory of the images is nobody else's and may be written over. launch: (kernel, items, int64...), for
    a batch in device memory, on the stream that is torch's current one here; None: it is on the host.
    """
    images, labels = _at(batch, plan.images), _at(batch, plan.labels)
    batch = replaced(batch, plan.images, _images(images, plan.mixing, in_place, launch))
    return replaced(batch, plan.labels, _labels(labels, plan.mixing, launch))


def _name(op: Any) -> str:
    return type(op).__name__


def _tensors(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The paths of a batch's tensors, in order."""
    if isinstance(tree, torch.Tensor):
        yield path
    elif isinstance(tree, (Mapping, tuple, list)):
        for key, inner in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _tensors(inner, (*path, key))


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _labels_in(batch: Any, mixing: Mixing) -> tuple[Any, ...]:
    """The path of the labels: as given, else a sequence's second part, there or at once by a name such as "labels"."""
    if mixing.op.labels is not None:
        return (mixing.op.labels,)
    path: tuple[Any, ...] = ()
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        path, batch = (1,), batch[1]
    if isinstance(batch, Mapping):
        names = [name for name in batch if isinstance(name, str)]
        likely = [name for name in names if name.lower() == "labels"] or [n for n in names if "label" in n.lower()]
        if likely:
            return (*path, likely[0])
    elif path:
        return path
    raise ConfigError(f"{_name(mixing.op)}: found no labels in the batch; say where they stand: labels= (key or index)")


def _check(mixing: Mixing, images: torch.Tensor, labels: Any) -> None:
    name, classes = _name(mixing.op), mixing.op.num_classes
    if mixing.box is None and not images.is_floating_point():
        raise ConfigError(f"{name}: images must be of a floating type, got {images.dtype}: add ToDtype, or pass dtype=")
    if not isinstance(labels, torch.Tensor) or labels.dim() not in (1, 2) or len(labels) != len(images):
        shape = tuple(labels.shape) if isinstance(labels, torch.Tensor) else type(labels).__name__
        raise ConfigError(f"{name}: labels must be a tensor ({len(images)},) or ({len(images)}, classes), got {shape}")
    if labels.dim() == 1 and (classes is None or labels.is_floating_point()):
        raise ConfigError(f"{name}: labels (n,) must be integers, and num_classes= must be given")
    if labels.dim() == 2 and classes not in (None, labels.shape[1]):
        raise ConfigError(f"{name}: labels have {labels.shape[1]} classes, not num_classes={classes}")
    if labels.dim() == 1 and classes is not None and len(labels):
        least, most = labels.min().item(), labels.max().item()
        if least < 0 or most >= classes:  # on a GPU nobody would notice: such a label has no share
            wrong = least if least < 0 else most
            raise ValueError(f"{name}: label {wrong} is none of num_classes={classes} classes, numbered from 0")


def _images(images: torch.Tensor, mixing: Mixing, in_place: bool, launch: Callable[..., None] | None) -> torch.Tensor:
    from gpuload.kernels import mix

    last = not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)
    if not last and not images.is_contiguous():
        images, in_place = images.contiguous(), True
    if launch is not None:
        out = torch.empty_like(images)
        if mixing.box is None:
            _mix_there(launch, images, mixing.share, out)
        else:
            mix.cut_on_device(
                launch, images.itemsize, tuple(images.shape), last, images.data_ptr(), mixing.box, out.data_ptr()
            )
        return out
    images = images if in_place else images.clone()
    if mixing.box is None:
        mix.mix(_array(images), _type(images), mixing.share)
    else:
        mix.cut(_array(images), *mixing.box)
    return images


def _labels(labels: torch.Tensor, mixing: Mixing, launch: Callable[..., None] | None) -> torch.Tensor:
    from gpuload.kernels import mix

    classes = mixing.op.num_classes
    if labels.dim() == 1:
        assert classes is not None
        if launch is None:
            return torch.from_numpy(mix.mix_names(labels.numpy(), classes, mixing.share))
        names = labels.to(torch.int64).contiguous()
        out = torch.empty(len(names), classes, device=names.device)
        mix.mix_names_on_device(launch, len(names), classes, names.data_ptr(), mixing.share, out.data_ptr())
        return out
    probable = (labels if labels.is_floating_point() else labels.float()).contiguous()
    if launch is None:
        probable = probable.clone()
        mix.mix(_array(probable), _type(probable), mixing.share)
        return probable
    out = torch.empty_like(probable)
    _mix_there(launch, probable, mixing.share, out)
    return out


def _mix_there(launch: Callable[..., None], x: torch.Tensor, share: float, out: torch.Tensor) -> None:
    from gpuload.kernels import mix

    mix.mix_on_device(launch, _type(x), len(x), x[0].numel(), x.data_ptr(), share, out.data_ptr())


def _type(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _array(x: torch.Tensor) -> np.ndarray:
    """Its memory as kernels see it: 16-bit floats as their bit patterns."""
    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype.itemsize == 2 else x.numpy()
