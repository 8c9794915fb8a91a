from __future__ import annotations

import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from gpuload.cli import demo_data
from gpuload.cli.demo import _shards, _smooth, demo
from gpuload.cli.main import app
from gpuload.core.errors import ConfigError

has_photographs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("skimage", "sklearn")),
    reason="the demo's photographs are left out: pip install 'gpuload[demo]'",
)


@pytest.fixture
def small_folder(tmp_path) -> Path:
    """Three classes of 20 small JPEGs, told apart by their colour."""
    root = tmp_path / "small"
    for i in range(60):
        label = i % 3
        (root / f"class{label}").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 90, (40 + i % 5, 53, 3), np.uint8)
        pixels[..., label] += 150
        Image.fromarray(pixels).save(root / f"class{label}" / f"{i:02d}.jpg", quality=90)
    return root


@has_photographs
def test_data_is_like_imagenets_and_made_once(tmp_path):
    told: list[str] = []
    made = demo_data.make(tmp_path / "data", tell=told.append, images_per_class=16)
    files = sorted((tmp_path / "data" / "images").glob("*/*.jpg"))
    assert len(files) == made.images == 16 * made.classes
    assert made.classes == len(demo_data.PHOTOGRAPHS) >= 8
    assert 4.0 < made.bits_per_pixel < 4.8
    assert 0.18 < made.megapixels < 0.23
    assert made.bytes == np.mean([file.stat().st_size for file in files])
    with Image.open(files[5]) as image:
        assert image.format == "JPEG"
        assert image.size == demo_data.SIZES[5]
        assert np.asarray(image).std() > 10  # a photograph, not a flat field
    before = [file.stat().st_mtime_ns for file in files]
    assert demo_data.make(tmp_path / "data", tell=told.append, images_per_class=16) == made
    assert [file.stat().st_mtime_ns for file in files] == before
    assert len(told) == 1


@has_photographs
def test_data_of_a_killed_run_is_made_anew(tmp_path):
    folder = tmp_path / "data"
    (folder / "images" / "astronaut").mkdir(parents=True)
    (folder / "images" / "astronaut" / "9999.jpg").write_bytes(b"half a file")
    made = demo_data.make(folder, tell=lambda sentence: None, images_per_class=1)
    assert len(list(folder.glob("images/*/*.jpg"))) == made.images


def test_a_url_of_shards_is_copied_once(small_folder, tmp_path):
    _, shards = _shards(str(small_folder), tmp_path / "cache", lambda sentence: None)
    url = f"file://{shards}/*.tar"
    sentence, folder = _shards(url, tmp_path / "cache", lambda sentence: None)
    copied = sorted(folder.iterdir())
    assert [file.name for file in copied] == sorted(file.name for file in shards.glob("*.tar"))
    assert copied[0].read_bytes() == next(iter(sorted(shards.glob("*.tar")))).read_bytes()
    assert "1 tar shards" in sentence


def test_a_url_without_shards_is_an_error_that_says_what_to_give(tmp_path):
    with pytest.raises(ConfigError, match=r"no tar shards there; give a URL of .tar files"):
        _shards(f"file://{tmp_path}/*.tar", tmp_path / "cache", lambda sentence: None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(["--device", "tpu"], "choose auto, cpu or cuda"), (["--seconds", "0"], "must be more than 0")],
)
def test_wrong_options_end_with_a_sentence(options, sentence, tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), *options])
    assert done.exit_code == 1
    assert sentence in done.output


def test_the_loss_is_smoothed_over_five_steps():
    losses = [5.0, 3.0, 1.0, 1.0, 0.0, 0.0]
    assert _smooth(losses) == pytest.approx([5.0, 4.0, 3.0, 2.5, 2.0, 1.0])


@pytest.mark.full
def test_demo_trains_through_both_loaders_and_writes_the_report(small_folder, tmp_path):
    console = Console(file=io.StringIO(), width=120)
    outcome = demo(data=str(small_folder), out=tmp_path / "out", seconds=24.0, threads=1, device="cpu", console=console)
    torch, ours = outcome.rows
    assert [torch.name, ours.name] == ["torch", "gpuload"]
    for row in outcome.rows:
        assert row.reason == ""
        assert row.training is not None
        losses = _smooth(row.training.losses)
        assert losses[-1] < 0.8 * losses[0]
        assert row.figures["images_per_s"].low > 0
    assert "accelerated" in ours.plan
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "from gpuload import DataLoader" in said
    page = (tmp_path / "out" / "demo-report.html").read_text()
    assert len(re.findall("<polyline", page)) == 2
    assert page.count('class="wait"') == sum(len(row.stepped.waits_s) - 1 for row in outcome.rows if row.stepped)
