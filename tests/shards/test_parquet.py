"""Parquet by pyarrow's own writer: pages that lie as they are, pages that do not, columns of many types, damage."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch

from gpuload import DataLoader, ShardDataset
from gpuload.core.errors import MissingDependencyError, ShardError
from gpuload.testing import Expected, check_dataset
from tests.shards.containers import IMAGES

EXPECTED = [Expected(hashlib.sha256(image).hexdigest(), i % 3, f"photo{i}") for i, image in enumerate(IMAGES)]
NAMES = ["cat", "dog", "ant"]
DELTA = {"image.bytes": "DELTA_BYTE_ARRAY"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def images(rows=range(6)) -> list[dict]:
    return [{"bytes": IMAGES[i], "path": f"photo{i}.jpg"} for i in rows]


def write(path, columns: dict, features: dict | None = None, **settings) -> str:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, **settings)
    return str(path)


def hugging_face(path, rows=range(6), **settings) -> str:
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": NAMES}}
    return write(path, {"label": [i % 3 for i in rows], "image": images(rows)}, features, **settings)


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(MissingDependencyError, match=r"pyarrow, which is not installed.*gpuload\[formats\]"):
        ShardDataset(tmp_path / "a.parquet")


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "in_place"),
    [
        ({"compression": "none", "use_dictionary": False}, True),
        ({"compression": "none", "use_dictionary": False, "data_page_version": "2.0"}, True),
        ({"compression": "none", "use_dictionary": False, "data_page_size": 1, "write_batch_size": 1}, True),
        ({"compression": "none", "use_dictionary": False, "write_page_checksum": True}, True),
        ({"compression": "none", "use_dictionary": True}, True),
        (
            {"compression": "none", "column_encoding": {"image.bytes": "DELTA_BYTE_ARRAY"}, "use_dictionary": False},
            False,
        ),
        ({"compression": "snappy"}, False),
        ({"compression": "zstd", "use_dictionary": False}, False),
        ({"compression": "gzip", "row_group_size": 2}, False),
    ],
)
def test_every_promise_holds_however_pages_are_written(tmp_path, settings, in_place):
    path = hugging_face(tmp_path / "a.parquet", **{"row_group_size": 4, **settings})
    dataset = ShardDataset(path)
    assert dataset.classes == NAMES and list(dataset.files)[:1] == [path]
    assert (len(dataset.files) == 1 and not dataset.findings) == in_place
    check_dataset(dataset, EXPECTED)
    check_dataset(ShardDataset(path), EXPECTED)  # from its index


@pytest.mark.full
def test_an_image_that_comes_twice_is_found_twice(tmp_path):
    rows = [0, 1, 0, 0, 2, 1]
    for dictionary in (True, False):
        path = hugging_face(tmp_path / f"{dictionary}.parquet", rows, compression="none", use_dictionary=dictionary)
        check_dataset(ShardDataset(path), [EXPECTED[i] for i in rows])


@pytest.mark.full
def test_columns_of_any_type_ride_along(tmp_path):
    pa = pytest.importorskip("pyarrow")
    columns = {
        "image": pa.array(IMAGES),
        "label": [0, 1, 2, 0, 1, 2],
        "text": ["a", "ü", "", "b", "c", "d"],
        "score": pa.array([0.5] * 6, pa.float32()),
        "big": pa.array([2**62] * 6),
        "flag": [True, False] * 3,
        "row": [[1, 2], [], [3], [4], [5], [6]],
        "mask": images(),
        "nested": [{"a": [1, "x"][:1]}] * 6,
        "code": pa.array(["x", "y"] * 3).dictionary_encode(),
        "filename": [f"d/{i}.png" for i in range(6)],
    }
    path = write(tmp_path / "a.parquet", columns, compression="none", use_dictionary=False)
    names = ["text", "score", "big", "flag", "row", "mask", "nested", "code"]
    dataset = ShardDataset(path, fields=("image", "label", *names))
    for i in range(6):
        _, label, text, score, big, flag, row, mask, nested, code = dataset.get_encoded(i)
        assert (label, text, big, nested, code) == (i % 3, columns["text"][i], 2**62, {"a": [1]}, "xy"[i % 2])
        assert score == 0.5 and score.dtype == np.float32 and flag == (i % 2 == 0) and mask == IMAGES[i]
        assert row.dtype == np.int64 and row.tolist() == columns["row"][i] and dataset.name(i)[1] == f"d/{i}"
    fields = ("image", "score", "flag")
    dataset = ShardDataset(path, transform=lambda image: torch.zeros(1), fields=fields)
    [(_, scores, flags)] = DataLoader(dataset, batch_size=6, device="cpu")
    assert scores.dtype == torch.float32 and flags.dtype == torch.bool and flags.tolist() == [True, False] * 3


@pytest.mark.full
def test_labels_that_are_names_are_numbered(tmp_path):
    write(tmp_path / "a.parquet", {"image": images(range(3)), "label": ["dog", "cat", "dog"]})
    write(tmp_path / "b.parquet", {"image": images(range(3, 6)), "label": ["ant", None, "dog"]})
    dataset = ShardDataset(tmp_path, on_error="skip")
    assert dataset.classes == ["ant", "cat", "dog"] and dataset.labels.tolist() == [2, 1, 2, 0, 2]


@pytest.mark.full
def test_nulls_and_missing_bytes(tmp_path):
    rows = images()
    rows[1], rows[2] = None, {"bytes": None, "path": "outside.jpg"}
    path = write(tmp_path / "a.parquet", {"image": rows, "label": [i % 3 for i in range(6)]})
    with pytest.raises(ShardError, match="sample 00000001: a sample without an image"):
        ShardDataset(path)
    dataset = ShardDataset(path, on_error="skip")
    assert [finding.key for finding in dataset.findings if not finding.note] == ["00000001", "outside"]
    check_dataset(dataset, [EXPECTED[i] for i in (0, 3, 4, 5)])
    outside = [{"bytes": None, "path": f"/data/{i}.jpg"} for i in range(3)]
    pa = pytest.importorskip("pyarrow")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write(tmp_path / "b.parquet", {"image": pa.array(outside, kind), "label": [0, 1, 2]})
    with pytest.raises(ShardError, match="holds no image bytes, only paths such as '/data/0.jpg'.*embed_table_storage"):
        ShardDataset(tmp_path / "b.parquet")
    write(tmp_path / "c.parquet", {"text": ["a"], "n": [1]})
    with pytest.raises(ShardError, match=r"no column of it holds encoded images. There are: text .string., n .int64."):
        ShardDataset(tmp_path / "c.parquet")


@pytest.mark.full
def test_a_damaged_row_group_costs_its_own_rows(tmp_path):
    path = tmp_path / "a.parquet"
    settings = {"compression": "gzip", "row_group_size": 2, "use_dictionary": False, "write_page_checksum": True}
    hugging_face(path, **settings)
    import pyarrow.parquet as pq

    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    at = column.data_page_offset + column.total_compressed_size - 400
    data[at : at + 50] = bytes(50)
    path.write_bytes(data)
    with pytest.raises(ShardError, match="rows 2 to 3 cannot be read"):
        ShardDataset(path)
    dataset = ShardDataset(path, on_error="skip")
    assert sum(not finding.note for finding in dataset.findings) == 1
    check_dataset(dataset, [EXPECTED[i] for i in (0, 1, 4, 5)])
    path.write_bytes(data[:-20])
    with pytest.raises(ShardError, match="no Parquet file, or cut off"):
        ShardDataset(path)


@pytest.mark.full
def test_a_remote_file_is_read_by_ranges(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe_file("/parquet/a.parquet", open(hugging_face(tmp_path / "a", compression="none"), "rb").read())
    try:
        check_dataset(ShardDataset("memory://parquet/a.parquet"), EXPECTED)
    finally:
        system.rm("/parquet", recursive=True)
