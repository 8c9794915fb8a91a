"""`gpuload pack`: bytes, keys, labels and fields go through; killed, full or repeated runs leave only whole shards."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from gpuload.cli import pack_read
from gpuload.cli.pack import pack, pack_command, parse_bytes
from gpuload.cli.pack_write import write_shards
from gpuload.core.errors import ConfigError, SampleError, ShardError
from gpuload.dataset import ShardDataset
from gpuload.decode.single import decode_jpeg
from gpuload.shards.checksums import SUFFIX

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """From the user's cache, before tests have one of their own: compiling them takes a minute."""
    from gpuload.kernels.tfrecord import masked_crc32c

    masked_crc32c(np.zeros(8, np.uint8), 0, 8)
    decode_jpeg(photo())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def photo() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), 90).save(out, "JPEG")
    return out.getvalue()


def make_folder(root: Path, n: int, size: int = 3000) -> dict[str, bytes]:
    """n files in 3 classes that need not be images: packing does not decode. Name -> bytes."""
    rng = np.random.default_rng(n)
    files = {}
    for i in range(n):
        name = f"{'cba'[i % 3]}/i{i:05d}.{'JPEG' if i % 2 else 'jpg'}"
        files[name] = rng.integers(0, 256, int(rng.integers(1, size)), np.uint8).tobytes()
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(files[name])
    return files


def images(dataset: ShardDataset) -> list[bytes]:
    return [bytes(dataset.get_encoded(i)[0].data) for i in range(len(dataset))]


def shard_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tar", ".json")}


def test_a_folder_comes_back_as_it_was(tmp_path):
    make_folder(tmp_path / "in", 40)
    done = pack(tmp_path / "in", tmp_path / "out", shard_size="20KB")
    before, after = ShardDataset(tmp_path / "in"), ShardDataset(tmp_path / "out")
    assert images(after) == images(before) and after.labels.tolist() == before.labels.tolist()
    assert after.classes == before.classes == ["a", "b", "c"]
    assert [after.name(i)[1] for i in range(40)] == [before.name(i)[1] for i in range(40)]
    assert [os.path.basename(path) for path in done.shards] == [f"out-{i:06d}.tar" for i in range(len(done.shards))]
    assert len(done.shards) > 3 and done.samples == 40 and done.resumed == 0
    assert all(os.path.getsize(path) <= 20_000 for path in done.shards)
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]
    for path in done.shards:
        assert os.path.exists(f"{path}.gpuload")
        with tarfile.open(path) as tar:
            names = tar.getnames()
        assert names == sorted(names) and len(names) % 2 == 0


def test_two_runs_write_the_same_bytes_wherever(tmp_path):
    make_folder(tmp_path / "in", 25)
    for out in ("one", "two"):
        pack(tmp_path / "in", tmp_path / out, shard_size="20KB", name="x")
    assert shard_bytes(tmp_path / "one") == shard_bytes(tmp_path / "two")


def test_tar_shards_keep_all_their_members(tmp_path):
    members = {}
    for i in range(9):
        members |= {
            f"d/k{i}.jpg": bytes([i]) * (i * 300),
            f"d/k{i}.json": b'{"i": %d}' % i,
            f"d/k{i}.cls": str(i * 3).encode(),
        }
        if i % 2:
            members[f"d/k{i}.seg.png"] = b"mask"
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    done = pack(tmp_path / "in.tar", tmp_path / "out", shard_size="8KiB")
    found = {}
    for path in done.shards:
        with tarfile.open(path) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}
    assert found == members and len(done.shards) > 1
    relabelled = pack(tmp_path / "in.tar", tmp_path / "relabelled", label="json:i")
    assert ShardDataset(relabelled.shards).labels.tolist() == list(range(9))
    assert ShardDataset(relabelled.shards, fields=("image", "cls")).columns(np.arange(9))[0] == list(range(9))


