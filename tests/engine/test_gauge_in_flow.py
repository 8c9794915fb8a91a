"""The gauge's lengths are the flow's own, whatever happens to its batches."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from gpuload.engine.flow import Flow
from tests.engine.fakes import FakeWork, eventually, plan, running


def lengths(flow: Flow) -> list[int]:
    """planned, tasks, waiting, ready, making: as the gauge has them."""
    with flow._change:
        gauge = flow.gauge
        return [*(queue.length for queue in gauge._queues), gauge._making]


def counted(flow: Flow) -> list[int]:
    """planned, waiting, ready, making: counted in the flow."""
    with flow._change:
        finished = sum(batch.finished is not None for batch in flow._active)
        return [len(flow._planned), len(flow._waiting), finished, len(flow._active) - finished]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_lengths_are_right_at_any_moment_and_zero_at_the_end(seed: int, in_order: bool):
    draw = random.Random(seed)
    broken = {(draw.choice(("fetch", "decode", "finish")), draw.randrange(10)) for _ in range(2)}

    def step(name: str, number: int) -> None:
        time.sleep(draw.choice((0, 0, 0.001)))
        if (name, number) in broken:
            raise OSError(name)

    run = running(FakeWork(step), depth=draw.randint(1, 5), in_order=in_order, threads=3)
    run.flow.in_turn = in_order and seed % 2 == 0
    for number in range(10):
        run.flow.put(plan(number, rows=draw.choice((0, 1, 7))))
    for _ in range(10):
        with run.flow._change:
            planned, tasks, waiting, ready, making = lengths(run.flow)
            assert [planned, waiting, ready, making] == counted(run.flow) and tasks >= 0
        run.flow.take(20)
    assert eventually(lambda: lengths(run.flow) == [0, 0, 0, 0, 0])  # a broken batch's other tasks end after it
    run.close()


def test_a_flow_that_is_cancelled_counts_no_longer():
    run = running(FakeWork())
    for number in range(6):
        run.flow.put(plan(number))
    assert eventually(lambda: run.flow.ready == 3)
    run.flow.cancel()
    told: Any = run.flow.queues(time.perf_counter())
    time.sleep(0.01)
    assert run.flow.queues(time.perf_counter()) == told and told.ready.mean > 0
    run.close()
