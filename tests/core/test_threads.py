"""Threads that hold nobody up: every item is asked once, and whoever leaves waits for none of them."""

from __future__ import annotations

import threading

import pytest

from gpuload.core.threads import ask_all


def test_every_item_is_asked_once():
    seen = []

    def ask(item):
        seen.append(item)
        return item * item

    answers = {answered.number: answered.get() for answered in ask_all(ask, range(50), threads=3, name="t")}
    assert answers == {i: i * i for i in range(50)} and sorted(seen) == list(range(50))
    assert list(ask_all(ask, [], threads=3, name="t")) == []


def test_an_error_is_raised_where_its_answer_is_wanted():
    numbers = {answered.number: answered for answered in ask_all(lambda x: 1 // x, [1, 0, 1], threads=2, name="t")}
    assert numbers[0].get() == numbers[2].get() == 1
    with pytest.raises(ZeroDivisionError):
        numbers[1].get()


def test_leaving_early_waits_for_nobody_and_drops_what_is_queued():
    hang, asked = threading.Event(), []

    def ask(item):
        asked.append(item)
        if item:
            hang.wait(60)

    answers = ask_all(ask, range(9), threads=2, name="left-early")
    assert next(answers).number == 0
    answers.close()  # would wait a minute for the threads that hang
    hang.set()
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("left-early")]:
        thread.join()
    assert len(asked) <= 3
