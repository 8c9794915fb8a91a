"""ShardDataset as a data set of torch: samples against Pillow, fields, labels, copies, errors, bulk access."""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
import tarfile

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

from gpuload.core.errors import ConfigError, SampleError, ShardError
from gpuload.core.structure import IMAGE, Column, EncodedImage
from gpuload.dataset import ShardDataset
from gpuload.fetch.reader import reader_for
from gpuload.shards.table import Finding


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def jpeg(seed: int, mode: str = "RGB", format: str = "JPEG") -> bytes:
    size = (17 + seed, 23)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], len(mode)), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(out, format)
    return out.getvalue()


def add(path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


IMAGES = [jpeg(i) for i in range(7)]


def members(rows: range) -> dict[str, bytes]:
    found = {}
    for i in rows:
        found |= {f"k{i}.cls": str(10 * i).encode(), f"k{i}.jpg": IMAGES[i], f"k{i}.txt": f"text ü{i}".encode()}
        found |= {f"k{i}.json": json.dumps({"id": i, "n": {"m": [i]}}).encode(), f"k{i}.bin": bytes([i])}
    return found


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "data").mkdir()
    for number, rows in enumerate([range(0, 3), range(3, 7)]):
        add(tmp_path / "data" / f"s-{number:03d}.tar", members(rows))
    return str(tmp_path / "data" / "s-{000..001}.tar")


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_sample_is_what_pillow_reads_and_its_label(shards):
    dataset = ShardDataset(shards)
    assert isinstance(dataset, torch.utils.data.Dataset) and len(dataset) == 7
    for i in range(7):
        image, label = dataset[i]
        assert label == 10 * i and type(label) is int
        assert (np.asarray(image) == pixels(IMAGES[i])).all()
        assert dataset[i - 7][1] == label
    for index in (7, -8):
        with pytest.raises(IndexError, match=f"sample {index} of a data set of 7"):
            dataset[index]
    assert [label for _, label in dataset] == [10 * i for i in range(7)]


def test_a_folder_and_a_list_and_one_shard_name_the_same_data(shards, tmp_path):
    first, second = f"{tmp_path}/data/s-000.tar", f"{tmp_path}/data/s-001.tar"
    everything = ShardDataset(shards).labels.tolist()
    assert ShardDataset(tmp_path / "data").labels.tolist() == everything
    assert ShardDataset(f"{tmp_path}/data/*.tar").labels.tolist() == everything
    assert ShardDataset([first, second], format="tar").labels.tolist() == everything
    assert ShardDataset(second).labels.tolist() == everything[3:]
    assert ShardDataset([second, first]).labels.tolist() == everything[3:] + everything[:3]


def test_fields_shape_the_sample(shards):
    transform = pil_to_tensor
    names = ["key", "image", "json", "txt", "bin", "cls", "label"]
    dataset = ShardDataset(shards, transform=transform, fields=names)
    sample = dataset[4]
    assert sample[0] == "k4" and sample[2:] == ({"id": 4, "n": {"m": [4]}}, "text ü4", b"\x04", 40, 40)
    assert torch.equal(sample[1], torch.from_numpy(pixels(IMAGES[4]).copy()).permute(2, 0, 1))
    mapped = ShardDataset(shards, fields={"labels": "label", "pixel_values": "image"})
    assert list(mapped[2]) == ["labels", "pixel_values"] and mapped[2]["labels"] == 20
    assert ShardDataset(shards, fields=("image",))[0][0].size == (17, 23)


def test_the_encoded_sample_is_the_sample_with_bytes_in_the_images_place(shards):
    dataset = ShardDataset(shards, fields={"x": "image", "y": "label"})
    sample = dataset.get_encoded(-1)
    assert isinstance(sample["x"], EncodedImage) and bytes(sample["x"].data) == IMAGES[6] and sample["y"] == 60