def test_a_compressed_tar_is_packed_like_a_plain_one(tmp_path):
    make_folder(tmp_path / "in", 6)
    pack(tmp_path / "in", tmp_path / "plain", name="x")
    packed = (tmp_path / "plain" / "x-000000.tar").read_bytes()
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz" / "x.tar.gz").write_bytes(gzip.compress(packed))
    done = pack(tmp_path / "gz", tmp_path / "out", name="x")
    assert Path(done.shards[0]).read_bytes() == packed


FORMATS = ["tar", "tfrecord", "mds", pytest.param("parquet", marks=pytest.mark.full)]


@pytest.mark.parametrize("target", FORMATS)
def test_a_folder_goes_through_every_format(tmp_path, target):
    make_folder(tmp_path / "in", 30)
    done = pack(tmp_path / "in", tmp_path / "out", target, "10KB", entropy=False)
    before, after = ShardDataset(tmp_path / "in"), ShardDataset(tmp_path / "out")
    assert images(after) == images(before) and after.labels.tolist() == before.labels.tolist()
    assert after.classes == before.classes and len(done.shards) > 3 and not done.notes
    assert [after.name(i)[1] for i in range(30)] == [before.name(i)[1] for i in range(30)]
    again = pack(tmp_path / "in", tmp_path / "out", target, "10KB", entropy=False)
    assert again.resumed == len(done.shards) == len(again.shards)
    with pytest.raises(ConfigError, match="another size or format"):
        pack(tmp_path / "in", tmp_path / "out", "tar" if target != "tar" else "mds", "10KB")


def typed_mds(root: Path) -> list[dict]:
    """An MDS data set with a column of each kind, written by hand from the format's description. Its rows."""
    rng = np.random.default_rng(1)
    columns = {
        "boxes": "ndarray", "caption": "str", "height": "uint16", "image": "jpeg", "label": "int", "mask": "bytes",
        "score": "float64", "tags": "json",
    }  # fmt: skip
    sizes = {"height": 2, "label": 8, "score": 8}
    rows, samples = [], []
    for i in range(7):
        boxes = rng.random((i + 1, 4), np.float32)
        row = {
            "boxes": boxes, "caption": f"h\u00e9 {i}", "height": np.uint16(i * 9000), "label": i - 1,
            "image": b"\xff\xd8\xff" + rng.bytes(50 * i), "mask": bytes([i]) * i, "score": 0.1 * i, "tags": {"a": [i]},
        }  # fmt: skip
        rows.append(row)
        stored = row | {
            "boxes": bytes((34, 2 << 2)) + np.array(boxes.shape, np.uint8).tobytes() + boxes.tobytes(),
            "caption": row["caption"].encode(), "height": row["height"].tobytes(),
            "label": np.int64(row["label"]).tobytes(), "score": np.float64(row["score"]).tobytes(),
            "tags": json.dumps(row["tags"]).encode(),
        }  # fmt: skip
        heads = [len(stored[name]) for name in columns if name not in sizes]
        samples.append(np.array(heads, np.uint32).tobytes() + b"".join(stored[name] for name in columns))
    config = json.dumps({
        "column_names": list(columns), "column_encodings": list(columns.values()),
        "column_sizes": [sizes.get(name) for name in columns],
    }).encode()  # fmt: skip
    offsets = np.cumsum([4 + 4 * 8 + len(config), *map(len, samples)]).astype(np.uint32)
    root.mkdir()
    (root / "shard.00000.mds").write_bytes(np.uint32(7).tobytes() + offsets.tobytes() + config + b"".join(samples))
    return rows


