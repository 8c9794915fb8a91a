"""What a data set promises to the loader, as checks: any data set with `get_encoded`, gpuload's own formats first.

Owns the promises and their wording; raises AssertionError and needs no test framework. Reading, and what is right for
one format, is the data set's: the caller says which samples there should be.

A promise holds for the calls named in `core/protocols.py` and in docs/formats.md: numbers count from 0 and from the
end, copies in other processes are the same data, threads do not disturb each other, an epoch has every sample once.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import operator
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.structure import Placed, place
from gpuload.loader import DataLoader
from gpuload.numbered import Numbered
from gpuload.sources import understand

THREADS = 4
CHILD_WAIT_S = 60.0


@dataclass(frozen=True)
class Expected:
    """A sample as it must come out. sha256: of the image's encoded bytes. key, label: None where they do not matter."""

    sha256: str
    label: int | None = None
    key: str | None = None


def check_dataset(dataset: Any, expected: Sequence[Expected]) -> None:
    """Every promise, one after the other. Raises AssertionError that names the promise and the sample.

    dataset: map-style, with `get_encoded(index)`; one whose transform draws nothing. expected: one a sample, in order.

    >>> check_dataset(MyDataset("data.bin"), [Expected(sha256, label) for sha256, label in rows])
    """
    for check in CHECKS:
        try:
            check(dataset, expected)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__.replace('_', ' ')}: {error}") from error


def every_sample_is_there_in_order(dataset: Any, expected: Sequence[Expected]) -> None:
    assert len(dataset) == len(expected), f"len is {len(dataset)}, {len(expected)} samples were expected"
    for index, wanted in enumerate(expected):
        _compare(dataset, index, dataset.get_encoded(index), wanted)
        if wanted.key is not None:
            key = dataset.name(index)[1]
            assert key == wanted.key, f"sample {index} has key {key!r}, not {wanted.key!r}"


def negative_numbers_count_from_the_end(dataset: Any, expected: Sequence[Expected]) -> None:
    for index in (-1, -len(expected)):
        _compare(dataset, index, dataset.get_encoded(index), expected[index])
    _compare(dataset, -1, dataset.get_encoded(np.int64(-1)), expected[-1])


def other_numbers_are_refused(dataset: Any, expected: Sequence[Expected]) -> None:
    for index, error in ((len(expected), IndexError), (-len(expected) - 1, IndexError), ("0", TypeError)):
        for ask in (dataset.get_encoded, dataset.__getitem__):
            try:
                ask(index)
            except error:
                continue
            raise AssertionError(f"{ask.__name__}({index!r}) raises no {error.__name__}")


def samples_are_the_encoded_ones_decoded(dataset: Any, expected: Sequence[Expected]) -> None:
    for index in {0, len(expected) - 1}:
        encoded = place(dataset.get_encoded(index))
        decoded = Placed(dataset[index], encoded.path)
        fields, others = _leaves(decoded.with_image(None)), _leaves(encoded.with_image(None))
        assert len(fields) == len(others), f"sample {index} has {len(fields)} fields decoded and {len(others)} encoded"
        for field, other in zip(fields, others, strict=True):
            assert _alike(field, other), f"sample {index} holds {field!r} decoded and {other!r} encoded"


def a_pickled_copy_is_the_same_data(dataset: Any, expected: Sequence[Expected]) -> None:
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy) == len(expected), f"a copy has {len(copy)} samples of {len(expected)}"
    for index, wanted in enumerate(expected):
        _compare(copy, index, copy.get_encoded(index), wanted)


