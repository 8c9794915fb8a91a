"""The way to a recommendation: stages apart, then together, then what the model chooses, until it is right.

Owns the order of measurements and when they are enough. Each round measures the model's choice on the real engine and
gives its times back to the model, so a storage link that is full, or threads that share a core, are found where the
model is unsure and nowhere else. `tell` is handed each sentence about what goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuload.cli.tune.consumer import TAKES_AT_ONCE, Consumer
from gpuload.cli.tune.measure import Run, Tuned, alone, run, tensor_bytes
from gpuload.config import default_threads
from gpuload.tune.limits import Limits, limits, memory_budget
from gpuload.tune.model import Costs, Prediction, calibrated, choose, predict
from gpuload.tune.online import GAIN, GROWTH, SURPRISE

ROUNDS = 4
"""Choices that are measured at most; most pipelines need one or two."""

SAME = 0.01
"""Rates this near to the fastest are as good, and the smallest setting of theirs is taken."""


@dataclass(frozen=True)
class Round:
    """What the model expected of a setting, and what was measured."""

    prediction: Prediction
    run: Run


@dataclass(frozen=True)
class Found:
    """apart: by decoder, one thread doing everything. together: the loader alone, by its defaults.

    rounds: the default under the consumer, then the model's choices, as they were measured. costs: a batch's, as last
    measured. chosen: the recommendation with what was predicted of it. verified: a run of its own, later.
    repeats: samples were seen more than once.
    """

    consumer: Consumer
    limits: Limits
    apart: dict[str, Run]
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
    allowed = within(tuned, memory_bytes, batch_bytes=apart[decoders[0]].batch_bytes)
    first = allowed.clipped(tuned.default)
    tell("all stages together, the loader alone")
    together = run(tuned.loader(first), seconds=seconds)
    costs = _calibrated(together, allowed, TAKES_AT_ONCE)
    rounds: list[Round] = []
    prediction: Prediction | None = predict(costs, first, allowed, consumer.array)
    while prediction is not None and len(rounds) <= ROUNDS:
        tell(f"{prediction.setting} under {consumer.what}")
        rounds.append(Round(prediction, run(tuned.loader(prediction.setting), consumer, seconds=seconds)))
        prediction = _next(rounds, allowed, consumer)
    best = _best(rounds)
    costs = _calibrated(best.run, allowed, consumer)
    chosen = predict(costs, best.run.setting, allowed, best.run.step_s)
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
        fetch_at_once=tuned.default.fetch_threads > 1,
    )


def _next(rounds: Sequence[Round], allowed: Limits, consumer: Consumer) -> Prediction | None:
    """What is to be measured next; None where enough is known."""
    last = rounds[-1].run
    before = max((one.run.images_per_s for one in rounds[1:-1]), default=0.0)
    if last.images_per_s < before * (1 + GAIN):
        return None
    costs = _calibrated(last, allowed, consumer)
    most_threads = GROWTH * max(one.run.setting.fetch_threads for one in rounds)
    near = allowed.capped(fetch_threads=min(allowed.most.fetch_threads, most_threads))
    choice = choose(costs, near, last.step_s)
    known = {one.run.setting for one in rounds}
    if choice.setting not in known:
        return choice
    # The consumer waits and the model does not say why: a neighbour on the machine, a lock. A deeper queue may help.
    deeper = allowed.clipped(replace(last.setting, depth=2 * last.setting.depth))
    if deeper in known or last.starved <= rounds[-1].prediction.starved + SURPRISE:
        return None
    return predict(costs, deeper, allowed, last.step_s)


def _best(rounds: Sequence[Round]) -> Round:
    """The smallest setting of those that are about the fastest."""
    fastest = max(one.run.images_per_s for one in rounds)
    return min((one for one in rounds if one.run.images_per_s >= fastest / (1 + SAME)), key=lambda one: one.run.setting)


def _calibrated(measured: Run, allowed: Limits, consumer: Consumer) -> Costs:
    costs = measured.costs(consumer)
    return calibrated(costs, measured.setting, allowed, measured.step_s, measured.images_per_s, measured.starved)
