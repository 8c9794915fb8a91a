"""A comparison from start to finish: pixels first, then interleaved rounds, then one `Row` a loader.

Owns the order of things and who is left out. Figures come from measure.py, processes from process.py; nothing here
draws or prints: `tell` is handed each sentence about what goes on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from gpuload.cli.bench import measure, subjects
from gpuload.cli.bench.measure import Epoch, Spread, spread
from gpuload.cli.bench.process import LoaderProcess, LoaderProcessError
from gpuload.cli.bench.training import Training
from gpuload.core.errors import GpuloadError

PIXEL_BOUND = 1.5
"""Levels of 255, mean over the images compared. Decoders and resizers of good faith differ by up to ~1 (another IDCT,
another rounding); a wrong order, crop, channel or range costs 20 and more."""

CHECKED_IMAGES = 32


@dataclass(frozen=True)
class Comparison:
    """What is to be compared, and how. step_s: None sizes the timed step by `appetite` (see measure.step_s)."""

    setting: subjects.Setting
    names: Sequence[str]
    transform: str = "train"
    rounds: int = 5
    round_s: float = 3.0
    step_s: float | None = None
    appetite: float = 1.3
    limit_s: float | None = None
    """Begin no further round once the rounds have taken this long: a slow machine gets fewer. None: all of them."""
    cold: bool = False
    """In each round, one more epoch after the files have left the page cache."""
    training: Mapping[str, object] | None = None
    """Train a model with each loader after the rounds; arguments of training.train. None: do not."""


@dataclass(frozen=True)
class Row:
    """One loader's result. reason: why it was not timed, "" where it was. figures: by the JSON line's keys."""

    name: str
    reason: str = ""
    pixel_difference: float | None = None
    worst_pixel_difference: float | None = None
    cold_start_s: float | None = None
    plan: str = ""
    figures: Mapping[str, Spread] = field(default_factory=dict)
    stepped: Epoch | None = None
    """The last round's epoch under the timed step."""
    training: Training | None = None
    not_trained: str = ""
    """Why there is no training where one was asked for."""
    packed_s: float = 0.0
    """What a peer took to write the samples in its own format, before anything was timed."""
    still_cached: float | None = None
    """Share of the files looked at that were still in the page cache when a cold epoch began; None: not asked, or
    nobody can tell."""


@dataclass(frozen=True)
class Outcome:
    """All rows, and what was fixed for all of them. rounds: those really run."""

    comparison: Comparison
    samples: int
    rounds: int
    round_images: int
    step_s: float
    rows: Sequence[Row]


class _Entrant:
    """One loader on its way through the comparison."""

    def __init__(self, name: str) -> None:
        self.name, self.reason = name, subjects.absent(name)
        self.process: LoaderProcess | None = None
        self.pixels: tuple[float | None, float | None] = (None, None)
        self.cold_start_s: float | None = None
        self.plan = ""
        self.rounds: list[dict[str, float]] = []
        self.stepped: Epoch | None = None
        self.training: Training | None = None
        self.not_trained = ""
        self.packed_s = 0.0
        self.still_cached: float | None = None

    def row(self, per_round: Sequence[Mapping[str, float]]) -> Row:
        figures = {key: spread(each[key] for each in per_round) for key in (per_round[0] if per_round else ())}
        return Row(
            self.name, self.reason, *self.pixels, self.cold_start_s, self.plan, figures, self.stepped, self.training,
            self.not_trained, self.packed_s, self.still_cached,
        )  # fmt: skip


def compare(comparison: Comparison, tell: Callable[[str], None]) -> Outcome:
    """Runs it all. Raises GpuloadError where torch's own loader, the baseline, cannot be measured."""
    entrants = [_Entrant(name) for name in comparison.names]
    with tempfile.TemporaryDirectory(prefix="gpuload-bench-", ignore_cleanup_errors=True) as scratch:
        setting = replace(comparison.setting, scratch=scratch, cold=comparison.cold)
        comparison = replace(comparison, setting=setting)
        try:
            return _compare(comparison, entrants, tell)
        finally:
            for entrant in entrants:
                if entrant.process is not None:
                    entrant.process.close()


