"""The shape of a sample: where in a tuple, list or dict the image stands, and where the other fields.

A sample is taken apart into one image and numbered columns, and put together again as a sample or as a
batch. Owns nothing but that; the order of columns is the order in which the leaves are met.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EncodedImage:
    """A JPEG (or whatever Pillow reads) not yet decoded, in the image's place in a sample.

    data: bytes, bytearray, memoryview or a uint8 array.
    """

    data: Any


class _Image:
    def __repr__(self) -> str:
        return "IMAGE"

    def __reduce__(self) -> str:
        return "IMAGE"  # told by identity: unpickled, it is the one below


IMAGE = _Image()
"""Stands for the image in a sample's slots."""


@dataclass(frozen=True)
class Column:
    """Stands for one field other than the image: column `number` of the batch."""

    number: int


def take_apart(sample: Any) -> tuple[Any, Any, list[Any]]:
    """(slots, image, fields) of a sample that holds exactly one EncodedImage. Raises TypeError otherwise."""
    images: list[Any] = []
    fields: list[Any] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, EncodedImage):
            images.append(value)
            return IMAGE
        fields.append(value)
        return Column(len(fields) - 1)

    slots = map_leaves(leaf, sample)
    if len(images) != 1:
        raise TypeError(
            f"get_encoded must return a sample with exactly one gpuload.EncodedImage in it, got {len(images)} "
            f"in {type(sample).__name__}; wrap the image's bytes: return EncodedImage(data), label"
        )
    return slots, images[0], fields


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with every leaf replaced by function(leaf); tuples, named tuples, lists and dicts are descended."""
    if isinstance(tree, Mapping):
        return mapping_like(tree, {k: map_leaves(function, v) for k, v in tree.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, v) for v in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_leaves(function, v) for v in tree)
    return function(tree)


def mapping_like(mapping: Mapping, entries: dict) -> Mapping:
    """`entries` as another of `mapping`'s class, which has the same keys; a defaultdict keeps its default."""
    if type(mapping) is dict:
        return entries
    if isinstance(mapping, MutableMapping):
        made = copy.copy(mapping)
        made.update(entries)
        return made
    return type(mapping)(entries)  # type: ignore[call-arg]


def fill(slots: Any, image: Any, fields: list[Any]) -> Any:
    """The sample (or batch) whose image and fields stand where `slots` says."""
    return map_leaves(lambda slot: image if slot is IMAGE else fields[slot.number], slots)
