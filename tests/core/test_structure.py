"""Samples taken apart and put together again: every container that torch's default_collate knows."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.structure import IMAGE, Column, EncodedImage, fill, map_leaves, take_apart

Photo = namedtuple("Photo", "image label")
Pair = namedtuple("Pair", "left right")


class Row(list):
    """A list of a class of its own."""


DATA = EncodedImage(b"\xff\xd8")
SAMPLES: dict[str, tuple[Any, Any]] = {
    "tuple": ((DATA, 3), (IMAGE, Column(0))),
    "label first": ((3, DATA), (Column(0), IMAGE)),
    "image alone": (DATA, IMAGE),
    "list": ([DATA, 3, "x"], [IMAGE, Column(0), Column(1)]),
    "dict": ({"pixels": DATA, "y": 3}, {"pixels": IMAGE, "y": Column(0)}),
    "named tuple": (Photo(DATA, 3), Photo(IMAGE, Column(0))),
    "nested": (
        {"a": (1, [DATA, Photo(2, {"b": None})]), "c": 2.5},
        {"a": (Column(0), [IMAGE, Photo(Column(1), {"b": Column(2)})]), "c": Column(3)},
    ),
    "empty containers": ((DATA, (), {}, []), (IMAGE, (), {}, [])),
    "list of its own class": (Row([DATA, 3]), Row([IMAGE, Column(0)])),
    "ordered": (OrderedDict(y=3, image=DATA), OrderedDict(y=Column(0), image=IMAGE)),
    "bytes and text are leaves": ((DATA, b"ab", "cd"), (IMAGE, Column(0), Column(1))),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_take_apart_and_fill(name: str):
    sample, expected = SAMPLES[name]
    slots, image, fields = take_apart(sample)
    assert slots == expected and type(slots) is type(expected)
    assert image is DATA
    whole = fill(slots, image, fields)
    assert whole == sample and type(whole) is type(sample)


def test_columns_are_numbered_in_the_order_in_which_leaves_stand():
    _, _, fields = take_apart({"b": ("first", DATA), "a": ["second", ("third",)]})
    assert fields == ["first", "second", "third"]


def test_a_default_dict_keeps_its_default():
    sample = defaultdict(list, image=DATA, y=1)
    slots, image, fields = take_apart(sample)
    whole = fill(slots, image, fields)
    assert whole == sample and whole["new"] == []
    assert "new" not in sample and "new" not in slots


def test_a_mapping_that_cannot_change_is_made_anew():
    slots, image, fields = take_apart(MappingProxyType({"image": DATA, "y": 1}))
    whole = fill(slots, image, fields)
    assert isinstance(whole, MappingProxyType) and dict(whole) == {"image": DATA, "y": 1}


@pytest.mark.parametrize(("sample", "found"), [((b"bytes", 3), 0), ([DATA, DATA], 2), (Pair(DATA, {"x": DATA}), 2)])
def test_exactly_one_image(sample: Any, found: int):
    with pytest.raises(TypeError, match=f"exactly one gpuload.EncodedImage in it, got {found} in") as caught:
        take_apart(sample)
    assert type(sample).__name__ in str(caught.value) and "return EncodedImage(data), label" in str(caught.value)


def test_slots_of_two_samples_of_one_structure_are_equal():
    assert take_apart((DATA, {"y": 1}))[0] == take_apart((DATA, {"y": "other"}))[0]
    assert take_apart((DATA, {"y": 1}))[0] != take_apart((DATA, {"z": 1}))[0]


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
    slots, image, fields = take_apart({"image": DATA, "rest": tree})
    assert fill(slots, image, fields) == {"image": DATA, "rest": tree}


@given(TREES)
def test_map_leaves_meets_every_leaf_once_and_changes_nothing_else(tree: Any):
    met: list[Any] = []
    assert map_leaves(lambda leaf: met.append(leaf) or leaf, tree) == tree  # type: ignore[func-returns-value]
    assert take_apart([DATA, tree])[2] == met
