"""A comparison as JSON lines, one a loader: all that is needed to read its figures years later."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from statistics import fmean
from typing import Any

from gpuload.cli.bench.machine import this_machine, versions
from gpuload.cli.bench.run import PIXEL_BOUND, Outcome, Row

KEYS = (
    "images_per_s", "first_batch_s", "starved_pct", "cpu_s_per_1000", "peak_rss_mb", "ratio_to_torch",
    "epoch_boundary_s", "wait_p99_s", "peak_device_mb",
)  # fmt: skip
COLD_KEYS = ("cold_images_per_s", "cold_first_batch_s")


def json_lines(outcome: Outcome) -> list[dict[str, Any]]:
    """The figures' medians and ranges, then what they were measured with and on."""
    comparison, setting = outcome.comparison, outcome.comparison.setting
    common = {
        "device": setting.device,
        "parameters": {
            "data": setting.data.kind,
            "samples": outcome.samples,
            "batch_size": setting.batch_size,
            "workers": setting.workers,
            "transform": comparison.transform,
            "size": setting.size,
            "rounds": outcome.rounds,
            "round_images": outcome.round_images,
            "step_ms": 1000 * outcome.step_s,
            "pixel_bound": PIXEL_BOUND,
        },
        **measured_on(),
    }
    return [{"loader": row.name, **_line(row, outcome), **common} for row in outcome.rows]


def measured_on() -> dict[str, Any]:
    """Machine, versions and time, as every line of the project's results ends."""
    return {
        "machine": asdict(this_machine()),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _line(row: Row, outcome: Outcome) -> dict[str, Any]:
    keys = (*KEYS, *(COLD_KEYS if outcome.comparison.cold else ()))
    medians = {key: row.figures[key].median if key in row.figures else None for key in keys}
    ranges = {key: [found.low, found.high] for key, found in row.figures.items()}
    return {
        **medians,
        "ranges": ranges,
        "cold_start_s": row.cold_start_s,
        "pixel_difference": row.pixel_difference,
        "worst_pixel_difference": row.worst_pixel_difference,
        "packed_s": row.packed_s or None,
        **({"still_cached": row.still_cached} if outcome.comparison.cold else {}),
        **({"training": _training(row, outcome)} if outcome.comparison.training is not None else {}),
        "not_timed": row.reason or None,
    }


def _training(row: Row, outcome: Outcome) -> dict[str, Any] | None:
    training, asked = row.training, outcome.comparison.training
    if training is None or asked is None:
        return None
    return {
        "model": asked["model"],
        "steps": len(training.steps_s),
        "waited_pct": 100 * training.waited,
        "step_ms": 1000 * fmean(training.steps_s[1:] or training.steps_s),
        "resident_step_ms": 1000 * fmean(training.resident_steps_s) if training.resident_steps_s else None,
        "step_inflation": training.inflation,
    }
