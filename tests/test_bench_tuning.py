"""What bench/tuning.py makes of its figures: bounds, the grid, and data sets that are as slow as they say."""

from __future__ import annotations

import dataclasses
import json
import threading
from argparse import Namespace

import pytest
from PIL import Image

from bench import tuning
from bench.tuning import PIPELINES, Made, Row, grid
from gpuload.core.setting import Setting
from gpuload.tune.limits import Limits

GOOD = Row(
    "slow storage", "2 ms", "a setting", predicted=1000, verified=1100, first_guess=1000, first_measured=900,
    online=960,
    online_setting="b", best_fixed=1000, best_setting="c", settings_tried=9, starved_30ms=0.005, step_30ms="d",
    feedable=True,
)  # fmt: skip


@pytest.mark.parametrize(
    "change, missed",
    [
        ({}, []),
        ({"predicted": 1300}, ["predicted +18%"]),
        ({"online": 940}, ["online 0.94 of the best"]),
        ({"starved_30ms": 0.02}, ["starved 2.0%"]),
        ({"starved_30ms": 0.5, "feedable": False}, []),
    ],
)
def test_a_bound_that_is_missed_is_named_and_fails_the_run(change, missed, monkeypatch, tmp_path, capsys):
    row = dataclasses.replace(GOOD, **change)
    assert row.missed == missed
    monkeypatch.setattr(tuning, "in_processes", lambda names, asked: iter([row]))
    code = tuning.main(["--only", "slow storage", "--json", str(tmp_path / "lines")])
    assert code == bool(missed) and ("MISSED" in capsys.readouterr().out) == bool(missed)
    line = json.loads((tmp_path / "lines").read_text())
    assert line["missed"] == missed and line["predicted"] == row.predicted and line["machine"]["cores"] >= 1


def test_each_pipeline_is_run_in_a_process_that_answers_with_its_row(monkeypatch):
    answer = json.dumps(dataclasses.asdict(GOOD))
    monkeypatch.setattr(
        tuning.subprocess, "run", lambda command, **more: Namespace(returncode=0, stdout=f"noise\n{answer}\n")
    )
    assert list(tuning.in_processes(["slow storage"], Namespace(seconds=1.0, photos=""))) == [GOOD]


def test_there_are_twelve_pipelines_and_an_unknown_one_is_told(capsys):
    assert len(PIPELINES) >= 12
    with pytest.raises(SystemExit):
        tuning.main(["--only", "nonsense"])
    assert "no pipeline nonsense" in capsys.readouterr().err


def test_the_grid_is_within_limits():
    allowed = Limits(Setting(2, 1, 2), Setting(8, 4, 6), 2)
    found = grid(allowed)
    assert len(found) == len(set(found)) >= 6 and all(allowed.clipped(setting) == setting for setting in found)


def test_a_link_lets_so_many_read_at_once(monkeypatch):
    data, inside, most = Made((16, 16), out=0, latency_s=0.001, link=2), [], []

    def sleep(seconds: float) -> None:
        inside.append(threading.get_ident())
        most.append(len(inside))
        gate.wait(0.05)
        inside.pop()

    gate = threading.Event()
    monkeypatch.setattr(tuning.time, "sleep", sleep)
    readers = [threading.Thread(target=data.get_encoded, args=(n,)) for n in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(most) == 6 and max(most) == 2


def test_storage_becomes_slow_when_it_is_told_to(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(tuning.time, "sleep", slept.append)
    data = Made((16, 16), out=0, latency_s=0.5, slow_from=2)
    for _ in range(4):
        image, _ = data.get_encoded(0)
    assert slept == [0.5, 0.5]
    assert data.transform(Image.new("RGB", (16, 16))).shape == (3, 16, 16) and image.data == data.data
