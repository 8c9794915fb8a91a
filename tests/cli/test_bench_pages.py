"""What a comparison shows: columns for any terminal, sentences, the page with CPU against GPU."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpuload.cli.bench import table
from gpuload.cli.bench.lines import json_lines
from gpuload.cli.bench.pages import report
from gpuload.cli.bench.preprocessing import Prices, duel
from tests.cli.outcomes import FIGURES, everything, faster, outcome, row
from tests.report.browser import CHROMIUM, DESKTOP, PHONE, look


def shown(width: int, of=None) -> str:
    out = io.StringIO()
    table.show(of or everything(), Console(file=out, width=width, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 110, 200])
def test_the_table_fits_any_terminal_and_always_has_names_and_rates(width):
    text = shown(width)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    if width >= 40:
        assert lines[0].split()[:2] == ["loader", "images/s"]
        assert "2500 (2250-2750)" in text
    assert ("pixels" in lines[0]) is (width == 200)


def test_wider_terminals_show_more_columns_in_the_same_order():
    heads = [[column.head for column in table.that_fit(everything(), width)] for width in range(10, 240)]
    everyone = [column.head for column in table.columns(everything())]
    for narrow, wide in zip(heads, heads[1:], strict=False):
        assert set(narrow) <= set(wide)
    assert heads[-1] == everyone
    assert "GPU MB" not in everyone  # nothing stands in it


def test_rows_without_figures_and_trainings_that_failed_say_why():
    text = " ".join(shown(100).split())
    assert "dali: absent: pip install 'gpuload[dali]'" in text
    assert "webdataset, training: RuntimeError: a <b> & c" in text
    assert "webdataset read shards of their own format" in text and "(3.2 s)" in text


def test_a_file_that_stays_in_the_page_cache_is_not_called_cold():
    cold = {**FIGURES, "cold_images_per_s": 400.0, "cold_first_batch_s": 0.5}
    warm = outcome([row("torch", cold, still_cached=0.9)], cold=True)
    text = " ".join(shown(100, warm).split())
    assert "still cached" in text
    assert "Cold: not measured; 90% of the files looked at stayed" in text
    unknown = outcome([row("torch", cold, still_cached=None)], cold=True)
    assert "does not say whether files left the page cache" in " ".join(shown(100, unknown).split())
    assert "after the files have left the page cache" not in report([warm], None, Prices())


def test_lines_hold_what_was_asked_for_and_nothing_else():
    lines = {line["loader"]: line for line in json_lines(everything())}
    assert lines["torch"]["training"]["step_inflation"] == pytest.approx(2.0)
    assert lines["torch"]["training"]["waited_pct"] == pytest.approx(100 * 2 / 3)
    assert lines["webdataset"]["training"] is None and lines["webdataset"]["packed_s"] == 3.2
    assert lines["torch"]["cold_images_per_s"] == 400.0
    assert lines["dali"]["images_per_s"] is None and lines["dali"]["not_timed"].startswith("absent")
    plain = json_lines(outcome([row("torch")]))[0]
    assert not {"training", "still_cached", "cold_images_per_s"} & set(plain)


def a_page(gpu=None) -> str:
    cpu = everything()
    outcomes = [cpu] if gpu is None else [cpu, gpu]
    return report(outcomes, duel(cpu, gpu), Prices(0.04, 3.0))


def test_without_a_gpu_its_half_is_a_prediction_and_says_so():
    page = a_page()
    assert "GPU (predicted)" in page
    assert "not measured" in page
    assert "cost, million images" in page
    assert "cost, million images" not in report([everything()], duel(everything(), None), Prices())


def test_with_a_gpu_its_half_is_measured():
    gpu = outcome([row("torch"), row("gpuload-native", faster(20.0, cpu_s_per_1000=0.06))], "cuda")
    page = a_page(gpu)
    assert "GPU (predicted)" not in page
    assert "All figures on the GPU" in page
    assert "10000" in page  # 20 times torch's 500


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install the package chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_fits_is_readable_and_logs_nothing(tmp_path, width, dark):
    seen = look(a_page(), tmp_path, width=width, dark=dark)
    assert seen.log == []
    assert seen.width <= seen.window == width
    assert [(words, round(contrast, 2)) for words, contrast in seen.texts if contrast < 4.5] == []
    assert [box for box in seen.boxes if box[1] < -1 or box[2] > seen.window + 1] == []
