"""Hugging Face `datasets`: objects that were loaded, selected, shuffled or made in memory, and saved folders."""

from __future__ import annotations

import hashlib
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


def test_files_that_no_longer_exist_are_not_named(on_disk, tmp_path, cache):
    """A mapping outlives its file's name: then the bytes are still there, and are expanded."""
    wanted = np.array([len(image) for image in IMAGES])
    for path in (tmp_path / "saved").glob("*.arrow"):
        path.unlink()
    dataset = ShardDataset(on_disk)
    assert len(expanded(cache)) == 1 and dataset.refs(np.arange(6))["length"].tolist() == wanted.tolist()
    check_dataset(dataset, EXPECTED)
