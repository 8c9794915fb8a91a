"""What was found in words and cells, the same for terminal, config file and page: pure, from a `Found`.

Owns the sentences and what more hardware would bring, by the model. How they are drawn is command.py's and page.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuload.cli.tune.consumer import TAKES_AT_ONCE
from gpuload.cli.tune.search import Found
from gpuload.core.wording import percent, rate, size
from gpuload.report.html import Table
from gpuload.tune.model import Costs, Prediction, bounds, choose

FED = 0.01
"""A consumer that waits for less of the time is fed."""

APPETITES = (
    ("ResNet-50 on one H100 or H200", 7000.0, 9000.0),
    ("ResNet-18, MobileNet", 15000.0, 20000.0),
    ("AlexNet", 40000.0, 100000.0),
)
"""Images that training eats in a second, by mixed precision at 224 x 224: a model, from, to."""


def rows(found: Found) -> Table:
    """The settings that were measured, beside what the model said of each."""
    head = ("setting", "fetch", "decode", "depth", "predicted", "images/s", "starved", "p99 wait", "memory")
    cells = []
    measured = [(one.prediction, one.run) for one in found.rounds] + [(found.chosen, found.verified)]
    for number, (prediction, run) in enumerate(measured):
        name = "default" if number == 0 else "verified" if number == len(measured) - 1 else f"round {number}"
        setting = run.setting
        cells.append(
            (name, str(setting.fetch_threads), str(setting.decode_threads), str(setting.depth),
             rate(prediction.images_per_s), rate(run.images_per_s), percent(run.starved),
             f"{1000 * run.wait_s(0.99):.0f} ms", size(setting.depth * run.batch_bytes))
        )  # fmt: skip
    return Table(head, cells, "memory: of the batches ahead, when all are finished")


def summary(found: Found) -> list[str]:
    """The recommendation, what limits it, and what would help."""
    chosen, verified = found.chosen, found.verified
    off = chosen.images_per_s / verified.images_per_s - 1
    verdict = (
        "confirmed" if found.confirmed else "NOT confirmed: the machine was busy, or the storage is uneven; run again"
    )
    lines = [
        f"recommended: {chosen.setting}",
        f"predicted {rate(chosen.images_per_s)} images/s, starved {percent(chosen.starved)}; verified "
        f"{rate(verified.images_per_s)} images/s, starved {percent(verified.starved)}, {off:+.0%}: {verdict}",
        f"limit: {chosen.bound.what}; the loader alone, by its defaults, makes "
        f"{rate(found.together.images_per_s)} images/s",
        f"memory: up to {size(chosen.setting.depth * verified.batch_bytes)} for the batches ahead; this process came "
        f"to {size(verified.resident_bytes)}",
    ]
    if verified.starved <= FED:
        return [*lines, "the consumer is fed: faster hardware for the loader would bring nothing"]
    best = max(helps(found), key=lambda one: one.images_per_s)
    if best.images_per_s > 1.05 * chosen.images_per_s:
        lines.append(f"what would help most: {best.what}, {rate(best.images_per_s)} images/s")
    return lines


@dataclass(frozen=True)
class Help:
    """What other hardware, with the setting that would suit it, would bring by the model."""

    what: str
    images_per_s: float
    starved: float


def helps(found: Found) -> list[Help]:
    """Each by itself: more cores, faster storage, decoding elsewhere, more memory."""
    costs, allowed = found.costs, found.limits
    step_s = found.verified.step_s

    def with_cores(factor: int) -> Help:
        most = allowed.most
        more = replace(
            allowed,
            cores=allowed.cores * factor,
            most=replace(most, decode_threads=most.decode_threads * factor),
        )
        return _help(f"{int(allowed.cores * factor)} cores", choose(costs, more, step_s))

    faster = replace(costs, fetch_s=costs.fetch_s / 2)
    free = replace(costs, decode_s=0.1 * costs.decode_s, decode_cpu_s=0.1 * costs.decode_cpu_s)
    return [
        _help("as it is", choose(costs, allowed, step_s)),
        with_cores(2),
        with_cores(4),
        _help("storage twice as fast", choose(faster, allowed, step_s)),
        _help("decoding on a GPU, if a tenth of its work stays on the CPU", choose(free, allowed, step_s)),
    ]


def _help(what: str, prediction: Prediction) -> Help:
    return Help(what, prediction.images_per_s, prediction.starved)


def where_time_goes(costs: Costs) -> Table:
    """A batch's cost by stage."""
    fetch_s, decode_s = float(np.mean(costs.fetch_s)), float(np.mean(costs.decode_s))
    cells = [
        ("read", *_cells(fetch_s, costs.fetch_cpu_s, costs.images)),
        ("decode, transform, collate", *_cells(decode_s, costs.decode_cpu_s, costs.images)),
        ("everything else", *_cells(costs.other_cpu_s, costs.other_cpu_s, costs.images)),
    ]
    return Table(("stage", "thread ms a batch", "core ms a batch", "thread us an image"), cells)


def _cells(thread_s: float, cpu_s: float, images: float) -> tuple[str, str, str]:
    return f"{1000 * thread_s:.2f}", f"{1000 * cpu_s:.2f}", f"{1e6 * thread_s / images:.0f}"


def appetites(found: Found) -> Table:
    """What some models eat, and what of this machine's kind it takes to feed them."""
    costs = next(iter(found.apart.values())).costs(TAKES_AT_ONCE)
    read_bytes = _read_bytes(found)
    cells = []
    for model, low, high in (*APPETITES, _this(found)):
        cores = [a_second * costs.cpu_s / costs.images for a_second in (low, high)]
        link = [8e-9 * a_second * read_bytes for a_second in (low, high)]
        cells.append((model, _range(low, high, 0), _range(cores[0], cores[1], 1), _range(link[0], link[1], 2)))
    note = (
        "cores: of this machine's kind, by what one of them did alone, all decoding on them. Gbit/s: at this data's "
        "bytes an image"
    )
    return Table(("training", "images/s", "cores", "Gbit/s"), cells, note)


def _this(found: Found) -> tuple[str, float, float]:
    step = found.costs.images / max(found.consumer.mean_s, 1e-9) if found.consumer.mean_s else 0.0
    return (f"yours: {found.consumer.what}", step, step)


def _range(low: float, high: float, digits: int) -> str:
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}"


def _read_bytes(found: Found) -> float:
    """Encoded bytes of an image."""
    began, ended = found.verified.window.began[0], found.verified.window.ended[0]
    items = ended.items - began.items
    return (ended.bytes - began.bytes) / items if items else 0.0


def conditions(found: Found, data: str) -> str:
    """One paragraph: on what, with what, how the figures came about."""
    repeats = (
        " Samples were seen several times: what the storage takes for a first read is not in it."
        if found.repeats
        else ""
    )
    return (
        f"{data}, batches of {found.costs.images:.0f}, {found.consumer.what}. Each setting ran on the real engine; "
        "predicted: by the model, before. Starved: share of the time in which the consumer waited for a batch."
        + repeats
    )


def tightest(found: Found) -> str:
    """All bounds of the recommendation, in words."""
    limit = found.limits
    all_of_them = bounds(found.costs, found.chosen.setting, limit.cores, found.verified.step_s)
    return "; ".join(f"{one.what} {rate(one.batches_per_s * found.costs.images)} images/s" for one in all_of_them)
