"""Hugging Face `datasets`: objects that were loaded, selected, shuffled or made in memory, and saved folders."""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.core.errors import ConfigError, ShardError
from gpuload.testing import Expected, check_dataset
from tests.shards.containers import IMAGES

pytestmark = pytest.mark.full
EXPECTED = [Expected(hashlib.sha256(image).hexdigest(), i % 2, f"p{i}") for i, image in enumerate(IMAGES)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuload"


@pytest.fixture
def in_memory():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "text": datasets.Value("string"),
        }
    )
    rows = {
        "image": [{"bytes": image, "path": f"p{i}.jpg"} for i, image in enumerate(IMAGES)],
        "label": [i % 2 for i in range(6)],
        "text": [f"ü{i}" for i in range(6)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture
def on_disk(in_memory, tmp_path):
    datasets = pytest.importorskip("datasets")
    in_memory.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    return datasets.load_from_disk(str(tmp_path / "saved"))


def expanded(cache) -> list:
    return list((cache / "expanded").glob("*-*")) if (cache / "expanded").exists() else []


def test_a_dataset_is_read_from_its_own_files(on_disk, cache, tmp_path):
    dataset = ShardDataset(on_disk)
    assert dataset.classes == ["cat", "dog"] and len(dataset.files) == 2
    assert all(str(file).startswith(str(tmp_path / "saved")) for file in dataset.files)
    check_dataset(dataset, EXPECTED)
    assert len(expanded(cache)) == 0
    assert [ShardDataset(on_disk, fields=("image", "text"))[i][1] for i in range(6)] == [f"ü{i}" for i in range(6)]


@pytest.mark.parametrize(
    ("derive", "rows"),
    [
        (lambda d: d.select([4, 0, 0, 3]), [4, 0, 0, 3]),
        (lambda d: d.select(range(1, 5)), [1, 2, 3, 4]),
        (lambda d: d.select(range(1, 6)).select([3, 1]), [4, 2]),
        (lambda d: d.filter(lambda label: label == 1, input_columns="label"), [1, 3, 5]),
        (lambda d: d.sort("label"), [0, 2, 4, 1, 3, 5]),
        (lambda d: d.shard(2, 1, contiguous=True), [3, 4, 5]),
    ],
)
@pytest.mark.parametrize("where", ["on_disk", "in_memory"])
def test_what_was_selected_is_what_is_read(request, where, derive, rows):
    check_dataset(ShardDataset(derive(request.getfixturevalue(where))), [EXPECTED[i] for i in rows])


def test_shuffles_are_followed(on_disk):
    shuffled = on_disk.shuffle(seed=5)
    labels = list(shuffled["text"])
    dataset = ShardDataset(shuffled, fields=("image", "text"))
    assert [dataset[i][1] for i in range(6)] == labels and labels != [f"ü{i}" for i in range(6)]


def test_what_lies_in_memory_is_expanded_once(in_memory, cache):
    dataset = ShardDataset(in_memory)
    assert len(expanded(cache)) == 1 and any("expanded once" in finding.problem for finding in dataset.findings)
    check_dataset(dataset, EXPECTED)
    assert len(pickle.dumps(dataset)) < 5000


def test_a_format_is_not_ignored_silently(on_disk):
    for formatted in (on_disk.with_format("numpy"), on_disk.with_transform(lambda rows: rows)):
        with pytest.raises(ConfigError, match=r"has the format .*with_format\(None\), and what it did as transform="):
            ShardDataset(formatted)


def test_other_classes_of_the_package_are_refused(on_disk):
    datasets = pytest.importorskip("datasets")
    for other in (datasets.DatasetDict({"train": on_disk}), on_disk.to_iterable_dataset()):
        with pytest.raises(ConfigError, match='has no rows by number. Pass one split.*split="train"'):
            ShardDataset(other)


def test_the_loader_says_how_a_dataset_is_accelerated(on_disk, capsys):
    from gpuload import DataLoader

    DataLoader(on_disk, batch_size=2).explain()
    assert "ShardDataset(dataset, transform=...) reads it" in capsys.readouterr().out


def test_files_keep_the_names_that_they_were_called_by(on_disk, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        dataset = ShardDataset("link", format="arrow")
        assert [file.split("/")[0] for file in dataset.files] == ["link", "link"]
        check_dataset(dataset, EXPECTED)


def test_saved_folders_and_arrow_files_are_shards(on_disk, tmp_path):
    dataset = ShardDataset(tmp_path / "saved")
    assert "arrow: 6 samples in 2 files, 2 classes" in repr(dataset)
    check_dataset(dataset, EXPECTED)
    check_dataset(ShardDataset(tmp_path / "saved"), EXPECTED)


def test_arrow_files_of_other_writers(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"jpg": pa.array(IMAGES, pa.large_binary()), "cls": pa.array(range(6), pa.int16())})
    for name, opened, settings in [
        ("file", pa.ipc.new_file, None),
        ("stream", pa.ipc.new_stream, None),
        ("packed", pa.ipc.new_file, pa.ipc.IpcWriteOptions(compression="lz4")),
    ]:
        with opened(str(tmp_path / f"{name}.arrow"), table.schema, options=settings) as out:
            out.write_table(table, max_chunksize=4)
        dataset = ShardDataset(tmp_path / f"{name}.arrow")
        assert dataset.labels.tolist() == list(range(6))
        check_dataset(dataset, [Expected(wanted.sha256, i) for i, wanted in enumerate(EXPECTED)])
    data = (tmp_path / "file.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(data[:-100])
    with pytest.raises(ShardError, match="no Arrow file, or cut off"):
        ShardDataset(tmp_path / "cut.arrow")


@pytest.fixture
def memory():
    """A folder of fsspec's memory file system: (URL, file system)."""
    fsspec = pytest.importorskip("fsspec")
    yield "memory://arrow", fsspec.filesystem("memory")
    fsspec.filesystem("memory").rm("arrow", recursive=True)


def test_saved_folders_are_read_where_they_lie_remotely(on_disk, tmp_path, memory, cache):
    url, files = memory
    for path in (tmp_path / "saved").iterdir():
        files.pipe(f"{url}/saved/{path.name}", path.read_bytes())
    for _ in range(2):  # the second time from the manifest
        dataset = ShardDataset(f"{url}/saved")
        assert dataset.classes == ["cat", "dog"] and len(dataset.files) == 2
        check_dataset(dataset, EXPECTED)
        assert [ShardDataset(f"{url}/saved", fields=("image", "text"))[i][1] for i in range(6)] == [
            f"ü{i}" for i in range(6)
        ]
    assert not expanded(cache) and all(file.startswith(url) for file in dataset.files)


@pytest.mark.parametrize("opened", ["new_file", "new_stream"])
@pytest.mark.parametrize("packed", [None, "lz4", "zstd"])
@pytest.mark.parametrize("block_bytes", [64, 4 << 20])
def test_remote_files_of_other_writers(tmp_path, memory, cache, monkeypatch, opened, packed, block_bytes):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr("gpuload.shards.range_file.BLOCK_BYTES", block_bytes)
    monkeypatch.setattr("gpuload.shards.arrow.BATCH_ROWS", 2)
    url, files = memory
    table = pa.table({
        "jpg": pa.array([*IMAGES[:3], None, *IMAGES[3:]], pa.large_binary()),
        "cls": pa.array(range(7), pa.int16()),
        "text": pa.array(["a", "ü", "", None, "e", "f", "g"]),
        "box": pa.array([[i, i + 0.5] for i in range(7)], pa.list_(pa.float32())),
    })  # fmt: skip
    out = io.BytesIO()
    with getattr(pa.ipc, opened)(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=packed)) as writer:
        writer.write_batch(table.to_batches()[0].slice(0, 0))
        writer.write_table(table, max_chunksize=5)
    files.pipe(f"{url}/x.arrow", out.getvalue())
    (tmp_path / "x.arrow").write_bytes(out.getvalue())
    how = {"fields": ("image", "label", "text", "box"), "on_error": "skip"}
    there, here = ShardDataset(f"{url}/x.arrow", **how), ShardDataset(tmp_path / "x.arrow", **how)
    assert there.labels.tolist() == [0, 1, 2, 4, 5, 6] == here.labels.tolist()
    for i in range(6):
        image, *fields = there.get_encoded(i)
        assert bytes(image.data) == IMAGES[i] and str(fields) == str([*here.get_encoded(i)[1:]])
    in_place = {str(there.files[number]) for number in there.refs(np.arange(6))["file"]} == {f"{url}/x.arrow"}
    assert in_place == (packed is None)
    for content, problem in [
        (out.getvalue()[: len(out.getvalue()) // 2], "no Arrow file, or cut off"),
        (out.getvalue()[:16], "no Arrow file, or cut off"),
        (b"ARROW1\0\0" + out.getvalue()[8:-40] + bytes(40), "no Arrow file, or cut off"),
    ]:
        files.pipe(f"{url}/cut.arrow", content)
        with pytest.raises(ShardError, match=problem):
            ShardDataset(f"{url}/cut.arrow", on_error="skip")


def test_a_remote_file_of_which_not_all_batches_come_is_refused(memory):
    pa = pytest.importorskip("pyarrow")
    url, files = memory
    table, out = pa.table({"jpg": pa.array(IMAGES)}), io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    data = bytearray(out.getvalue())
    out.seek(8)
    messages = pa.ipc.MessageReader.open_stream(pa.PythonFile(out, mode="r"))
    for _ in range(2):
        messages.read_next_message()  # the schema, and the first batch
    data[out.tell() : out.tell() + 8] = b"\xff\xff\xff\xff\0\0\0\0"  # as a stream ends
    files.pipe(f"{url}/x.arrow", bytes(data))
    with pytest.raises(ShardError, match="its footer names 3 batches, and 1 come"):
        ShardDataset(f"{url}/x.arrow")


def test_a_remote_file_with_dictionaries_is_refused(memory):
    pa = pytest.importorskip("pyarrow")
    url, files = memory
    table = pa.table({"jpg": pa.array(IMAGES[:2]), "name": pa.array(["a", "b"]).dictionary_encode()})
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    files.pipe(f"{url}/x.arrow", out.getvalue())
    with pytest.raises(ShardError, match="a dictionary, which is only read locally. Copy it to disk"):
        ShardDataset(f"{url}/x.arrow")


@pytest.mark.parametrize("column", ["jpg", "text", "row"])
@pytest.mark.parametrize("offset", [0x7FFFFFF0, -1])
def test_an_offset_that_leads_elsewhere_is_damage(tmp_path, column, offset):
    """pyarrow follows it, and the process ends."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"jpg": pa.array(IMAGES), "text": ["abc"] * 6, "row": pa.array([[1, 2, 3, 4, 5]] * 6)})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as out:
        out.write_table(table)
    data = bytearray((tmp_path / "a.arrow").read_bytes())
    lengths = {"jpg": list(map(len, IMAGES)), "text": [3] * 6, "row": [5] * 6}[column]
    offsets = np.cumsum([0, *lengths]).astype("<i4").tobytes()
    assert data.count(offsets) == 1
    at = data.index(offsets) + 8
    data[at : at + 4] = np.array(offset, "<i4").tobytes()
    (tmp_path / "a.arrow").write_bytes(data)
    with pytest.raises(ShardError, match="a.arrow: no Arrow file, or cut off: .*[Oo]ffset"):
        ShardDataset(tmp_path / "a.arrow", fields=("image",))


@pytest.mark.parametrize("empty", ["", None])
def test_a_column_without_a_byte_lies_in_no_file(tmp_path, empty):
    """Its buffer may have an address in a library, which is a mapped file, too."""
    pa = pytest.importorskip("pyarrow")
    texts = pa.Array.from_buffers(pa.string(), 6, [None, pa.py_buffer(bytes(28)), pa.py_buffer(b"")])
    table = pa.table({"jpg": pa.array(IMAGES), "text": pa.nulls(6, pa.string()) if empty is None else texts})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as out:
        out.write_table(table)
    for _ in range(2):
        dataset = ShardDataset(tmp_path / "a.arrow", fields=("image",))
        assert all(file.startswith(str(tmp_path)) for file in dataset.files)
    if empty is not None:
        assert ShardDataset(tmp_path / "a.arrow", fields=("image", "text")).columns(np.arange(6))[0] == [""] * 6


def test_a_damaged_name_of_a_column_is_damage(tmp_path):
    pa = pytest.importorskip("pyarrow")
    tables = [{"jpg": pa.array(IMAGES), "a name to find": range(6)}]
    tables.append({"jpg": pa.array(IMAGES), "nested": [{"a name to find": 1}] * 6})
    writers = (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream))
    for columns, (kind, opened) in itertools.product(tables, writers):
        table = pa.table(columns)
        with opened(str(tmp_path / f"{kind}.arrow"), table.schema) as out:
            out.write_table(table)
        data = (tmp_path / f"{kind}.arrow").read_bytes()
        (tmp_path / f"{kind}.arrow").write_bytes(data.replace(b"a name to find", b"\xff name to find"))
        with pytest.raises(ShardError, match=f"{kind}.arrow: no Arrow file, or cut off: 'utf-8' codec"):
            ShardDataset(tmp_path / f"{kind}.arrow", fields=("image",))


def test_files_without_rows_are_left_out(tmp_path):
    pa = pytest.importorskip("pyarrow")
    for name, rows in (("a", IMAGES), ("b", [])):
        table = pa.table({"content": pa.array(rows, pa.binary())})
        with pa.ipc.new_file(str(tmp_path / f"{name}.arrow"), table.schema) as out:
            out.write_table(table)
    dataset = ShardDataset(tmp_path, fields=("image",))
    assert [dataset.get_encoded(i)[0].data for i in range(len(dataset))] == IMAGES


def test_files_that_no_longer_exist_are_not_named(on_disk, tmp_path, cache):
    """A mapping outlives its file's name: then the bytes are still there, and are expanded."""
    wanted = np.array([len(image) for image in IMAGES])
    for path in (tmp_path / "saved").glob("*.arrow"):
        path.unlink()
    dataset = ShardDataset(on_disk)
    assert len(expanded(cache)) == 1 and dataset.refs(np.arange(6))["length"].tolist() == wanted.tolist()
    check_dataset(dataset, EXPECTED)


def test_one_fingerprint_may_lie_in_files_and_in_memory(on_disk, in_memory, tmp_path):
    """`datasets` gives what it loads into memory the same one; batches differ, too. Its own rows are the reference."""
    datasets = pytest.importorskip("datasets")
    saved = str(tmp_path / "saved")
    loaded = [on_disk, datasets.load_from_disk(saved, keep_in_memory=True), in_memory]
    loaded.append(datasets.concatenate_datasets([in_memory.select(range(4)), in_memory.select(range(4, 6))]))
    for one in loaded:
        one._fingerprint = on_disk._fingerprint
    fields = ("image", "label", "text")
    for order in (loaded, loaded[::-1]):
        opened = [ShardDataset(one, fields=fields) for one in order]
        for one, dataset in zip(order, opened, strict=True):
            for i, row in enumerate(one.cast_column("image", datasets.Image(decode=False))):
                image, label, text = dataset.get_encoded(i)
                assert (bytes(image.data), label, text) == (row["image"]["bytes"], row["label"], row["text"])
        for path in (tmp_path / "cache" / "gpuload" / "expanded").glob("*-*"):
            path.unlink()
