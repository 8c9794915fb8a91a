"""The way to a recommendation: stages apart, then together, then what the model chooses, until it is right.

Owns the order of measurements and when they are enough. Each round measures the model's choice on the real engine and
gives its times back to the model, so a storage link that is full, or threads that share a core, are found where the
model is unsure and nowhere else. `tell` is handed each sentence about what goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuload.cli.tune.consumer import TAKES_AT_ONCE, Consumer
from gpuload.cli.tune.measure import Run, Tuned, alone, run, tensor_bytes
from gpuload.config import default_threads
from gpuload.core.setting import Setting
from gpuload.tune.limits import Limits, limits, memory_budget
from gpuload.tune.model import Costs, Prediction, calibrated, choose, predict

ROUNDS = 4
"""Choices that are measured at most; most pipelines need one or two."""

AGREES = 0.1
"""A prediction this near to its measurement is believed."""

GAIN = 0.03
"""More threads must bring this much, else the fewer are kept."""

SAME = 0.01
"""Rates this near to the fastest are as good, and the smallest setting of theirs is taken."""

GROWTH = 4
"""Fetch threads grow at most so much beyond those that were measured."""


@dataclass(frozen=True)
class Round:
    """What the model expected of a setting, and what was measured."""

    prediction: Prediction
    run: Run

    @property
    def off(self) -> float:
        return self.prediction.images_per_s / self.run.images_per_s - 1


@dataclass(frozen=True)
class Found:
    """apart: a batch's costs by decoder, one thread doing everything. together: the loader alone, by its defaults.

    rounds: the default under the consumer, then the model's choices, as they were measured. costs: a batch's, as last
    measured. chosen: the recommendation with what was predicted of it. verified: a run of its own, later.
    repeats: samples were seen more than once.
    """

    consumer: Consumer
    limits: Limits
    apart: dict[str, Costs]
    together: Run
    rounds: tuple[Round, ...]
    costs: Costs
    chosen: Prediction
    verified: Run
    repeats: bool

    @property
    def confirmed(self) -> bool:
        """Whether the verification agrees with the prediction: the rate within 15%."""
        return abs(self.chosen.images_per_s / self.verified.images_per_s - 1) <= 0.15

    def choice_for(self, consumer: Consumer) -> Prediction:
        """What the model chooses for another consumer on the same data."""
        return choose(self.costs, self.limits, consumer.array)


def search(
    tuned: Tuned,
    consumer: Consumer,
    *,
    decoders: Sequence[str] = ("native",),
    seconds: float = 4.0,
    memory_bytes: int | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Found:
    """A setting for this consumer. seconds: of each measurement. memory_bytes: for the batches ahead."""
    apart = {}
    for decoder in decoders:
        tell(f"each stage apart, decoder {decoder}")
        apart[decoder] = alone(tuned, seconds=seconds / 2, decoder=decoder)
    cores = default_threads()
    at_once = reads_at_once(tuned.dataset)
    tell("all stages together, the loader alone")
    first = Setting(at_once, cores, 4)
    together = run(tuned.loader(first), seconds=seconds)
    allowed = within(tuned, memory_bytes, batch_bytes=together.batch_bytes)
    costs = _calibrated(together, allowed, TAKES_AT_ONCE)
    tell(f"under {consumer.what}: {first}")
    expected = predict(costs, first, allowed, consumer.array)
    rounds = [Round(expected, run(tuned.loader(first), consumer, seconds=seconds))]
    most_threads = first.fetch_threads
    while len(rounds) <= ROUNDS:
        near = allowed.capped(fetch_threads=min(allowed.most.fetch_threads, GROWTH * most_threads))
        prediction = choose(costs, near, consumer.array)
        known = {one.run.setting: one for one in rounds}
        if prediction.setting in known:
            break
        tell(f"round {len(rounds)}: {prediction.setting}")
        measured = run(tuned.loader(prediction.setting), consumer, seconds=seconds)
        rounds.append(Round(prediction, measured))
        costs = _calibrated(measured, allowed, consumer)
        before = max(one.run.images_per_s for one in rounds[:-1])
        if len(rounds) > 2 and measured.images_per_s < before * (1 + GAIN):
            break
        reached = prediction.setting.fetch_threads < near.most.fetch_threads or near == allowed
        most_threads = max(most_threads, prediction.setting.fetch_threads)
        if abs(rounds[-1].off) <= AGREES and reached:
            break
    best = _best(rounds)
    costs = _calibrated(best.run, allowed, consumer)
    chosen = predict(costs, best.run.setting, allowed, consumer.array)
    tell(f"verifying {chosen.setting}")
    verified = run(tuned.loader(chosen.setting), consumer, seconds=2 * seconds)
    return Found(consumer, allowed, apart, together, tuple(rounds), costs, chosen, verified, tuned.repeats)


def within(tuned: Tuned, memory_bytes: int | None = None, *, batch_bytes: int | None = None) -> Limits:
    """What may be chosen for this data on this machine. batch_bytes: of a finished batch, found by making one."""
    if batch_bytes is None:
        batch_bytes = tensor_bytes(next(iter(tuned.loader(None, num_workers=0))))
    return limits(
        cores=default_threads(),
        batch_bytes=batch_bytes,
        memory_bytes=memory_budget() if memory_bytes is None else memory_bytes,
        fetch_at_once=reads_at_once(tuned.dataset) > 1,
    )


def reads_at_once(dataset: Any) -> int:
    """How many batches of this data set are read at once by default; 1: it does not allow more."""
    from gpuload.sources import understand

    source = understand(dataset).open_source()
    source.close()
    return source.fetch_threads


def _best(rounds: Sequence[Round]) -> Round:
    """The smallest setting of those that are about the fastest."""
    fastest = max(one.run.images_per_s for one in rounds)
    return min((one for one in rounds if one.run.images_per_s >= fastest / (1 + SAME)), key=lambda one: one.run.setting)


def _calibrated(measured: Run, allowed: Limits, consumer: Consumer) -> Costs:
    costs = measured.costs(consumer)
    return calibrated(costs, measured.setting, allowed, consumer.array, measured.images_per_s, measured.starved)
