"""The tuner's page: the recommendation, starved against depth and threads, where time goes, what would help.

Owns which sections there are; the words are wording.py's, the look is report/html.py's.
"""

from __future__ import annotations

from dataclasses import replace

from gpuload.cli.bench.machine import Machine, versions
from gpuload.cli.tune.consumer import TAKES_AT_ONCE
from gpuload.cli.tune.search import Found
from gpuload.cli.tune.wording import (
    appetites,
    conditions,
    helps,
    rows,
    summary,
    tightest,
    where_time_goes,
)
from gpuload.core.setting import Setting
from gpuload.core.wording import percent, rate
from gpuload.report import html as page
from gpuload.tune.depth import curve
from gpuload.tune.model import pipeline, predict


def report(found: Found, data: str, machine: Machine) -> str:
    """The whole page as HTML."""
    lead, *rest = summary(found)
    decoders = page.Table(
        ("decoder", "core ms a batch", "us an image"),
        [
            (name, f"{1000 * costs.decode_cpu_s:.2f}", f"{1e6 * costs.decode_cpu_s / costs.images:.0f}")
            for name, costs in ((name, run.costs(TAKES_AT_ONCE)) for name, run in found.apart.items())
        ],
        "one thread doing everything",
    )
    sections = (
        page.Section("What was found", " ".join(f"{line[0].upper()}{line[1:]}." for line in rest)),
        page.Section("Settings measured", "", page.table(rows(found))),
        page.Section("How deep", DEEP, _depths(found)),
        page.Section("How many threads", THREADS, _threads(found)),
        page.Section(
            "Where the time goes", "Bounds: " + tightest(found) + ".", page.table(where_time_goes(found.costs))
        ),
        page.Section("Decoders apart", "", page.table(decoders)),
        page.Section("What hardware would help", HELPS, _helps(found)),
        page.Section("What rate a model needs", "", page.table(appetites(found))),
        page.Section("How this was measured", conditions(found, data)),
        page.Section("On what", str(machine), pre="\n".join(f"{k:<12} {v or 'absent'}" for k, v in versions().items())),
    )
    return page.page("gpuload tune", f"{lead[0].upper()}{lead[1:]}.", sections)


DEEP = (
    "The chance that a step finds no batch ready, by the number of batches allowed ahead: simulated from the measured "
    "times. The mark is the recommendation."
)
THREADS = (
    "Predicted share of the time in which the consumer waits, for each depth and number of threads of the stage that "
    "limits. The outlined cell is the recommendation; the table above says which cells were measured."
)
HELPS = "Each by itself, with the setting that would suit it: what the model says, not a measurement."


def _depths(found: Found) -> str:
    depths = sorted({*_around(found.chosen.setting.depth, found.limits.least.depth, found.limits.most.depth)})
    flow = pipeline(found.costs, found.chosen.setting, found.limits.cores, found.verified.step_s)
    points = curve(flow, depths)
    xs = [float(point.depth) for point in points]
    content = [
        page.Curve("steps that wait", xs, [100 * point.empty for point in points], ours=True),
        page.Curve("time spent waiting", xs, [100 * point.starved for point in points]),
    ]
    return page.curves("batches ahead", "%", content, marked=float(found.chosen.setting.depth))


def _threads(found: Found) -> str:
    """Starved against depth and the threads of the stage that threads help."""
    chosen, limit = found.chosen.setting, found.limits
    fetching = limit.most.fetch_threads > 1 and found.chosen.bound.what in ("storage", "training step")
    knob = "fetch_threads" if fetching else "decode_threads"
    threads = _around(getattr(chosen, knob), getattr(limit.least, knob), getattr(limit.most, knob))
    depths = _around(chosen.depth, limit.least.depth, limit.most.depth)

    def starved(depth: int, number: int) -> float:
        setting: Setting = replace(chosen, depth=depth, **{knob: number})
        return 100 * predict(found.costs, setting, limit, found.verified.step_s).starved

    cells = [[starved(depth, number) for depth in depths] for number in threads]
    marked = (depths.index(chosen.depth), threads.index(getattr(chosen, knob)))
    return page.grid("depth", knob.replace("_", " "), depths, threads, cells, "% starved", marked=marked)


def _around(value: int, low: int, high: int) -> list[int]:
    """Halves and doubles of it within a range."""
    asked = (value // 4, value // 2, value - 1, value, value + 1, 3 * value // 2, 2 * value, 4 * value)
    return sorted({number for number in (*asked, low) if low <= number <= high})


def _helps(found: Found) -> str:
    cells = [(one.what, rate(one.images_per_s), percent(one.starved)) for one in helps(found)]
    return page.table(page.Table(("hardware", "images/s", "starved"), cells))
