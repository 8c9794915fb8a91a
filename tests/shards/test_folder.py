"""Image folders against torchvision's ImageFolder: the same files, order, labels and classes."""

from __future__ import annotations

import os

import fsspec
import pytest
from torchvision.datasets import ImageFolder

from gpuload.core.errors import ShardError
from gpuload.shards.folder import join_folders, scan_folder

NAMES = [
    "b/2.jpg",
    "b/10.JPEG",
    "a/z.png",
    "a/sub/1.webp",
    "a/sub-1/0.jpg",
    "a/sub/deeper/x.tif",
    "a/a.b.jpg",
    "B/only.pgm",
    "ü/ü.bmp",
    "a/notes.txt",
    "loose.jpg",
]


@pytest.fixture
def root(tmp_path):
    for name in NAMES:
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "root"


def pairs(folder) -> list[tuple[str, int]]:
    return list(zip(folder.table.files, folder.table.labels.tolist(), strict=True))


def test_samples_are_imagefolders(root):
    expected = ImageFolder(str(root))
    folder = scan_folder(str(root), {})
    assert pairs(folder) == expected.samples
    assert list(folder.classes) == expected.classes
    assert (folder.table.images["length"] == -1).all()
    assert [finding.note for finding in folder.findings] == [True]
    assert "1 images outside of any class folder" in folder.findings[0].problem


def test_linked_folders_are_followed(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "q.jpg").write_bytes(b"q")
    os.symlink(tmp_path / "elsewhere", root / "linked")
    assert pairs(scan_folder(str(root), {})) == ImageFolder(str(root)).samples


def test_keys_are_paths_without_extension(root):
    keys = list(scan_folder(str(root) + "/", {}).table.keys)
    assert keys[:2] == ["B/only", "a/a.b"]


def test_a_class_without_images_is_a_finding_as_it_is_imagefolders_error(root):
    (root / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        ImageFolder(str(root))
    folder = scan_folder(str(root), {})
    assert pairs(folder) == ImageFolder(str(root), allow_empty=True).samples
    assert [f.shard for f in folder.findings if not f.note] == [str(root / "empty")]


def test_a_remote_folder_is_read_in_the_same_order(root):
    system = fsspec.filesystem("memory")
    for name in NAMES:
        system.pipe_file(f"/folder/{name}", name.encode())
    try:
        there, here = scan_folder("memory://folder", {}), scan_folder(str(root), {})
    finally:
        system.rm("/folder", recursive=True)
    assert [(file.removeprefix("memory://folder"), label) for file, label in pairs(there)] == [
        (file.removeprefix(str(root)), label) for file, label in pairs(here)
    ]
    assert there.classes == here.classes and there.table.keys == here.table.keys


def test_loose_images_have_label_0_and_a_note(tmp_path):
    for name in ("b.jpg", "a.PNG", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "__pycache__").mkdir()
    folder = scan_folder(str(tmp_path), {})
    assert [(os.path.basename(file), label) for file, label in pairs(folder)] == [("a.PNG", 0), ("b.jpg", 0)]
    assert folder.classes is None and folder.findings[0].note and "label 0" in folder.findings[0].problem


def test_folders_without_images_and_missing_ones_are_errors(tmp_path):
    with pytest.raises(ShardError, match="no image in it"):
        scan_folder(str(tmp_path), {})
    with pytest.raises(ShardError, match=r"^folder .*/gone: it does not exist. Check") as caught:
        scan_folder(str(tmp_path / "gone"), {})
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_several_folders_share_their_classes(tmp_path):
    for name in ("one/b/1.jpg", "one/d/2.jpg", "two/a/3.jpg", "two/b/4.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    folder = join_folders([scan_folder(str(tmp_path / name), {}) for name in ("one", "two")])
    assert folder.classes == ("a", "b", "d")
    assert [(file[-5:], label) for file, label in pairs(folder)] == [
        ("1.jpg", 1),
        ("2.jpg", 2),
        ("3.jpg", 0),
        ("4.jpg", 1),
    ]
    assert folder.table.images["file"].tolist() == [0, 1, 2, 3]
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "x.jpg").write_bytes(b"x")
    with pytest.raises(ShardError, match="no class folders"):
        join_folders([scan_folder(str(tmp_path / name), {}) for name in ("one", "flat")])


def test_the_real_image_folder(real_data):
    path = str(real_data / "formats" / "imagefolder")
    folder, expected = scan_folder(path, {}), ImageFolder(path)
    assert pairs(folder) == expected.samples and list(folder.classes) == expected.classes
    assert len(scan_folder(str(real_data / "formats" / "flat"), {}).table) == 24
