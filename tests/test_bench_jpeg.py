"""The speed table of the JPEG engine: that its lines say what was timed, and that its data and its clock are right."""

from __future__ import annotations

import json
import sys
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench import jpeg, jpeg_loaders, jpeg_single, made_jpegs
from bench.jpeg_cases import CASES, CPU_US, Case, Timed, line, text
from gpuload import ShardDataset
from gpuload.cli.bench import subjects
from gpuload.cli.bench.dali_peer import numbers_of
from gpuload.cli.bench.data import look_at
from gpuload.cli.bench.gil import GilMeter
from gpuload.cli.bench.process import LoaderProcessError
from gpuload.cli.bench.worker import Worker


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        coarse = np.random.default_rng(i).integers(0, 256, (9, 12, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((90 + 7 * i, 120 - 5 * i), Image.Resampling.BICUBIC)
        picture.save(folder / f"{i:02d}.jpg", quality=90, subsampling=i % 3)
    return sorted(folder.iterdir())


# Lines


def test_a_rows_ratio_is_the_median_of_the_rounds_ratios():
    timed = Timed({"a": [10.0, 40.0, 30.0], "b": [10.0, 10.0, 20.0]}, images=7)
    found = line(Case("x", "a against b", "w", "a", "b", floor=2.0, aim=3.0), timed)
    assert (found["ratio"], found["ratios"], found["ours"], found["theirs"]) == (1.5, [1.0, 4.0], 30.0, 10.0)
    assert (found["rounds"], found["images"], found["floor"], found["aim"]) == (3, 7, 2.0, 3.0)


def test_where_less_is_better_the_ratio_is_above_1_for_the_smaller_figure():
    case = Case("x", "", "w", "a", "b", CPU_US, most_us=(5.0, 3.0))
    found = line(case, Timed({"a": [4.0], "b": [8.0]}))
    assert found["ratio"] == 2.0
    assert (found["floor"], found["floor_us"], found["aim_us"]) == (None, 5.0, 3.0)
    assert text(found).split() == "x 2.00 2.00 to 2.00 5 us 3 us 4.00 8.00 us of CPU".split()


def test_every_row_names_contenders_and_data_that_exist():
    for case in CASES:
        if case.work in jpeg_loaders.WORKS:
            assert {case.ours, case.theirs} <= set(jpeg_loaders.CONTENDERS), case
        else:
            assert case.work == "index" or case.work in jpeg_single.WORKS, case
            assert {case.ours, case.theirs} <= set(jpeg_single.CONTENDERS), case


def test_the_command_prints_and_writes_a_line_a_row_and_names_what_it_leaves_out(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jpeg_single, "find_spec", lambda name: None)
    out = tmp_path / "lines.jsonl"
    cases = "whole-simplejpeg,whole-pillow,crop-pillow,resized-pillow"
    assert jpeg.main([str(photos[0].parent), "--rounds", "2", "--json", str(out), "--cases", cases]) == 0
    lines = [json.loads(written) for written in out.read_text().splitlines()]
    assert [found["case"] for found in lines] == ["whole-pillow", "crop-pillow", "resized-pillow"]
    for found in lines:
        assert found["ratio"] > 0 and found["ours"] > 0 and found["theirs"] > 0
        assert (found["rounds"], found["images"]) == (2, len(photos))
        assert found["machine"]["cpu"] and found["versions"]["numba"]
    printed = capsys.readouterr()
    assert [row.split()[0] for row in printed.out.splitlines()[2:]] == [found["case"] for found in lines]
    assert "left out: whole-simplejpeg: simplejpeg: absent" in printed.err


def test_without_photographs_it_says_what_to_give(tmp_path, capsys):
    assert jpeg.main([str(tmp_path)]) == 2
    assert "GPULOAD_DATA" in capsys.readouterr().err


# Contenders


def test_a_decoder_with_other_pixels_is_not_timed(photos, monkeypatch):
    def dark(name: str, work: jpeg_single.Work):
        right = real(name, work)
        return right if name == "pillow" else lambda data, box: right(data, box) // 2

    real = jpeg_single.decoder
    monkeypatch.setattr(jpeg_single, "decoder", dark)
    timed = jpeg_single.time_decoders(
        jpeg_single.Work(), ("gpuload", "pillow"), [path.read_bytes() for path in photos], rounds=1
    )
    assert list(timed.figures) == ["pillow"]
    assert "differ from Pillow's" in timed.missing["gpuload"]


def test_without_dali_nothing_is_started(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    work, data = jpeg_loaders.WORKS["train"], photos[0].parent
    timed = jpeg_loaders.time_loaders(
        work, ["dali"], data, photos, folder=tmp_path, threads=1, rounds=1, tell=lambda sentence: None
    )
    assert not timed.figures
    assert timed.missing == {"dali": "absent: pip install 'gpuload[dali]'"}


class Recorded:
    """Stands for a loader's process: writes down what it is asked, and answers with 3 batches of 4 in 6 seconds."""

    started: list[Recorded] = []

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        self.cache, self.asked, self.spawned_s = environment["XDG_CACHE_HOME"], [], 0.0
        Recorded.started.append(self)

    def ask(self, what: str, **arguments):
        data = Path(arguments["setting"]["data"]["where"]).name if what == "open" else ""
        self.asked.append((what, data, arguments.get("images")))
        if data and arguments["setting"]["options"] == {"fidelity": "exact"}:
            raise LoaderProcessError("gpuload: no such argument")
        epoch = {"started_s": 0.0, "arrivals_s": [4.0, 5.0, 6.0], "waits_s": [0.0] * 3, "images": [4] * 3}
        return {"epoch": {**epoch, "ended_s": 6.0}, "mean": 0.0, "wrong_labels": 0, "images": 12}

    def close(self) -> None:
        self.asked.append(("close", "", None))


def run(names: list[str], photos: list[Path], folder: Path, monkeypatch) -> Timed:
    """Two rounds of these contenders, with Recorded in the processes' place."""
    monkeypatch.setattr(jpeg_loaders, "LoaderProcess", Recorded)
    monkeypatch.setattr(Recorded, "started", [])
    work = jpeg_loaders.Work("train", 24, batch_size=4, size=32)
    return jpeg_loaders.time_loaders(
        work, names, photos[0].parent, photos, folder=folder, threads=1, rounds=2, tell=lambda sentence: None
    )


def test_the_index_is_learned_before_the_rounds_or_from_nothing_in_each(photos, tmp_path, monkeypatch):
    timed = run(["default", "learning"], photos, tmp_path, monkeypatch)
    default, _, *rounds = Recorded.started
    name, ended = photos[0].parent.name, ("close", "", None)
    rounds_of_default = 2 * [("warm_up", "", None)]
    warm = [("open", name, 12), ("check", "", 12), ("build", "", 24), ("warm_up", "", None)]
    assert default.asked == [*warm, *rounds_of_default, ended]
    assert [process.asked for process in rounds] == 2 * [[("open", "others", 16), ("open", name, 12), ended]]
    assert len({process.cache for process in Recorded.started}) == 4
    assert timed.figures == {"default": [4.0, 4.0], "learning": [2.0, 2.0]}  # without its first batch; from the start


def test_a_loader_that_fails_costs_only_its_own_rows(photos, tmp_path, monkeypatch):
    timed = run(["exact", "default"], photos, tmp_path, monkeypatch)
    assert timed.figures == {"default": [4.0, 4.0]}
    assert timed.reason(Case("x", "", "train", "exact", "default")) == "exact: gpuload: no such argument"
    assert not timed.reason(Case("x", "", "train", "default", "default"))
    assert all(process.asked[-1] == ("close", "", None) for process in Recorded.started)


def test_the_worker_hands_its_options_to_our_loader_and_counts_time_under_the_lock(photos):
    setting = subjects.Setting(look_at(str(photos[0].parent)), "cpu", 1, 4, 32, options={"seed": 3})
    worker = Worker()
    worker.open(name="gpuload", setting=asdict(setting), spawned_s=0.0, transform="train", images=24)
    assert worker.loader.seed == 3
    found = worker.gil()
    assert found["images"] == 24
    assert 0 <= found["held_s"] <= found["cpu_s"]


def test_a_childs_cache_is_empty_but_for_the_users_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
    (tmp_path / "child").mkdir()
    jpeg_loaders.share_kernels(tmp_path / "child")
    (tmp_path / "users" / "gpuload" / "kernels" / "compiled").touch()
    assert [path.name for path in (tmp_path / "child").rglob("*")] == ["gpuload", "kernels"]
    assert (tmp_path / "child" / "gpuload" / "kernels" / "compiled").exists()


def test_labels_of_tar_members_are_read_a_batch_at_once():
    texts = np.frombuffer(b"7   12\n 305 cat4    ", np.uint8).reshape(5, 4)
    assert numbers_of(texts).tolist() == [7, 12, 305, 0, 0]


# Data


def test_mosaics_are_of_the_size_asked_and_the_same_each_time(photos, tmp_path):
    for name in ("one", "two"):
        made_jpegs.mosaics(photos, tmp_path / name, count=2, size=(1000, 750))
    files = [sorted((tmp_path / name).iterdir()) for name in ("one", "two")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert files[0][0].read_bytes() != files[0][1].read_bytes()
    image = Image.open(files[0][0])
    assert image.size == (1000, 750)
    assert [layer[1:3] for layer in image.layer] == [(2, 2), (1, 1), (1, 1)]


def test_tiny_shards_hold_as_many_as_asked_with_their_classes(photos, tmp_path):
    shards = made_jpegs.tiny_shards(photos, tmp_path, count=25)
    dataset = ShardDataset(str(shards / "*.tar"), fields=("image", "label", "key"))
    assert len(dataset) == 25
    for i in range(25):
        image, label, key = dataset[i]
        assert image.size == (32, 32)
        assert label == int(key.rpartition("/")[2].split(".")[0]) % made_jpegs.CLASSES


# The clock


def burn(work, cpu_s: float = 0.5) -> GilMeter:
    """Measures `work` over half a CPU second: 50 looks at the slowest tick there is."""
    with GilMeter() as meter:
        until_s = time.process_time() + cpu_s
        while time.process_time() < until_s:
            work()
    return meter


def test_time_under_the_lock_is_told_from_time_without_it():
    data = memoryview(bytes(8 << 20))
    python = burn(lambda: sum(range(100_000)))
    without = burn(lambda: zlib.crc32(data))
    assert python.held_s > 0.8 * python.cpu_s
    assert without.held_s < 0.2 * without.cpu_s