def _compare(comparison: Comparison, entrants: list[_Entrant], tell: Callable[[str], None]) -> Outcome:
    setting = comparison.setting
    workers = max(1, setting.workers)
    probe = (4 * workers + 4) * setting.batch_size
    samples = 0
    for entrant in (e for e in entrants if not e.reason):
        tell(f"{entrant.name}: starting its process, comparing its pixels with Pillow's")
        try:
            entrant.process = LoaderProcess(entrant.name)
            opened = entrant.process.ask(
                "open", name=entrant.name, setting=asdict(setting), spawned_s=entrant.process.spawned_s,
                transform=comparison.transform, images=probe,
            )  # fmt: skip
            entrant.cold_start_s, entrant.plan = opened["cold_start_s"], opened["plan"]
            entrant.reason = _pixels_wrong(entrant, entrant.process.ask("check", images=CHECKED_IMAGES))
        except LoaderProcessError as error:
            entrant.reason = str(error).removeprefix(f"{entrant.name}: ")
        if entrant.name == subjects.BASELINE:
            _require(entrant)
            samples = opened["images"]

    running = [e for e in entrants if not e.reason]
    base = next(e for e in running if e.name == subjects.BASELINE)
    tell("torch: sizing rounds and the timed step by its rate")
    warm = _ask(base, "warm_up")
    _require(base)
    assert warm is not None
    rate = measure.images_per_s(Epoch(**warm["epoch"]), workers=workers)
    images = measure.round_images(rate, batch_size=setting.batch_size, workers=workers, round_s=comparison.round_s)
    for entrant in running:
        tell(f"{entrant.name}: warming up")
        built = _ask(entrant, "build", images=images)
        entrant.packed_s = built["packed_s"] if built is not None else 0.0
        warm = _ask(entrant, "warm_up")
        if entrant is base and warm is not None:  # what disturbs a loader only slows it: the faster pass is the truer
            rate = max(rate, measure.images_per_s(Epoch(**warm["epoch"]), workers=workers))
    step_s = comparison.step_s
    if step_s is None:
        step_s = measure.step_s(rate, batch_size=setting.batch_size, appetite=comparison.appetite)
    by_name = {e.name: e for e in running}
    began_s = time.monotonic()
    for number, order in enumerate(measure.rotations([e.name for e in running], comparison.rounds)):
        if number and comparison.limit_s is not None and time.monotonic() - began_s > comparison.limit_s:
            break
        tell(f"round {number + 1} of {comparison.rounds}: {', '.join(order)}")
        for name in order:
            answer = _ask(by_name[name], "round", watch=True, step_s=step_s)
            cold = _ask(by_name[name], "cold") if comparison.cold else None
            if answer is not None and not by_name[name].reason:
                figures = _figures(answer, by_name[name], workers) | (_cold(cold, samples) if cold else {})
                by_name[name].rounds.append(figures)
                by_name[name].stepped = Epoch(**answer["stepped"])
                by_name[name].still_cached = cold["cached"] if cold else None
    if comparison.training is not None:
        for entrant in running:
            tell(f"training with {entrant.name}")
            _train(entrant, comparison.training)
    _require(base)
    return Outcome(comparison, samples, len(base.rounds), images, step_s, [_row(entrant, base) for entrant in entrants])


def _require(base: _Entrant) -> None:
    if base.reason:
        raise GpuloadError(f"torch's loader, the baseline, cannot be measured on this data: {base.reason}")


def _ask(entrant: _Entrant, what: str, **arguments: object) -> dict | None:
    """The answer, or None from a loader that has failed, now or before."""
    if entrant.reason or entrant.process is None:
        return None
    try:
        return entrant.process.ask(what, **arguments)  # type: ignore[arg-type]
    except LoaderProcessError as error:
        entrant.reason = str(error).removeprefix(f"{entrant.name}: ")
        return None


def _train(entrant: _Entrant, arguments: Mapping[str, object]) -> None:
    """A loader that fails here keeps the figures that it has."""
    if entrant.reason or entrant.process is None:
        return
    try:
        entrant.training = Training(**entrant.process.ask("train", **arguments))  # type: ignore[arg-type]
    except LoaderProcessError as error:
        entrant.not_trained = str(error).removeprefix(f"{entrant.name}: ")


def _pixels_wrong(entrant: _Entrant, check: Mapping[str, float]) -> str:
    entrant.pixels = (check["mean"], check["worst"])
    return pixels_wrong(check)


def pixels_wrong(check: Mapping[str, float]) -> str:
    """Why a loader whose worker answered `check` with this is not timed, "" where it is."""
    if check["wrong_labels"]:
        return f"not timed: {check['wrong_labels']} of {check['images']} labels differ from a plain reader's"
    if not check["mean"] <= PIXEL_BOUND:
        return f"not timed: pixels are off by {check['mean']:.2f} of 255 on average; the bound is {PIXEL_BOUND}"
    return ""


def _figures(answer: dict, entrant: _Entrant, workers: int) -> dict[str, float]:
    alone, stepped = Epoch(**answer["alone"]), Epoch(**answer["stepped"])
    assert entrant.process is not None
    return {
        "images_per_s": measure.images_per_s(alone, workers=workers),
        "first_batch_s": measure.first_batch_s(alone),
        "epoch_boundary_s": measure.boundary_s(alone, stepped),
        "starved_pct": 100 * measure.starved(stepped, workers=workers),
        "cpu_s_per_1000": 1000 * answer["cpu_s"] / sum(alone.images),
        "wait_p99_s": measure.wait_p99_s(stepped, workers=workers),
        "peak_rss_mb": entrant.process.peak_bytes / 1e6,
        "peak_device_mb": (entrant.process.peak_device_bytes or answer["torch_device_bytes"]) / 1e6,
    }


def _cold(answer: dict, samples: int) -> dict[str, float]:
    epoch = Epoch(**answer["epoch"])
    return {
        "cold_images_per_s": measure.first_pass_images_per_s(epoch, samples=samples),
        "cold_first_batch_s": measure.first_batch_s(epoch),
    }


def _row(entrant: _Entrant, base: _Entrant) -> Row:
    if entrant.reason:
        return entrant.row([])
    ratios = [
        {**mine, "ratio_to_torch": mine["images_per_s"] / torch["images_per_s"]}
        for mine, torch in zip(entrant.rounds, base.rounds, strict=True)
    ]
    return entrant.row(ratios)
