"""What limits a loader, judged from one snapshot: pure, and silent about what its figures don't prove.

Owns the sentence, its evidence, and the advice. What more of something would give is the bottleneck law's bound
(Lazowska et al., Quantitative System Performance, 1984, ch. 5): images/s <= threads / (thread-seconds an image) of
each stage, <= CPUs / (CPU-seconds an image), <= what the training step can take. It is a bound, so "up to".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuload.core.wording import percent, size
from gpuload.engine.stats import Stats, milliseconds

LEAST_BATCHES, LEAST_S = 5, 0.1
"""Before that many batches after the first, and that long, chance says more than the figures."""

NOT_STARVED = 0.03
BUSY = 0.85
"""A stage is the bottleneck from here on: scheduling and hand-overs keep a saturated one below 100%."""

CPUS_BUSY = 0.9
ON_A_CPU = 0.5
"""Threads that compute are on a CPU for most of their busy time; below that they wait for something within it."""


@dataclass(frozen=True)
class Verdict:
    """limit: "step" (nothing to gain), "decode", "fetch", "cpu", "depth", "lock", "next", "inline", "torch", "unclear",
    or "unknown" (too little data). gain: images/s over today's if the advice is followed, at most; None: not predicted.
    """

    limit: str
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    gain: float | None = None


def judge(stats: Stats) -> Verdict:
    """What limits this loader. Its first batch doesn't count: everybody waits for that."""
    if stats.batches <= LEAST_BATCHES or not stats.images or _window_s(stats) < LEAST_S:
        told = f"too early to say what limits: {stats.batches} batches in {stats.elapsed_s:.2f} s"
        return Verdict("unknown", told)
    if _starved(stats) < NOT_STARVED:
        return _ahead(stats)
    if stats.path != "accelerated":
        return _torchs_path(stats)
    if not stats.stage("decode").threads:
        return _inline(stats)
    if _none_ready(stats) < _starved(stats) / 2:
        return _handing_over(stats)
    decode, fetch = stats.busy("decode"), stats.busy("fetch")
    if max(decode, fetch) >= BUSY:
        return _fetching(stats) if fetch > decode else _decoding(stats)
    if _cpus_busy(stats) >= CPUS_BUSY:
        return _no_cpu(stats)
    if stats.blocked >= NOT_STARVED or stats.stage("fetch").empty < 0.5:
        return _too_few(stats)
    shares = f"fetch {percent(fetch)}, decode {percent(decode)}, CPUs {percent(_cpus_busy(stats))}"
    sentence = f"unclear: training waits {percent(_starved(stats))} of the time, and nothing is busy enough: {shares}"
    advice = "a trace (trace=FILE) shows what the threads wait for; deeper prefetch lets more batches be made at once"
    return Verdict("unclear", sentence, _evidence(stats), advice)


def _window_s(stats: Stats) -> float:
    """Since the first batch."""
    return stats.elapsed_s - (stats.first_batch_s or 0.0)


def _starved(stats: Stats) -> float:
    return max(0.0, stats.consumer_wait_s - (stats.first_batch_s or 0.0)) / _window_s(stats)


def _none_ready(stats: Stats) -> float:
    """Share of the time since the first batch in which none was ready."""
    return max(0.0, stats.ready_empty * stats.elapsed_s - (stats.first_batch_s or 0.0)) / _window_s(stats)


def _rate_now(stats: Stats) -> float:
    return stats.images * (stats.batches - 1) / stats.batches / _window_s(stats)


def _cpus_busy(stats: Stats) -> float:
    return stats.cpu_s / (stats.cpus * stats.elapsed_s)


def _bound(threads: float, items: int, busy_s: float) -> float:
    return threads * items / busy_s if busy_s > 0 else math.inf


def _decode_bound(stats: Stats, threads: float) -> float:
    decode = stats.stage("decode")
    return _bound(threads, decode.items, decode.busy_s + stats.stage("finish").busy_s)


