"""Streaming against copying first: from a local HTTP server and from folders, and when copying pays."""

from __future__ import annotations

import json
import os
import threading
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from gpuload.cli.bench import storage_run
from gpuload.cli.bench.storage import COPIED, STREAMED, Way, breaks_even_after, sentences
from gpuload.cli.bench.storage_run import Timed, files_at, timed
from gpuload.cli.main import app
from gpuload.cli.pack import pack
from tests.shards.test_remote_shards import Server

COUNT = 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (7, 9, 3), np.uint8)
        out = BytesIO()
        Image.fromarray(coarse).resize((260 + 7 * i, 330 - 5 * i), Image.Resampling.BICUBIC).save(out, "JPEG")
        (root / f"class{i % 2}").mkdir(exist_ok=True)
        (root / f"class{i % 2}" / f"{i:02d}.jpg").write_bytes(out.getvalue())
    return root


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = tmp_path_factory.mktemp("shards") / "photos"
    pack(str(folder), str(packed), shard_size="60KB", entropy=False)
    return packed


@pytest.fixture
def server(shards: Path):
    serving = Server()
    serving.headers = {"ETag": '"1"'}
    serving.files = {f"/{path.name}": path.read_bytes() for path in shards.glob("*.tar")}
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()


def pattern(server: Server) -> str:
    return f"{server.url}/photos-{{000000..{len(server.files) - 1:06d}}}.tar"


HOW = {"threads": 1, "batch_size": 4, "transform": "eval", "size": 224}


@pytest.mark.parametrize("copied", [False, True], ids=["streamed", "copied"])
def test_every_image_of_a_server_comes_once_either_way(server, tmp_path, copied):
    target = tmp_path / "copy"
    target.mkdir()
    assert len(server.files) > 1
    before = os.environ.get("XDG_CACHE_HOME")
    found = timed(pattern(server), copy_to=str(target) if copied else None, most_images=None, **HOW)
    assert list(found.images) == [4, 8, 12, 13]
    assert 0 < found.opened_s < found.arrivals_s[0] and list(found.arrivals_s) == sorted(found.arrivals_s)
    copies = {f"/{path.name}": path.read_bytes() for path in target.glob("*.tar")}
    assert copies == (server.files if copied else {})
    total = sum(map(len, server.files.values()))
    assert (found.copied_bytes, found.total_bytes) == ((total, total) if copied else (0, 0))
    assert os.environ.get("XDG_CACHE_HOME") == before
    assert (found.copied_s > 0) is copied and found.copied_s < found.opened_s


def test_a_folder_is_copied_with_its_classes_and_fewer_images_end_sooner(folder, tmp_path):
    target = tmp_path / "copy"
    target.mkdir()
    found = timed(str(folder), copy_to=str(target), most_images=5, **HOW)
    assert list(found.images) == [4, 8]
    assert {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*.jpg")} == {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.jpg")
    }


def test_what_is_not_copied_is_reckoned_at_the_same_rate(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(storage_run, "MOST_COPIED_BYTES", 1)
    target = tmp_path / "copy"
    target.mkdir()
    found = timed(str(shards), copy_to=str(target), most_images=None, **HOW)
    first = files_at(str(shards))[0]
    assert [path.name for path in target.glob("*.tar")] == [Path(first).name]
    assert found.copied_bytes == Path(first).stat().st_size < found.total_bytes
    assert found.arrivals_s[0] > found.copied_s


def line(opened_s: float, image_s: float, images: int) -> Timed:
    arrivals_s = [opened_s + 10 * image_s * (i + 1) for i in range(images // 10)]
    return Timed(0.0, 0, 0, opened_s, arrivals_s, list(range(10, images + 1, 10)))


@pytest.mark.parametrize(("streamed_s", "copied_s", "ahead_s"), [(0.02, 0.01, 7.0), (0.005, 0.004, 1.0)])
def test_copying_breaks_even_where_both_clocks_show_the_same(streamed_s, copied_s, ahead_s):
    images = breaks_even_after(line(0.5, streamed_s, 100), line(0.5 + ahead_s, copied_s, 100))
    assert images is not None
    assert 0.5 + images * streamed_s == pytest.approx(0.5 + ahead_s + images * copied_s)


def test_copying_may_never_pay_or_pay_at_once():
    assert breaks_even_after(line(0.5, 0.01, 100), line(2.0, 0.01, 100)) is None
    assert breaks_even_after(line(0.5, 0.01, 100), line(2.0, 0.02, 100)) is None
    assert breaks_even_after(line(3.0, 0.01, 100), line(2.0, 0.01, 100)) == 0.0


def test_sentences_hide_credentials_and_leave_out_what_was_not_timed():
    url = "https://me:secret@host/a.tar?X-Amz-Signature=00"
    said = sentences([Way(url, STREAMED, line(0.5, 0.02, 100)), Way(url, COPIED, line(7.5, 0.01, 100))])
    assert len(said) == 1 and "after 700 images" in said[0]
    assert "secret" not in said[0] and "Signature" not in said[0]
    assert sentences([Way(url, STREAMED, None, "gone"), Way(url, COPIED, line(7.5, 0.01, 100))]) == []


@pytest.mark.full
def test_the_command_compares_storages_and_names_what_cannot_be_read(server, shards, tmp_path):
    lines_file, page_file = tmp_path / "lines.jsonl", tmp_path / "page.html"
    missing = f"{server.url}/none.tar"
    done = CliRunner().invoke(
        app,
        [
            *("bench", "--storage", pattern(server), "--storage", str(shards), "--storage", missing, "--threads", "1"),
            *("--batch-size", "4", "--json", str(lines_file), "--html", str(page_file)),
        ],
    )
    assert done.exit_code == 0, done.output
    lines = [json.loads(text) for text in lines_file.read_text().splitlines()]
    assert [line["way"] for line in lines] == [STREAMED, COPIED] * 3
    assert [line.get("images") for line in lines] == [COUNT] * 4 + [None] * 2
    assert all("none.tar" in line["not_timed"] for line in lines[4:])
    assert "Images over time" in page_file.read_text()
