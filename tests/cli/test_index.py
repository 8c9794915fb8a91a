"""`gpuload index`: makes what the first run would make, and says what it found."""

from __future__ import annotations

import os

import pytest
import typer
from typer.testing import CliRunner

from gpuload.cli.index import index, index_command
from gpuload.core.errors import ShardError
from gpuload.shards.write_tar import END, header, padding


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    for number in range(3):
        data = b"".join(header(f"{i}.jpg", i) + b"x" * i + padding(i) for i in range(5))
        (tmp_path / "data" / f"{number}.tar").write_bytes(data + END)
    return tmp_path / "data"


def test_indexes_and_manifest_are_made(shards):
    done = index(str(shards))
    assert (done.shards, done.samples, done.findings) == (3, 15, ())
    made = {name: os.stat(shards / name).st_mtime_ns for name in os.listdir(shards) if name.endswith(".gpuload")}
    assert len(made) == 4
    index(str(shards))
    assert all(os.stat(shards / name).st_mtime_ns == time for name, time in made.items())
    index(str(shards), rebuild=True)
    assert all(os.stat(shards / name).st_mtime_ns > time for name, time in made.items())


def test_the_command_names_what_it_found(shards):
    app = typer.Typer()
    app.command()(index_command)
    (shards / "1.tar").write_bytes((shards / "1.tar").read_bytes()[:-1024])
    result = CliRunner().invoke(app, [str(shards)])
    assert result.exit_code == 0
    text = result.output.replace("\n", " ")
    assert "15 samples in 3 shards, 1 findings" in text and "without the archive's end mark" in text
    assert isinstance(CliRunner().invoke(app, [str(shards / "gone.tar")]).exception, ShardError)
