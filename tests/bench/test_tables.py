"""Pages show what was recorded: their tables are made from bench/results, lost and untimed rows included."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import tables

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_what_its_results_make_it():
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text()
        assert tables.filled(text) == text, f"{path.name}: run python -m bench.tables"
    assert set(re.findall(r"<!-- table: ([\w-]+) -->", (ROOT / "docs/benchmarks.md").read_text())) == set(tables.TABLES)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("|")]


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return tmp_path


COMMON = {
    "machine": {"cpu": "C", "cores": 2, "gpu": None}, "versions": {"torch": "2.9", "gpuload": "0.1", "commit": "abc"},
    "parameters": {"samples": 9, "size": 224, "batch_size": 4, "workers": 2, "rounds": 3, "round_images": 16,
                   "step_ms": 5.0},
}  # fmt: skip


def loader_line(name: str, at: str, images_per_s: float | None, ratio: float | None, **more: object) -> dict:
    timed = {} if images_per_s is None else {"images_per_s": [images_per_s - 1, images_per_s + 1]}
    reason = None if images_per_s is not None else "absent: pip install | it"
    return {
        "loader": name, "at": at, "images_per_s": images_per_s, "ratio_to_torch": ratio, "ranges": timed,
        "not_timed": reason, **more, **COMMON,
    }  # fmt: skip


def test_the_last_run_is_shown_with_its_losers_and_what_was_not_timed(results):
    lines = [
        loader_line("torch", "2026-01-01T00", 100.0, 1.0),
        loader_line("gpuload-native", "2026-01-01T00", 300.0, 3.0),
        loader_line("torch", "2026-01-02T00", 200.0, 1.0, wait_p99_s=0.25),
        loader_line("gpuload-native", "2026-01-02T00", 150.0, 0.75, wait_p99_s=0.5,
                    training={"waited_pct": 12.5, "step_inflation": 1.5}),
        loader_line("dali", "2026-01-02T00", None, None),
    ]  # fmt: skip
    (results / "loaders.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = cells(tables.loaders())
    assert shown[0] == ["loader", "images/s", "x torch", "p99 wait", "model waits", "step x resident"]
    assert shown[2:4] == [
        ["`torch`", "200 (199-201)", "1.00", "250 ms", "", ""],
        ["`gpuload-native`", "150 (149-151)", "0.75", "500 ms", "12.5%", "1.50"],
    ]
    assert "absent: pip install \\| it" in tables.loaders()
    history = cells(tables.history())
    assert history[0] == ["run", "torch, images/s", "`gpuload-native`", "`dali`"]
    assert history[2:] == [["2026-01-01, abc", "100", "3.00", ""], ["2026-01-02, abc", "200", "0.75", ""]]


def test_without_results_a_table_says_so(results):
    assert tables.storage() == "No run has been recorded yet.\n"


def test_a_page_is_filled_between_its_markers_and_nowhere_else(results):
    text = "a\n<!-- table: storage -->\nold\n<!-- end of table -->\nb <!-- table --> c\n"
    made = tables.filled(text)
    assert made == text.replace("old\n", "No run has been recorded yet.\n")
    assert tables.filled(made) == made
    with pytest.raises(KeyError, match="unheard-of"):
        tables.filled("<!-- table: unheard-of -->\n<!-- end of table -->")


def test_check_tells_pages_that_differ_and_writes_nothing(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "PAGES", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- table: storage -->\n<!-- end of table -->\n")
    assert tables.main(["--check"]) == 1
    assert "page.md: differs" in capsys.readouterr().out
    assert "recorded" not in page.read_text()
    assert tables.main([]) == 0
    assert "No run has been recorded" in page.read_text()
    assert tables.main(["--check"]) == 0


def test_figures_have_their_bounds_and_the_last_run_is_shown(results):
    def line(at: str, **figures: tuple) -> str:
        shown = {
            name: {"value": value, "unit": unit, "below": below} | ({} if above == "old" else {"above": above})
            for name, (value, unit, below, above) in figures.items()
        }
        return json.dumps({"figures": shown, "at": at, **COMMON}) + "\n"

    assert tables.TABLES["packing"]() == "No run has been recorded yet.\n"
    later = {
        "fast": (0.8, "x", None, 0.5), "slow": (0.4, "x", None, 0.5), "share": (5.5, "%", 5.0, None),
        "just": (5.0, "%", 5.0, "old"), "stated": (12345.0, "", None, None),
    }  # fmt: skip
    (results / "packing.jsonl").write_text(
        line("2026-01-01", gone=(1.0, "x", None, None)) + line("2026-01-02", **later)
    )
    assert cells(tables.TABLES["packing"]())[2:] == [
        ["fast", "0.8 x", "at least 0.5", ""],
        ["slow", "0.4 x", "at least 0.5", "missed"],
        ["share", "5.5 %", "at most 5", "missed"],
        ["just", "5 %", "at most 5", ""],
        ["stated", "1.234e+04", "", ""],
    ]
