"""The policy as a function, the log, and that an error lets go of what its frames held."""

from __future__ import annotations

import json
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.errors import SampleError
from gpuload.engine.badsamples import BadSamples, forget_frames, forget_locals, rows_to_keep

pytestmark = pytest.mark.filterwarnings("ignore:bad samples are")


@given(st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(0, n - 1)), max_size=n))))
def test_rows_are_kept_or_replaced_as_the_policy_says(case: tuple[int, set[int]]):
    rows, failed = case
    good = [row for row in range(rows) if row not in failed]
    assert rows_to_keep(rows, failed, "skip").tolist() == good
    expected = [max((g for g in good if g <= row), default=good[0]) for row in range(rows)] if good else []
    kept = rows_to_keep(rows, failed, "replace")
    assert kept.tolist() == expected and kept.dtype == np.int64


def test_every_sample_of_every_thread_is_a_line_of_its_own():
    log = BadSamples()
    assert log.path is None and log.counts() == {}

    def report(thread: int) -> None:
        for i in range(50):
            error = SampleError(f"shard-{thread}.tar", i, f"käy{i}", "was\nbroken", "KindA" if i % 2 else "KindB")
            log.add(error, epoch=thread, batch=i // 8, policy="skip")

    threads = [threading.Thread(target=report, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in Path(str(log.path)).read_text().splitlines()]
    Path(str(log.path)).unlink()
    assert log.counts() == {"KindA": 100, "KindB": 100}
    assert {(line["shard"], line["sample"]) for line in lines} == {
        (f"shard-{thread}.tar", i) for thread in range(4) for i in range(50)
    }
    assert lines[0]["problem"] == "was\nbroken" and lines[0]["key"].startswith("käy")


def logged(log: BadSamples) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(str(log.path)).read_text().splitlines()]


def test_a_sample_is_listed_once_and_counted_each_time():
    log = BadSamples()
    for epoch in range(3):
        for sample in (4, 7):
            log.add(SampleError("a.tar", sample, "k", "broken", "Kind"), epoch=epoch, batch=0, policy="skip")
        log.add(SampleError("b.tar", 4, "k", "broken", "Kind"), epoch=epoch, batch=1, policy="raise")
    lines = logged(log)
    Path(str(log.path)).unlink()
    assert [(line["shard"], line["sample"], line["epoch"]) for line in lines] == [
        ("a.tar", 4, 0),
        ("a.tar", 7, 0),
        ("b.tar", 4, 0),
    ]
    assert log.counts() == {"Kind": 9}


def test_names_that_are_no_json_are_listed_as_they_print():
    log, key = BadSamples(), Path("folder") / "a.jpg"
    error = SampleError(Path("root"), np.int64(3), key, "broken")  # type: ignore[arg-type]
    log.add(error, epoch=0, batch=0, policy="raise")
    (line,) = logged(log)
    Path(str(log.path)).unlink()
    assert (line["shard"], line["sample"], line["key"]) == (repr(Path("root")), repr(np.int64(3)), repr(key))


@pytest.mark.parametrize(("policy", "done"), [("skip", "left out"), ("replace", "replaced by a neighbour")])
def test_the_first_bad_sample_that_is_passed_over_is_told_once(policy: str, done: str):
    log = BadSamples()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        log.add(SampleError("a.tar", 1, "k1", "was raised", "Kind"), epoch=0, batch=0, policy="raise")
        log.tell()
        assert not told
        for sample in (2, 3):
            log.add(SampleError("a.tar", sample, f"k{sample}", "broken", "Kind"), epoch=0, batch=0, policy=policy)
            log.tell()
    Path(str(log.path)).unlink()
    (message,) = (str(warning.message) for warning in told)
    assert done in message and "sample 2 (k2) in a.tar: broken" in message and str(log.path) in message


class Memory:
    """Stands for a batch: something a frame may hold."""


def caught(held: list[weakref.ref[Memory]]) -> Exception:
    """An error with a cause, that came through frames which each held a Memory, their callers' included."""

    def inner() -> None:
        mine = Memory()
        held.append(weakref.ref(mine))
        raise ValueError("inner")

    def middle() -> None:
        mine = Memory()
        held.append(weakref.ref(mine))
        try:
            inner()
        except ValueError as error:
            raise KeyError("middle") from error

    def caller() -> Exception:
        mine = Memory()
        held.append(weakref.ref(mine))
        try:
            middle()
        except KeyError as error:
            return error
        raise AssertionError

    return caller()


def test_forgetting_locals_lets_memory_go_and_keeps_the_traceback():
    held: list[weakref.ref[Memory]] = []
    error = caught(held)
    assert [ref() is None for ref in held] == [False, False, False]
    forget_locals(error)
    assert [ref() is None for ref in held] == [True, True, True]
    assert error.__traceback__ is not None and error.__cause__ is not None and error.__cause__.__traceback__ is not None


def test_forgetting_frames_lets_everything_go():
    held: list[weakref.ref[Memory]] = []
    error = caught(held)
    forget_frames(error)
    assert [ref() is None for ref in held] == [True, True, True]


def test_a_chain_of_causes_that_bites_its_tail_is_no_trap():
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    forget_locals(first)
    forget_frames(first)
