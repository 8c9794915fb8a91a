"""What `gpuload pack` writes, read by others: webdataset, MosaicML streaming, Hugging Face datasets, tf.data, tfrecord;
and what TensorFlow writes, read here."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpuload import ShardDataset
from gpuload.cli.pack import pack
from gpuload.testing import Expected, check_dataset

pytestmark = pytest.mark.full
COUNT = 9


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def source(tmp_path) -> tuple[Path, list[dict]]:
    """A tar with labels, texts, JSON and bytes, class names beside it; and its samples."""
    samples = []
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "x.tar", "w") as tar:
        for i in range(COUNT):
            out = io.BytesIO()
            pixels = np.random.default_rng(i).integers(0, 256, (6, 8, 3), np.uint8)
            Image.fromarray(pixels).resize((50 + i, 40)).save(out, "JPEG")
            members = {
                "cls": str(i % 3).encode(), "jpg": out.getvalue(), "json": json.dumps({"n": i}).encode(),
                "mask": bytes([i]) * i, "txt": f"caf\u00e9 {i}".encode(),
            }  # fmt: skip
            samples.append(members | {"key": f"f/k{i}"})
            for name, data in members.items():
                info = tarfile.TarInfo(f"f/k{i}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    (tmp_path / "in" / "classes.json").write_text('{"classes": ["ant", "bee", "cat"]}')
    return tmp_path / "in", samples


def test_webdataset_reads_tars(source, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    folder, samples = source
    done = pack(folder, tmp_path / "out", "tar", "6KB", entropy=False)
    assert len(done.shards) > 1
    found = list(webdataset.WebDataset(list(done.shards), shardshuffle=False).decode())
    raw = list(webdataset.WebDataset(list(done.shards), shardshuffle=False))
    assert [sample["__key__"] for sample in raw] == [sample["key"] for sample in samples]
    for one, encoded, sample in zip(found, raw, samples, strict=True):
        assert encoded["jpg"] == sample["jpg"] and encoded["mask"] == sample["mask"]
        assert one["cls"] == int(sample["cls"]) and one["json"] == json.loads(sample["json"])
        assert one["txt"] == sample["txt"].decode()


def test_webdataset_decodes_arrays_and_numbers(source, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    pytest.importorskip("streaming")
    from streaming import MDSWriter

    rows = [
        {"image": source[1][i]["jpg"], "box": np.arange(4 * i + 4, dtype=np.float32).reshape(-1, 4), "n": i}
        for i in range(4)
    ]
    with MDSWriter(out=str(tmp_path / "mds"), columns={"image": "bytes", "box": "ndarray", "n": "int"}) as writer:
        for row in rows:
            writer.write(row)
    done = pack(tmp_path / "mds", tmp_path / "out", "tar", entropy=False)
    for found, row in zip(webdataset.WebDataset(list(done.shards), shardshuffle=False).decode(), rows, strict=True):
        np.testing.assert_array_equal(found["box.npy"], row["box"])
        assert found["n.json"] == row["n"]


def test_streaming_reads_mds(source, tmp_path):
    streaming = pytest.importorskip("streaming")
    folder, samples = source
    done = pack(folder, tmp_path / "out", "mds", "6KB", entropy=False)
    assert len(done.shards) > 1
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(tmp_path / "out"), shuffle=False, batch_size=1)
    assert len(dataset) == COUNT
    for i, sample in enumerate(samples):
        found = dataset[i]
        assert found["__key__"] == sample["key"] and found["label"] == int(sample["cls"])
        np.testing.assert_array_equal(np.array(found["image"]), np.array(Image.open(io.BytesIO(sample["jpg"]))))
        assert found["json"] == json.loads(sample["json"]) and found["mask"] == sample["mask"]
        assert found["txt"] == sample["txt"].decode()


def test_datasets_reads_parquet(source, tmp_path):
    datasets = pytest.importorskip("datasets")
    folder, samples = source
    done = pack(folder, tmp_path / "out", "parquet", "6KB", entropy=False)
    assert len(done.shards) > 1
    dataset = datasets.Dataset.from_parquet(list(done.shards), cache_dir=str(tmp_path / "cache"))
    assert isinstance(dataset.features["image"], datasets.Image)
    assert dataset.features["label"].names == ["ant", "bee", "cat"] and len(dataset) == COUNT
    raw = dataset.cast_column("image", datasets.Image(decode=False))
    for found, encoded, sample in zip(dataset, raw, samples, strict=True):
        assert encoded["image"]["bytes"] == sample["jpg"]
        np.testing.assert_array_equal(np.array(found["image"]), np.array(Image.open(io.BytesIO(sample["jpg"]))))
        assert found["label"] == int(sample["cls"]) and found["__key__"] == sample["key"]
        assert json.loads(found["json"]) == json.loads(sample["json"]) and found["mask"] == sample["mask"]
        assert found["txt"] == sample["txt"].decode()


def test_a_hugging_face_dataset_is_packed_with_its_columns(source, tmp_path):
    datasets = pytest.importorskip("datasets")
    samples = source[1]
    features = datasets.Features({
        "image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat"]),
        "box": datasets.Sequence(datasets.Value("float32")), "n": datasets.Value("int32"),
    })  # fmt: skip
    rows = [{"image": {"bytes": s["jpg"]}, "label": i % 3, "box": [i, 0.5], "n": i} for i, s in enumerate(samples)]
    original = datasets.Dataset.from_list(rows, features=features)
    done = pack(original, tmp_path / "out", "parquet", entropy=False)
    assert pack(original, tmp_path / "out", "parquet", entropy=False).resumed == len(done.shards)
    found = datasets.Dataset.from_parquet(list(done.shards), cache_dir=str(tmp_path / "cache"))
    assert found.features["label"] == features["label"]
    for name in ("label", "box", "n"):
        assert found[:][name] == original[:][name]


def tensorflow(*arguments: str, given: Any) -> Any:
    """tests/cli/tensorflow_records.py's answer; skips where there is no TensorFlow for this machine."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow-cpu is not installed: it has wheels for Linux on x86-64 only")
    program = str(Path(__file__).with_name("tensorflow_records.py"))
    done = subprocess.run(
        [sys.executable, program, *arguments], input=json.dumps(given), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def test_tf_data_reads_tfrecords(source, tmp_path):
    folder, samples = source
    done = pack(folder, tmp_path / "out", "tfrecord", "6KB", entropy=False)
    assert len(done.shards) > 1
    names = {"image/encoded": "jpg", "image/filename": "key", "mask": "mask", "txt": "txt", "json": "json"}
    schema = dict.fromkeys(names, "string") | {"image/class/label": "int64"}
    for row, sample in zip(tensorflow("read", *done.shards, given=schema), samples, strict=True):
        assert row.pop("image/class/label") == int(sample["cls"])
        found = {name: bytes.fromhex(value["hex"]) for name, value in row.items()}
        assert json.loads(found.pop("json")) == json.loads(sample["json"])
        expected = {name: sample[member] for name, member in names.items() if name != "json"}
        assert found == expected | {"image/filename": sample["key"].encode()}


def test_tf_data_reads_numbers_and_arrays(source, tmp_path):
    boxes = [np.arange(4 * i, dtype=np.float32).reshape(i, 4) / 8 for i in range(3)]
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for i, box in enumerate(boxes):
            np.save(stored := io.BytesIO(), box)
            members = {"jpg": source[1][i]["jpg"], "box.npy": stored.getvalue(), "cls": b"%d" % (i - 1)}
            for name, data in members.items():
                info = tarfile.TarInfo(f"k{i}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    done = pack(tmp_path / "in.tar", tmp_path / "out", "tfrecord", entropy=False)
    schema = {"box.npy": "float32[]", "box.npy/shape": "int64[]", "image/class/label": "int64"}
    for i, row in enumerate(tensorflow("read", *done.shards, given=schema)):
        assert row == {"box.npy": boxes[i].ravel().tolist(), "box.npy/shape": [i, 4], "image/class/label": i - 1}


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_what_tensorflow_writes_is_read(source, tmp_path, compression):
    rows = [
        {
            "image/encoded": {"hex": sample["jpg"].hex()}, "image/class/label": i - 1,
            "image/filename": {"hex": f"f/k{i}.jpg".encode().hex()}, "box": [i / 4, -0.5], "ids": [i, -i, 2**40],
            "n": -i,
        }
        for i, sample in enumerate(source[1])
    ]  # fmt: skip
    path = tmp_path / "x.tfrecord"
    tensorflow("write", str(path), compression, given=rows)
    dataset = ShardDataset(path)
    hashes = [hashlib.sha256(sample["jpg"]).hexdigest() for sample in source[1]]
    check_dataset(dataset, [Expected(digest, i - 1, f"f/k{i}") for i, digest in enumerate(hashes)])
    columns = ShardDataset(path, fields=("image", "box", "ids", "n")).columns(np.arange(COUNT))
    for i, (box, ids, n) in enumerate(zip(*columns, strict=True)):
        assert box.tolist() == [i / 4, -0.5] and ids.tolist() == [i, -i, 2**40] and n == -i


def test_the_tfrecord_package_reads_tfrecords(source, tmp_path):
    """Another independent reader, for where there is no TensorFlow."""
    reader = pytest.importorskip("tfrecord.reader")
    folder, samples = source
    done = pack(folder, tmp_path / "out", "tfrecord", "6KB", entropy=False)
    assert len(done.shards) > 1
    names = {
        "image/encoded": "byte",
        "image/class/label": "int",
        "image/filename": "byte",
        "mask": "byte",
        "txt": "byte",
    }
    found = [row for path in done.shards for row in reader.tfrecord_loader(path, None, names)]
    for row, sample in zip(found, samples, strict=True):
        assert bytes(row["image/encoded"]) == sample["jpg"] and row["image/class/label"][0] == int(sample["cls"])
        assert bytes(row["image/filename"]).decode() == sample["key"]
        assert bytes(row["mask"]) == sample["mask"] and bytes(row["txt"]) == sample["txt"]