def _fetch_bound(stats: Stats) -> float:
    fetch = stats.stage("fetch")
    return _bound(fetch.threads, fetch.items, fetch.busy_s)


def _step_bound(stats: Stats) -> float:
    """What the training loop could take if it never waited."""
    return _bound(1, stats.images, _window_s(stats) * (1 - _starved(stats)) * stats.batches / (stats.batches - 1))


def _cpu_bound(stats: Stats, cpus: float) -> float:
    return _bound(cpus, stats.images, stats.cpu_s)


def _gain(stats: Stats, *bounds: float) -> float | None:
    """Over what it does now, and never below 1: the bounds are of means, and the present may lie above one."""
    least = min(bounds)
    return max(1.0, least / _rate_now(stats)) if math.isfinite(least) else None


def _up_to(gain: float | None) -> str:
    return "more" if gain is None else f"up to {gain:.{2 if gain < 1.1 else 1}f}x"


def _evidence(stats: Stats) -> tuple[str, ...]:
    """The figures behind any verdict on the accelerated path."""
    decode = stats.stage("decode")
    return (
        f"training waits {percent(_starved(stats))} of the time after the first batch, no batch ready "
        f"{percent(stats.ready_empty)} of it",
        f"decode busy {percent(stats.busy('decode'))}, the queue before it empty {percent(decode.empty)} of the time",
        f"fetch busy {percent(stats.busy('fetch'))}",
        f"stages stood still, all finished, {percent(stats.blocked)} of the time",
        f"{stats.cpu_s / stats.elapsed_s:.1f} of {stats.cpus} CPUs used by this process",
    )


def _ahead(stats: Stats) -> Verdict:
    waited = f"training waits {percent(_starved(stats))} of the time after the first batch"
    sentence = f"the training step limits: {waited}, so a faster loader would gain nothing"
    if stats.path == "accelerated" and stats.stage("decode").threads:
        return Verdict("step", sentence, _evidence(stats), gain=1.0)
    return Verdict("step", sentence, gain=1.0)


def _torchs_path(stats: Stats) -> Verdict:
    gain = _gain(stats, _step_bound(stats))
    sentence = f"torch's own loading limits: training waits {percent(_starved(stats))} of the time"
    advice = f"loading that keeps up would give {_up_to(gain)}; explain() says what keeps it from gpuload's engine"
    return Verdict("torch", sentence, stats.reasons, advice, gain)


def _inline(stats: Stats) -> Verdict:
    gain = _gain(stats, _step_bound(stats), _cpu_bound(stats, stats.cpus))
    sentence = f"num_workers=0 limits: the training thread itself loads {percent(_starved(stats))} of the time"
    busy = ", ".join(f"{stage.name} {stage.busy_s:.2f} s" for stage in stats.stages)
    return Verdict("inline", sentence, (busy,), f"leave num_workers out: {_up_to(gain)} beside the step", gain)


def _handing_over(stats: Stats) -> Verdict:
    gain = _gain(stats, _step_bound(stats))
    wait = f"{milliseconds(stats.wait_s.p50)} (p50)" if stats.wait_s is not None else "long"
    sentence = f"next() itself limits: it takes {wait}; no batch was ready {percent(_none_ready(stats))} of the time"
    advice = f"batches that were only taken would give {_up_to(gain)}: larger ones, or CPUs that are less busy"
    return Verdict("next", sentence, _evidence(stats), advice, gain)


