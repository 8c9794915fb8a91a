"""`gpuload inspect`: what it says is so, for every format; hostile names stay text; few reads."""

from __future__ import annotations

import io
import re
import tarfile
from html import escape
from pathlib import Path

import fsspec
import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from gpuload.cli.inspect import HEADER_BYTES, REMOTE_HEADERS, inspect, inspect_command, lines
from gpuload.cli.inspect_page import edges_of, page_of
from gpuload.cli.pack import pack

SIZES = [(40, 30), (64, 48), (33, 77), (100, 100), (20, 10), (640, 480)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def jpeg(size: tuple[int, int], mode: str = "RGB", **options) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, 90).save(out, "JPEG", **options)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path) -> Path:
    for i, size in enumerate(SIZES):
        path = tmp_path / "in" / "ab"[i > 3] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(size, "L" if i == 2 else "RGB", subsampling=0 if i % 2 else 2))
    return tmp_path / "in"


@pytest.mark.parametrize("format", ["", "tar", "tfrecord", "mds", pytest.param("parquet", marks=pytest.mark.full)])
def test_it_says_what_was_put_in(folder, tmp_path, format):
    if format:
        pack(folder, tmp_path / "out", format, "3KB", entropy=False)
    found = inspect(tmp_path / "out" if format else folder, thumbnails=3, thumbnail_px=32)
    assert found.format == (format or "image files") and found.samples == 6 and found.files > 1
    assert sorted(map(tuple, found.dimensions.tolist())) == sorted(SIZES)
    assert sorted(found.bytes.tolist()) == sorted(path.stat().st_size for path in folder.rglob("*.jpg"))
    assert found.by_class == (("a", 4), ("b", 2))
    assert found.kinds == {"JPEG baseline 4:4:4": 3, "JPEG baseline 4:2:0": 2, "JPEG baseline grey": 1}
    assert [thumbnail.label for thumbnail in found.thumbnails] == ["a", "a", "b"]
    for thumbnail in found.thumbnails:
        assert max(Image.open(io.BytesIO(thumbnail.jpeg)).size) <= 32
    text = "\n".join(lines(found))
    assert "6 samples" in text and "classes: 2, 2 to 4 samples each" in text and "20 to 640 wide" in text


def test_the_page_holds_all_of_it_and_runs_nothing_that_a_name_says(tmp_path):
    evil = '<script>alert("1")</script>'
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in {
            f"{evil}0.jpg": jpeg((9, 9)), f"{evil}0.json": b'{"a": 1}', f"{evil}0.txt": b"t", "plain.jpg": b"none",
        }.items():  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    found = inspect(tmp_path / "x.tar", thumbnails=2)
    html = page_of(found)
    assert evil not in html and escape(evil.split(".")[0])[:20] in html and "does not decode" in html
    assert len(re.findall(r'src="data:image/jpeg;base64,', html)) == 1
    assert "http" not in html.replace("http-equiv", "")
    assert found.kinds == {"JPEG baseline 4:2:0": 1, "unreadable": 1}
    assert [(seen.name, seen.type, seen.samples) for seen in found.fields] == [("json", "json", 1), ("txt", "str", 1)]


def test_a_header_behind_a_large_thumbnail_is_still_found(tmp_path):
    exif = b"\xff\xe1" + (60_000).to_bytes(2, "big") + bytes(59_998)
    data = jpeg((50, 40))
    (tmp_path / "in" / "c").mkdir(parents=True)
    (tmp_path / "in" / "c" / "a.jpg").write_bytes(data[:2] + exif + data[2:])
    pack(tmp_path / "in", tmp_path / "out", entropy=False)
    assert HEADER_BYTES < 60_000 and inspect(tmp_path / "out").dimensions.tolist() == [[50, 40]]


def test_of_remote_data_only_headers_are_read(folder, tmp_path, monkeypatch):
    for i in range(100):
        (folder / "a" / f"x{i}.jpg").write_bytes(jpeg((30, 20)) + bytes(40_000))
    (shard,) = pack(folder, tmp_path / "out", entropy=False).shards
    memory = fsspec.filesystem("memory")
    memory.pipe("/inspected/x.tar", Path(shard).read_bytes())
    inspect("memory://inspected/x.tar")  # makes the index, for which a remote shard is read through
    asked: list[int] = []
    original = type(memory).cat_file

    def counting(self, path, start=None, end=None, **options):
        part = original(self, path, start=start, end=end, **options)
        asked.append(len(part))
        return part

    monkeypatch.setattr(type(memory), "cat_file", counting)
    found = inspect("memory://inspected/x.tar")
    memory.rm("/inspected", recursive=True)
    assert found.samples == 106 and len(found.dimensions) == REMOTE_HEADERS
    assert len(asked) <= REMOTE_HEADERS + 10


@pytest.mark.parametrize("values", [[1], [7, 7, 7], [0, 3], [999_999, 12], [10, 100]])
def test_bins_are_round_and_hold_every_value(values):
    edges = edges_of(np.array(values))
    assert edges[0] <= min(values) and edges[-1] > max(values) and edges == sorted(set(edges))
    assert all(str(int(edge)).rstrip("0") in ("", "1", "2", "5") for edge in edges)
    assert np.histogram(values, edges)[0].sum() == len(values)


def test_the_command_writes_the_page(folder, tmp_path):
    app = typer.Typer()
    app.command()(inspect_command)
    done = CliRunner().invoke(app, [str(folder), "--html", str(tmp_path / "page.html"), "--thumbnails", "2"])
    assert done.exit_code == 0 and "6 samples" in done.output
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") == 2
