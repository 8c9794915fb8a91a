"""Parquet by pyarrow's own writer: pages that lie as they are, pages that do not, columns of many types, damage."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch

from gpuload import DataLoader, ShardDataset
from gpuload.cli.pack import pack
from gpuload.cli.verify import verify
from gpuload.core.errors import ConfigError, MissingDependencyError, SampleError, ShardError
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
def test_nulls_inside_of_lists_are_kept(tmp_path):
    """In a shard of their own, too: a field is read alike in all shards."""
    pa = pytest.importorskip("pyarrow")
    flags, boxes = [[True, None], [], None, [False]], [[1, None], [2], None, []]
    rows = pa.array(boxes, pa.list_(pa.int16())), pa.array(flags), pa.array([[0.5, None], [], None, [1.0]])
    for name, part in (("a", slice(0, 2)), ("b", slice(2, 4))):
        columns = {column: values[part] for column, values in zip(("boxes", "flags", "scores"), rows, strict=True)}
        write(tmp_path / f"{name}.parquet", {"image": images(range(6)[part]), "label": [0, 1], **columns})
    dataset = ShardDataset(tmp_path, fields=("image", "boxes", "flags", "scores"), on_error="skip")
    found = [dataset.get_encoded(i)[1:] for i in range(len(dataset))]
    wanted = [(b, f) for b, f in zip(boxes, flags, strict=True) if b is not None]
    plain = [tuple(v.tolist() if isinstance(v, np.ndarray) else v for v in row[:2]) for row in found]
    assert plain == wanted and found[1][0].dtype == np.int16 and found[2][1].dtype == np.bool_
    assert np.array_equal(found[0][2], [0.5, np.nan], equal_nan=True)


@pytest.mark.full
def test_labels_beyond_int64_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    labels = pa.array([1, 2**63 + 5, 3], pa.uint64())
    path = write(tmp_path / "a.parquet", {"image": images(range(3)), "label": labels})
    with pytest.raises(ShardError, match="sample photo1: its label 9223372036854775813 is beyond int64"):
        ShardDataset(path)
    dataset = ShardDataset(path, on_error="skip")
    assert dataset.labels.tolist() == [1, 3] and [dataset.name(i)[1] for i in range(2)] == ["photo0", "photo2"]


@pytest.mark.full
def test_columns_of_one_name_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    names = ["image", "n", "n"]
    pq.write_table(pa.Table.from_arrays([pa.array(IMAGES), *[pa.array(range(6))] * 2], names), tmp_path / "a.parquet")
    with pytest.raises(ShardError, match="a.parquet: several columns of it are called 'n'"):
        ShardDataset(tmp_path / "a.parquet", fields=("image",))


@pytest.mark.full
def test_labels_that_are_names_are_numbered(tmp_path):
    write(tmp_path / "a.parquet", {"image": images(range(3)), "label": ["dog", "cat", "dog"]})
    write(tmp_path / "b.parquet", {"image": images(range(3, 6)), "label": ["ant", None, "dog"]})
    dataset = ShardDataset(tmp_path, on_error="skip")
    assert dataset.classes == ["ant", "cat", "dog"] and dataset.labels.tolist() == [2, 1, 2, 0, 2]


@pytest.mark.full
@pytest.mark.parametrize("names", [["tiger", "cat"], None])
def test_numbers_are_not_taken_for_names_of_other_shards(tmp_path, names):
    data = tmp_path / "data"
    data.mkdir()
    features = {"label": {"_type": "ClassLabel", "names": names}} if names else None
    write(data / "a.parquet", {"image": images(range(2)), "label": [0, 1] if names else ["tiger", "cat"]}, features)
    write(data / "b.parquet", {"image": images(range(2, 4)), "label": [0, 1]})
    with pytest.raises(ShardError, match="b.parquet: its labels are numbers, and those of other shards have names"):
        ShardDataset(data)
    dataset = ShardDataset(data, on_error="skip")
    assert [dataset.classes[label] for label in dataset.labels] == ["tiger", "cat"]
    assert len(ShardDataset(data, on_error="skip", fields=("image",))) == 4
    assert ShardDataset(data, on_error="skip", label=lambda key: int(key[-1])).labels.tolist() == [0, 1, 2, 3]


@pytest.mark.full
def test_a_field_of_several_types_costs_that_field_only(tmp_path):
    """pandas writes integers as float64 where one is missing."""
    data = tmp_path / "data"
    data.mkdir()
    for name, widths in (("a", [1, 2]), ("b", [3.0, float("nan")])):
        write(data / f"{name}.parquet", {"image": images(range(2)), "label": [0, 1], "width": widths, "n": [5, 6]})
    for _ in range(2):  # from the manifest, too
        dataset = ShardDataset(data, fields=("image", "label", "n"))
        assert dataset.columns(np.arange(4))[1] == [5, 6, 5, 6]
        assert any("shards store its field width in several ways" in f.problem and f.note for f in dataset.findings)
        with pytest.raises(ConfigError, match="'width', which shards store as np:int64 and np:float64"):
            ShardDataset(data, fields=("image", "width"))
    assert not verify(str(data)).faults
    with pytest.raises(SampleError, match="shards store it as np:int64 and np:float64"):
        pack(data, tmp_path / "packed")


@pytest.mark.full
def test_files_without_rows_and_images_behind_nulls(tmp_path):
    pa = pytest.importorskip("pyarrow")
    write(tmp_path / "a.parquet", {"content": pa.array(IMAGES), "label": range(6)})
    write(tmp_path / "b.parquet", {"content": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    dataset = ShardDataset(tmp_path)
    assert dataset.labels.tolist() == list(range(6)) and dataset.get_encoded(5)[0].data == IMAGES[5]
    assert [f.problem for f in dataset.findings if f.shard.endswith("b.parquet")] == ["it holds no row"]
    with pytest.raises(ShardError, match="no sample in it"):
        ShardDataset(tmp_path / "b.parquet")
    late = write(
        tmp_path / "c.parquet", {"content": pa.array([None] * 70 + IMAGES[:1], pa.binary()), "label": range(71)}
    )
    assert ShardDataset(late, on_error="skip").labels.tolist() == [70]


@pytest.mark.full
def test_texts_that_are_no_utf8_are_kept(tmp_path):
    pa = pytest.importorskip("pyarrow")
    odd = pa.array([b"caf\xe9.jpg", b"b.jpg", b"caf\xe9.jpg"], pa.binary()).view(pa.string())
    for name in ("filename", "label", "note"):
        path = write(tmp_path / f"{name}.parquet", {"image": images(range(3)), name: odd})
        dataset = ShardDataset(path, fields=("image", name) if name == "note" else ("image",))
        keys = [dataset.name(i)[1] for i in range(3)]
        if name == "filename":
            assert keys == ["caf\udce9", "b", "caf\udce9"]
        if name == "label":
            assert dataset.classes == ["b.jpg", "caf\udce9.jpg"] and dataset.labels.tolist() == [1, 0, 1]
        if name == "note":
            assert dataset.get_encoded(1)[1] == "b.jpg"
            with pytest.raises(SampleError, match="its .note member is not valid: 'utf-8' codec"):
                dataset.get_encoded(0)


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
@pytest.mark.parametrize(
    "settings",
    [
        {"use_dictionary": ["image"], "dictionary_pagesize_limit": 64 << 20},
        {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}},
    ],
)
def test_a_value_that_rows_repeat_does_not_fill_the_memory(tmp_path, monkeypatch, settings):
    """64 rows of 4 MB in a file of a few KB. What pyarrow is asked for at once is measured by its own allocator."""
    pa = pytest.importorskip("pyarrow")
    from gpuload.shards import parquet

    monkeypatch.setattr(parquet, "REPEATED_BYTES", 12 << 20)
    value = b"\xff\xd8\xff" + bytes(4 << 20)
    settings = {"compression": "zstd", "write_statistics": False, **settings}
    path = write(tmp_path / "a.parquet", {"image": pa.array([value] * 64), "label": range(64)}, **settings)
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(ShardError, match="a.parquet: expanded, it has more than 16777216 bytes.*a bomb"):
            ShardDataset(path)
    finally:
        pa.set_memory_pool(before)
    assert 4 << 20 < pool.max_memory() < 60 << 20


@pytest.mark.full
def test_pages_of_dictionaries_are_read_by_many_rows(tmp_path):
    """As `datasets` 2 wrote them, by the hundred: what is bounded is repetition, not size."""
    import pyarrow.parquet as pq

    from gpuload.shards.parquet import _columns, _rows_at_once
    from gpuload.shards.range_file import RangeFile

    hugging_face(tmp_path / "a.parquet", compression="snappy")
    data = (tmp_path / "a.parquet").read_bytes()
    columns = _columns(pq.ParquetFile(tmp_path / "a.parquet"), 0)
    file = RangeFile(lambda offset, length: data[offset : offset + length], len(data))
    assert "RLE_DICTIONARY" in columns[1].encodings and _rows_at_once(file, columns) == 64


@pytest.mark.full
def test_a_remote_file_is_read_by_ranges(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe_file("/parquet/a.parquet", open(hugging_face(tmp_path / "a", compression="none"), "rb").read())
    try:
        check_dataset(ShardDataset("memory://parquet/a.parquet"), EXPECTED)
    finally:
        system.rm("/parquet", recursive=True)
