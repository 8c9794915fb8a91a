"""The shape of a sample: where in a tuple, list or dict the image stands, and where the other fields.

Two forms. A sample of a user's own (`Placed`) is kept as it came, with the path to its image: no two need be
alike. Samples that are alike, as those of shards, are described once by slots: IMAGE where the image stands,
Column(k) where field k does, and the fields travel as columns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
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


@dataclass(frozen=True)
class Placed:
    """A sample and where its image stands in it: path holds a key or an index a level."""

    sample: Any
    path: tuple[Any, ...]

    @property
    def image(self) -> Any:
        """What stands there now."""
        value = self.sample
        for key in self.path:
            value = value[key]
        return value

    def with_image(self, image: Any) -> Any:
        """The sample with `image` there. Containers on the way are copied, everything else is the same object."""
        return replaced(self.sample, self.path, image)


def place(sample: Any) -> Placed:
    """Where the one EncodedImage of a sample stands. Raises TypeError where there is none, or more than one."""
    paths = list(_image_paths(sample, ()))
    if len(paths) != 1:
        raise TypeError(
            f"get_encoded must return a sample with exactly one gpuload.EncodedImage in it, got {len(paths)} "
            f"in {type(sample).__name__}; wrap the image's bytes: return EncodedImage(data), label"
        )
    return Placed(sample, paths[0])


def _image_paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, EncodedImage):
        yield path
    elif isinstance(value, (Mapping, tuple, list)):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _image_paths(inner, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """`tree` with `value` at `path`; the containers on the way are copies of the same class."""
    if not path:
        return value
    key, inner = path[0], replaced(tree[path[0]], path[1:], value)
    if isinstance(tree, Mapping):
        return mapping_like(tree, {k: inner if k == key else v for k, v in tree.items()})
    parts = [inner if number == key else part for number, part in enumerate(tree)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


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