@pytest.mark.parametrize("target", FORMATS)
def test_fields_of_every_type_go_through_every_format(tmp_path, target):
    rows = typed_mds(tmp_path / "in")
    done = pack(tmp_path / "in", tmp_path / "out", target, entropy=False)
    names = {
        "tar": ["boxes.npy", "caption.txt", "height.json", "mask", "score.json", "tags.json"],
    }.get(target, ["boxes", "caption", "height", "mask", "score", "tags"])
    dataset = ShardDataset(tmp_path / "out", fields=("image", "label", *names))
    assert images(dataset) == [row["image"] for row in rows]
    labels, boxes, captions, heights, masks, scores, tags = dataset.columns(np.arange(7))
    assert labels.tolist() == [row["label"] for row in rows]
    assert list(map(int, heights)) == [int(row["height"]) for row in rows]
    assert masks == [row["mask"] for row in rows]
    text = [value.decode() if isinstance(value, bytes) else value for value in captions]  # TFRecord has no str
    assert text == [row["caption"] for row in rows]
    expected = [np.float32(row["score"]) if target == "tfrecord" else row["score"] for row in rows]
    assert scores == expected and bool(done.notes) == (target in ("tfrecord", "parquet"))
    told = [value if isinstance(value, dict) else json.loads(value) for value in tags]
    assert told == [row["tags"] for row in rows]
    for value, row in zip(boxes, rows, strict=True):
        found = np.array(value, np.float32).reshape(row["boxes"].shape)
        np.testing.assert_array_equal(found, row["boxes"])
    if target == "tfrecord":
        shapes = ShardDataset(tmp_path / "out", fields=("image", "boxes/shape")).columns(np.arange(7))[0]
        assert [shape.tolist() for shape in shapes] == [[i + 1, 4] for i in range(7)]
    if target == "parquet":
        return  # which reads nested lists as JSON, and keeps JSON as text
    back = pack(tmp_path / "out", tmp_path / "back", target, entropy=False)
    first, second = (ShardDataset(d.shards, fields=("image", *names)) for d in (done, back))
    assert repr(first.columns(np.arange(7))) == repr(second.columns(np.arange(7)))


def tar_of_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """One sample: an image, and arrays by name."""
    with tarfile.open(path, "w") as tar:
        for name, array in arrays.items():
            np.save(data := io.BytesIO(), array)
            info = tarfile.TarInfo(f"k.{name}.npy")
            info.size = data.tell()
            tar.addfile(info, io.BytesIO(data.getvalue()))
        info = tarfile.TarInfo("k.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"\xff\xd8\xff"))


@pytest.mark.parametrize("target", FORMATS)
def test_arrays_of_every_type_keep_their_values_or_are_refused(tmp_path, target):
    kept = {
        "big": np.array([1.5, -2.5], ">f4"),
        "bigint": np.array([[1, -2]], ">i8"),
        "bool": np.array([True, False]),
        "half": np.array([1.5], np.float16),
        "scalar": np.array(3.5),
        "none": np.zeros((0, 4), np.float32),
    }
    tar_of_arrays(tmp_path / "in.tar", kept)
    pack(tmp_path / "in.tar", tmp_path / "out", target, entropy=False)
    dataset = ShardDataset(tmp_path / "out", fields=("image", *(f"{name}.npy" for name in kept)))
    for value, array in zip(dataset.get_encoded(0)[1:], kept.values(), strict=True):
        np.testing.assert_array_equal(np.asarray(value, array.dtype.newbyteorder("=")).reshape(array.shape), array)
    others = {
        "complex": np.array([1 + 2j], np.complex64),
        "time": np.array(["2020-01-01"], "datetime64[D]"),
        "text": np.array(["ab"]),
        "long": np.array([1], np.longdouble),
        "record": np.zeros(1, [("a", "i4"), ("b", "f4")]),
    }
    for name, array in others.items():
        tar_of_arrays(tmp_path / f"{name}.tar", {name: array})
        if target != "tar":
            with pytest.raises(ConfigError, match=f"(?i)field {name}.npy has values of type .*{target} does not keep"):
                pack(tmp_path / f"{name}.tar", tmp_path / name, target)
            continue
        pack(tmp_path / f"{name}.tar", tmp_path / name, entropy=False)
        value = ShardDataset(tmp_path / name, fields=("image", f"{name}.npy")).get_encoded(0)[1]
        assert value.dtype == array.dtype and value.tobytes() == array.tobytes()


def test_fields_that_some_samples_lack(tmp_path):
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for i in range(4):
            members = {"jpg": b"\xff\xd8\xff", "cls": b"%d" % i, "json": b'{"i": %d}' % i, "txt": b"word"}
            for name in members if i % 2 else ("jpg", "cls"):
                info = tarfile.TarInfo(f"k{i}.{name}")
                info.size = len(members[name])
                tar.addfile(info, io.BytesIO(members[name]))
    pack(tmp_path / "in.tar", tmp_path / "tf", "tfrecord", entropy=False)
    dataset = ShardDataset(tmp_path / "tf", fields=("image",))
    assert (dataset.member_refs("json", np.arange(4))["length"] >= 0).tolist() == [False, True] * 2
    pack(tmp_path / "in.tar", tmp_path / "mds", "mds", entropy=False)
    columns = ShardDataset(tmp_path / "mds", fields=("image", "json", "txt")).columns(np.arange(4))
    assert columns == ([None, {"i": 1}, None, {"i": 3}], ["", "word", "", "word"])


def test_a_pickled_column_is_never_opened(tmp_path):
    typed_mds(tmp_path / "in")
    shard = tmp_path / "in" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b'"bytes"', b'"pkl"  ', 1))
    pack(tmp_path / "in", tmp_path / "out", entropy=False)  # its bytes are no pickle
    assert ShardDataset(tmp_path / "out", fields=("image", "mask")).columns(np.arange(7))[0][3] == b"\3\3\3"


