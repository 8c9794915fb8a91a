"""Samples taken apart and put together again: every container that torch's default_collate knows."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.structure import IMAGE, Column, EncodedImage, fill, map_leaves, place, replaced

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
    "dict": ({"y": 3, "pixels": DATA}, ("pixels",)),
    "named tuple": (Photo(3, DATA), (1,)),
    "nested": ({"a": (1, [2.5, Photo(DATA, {"b": None})]), "c": (4,)}, ("a", 1, 1, 0)),
    "keys of any kind": ({None: 1, (2, 3): DATA}, ((2, 3),)),
    "empty containers": (((), {}, [], DATA), (3,)),
    "list of its own class": (Row([3, DATA]), (1,)),
    "ordered": (OrderedDict(y=3, image=DATA), ("image",)),
    "default dict": (defaultdict(list, image=DATA, y=1), ("image",)),
    "mapping proxy": (MappingProxyType({"image": DATA, "y": 1}), ("image",)),
    "bytes and text are leaves": ((b"ab", "cd", DATA), (2,)),
}


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    return at(tree[path[0]], path[1:]) if path else tree


@pytest.mark.parametrize("name", SAMPLES)
def test_the_image_is_found_and_another_put_in_its_place(name: str):
    sample, path = SAMPLES[name]
    placed = place(sample)
    assert placed.path == path and placed.image is DATA and placed.sample is sample
    made = placed.with_image("pixels")
    assert type(made) is type(sample) or not path
    assert at(made, path) == "pixels"
    assert replaced(made, path, DATA) == sample
    assert placed.image is DATA  # the sample itself is as it was


def test_what_is_not_on_the_way_to_the_image_is_the_same_object():
    label, other, size = ["label"], {"other": 1}, torch.Size([3, 4])  # of a class that holds nothing but ints
    made = place({"x": (DATA, label), "y": other, "z": size}).with_image(1)
    assert made["y"] is other and made["x"][1] is label and made["z"] is size


def test_a_default_dict_keeps_its_default():
    sample: dict[str, Any] = defaultdict(list, image=DATA)
    made = place(sample).with_image(1)
    assert made["new"] == [] and "new" not in sample


@pytest.mark.parametrize(("sample", "found"), [((b"bytes", 3), 0), ([DATA, DATA], 2), (Pair(DATA, {"x": DATA}), 2)])
def test_exactly_one_image(sample: Any, found: int):
    with pytest.raises(TypeError, match=f"exactly one gpuload.EncodedImage in it, got {found} in") as caught:
        place(sample)
    assert type(sample).__name__ in str(caught.value) and "return EncodedImage(data), label" in str(caught.value)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ((IMAGE, Column(0)), ("pixels", "a")),
        ([Column(1), {"x": IMAGE, "y": Column(0)}], ["b", {"x": "pixels", "y": "a"}]),
        (Photo(IMAGE, (Column(2), Column(0))), Photo("pixels", ("c", "a"))),
        (IMAGE, "pixels"),
    ],
)
def test_slots_are_filled_with_the_image_and_the_columns_they_name(slots: Any, expected: Any):
    made = fill(slots, "pixels", ["a", "b", "c"])
    assert made == expected and type(made) is type(expected)


def test_the_images_slot_is_told_by_identity_in_copies_too():
    slots = pickle.loads(pickle.dumps((IMAGE, {"y": Column(0)})))
    assert slots[0] is IMAGE and slots[1] == {"y": Column(0)}


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


@given(TREES, st.lists(st.sampled_from(["x", "tuple", "list", "dict", "pair"]), max_size=4))
def test_any_tree_around_an_image_comes_back_whole(tree: Any, around: list[str]):
    wrap: dict[str, Callable[[Any], Any]] = {
        "x": lambda inner: inner,
        "tuple": lambda inner: (tree, inner),
        "list": lambda inner: [inner, tree],
        "dict": lambda inner: {"a": tree, "b": inner},
        "pair": lambda inner: Pair(tree, inner),
    }
    sample, expected = DATA, "pixels"
    for kind in around:
        sample, expected = wrap[kind](sample), wrap[kind](expected)
    assert place(sample).with_image("pixels") == expected


@given(TREES)
def test_map_leaves_meets_every_leaf_once_and_changes_nothing_else(tree: Any):
    met: list[Any] = []

    def note(leaf: Any) -> Any:
        met.append(leaf)
        return leaf

    assert map_leaves(note, tree) == tree
    assert met == list(leaves(tree))


def leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (dict, list, tuple)):
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(inner)
    else:
        yield tree
