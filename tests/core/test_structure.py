"""Samples taken apart and put together again: every container that torch's default_collate knows."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.structure import IMAGE, Column, EncodedImage, Placed, fill, map_leaves, place, replaced

Photo = namedtuple("Photo", "image label")
Pair = namedtuple("Pair", "left right")


class Row(list):
    """A list of a class of its own."""


DATA = EncodedImage(b"\xff\xd8")
SAMPLES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tuple": ((DATA, 3), (0,)),
    "label first": ((3, DATA), (1,)),
    "image alone": (DATA, ()),
    "list": ([DATA, 3, "x"], (0,)),
    "dict": ({"pixels": DATA, "y": 3}, ("pixels",)),
    "named tuple": (Photo(DATA, 3), (0,)),
    "nested": ({"a": (1, [DATA, Photo(2, {"b": None})]), "c": 2.5}, ("a", 1, 0)),
    "empty containers": ((DATA, (), {}, []), (0,)),
    "list of its own class": (Row([DATA, 3]), (0,)),
    "ordered": (OrderedDict(y=3, image=DATA), ("image",)),
    "bytes and text are leaves": ((DATA, b"ab", "cd"), (0,)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_an_image_is_found_and_replaced(name: str):
    sample, path = SAMPLES[name]
    placed = place(sample)
    assert placed.path == path and placed.image is DATA
    other = placed.with_image("pixels")
    assert type(other) is (str if name == "image alone" else type(sample))
    assert Placed(other, path).image == "pixels"
    assert replaced(other, path, DATA) == sample
    assert placed.image is DATA  # the sample itself is as it was


def test_what_is_not_on_the_way_to_the_image_stays_the_same_object():
    boxes, size = [[1.0, 2.0]], torch.Size([3, 4])
    whole = place({"image": DATA, "boxes": boxes, "size": size}).with_image(0)
    assert whole["boxes"] is boxes and whole["size"] is size


def test_a_default_dict_keeps_its_default():
    sample = defaultdict(list, image=DATA, y=1)
    whole = place(sample).with_image(0)
    assert whole == {"image": 0, "y": 1} and whole["new"] == []
    assert "new" not in sample


def test_a_mapping_that_cannot_change_is_made_anew():
    whole = place(MappingProxyType({"image": DATA, "y": 1})).with_image(0)
    assert isinstance(whole, MappingProxyType) and dict(whole) == {"image": 0, "y": 1}


@pytest.mark.parametrize(("sample", "found"), [((b"bytes", 3), 0), ([DATA, DATA], 2), (Pair(DATA, {"x": DATA}), 2)])
def test_exactly_one_image(sample: Any, found: int):
    with pytest.raises(TypeError, match=f"exactly one gpuload.EncodedImage in it, got {found} in") as caught:
        place(sample)
    assert type(sample).__name__ in str(caught.value) and "return EncodedImage(data), label" in str(caught.value)


def test_slots_are_filled_with_the_image_and_the_columns():
    slots = {"a": (Column(0), [IMAGE, Photo(Column(1), {"b": Column(2)})]), "c": Column(3)}
    assert fill(slots, DATA, [1, 2, None, 2.5]) == {"a": (1, [DATA, Photo(2, {"b": None})]), "c": 2.5}


TREES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_tree_comes_back_whole(tree: Any):
    placed = place({"image": DATA, "rest": tree})
    assert placed.with_image(DATA) == {"image": DATA, "rest": tree}


@given(TREES)
def test_map_leaves_meets_every_leaf_and_changes_nothing_else(tree: Any):
    met: list[Any] = []
    assert map_leaves(lambda leaf: met.append(leaf) or leaf, tree) == tree  # type: ignore[func-returns-value]
    assert sum(_leaves(tree)) == len(met)


def _leaves(tree: Any) -> list[int]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [n for part in tree for n in _leaves(part)] if isinstance(tree, (list, tuple)) else [1]
