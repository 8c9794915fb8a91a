"""The conformance suite over shards that other tools wrote, and what each kind of damage leaves."""

from __future__ import annotations

import hashlib
import json

import pytest
from PIL import UnidentifiedImageError

from gpuload import ShardDataset
from gpuload.core.errors import SampleError, ShardError
from gpuload.shards.formats import format_named
from gpuload.testing import CHECKS, Expected

READ = ("webdataset", "tfrecord", "tfrecord_gzip", "mds", "imagefolder", "flat_csv", "imagefolder_zip")
BY_PYARROW = ("parquet", "parquet_snappy")
FIXTURES = [*READ, *(pytest.param(name, marks=pytest.mark.full) for name in BY_PYARROW)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def manifest(real_data) -> dict:
    return json.loads((real_data / "formats" / "manifest.json").read_text())


@pytest.mark.parametrize("name", FIXTURES)
def test_what_other_tools_wrote_keeps_every_promise(real_data, manifest, name):
    if name in BY_PYARROW:
        pytest.importorskip("pyarrow")
    fixture = next(entry for entry in manifest["formats"] if entry["name"] == name)
    photos = {photo["position"]: photo for photo in manifest["photos"]}
    positions = [position for file in fixture["files"] for position in file["positions"] or []]
    offset = fixture["label_offset"]
    expected = [Expected(photos[at]["sha256"], photos[at]["label"] + offset) for at in positions]
    label = "labels.csv" if name == "flat_csv" else None
    dataset = ShardDataset(real_data / "formats" / fixture["path"], label=label)
    assert not [finding for finding in dataset.findings if not finding.note]
    for check in CHECKS:
        check(dataset, expected)


AT_READING = ("text_named_jpg", "truncated_jpeg", "zero_length_member")
"""Damage of an image, which its container cannot know of."""

UNSEEN = ("flip_scan", "flip_scan_crc_ok", "png_named_jpg")
"""Images that decode, to other pixels: no checksum says so. (A TFRecord's does.)"""


@pytest.mark.parametrize("kind", ["tar", "tfrecord", pytest.param("parquet", marks=pytest.mark.full)])
def test_damaged_shards_keep_what_is_intact_and_name_what_is_not(real_data, manifest, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    photos = {photo["sha256"]: photo["position"] for photo in manifest["photos"]}
    tried = 0
    for name, about in manifest["damaged"].items():
        folder, _, file = name.partition("/")
        if folder != kind:
            continue
        tried += 1
        damage = file.partition(".")[0]
        path = real_data / "formats" / "damaged" / name
        if not about["intact"]:
            with pytest.raises(ShardError, match="empty|no sample|no Parquet file, or cut off"):
                ShardDataset(path, on_error="skip")
            continue
        dataset = ShardDataset(path, on_error="skip")
        found, failures = [], []
        for index in range(len(dataset)):
            try:
                dataset[index]
            except SampleError as error:
                failures.append(error)
                continue
            found.append(photos.get(hashlib.sha256(dataset.get_encoded(index)[0].data).hexdigest()))
        assert [position for position in found if position is not None] == about["intact"], name
        losses = [finding for finding in dataset.findings if not finding.note]
        unseen = damage in UNSEEN and not (damage == "flip_scan" and kind == "tfrecord")
        if damage == "intact" or unseen:
            assert not losses and not failures and found.count(None) == unseen, name
        elif damage in AT_READING:
            assert not losses and len(failures) == 1 and str(path) in str(failures[0]), name
        else:
            assert len(losses) == 1 and losses[0].cure and not failures, (name, losses)
            with pytest.raises(ShardError, match="Write it again"):
                ShardDataset(path)
    assert tried > 8


def test_loose_damaged_images_fail_alone(real_data):
    dataset = ShardDataset(real_data / "formats" / "damaged" / "loose")
    failed = {}
    for index in range(len(dataset)):
        try:
            dataset[index]
        except SampleError as error:
            failed[dataset.name(index)[1]] = error
    assert sorted(failed) == sorted(AT_READING)
    assert isinstance(failed["text_named_jpg"], UnidentifiedImageError)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.tar", "tar"), ("a.TAR.GZ", "tar"), ("a.tgz", "tar"), ("s3://b/a.tar?sig=x.zip", "tar"),
        ("train-00000-of-01024", "tfrecord"), ("x.tfrecord-00000-of-00002", "tfrecord"), ("x.tfrec.gz", "tfrecord"),
        ("x-00000-of-00002.parquet", "parquet"), ("shard.00000.mds.zstd", "mds"), ("a.tfrecord", "tfrecord"),
        ("data-00000-of-00001.arrow", "arrow"), ("a.zip", "zip"),
        ("a.jpg", None), ("train-0000-of-01024", None), ("a.tar.txt", None),
    ],
)  # fmt: skip
def test_names_of_formats(name, format):
    known = format_named(name)
    assert (known.name if known else None) == format


def test_bytes_say_more_than_names(tmp_path):
    """A tar called .zip is a tar; with `format=` it is what was said, or nothing."""
    import tarfile

    (tmp_path / "1.jpg").write_bytes(b"\xff\xd8\xff" + bytes(100))
    with tarfile.open(tmp_path / "a.zip", "w") as tar:
        tar.add(tmp_path / "1.jpg", "k.jpg")
    assert len(ShardDataset(tmp_path / "a.zip", fields=("image",))) == 1
    with pytest.raises(ShardError, match="no ZIP archive"):
        ShardDataset(tmp_path / "a.zip", format="zip")
    (tmp_path / "b.bin").write_bytes(b"nothing known" * 100)
    with pytest.raises(ShardError, match="no shard of a known format .tar, parquet.*begins with b'nothing '"):
        ShardDataset(tmp_path / "b.bin")