def _decoding(stats: Stats) -> Verdict:
    decode = stats.stage("decode")
    evidence = _evidence(stats)
    on_cpu = min(1.0, decode.cpu_s / decode.busy_s) if decode.cpu_s else 1.0
    busy = f"{_threads(decode.threads, 'decode')} busy {percent(stats.busy('decode'))}"
    none_ready = f"no batch ready {percent(stats.ready_empty)} of the time"
    used = stats.cpu_s / stats.elapsed_s
    room = stats.cpus - used  # for threads that compute all the time
    if on_cpu < ON_A_CPU and _cpus_busy(stats) < CPUS_BUSY:
        sentence = f"waiting inside decode limits: {busy}, but on a CPU only {percent(on_cpu)} of that; {none_ready}"
        advice = (
            "more threads would wait as well: for the interpreter lock, a device, other processes, or what a transform "
            "of your own does; explain() names the operations that run in Python"
        )
        return Verdict("lock", sentence, evidence, advice)
    if room < 0.75:
        return _no_cpu(stats, busy)
    others = min(_fetch_bound(stats), _step_bound(stats))
    more = max(1, math.ceil(min(room, others / _decode_bound(stats, 1) - decode.threads)))
    bounds = (others, _cpu_bound(stats, stats.cpus), _decode_bound(stats, decode.threads + min(more, room)))
    gain = _gain(stats, *bounds)
    sentence = f"decode limits: {busy}, {none_ready}"
    advice = (
        f"{more} more {'thread' if more == 1 else 'threads'} would give {_up_to(gain)} (this process uses {used:.1f} "
        f"of {stats.cpus} CPUs)"
    )
    return Verdict("decode", sentence, evidence, advice, gain)


def _no_cpu(stats: Stats, busy: str = "") -> Verdict:
    used = stats.cpu_s / stats.elapsed_s
    sentence = f"the CPUs limit: this process uses {used:.1f} of {stats.cpus}" + (f", {busy}" if busy else "")
    bounds = (_fetch_bound(stats), _step_bound(stats), _cpu_bound(stats, stats.cpus + 1))
    gain = _gain(stats, *bounds)
    advice = (
        f"more threads would gain nothing, one more CPU {_up_to(gain)}; less work an image (decoding on a GPU, "
        'an entropy index, smaller images, fidelity="fast") helps as well'
    )
    return Verdict("cpu", sentence, _evidence(stats), advice, gain)


def _fetching(stats: Stats) -> Verdict:
    fetch = stats.stage("fetch")
    bounds = (_decode_bound(stats, stats.stage("decode").threads), _step_bound(stats), _cpu_bound(stats, stats.cpus))
    gain = _gain(stats, *bounds)
    busy = f"{_threads(fetch.threads, 'fetch')} busy {percent(stats.busy('fetch'))}"
    sentence = (
        f"storage limits: {busy} for {size(fetch.bytes / stats.elapsed_s)}/s (a batch takes "
        f"{milliseconds(fetch.p50_s)}), nothing to decode {percent(stats.stage('decode').empty)} of the time"
    )
    advice = f"storage that keeps up would give {_up_to(gain)}: a nearer copy, larger shards, more reads at once"
    if fetch.cpu_s > ON_A_CPU * fetch.busy_s:
        sentence = sentence.replace("storage limits", "reading limits", 1)
        advice = f"reading is mostly computing here, not waiting; if it kept up: {_up_to(gain)}"
    return Verdict("fetch", sentence, _evidence(stats), advice, gain)


def _too_few(stats: Stats) -> Verdict:
    """Little's law: where nothing is saturated, and as many batches as may be are under way, their number limits."""
    bounds = (_decode_bound(stats, stats.stage("decode").threads), _fetch_bound(stats), _step_bound(stats))
    gain = _gain(stats, *bounds, _cpu_bound(stats, stats.cpus))
    busy = f"fetch {percent(stats.busy('fetch'))}, decode {percent(stats.busy('decode'))}"
    let_in = f"batches wait to be let in {percent(1 - stats.stage('fetch').empty)} of the time"
    sentence = f"depth limits: no stage is busy ({busy}), {let_in}"
    if stats.blocked >= NOT_STARVED:
        sentence += f", and {percent(stats.blocked)} of it all that were let in stand finished"
    return Verdict("depth", sentence, _evidence(stats), f"a larger prefetch_factor would give {_up_to(gain)}", gain)


def _threads(number: int, name: str) -> str:
    return f"its one {name} thread is" if number == 1 else f"its {number} {name} threads are"
