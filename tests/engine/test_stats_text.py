from __future__ import annotations

import pytest

from gpuload.core.wording import counts, percent, rate, size
from gpuload.engine.stats import StageStats, Stats


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
        stages=(StageStats("fetch", 2, 5120, 0.5, 4.0, 563_000_000), StageStats("decode", 8, 5120, 5.12, 1.0)),
        decoders={"pillow": 120, "dali": 5000},
        errors={"UnidentifiedImageError": 2},
        error_file="/tmp/errors.jsonl",
        gpu_utilisation=0.93,
        gpu_memory_bytes=20_000_000_000,
    )
    text = str(stats)
    assert text.splitlines()[0] == "gpuload epoch 3 (accelerated): 5120 images in 2.75 s, 1862 images/s, starved 0.4%"
    decode = next(line for line in text.splitlines() if line.startswith("decode "))
    assert decode.split() == ["decode", "8", "5120", "5.12", "s", "1.00", "s", "1000", "-"]
    assert "first batch 0.04 s   ready 4   in flight 12.3 MB" in text
    assert "GPU busy 93%   GPU memory 20.0 GB" in text
    assert "dali 5000, pillow 120" in text
    assert "UnidentifiedImageError 2   listed in /tmp/errors.jsonl" in text
    assert text.isascii()


def test_text_before_the_first_batch_has_no_stages_and_no_errors():
    text = str(Stats(path="torch"))
    assert text.splitlines() == [
        "gpuload epoch 0 (torch): 0 images in 0.00 s, 0.00 images/s, starved 0.0%",
        "first batch not yet   ready 0   in flight 0 B",
    ]


def test_stage_names_longer_than_the_column_keep_the_columns_aligned():
    stages = (StageStats("a name that is rather long", 1, 3, 0.5, 0.25, 10), StageStats("x", 1, 0, 0.0, 0.0))
    rows = str(Stats(path="accelerated", stages=stages)).splitlines()[2:]
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