def test_bulk_access_gives_the_same_as_samples(shards):
    dataset = ShardDataset(shards, fields=("key", "image", "label", "json"))
    assert dataset.slots == (Column(0), IMAGE, Column(1), Column(2))
    ids = np.array([6, 0, 3, 3])
    encoded = reader_for(dataset.files).read(dataset.files, dataset.refs(ids))
    assert [encoded.encoded(row).tobytes() for row in range(4)] == [IMAGES[i] for i in ids]
    keys, labels, values = dataset.columns(ids)
    assert keys == ["k6", "k0", "k3", "k3"] and [v["id"] for v in values] == [6, 0, 3, 3]
    assert labels.dtype == np.int64 and labels.tolist() == [60, 0, 30, 30]
    assert dataset.name(3) == (dataset.files[1], "k3")


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("json:id", range(7)),
        ("cls", range(0, 70, 10)),
        (lambda key: int(key[1:]) + 100, range(100, 107)),
        ([6, 5, 4, 3, 2, 1, 0], range(6, -1, -1)),
    ],
)
def test_labels_from_elsewhere(shards, label, expected):
    dataset = ShardDataset(shards, label=label)
    assert dataset.labels.dtype == np.int64 and dataset.labels.tolist() == list(expected)
    assert dataset[2][1] == list(expected)[2]


def test_class_folders_are_imagefolders(tmp_path):
    for name in ("b/1.jpg", "a/2.jpg", "a/1.png"):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_bytes(jpeg(len(name), "L", "PNG" if name.endswith("png") else "JPEG"))
    dataset, expected = ShardDataset(tmp_path / "root"), ImageFolder(str(tmp_path / "root"))
    assert dataset.classes == expected.classes and dataset.class_to_idx == expected.class_to_idx
    assert [(file, label) for file, label in zip(dataset.files, dataset.labels, strict=True)] == expected.samples
    for i in range(3):
        assert (np.asarray(dataset[i][0]) == np.asarray(expected[i][0])).all() and dataset[i][1] == expected[i][1]


