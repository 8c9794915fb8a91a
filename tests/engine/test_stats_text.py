from __future__ import annotations

from dataclasses import replace

import pytest

from gpuload.core.wording import counts, percent, rate, size
from gpuload.engine.stats import Quantiles, StageStats, Stats, milliseconds

DECODE = StageStats("decode", 8, 5120, 5.12, 1.0, tasks=640, cpu_s=5.0, p50_s=0.008, p99_s=0.012, queue=13.2, empty=0.5)


def test_text_says_rate_starvation_stages_and_errors():
    stats = Stats(
        path="accelerated",
        epoch=3,
        elapsed_s=2.75,
        images=5120,
        batches=80,
        images_per_s=1861.8,
        first_batch_s=0.04,
        starved=0.004,
        ready=4,
        bytes_in_flight=12_300_000,
        stages=(StageStats("fetch", 2, 5120, 0.5, 4.0, 563_000_000), DECODE),
        wait_s=Quantiles(0.00025, 0.001, 0.005, 0.009),
        step_s=Quantiles(0.03, 0.03, 0.03, 0.03),
        decoders={"pillow": 120, "dali": 5000},
        errors={"UnidentifiedImageError": 2},
        error_file="/tmp/errors.jsonl",
        gpu_utilisation=0.93,
        gpu_memory_bytes=20_000_000_000,
        gpu_in_bytes_per_s=1.5e9,
        gpu_out_bytes_per_s=2e6,
    )
    text = str(stats)
    assert text.splitlines()[0] == "gpuload epoch 3 (accelerated): 5120 images in 2.75 s, 1862 images/s, starved 0.4%"
    fetch, decode = (
        next(line.split() for line in text.splitlines() if line.startswith(s)) for s in ("fetch ", "decode ")
    )
    assert decode == ["decode", "8", "5120", "5.12", "s", "1.00", "s", "1000", "8.0", "ms", "12", "ms", "13.2", "-"]
    assert fetch[-5:] == ["-", "-", "0.0", "563.0", "MB"]
    assert "a batch's wait p50 0.25 ms, p99 5.0 ms, most 9.0 ms   a step p50 30 ms" in text
    assert "first batch 0.04 s   ready 4   in flight 12.3 MB" in text
    assert "GPU busy 93%   GPU memory 20.0 GB   PCIe 1.5 GB/s in, 2.0 MB/s out" in text
    assert "dali 5000, pillow 120" in text
    assert "UnidentifiedImageError 2   listed in /tmp/errors.jsonl" in text
    assert text.isascii()


def test_text_before_the_first_batch_has_no_stages_and_no_errors():
    text = str(Stats(path="torch"))
    assert text.splitlines() == [
        "gpuload epoch 0 (torch): 0 images in 0.00 s, 0.00 images/s, starved 0.0%",
        "too early to say what limits: 0 batches in 0.00 s",
        "first batch not yet   ready 0   in flight 0 B",
    ]


def test_stage_names_longer_than_the_column_keep_the_columns_aligned():
    stages = (StageStats("a name that is rather long", 1, 3, 0.5, 0.25, 10), StageStats("x", 1, 0, 0.0, 0.0))
    rows = str(Stats(path="accelerated", stages=stages)).splitlines()[3:]
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize(
    ("value", "text"), [(0.523, "0.52"), (9.84, "9.8"), (99.6, "100"), (1843.2, "1843"), (0.0, "0.00")]
)
def test_rates_have_digits_that_mean_something(value, text):
    assert rate(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.004, "0.4%"), (0.0996, "10%"), (0.234, "23%"), (1.0, "100%")])
def test_percentages(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(999, "999 B"), (12_300_000, "12.3 MB"), (2.5e15, "2500.0 TB")])
def test_sizes(value, text):
    assert size(value) == text


def test_counts_put_the_most_frequent_first_and_ties_by_name():
    assert counts({"b": 1, "a": 1, "c": 7}) == "c 7, a 1, b 1"


def test_scalars_are_flat_numbers_of_what_is_known():
    stats = Stats("accelerated", elapsed_s=2.0, images=64, batches=8, images_per_s=32.0, errors={"OSError": 2, "E": 1})
    known = stats.scalars()
    assert known["gpuload/images_per_s"] == 32 and known["gpuload/errors"] == 3
    assert not any("gpu_util" in name or "wait" in name or "first" in name for name in known)
    stages = (
        StageStats("fetch", 2, busy_s=3.0, thread_s=4.0, queue=1.5),
        replace(DECODE, thread_s=16.0),
        StageStats("finish", busy_s=2.0),
    )
    more = replace(stats, stages=stages, wait_s=Quantiles(1, 2, 3, 4), gpu_utilisation=0.5).scalars(prefix="")
    assert (more["fetch/busy"], more["fetch/queue"], more["decode/p99_s"]) == (0.75, 1.5, 0.012)
    assert more["decode/busy"] == pytest.approx((5.12 + 2.0) / (8 * 2.0))  # its threads finish, too
    assert (more["wait_p50_s"], more["wait_p99_s"], more["gpu_utilisation"]) == (1, 3, 0.5)
    assert "finish/busy" not in more and all(type(value) is float for value in more.values())


@pytest.mark.parametrize(("value", "text"), [(0.00005, "0.05 ms"), (0.0061, "6.1 ms"), (1.2, "1200 ms")])
def test_milliseconds(value, text):
    assert milliseconds(value) == text
