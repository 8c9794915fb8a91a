"""The policy as a function, the log, and that an error lets go of what its frames held."""

from __future__ import annotations

import json
import threading
import weakref
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.errors import SampleError
from gpuload.engine.badsamples import BadSamples, forget_frames, forget_locals, rows_to_keep


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
