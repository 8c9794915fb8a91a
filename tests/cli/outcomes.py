"""Comparisons that never ran: rows with given figures, for what draws and reckons with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import DataKind
from gpuload.cli.bench.measure import Epoch, Spread
from gpuload.cli.bench.run import Comparison, Outcome, Row
from gpuload.cli.bench.training import Training

FIGURES = {
    "images_per_s": 500.0, "first_batch_s": 0.2, "epoch_boundary_s": 0.25, "starved_pct": 19.0, "cpu_s_per_1000": 3.0,
    "wait_p99_s": 0.3, "peak_rss_mb": 700.0, "peak_device_mb": 0.0, "ratio_to_torch": 1.0,
}  # fmt: skip


def row(name: str, figures: Mapping[str, float] = FIGURES, **fields: Any) -> Row:
    """A timed row; every figure's range is 10% to both sides."""
    spreads = {key: Spread(value, 0.9 * value, 1.1 * value) for key, value in figures.items()}
    return Row(name, figures=spreads, **{"pixel_difference": 0.0, "cold_start_s": 2.5, **fields})


def faster(times: float, **figures: float) -> dict[str, float]:
    """FIGURES of a loader that makes `times` the images in the time, and with that share of the CPU seconds."""
    return {
        **FIGURES, "images_per_s": 500 * times, "ratio_to_torch": times, "cpu_s_per_1000": 3 / times,
        "starved_pct": 19 / times, **figures,
    }  # fmt: skip


def training(waited_s: float, step_s: float, resident_s: float) -> Training:
    waits_s, steps_s = [waited_s] * 10, [step_s] * 10
    return Training(waits_s, steps_s, [2.0] * 10, [(i + 1) * (waited_s + step_s) for i in range(10)], [resident_s] * 5)


def outcome(rows: Sequence[Row], device: str = "cpu", **comparison: Any) -> Outcome:
    setting = subjects.Setting(DataKind("flat", "photos"), device, 2, 64)
    stepped = Epoch(0.0, [0.1, 0.2, 0.3], [0.1, 0.0, 0.0], [64] * 3, 0.4)
    made = Comparison(setting, [row.name for row in rows], **comparison)
    return Outcome(made, 334, 5, 1792, 0.08, [replace(row, stepped=stepped) for row in rows])


def everything(device: str = "cpu") -> Outcome:
    """All that a run can show: cold rows, a model, packed peers, one that is absent, one that failed to train."""
    cold = {"cold_images_per_s": 400.0, "cold_first_batch_s": 0.5}
    rows = [
        row("torch", {**FIGURES, **cold}, training=training(0.2, 0.1, 0.05), still_cached=0.0),
        row("gpuload-native", {**faster(5.0), **cold}, training=training(0.0, 0.06, 0.05), still_cached=0.0,
            plan="1 read\n2 decode <jpeg>"),
        row("webdataset", {**faster(0.8), **cold}, not_trained="RuntimeError: a <b> & c", packed_s=3.2),
        Row("dali", "absent: pip install 'gpuload[dali]'"),
    ]  # fmt: skip
    return outcome(rows, device, cold=True, training={"model": "tiny", "steps": 10})
