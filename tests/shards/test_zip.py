"""ZIP archives: what zipfile writes, stored and deflated, class folders, damage and traps."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile

import pytest
from torchvision.datasets import ImageFolder

from gpuload import ShardDataset
from gpuload.core.errors import SampleError, ShardError
from gpuload.shards import expansion
from gpuload.testing import Expected, check_dataset
from tests.shards.containers import IMAGES


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuload"


NAMES = ["dog/b.jpg", "cat/x/1.jpg", "cat/a.JPEG", "ant/2.jpg", "dog/a.jpg", "dog/c.jpg"]


def write(path, names=NAMES, kinds=(zipfile.ZIP_STORED,), **more) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(name, IMAGES[number % 6], kinds[number % len(kinds)])
        for name, data in more.items():
            archive.writestr(name, data)
    return str(path)


def expected(rows=range(6)) -> list[Expected]:
    labels = [2, 1, 1, 0, 2, 2]
    return [Expected(hashlib.sha256(IMAGES[i]).hexdigest(), labels[i], NAMES[i].rpartition(".")[0]) for i in rows]


@pytest.mark.parametrize(
    "kinds",
    [
        (zipfile.ZIP_STORED,),
        (zipfile.ZIP_DEFLATED,),
        (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED),
        (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED),
    ],
)
def test_every_promise_holds_however_members_are_stored(tmp_path, kinds):
    dataset = ShardDataset(write(tmp_path / "a.zip", kinds=kinds, readme=b"text"))
    assert dataset.classes == ["ant", "cat", "dog"]
    check_dataset(dataset, expected())
    expanded = any(kind != zipfile.ZIP_STORED for kind in kinds)
    assert [finding.note for finding in dataset.findings] == [True] * expanded
    assert all(dataset.name(i)[0].endswith("a.zip") for i in range(6))
    check_dataset(ShardDataset(tmp_path / "a.zip"), expected())  # from its index


def test_labels_are_those_of_imagefolder_on_the_unpacked_archive(tmp_path):
    write(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "folder")
    reference = ImageFolder(tmp_path / "folder")
    labels = {
        os.path.splitext(os.path.relpath(path, tmp_path / "folder"))[0]: label for path, label in reference.samples
    }
    dataset = ShardDataset(tmp_path / "a.zip")
    assert {dataset.name(i)[1]: int(dataset.labels[i]) for i in range(6)} == labels
    assert dataset.classes == reference.classes


def test_folders_above_the_classes_do_not_count(tmp_path):
    names = [f"set/train/{name}" for name in NAMES]
    dataset = ShardDataset(
        write(tmp_path / "a.zip", [*names, "__MACOSX/set/train/dog/._b.jpg", "set/train/cat/.x.jpg"])
    )
    assert len(dataset) == 6 and dataset.classes == ["ant", "cat", "dog"]
    assert dataset.name(0)[1] == "set/train/dog/b"
    only = ShardDataset(write(tmp_path / "b.zip", ["photos/cat/1.jpg", "photos/cat/2.jpg"]))
    assert only.classes == ["cat"]
    [note] = only.findings
    assert note.note and "are in photos/, which is taken for no class" in note.problem
    loose = ShardDataset(write(tmp_path / "c.zip", ["1.jpg", "2.jpg"]))
    assert loose.classes is None and loose.labels.tolist() == [0, 0]
    assert "no class folders" in loose.findings[0].problem


def test_an_empty_deflated_member_is_found_when_it_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/a.jpg", b"", zipfile.ZIP_DEFLATED)
        archive.writestr("x/b.jpg", IMAGES[0], zipfile.ZIP_STORED)
    dataset = ShardDataset(tmp_path / "a.zip")
    with pytest.raises(SampleError, match="x/a.*0 bytes"):
        dataset[0]
    assert bytes(dataset.get_encoded(1)[0].data) == IMAGES[0]


def test_archives_with_other_classes_are_numbered_together(tmp_path):
    write(tmp_path / "a.zip", ["dog/1.jpg", "cat/2.jpg"])
    write(tmp_path / "b.zip", ["ant/3.jpg", "dog/4.jpg"])
    for _ in range(2):  # the second time from the manifest
        dataset = ShardDataset(f"{tmp_path}/[ab].zip")
        assert dataset.classes == ["ant", "cat", "dog"] and dataset.labels.tolist() == [2, 1, 0, 2]


def test_images_without_a_class_do_not_get_that_of_other_archives(tmp_path):
    write(tmp_path / "a.zip", ["dog/1.jpg", "cat/2.jpg"])
    write(tmp_path / "b.zip", ["3.jpg", "4.jpg"])
    with pytest.raises(ShardError, match="b.zip: its labels are numbers, and those of other shards have names"):
        ShardDataset(f"{tmp_path}/[ab].zip")
    for _ in range(2):
        dataset = ShardDataset(f"{tmp_path}/[ab].zip", on_error="skip")
        assert dataset.classes == ["cat", "dog"] and dataset.labels.tolist() == [1, 0]


def test_names_that_lead_elsewhere_write_nothing(tmp_path):
    names = ["../../evil.jpg", "/abs/evil.jpg", "a/../../evil2.jpg", "ok/x.jpg", "C:\\evil.jpg", "ok/y.jpg"]
    before = sorted(tmp_path.parent.rglob("evil*"))
    dataset = ShardDataset(write(tmp_path / "a.zip", names, kinds=(zipfile.ZIP_DEFLATED,)), on_error="skip")
    assert len(dataset) >= 2 and sorted(tmp_path.parent.rglob("evil*")) == before
    assert all(".." not in dataset.name(i)[1] for i in range(len(dataset)))


def test_a_bomb_is_refused_before_it_is_opened(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(expansion, "FLOOR_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/a.bmp", b"BM" + bytes(64 << 20), zipfile.ZIP_DEFLATED)
    with pytest.raises(ShardError, match="200 times its own size: a bomb"):
        ShardDataset(tmp_path / "a.zip")
    assert not list(cache.rglob("*-zip"))


def test_a_directory_that_lies_about_sizes_is_found(tmp_path, monkeypatch):
    """The directory says 10 bytes; the stream holds more, of which not one too many is written."""
    write(tmp_path / "a.zip", ["x/a.jpg"], kinds=(zipfile.ZIP_DEFLATED,))
    data = bytearray((tmp_path / "a.zip").read_bytes())
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, at + 24, 10)
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(ShardError, match="sample x/a: it cannot be expanded"):
        ShardDataset(tmp_path / "a.zip")


def test_damage_costs_its_member_only(tmp_path):
    write(tmp_path / "a.zip", kinds=(zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    data = bytearray((tmp_path / "a.zip").read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    data[entries[2].header_offset] ^= 1  # a stored one's header
    data[entries[3].header_offset + 200] ^= 0xFF  # a deflated one's stream
    at = data.rindex(b"PK\1\2")
    data[at + 8] |= 1  # the last one's flag: encrypted
    (tmp_path / "a.zip").write_bytes(data)
    dataset = ShardDataset(tmp_path / "a.zip", on_error="skip")
    assert [finding.key for finding in dataset.findings if not finding.note] == ["cat/a", "ant/2", "dog/c"]
    sha = [hashlib.sha256(dataset.get_encoded(i)[0].data).hexdigest() for i in range(len(dataset))]
    assert sha == [hashlib.sha256(IMAGES[i]).hexdigest() for i in (0, 1, 4)]


def test_what_is_no_archive_is_named(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ShardError, match="no ZIP archive, or cut off"):
        ShardDataset(tmp_path / "a.zip")
    write(tmp_path / "b.zip", [], readme=b"text")
    with pytest.raises(ShardError, match="no image among its 1 members"):
        ShardDataset(tmp_path / "b.zip")


def test_a_zip_beside_images_is_not_the_data(tmp_path):
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "1.jpg").write_bytes(IMAGES[0])
    write(tmp_path / "data" / "backup.zip")
    assert ShardDataset(tmp_path / "data").classes == ["cat"]
    assert len(ShardDataset(tmp_path / "data", format="zip")) == 6
