from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder
from typer.testing import CliRunner

from gpuload.cli.bench import measure, subjects
from gpuload.cli.bench.command import check_writable
from gpuload.cli.bench.data import ClassFolders, FlatFolder, TarShards, look_at, pil_rgb
from gpuload.cli.bench.measure import Epoch
from gpuload.cli.bench.process import LoaderProcess, LoaderProcessError, tree_bytes
from gpuload.cli.bench.run import PIXEL_BOUND, _Entrant, _pixels_wrong
from gpuload.cli.main import app
from gpuload.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def jpeg(seed: int, width: int = 61, height: int = 47) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def class_folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("classes")
    for i in range(26):
        folder = root / f"class{i % 3}" / ("deeper" if i % 5 == 0 else ".")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:02d}.JPEG").write_bytes(jpeg(i, 261 + i, 300 - 7 * i))
    return root


@pytest.fixture(scope="module")
def shard(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "a.tar"
    with tarfile.open(path, "w") as archive:
        for i in range(5):
            for extension, content in (("cls", str(i * 3).encode()), ("jpg", jpeg(i)), ("json", b"{}")):
                info = tarfile.TarInfo(f"./dir/{i:03d}.{extension}")
                info.size = len(content)
                archive.addfile(info, BytesIO(content))
    return path


# What the figures mean


def bursts(workers: int, batches: int, period_s: float = 1.0) -> Epoch:
    """`workers` processes that each take `period_s` a batch of 10: arrivals in bursts, one burst a period."""
    arrivals_s = [100 + period_s * (1 + i // workers) for i in range(batches)]
    waits_s = [period_s if i % workers == 0 else 0.0 for i in range(batches)]
    return Epoch(100.0, arrivals_s, waits_s, [10] * batches, arrivals_s[-1])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_rate_of_loaders_that_deliver_in_bursts_is_their_true_rate(workers):
    epoch = bursts(workers, 8 * workers)
    assert measure.images_per_s(epoch, workers=workers) == pytest.approx(10 * workers)


def test_the_p99_wait_is_the_longest_but_a_hundredth_after_the_warm_up():
    waits_s = [50.0] * 4 + [float(i) for i in range(200)]
    arrivals_s = [float(i) for i in range(204)]
    epoch = Epoch(0.0, arrivals_s, waits_s, [4] * 204, 204.0)
    assert measure.wait_p99_s(epoch, workers=2) == 197.0  # 198 of 200 waits are 0 to 197
    few = Epoch(0.0, arrivals_s[:14], [9.0] * 4 + [0.1] * 9 + [0.7], [4] * 14, 14.0)
    assert measure.wait_p99_s(few, workers=2) == 0.7


def test_a_cold_rate_counts_until_every_sample_may_have_come_once():
    epoch = Epoch(10.0, [12.0, 13.0, 14.0, 14.1], [2.0, 1.0, 1.0, 0.1], [10] * 4, 14.1)
    assert measure.first_pass_images_per_s(epoch, samples=25) == pytest.approx(30 / 4.0)
    assert measure.first_pass_images_per_s(epoch, samples=1000) == pytest.approx(40 / 4.1)


def test_first_batch_and_epoch_boundary():
    before, after = bursts(2, 8), bursts(2, 8)
    assert measure.first_batch_s(before) == 1.0
    later = Epoch(200.0, [200.25, 201.0], [0.25, 0.75], [10, 10], 201.0)
    assert measure.boundary_s(before, later) == pytest.approx(200.25 - before.ended_s)
    assert after.ended_s == before.ended_s


def test_starved_is_the_share_of_time_in_next_after_the_warm_up():
    arrivals_s = [1.0, 2.0, 3.0, 4.5, 6.0, 7.5, 9.0, 10.5]  # step 1 s; from the fourth on, half a second is waited
    waits_s = [1.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5]
    epoch = Epoch(0.0, arrivals_s, waits_s, [4] * 8, 11.5)
    assert measure.starved(epoch, workers=2) == pytest.approx(4 * 0.5 / (11.5 - 4.5))


def test_an_epoch_too_short_for_a_steady_state_is_refused():
    with pytest.raises(ValueError, match="2 batches"):
        measure.images_per_s(Epoch(0.0, [1.0, 2.0], [1.0, 1.0], [4, 4], 2.0), workers=1)


def test_the_timed_step_is_a_gpu_hungrier_than_torchs_loader():
    assert measure.step_s(500.0, batch_size=65, appetite=1.3) == pytest.approx(0.1)


def test_rounds_are_whole_batches_and_never_too_short():
    assert measure.round_images(500.0, batch_size=64, workers=2, round_s=3.0) == 23 * 64
    assert measure.round_images(1.0, batch_size=64, workers=8, round_s=3.0) == 36 * 64


def test_every_loader_runs_once_a_round_and_begins_in_turn():
    assert measure.rotations(["a", "b", "c"], 4) == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_spread_is_median_and_range():
    assert measure.spread([3.0, 1.0, 10.0]) == measure.Spread(3.0, 1.0, 10.0)


# What the data is


def test_kinds_of_data_are_told_apart(class_folder, shard):
    assert look_at(str(class_folder)).kind == "classes"
    assert look_at(str(class_folder / "class0")).kind == "flat"
    assert look_at(str(shard)) == look_at(str(shard.parent)).__class__("tar", str(shard), (str(shard),))
    assert look_at(str(shard.parent)).shards == (str(shard),)


def test_where_there_are_no_images_the_error_says_what_was_looked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"no images found in .*\*\.tar"):
        look_at(str(tmp_path))
    with pytest.raises(ConfigError, match="no folder and no .tar file"):
        look_at(str(tmp_path / "missing"))


def test_class_folders_are_read_in_torchvisions_order(class_folder):
    plain = ClassFolders(str(class_folder), lambda image: image, lambda data: data)
    truth = ImageFolder(str(class_folder))
    assert [(str(Path(p)), label) for p, label in zip(plain.paths, plain.labels, strict=True)] == [
        (str(Path(p)), label) for p, label in truth.samples
    ]
    assert plain[7] == (Path(truth.samples[7][0]).read_bytes(), truth.samples[7][1])


def test_a_flat_folder_is_read_by_name(class_folder):
    plain = FlatFolder(str(class_folder / "class1"), np.asarray, pil_rgb)
    files = sorted(path for path in (class_folder / "class1").iterdir() if path.is_file())
    assert len(plain) == len(files)
    image, label = plain[2]
    assert label == 0
    assert np.array_equal(image, np.asarray(Image.open(files[2]).convert("RGB")))


def test_tar_shards_are_read_with_the_labels_beside_the_images(shard):
    plain = TarShards([str(shard)], lambda image: image, lambda data: data)
    assert [plain[i] for i in range(len(plain))] == [(jpeg(i), i * 3) for i in range(5)]
    assert plain.labelled


# Which loaders


def test_rows_are_chosen_by_peers_and_decoders():
    assert subjects.chosen(["dali"], ["pillow", "auto"]) == ["torch", "gpuload-pillow", "dali", "gpuload"]
    assert subjects.chosen(["torchvision-v2", "streaming"], []) == ["torch", "torch-v2", "streaming"]
    with pytest.raises(ConfigError, match="--against ffcv: not known"):
        subjects.chosen(["ffcv"], [])


def test_without_dali_its_rows_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert subjects.absent("dali") == "absent: pip install 'gpuload[dali]'"
    assert subjects.absent("gpuload-dali") == "absent: pip install 'gpuload[dali]'"
    assert subjects.absent("gpuload-pillow") == ""
    monkeypatch.setitem(sys.modules, "webdataset", None)
    assert subjects.absent("webdataset") == "absent: pip install webdataset"


def test_pixels_that_are_off_or_labels_that_differ_are_not_timed():
    good = {"mean": PIXEL_BOUND, "worst": 9.0, "images": 32, "wrong_labels": 0}
    assert _pixels_wrong(_Entrant("torch"), good) == ""
    assert "off by 4.61" in _pixels_wrong(_Entrant("torch"), {**good, "mean": 4.61})
    assert "not timed" in _pixels_wrong(_Entrant("torch"), {**good, "mean": float("nan")})
    assert "2 of 32 labels" in _pixels_wrong(_Entrant("torch"), {**good, "wrong_labels": 2})


# Processes


def test_a_loaders_process_survives_an_error_and_its_death_is_named():
    process = LoaderProcess("torch")
    try:
        with pytest.raises(LoaderProcessError, match="torch: AttributeError"):
            process.ask("no_such_command")
        with pytest.raises(LoaderProcessError, match="torch: TypeError"):
            process.ask("build")
        psutil.Process(process._child.pid).kill()
        with pytest.raises(LoaderProcessError, match="its process has ended"):
            process.ask("warm_up")
    finally:
        process.close()
    assert not psutil.pid_exists(process._child.pid)


def test_memory_counts_descendants():
    hold = "import time; data = bytearray(b'x') * 60_000_000; print(1, flush=True); time.sleep(60)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        family = psutil.Process(parent.pid).children(recursive=True)
        assert 60_000_000 < tree_bytes(parent.pid) < 160_000_000
        for child in family:
            child.kill()
        parent.wait(10)
    assert tree_bytes(parent.pid) == 0


# The whole command


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def test_bench_writes_a_line_a_loader_and_a_page(class_folder, tmp_path):
    lines_file, page_file = tmp_path / "lines.jsonl", tmp_path / "page.html"
    done = CliRunner().invoke(
        app,
        [
            *("bench", str(class_folder), "--against", "torch", "--decoder", "pillow", "--threads", "1"),
            *("--batch-size", "5", "--rounds", "2", "--round-s", "0.1", "--step-ms", "1"),
            *("--json", str(lines_file), "--html", str(page_file)),
        ],
    )
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in lines_file.read_text().splitlines()]
    assert [line["loader"] for line in lines] == ["torch", "gpuload-pillow"]
    for line in lines:
        assert line["not_timed"] is None
        for key in ("images_per_s", "first_batch_s", "cpu_s_per_1000", "peak_rss_mb", "ratio_to_torch", "cold_start_s"):
            assert line[key] > 0, (line["loader"], key)
        assert 0 <= line["starved_pct"] <= 100
        assert line["device"] == "cpu"
        assert line["pixel_difference"] < 1e-3  # Pillow's own pixels, both of them
        low, high = line["ranges"]["images_per_s"]
        assert low <= line["images_per_s"] <= high
        assert line["parameters"]["samples"] == 26
        assert line["parameters"]["rounds"] == 2
        assert line["machine"]["cores"] >= 1
        assert line["versions"]["pillow"]
    assert lines[0]["ratio_to_torch"] == 1.0
    page = Tags()
    page.feed(page_file.read_text())
    assert page.tags.count("h2") >= 6
    for name in ("torch", "gpuload-pillow"):
        assert name in done.output


def test_bench_on_nothing_ends_with_a_sentence_and_code_1(tmp_path):
    done = CliRunner().invoke(app, ["bench", str(tmp_path)])
    assert done.exit_code == 1
    assert "gpuload: no images found in" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--html", "/nowhere/page.html"], "--html /nowhere/page.html: cannot be written: No such file or directory"),
        (["--json", "."], "--json .: cannot be written: Is a directory"),
        (["--model", "vit"], "--model vit: choose tiny or resnet18"),
        (["--cache", "hot"], "--cache hot: choose warm or cold"),
        (["--device", "cpu,tpu"], "--device tpu: choose cpu or cuda"),
        (["--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["--storage", "x"], "with --storage the data is what the URLs hold"),
    ],
)
def test_bad_options_end_before_anything_runs(class_folder, options, sentence):
    done = CliRunner().invoke(app, ["bench", str(class_folder), *options])
    assert done.exit_code == 1
    assert sentence in done.output
    assert "Traceback" not in done.output


def test_no_data_and_a_gpu_that_is_not_there_end_with_a_sentence(class_folder, monkeypatch):
    done = CliRunner().invoke(app, ["bench"])
    assert (done.exit_code, "no data given: gpuload bench FOLDER" in done.output) == (1, True)
    monkeypatch.setattr("gpuload.cli.bench.command._has_gpu", lambda: False)
    done = CliRunner().invoke(app, ["bench", str(class_folder), "--device", "cuda"])
    assert (done.exit_code, "--device cpu,cuda measures the CPU and predicts the GPU" in done.output) == (1, True)


def test_a_file_that_is_only_tried_is_not_left_behind_nor_changed(tmp_path):
    new, old = tmp_path / "new.html", tmp_path / "old.html"
    old.write_text("kept")
    check_writable(("--html", new), ("--json", old), ("--json", None))
    assert not new.exists()
    assert old.read_text() == "kept"


def test_data_smaller_than_a_batch_a_model_a_cold_cache_and_a_peer_that_fails_to_import(tmp_path, monkeypatch):
    """All of it in one run, since each process takes seconds to start."""
    few, scratch, broken = tmp_path / "few", tmp_path / "scratch", tmp_path / "broken" / "webdataset"
    few.mkdir()
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    broken.mkdir(parents=True)
    for i in range(3):
        (few / f"{i}.jpg").write_bytes(jpeg(i, 300, 270))
    (broken / "__init__.py").write_text("raise RuntimeError('built for another system')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    monkeypatch.syspath_prepend(str(broken.parent))
    monkeypatch.delitem(sys.modules, "webdataset", raising=False)
    monkeypatch.setattr("gpuload.cli.bench.command.TRAINING_STEPS", 3)
    monkeypatch.setattr("gpuload.cli.bench.command.RESIDENT_STEPS", 2)
    lines_file = tmp_path / "lines.jsonl"
    done = CliRunner().invoke(
        app,
        [
            *("bench", str(few), "--against", "webdataset", "--decoder", "native", "--threads", "1", "--rounds", "1"),
            *("--round-s", "0.1", "--step-ms", "1", "--batch-size", "8", "--model", "tiny", "--cache", "cold"),
            *("--device", "cpu,cuda", "--json", str(lines_file), "--html", str(tmp_path / "page.html")),
        ],
    )
    assert done.exit_code == 0, done.output
    lines = {(line["loader"], line["device"]): line for line in map(json.loads, lines_file.read_text().splitlines())}
    assert "built for another system" in lines["webdataset", "cpu"]["not_timed"]
    for name in ("torch", "gpuload-native"):
        line = lines[name, "cpu"]
        assert line["parameters"]["samples"] == 3 and line["not_timed"] is None
        assert line["cold_images_per_s"] > 0 and line["wait_p99_s"] > 0
        assert line["training"]["steps"] == 3 and line["training"]["step_inflation"] > 0
    assert "CPU against GPU preprocessing" in done.output
    assert list(scratch.iterdir()) == []


def test_gpu_check_without_a_gpu_says_so_and_ends_with_code_2():
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin", "HOME": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu"], cwd=ROOT, env=hidden, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert "no CUDA GPU" in done.stdout
