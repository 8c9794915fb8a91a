"""Image folders against torchvision's ImageFolder: the same files, order, labels and classes."""

from __future__ import annotations

import errno
import os

import fsspec
import pytest
from torchvision.datasets import ImageFolder

from gpuload.core.errors import ShardError
from gpuload.shards.catalog import open_catalog
from gpuload.shards.folder import _files_below, images_of, join_folders, scan_folder

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


def test_keys_of_urls_are_without_secrets_and_no_two_alike():
    h = "https://host/x"
    urls = [
        "https://me:secret@host/x/a.jpg",
        f"{h}/b.jpg?X-Amz-Signature=secret.x",
        f"{h}/image?id=1&sig=secret",
        f"{h}/image?id=2&sig=secret/y.jpg",
        f"{h}/image-2.jpg",
        f"{h}/image?id=1&sig=secret",
        f"{h}/image?id=3&sig=secret",
        "d/a.jpg",
        "d/a.png",
    ]
    keys = [f"{h}/{name}" for name in ("a", "b", "image", "image-3", "image-2", "image", "image-4")] + ["d/a", "d/a"]
    assert list(images_of(urls).table.keys) == keys
    assert list(images_of([url.replace("secret", "another") for url in urls]).table.keys) == keys
    assert list(images_of(urls).table.files) == urls


def test_the_real_image_folder(real_data):
    path = str(real_data / "formats" / "imagefolder")
    folder, expected = scan_folder(path, {}), ImageFolder(path)
    assert pairs(folder) == expected.samples and list(folder.classes) == expected.classes
    assert len(scan_folder(str(real_data / "formats" / "flat"), {}).table) == 24


@pytest.mark.parametrize("hidden", ["a/sub", "a"])
def test_a_folder_that_cannot_be_listed_is_said(tmp_path, monkeypatch, hidden):
    """By permissions, or a failing disk; root may list any, so that the system's answer is made here."""
    for name in ("a/1.jpg", "a/sub/2.jpg", "b/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"image")
    listing = os.scandir

    def refused(path):
        if str(path) == str(tmp_path / hidden):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ShardError, match=f"{tmp_path / hidden}: it cannot be listed: Permission denied"):
        open_catalog(str(tmp_path), format="folder", on_error="raise", options={})
    found = open_catalog(str(tmp_path), format="folder", on_error="skip", options={})
    assert list(found.table.keys) == (["a/1", "b/3"] if hidden == "a/sub" else ["b/3"])
    assert any("cannot be listed" in finding.problem and not finding.note for finding in found.findings)


@pytest.mark.parametrize("top", ["", "/", "/data/in", "data/in/", "/data/in/"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_paths_below_a_remote_folder_are_told_with_their_versions(top, slash):
    class System:
        def find(self, path: str, detail: bool):
            assert path == top and detail
            root = top.strip("/")
            infos = {"a/1.jpg": {"size": 3, "ETag": '"x"'}, "a/2.jpg": {"size": 4}, "3.jpg": {"size": None, "mtime": 5}}
            return {slash + "/".join(part for part in (root, name) if part): info for name, info in infos.items()}

    assert _files_below(System(), top) == {"a/1.jpg": '3:"x"', "a/2.jpg": "", "3.jpg": ""}