def threads_read_at_once(dataset: Any, expected: Sequence[Expected]) -> None:
    """Where the data set says `encoded_thread_safe = True`."""
    if not getattr(dataset, "encoded_thread_safe", False):
        return
    errors: list[BaseException] = []

    def read(first: int) -> None:
        try:
            for step in range(len(expected)):
                index = (first + step) % len(expected)
                _compare(dataset, index, dataset.get_encoded(index), expected[index])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def a_forked_child_reads_what_its_parent_read(dataset: Any, expected: Sequence[Expected]) -> None:
    dataset.get_encoded(0)  # files are open, and threads run, when the child begins
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_read_in_child, args=(dataset, len(expected), theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        assert ours.poll(CHILD_WAIT_S), f"the child says nothing for {CHILD_WAIT_S:g} s"
        try:
            digests = ours.recv()
        except EOFError:
            raise AssertionError("the child ended before it had read") from None
    finally:
        child.kill()
        child.join()
    assert not isinstance(digests, str), f"the child failed: {digests}"
    for index, (digest, wanted) in enumerate(zip(digests, expected, strict=True)):
        assert digest == wanted.sha256, f"sample {index} has other bytes in a forked child"
    _compare(dataset, -1, dataset.get_encoded(-1), expected[-1])


def batches_hold_the_same_bytes(dataset: Any, expected: Sequence[Expected]) -> None:
    """As the loader fetches them: shuffled, some twice, in one call."""
    source = understand(dataset).open_source()
    try:
        ids = np.random.default_rng(0).permutation(len(expected)).astype(np.int64)
        ids = np.concatenate([ids, ids[:2]])
        batch = source.fetch(ids)
        assert not batch.failures, f"samples fail in a batch: {batch.failures}"
        for row, index in enumerate(ids.tolist()):
            digest = hashlib.sha256(batch.encoded(row).tobytes()).hexdigest()
            assert digest == expected[index].sha256, f"sample {index} has other bytes in a batch"
    finally:
        source.close()


def an_epoch_has_every_sample_once(dataset: Any, expected: Sequence[Expected]) -> None:
    loader: Any = DataLoader(Numbered(dataset), batch_size=3, shuffle=True, collate_fn=list, device="cpu")
    seen: Counter[int] = Counter()
    for batch in loader:
        for sample in batch:
            *fields, index = sample.values() if isinstance(sample, Mapping) else sample
            seen[index] += 1
            alone = dataset[index]
            wanted = list(alone.values()) if isinstance(alone, Mapping) else list(alone)
            assert all(map(_alike, fields, wanted)), f"sample {index} is another one in the loader"
    assert seen == Counter(range(len(expected))), f"an epoch has {sum(seen.values())} samples: {seen}"


CHECKS: tuple[Callable[[Any, Sequence[Expected]], None], ...] = (
    every_sample_is_there_in_order,
    negative_numbers_count_from_the_end,
    other_numbers_are_refused,
    samples_are_the_encoded_ones_decoded,
    a_pickled_copy_is_the_same_data,
    threads_read_at_once,
    a_forked_child_reads_what_its_parent_read,
    batches_hold_the_same_bytes,
    an_epoch_has_every_sample_once,
)
"""All promises, each a function of the data set and what is expected: to run one at a time."""


def _compare(dataset: Any, index: int, sample: Any, wanted: Expected) -> None:
    digest = _digest(sample)
    assert digest == wanted.sha256, f"sample {index} has other bytes: sha256 {digest[:12]}, not {wanted.sha256[:12]}"
    if wanted.label is not None:
        label = next((field for field in _leaves(place(sample).with_image(None)) if _is_integer(field)), None)
        assert label == wanted.label, f"sample {index} has label {label}, not {wanted.label}"


def _digest(sample: Any) -> str:
    return hashlib.sha256(bytes(place(sample).image.data)).hexdigest()


def _read_in_child(dataset: Any, count: int, told: Any) -> None:
    try:
        told.send([_digest(dataset.get_encoded(index)) for index in range(count)])
    except BaseException as error:  # told to the parent, which raises
        told.send(f"{type(error).__name__}: {error}")


def _leaves(sample: Any) -> list[Any]:
    if isinstance(sample, Mapping):
        return [leaf for value in sample.values() for leaf in _leaves(value)]
    return [leaf for value in sample for leaf in _leaves(value)] if isinstance(sample, (tuple, list)) else [sample]


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values, or containers of such, are the same; NaN is NaN."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if any(isinstance(value, (str, bytes, Mapping)) or value is None for value in (one, other)):
        return bool(one == other)
    ours, theirs = np.asarray(one), np.asarray(other)
    return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "fcmM" and theirs.dtype.kind in "fcmM")
