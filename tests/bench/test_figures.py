"""What benchmarks with bounds print and keep, and when their exit code says that a bound was missed."""

from __future__ import annotations

import argparse
import json

import pytest

from bench.figures import Figure, run


@pytest.mark.parametrize(
    ("figure", "held", "said"),
    [
        (Figure("a", 2.0, "x"), True, "2 x"),
        (Figure("a", 2.0, "x", above=2.0), True, "(floor: 2)"),
        (Figure("a", 1.9, "x", above=2.0), False, "(floor: 2, MISSED)"),
        (Figure("a", 2.0, "ms", 2.0), True, "(ceiling: 2)"),
        (Figure("a", 2.1, "ms", below=2.0), False, "(ceiling: 2, MISSED)"),
        (Figure("a", 2.1, "ms", below=3.0, above=2.2), False, "(floor: 2.2, ceiling: 3, MISSED)"),
    ],
)
def test_bounds_hold_up_to_their_value(figure, held, said):
    assert figure.held == held and str(figure).endswith(said)


def parts(value: float) -> dict:
    return {
        "one": lambda asked: iter([Figure(f"{asked.rounds} rounds", value, "x", above=1.0)]),
        "two": lambda asked: iter([Figure("two", 2.0, "s")]),
    }


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (0.9, 1)])
def test_figures_are_printed_and_kept_and_a_missed_bound_fails_the_run(tmp_path, capsys, value, code):
    path = tmp_path / "lines.jsonl"
    for _ in range(2):
        assert run(argparse.ArgumentParser(), parts(value), ["--json", str(path)], rounds=7) == code
    first, second = map(json.loads, path.read_text().splitlines())
    for line in (first, second):
        assert line["figures"] == {
            "7 rounds": {"value": value, "unit": "x", "above": 1.0, "below": None},
            "two": {"value": 2.0, "unit": "s", "above": None, "below": None},
        }
        assert line["held"] == (not code) and line["machine"]["cores"] > 0 and line["versions"]["numpy"]
    assert ("MISSED" in capsys.readouterr().out) == bool(code)


def test_only_what_is_asked_for_runs(capsys):
    assert run(argparse.ArgumentParser(), parts(0.0), ["--only", " two"], rounds=7) == 0
    assert "rounds" not in capsys.readouterr().out
    for wrong in (["--only", "three"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            run(argparse.ArgumentParser(), parts(1.0), wrong, rounds=7)