def test_without_an_index_nothing_but_shards_and_checksums_is_written(tmp_path):
    make_folder(tmp_path / "in", 6)
    pack(tmp_path / "in", tmp_path / "out", make_index=False)
    names = {"classes.json", "out-000000.tar", f"out-000000.tar{SUFFIX}", "out.pack.json"}
    assert set(os.listdir(tmp_path / "out")) == names


def test_keys_that_a_tar_would_confuse_stay_apart(tmp_path):
    for name in ("c/a.b.jpg", "c/a_b.jpg", "c/a.jpg", "c/a.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    done = pack(tmp_path / "in", tmp_path / "out")
    dataset = ShardDataset(done.shards)
    assert images(dataset) == images(ShardDataset(tmp_path / "in"))
    assert [dataset.name(i)[1] for i in range(4)] == ["c/a_b", "c/a", "c/a-2", "c/a_b-2"]


@pytest.mark.parametrize("target", FORMATS)
def test_names_that_are_no_utf8(tmp_path, target):
    names = ["b\udce9/caf\udcff.jpg", "a/ü.jpg"]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode("utf-8", "surrogateescape"))
    done = pack(tmp_path / "in", tmp_path / "out", target, entropy=False)
    dataset = ShardDataset(done.shards, fields=("image", "key", "label"))
    classes = json.loads((tmp_path / "out" / "classes.json").read_text())["classes"]
    found = {key: (bytes(image.data), classes[label]) for image, key, label in map(dataset.get_encoded, range(2))}
    content = {name: (name.encode("utf-8", "surrogateescape"), name[: name.index("/")]) for name in names}
    first = "b\udce9/caf\udcff" if target == "tar" else "b%E9/caf%FF"
    assert found == {first: content[names[0]], "a/ü": content[names[1]]}
    assert [note for note in done.notes if "1 keys are no UTF-8" in note and first in note] == list(done.notes)
    assert bool(done.notes) == (target != "tar")


PACK = """
import sys; from gpuload.cli.pack import pack
pack(sys.argv[1], sys.argv[2], sys.argv[4], sys.argv[3], name='x', entropy=False)
"""