def test_it_pickles_small_and_reads_in_another_process(shards, tmp_path):
    dataset = ShardDataset(shards, fields=("image", "label", "json"))
    dataset[0]
    packed = pickle.dumps(dataset)
    assert len(packed) < 2000
    copy = pickle.loads(packed)
    assert copy.slots == dataset.slots and copy.get_encoded(3)[0].data == IMAGES[3] and copy[3][1:] == dataset[3][1:]
    loader = torch.utils.data.DataLoader(
        ShardDataset(shards, transform=pil_to_tensor), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    assert [(image.shape[2], label) for image, label in loader] == [(17 + i, 10 * i) for i in range(7)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(dataset.get_encoded, [5])[0][0].data == IMAGES[5]


def test_a_copy_of_a_folder_means_the_same_samples_though_the_folder_changed(tmp_path):
    (tmp_path / "f" / "c").mkdir(parents=True)
    (tmp_path / "f" / "c" / "m.jpg").write_bytes(IMAGES[1])
    packed = pickle.dumps(ShardDataset(tmp_path / "f"))
    (tmp_path / "f" / "c" / "a.jpg").write_bytes(IMAGES[2])
    copy = pickle.loads(packed)
    assert len(copy) == 1 and copy.get_encoded(0)[0].data == IMAGES[1]


def test_a_copy_of_changed_shards_is_an_error(shards, tmp_path):
    packed = pickle.dumps(ShardDataset(shards))
    add(tmp_path / "data" / "s-001.tar", members(range(4, 7)))
    with pytest.raises(ShardError, match="changed since"):
        pickle.loads(packed)


def test_remote_shards(shards):
    system = fsspec.filesystem("memory")
    for number in range(2):
        path = f"{shards.rpartition('/')[0]}/s-{number:03d}.tar"
        system.pipe_file(f"/ds/s-{number:03d}.tar", open(path, "rb").read())
    try:
        for urls in ("memory://ds/s-{000..001}.tar", "memory://ds", "memory://ds/*.tar"):
            dataset = ShardDataset(urls, fields=("image", "json"))
            assert [dataset.get_encoded(i)[0].data for i in range(7)] == IMAGES
            assert [value["id"] for value in dataset.columns(np.arange(7))[0]] == list(range(7))
            assert pickle.loads(pickle.dumps(dataset)).get_encoded(2)[0].data == IMAGES[2]
            dataset.close()
    finally:
        system.rm("/ds", recursive=True)


def test_classes_stand_beside_the_shards(shards, tmp_path):
    assert ShardDataset(shards).classes is None
    (tmp_path / "data" / "classes.json").write_text('{"classes": ["cat", "dog"]}')
    assert ShardDataset(shards).class_to_idx == {"cat": 0, "dog": 1}


@pytest.mark.parametrize(
    "content",
    [
        b'["cat", "dog"]', b'{"cat": 0}', b'{"classes": {"cat": 0}}', b'{"classes": [1, 2]}', b"<html></html>",
        b"\xff" * 300_000, b"[" * 100_000, b"",
    ],
)  # fmt: skip
def test_another_file_of_that_name_is_left_aside(shards, tmp_path, content):
    (tmp_path / "data" / "classes.json").write_bytes(content)
    dataset = ShardDataset(shards)
    assert dataset.classes is None and len(dataset) == 7
    [note] = dataset.findings
    assert note.note and note.shard.endswith("classes.json") and "no list of class names" in str(note)
    assert len(str(note)) < 400


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"fields": ("label",)}, "exactly once"),
        ({"fields": ("image", "image")}, "exactly once"),
        ({"fields": "image"}, "neither a sequence"),
        ({"fields": ("image", "xml")}, "'xml'.*There are: image, label, key, bin, cls, jpg, json, txt"),
        ({"format": "lmdb"}, "format='lmdb' is not known"),
        ({"on_error": "ignore"}, "on_error='ignore' is not known"),
        ({"label": "xml"}, "label='xml' names no member"),
        ({"label": [1, 2]}, r"shape \(2,\).*7 samples"),
        ({"label": [0.5] * 7}, "float64"),
    ],
)
def test_wrong_arguments_are_named(shards, arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        ShardDataset(shards, **arguments)


def test_samples_without_what_was_asked_for(tmp_path):
    path = add(
        tmp_path / "a.tar",
        {"a.jpg": IMAGES[0], "a.json": b"{}", "b.jpg": IMAGES[1], "b.cls": b"1", "c.jpg": IMAGES[2], "c.cls": b"cat"},
    )
    with pytest.raises(ShardError, match=r"sample a: it has no label that is an integer \(and 1 more"):
        ShardDataset(path)
    with pytest.raises(ShardError, match=r"sample b: it has no \.json"):
        ShardDataset(path, fields=("image", "json"))
    assert len(ShardDataset(path, fields=("image",))) == 3 and ShardDataset(path, fields=("image",)).labels is None
    dataset = ShardDataset(path, on_error="skip")
    assert len(dataset) == 1 and dataset.labels.tolist() == [1] and dataset.get_encoded(0)[0].data == IMAGES[1]
    assert [finding.key for finding in dataset.findings] == ["a", "c"]
    unlabelled = add(tmp_path / "b.tar", {"a.jpg": IMAGES[0]})
    with pytest.raises(ConfigError, match="no labels"):
        ShardDataset(unlabelled)


def test_a_bad_image_is_named_and_costs_no_neighbour(tmp_path):
    bad = {"zero": b"", "text": b"no image", "cut": jpeg(3)[:-40], "png": jpeg(5, "RGB", "PNG")}
    path = add(tmp_path / "a.tar", {f"{key}.jpg": data for key, data in bad.items()} | {"good.jpg": IMAGES[0]})
    dataset = ShardDataset(path, fields=("image",))
    for i, key in enumerate(["zero", "text", "cut"]):
        with pytest.raises(SampleError, match=rf"sample {i} \({key}\) in {path}") as caught:
            dataset[i]
        assert isinstance(caught.value, OSError) and caught.value.sample == i
    assert (np.asarray(dataset[3][0]) == pixels(bad["png"])).all()
    assert (np.asarray(dataset[4][0]) == pixels(IMAGES[0])).all()


def test_a_member_that_is_not_what_its_name_says(tmp_path):
    path = add(tmp_path / "a.tar", {"a.jpg": IMAGES[0], "a.json": b"{", "b.jpg": IMAGES[1], "b.json": b"[1]"})
    dataset = ShardDataset(path, fields=("image", "json"))
    with pytest.raises(SampleError, match=r"sample 0 \(a\).*\.json member is not valid"):
        dataset[0]
    failures: dict = {}
    assert dataset.columns(np.array([1, 0, 1]), failures) == ([[1], None, [1]],) and list(failures) == [1]
    with pytest.raises(SampleError, match="sample 0"):
        dataset.columns(np.array([1, 0]))
    assert dataset[1][1] == [1]


def test_a_file_that_vanishes_is_named(tmp_path):
    (tmp_path / "f" / "c").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "f" / "c" / name).write_bytes(IMAGES[0])
    dataset = ShardDataset(tmp_path / "f")
    (tmp_path / "f" / "c" / "a.jpg").unlink()
    for read in (dataset.__getitem__, dataset.get_encoded):
        with pytest.raises(SampleError, match="a.jpg") as caught:
            read(0)
        assert isinstance(caught.value, FileNotFoundError)
    assert dataset.get_encoded(1)[0].data == IMAGES[0]


