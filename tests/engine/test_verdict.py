"""Verdicts against pipelines that are simulated event by event: the right limit, and gains that come true."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuload.engine.stats import NO_QUEUES, Quantiles, StageStats, Stats
from gpuload.engine.verdict import judge

IMAGES = 8


@dataclass(frozen=True)
class Pipeline:
    """Seconds of one thread a batch, in each stage; CPU seconds of them; and the consumer's step."""

    fetch_s: float = 0.001
    decode_s: float = 0.010
    step_s: float = 0.001
    fetch_threads: int = 2
    decode_threads: int = 2
    depth: int = 8
    cpus: int = 8
    batches: int = 300
    decode_cpu: float = 1.0
    step_cpu: float = 0.1
    slow_every: int = 0  # every so many batches decoding one takes as long as 10


def simulate(p: Pipeline) -> Stats:
    """Batches in order through two pools of threads, at most `depth` let in and not taken."""
    fetchers, decoders = [0.0] * p.fetch_threads, [0.0] * p.decode_threads
    finished: list[float] = []
    taken: list[float] = []
    now = wait_s = first_s = blocked_s = busy_s = 0.0
    for number in range(p.batches):
        let_in = taken[number - p.depth] if number >= p.depth else 0.0
        blocked_s += max(0.0, let_in - max(finished, default=0.0))  # nothing was in the making
        fetched = max(heapq.heappop(fetchers), let_in) + p.fetch_s
        heapq.heappush(fetchers, fetched)
        takes_s = p.decode_s * (10 if p.slow_every and number % p.slow_every == 0 else 1)
        busy_s += takes_s
        end = max(heapq.heappop(decoders), fetched) + takes_s
        heapq.heappush(decoders, end)
        finished.append(end)
        ready = max(finished)  # in order: a batch is handed over behind the one before it
        wait = max(0.0, ready - now)
        wait_s, now = wait_s + wait, now + wait
        first_s = first_s or wait
        taken.append(now)
        now += p.step_s
    elapsed_s = taken[-1]
    from_s = none_ready_s = 0.0
    for ready, took in zip(itertools.accumulate(finished, max), taken, strict=True):
        none_ready_s += max(0.0, ready - from_s)
        from_s = max(from_s, took)
    images = IMAGES * p.batches
    fetch_s = p.fetch_s * p.batches
    stages = (
        StageStats("fetch", p.fetch_threads, images, fetch_s, bytes=10**6, tasks=p.batches, cpu_s=0.05 * fetch_s),
        StageStats("decode", p.decode_threads, images, busy_s, tasks=p.batches, cpu_s=p.decode_cpu * busy_s),
        StageStats("finish"),
    )
    stages = tuple(replace(stage, thread_s=stage.threads * elapsed_s) for stage in stages)
    return Stats(
        path="accelerated",
        elapsed_s=elapsed_s,
        images=images,
        batches=p.batches,
        images_per_s=images / elapsed_s,
        first_batch_s=first_s,
        consumer_wait_s=wait_s,
        starved=wait_s / elapsed_s,
        ready_empty=none_ready_s / elapsed_s,
        blocked=min(1.0, blocked_s / elapsed_s),
        cpu_s=stages[0].cpu_s + stages[1].cpu_s + p.step_cpu * p.step_s * p.batches,
        cpus=p.cpus,
        stages=stages,
    )


@pytest.mark.parametrize(
    ("pipeline", "limit", "cured"),
    [
        (Pipeline(step_s=0.02), "step", None),
        (Pipeline(step_s=0.004), "decode", {"decode_threads": 3}),
        (Pipeline(step_s=0.001), "decode", {"decode_threads": 9}),
        (Pipeline(step_s=0.001, cpus=4), "decode", {"decode_threads": 4}),
        (Pipeline(step_s=0.001, cpus=2), "cpu", {"decode_threads": 3}),
        (Pipeline(fetch_s=0.1, depth=16), "fetch", {"fetch_s": 1e-6}),
        (Pipeline(fetch_s=0.03, depth=16, step_s=0.006), "fetch", {"fetch_s": 1e-6}),
        (Pipeline(step_s=0.012, decode_threads=6, slow_every=30, depth=3), "depth", {"depth": 40}),
        (Pipeline(step_s=0.009, slow_every=30, depth=3), "depth", {"depth": 40}),
        (Pipeline(step_s=0.001, decode_cpu=0.2), "lock", None),
    ],
)
def test_the_limit_is_the_simulations_and_its_cure_gives_what_was_promised(
    pipeline: Pipeline, limit: str, cured: dict[str, Any] | None
):
    stats = simulate(pipeline)
    verdict = judge(stats)
    assert verdict.limit == limit, (verdict, stats)
    if cured is None:
        assert verdict.gain == (1.0 if limit == "step" else None)
        return
    gained = simulate(replace(pipeline, **cured)).images_per_s / stats.images_per_s
    assert verdict.gain is not None
    assert gained <= 1.02 * verdict.gain  # it is a bound,
    assert verdict.gain <= 1.15 * gained  # and not far from what comes


