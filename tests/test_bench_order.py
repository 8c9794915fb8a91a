"""What bench/order.py says of orders that are known, and that a missed bound fails the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench import order
from bench.figures import Figure
from bench.order import A_CLASS, BATCH, CLASSES, images_a_range, qualities


def test_a_data_set_in_its_own_order():
    found = {name: value for (name, _), value in qualities(np.arange(CLASSES * A_CLASS)).items()}
    assert 1 <= found["classes a batch"] < 1.3 and 0 <= found["class entropy a batch"] < 0.25
    assert found["images a range, a batch"] == BATCH and found["images a range, a window"] == 1152
    assert found["correlation of neighbours"] == pytest.approx(1) and found["ascents off"] > 1000


def test_classes_that_take_turns():
    ids = np.arange(CLASSES * A_CLASS).reshape(CLASSES, A_CLASS).T.ravel()
    found = {name: value for (name, _), value in qualities(ids).items()}
    assert found["classes a batch"] == BATCH and found["class entropy a batch"] == pytest.approx(8)
    assert found["images a range, a batch"] == 1


def test_neighbours_up_to_two_images_away_are_one_range():
    assert images_a_range(np.array([[10, 7, 13, 17]])) == 2
    assert images_a_range(np.array([[1, 2, 3, 4], [10, 20, 30, 40]])) == 8 / 5


@pytest.mark.parametrize("value, code", [(0.5, 0), (1.5, 1)])
def test_a_bound_that_is_missed_fails_the_run(value, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(order.PARTS, "cost", lambda asked: iter([Figure("a", value, "ms", 1.0), Figure("b", 9, "")]))
    assert order.main(["--only", "cost", "--json", str(tmp_path / "lines")]) == code
    assert ("MISSED" in capsys.readouterr().out) == bool(code)
    line = json.loads((tmp_path / "lines").read_text())
    assert line["figures"]["a"] == {"value": value, "unit": "ms", "above": None, "below": 1.0}
    assert line["held"] == (not code) and line["figures"]["b"]["below"] is None