def start(*arguments, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", PACK, *map(str, arguments)], env=environment, stderr=-1, **options)


TRIES = 6
"""A busy machine may come too late to kill what packs."""


def test_after_kill_9_a_second_run_continues_to_the_same_bytes(tmp_path):
    make_folder(tmp_path / "in", 400, 4000)
    out = tmp_path / "out"
    for _ in range(TRIES):
        child = start(tmp_path / "in", out, "12KB", "tar")
        while child.poll() is None and len(list(out.glob("x-*.tar"))) < 5:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        if child.wait() == -signal.SIGKILL:
            break
        shutil.rmtree(out)
    else:
        pytest.fail("packing ended before it could be killed: give it more files")
    written = {path.name: path.stat().st_ino for path in out.glob("x-*.tar")}
    (out / ".x-000000.tar.partial").write_bytes(b"what a killed run may leave")
    done = pack(tmp_path / "in", out, shard_size="12KB", name="x")
    assert done.resumed == len(written) < len(done.shards)
    assert all((out / name).stat().st_ino == inode for name, inode in written.items())
    pack(tmp_path / "in", tmp_path / "straight", shard_size="12KB", name="x")
    assert shard_bytes(out) == shard_bytes(tmp_path / "straight")
    assert pack(tmp_path / "in", out, shard_size="12KB", name="x").resumed == len(done.shards)


@pytest.mark.parametrize("format", ["tar", "mds", pytest.param("tfrecord", marks=pytest.mark.full)])
def test_killed_at_random_moments_again_and_again_it_ends_with_the_same_bytes(tmp_path, format):
    make_folder(tmp_path / "in", 300, 4000)
    straight = pack(tmp_path / "in", tmp_path / "straight", format, "9KB", name="x", entropy=False)
    rng = np.random.default_rng(len(format))
    kills = 0
    for _ in range(TRIES):
        wanted = len(list((tmp_path / "out").glob(f"x-*.{format}"))) + int(rng.integers(1, len(straight.shards) // 3))
        child = start(tmp_path / "in", tmp_path / "out", "9KB", format)
        while child.poll() is None and len(list((tmp_path / "out").glob(f"x-*.{format}"))) < wanted:
            time.sleep(0.0005)
        time.sleep(float(rng.random()) * 0.004)
        child.kill()
        killed = child.wait() == -signal.SIGKILL
        kills += killed
        for path in (tmp_path / "out").glob(f"x-*.{format}"):  # whatever has its name is whole
            assert path.read_bytes() == (tmp_path / "straight" / path.name).read_bytes()
        if kills == 2:
            break
        if not killed:
            shutil.rmtree(tmp_path / "out")
    assert kills, "packing ended before it could be killed: give it more files"
    done = pack(tmp_path / "in", tmp_path / "out", format, "9KB", name="x", entropy=False)
    for path in straight.shards:
        for suffix in ("", SUFFIX):
            assert (tmp_path / "out" / (os.path.basename(path) + suffix)).read_bytes() == Path(
                path + suffix
            ).read_bytes()
    dataset = ShardDataset(tmp_path / "out")
    assert len(done.shards) == len(straight.shards) and images(dataset) == images(ShardDataset(tmp_path / "in"))


def test_a_shard_that_was_cut_is_written_again(tmp_path):
    make_folder(tmp_path / "in", 30)
    done = pack(tmp_path / "in", tmp_path / "out", shard_size="20KB")
    whole = Path(done.shards[1]).read_bytes()
    Path(done.shards[1]).write_bytes(whole[:5000])
    assert pack(tmp_path / "in", tmp_path / "out", shard_size="20KB").resumed == len(done.shards) - 1
    assert Path(done.shards[1]).read_bytes() == whole


def test_a_file_that_may_grow_no_further_is_an_error_and_leaves_no_half_shard(tmp_path):
    make_folder(tmp_path / "in", 40)
    out = tmp_path / "out"

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))

    child = start(tmp_path / "in", out, "50KB", "tar", preexec_fn=limit)
    message = child.communicate()[1].decode()
    assert child.returncode == 1 and "ShardError" in message and "no room for it" in message
    assert "run the same command again" in message
    assert not list(out.glob("*.tar")) and not list(out.glob(".*.partial"))
    pack(tmp_path / "in", out, shard_size="50KB", name="x")
    assert images(ShardDataset(out)) == images(ShardDataset(tmp_path / "in"))


def test_a_full_disk_is_an_error_and_packing_goes_on_when_there_is_room(tmp_path):
    make_folder(tmp_path / "in", 100)
    (out := tmp_path / "out").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(out)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a real full disk is left out: mounting a tmpfs needs root")
    try:
        with pytest.raises(ShardError, match="No space left on device"):
            pack(tmp_path / "in", out, shard_size="30KB", name="x")
        written = len(list(out.glob("*.tar")))
        assert written and not list(out.glob(".*.partial"))
        subprocess.run(["mount", "-o", "remount,size=2m", str(out)], check=True)
        assert pack(tmp_path / "in", out, shard_size="30KB", name="x").resumed == written
        assert images(ShardDataset(out)) == images(ShardDataset(tmp_path / "in"))
    finally:
        subprocess.run(["umount", "-l", str(out)], check=True)


def test_each_file_is_looked_at_once_however_many_shards_there_are(tmp_path, monkeypatch):
    make_folder(tmp_path / "in", 40)
    asked = []
    monkeypatch.setattr(pack_read, "is_local", lambda path: asked.append(path) or True)
    done = pack(tmp_path / "in", tmp_path / "out", shard_size="20KB", make_index=False)
    assert len(done.shards) > 3 and len(asked) == 40


@pytest.mark.parametrize("sync", [True, False])
def test_only_where_it_is_asked_for_does_packing_wait_for_the_disk(tmp_path, monkeypatch, sync):
    make_folder(tmp_path / "in", 40)
    fsync, waited = os.fsync, []

    def note(fd):
        waited.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    done = pack(tmp_path / "in", tmp_path / "out", shard_size="20KB", make_index=False, sync=sync)
    names = [f".{os.path.basename(shard)}{suffix}.partial" for shard in done.shards for suffix in ("", SUFFIX)]
    assert set(names) & set(waited) == (set(names) if sync else set())
    assert images(ShardDataset(done.shards)) == images(ShardDataset(tmp_path / "in"))


@pytest.mark.parametrize("failing", ["x-000002.tar", f"x-000002.tar{SUFFIX}"])
def test_a_disk_that_fails_late_ends_packing_with_whole_shards_only(tmp_path, monkeypatch, failing):
    """What was written may fail to reach the disk while the next shards are read."""
    make_folder(tmp_path / "in", 60)
    fsync = os.fsync

    def fail_for_the_third(fd):
        if f"/.{failing}.partial" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_for_the_third)
    out = tmp_path / "out"
    with pytest.raises(ShardError, match=f"{failing}: it cannot be written.*Check the disk"):
        pack(tmp_path / "in", out, shard_size="20KB", name="x")
    assert not list(out.glob(".*.partial")) and not (out / "x-000002.tar").exists()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole = len(list(out.glob("*.tar")))
    assert pack(tmp_path / "in", out, shard_size="20KB", name="x").resumed == whole
    assert images(ShardDataset(out)) == images(ShardDataset(tmp_path / "in"))


