"""Batches put together without samples, against torch's default_collate of the samples themselves."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import default_collate

from gpuload.collate import DirectCollate, SampleCollate
from gpuload.core.batch import BatchPlan, EncodedBatch, join_encoded
from gpuload.core.structure import IMAGE, Column, EncodedImage, fill, place

Photo = namedtuple("Photo", "image label")


class Pair(tuple):
    """A tuple of a class of its own."""


class Row(list):
    """A list of a class of its own."""


class Held:
    """The part of a Source that collating looks at."""

    def __init__(self, slots: Any):
        self.slots = slots


def plan(rows: int, single: bool = False) -> BatchPlan:
    return BatchPlan(0, np.arange(rows), np.arange(rows), seed=5, single=single)


def of_columns(rows: int, *columns: Any) -> EncodedBatch:
    return join_encoded([b""] * rows, columns)


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b)
    else:
        assert mine == theirs


IMAGES = torch.arange(5 * 3 * 2 * 2, dtype=torch.float32).view(5, 3, 2, 2)
SLOTS: dict[str, Any] = {
    "tuple": (IMAGE, Column(0)),
    "label first": (Column(0), IMAGE),
    "image alone": IMAGE,
    "list": [IMAGE, Column(1)],
    "dict": {"pixels": IMAGE, "labels": Column(0), "names": Column(2)},
    "ordered": OrderedDict(y=Column(0), x=IMAGE),
    "named tuple": Photo(IMAGE, Column(0)),
    "nested": {"a": (Column(2), [IMAGE, Photo(Column(0), {"b": Column(1)})]), "c": Column(0)},
    "tuple of its own class": Pair((IMAGE, Column(0))),
    "list of its own class": Row([IMAGE, Column(0)]),
}


@pytest.mark.parametrize("name", SLOTS)
@pytest.mark.parametrize("keep", [[0, 1, 2, 3, 4], [4, 1], [2, 2, 3]], ids=str)
def test_batches_of_columns_are_default_collates(name: str, keep: list[int]):
    columns = (np.array([7, 5, 3, 2, 1]), np.array([0.5, 1.5, 2.5, 3.5, 4.5]), ["a", "b", "c", "d", "e"])
    values = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
    samples = [fill(SLOTS[name], IMAGES[row], [column[row] for column in values]) for row in keep]
    encoded = of_columns(5, *columns)
    batch = DirectCollate(Held(SLOTS[name]))(IMAGES[keep], encoded, np.array(keep), plan(5))  # type: ignore[arg-type]
    assert_same(batch, default_collate(samples))


@pytest.mark.parametrize(
    "column",
    [
        np.array([1, 2, 3], np.int64),
        np.array([1.5, 2.5, 3.5]),
        np.array([True, False, True]),
        [1, 2, 3],
        ["x", "y", "z"],
        [b"x", b"y", b"z"],
        [0.5, 1, 2],
        [torch.ones(2), torch.zeros(2), torch.ones(2)],
        [np.float32(1), np.float32(2), np.float32(3)],
        [np.arange(3), np.arange(3), np.arange(3)],
        [{"a": 1}, {"a": 2}, {"a": 3}],
        [(1, "p"), (2, "q"), (3, "r")],
    ],
    ids=lambda column: f"{type(column).__name__} of {type(column[0]).__name__}",
)
def test_columns_of_every_type(column: Any):
    keep, images = np.array([2, 0]), IMAGES[:2]
    values = column.tolist() if isinstance(column, np.ndarray) else column
    batch = DirectCollate(Held((IMAGE, Column(0))))(images, of_columns(3, column), keep, plan(3))  # type: ignore[arg-type]
    assert_same(batch, default_collate([(images[0], values[2]), (images[1], values[0])]))


def of_samples(samples: list[Any]) -> EncodedBatch:
    encoded = join_encoded([b""] * len(samples))
    encoded.samples = [None if sample is None else place(sample) for sample in samples]
    return encoded


@pytest.mark.parametrize(
    "build",
    [
        lambda i, image: (image, i, f"photo {i}"),
        lambda i, image: {"y": i / 3, "x": [image, (i,)]},
        lambda i, image: image,
        lambda i, image: Photo(image, torch.full((i + 1,), i)[:1]),
        lambda i, image: defaultdict(list, image=image, y=i),
        lambda i, image: Pair((image, i)),
        lambda i, image: Row([image, i]),
        lambda i, image: (image, i) if i % 2 else (image, i + 0.5),
    ],
)
def test_samples_of_a_users_own_are_default_collated(build: Any):
    encoded = of_samples([build(i, EncodedImage(b"")) for i in range(5)])
    keep = np.array([0, 2, 2, 4])
    batch = DirectCollate(Held(None))(IMAGES[keep], encoded, keep, plan(5))  # type: ignore[arg-type]
    assert_same(batch, default_collate([build(row, IMAGES[row]) for row in keep.tolist()]))


def test_where_images_stand_in_different_places_torch_says_what_it_says():
    mixed = [(EncodedImage(b""), 1), (2, EncodedImage(b""))]
    with pytest.raises(Exception) as theirs:
        default_collate([(IMAGES[0], 1), (2, IMAGES[1])])
    with pytest.raises(type(theirs.value)) as ours:
        DirectCollate(Held(None))(IMAGES[:2], of_samples(mixed), np.arange(2), plan(2))  # type: ignore[arg-type]
    assert str(ours.value) == str(theirs.value)


def test_samples_that_were_left_out_are_not_missed():
    encoded = of_samples([(EncodedImage(b""), 0), None, (EncodedImage(b""), 2)])
    batch = DirectCollate(Held(None))(IMAGES[:2], encoded, np.array([0, 2]), plan(3))  # type: ignore[arg-type]
    assert_same(batch, default_collate([(IMAGES[0], 0), (IMAGES[1], 2)]))


def test_a_collate_fn_is_given_the_samples_in_order():
    given: list[Any] = []
    collate = SampleCollate(Held({"x": IMAGE, "y": Column(0)}), given.extend, None)  # type: ignore[arg-type]
    collate([IMAGES[2], IMAGES[0]], of_columns(3, np.array([7, 8, 9])), np.array([2, 0]), plan(3))
    assert [sample["y"] for sample in given] == [9, 7] and type(given[0]["y"]) is int
    assert given[0]["x"] is not None and torch.equal(given[1]["x"], IMAGES[0])


def test_a_collate_fn_of_single_samples_is_given_the_sample():
    collate = SampleCollate(Held((IMAGE, Column(0))), lambda sample: ("made of", sample), None)  # type: ignore[arg-type]
    made = collate([IMAGES[0]], of_columns(1, np.array([7])), np.array([0]), plan(1, single=True))
    assert made[0] == "made of" and torch.equal(made[1][0], IMAGES[0]) and made[1][1] == 7


def test_its_draws_are_keyed_by_batch_and_leave_torchs_generator_alone():
    collate = SampleCollate(Held((IMAGE, Column(0))), lambda samples: torch.rand(3), None)  # type: ignore[arg-type]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    drawn = [collate([IMAGES[0]], of_columns(1, np.array([7])), np.array([0]), plan(1)) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(drawn[0], drawn[1])
    low, high = plan(1).first_key().tolist()[:2]
    torch.manual_seed(low | high << 32)
    assert torch.equal(drawn[0], torch.rand(3))


def test_it_is_called_by_one_thread_at_a_time():
    inside = threading.Semaphore(1)
    together = threading.Barrier(4)

    def collate_fn(samples: list[Any]) -> int:
        assert inside.acquire(blocking=False), "two threads at once"
        try:
            return sum(int(image.sum()) for image, _ in samples for _ in range(200))
        finally:
            inside.release()

    collate = SampleCollate(Held((IMAGE, Column(0))), collate_fn, None)  # type: ignore[arg-type]

    def call(_: int) -> int:
        together.wait()
        return collate(list(IMAGES), of_columns(5, np.arange(5)), np.arange(5), plan(5))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(call, range(4)))) == 1


def test_an_empty_batch_is_what_torch_makes_of_one():
    with pytest.raises(IndexError) as theirs:
        default_collate([])
    with pytest.raises(IndexError) as ours:
        DirectCollate(Held((IMAGE, Column(0))))(IMAGES[:0], of_columns(0), np.arange(0), plan(0))  # type: ignore[arg-type]
    assert str(ours.value) == str(theirs.value)
