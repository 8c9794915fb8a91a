"""Labels from files beside images, and from lists: against csv and json as Python reads them."""

from __future__ import annotations

import csv
import hashlib
import json

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.core.errors import ConfigError, ShardError
from gpuload.shards.labels import numbers_of
from gpuload.shards.table import NO_LABEL
from gpuload.testing import Expected, check_dataset
from tests.shards.containers import IMAGES

NAMES = ["b.jpg", "a.JPEG", "sub/c.jpg"]
WORDS = ["dog", "ant", "cat"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def flat(tmp_path):
    """Loose images: in a folder's order a.JPEG, b.jpg."""
    folder = tmp_path / "flat"
    folder.mkdir()
    (folder / "b.jpg").write_bytes(IMAGES[0])
    (folder / "a.JPEG").write_bytes(IMAGES[1])
    return folder


def write_csv(path, rows, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [["filename", "label"], ["b.jpg", 7], ["a.JPEG", -3]],
        [["label", "extra", "file_name"], [7, "x", "./b.jpg"], [-3, "y", "a.JPEG"]],
        [["id", "Class"], ["b", 7], ["a", -3]],
        [["b.jpg", 7], ["a.JPEG", -3]],
        [["what", "ever"], ["b.jpg", 7], ["a.JPEG", -3]],
    ],
)
def test_a_csv_file_in_any_of_its_forms(flat, rows):
    write_csv(flat / "labels.csv", rows)
    write_csv(flat / "labels.tsv", rows, "\t")
    for name in ("labels.csv", "labels.tsv", str(flat / "labels.csv")):
        dataset = ShardDataset(flat, label=name)
        assert dataset.labels.tolist() == [-3, 7] and dataset.classes is None
    wanted = [Expected(hashlib.sha256(IMAGES[i]).hexdigest(), label) for i, label in ((1, -3), (0, 7))]
    check_dataset(dataset, wanted)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", {"b.jpg": "dog", "a.JPEG": "ant"}),
        ("b.json", [{"file_name": "b.jpg", "label": "dog"}, {"file_name": "a.JPEG", "label": "ant"}]),
        ("c.json", {"labels": [["b.jpg", "dog"], ["a.JPEG", "ant"]]}),
        ("metadata.jsonl", None),
    ],
)
def test_json_and_names_become_sorted_classes(flat, name, content):
    lines = [{"file_name": "b.jpg", "label": "dog"}, {"file_name": "a.JPEG", "label": "ant"}]
    text = json.dumps(content) if content is not None else "\n".join(map(json.dumps, lines))
    (flat / name).write_text(text)
    dataset = ShardDataset(flat, label=name)
    assert dataset.classes == ["ant", "dog"] and dataset.labels.tolist() == [0, 1]


def test_a_column_can_be_named(flat):
    write_csv(flat / "labels.csv", [["filename", "label", "species"], ["b.jpg", 7, "dog"], ["a.JPEG", -3, "ant"]])
    assert ShardDataset(flat, label="labels.csv:species").classes == ["ant", "dog"]
    with pytest.raises(ConfigError, match="no column breed; there are filename, label, species"):
        ShardDataset(flat, label="labels.csv:breed")


def test_images_and_entries_that_do_not_meet_are_named(flat):
    write_csv(flat / "labels.csv", [["filename", "label"], ["b.jpg", 7], ["gone.jpg", 1], ["lost.jpg", 2]])
    with pytest.raises(ShardError, match="2 of its entries name no image here; the first is 'gone.jpg'"):
        ShardDataset(flat, label="labels.csv")
    dataset = ShardDataset(flat, label="labels.csv", on_error="skip")
    assert dataset.labels.tolist() == [7]
    problems = [finding.problem for finding in dataset.findings if not finding.note]
    assert len(problems) == 2 and "no label" in problems[1]
    for label, problem in [("none.csv", "there is none at"), ("bad.json", "no list of files and labels")]:
        (flat / "bad.json").write_text("{")
        with pytest.raises(ConfigError, match=problem):
            ShardDataset(flat, label=label)


def test_lists_of_images_with_their_labels(tmp_path):
    import fsspec

    system = fsspec.filesystem("memory")
    try:
        system.pipe_file("/list/0.jpg", IMAGES[0])
        (tmp_path / "1.jpg").write_bytes(IMAGES[1])
        urls = ["memory://list/0.jpg", str(tmp_path / "1.jpg"), "memory://list/0.jpg"]
        dataset = ShardDataset(urls, label=["dog", "cat", "dog"])
        assert "images: 3 samples" in repr(dataset) and dataset.classes == ["cat", "dog"]
        digests = [hashlib.sha256(IMAGES[i]).hexdigest() for i in range(2)]
        check_dataset(dataset, [Expected(digests[0], 1), Expected(digests[1], 0), Expected(digests[0], 1)])
        write_csv(tmp_path / "l.csv", [["file", "y"], [urls[0], 5], [urls[1], 6]])
        assert ShardDataset(urls[:2], label=str(tmp_path / "l.csv")).labels.tolist() == [5, 6]
        with pytest.raises(ConfigError, match="have no labels"):
            ShardDataset(urls)
        assert len(ShardDataset(urls, fields=("image",))) == 3
    finally:
        system.rm("/list", recursive=True)


def test_numbers_and_names():
    assert numbers_of([3, "4", np.int64(5), None]).numbers.tolist() == [3, 4, 5, NO_LABEL]
    assert numbers_of([1.0, "2"]).numbers.tolist() == [1, 2]
    named = numbers_of([b"x", "a", None, "x"])
    assert named.classes == ("a", "x") and named.numbers.tolist() == [1, 0, NO_LABEL, 1]
    assert numbers_of(["1.5", "2"]).numbers.tolist() == [NO_LABEL, 2]
    assert numbers_of([]).numbers.tolist() == []
