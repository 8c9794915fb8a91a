"""TFRecord shards: what is written from the specification comes back, and damage costs its own record."""

from __future__ import annotations

import gzip
import struct
import zlib

import numpy as np
import pytest
import torch

from gpuload import DataLoader, ShardDataset
from gpuload.core.errors import ShardError
from gpuload.shards import tfrecord
from gpuload.testing import Expected, check_dataset
from tests.kernels.records import masked, record
from tests.shards.containers import IMAGES, example

BOXES = [np.array([0.1, 0.2], np.float32), np.array([], np.float32), np.array([0.5], np.float32)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def features(i: int) -> dict:
    found = {
        "image/class/label": [i + 1],
        "image/encoded": IMAGES[i],
        "image/filename": f"n0{i}/a.{i}.JPEG".encode(),
        "image/class/text": f"ü{i}".encode(),
        "height": [-i],
        "score": np.array([i / 4], np.float32),
        "boxes": BOXES[i % 3],
        "ids": list(range(i)) or None,
    }
    return dict(reversed(found.items())) if i % 2 else found


def write(path, rows=range(6), *, packed: bool = True) -> str:
    path.write_bytes(b"".join(record(example(features(i), packed=packed)) for i in rows))
    return str(path)


def expected(rows=range(6)) -> list[Expected]:
    import hashlib

    return [Expected(hashlib.sha256(IMAGES[i]).hexdigest(), i + 1, f"n0{i}/a.{i}") for i in rows]


def test_every_promise_holds_over_two_shards(tmp_path):
    (folder := tmp_path / "data").mkdir()  # beside the cache, which would make a tree of it
    write(folder / "train-00000-of-00002", range(4))
    write(folder / "train-00001-of-00002", range(4, 6))
    dataset = ShardDataset(folder)
    assert "tfrecord: 6 samples in 2 files" in repr(dataset)
    check_dataset(dataset, expected())


@pytest.mark.parametrize("packed", [True, False])
def test_features_of_any_type_ride_along(tmp_path, packed):
    write(tmp_path / "a.tfrecord", packed=packed)
    fields = ("image", "height", "score", "boxes", "ids", "image/class/text", "key")
    dataset = ShardDataset(tmp_path / "a.tfrecord", fields=fields, on_error="skip")
    for i in range(6):
        _, height, score, boxes, ids, text, key = dataset[i]
        assert height == -i and type(height) is int
        assert score == np.float32(i / 4) and score.dtype == np.float32
        assert boxes.dtype == np.float32 and boxes.tolist() == BOXES[i % 3].tolist()
        assert list(ids) == list(range(i)) and text == f"ü{i}".encode() and key == f"n0{i}/a.{i}"


def test_numbers_are_tensors_in_a_batch(tmp_path):
    write(tmp_path / "a.tfrecord")

    def transform(image):
        return torch.zeros(3, 2, 2)

    dataset = ShardDataset(tmp_path / "a.tfrecord", transform=transform, fields=("image", "label", "height", "score"))
    [(_, labels, heights, scores)] = DataLoader(dataset, batch_size=6, device="cpu")
    assert labels.tolist() == [1, 2, 3, 4, 5, 6] and heights.dtype == torch.int64
    assert heights.tolist() == [-i for i in range(6)]
    assert scores.dtype == torch.float32 and scores.tolist() == [i / 4 for i in range(6)]


def test_a_field_that_is_one_value_in_some_shards_is_a_list_in_all(tmp_path):
    for number, ids in enumerate([[7], [8, 9]]):
        data = record(example({"image": IMAGES[0], "label": [0], "ids": ids}))
        (tmp_path / f"{number}.tfrecord").write_bytes(data)
    dataset = ShardDataset(tmp_path, fields=("image", "ids"))
    assert [dataset[i][1].tolist() for i in range(2)] == [[7], [8, 9]]
    assert ShardDataset(tmp_path / "0.tfrecord", fields=("image", "ids"))[0][1] == 7


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_files_are_expanded_once_whatever_their_name(tmp_path, compress):
    data = write(tmp_path / "plain.tfrecord")
    (tmp_path / "data").mkdir()
    with open(data, "rb") as file:
        (tmp_path / "data" / "train-00000-of-00001").write_bytes(compress(file.read()))
    dataset = ShardDataset(tmp_path / "data")
    [note] = dataset.findings
    assert note.note and "expanded once" in note.problem
    check_dataset(dataset, expected())
    assert dataset.name(0)[0].endswith("train-00000-of-00001")


def test_records_longer_than_a_window_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "LOCAL_WINDOW_BYTES", 700)
    write(tmp_path / "a.tfrecord")
    check_dataset(ShardDataset(tmp_path / "a.tfrecord"), expected())


@pytest.mark.parametrize("window_bytes", [1 << 23, 100])
@pytest.mark.parametrize("damage", ["length", "length crc", "data", "data crc"])
def test_damage_costs_one_record_and_is_one_finding(tmp_path, monkeypatch, damage, window_bytes):
    monkeypatch.setattr(tfrecord, "LOCAL_WINDOW_BYTES", window_bytes)
    records = [record(example(features(i))) for i in range(6)]
    bad = bytearray(records[2])
    bad[{"length": 1, "length crc": 9, "data": 60, "data crc": -2}[damage]] ^= 16
    records[2] = bytes(bad)
    (tmp_path / "a.tfrecord").write_bytes(b"".join(records))
    with pytest.raises(ShardError, match=f"byte {len(records[0]) + len(records[1])} is damaged .CRC32C|CRC32C"):
        ShardDataset(tmp_path / "a.tfrecord")
    dataset = ShardDataset(tmp_path / "a.tfrecord", on_error="skip")
    assert len(dataset.findings) == 1
    check_dataset(dataset, expected([0, 1, 3, 4, 5]))