def test_what_is_there_is_not_overwritten(tmp_path):
    make_folder(tmp_path / "in", 12)
    pack(tmp_path / "in", tmp_path / "out", name="x")
    with pytest.raises(ConfigError, match="packed from other samples, .*or with another size"):
        pack(tmp_path / "in", tmp_path / "out", name="x", shard_size="20KB")
    make_folder(tmp_path / "more", 13)
    with pytest.raises(ConfigError, match="packed from other samples"):
        pack(tmp_path / "more", tmp_path / "out", name="x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x-000000.tar").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="not written by gpuload pack"):
        pack(tmp_path / "in", tmp_path / "mine", name="x")
    assert (tmp_path / "mine" / "x-000000.tar").read_bytes() == b"mine"
    with pytest.raises(ConfigError, match="cannot be made"):
        pack(tmp_path / "in", tmp_path / "mine" / "x-000000.tar")


def test_a_file_that_changes_while_packing_is_named(tmp_path, monkeypatch):
    make_folder(tmp_path / "in", 6)
    victim = tmp_path / "in" / "a" / "i00002.jpg"

    def shrink_then_write(*arguments, **keywords):
        victim.write_bytes(b"less")
        return write_shards(*arguments, **keywords)

    monkeypatch.setattr("gpuload.cli.pack.write_shards", shrink_then_write)
    with pytest.raises(SampleError, match="i00002.jpg.*bytes when packing began and has 4 now"):
        pack(tmp_path / "in", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize("what", ["image", "shard"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_source_that_was_replaced_by_one_of_the_same_size_is_named(tmp_path, monkeypatch, what, when):
    make_folder(tmp_path / "in", 6)
    source = tmp_path / "in" if what == "image" else Path(pack(tmp_path / "in", tmp_path / "first").shards[0])
    victim = tmp_path / "in" / "a" / "i00002.jpg" if what == "image" else source

    def replace():
        victim.with_suffix(".new").write_bytes(victim.read_bytes())
        os.utime(victim.with_suffix(".new"), (1, 1))
        victim.with_suffix(".new").rename(victim)

    def write(*arguments, **keywords):
        if when == "before":
            replace()
        try:
            return write_shards(*arguments, **keywords)
        finally:
            if when == "after":
                replace()

    monkeypatch.setattr("gpuload.cli.pack.write_shards", write)
    with pytest.raises((ShardError, SampleError), match=f"{victim.name}.*(changed while it was packed|replaced)"):
        pack(source, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="from files that changed since"):
        pack(source, tmp_path / "out")


def test_damage_in_the_source_raises_or_is_left_out(tmp_path):
    make_folder(tmp_path / "in", 12)
    shard = Path(pack(tmp_path / "in", tmp_path / "whole").shards[0])
    cut = tmp_path / "cut.tar"
    cut.write_bytes(shard.read_bytes()[:-8000])
    with pytest.raises(ShardError, match="cut"):
        pack(cut, tmp_path / "out")
    done = pack(cut, tmp_path / "out", on_error="skip")
    assert 0 < done.samples < 12 and images(ShardDataset(done.shards)) == images(ShardDataset(shard))[: done.samples]


def test_what_cannot_be_read_is_left_out_and_a_second_run_goes_on(tmp_path):
    files = make_folder(tmp_path / "in", 9)
    whole = pack(tmp_path / "in", tmp_path / "whole", shard_size="12KB", entropy=False)
    assert len(whole.shards) > 2 and not whole.notes
    Path(whole.shards[1]).unlink()
    Path(whole.shards[2]).write_bytes(b"no shard" * 100)
    source = list(whole.shards)
    there = ShardDataset(source, on_error="skip")
    for resumed in (False, True):
        done = pack(source, tmp_path / "out", on_error="skip", entropy=False)
        assert images(ShardDataset(done.shards)) == images(there) and done.resumed == resumed
        assert len(done.notes) == 1 and done.notes[0].startswith("left out: ") and "more findings" in done.notes[0]
    with pytest.raises(ShardError, match="does not exist"):
        pack(source, tmp_path / "none")
    os.symlink(tmp_path / "nowhere", tmp_path / "in" / "a" / "gone.jpg")
    with pytest.raises(ShardError, match="gone.jpg: it does not exist"):
        pack(tmp_path / "in", tmp_path / "none")
    for resumed in (False, True):
        done = pack(tmp_path / "in", tmp_path / "loose", on_error="skip", entropy=False)
        dataset = ShardDataset(done.shards, fields=("key", "image", "label"))
        found = {key: (bytes(image.data), label) for key, image, label in map(dataset.get_encoded, range(9))}
        assert found == {name.rpartition(".")[0]: (data, "abc".index(name[0])) for name, data in files.items()}
        assert len(dataset) == done.samples == 9 and done.resumed == resumed and "gone.jpg" in done.notes[0]
    with pytest.raises(ShardError, match="it does not exist"):
        pack([tmp_path / "a.jpg", tmp_path / "b.jpg"], tmp_path / "none", on_error="skip")


@pytest.mark.parametrize(("text", "size"), [("128MB", 128_000_000), ("64 MiB", 64 << 20), ("1.5k", 1500), (4096, 4096)])
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1MB", "0", "1TBx"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="is no size"):
        parse_bytes(text)


def test_the_command_says_what_it_wrote(tmp_path):
    make_folder(tmp_path / "in", 9)
    app = typer.Typer()
    app.command()(pack_command)
    arguments = [str(tmp_path / "in"), str(tmp_path / "out"), "--shard-size", "9KB"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert "9 samples" in first.output.replace("\n", " ") and "written earlier" in second.output.replace("\n", " ")
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == {"classes": ["a", "b", "c"]}
    assert isinstance(CliRunner().invoke(app, [*arguments, "--format", "lmdb"]).exception, ConfigError)


def test_real_photographs_go_through_unchanged(real_data, tmp_path):
    source = ShardDataset(real_data / "formats" / "imagefolder")
    done = pack(real_data / "formats" / "imagefolder", tmp_path / "out", shard_size="500KB")
    dataset = ShardDataset(done.shards)
    assert images(dataset) == images(source) and dataset.classes == source.classes
    assert dataset.labels.tolist() == source.labels.tolist()


def test_a_source_that_changed_is_not_resumed(tmp_path):
    """Labels of equal length make shards of equal size: only the source's stamps tell."""
    source = tmp_path / "in.tar"
    for label in (b"1", b"2"):
        with tarfile.open(source, "w") as tar:
            for name, data in (("a.cls", label), ("a.jpg", b"image")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        os.utime(source, ns=(int(label) * 10**9, int(label) * 10**9))
        if label == b"1":
            done = pack(source, tmp_path / "out")
            assert pack(source, tmp_path / "out").resumed == 1
    with pytest.raises(ConfigError, match="files that changed since"):
        pack(source, tmp_path / "out")
    assert ShardDataset(done.shards).labels.tolist() == [1]
    assert ShardDataset(pack(source, tmp_path / "new").shards).labels.tolist() == [2]


def test_a_compressed_source_resumes_by_the_shards_own_stamp(tmp_path):
    make_folder(tmp_path / "in", 6)
    packed = Path(pack(tmp_path / "in", tmp_path / "plain", name="x").shards[0]).read_bytes()
    (tmp_path / "in.tar.gz").write_bytes(gzip.compress(packed))
    pack(tmp_path / "in.tar.gz", tmp_path / "out")
    assert pack(tmp_path / "in.tar.gz", tmp_path / "out").resumed == 1
    os.utime(tmp_path / "in.tar.gz", ns=(1, 1))
    with pytest.raises(ConfigError, match="files that changed since"):
        pack(tmp_path / "in.tar.gz", tmp_path / "out")


def test_source_and_shards_must_not_lie_in_each_other(tmp_path, monkeypatch):
    make_folder(tmp_path / "in", 6)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    (tmp_path.parent / f"{tmp_path.name}-link").symlink_to(tmp_path / "in")
    for dst, how in [
        ("in", "is the source itself"),
        ("./in/", "is the source itself"),
        (tmp_path.parent / f"{tmp_path.name}-link", "is the source itself"),
        ("in/a/shards", "lies in the source in"),
        (".", "holds the source in"),
    ]:
        with pytest.raises(ConfigError, match=f"{how}.*Choose one beside the source"):
            pack("in", dst)
    assert sorted(tmp_path.rglob("*")) == before
    pack("in", "in2")  # a name that only begins like the source's


def test_a_failed_run_leaves_no_lock(tmp_path):
    (tmp_path / "in" / "c").mkdir(parents=True)
    with pytest.raises(ShardError, match="no image in it"):
        pack(tmp_path / "in", tmp_path / "out", format="tar")
    assert os.listdir(tmp_path / "out") == []
