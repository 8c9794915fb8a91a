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


@pytest.mark.parametrize(
    "rows",
    [
        [["", "file_name", "kind"], ["0", "a.JPEG", "ant"], ["1", "b.jpg", "dog"]],
        [["file_name", "width", "kind"], ["a.JPEG", "640", "ant"], ["b.jpg", "800", "dog"]],
        [["a.JPEG", "1", "640"], ["b.jpg", "2", "800"]],
    ],
)
def test_a_label_column_is_not_guessed(flat, rows):
    """With pandas' index, or an image's width, for the label each image would have its own."""
    write_csv(flat / "labels.csv", rows)
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    (flat / "labels.jsonl").write_text("\n".join(map(json.dumps, records)))
    for name in ("labels.csv", "labels.jsonl"):
        with pytest.raises(
            ConfigError, match=rf"which column is the label.*labels.csv:COLUMN.*; there are {rows[0][0]}"
        ):
            ShardDataset(flat, label=name)
        if "kind" in rows[0]:
            with open(flat / "labels.csv", newline="", encoding="utf-8-sig") as file:
                kinds = {row["file_name"]: row["kind"] for row in csv.DictReader(file)}
            assert ShardDataset(flat, label=f"{name}:kind").classes == sorted(kinds.values())


def test_a_whole_name_comes_before_a_base_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ["d1/x.jpg", "x.jpg", "d2/y.jpg", "d3/z.jpg", "d3/z.png"]
    for number, file in enumerate(files):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(IMAGES[number])
    entries = {"d1/x.jpg": 1, "x.jpg": 2, "y.jpg": 3, "d3/z.jpg": 4, "d3/z.png": 5}
    (tmp_path / "labels.json").write_text(json.dumps(entries))
    for on_error in ("raise", "skip"):
        for order in (files, files[::-1], [*files, "x.jpg", "d2/y.jpg"]):
            dataset = ShardDataset(order, label="labels.json", on_error=on_error)
            assert dataset.labels.tolist() == [entries.get(file, entries.get(file[3:])) for file in order]


@pytest.mark.parametrize("name", ["x.jpg", "d1/z"])
def test_a_name_of_several_images_is_none_of_them(tmp_path, name):
    for number, file in enumerate(["d1/x.jpg", "d2/x.jpg", "d1/z.jpg", "d1/z.png"]):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(IMAGES[number])
    write_csv(tmp_path / "l.csv", [["file", "y"], ["d1/x.jpg", 1], ["d2/x.jpg", 2], ["d1/z.png", 3], [name, 4]])
    with pytest.raises(ShardError, match=f"1 of its entries name no image here, or more than one; .* '{name}'"):
        ShardDataset(tmp_path, label="l.csv")
    assert ShardDataset(tmp_path, label="l.csv", on_error="skip").labels.tolist() == [1, 3, 2]


def test_an_image_with_two_labels_has_none(flat):
    write_csv(flat / "labels.csv", [["file", "y"], ["b.jpg", 1], ["a.JPEG", 2], ["./b.jpg", 7], ["b", 7], ["a", 2]])
    with pytest.raises(ShardError, match="1 of its entries give an image another label than one before them.*'b"):
        ShardDataset(flat, label="labels.csv")
    dataset = ShardDataset(flat, label="labels.csv", on_error="skip")
    assert [dataset.name(i)[1] for i in range(len(dataset))] == ["a"] and dataset.labels.tolist() == [2]
    assert sum(not finding.note for finding in dataset.findings) == 2


def test_images_and_entries_that_do_not_meet_are_named(flat):
    write_csv(flat / "labels.csv", [["filename", "label"], ["b.jpg", 7], ["gone.jpg", 1], ["lost.jpg", 2]])
    with pytest.raises(
        ShardError, match="2 of its entries name no image here, or more than one; the first is 'gone.jpg'"
    ):
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


def test_a_file_behind_a_signed_url_is_read_and_no_error_shows_its_secret(flat, monkeypatch):
    contents = {"good": b"file_name,label,species\nb.jpg,7,dog\na.JPEG,-3,ant\n", "bad": b"\xff\xfe\0"}
    contents["lost"] = contents["good"] + b"gone.jpg,1,cat\n"
    monkeypatch.setattr(
        "gpuload.shards.labels.read_optional",
        lambda url, options: contents.get(url.rpartition("/")[2].partition(".")[0]),
    )
    host = "https://me:secret@host"
    assert ShardDataset(flat, label=f"{host}/good.csv?sig=secret").labels.tolist() == [-3, 7]
    assert ShardDataset(flat, label=f"{host}/good.csv?sig=secret:species").classes == ["ant", "dog"]
    skipped = ShardDataset(flat, label=f"{host}/lost.csv?sig=secret", on_error="skip")
    assert "lost.csv" in repr(skipped.findings) and "secret" not in repr(skipped.findings)
    names = ["none.csv", "bad.csv", "lost.csv", "good.csv?sig=secret:breed", "lost.csv?sig=secret", "text?sig=secret"]
    for name in names:
        with pytest.raises((ConfigError, ShardError), match=f"https://host/{name.partition('?')[0]}") as caught:
            ShardDataset(flat, label=f"{host}/{name}")
        assert "secret" not in repr((caught.value, caught.value.__cause__))


def test_numbers_and_names():
    assert numbers_of([3, "4", np.int64(5), None]).numbers.tolist() == [3, 4, 5, NO_LABEL]
    assert numbers_of([1.0, "2"]).numbers.tolist() == [1, 2]
    named = numbers_of([b"x", "a", None, "x"])
    assert named.classes == ("a", "x") and named.numbers.tolist() == [1, 0, NO_LABEL, 1]
    assert numbers_of(["1.5", "2"]).numbers.tolist() == [NO_LABEL, 2]
    assert numbers_of([]).numbers.tolist() == []
    assert numbers_of([1.5, np.float32(2.5), float("nan"), float("inf"), 3]).numbers.tolist() == [NO_LABEL] * 4 + [3]
    assert numbers_of([float("inf"), "x"]).numbers.tolist() == [NO_LABEL, 0]
    assert numbers_of([float("nan")] * 2).classes is None
    assert numbers_of([2**63, -(2**63) - 1, 2**63 - 1]).numbers.tolist() == [NO_LABEL, NO_LABEL, 2**63 - 1]
