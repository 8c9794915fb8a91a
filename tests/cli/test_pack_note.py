"""Notes beside packed shards: nobody's shards get other names for their labels, and nobody's files are replaced."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpuload.cli import pack_note
from gpuload.cli.pack import Packed
from gpuload.cli.pack import pack as pack_and_index
from gpuload.core.errors import ConfigError, ShardError
from gpuload.dataset import ShardDataset


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """From the user's cache, before tests have one of their own: compiling them takes a minute."""
    from gpuload.kernels.tfrecord import masked_crc32c

    masked_crc32c(np.zeros(8, np.uint8), 0, 8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pack(*arguments, **keywords) -> Packed:
    return pack_and_index(*arguments, make_index=False, **keywords)


def images(root: Path, *names: str) -> Path:
    """Files that need not be images: packing does not decode."""
    for name in names:
        path = root / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def named_labels(shards: tuple[str, ...]) -> dict[str, str]:
    """Key -> name of its label."""
    dataset = ShardDataset(list(shards), fields=("image", "key", "label"))
    classes = dataset.classes
    assert classes is not None
    return {key: classes[label] for _, key, label in map(dataset.get_encoded, range(len(dataset)))}


@pytest.mark.parametrize("format", ["tar", "tfrecord", "mds"])
def test_a_second_name_in_a_folder_must_have_the_same_classes(tmp_path, format):
    train = images(tmp_path / "train", "cat/0", "dog/1", "emu/2")
    val = images(tmp_path / "val", "dog/3", "emu/4")
    out = tmp_path / "out"
    first = pack(train, out, format, name="train")
    there = sorted(out.iterdir())
    for other in (val, images(tmp_path / "loose", "5")):  # other names, and none
        with pytest.raises(ConfigError, match="classes.json, and those of the source mean something else|index.json"):
            pack(other, out, format, name="val")
    assert sorted(out.iterdir()) == there
    assert named_labels(first.shards) == {"cat/0": "cat", "dog/1": "dog", "emu/2": "emu"}
    if format == "mds":  # one index.json a folder
        return
    images(val, "cat/6")
    assert named_labels(pack(val, out, format, name="val").shards) == {"dog/3": "dog", "emu/4": "emu", "cat/6": "cat"}
    assert named_labels(first.shards) == {"cat/0": "cat", "dog/1": "dog", "emu/2": "emu"}
    assert pack(train, out, format, name="train").resumed == 1


def test_shards_without_class_names_get_none(tmp_path):
    pack(images(tmp_path / "loose", "1", "2"), tmp_path / "out", name="first")
    with pytest.raises(ConfigError, match="mean something else"):
        pack(images(tmp_path / "in", "cat/0"), tmp_path / "out", name="second")
    assert ShardDataset(tmp_path / "out").classes is None


def test_unlabelled_shards_may_lie_beside_labelled_ones(tmp_path):
    test = images(tmp_path / "test", "2", "3")
    pack([test / "2.jpg", test / "3.jpg"], tmp_path / "out", name="before")
    train = pack(images(tmp_path / "train", "cat/0", "dog/1"), tmp_path / "out", name="train")
    pack([test / "2.jpg", test / "3.jpg"], tmp_path / "out", name="after")
    assert named_labels(train.shards) == {"cat/0": "cat", "dog/1": "dog"}


@pytest.mark.parametrize("classes", [["dog"], None])
def test_two_names_that_begin_together_agree_too(tmp_path, monkeypatch, classes):
    """Their shards are not there yet: the notes say what will be."""

    def slowly(path, content):
        time.sleep(0.1)
        write(path, content)

    write = pack_note._write
    monkeypatch.setattr(pack_note, "_write", slowly)

    def begin(name, classes):
        try:
            note = pack_note.Note(name, 1, 1, True, pack_note.names_digest(classes))
            pack_note.record(f"{tmp_path}/{name}", note, [], classes)
        except ConfigError:
            return 0
        return 1

    with ThreadPoolExecutor() as pool:
        begun = [pool.submit(begin, "a", ["cat"]), pool.submit(begin, "b", classes)]
    assert sum(job.result() for job in begun) == 1


@pytest.mark.parametrize("content", [b'["mine"]', b"no json", b'{"classes": ["dog"]}'])
def test_a_classes_file_of_the_users_stays(tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "classes.json").write_bytes(content)
    with pytest.raises(ConfigError, match="mean something else"):
        pack(images(tmp_path / "in", "cat/0"), tmp_path / "out")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir()] == [("classes.json", content)]


def test_a_run_that_ended_before_the_names_were_written_goes_on(tmp_path):
    train = images(tmp_path / "train", "cat/0", "dog/1")
    first = pack(train, tmp_path / "out")
    (tmp_path / "out" / "classes.json").unlink()
    assert pack(train, tmp_path / "out").resumed == 1
    assert named_labels(first.shards) == {"cat/0": "cat", "dog/1": "dog"}
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == {"classes": ["cat", "dog"]}


def test_shards_that_are_left_of_a_longer_run_are_not_mixed_in(tmp_path):
    source = images(tmp_path / "in", *(f"cat/{i}" for i in range(8)))
    done = pack(source, tmp_path / "out", shard_size="4KB")
    assert len(done.shards) > 2
    (tmp_path / "out" / "out.pack.json").unlink()
    for shard in done.shards[:-1]:
        Path(shard).unlink()
    with pytest.raises(ConfigError, match=f"{Path(done.shards[-1]).name} exists and was not written by"):
        pack(source, tmp_path / "out", shard_size="1MB")


def test_a_damaged_note_is_named(tmp_path):
    source = images(tmp_path / "in", "cat/0")
    pack(source, tmp_path / "out")
    (tmp_path / "out" / "out.pack.json").write_text("[]")
    with pytest.raises(ShardError, match="out.pack.json: no note of what was packed, or damaged"):
        pack(source, tmp_path / "out")
