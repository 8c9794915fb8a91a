"""A running loader's own tuner: after each window of batches, perhaps another setting.

Owns when a setting is tried, kept, taken back and tried again. What to try is `model.py`'s; carrying it out is the
engine's. Called once a batch on the consumer's thread with two times and a way to ask for the stages' counters, which
it does once a window. Rules (tests/tune/test_online.py):
1. A trial is judged by the rate of a whole window, after the batches that were let in before it have gone; of up to
   three where the batches' own jitter leaves it in doubt.
2. What gains less than GAIN is taken back, and that knob's upper end is then where it was: nothing is tried twice. What
   gains less than half of what the model expected is kept, and is the threads' upper end: the link is nearly full.
3. Settled, it looks again only when what is measured has changed, in PATIENCE windows on end, or when a consumer that
   was fed has waited in the average of the last FEW: then all limits are open again. Each look doubles how many windows
   the next one takes, so noise ends as silence.
4. Nobody waits, nothing changes: a loader that keeps its consumer fed is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuload.core.setting import Setting
from gpuload.engine.stats import StageStats
from gpuload.tune.cores import core_wait_s
from gpuload.tune.depth import curve
from gpuload.tune.limits import Limits
from gpuload.tune.measured import Window, costs_of
from gpuload.tune.model import bounds, choose, pipeline

WINDOW = 20
"""Batches a decision: a rate of 20 batches is within some percent, and 200 batches hold five trials."""

GAIN = 0.03
"""A trial must bring this much: below it is noise, and threads and memory cost."""

STARVED = 0.01
"""Share of the time that a consumer may wait before anything is tried."""

LONGEST = 3
"""Windows that one judgement may take."""

PATIENCE, FEW = 3, 5
"""Windows on end, see rule 3."""

THREADS = ("fetch_threads", "decode_threads")

SIMULATED = 600
"""Batches for each depth that is considered: a decision, of which there are few, takes the consumer 5 to 50 ms."""

SURPRISE = 0.02
"""So much more of the time spent waiting than the model says: it does not know why, and a deeper queue may help."""

GROWTH = 4
"""A knob grows at most so much in one trial: times are known only for threads that have run."""

Stages = Callable[[], Sequence[StageStats]]


@dataclass(frozen=True)
class _Trial:
    """What was changed: from which setting, in which window, and which rate the model expected of it."""

    before: Setting
    window: Window
    expected: float


@dataclass
class OnlineTuner:
    """Steers one loader from `setting` within `limits`. Not thread-safe: the consumer's."""

    setting: Setting
    limits: Limits
    settled: bool = False
    changes: int = 0
    _open: Limits = field(init=False)
    _skip: int = 1  # batches that are not counted: the first of an epoch, those under way at a change
    _waits_s: list[float] = field(default_factory=list)
    _steps_s: list[float] = field(default_factory=list)
    _images: int = 0
    _largest_bytes: int = 0
    _wanted_batches: int = WINDOW
    _last_s: float | None = None
    _began: Sequence[StageStats] | None = None
    _core_wait_s: float = 0.0
    _trial: _Trial | None = None
    _deep_enough: set[tuple[int, int]] = field(default_factory=set)  # threads, fetch and decode, that depth can't help
    _reference: Window | None = None
    _window: Window | None = None
    _expected: float = 0.0
    _unlike: int = 0  # windows on end that differ from the reference
    _patience: int = PATIENCE
    _recent: list[Window] = field(default_factory=list)  # since it settled, or the epoch began
    _story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open = self.limits

    def begin_epoch(self) -> None:
        """Counters start again, and the time between two epochs is nobody's step."""
        self._forget(skip=1)
        self._recent, self._unlike = [], 0

    def holds(self, batch_bytes: int, memory_bytes: int) -> None:
        """A batch was so large: of its kind no more go ahead than memory_bytes holds. Where it was not known before."""
        if batch_bytes > self._largest_bytes:
            self._largest_bytes = batch_bytes
            deepest = max(2, memory_bytes // batch_bytes)
            self.limits = self.limits.capped(depth=min(deepest, self.limits.most.depth))
            self._open = self._open.capped(depth=min(deepest, self._open.most.depth))

    def batch(self, asked_s: float, got_s: float, images: int, stages: Stages) -> Setting | None:
        """A batch was asked for at `asked_s` and got at `got_s` (one clock); what is to be applied now, or None.

        stages: the epoch's fetch, decode and finish counters as they stand.
        """
        last_s, self._last_s = self._last_s, got_s
        if self._skip or last_s is None:
            self._skip = max(0, self._skip - 1)
            if not self._skip:
                self._began, self._core_wait_s = stages(), core_wait_s()
            return None
        self._waits_s.append(got_s - asked_s)
        self._steps_s.append(asked_s - last_s)
        self._images += images
        if len(self._waits_s) < self._wanted_batches:
            return None
        ended = stages()
        assert self._began is not None
        window = Window(
            tuple(self._waits_s),
            tuple(self._steps_s),
            self._images,
            tuple(self._began),
            tuple(ended),
            self.setting,
            core_wait_s() - self._core_wait_s,
        )
        self._window = window
        if self._trial is not None and self._in_doubt(window, self._trial):
            self._wanted_batches += WINDOW
            return None
        self._forget(skip=0)
        self._began, self._last_s, self._core_wait_s = ended, got_s, core_wait_s()
        return self._decided(window)

    def _forget(self, *, skip: int) -> None:
        self._waits_s, self._steps_s, self._images, self._wanted_batches = [], [], 0, WINDOW
        self._began, self._last_s, self._skip = None, None, skip

    def _decided(self, window: Window) -> Setting | None:
        if self._trial is not None:
            trial, self._trial = self._trial, None
            gained = window.images_per_s / trial.window.images_per_s - 1
            if gained < GAIN and window.starved > STARVED:
                return self._taken_back(trial, gained)
            self._story.append(f"{self.setting}: {gained:+.0%}, kept")
            hoped = trial.expected / trial.window.images_per_s - 1
            if gained + 2 * _doubt(window, trial) < 0.5 * hoped:
                self._close(self._grown(trial.before), self.setting)
        elif self.settled:
            changed = self._changed(window)
            if changed is None:
                return None
            window = changed
            self._story.append(f"looked again: {window.images_per_s:.0f} images/s, starved {window.starved:.0%}")
            self.settled, self._open, self._patience = False, self.limits, 2 * self._patience
            self._deep_enough = set()
        return self._tried(window)

    def _tried(self, window: Window) -> Setting | None:
        """The model's next setting; None, and settled, where it has none."""
        wanted = self._wanted(window) if window.starved > STARVED else self.setting
        if wanted == self.setting:
            self.settled, self._reference, self._unlike, self._recent = True, None, 0, []
            rate = f"{window.images_per_s:.0f} images/s, starved {window.starved:.1%}"
            self._story.append(f"settled on {self.setting}: {rate}")
            return None
        self._trial = _Trial(self.setting, window, self._expected)
        return self._apply(wanted)

    def _wanted(self, window: Window) -> Setting:
        """Never fewer threads or batches than now: what is too much costs little, and is not what one waits for."""
        costs = costs_of(window)
        now, most = self.setting, self._open.most
        near = self._open.capped(
            fetch_threads=min(most.fetch_threads, GROWTH * now.fetch_threads),
            decode_threads=min(most.decode_threads, GROWTH * now.decode_threads),
            depth=min(most.depth, max(GROWTH * now.depth, now.depth + GROWTH * now.fetch_threads)),
        )
        step_s = np.asarray(window.steps_s)
        prediction = choose(costs, near, step_s, batches=SIMULATED)
        found, self._expected = prediction.setting, prediction.images_per_s
        wanted = Setting(
            max(now.fetch_threads, found.fetch_threads),
            max(now.decode_threads, found.decode_threads),
            max(now.depth, found.depth),
        )
        wanted = self._open.clipped(wanted)
        if wanted == now and window.starved > prediction.starved + SURPRISE:  # a neighbour on the machine, a burst
            wanted = self._open.clipped(replace(now, depth=2 * now.depth))
        return now if _threads(wanted) == _threads(now) and _threads(now) in self._deep_enough else wanted

    def _apply(self, setting: Setting) -> Setting:
        self._forget(skip=max(setting.depth, self.setting.depth) + 2)
        self.setting = setting
        self.changes += 1
        return setting

    def _taken_back(self, trial: _Trial, gained: float) -> Setting:
        """That knob is closed; with several, the threads: depth, which followed them, gets a trial of its own."""
        self._story.append(f"{self.setting}: {gained:+.0%}, taken back")
        self._close(self._grown(trial.before), trial.before)
        return self._apply(trial.before)

    def _grown(self, before: Setting) -> list[str]:
        """The kinds of threads of which there are more than before."""
        return [name for name in THREADS if getattr(self.setting, name) > getattr(before, name)]

    def _close(self, grown: Sequence[str], at: Setting) -> None:
        """These threads go no further up than `at`; where none grew, it was depth that brought nothing."""
        self._open = self._open.capped(**{name: getattr(at, name) for name in grown})
        if not grown:
            self._deep_enough.add(_threads(at))

    def _in_doubt(self, window: Window, trial: _Trial) -> bool:
        """Whether the batches' jitter is larger than what tells a gain from none, and more batches may tell."""
        gained = window.images_per_s / trial.window.images_per_s - 1
        return abs(gained - GAIN) < _doubt(window, trial) and len(window.waits_s) < LONGEST * WINDOW

    def _changed(self, window: Window) -> Window | None:
        """The windows that show another load than the one that the tuner settled on, as one; None where none do."""
        if self._reference is None:  # the window in which it settled may still hold what came before
            self._reference = window
            return None
        few = FEW * self._patience // PATIENCE
        self._recent = [*self._recent, window][-few:]
        unlike = window.starved > STARVED and window.unlike(self._reference)
        self._unlike = self._unlike + 1 if unlike else 0
        if self._unlike >= self._patience:
            return Window.joined(self._recent[-self._unlike :])
        together = Window.joined(self._recent)
        fed = self._reference.starved <= STARVED
        if not fed or len(self._recent) < few or together.starved <= 2 * STARVED:
            return None
        return window if window.starved > together.starved else together

    def explain(self) -> str:
        """What was measured, what was chosen and why, and the chance of an empty queue for each depth."""
        if self._window is None:
            return f"tuner: {self.setting}, nothing measured yet: that takes {WINDOW + 2} batches of one epoch"
        window, costs = self._window, costs_of(self._window)
        step_s = np.asarray(window.steps_s)
        tightest = bounds(costs, self.setting, self.limits.cores, step_s)[0]
        lines = [
            f"tuner: {self.setting}, {'settled' if self.settled else 'trying'}",
            f"  a batch of {costs.images:.0f}: read {_ms(costs.fetch_s)} and decode {_ms(costs.decode_s)} of a thread, "
            f"{1e3 * costs.cpu_s:.1f} ms of a core, training step {_ms(step_s)}",
            f"  now {window.images_per_s:.0f} images/s, starved {window.starved:.1%}; the tightest bound is "
            f"{tightest.what}: {tightest.batches_per_s * costs.images:.0f} images/s",
            *(f"  {line}" for line in self._story),
            "  depth    empty queue   starved",
        ]
        flow = pipeline(costs, self.setting, self.limits.cores, step_s)
        for point in curve(flow, _depths(self.limits, self.setting.depth)):
            here = "   <- now" if point.depth == self.setting.depth else ""
            lines.append(f"  {point.depth:5}  {point.empty:12.1%}  {point.starved:8.1%}{here}")
        return "\n".join(lines)


def _threads(setting: Setting) -> tuple[int, int]:
    return (setting.fetch_threads, setting.decode_threads)


def _doubt(window: Window, trial: _Trial) -> float:
    """The standard error of a trial's gain."""
    return math.hypot(window.rate_error, trial.window.rate_error)


def _ms(times_s: np.ndarray) -> str:
    return f"{1e3 * float(np.mean(times_s)):.1f} ms"


def _depths(limits: Limits, now: int) -> list[int]:
    """Some around the one that is used."""
    low, high = limits.least.depth, limits.most.depth
    return sorted({d for d in (low, low + 1, now - 1, now, now + 1, 2 * now, 4 * now) if low <= d <= high})
