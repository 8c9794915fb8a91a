"""MDS shards: written by hand from the layout here, by MosaicML's own writer in `make test-full`."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import struct
from decimal import Decimal

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.core.errors import ConfigError, ShardError
from gpuload.testing import Expected, check_dataset
from tests.shards.containers import IMAGES, mds

COLUMNS = {"image": "jpeg", "label": "int", "name": "str", "meta": "json", "w": "float32"}
SIZES = {"label": 8, "w": 4}
EXPECTED = [Expected(hashlib.sha256(image).hexdigest(), 10 + i) for i, image in enumerate(IMAGES)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def row(i: int) -> dict[str, bytes]:
    return {
        "image": IMAGES[i],
        "label": struct.pack("<q", 10 + i),
        "name": f"ü{i}".encode(),
        "meta": json.dumps({"i": i}).encode(),
        "w": struct.pack("<f", i / 4),
    }


def index_json(*shards: dict) -> str:
    return json.dumps({"version": 2, "shards": [{"format": "mds", "samples": 3, **shard} for shard in shards]})


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(2):
        shard = mds(COLUMNS, SIZES, [row(i) for i in range(3 * number, 3 * number + 3)])
        (folder / f"shard.{number:05d}.mds").write_bytes(shard)
    raw = [{"raw_data": {"basename": f"shard.{number:05d}.mds"}, "zip_data": None} for number in range(2)]
    (folder / "index.json").write_text(index_json(*raw))
    return folder


def test_every_promise_holds(data):
    dataset = ShardDataset(data)
    assert "mds: 6 samples in 2 files" in repr(dataset)
    check_dataset(dataset, EXPECTED)


def test_columns_ride_along(data):
    dataset = ShardDataset(data, fields=("image", "name", "meta", "w"))
    for i in range(6):
        _, name, meta, weight = dataset[i]
        assert (name, meta, weight) == (f"ü{i}", {"i": i}, np.float32(i / 4)) and weight.dtype == np.float32


def test_the_index_says_which_shards_and_in_which_order(data):
    raw = [{"raw_data": {"basename": f"shard.{number:05d}.mds"}, "zip_data": None} for number in (1, 0)]
    (data / "index.json").write_text(index_json(*raw))
    check_dataset(ShardDataset(data), EXPECTED[3:] + EXPECTED[:3])
    check_dataset(ShardDataset(data / "shard.00001.mds"), EXPECTED[3:])
    (data / "index.json").unlink()
    check_dataset(ShardDataset(data), EXPECTED)


def test_compressed_shards_are_expanded_once(data):
    shards = []
    for number in range(2):
        path = data / f"shard.{number:05d}.mds"
        (data / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        shards.append({"raw_data": {"basename": path.name}, "zip_data": {"basename": f"{path.name}.gz"}})
    (data / "index.json").write_text(index_json(*shards))
    dataset = ShardDataset(data)
    assert [finding.note for finding in dataset.findings] == [True, True]
    check_dataset(dataset, EXPECTED)


@pytest.mark.parametrize("name", ["../secret.mds", "/etc/secret.mds", "a/../../b.mds", "http://host/x.mds"])
def test_an_index_cannot_lead_out_of_its_folder(data, name):
    (data / "index.json").write_text(index_json({"raw_data": {"basename": name}, "zip_data": None}))
    with pytest.raises(ShardError, match="outside of its folder"):
        ShardDataset(data)


def test_pickled_columns_are_refused_unless_trusted(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    rows = [{"image": IMAGES[0], "label": struct.pack("<q", 1), "p": pickle.dumps(Evil())}]
    columns = {"image": "jpeg", "label": "int", "p": "pkl"}
    (tmp_path / "a.mds").write_bytes(mds(columns, {"label": 8}, rows))
    assert ShardDataset(tmp_path / "a.mds")[0][1] == 1
    with pytest.raises(ConfigError, match="'p', which is pickled.*trust_pickle=True"):
        ShardDataset(tmp_path / "a.mds", fields=("image", "p"))
    with pytest.raises(ConfigError, match="pickled"):
        ShardDataset(tmp_path / "a.mds", label="p")
    assert not (tmp_path / "ran").exists()
    ShardDataset(tmp_path / "a.mds", fields=("image", "p"), trust_pickle=True)[0]
    assert (tmp_path / "ran").exists()


def test_images_may_be_bytes_and_keys_a_column(tmp_path):
    columns = {"jpg": "bytes", "mask": "bytes", "__key__": "str", "cls": "str_int"}
    rows = [{"jpg": IMAGES[i], "mask": b"\0\1", "__key__": b"k%d" % i, "cls": b"%d" % -i} for i in range(3)]
    (tmp_path / "a.mds").write_bytes(mds(columns, {}, rows))
    dataset = ShardDataset(tmp_path / "a.mds", fields=("image", "label", "mask"))
    assert [dataset.name(i)[1] for i in range(3)] == ["k0", "k1", "k2"]
    assert dataset.labels.tolist() == [0, -1, -2] and dataset.get_encoded(2)[2] == b"\0\1"


@pytest.mark.parametrize(
    ("encoding", "sizes", "label"),
    [("uint64", {"label": 8}, struct.pack("<Q", 2**63 + 5)), ("str_int", {}, b"1" + b"0" * 30)],
)
def test_a_label_beyond_int64_is_none(tmp_path, encoding, sizes, label):
    fine = struct.pack("<Q", 7) if sizes else b"7"
    rows = [{"image": IMAGES[0], "label": label}, {"image": IMAGES[1], "label": fine}]
    (tmp_path / "a.mds").write_bytes(mds({"image": "jpeg", "label": encoding}, sizes, rows))
    with pytest.raises(ShardError, match="sample 00000000: it has no label"):
        ShardDataset(tmp_path / "a.mds")
    assert ShardDataset(tmp_path / "a.mds", on_error="skip").labels.tolist() == [7]


@pytest.mark.parametrize("count", [19778, 559903])
def test_a_count_that_looks_like_another_format_is_a_count(tmp_path, count):
    """So many samples begin as a BMP does, and as gzip does."""
    shard = mds({"image": "jpeg", "label": "int8"}, {"label": 1}, [{"image": b"\xff", "label": b"\3"}] * count)
    assert shard.startswith((b"BM", b"\x1f\x8b\x08"))
    (tmp_path / "a.mds").write_bytes(shard)
    assert ShardDataset(tmp_path / "a.mds").labels.sum() == 3 * count


def test_what_is_no_shard_or_has_no_images_is_named(tmp_path):
    pixels = mds({"image": "pil", "label": "int"}, {"label": 8}, [{"image": b"\0" * 50, "label": bytes(8)}])
    for name, content, problem in [
        ("a", b"", "no MDS shard"),
        ("b", b"\xff\xff\xff\x7f" * 30, "no room for 2147483647 offsets"),
        ("c", pixels, r"no column of it holds encoded images. There are: image .pil., label .int."),
        ("d", b"\2\0\0\0" + b"\x40\0\0\0\x20\0\0\0\x60\0\0\0" + b"\0" * 200, "do not ascend"),
        ("e", b"\1\0\0\0" + b"\x40\0\0\0\x60\0\0\0" + b"\0" * 200, "description of columns"),
    ]:
        (tmp_path / f"{name}.mds").write_bytes(content)
        with pytest.raises(ShardError, match=problem):
            ShardDataset(tmp_path / f"{name}.mds")


def test_damage_costs_what_it_hits(tmp_path):
    shard = bytearray(mds(COLUMNS, SIZES, [row(i) for i in range(6)]))
    offsets = np.frombuffer(shard[4 : 4 + 28], "<u4").tolist()
    (tmp_path / "cut.mds").write_bytes(shard[: offsets[4] + 10])
    dataset = ShardDataset(tmp_path / "cut.mds", on_error="skip")
    assert len(dataset.findings) == 1 and "2 of its 6 samples are lost" in dataset.findings[0].problem
    check_dataset(dataset, EXPECTED[:4])
    shard[offsets[1]] ^= 1  # the first column's size in the second sample
    (tmp_path / "bad.mds").write_bytes(shard)
    with pytest.raises(ShardError, match="sample 00000001: the column sizes"):
        ShardDataset(tmp_path / "bad.mds")
    dataset = ShardDataset(tmp_path / "bad.mds", on_error="skip")
    assert len(dataset.findings) == 1
    check_dataset(dataset, [EXPECTED[i] for i in (0, 2, 3, 4, 5)])


VALUES = {
    "str": ("text ü", "text ü"),
    "bytes": (b"\0\1", b"\0\1"),
    "json": ({"a": [1]}, {"a": [1]}),
    "str_int": (-5, -5),
    "str_float": (0.5, 0.5),
    "str_decimal": (Decimal("1.10"), Decimal("1.10")),
    "uint8": (np.uint8(200), np.uint8(200)),
    "int16": (np.int16(-3), np.int16(-3)),
    "float16": (np.float16(0.5), np.float16(0.5)),
    "float64": (0.1, np.float64(0.1)),
    "ndarray": (np.arange(6, dtype=np.int16).reshape(2, 3),) * 2,
    "ndarray:float32": (np.ones((300, 1), np.float32),) * 2,
    "ndarray:uint8:2,2": (np.eye(2, dtype=np.uint8),) * 2,
}


@pytest.mark.full
@pytest.mark.parametrize("compression", [None, "zstd", "gz"])
def test_what_mosaicml_writes(tmp_path, compression):
    streaming = pytest.importorskip("streaming")
    columns = {"image": "bytes", "label": "int", **{name.replace(":", "_"): name for name in VALUES}}
    with streaming.MDSWriter(
        out=str(tmp_path / "data"), columns=columns, compression=compression, size_limit=9000
    ) as out:
        for i, image in enumerate(IMAGES):
            out.write({"image": image, "label": 10 + i, **{n.replace(":", "_"): v for n, (v, _) in VALUES.items()}})
    dataset = ShardDataset(tmp_path / "data", fields={"image": "image", "label": "label", **{n: n for n in columns}})
    for i in range(len(IMAGES)):
        sample = dataset.get_encoded(i)
        for name, (_, value) in VALUES.items():
            read = sample[name.replace(":", "_")]
            assert np.array_equal(read, value) and (not hasattr(value, "dtype") or read.dtype == value.dtype), name
    check_dataset(ShardDataset(tmp_path / "data"), EXPECTED)
