"""`gpuload tune`: the search in a world of events, a script under a clock, what is said and written, bad input."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from gpuload.cli.bench.machine import this_machine
from gpuload.cli.main import app
from gpuload.cli.tune.command import as_json, show, tune
from gpuload.cli.tune.consumer import TAKES_AT_ONCE, Consumer, timed
from gpuload.cli.tune.measure import Endless
from gpuload.cli.tune.page import report
from gpuload.cli.tune.script import LEAST_STEPS, WARM_UP, watch
from gpuload.cli.tune.wording import appetites, helps, summary
from gpuload.core.errors import ConfigError, GpuloadError
from gpuload.core.setting import Setting
from gpuload.tune.settings_file import load_setting
from tests.cli.tune_world import BATCH_BYTES, TunedWorld, found_in

# The search


WORLDS = {
    "fed": (TunedWorld(0.002, 0.01), 20.0),
    "slow storage": (TunedWorld(0.08, 0.01), 12.0),
    "full link": (TunedWorld(0.03, 0.005, link=4), 5.0),
    "slow decode": (TunedWorld(0.002, 0.1), 30.0),
    "only takes": (TunedWorld(0.05, 0.02), 0.0),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_recommendation_is_confirmed_and_near_the_best_of_a_grid(name, monkeypatch):
    world, step_ms = WORLDS[name]
    found = found_in(world, monkeypatch, step_ms=step_ms)
    assert found.confirmed and found.limits.clipped(found.chosen.setting) == found.chosen.setting
    grid = itertools.product((2, 4, 8, 16, 32), (2, 4), (2, 4, 8, 16, 40))
    # two of its threads compute on two cores: more would share them, which single events do not show
    best = max(world.run(Setting(f, 2, d), found.consumer, seconds=1).images_per_s for f, _, d in grid)
    assert found.verified.images_per_s >= 0.95 * best


def test_what_was_measured_with_too_few_threads_is_not_recommended(monkeypatch):
    found = found_in(TunedWorld(0.08, 0.005), monkeypatch, step_ms=12)
    assert found.rounds[0].run.starved > 0.5 and found.verified.starved < 0.02
    assert found.chosen.setting.fetch_threads >= 7


def test_memory_bounds_the_depth(monkeypatch):
    world = TunedWorld(0.08, 0.01)
    found = found_in(world, monkeypatch, step_ms=12, memory_bytes=5 * BATCH_BYTES)
    assert found.limits.most.depth == 5 and found.chosen.setting.depth <= 5


def test_a_setting_is_measured_once_but_for_its_verification(monkeypatch):
    world = TunedWorld(0.08, 0.01)
    found = found_in(world, monkeypatch, step_ms=12)
    measured = [one.run.setting for one in found.rounds]
    assert len(set(measured)) == len(measured) <= 5 and found.verified is not found.rounds[-1].run


# What is said of it


def test_a_fed_consumer_is_told_that_nothing_would_help(monkeypatch):
    told = " ".join(summary(found_in(TunedWorld(0.002, 0.01), monkeypatch, step_ms=20)))
    assert "confirmed" in told and "NOT" not in told and "would bring nothing" in told


def test_what_would_help_is_the_stage_that_limits(monkeypatch):
    slow = found_in(TunedWorld(0.002, 0.1), monkeypatch, step_ms=10)
    by_name = {one.what: one.images_per_s for one in helps(slow)}
    assert by_name["4 cores"] == pytest.approx(2 * by_name["as it is"], rel=0.1)
    assert by_name["storage twice as fast"] == pytest.approx(by_name["as it is"], rel=0.02)
    assert "cores" in summary(slow)[2] and "would help most" in summary(slow)[-1]


def test_cores_that_a_model_needs_are_its_rate_times_the_cpu_seconds_of_an_image(monkeypatch):
    found = found_in(TunedWorld(0.002, 0.1), monkeypatch, step_ms=10)
    row = appetites(found).rows[0]
    each_s = found.apart["native"].costs(TAKES_AT_ONCE).cpu_s / 32
    assert row[2] == f"{7000 * each_s:.1f} to {9000 * each_s:.1f}"
    assert appetites(found).rows[-1][0].startswith("yours")


def test_page_terminal_and_json_say_the_same(monkeypatch):
    found = found_in(TunedWorld(0.08, 0.01), monkeypatch, step_ms=12)
    text = report(found, "<photos>", this_machine())
    assert "&lt;photos&gt;" in text and "<photos>" not in text
    assert f'class="marked" title="depth {found.chosen.setting.depth}, fetch threads ' in text
    out = io.StringIO()
    show(found, "photos", Console(file=out, width=100))
    line = summary(found)[1]
    assert line.split(";")[0] in out.getvalue() and line in text.replace("Predicted", "predicted")
    data = json.loads(json.dumps(as_json(found, "photos", 334, 32)))
    assert data["setting"]["depth"] == found.chosen.setting.depth and data["confirmed"] is True
    assert len(data["rounds"]) == len(found.rounds)


@pytest.mark.full
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_readable_on_phone_and_desktop(dark, monkeypatch, tmp_path):
    from tests.report.browser import CHROMIUM, DESKTOP, PHONE, look

    if CHROMIUM is None:
        pytest.skip("no Chromium: install the package chromium")
    text = report(found_in(TunedWorld(0.08, 0.01), monkeypatch, step_ms=12), "photos", this_machine())
    for width in (PHONE, DESKTOP):
        seen = look(text, tmp_path, width=width, dark=dark)
        assert seen.log == [] and seen.dark is dark and seen.width <= seen.window == width
        assert [words for words, contrast in seen.texts if contrast < 4.5] == [] and len(seen.texts) > 100
        assert [box for box in seen.boxes if box[1] < -1 or box[2] > seen.window + 1] == []


# A script under a clock


def script(folder: Path, body: str) -> str:
    path = folder / "train it.py"
    path.write_text(
        "import sys, time\nfrom torch.utils.data import DataLoader\n"
        "class Data:\n    def __len__(self): return 4000\n    def __getitem__(self, i): return i\n" + body
    )
    return f"'{path}'"


def test_a_scripts_steps_are_recorded_and_it_is_stopped(tmp_path):
    body = (
        "assert sys.argv[1:] == ['--fast', 'a b'] and __name__ == '__main__'\n"
        "list(DataLoader(range(8), 4))\n"  # another loader, of few batches
        "while True:\n"
        "    try:\n"
        "        for batch in DataLoader(Data(), 16):\n            time.sleep(0.01)\n"
        "    except Exception: pass\n"
    )
    found = watch(script(tmp_path, body) + " --fast 'a b'", steps=30, limit_s=60)
    assert found.batch_size == 16 and len(found.consumer.steps_s) == 30
    assert all(step_s >= 0.01 for step_s in found.consumer.steps_s) and 0 <= found.consumer.cpu_s < 0.01
    assert "train it.py: 30 steps" in found.consumer.what


def test_gpuloads_loader_is_watched_as_torchs_and_over_its_epochs(tmp_path):
    body = (
        "from gpuload import DataLoader\nloader = DataLoader(range(40), 4)\n"
        "for epoch in range(100):\n    for batch in loader: pass\n"
    )
    found = watch(script(tmp_path, body), steps=50, limit_s=60)
    assert found.batch_size == 4 and len(found.consumer.steps_s) == 50


def test_a_script_that_ends_early_gives_what_it_had(tmp_path):
    enough = WARM_UP + LEAST_STEPS
    found = watch(script(tmp_path, f"for batch in DataLoader(range({enough + 1}), 1): pass\n"), limit_s=60)
    assert len(found.consumer.steps_s) >= LEAST_STEPS


@pytest.mark.parametrize(
    "body, told",
    [
        ("raise ValueError('no such model')\n", "ended with code 1 after 0 steps.*no such model"),
        ("for batch in DataLoader(range(6), 2): pass\n", "took 3 batches before it ended"),
        ("time.sleep(60)\n", "took no batch from a DataLoader within 4 s"),
    ],
)
def test_a_script_without_steps_is_a_clear_error(body, told, tmp_path):
    with pytest.raises(GpuloadError, match=told):
        watch(script(tmp_path, body), limit_s=4 if "sleep" in body else 60)


def test_a_script_that_is_not_there():
    with pytest.raises(ConfigError, match="no file 'nothing.py'"):
        watch("nothing.py --lr 1")


# Parts


def test_timed_steps_have_the_mean_and_the_jitter_that_were_asked_for():
    steps = timed(40, 0.3).array
    assert steps.mean() == pytest.approx(0.04, rel=0.03) and steps.std() / steps.mean() == pytest.approx(0.3, rel=0.1)
    assert set(timed(40, 0).steps_s) == {0.04}
    assert list(itertools.islice(Consumer((1.0, 2.0), 0, "").steps(), 5)) == [1, 2, 1, 2, 1]


def test_an_endless_sampler_goes_through_all_ids_again_and_again():
    ids = list(itertools.islice(iter(Endless(5)), 15))
    assert all(sorted(ids[at : at + 5]) == list(range(5)) for at in (0, 5, 10)) and ids[:5] != ids[5:10]


# The command


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Fewer images than a probe takes."""
    folder = tmp_path_factory.mktemp("few")
    for number in range(5):
        noise = np.random.default_rng(number).integers(0, 256, (5, 7, 3), np.uint8)
        Image.fromarray(noise).resize((70 + number, 50)).save(folder / f"{number}.jpg")
    return folder