def test_a_file_that_is_cut_off_keeps_what_is_whole(tmp_path):
    records = [record(example(features(i))) for i in range(3)]
    for end in (5, 40, len(records[2]) - 1):
        path = tmp_path / f"{end}.tfrecord"
        path.write_bytes(records[0] + records[1] + records[2][:end])
        dataset = ShardDataset(path, on_error="skip")
        [finding] = dataset.findings
        assert "cut off at byte" in finding.problem and not finding.note
        check_dataset(dataset, expected([0, 1]))


def test_other_schemas_are_named(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(record(example({"text": b"hello", "n": [1]})) * 3)
    with pytest.raises(ShardError, match="no feature of its Examples holds encoded images. There are: n, text"):
        ShardDataset(tmp_path / "a.tfrecord")
    (tmp_path / "b.tfrecord").write_bytes(record(b"\xff\xd8\xff raw jpeg") * 3)
    with pytest.raises(ShardError, match="no tf.train.Example"):
        ShardDataset(tmp_path / "b.tfrecord")
    odd = record(example({"photo": IMAGES[0], "label": [3]}))
    (tmp_path / "c.tfrecord").write_bytes(odd + record(b"junk") + odd)
    dataset = ShardDataset(tmp_path / "c.tfrecord", on_error="skip")
    assert dataset.labels.tolist() == [3, 3] and len(dataset.findings) == 1
    assert "1 records are no tf.train.Example; the first is record 1" in dataset.findings[0].problem


def test_text_that_begins_as_an_image_does_is_none(tmp_path):
    rows = [{"image/encoded": IMAGES[0], "text": b"BMW", "label": [0]}, {"text": b"BMX", "label": [1]}]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(record(example(row)) for row in rows))
    dataset = ShardDataset(tmp_path / "a.tfrecord", on_error="skip")
    assert dataset.labels.tolist() == [0] and dataset.findings[0].problem == "a record without an image"


def test_an_empty_file_is_one_without_records(tmp_path):
    write(tmp_path / "a.tfrecord")
    (tmp_path / "b.tfrecord").write_bytes(b"")
    dataset = ShardDataset(tmp_path)
    assert len(dataset) == 6 and [(f.note, f.problem) for f in dataset.findings] == [(True, "it holds no record")]
    with pytest.raises(ShardError, match="no sample in it"):
        ShardDataset(tmp_path / "b.tfrecord")


def test_a_length_beyond_the_file_reads_nothing_of_that_size(tmp_path):
    length = struct.pack("<Q", 1 << 60)
    head = length + struct.pack("<I", masked(length))
    (tmp_path / "a.tfrecord").write_bytes(record(example(features(0))) + head + b"x" * 50)
    dataset = ShardDataset(tmp_path / "a.tfrecord", on_error="skip")
    assert len(dataset) == 1 and "cut off" in dataset.findings[0].problem


@pytest.mark.parametrize("start", [b"\xff\xd8\xff\xe0", b"II*\0", b"MM\0*", b"BM"])
def test_an_image_of_any_name_is_known_by_its_first_bytes(tmp_path, start):
    rows = [{"caption": b"text", "scan": start + bytes(20), "empty": b""} for _ in range(3)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(record(example(row)) for row in rows))
    dataset = ShardDataset(tmp_path / "a.tfrecord", fields=("image",))
    assert [bytes(dataset.get_encoded(i)[0].data) for i in range(3)] == [start + bytes(20)] * 3
    assert dataset.members == ("caption", "empty")


@pytest.mark.parametrize("window_bytes", [1 << 20, 3000])
def test_a_key_is_what_the_best_feature_for_it_says(tmp_path, monkeypatch, window_bytes):
    """Features that come late, are empty, lists or numbers, in windows of many records and of few."""
    monkeypatch.setattr(tfrecord, "LOCAL_WINDOW_BYTES", window_bytes)
    names = [
        {"image/filename": b"a/file.jpg"},
        {"image/filename": b"b.jpg", "__key__": b"best"},
        {},
        {"filename": b"c.png", "image_id": b"7"},
        {"__key__": [b"one", b"two"], "filename": b"d.png"},
        {"image_id": [7]},
        {"__key__": b"", "filename": b"e.png"},
    ]
    rows = [
        {"image/encoded": IMAGES[i % 6], "image/class/label": [i], "note": b"%d" % i} | more
        for i, more in enumerate(names)
    ]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(record(example(row)) for row in rows))
    dataset = ShardDataset(tmp_path / "a.tfrecord", fields=("key", "label", "image", "note"))
    keys, labels, notes = dataset.columns(np.arange(len(rows)))
    assert keys == ["a/file", "best", "00000002", "c", "d", "00000005", "00000006"]
    assert labels.tolist() == list(range(7)) and notes == [b"%d" % i for i in range(7)]
    assert [bytes(dataset.get_encoded(i)[2].data) for i in range(7)] == [IMAGES[i % 6] for i in range(7)]