def test_damage_raises_by_default_and_skip_uses_what_is_whole(tmp_path, shards):
    path = tmp_path / "data" / "s-001.tar"
    path.write_bytes(path.read_bytes()[:-12_000])
    (tmp_path / "data" / "s-002.tar").touch()
    with pytest.raises(ShardError, match="s-00"):
        ShardDataset(tmp_path / "data")
    dataset = ShardDataset(tmp_path / "data", on_error="skip")
    n = len(dataset)
    assert 3 <= n < 7 and [dataset.get_encoded(i)[0].data for i in range(n)] == IMAGES[:n]
    assert {finding.shard[-9:] for finding in dataset.findings} == {"s-001.tar", "s-002.tar"}
    assert "findings" in repr(dataset)


def test_empty_data_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShardError, match="no image in it"):
        ShardDataset(tmp_path / "empty")
    with pytest.raises(ShardError, match="no .tar file"):
        ShardDataset(tmp_path / "empty", format="tar")
    with pytest.raises(ShardError, match="no sample in it"):
        ShardDataset(add(tmp_path / "empty.tar", {}))
    with pytest.raises(ShardError, match="does not exist"):
        ShardDataset(tmp_path / "gone.tar")


def test_a_transforms_own_error_is_left_alone(shards):
    def transform(image):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="^mine$"):
        ShardDataset(shards, transform=transform)[0]


def test_real_shards(real_data):
    manifest = json.loads((real_data / "formats" / "manifest.json").read_text())
    dataset = ShardDataset(real_data / "formats" / "webdataset", fields=("image", "label", "json"))
    folder = ShardDataset(real_data / "formats" / "imagefolder")
    assert len(dataset) == len(folder) == len(manifest["photos"])
    for i, photo in enumerate(manifest["photos"]):
        image, label, extra = dataset[i]
        assert label == photo["label"] == folder[i][1] and isinstance(extra, dict)
        assert image.size == (photo["width"], photo["height"])
        assert dataset.get_encoded(i)[0].data == folder.get_encoded(i)[0].data


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("intact", []),
        ("zero_length_member", [13]),
        ("text_named_jpg", [13]),
        ("truncated_jpeg", [13]),
        ("png_named_jpg", []),
    ],
)
def test_real_damaged_shards(real_data, name, bad):
    dataset = ShardDataset(real_data / "formats" / "damaged" / "tar" / f"{name}.tar")
    failed = []
    for i in range(len(dataset)):
        try:
            dataset[i]
        except SampleError:
            failed.append(int(dataset.name(i)[1][-5:]))
    assert len(dataset) == 5 and failed == bad


def test_what_is_no_data_gets_a_cure_that_helps(tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(900))
    (tmp_path / "x.tar").write_bytes(b"\xff\xd8\xff\xe0" + bytes(900))
    for name in ("x.jpg", "x.tar"):
        with pytest.raises(ShardError, match="it is a single image, and no shard. Name the folder that holds it"):
            ShardDataset(tmp_path / name)
    for name in ("nonexist", "nonexist/"):
        for format in ("auto", "folder", "tar"):
            with pytest.raises(ShardError, match=f"^folder .*/{name}: it does not exist. Check the path$") as raised:
                ShardDataset(f"{tmp_path}/{name}", format=format)
            assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(ShardError, match="^shard .*/gone.tar: it does not exist"):
        ShardDataset(tmp_path / "gone.tar")
    with pytest.raises(ShardError, match="^folder .*x.jpg: it is a file. Name the folder"):
        ShardDataset(tmp_path / "x.jpg", format="folder")


def test_a_signed_url_is_shown_without_its_signature(tmp_path):
    system = fsspec.filesystem("memory")
    try:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            info = tarfile.TarInfo("a.jpg")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"bad"))
        url = "memory://signed/a.tar?sig=secret"
        system.pipe_file("/signed/a.tar?sig=secret", (tmp_path / "a.tar").read_bytes())
        dataset = ShardDataset([url], fields=("image",), format="tar")
        with pytest.raises(SampleError) as raised:
            dataset[0]
        for text in (repr(dataset), str(raised.value), str(Finding(url, "", "bad"))):
            assert "signed/a.tar?..." in text and "secret" not in text
    finally:
        system.rm("/signed", recursive=True)
