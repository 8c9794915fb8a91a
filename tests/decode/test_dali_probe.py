"""What is asked of DALI on a GPU and what follows from the answers; the questions are run on DALI's CPU operators."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpuload.core.errors import ConfigError, MissingDependencyError
from gpuload.decode import dali_probe
from gpuload.decode.dali_pipeline import DaliSettings
from gpuload.decode.dali_probe import (
    LOADS,
    Answer,
    Card,
    Remembered,
    ask,
    card,
    check,
    dali_settings,
    distance,
    fastest,
)
from gpuload.decode.jpeg_header import read_header

H200 = Card("NVIDIA H200", "580.65.06", 13000)
GOOD = {
    "decode": Answer({"same": True, "distance": 0.42}),
    "regions": Answer({"same": True, "distance": 0.1}),
    "hardware": Answer({"same": True}),
    "speed": Answer({"rates": [1000.0, 1400.0, 1900.0, 1800.0, 1200.0]}),
}
NO = Answer(None, "its process ended with code -11. Segmentation fault")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpuload" / "dali"


@pytest.fixture
def here(cache, monkeypatch):
    """An H200 with a DALI of CUDA 12 that answers as told. asked: each question, with its arguments."""
    told = SimpleNamespace(answers=dict(GOOD), asked=[])

    def answer(question, index, threads, *arguments):
        told.asked.append((question, index, threads, *arguments))
        return told.answers[question]

    monkeypatch.setitem(sys.modules, "nvidia", SimpleNamespace())
    dali = SimpleNamespace(__cuda_version__="12090", __version__="2.4.0")
    monkeypatch.setitem(sys.modules, "nvidia.dali", dali)
    monkeypatch.setattr(sys.modules["nvidia"], "dali", dali, raising=False)
    monkeypatch.setattr(dali_probe, "card", lambda index: H200)
    monkeypatch.setattr(dali_probe, "ask", answer)
    return told


def test_everything_well_means_regions_and_the_fastest_load(here):
    assert dali_settings(1, 8) == DaliSettings(True, 0.5, 0.42)
    assert here.asked == [("decode", 1, 8), ("regions", 1, 8), ("hardware", 1, 8), ("speed", 1, 8, "regions")]


@pytest.mark.parametrize(
    "answer", [NO, Answer({"same": False, "distance": 0.1}), Answer({"same": True, "distance": 9.0})]
)
def test_regions_that_crash_or_are_wrong_are_not_decoded(here, answer):
    here.answers["regions"] = answer
    assert dali_settings(0, 8) == DaliSettings(False, 0.5, 0.42)
    assert here.asked[-1] == ("speed", 0, 8, "whole")


@pytest.mark.parametrize("answer", [NO, Answer({"same": False})])
def test_engines_whose_pixels_differ_are_off_and_not_timed(here, answer):
    here.answers["hardware"] = answer
    assert dali_settings(0, 8) == DaliSettings(True, 0.0, 0.42)
    assert "speed" not in [question for question, *_ in here.asked]


@pytest.mark.parametrize(
    "answer", [NO, Answer({"same": False, "distance": 0.4}), Answer({"same": True, "distance": 31.0})]
)
def test_a_gpu_on_which_dali_decodes_wrongly_is_refused(here, answer):
    here.answers["decode"] = answer
    with pytest.raises(ConfigError, match=r'NVIDIA H200 \(driver 580.65.06\).*decoder="native"'):
        dali_settings(0, 8)


def test_answers_are_asked_for_once_and_the_load_once_for_each_number_of_threads(here, cache):
    first = dali_settings(0, 8)
    del here.asked[:]
    here.answers["speed"] = Answer({"rates": [9.0, 1.0, 1.0, 1.0, 1.0]})
    assert dali_settings(0, 8) == first and here.asked == []
    assert dali_settings(0, 4) == DaliSettings(True, 0.0, 0.42) and here.asked == [("speed", 0, 4, "regions")]
    assert [path.name for path in cache.iterdir()] == ["NVIDIA-H200-580.65.06-2.4.0.json"]


def test_a_crash_is_remembered_and_a_time_out_is_not(here):
    here.answers["regions"] = NO
    here.answers["hardware"] = Answer(None, "it took more than 90 s", lasting=False)
    for _ in range(2):
        assert dali_settings(0, 8) == DaliSettings(False, 0.0, 0.42)
    assert [question for question, *_ in here.asked] == ["decode", "regions", "hardware", "hardware"]


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"decode": 3}'])
def test_a_damaged_file_of_answers_is_asked_anew(here, cache, damage):
    first = dali_settings(0, 8)
    (file,) = cache.iterdir()
    file.write_text(damage)
    del here.asked[:]
    assert dali_settings(0, 8) == first
    assert len(here.asked) == 4
    assert set(json.loads(file.read_text())) == {"decode", "regions", "hardware", "speed regions 8 threads"}


def test_where_nothing_can_be_written_it_is_asked_each_time(here, tmp_path):
    (tmp_path / "gpuload").write_text("a file where the folder should be")
    assert dali_settings(0, 8) == dali_settings(0, 8)
    assert len(here.asked) == 8


@pytest.mark.parametrize(
    ("rates", "load"),
    [
        ([100.0, 90.0, 80.0, 70.0, 60.0], 0.0),
        ([100.0, 102.0, 101.0, 70.0, 60.0], 0.0),  # noise
        ([100.0, 120.0, 150.0, 140.0, 60.0], 0.5),
        ([100.0, 104.0, 105.0, 106.0, 170.0], 0.8),
    ],
)
def test_the_engines_are_used_only_where_they_gain(rates, load):
    assert fastest(rates) == load and load in LOADS


def test_errors_say_what_to_install():
    assert check(H200, 0, 12090) is H200 and check(H200, 0, 13000) is H200
    with pytest.raises(ConfigError, match=r"no NVIDIA driver.*nvidia-smi"):
        check(None, 3, 12090)
    old = Card("NVIDIA A100", "535.104.05", 12020)
    assert check(old, 0, 12090) is old  # minor versions are compatible
    with pytest.raises(ConfigError, match=r"CUDA 13, but driver 535.104.05 runs CUDA 12.*gpuload\[cuda12\]"):
        check(old, 0, 13000)


def test_without_dali_the_error_names_the_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingDependencyError, match=r"gpuload\[cuda13\].*gpuload\[cuda12\]"):
        dali_settings(0, 8)


def test_a_gpu_that_is_not_there_has_no_card():
    assert card(4711) is None


@pytest.mark.gpu
def test_the_cards_name_is_torchs():
    import torch

    assert card(0).name == torch.cuda.get_device_properties(0).name
    assert card(0).cuda >= 12000


@pytest.fixture
def question_file(tmp_path, monkeypatch):
    """Makes `ask` run this code in its process instead."""

    def of(code: str) -> None:
        (tmp_path / "stand_in.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(dali_probe, "_MODULE", "stand_in")

    return of


def test_a_process_that_answers(question_file):
    question_file("import sys\nprint('a warning')\nprint('{\"told\": \"%s\"}' % ' '.join(sys.argv[1:]))")
    assert ask("speed", None, 3, "1") == Answer({"told": "speed cpu 3 1"})
    assert ask("decode", 2, 3) == Answer({"told": "decode 2 3"})


def test_a_process_that_crashes(question_file):
    question_file(
        "import os, sys\nprint('{}', flush=True)\nprint('nvImageCodec fell', file=sys.stderr, flush=True)\nos.abort()"
    )
    found = ask("regions", 0, 2)
    assert found.values is None and found.lasting
    assert "code -6" in found.why and "nvImageCodec fell" in found.why


@pytest.mark.parametrize("code", ["", "raise MemoryError('the GPU is full')"])
def test_a_process_that_says_nothing_or_an_error_may_say_more_another_time(question_file, code):
    question_file(code)
    found = ask("regions", 0, 2)
    assert found.values is None and not found.lasting
    assert not code or "MemoryError: the GPU is full" in found.why


def test_a_process_that_hangs(question_file):
    question_file("import time\ntime.sleep(600)")
    found = ask("hardware", 0, 2, limit_s=0.3)
    assert found.values is None and not found.lasting and "more than" in found.why


def test_generated_photographs_are_of_every_kind():
    headers = [read_header(jpeg) for jpeg in dali_probe.photographs(24, side=90)]
    assert {header.subsampling for header in headers} == {(1, 1), (2, 2), (2, 1)}
    assert {header.kind for header in headers} == {"baseline", "progressive"}
    assert {header.color for header in headers} == {"grey", "ycbcr"}
    assert len({(header.width, header.height) for header in headers}) > 20


def test_distance_is_the_mean_over_all_values():
    one = [np.zeros((2, 3, 3), np.uint8), np.full((4, 4, 3), 255, np.uint8)]
    other = [np.full((2, 3, 3), 2, np.uint8), np.full((4, 4, 3), 250, np.uint8)]
    assert distance(one, one) == 0
    assert distance(one, other) == pytest.approx((18 * 2 + 48 * 5) / 66)
    assert distance(one, [*other[::-1]]) == float("inf")


@pytest.mark.full
@pytest.mark.parametrize("question", ["decode", "regions", "hardware"])
def test_the_questions_on_dalis_cpu_operators(question):
    """In their own processes, as on a GPU: all pixels are the same there, whole or cut, in any company."""
    found = ask(question, None, 2)
    assert found.values is not None, found.why
    assert found.values == ({"same": True} if question == "hardware" else {"same": True, "distance": 0.0})


@pytest.mark.full
def test_the_question_of_speed_on_dalis_cpu_operators(monkeypatch):
    for name, few in (("IMAGES", 4), ("ROWS", 4), ("ROUNDS", 1)):
        monkeypatch.setattr(dali_probe, name, few)
    found = dali_probe._speed(dali_probe.Trial(None, 1), True)
    assert len(found["rates"]) == len(LOADS) and min(found["rates"]) > 0


@pytest.mark.full
def test_a_probe_notices_pixels_that_depend_on_their_company(monkeypatch):
    """What the engines would do if DALI shared them out by place: the last image of a run is one level brighter."""
    monkeypatch.setattr(dali_probe, "IMAGES", 6)
    trial = dali_probe.Trial(None, 1)
    pipeline = trial.pipeline(DaliSettings())
    assert len(trial.in_any_order(pipeline, trial.whole())) == 1
    images = trial.images

    def depending(pipeline, planned, order=None):
        found = images(pipeline, planned, order)
        found[0 if order is None else order[-1]] ^= 1
        return found

    monkeypatch.setattr(trial, "images", depending)
    assert len(trial.in_any_order(pipeline, trial.whole())) > 1


@pytest.mark.full
@pytest.mark.skipif(card(0) is not None, reason="there is a GPU")
def test_without_a_gpu_dali_settings_says_so(cache):
    with pytest.raises(ConfigError, match="no NVIDIA driver"):
        dali_settings(0, 2)
    assert not cache.exists()


def test_remembered_answers_are_of_one_gpu_driver_and_dali(here, cache):
    for what in ("NVIDIA H200 580.65 2.4.0", "NVIDIA H200 580.65 2.5.0", "NVIDIA B200 580.65 2.4.0"):
        assert Remembered(what).answer("decode", 0, 1) == GOOD["decode"]
    assert len(here.asked) == len(list(cache.iterdir())) == 3
