"""bench/packing.py on a few images: all its figures come, and they fit each other."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from bench import packing

pytestmark = pytest.mark.full


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """Those of one part, by name, of 40 made images."""
    monkeypatch.delenv("GPULOAD_DATA", raising=False)
    path = tmp_path / "lines.jsonl"

    def of(part: str) -> dict[str, float]:
        before = dict(os.environ)
        packing.main(["--images", "40", "--rounds", "1", "--only", part, "--json", str(path)])
        assert dict(os.environ) == before
        return {name: figure["value"] for name, figure in json.loads(path.read_text())["figures"].items()}

    return of


def test_packing_beside_copying(figures):
    found = figures("pack")
    assert len(found) == 7 and all(value > 0 for value in found.values())
    [ratio] = [name for name in found if name.startswith("pack over cp -r, in memory")] or [
        "pack over cp -r, page cache"
    ]
    where = ratio.rpartition(", ")[2]
    assert found[ratio] == pytest.approx(found[f"pack, {where}"] / found[f"cp -r, {where}"], rel=1e-6)


def test_records_beside_tf_data(figures):
    found = figures("tfrecord")
    names = {"TFRecord: index, all CRCs", "TFRecord: an epoch's reading"}
    assert names <= set(found) and all(value > 0 for value in found.values())
    assert len(found) == (8 if importlib.util.find_spec("tensorflow") else 2)


def test_fetching(figures):
    found = figures("fetch")
    assert found["fetch stage's share of the loader's CPU"] > 0
    assert found["that loader"] > 0 and found["full shuffle: reader"] > 0 and found["cat of the shards"] > 0
