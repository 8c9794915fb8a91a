"""What `gpuload pack` takes for the label, and that no other field is lost for it: against pyarrow's tables."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.cli.pack import pack
from gpuload.shards.fields import parse_field
from tests.kernels.records import record
from tests.shards.containers import IMAGES, example, mds

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

FORMATS = ["tar", "tfrecord", "parquet", "mds"]
COUNT = 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table(path, **columns) -> str:
    pq.write_table(pa.table({"image": pa.array(IMAGES[:COUNT], pa.binary()), **columns}), path)
    return str(path)


def values(shards, name: str) -> list:
    """Of a member of packed shards, None where a sample has none; bytes as text, which TFRecord does not tell apart."""
    dataset = ShardDataset(list(shards), fields=("image",))
    refs = dataset.member_refs(name, np.arange(len(dataset)))
    has, encoding = np.flatnonzero(refs["length"] >= 0), dataset.encodings.get(name, "")
    encoded = dataset.new_reader().read(dataset.files, refs[has])
    found = {row: parse_field(name, encoding, encoded.encoded(n).tobytes()) for n, row in enumerate(has.tolist())}
    texts = {row: value.decode() if isinstance(value, bytes) else value for row, value in found.items()}
    return [texts.get(row) for row in range(len(dataset))]


@pytest.mark.parametrize("format", FORMATS)
def test_labels_of_some_samples_are_kept(tmp_path, format):
    source = table(tmp_path / "a.parquet", label=pa.array([3, None, 5, -6]))
    shards = pack(source, tmp_path / "out", format, make_index=False).shards
    if format == "parquet":
        assert pq.read_table(shards[0])["label"].to_pylist() == [3, None, 5, -6]
    name = {"tar": "cls", "tfrecord": "image/class/label", "mds": "label"}.get(format)
    if name is not None:
        assert values(shards, name) == [3, None, 5, -6]
    if format != "mds":  # where numbers that may be missing are JSON
        dataset = ShardDataset(list(shards), on_error="skip")
        assert dataset.labels.tolist() == [3, 5, -6]


@pytest.mark.parametrize("format", FORMATS)
def test_a_second_column_that_is_called_like_a_label_is_kept(tmp_path, format):
    columns = {"category": [30, 40, 50, 60], "target": ["a", "b", "c", "d"], "cls": [7, 8, 9, 10]}
    source = table(tmp_path / "a.parquet", label=[3, 4, 5, 6], **columns)
    shards = pack(source, tmp_path / "out", format, make_index=False).shards
    assert ShardDataset(list(shards)).labels.tolist() == [3, 4, 5, 6]
    for name, wanted in columns.items():
        ending = {"target": ".txt"}.get(name, ".json") if format == "tar" else ""
        assert values(shards, name + ending) == wanted


@pytest.mark.parametrize("format", FORMATS)
def test_a_text_that_is_called_like_the_label_is_kept(tmp_path, format):
    names = [f"name {i}" for i in range(COUNT)]
    rows = [{"image": IMAGES[i], "cls": np.int64(i).tobytes(), "label": names[i].encode()} for i in range(COUNT)]
    (tmp_path / "a.mds").write_bytes(mds({"image": "jpeg", "cls": "int", "label": "str"}, {"cls": 8}, rows))
    shards = pack(tmp_path / "a.mds", tmp_path / "out", format, make_index=False).shards
    assert ShardDataset(list(shards)).labels.tolist() == list(range(COUNT))
    name = {"tar": "label.txt", "tfrecord": "label"}.get(format, "label_")
    assert values(shards, name) == names


@pytest.mark.parametrize("format", FORMATS)
def test_of_two_label_features_the_one_that_is_not_the_label_is_kept(tmp_path, format):
    features = [{"image/encoded": IMAGES[i], "image/class/label": [i], "label": [50 + i]} for i in range(COUNT)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(record(example(one)) for one in features))
    shards = pack(tmp_path / "a.tfrecord", tmp_path / "out", format, make_index=False).shards
    assert ShardDataset(list(shards)).labels.tolist() == list(range(COUNT))
    name = {"tar": "label.json", "tfrecord": "label"}.get(format, "label_")
    assert values(shards, name) == [50 + i for i in range(COUNT)]
    if format != "tar":
        again = pack(tmp_path / "out", tmp_path / "again", "tfrecord", make_index=False).shards
        assert ShardDataset(list(again)).labels.tolist() == list(range(COUNT))
        assert values(again, name) == [50 + i for i in range(COUNT)]