def test_the_command_writes_what_a_loader_reads(photos, tmp_path):
    paths = {"config_file": tmp_path / "a.toml", "json_file": tmp_path / "a.json", "html_file": tmp_path / "a.html"}
    found = tune(
        str(photos), step_ms=2, jitter=0.1, script=None, batch_size=4, transform="train", decoder="native,pillow",
        device="cpu", seconds=0.5, console=Console(file=io.StringIO(), width=100), **paths,
    )  # fmt: skip
    assert found.repeats and set(found.apart) == {"native", "pillow"}
    assert load_setting(paths["config_file"]) == found.chosen.setting
    assert json.loads(paths["json_file"].read_text())["parameters"]["samples"] == 5
    assert "<!doctype html>" in paths["html_file"].read_text()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["{none}"], "no folder and no .tar file"),
        (["{photos}", "--step-ms", "nan"], "milliseconds of a training step"),
        (["{photos}", "--jitter", "9"], "0 to 2"),
        (["{photos}", "--transform", "other"], "choose train or eval"),
        (["{photos}", "--decoder", "auto"], "native, pillow, dali"),
        (["{photos}", "--decoder", ","], "native, pillow, dali"),
        (["{photos}", "--batch-size", "0"], "at least 1"),
        (["{photos}", "--seconds", "0"], "0.5 to 600"),
        (["{photos}", "--json", "{none}/a.json"], "cannot write"),
        (["{photos}", "--html", "{photos}"], "cannot write"),
        (["{photos}", "--script", "{none}.py"], "no file"),
    ],
)
def test_bad_input_is_told_before_any_work(arguments, told, photos, tmp_path):
    given = [one.format(none=tmp_path / "none", photos=photos) for one in arguments]
    result = CliRunner().invoke(app, ["tune", *given, "--config", str(tmp_path / "c.toml")])
    assert result.exit_code == 1
    assert told in re.sub(r"\s+", " ", result.output)
    assert not (tmp_path / "c.toml").exists()
