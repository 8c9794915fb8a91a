"""The suite itself: a right data set passes, and each broken promise is found by the check of that name."""

from __future__ import annotations

import hashlib
import os
import threading

import numpy as np
import pytest
import torch

from gpuload import EncodedImage
from gpuload.testing import CHECKS, Expected, check_dataset
from gpuload.testing import conformance as c
from tests.shards.containers import IMAGES

EXPECTED = [Expected(hashlib.sha256(image).hexdigest(), 5 + i, f"k{i}") for i, image in enumerate(IMAGES)]


class Right(torch.utils.data.Dataset):
    """As docs/formats.md shows how to write one."""

    transform = None
    encoded_thread_safe = True

    def __len__(self):
        return len(IMAGES)

    def get_encoded(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return EncodedImage(self.read(range(len(self))[index])), 5 + index % len(self)

    def __getitem__(self, index):
        import io

        from PIL import Image

        encoded, *fields = self.get_encoded(index)
        return Image.open(io.BytesIO(encoded.data)).convert("RGB"), *fields

    def name(self, index):
        return "nowhere", f"k{index}"

    def read(self, index):
        return IMAGES[index]


class TooLong(Right):
    def __len__(self):
        return len(IMAGES) + 1


class OtherBytes(Right):
    def read(self, index):
        return IMAGES[index][:-1] + b"x" if index == 3 else IMAGES[index]


class OtherLabel(Right):
    def get_encoded(self, index):
        return super().get_encoded(index)[0], 9


class OtherKey(Right):
    def name(self, index):
        return "nowhere", "k"


class OnlyPositive(Right):
    def get_encoded(self, index):
        return super().get_encoded(max(index, 0) if index >= -len(self) else index)


class Endless(Right):
    def get_encoded(self, index):
        return super().get_encoded(index % len(self) if isinstance(index, int) else index)


class OtherDecoded(Right):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label + 1


class ForgetsWhenPickled(Right):
    shift = 0

    def __getstate__(self):
        return {"shift": 1}

    def read(self, index):
        return IMAGES[index - self.shift]


class NotThreadSafe(Right):
    def read(self, index):
        return IMAGES[index] if threading.current_thread() is threading.main_thread() else b"torn"


class NotForkSafe(Right):
    def __init__(self):
        self._pid = os.getpid()

    def read(self, index):
        if os.getpid() != self._pid:
            os._exit(1)
        return IMAGES[index]


class FailsInBatches(Right):
    def read(self, index):
        import inspect

        if any(frame.function == "fetch" for frame in inspect.stack()):
            raise OSError("only one at a time")
        return IMAGES[index]


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (TooLong, c.every_sample_is_there_in_order),
        (OtherBytes, c.every_sample_is_there_in_order),
        (OtherLabel, c.every_sample_is_there_in_order),
        (OtherKey, c.every_sample_is_there_in_order),
        (OnlyPositive, c.negative_numbers_count_from_the_end),
        (Endless, c.other_numbers_are_refused),
        (OtherDecoded, c.samples_are_the_encoded_ones_decoded),
        (ForgetsWhenPickled, c.a_pickled_copy_is_the_same_data),
        (NotThreadSafe, c.threads_read_at_once),
        (NotForkSafe, c.a_forked_child_reads_what_its_parent_read),
        (FailsInBatches, c.batches_hold_the_same_bytes),
    ],
)
def test_a_broken_promise_is_found_by_its_check(kind, check):
    assert check in CHECKS
    with pytest.raises(AssertionError):
        check(kind(), EXPECTED)
    with pytest.raises(AssertionError, match=check.__name__.replace("_", " ")):
        check_dataset(kind(), EXPECTED)


def test_a_right_data_set_passes():
    check_dataset(Right(), EXPECTED)


class AnyFields(Right):
    """Fields as JSON and arrays may hold them."""

    def get_encoded(self, index):
        fields = {"nan": float("nan"), "none": None, "ragged": [[1, 2], [3]], "boxes": [{"b": np.array([1.0, np.nan])}]}
        return (*super().get_encoded(index), fields, np.array([np.nan, index]), np.array(["NaT"], "datetime64[D]"))


class OtherNan(AnyFields):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sample[2]["boxes"][0]["b"][0] = np.nan
        return sample


def test_fields_of_any_kind_are_compared():
    check_dataset(AnyFields(), EXPECTED)
    with pytest.raises(AssertionError, match="decoded and .* encoded"):
        c.samples_are_the_encoded_ones_decoded(OtherNan(), EXPECTED)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (None, 0),
        (None, np.nan),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({}, []),
        (b"a", "a"),
        (np.ones(2), [1, 2]),
    ],
)
def test_values_that_differ(one, other):
    assert not c._alike(one, other) and not c._alike(other, one) and c._alike(one, one) and c._alike(other, other)


def test_an_epoch_that_repeats_a_sample_is_found(monkeypatch):
    monkeypatch.setattr(c, "DataLoader", lambda dataset, **_: [[dataset[i] for i in (0, 1, 2, 3, 4, 4)]])
    with pytest.raises(AssertionError, match="an epoch has 6 samples"):
        c.an_epoch_has_every_sample_once(Right(), EXPECTED)