def test_the_sentence_holds_the_figures_and_the_advice_the_number_of_threads():
    stats = replace(simulate(Pipeline(step_s=0.004)), ready_empty=0.91)
    verdict = judge(stats)
    assert verdict.sentence.startswith("decode limits: its 2 decode threads are busy 100%, ")
    assert verdict.sentence.endswith("no batch ready 91% of the time")
    assert verdict.advice.startswith("1 more thread would give up to 1.")
    assert any("of 8 CPUs used" in line for line in verdict.evidence)
    lines = str(stats).splitlines()
    assert lines[1:3] == [verdict.sentence, verdict.advice]
    assert stats.verdict == verdict


def test_waits_while_batches_are_ready_are_next_s_own():
    stats = replace(simulate(Pipeline(step_s=0.02)), wait_s=Quantiles(0.0016, 0.01, 0.02, 0.02))
    slow = replace(stats, consumer_wait_s=stats.consumer_wait_s + 0.5, elapsed_s=stats.elapsed_s + 0.5)
    verdict = judge(slow)
    assert verdict.limit == "next" and "1.6 ms" in verdict.sentence
    assert verdict.gain == pytest.approx(slow.elapsed_s / stats.elapsed_s, rel=0.01)


def test_too_little_data_gives_no_verdict():
    for stats in (
        Stats("accelerated"),
        simulate(Pipeline(batches=5)),
        simulate(Pipeline(batches=50, decode_s=1e-4, step_s=1e-4)),
    ):
        verdict = judge(stats)
        assert (verdict.limit, verdict.advice, verdict.gain) == ("unknown", "", None)
        assert f"{stats.batches} batches" in verdict.sentence


def test_a_long_first_wait_is_nobodys_fault():
    stats = simulate(Pipeline(step_s=0.02))
    late = replace(
        stats,
        elapsed_s=stats.elapsed_s + 30,
        first_batch_s=(stats.first_batch_s or 0) + 30,
        consumer_wait_s=stats.consumer_wait_s + 30,
    )
    assert judge(late).limit == "step"


def test_without_threads_and_on_torchs_path_the_step_is_what_could_be_reached():
    pipeline = Pipeline(decode_s=0.006, fetch_s=0.001, step_s=0.014)
    wait_s = 300 * (pipeline.decode_s + pipeline.fetch_s)
    stats = Stats(
        path="torch", reasons=("a lambda",), elapsed_s=300 * 0.021, images=2400, batches=300, consumer_wait_s=wait_s,
        first_batch_s=0.007, cpu_s=wait_s, cpus=4,
    )  # fmt: skip
    torchs = judge(stats)
    assert torchs.limit == "torch" and torchs.gain == pytest.approx(1.5, rel=0.02) and torchs.evidence == ("a lambda",)
    stages = tuple(StageStats(name, 0, 2400, 1.0, tasks=300) for name in ("fetch", "decode", "finish"))
    inline = judge(replace(stats, path="accelerated", reasons=(), stages=stages))
    assert inline.limit == "inline" and inline.gain == pytest.approx(1.5, rel=0.02)
    assert judge(replace(stats, consumer_wait_s=0.02)).limit == "step"


def test_where_nothing_is_busy_nothing_is_blamed():
    stages = (StageStats("fetch", 2, empty=0.9), StageStats("decode", 2))
    stats = replace(simulate(Pipeline(step_s=0.004)), stages=stages)
    assert judge(replace(stats, cpu_s=0.1)).limit == "unclear"
    assert judge(replace(stats, cpu_s=8 * stats.elapsed_s)).limit == "cpu"


@pytest.mark.parametrize("batches", [0, 1, 6, 1000])
@pytest.mark.parametrize("zero", ["consumer_wait_s", "cpu_s", "images", "stages", "elapsed_s"])
def test_no_figures_break_it(batches: int, zero: str):
    stats = replace(simulate(Pipeline()), batches=batches)
    empty = replace(stats, **{zero: () if zero == "stages" else 0})
    verdict = judge(empty)
    assert verdict.sentence and (verdict.gain is None or math.isfinite(verdict.gain))
    assert str(empty).isascii() and NO_QUEUES.blocked == 0
