"""`gpuload verify`: whole data has no findings; each damage is named once, by shard, sample and cause."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from gpuload.cli.pack import pack
from gpuload.cli.verify import verify, verify_command
from gpuload.core.errors import ShardError
from gpuload.dataset import ShardDataset
from gpuload.decode.single import decode_jpeg


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """From the user's cache, before tests have one of their own: compiling them takes a minute."""
    from gpuload.kernels.tfrecord import masked_crc32c

    masked_crc32c(np.zeros(8, np.uint8), 0, 8)
    decode_jpeg(jpeg(1))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def jpeg(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (5 + seed, 9, 3), np.uint8)
    Image.fromarray(pixels).resize((60 + seed, 50)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path) -> Path:
    for i in range(12):
        path = tmp_path / "in" / "ab"[i % 2] / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(i))
    return tmp_path / "in"


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


FORMATS = ["tar", "tfrecord", "mds", pytest.param("parquet", marks=pytest.mark.full)]


@pytest.mark.parametrize("format", FORMATS)
def test_whole_data_has_no_findings_and_one_flipped_bit_has_one(folder, tmp_path, format):
    done = pack(folder, tmp_path / "out", format, "9KB", entropy=False)
    found = verify(tmp_path / "out")
    assert not found.faults and found.summed == found.shards == len(done.shards) > 1
    assert found.samples == 12 and found.bytes == sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    dataset = ShardDataset(tmp_path / "out")
    target = 7
    data = bytes(dataset.get_encoded(target)[0].data)
    shard = Path(dataset.name(target)[0])
    content = bytearray(shard.read_bytes())
    content[content.index(data) + len(data) - 20] ^= 4  # in the scan, where every decoder stays silent
    shard.write_bytes(content)
    found = verify(tmp_path / "out")
    damage = [fault for fault in found.faults if fault.kind in ("shard", "checksum")]
    assert damage[0].shard == str(shard) and {fault.shard for fault in found.faults} == {str(shard)}
    if format == "tfrecord":  # its own checksum says so: the sample is not delivered at all
        assert "CRC32C" in damage[0].problem and found.kinds == {"shard": 1, "checksum": 1}
    else:
        assert [(fault.kind, fault.key) for fault in damage] == [("checksum", dataset.name(target)[1])]
    if format == "tar":
        assert found.kinds == {"checksum": 1}


def test_a_flipped_label_is_found_by_the_checksum_of_the_rest(folder, tmp_path):
    (shard,) = (Path(path) for path in pack(folder, tmp_path / "out", entropy=False).shards)
    with tarfile.open(shard) as archive:
        at = archive.getmember("b/05.cls").offset_data
    content = bytearray(shard.read_bytes())
    content[at] ^= 1
    shard.write_bytes(content)
    (fault,) = verify(tmp_path / "out").faults
    assert (fault.kind, fault.shard, fault.key) == (
        "checksum",
        str(shard),
        "",
    ) and "outside of the images" in fault.problem


def test_images_that_do_not_decode_and_fields_that_are_not_valid_are_named(tmp_path):
    whole = jpeg(1)
    path = tar(tmp_path / "x.tar", {
        "a.jpg": whole, "a.json": b"{}",
        "b.jpg": whole[:-400], "b.json": b"{",
        "c.jpg": b"", "c.txt": b"\xff",
        "d.jpg": whole, "d.seg.png": b"a mask is a field, whatever is in it",
        "e.json": b"{}",
    })  # fmt: skip
    found = verify(path)
    assert [(f.kind, f.key) for f in found.faults] == [
        ("shard", "e"), ("image", "b"), ("image", "c"), ("field", "b"), ("field", "c"),
    ]  # fmt: skip
    assert "truncated" in found.faults[1].problem and "json" in found.faults[3].problem
    assert found.samples == 4 and found.kinds == {"shard": 1, "image": 2, "field": 2} and not found.summed


def test_a_shard_that_is_cut_off_and_one_that_is_gone(folder, tmp_path):
    shards = [Path(path) for path in pack(folder, tmp_path / "out", shard_size="9KB", entropy=False).shards]
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-3000])
    found = verify([str(path) for path in shards])
    assert {fault.shard for fault in found.faults} == {str(shards[1])} and found.kinds["checksum"] == 1
    assert any("was packed with" in fault.problem for fault in found.faults)
    shards[1].unlink()
    found = verify([str(path) for path in shards])
    assert [("exist" in fault.problem, fault.shard) for fault in found.faults] == [(True, str(shards[1]))]
    (tmp_path / "none.tar").write_bytes(b"")
    with pytest.raises(ShardError, match="empty"):
        verify(tmp_path / "none.tar")


@pytest.mark.parametrize("format", FORMATS)
def test_a_packed_shard_that_is_gone_from_its_folder(folder, tmp_path, format):
    shards = pack(folder, tmp_path / "out", format, "9KB", entropy=False).shards
    pack(folder, tmp_path / "out", format, name="other") if format != "mds" else None
    Path(shards[1]).unlink()
    Path(shards[-1]).unlink()
    for index in tmp_path.glob("out/index.json"):  # MDS's says which shards there are; without it nothing does
        index.unlink()
    for urls in (tmp_path / "out", f"{tmp_path}/out/out-*{Path(shards[0]).suffix}", shards[0]):
        faults = verify(urls).faults
        assert [(fault.kind, fault.shard) for fault in faults] == [("shard", shards[1]), ("shard", shards[-1])]
        assert all(f"one of {len(shards)} that were packed, and it does not exist" in f.problem for f in faults)
    (tmp_path / "out" / "out.pack.json").write_bytes(b"\0")
    (fault,) = verify(shards[0]).faults
    assert fault.shard.endswith("out.pack.json") and "damaged" in fault.problem
    (tmp_path / "out" / "out.pack.json").unlink()
    assert not verify(shards[0]).faults


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_of_an_archive_that_has_another_crc_is_named(tmp_path, kind):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(6):
            archive.writestr(f"{'ab'[number % 2]}/{number}.jpg", jpeg(number), kind)
        archive.writestr("a/readme.txt", "text")
        place = archive.getinfo("b/3.jpg")
    assert not verify(path).faults
    flip(path, place.header_offset + 30 + len("b/3.jpg") + place.compress_size - 20)
    (fault,) = verify(path).faults
    assert (fault.shard, fault.key, "CRC-32" in fault.problem) == (str(path), "b/3", True)
    assert fault.kind == ("checksum" if kind == zipfile.ZIP_STORED else "shard")


@pytest.mark.parametrize("hashes", [["sha1"], ["xxh64", "md5", "sha256"], ["xxh64"], []])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_shard_that_has_another_hash_than_its_index_says_is_named(folder, tmp_path, hashes, zipped):
    shards = [Path(path) for path in pack(folder, tmp_path / "out", "mds", "9KB", entropy=False).shards]
    for made in (tmp_path / "out").glob("*.gpuload*"):
        made.unlink()  # with the checksums of pack they are not asked for
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    for path, entry in zip(shards, index["shards"], strict=True):
        stored = path
        if zipped:
            stored = path.with_name(f"{path.name}.gz")
            stored.write_bytes(gzip.compress(path.read_bytes(), 0))
            path.unlink()
        content = stored.read_bytes()
        told = {kind: hashlib.new(kind, content).hexdigest() if kind != "xxh64" else "0" * 16 for kind in hashes}
        told = {"basename": stored.name, "bytes": len(content), "hashes": told}
        entry["zip_data" if zipped else "raw_data"] = told
    (tmp_path / "out" / "index.json").write_text(json.dumps(index))
    found = verify(tmp_path / "out")
    assert not found.faults and found.samples == 12
    damaged = tmp_path / "out" / index["shards"][1]["zip_data" if zipped else "raw_data"]["basename"]
    content = damaged.read_bytes()
    flip(damaged, content.rindex(b"\xff\xd9") - 20)  # in a scan, where every decoder stays silent
    os.utime(damaged, ns=(0, damaged.stat().st_mtime_ns + 10**9))  # however coarse the file system's clock is
    faults = [fault for fault in verify(tmp_path / "out").faults if fault.kind in ("shard", "checksum")]
    compared = [kind for kind in hashes if kind != "xxh64"]
    assert [(fault.shard, fault.key) for fault in faults] == [(str(damaged), "")] * (bool(compared) or zipped)
    if zipped:  # gzip has a checksum of its own, and the shard is said to be damaged once
        assert "gzip stream is damaged" in faults[0].problem
    else:
        assert all(f"its {compared[0]} is not the one that index.json says" in fault.problem for fault in faults)
    damaged.write_bytes(content + b"\0")
    assert any("bytes, and index.json says" in fault.problem for fault in verify(tmp_path / "out").faults)


@pytest.mark.parametrize("content", [b'{"classes": ["a", "c"]}', b'{"classes": 1}', b"[]", b"\xff", None])
def test_class_names_that_are_not_those_that_were_packed(folder, tmp_path, content):
    shards = pack(folder, tmp_path / "out", entropy=False, make_index=False).shards
    assert not verify(shards).faults
    (tmp_path / "out" / "classes.json").unlink()
    if content is not None:
        (tmp_path / "out" / "classes.json").write_bytes(content)
    (fault,) = [fault for fault in verify(shards).faults if fault.kind == "shard"]
    assert Path(fault.shard).name == "classes.json" and "not those that were packed" in fault.problem


def test_nothing_is_asked_for_beside_a_signed_url(folder, tmp_path):
    """Many servers pass over a query: asked for its checksums they would send all of the shard."""
    pytest.importorskip("aiohttp", reason="fsspec's HTTP file system needs aiohttp")
    pack(folder, tmp_path / "out", entropy=False, make_index=False)
    shard, paths = (tmp_path / "out" / "out-000000.tar").read_bytes(), []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            paths.append(self.path)
            begin, end = self.headers.get("Range", f"bytes=0-{len(shard) - 1}").removeprefix("bytes=").split("-")
            part = shard[int(begin) : int(end) + 1]
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Range", f"bytes {begin}-{int(begin) + len(part) - 1}/{len(shard)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(part)

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/out-000000.tar?sig=a/b"
        found = verify(url)
        server.shutdown()
    assert found.samples == 12 and not found.faults and set(paths) == {"/out-000000.tar?sig=a/b"}


def test_labels_beyond_the_classes(tmp_path):
    tar(tmp_path / "x.tar", {"a.jpg": jpeg(1), "a.cls": b"0", "b.jpg": jpeg(2), "b.cls": b"2"})
    (tmp_path / "classes.json").write_text('{"classes": ["one", "two"]}')
    (fault,) = verify(tmp_path / "x.tar").faults
    assert (fault.kind, fault.key) == ("label", "b") and "2 is none of the 2 classes" in fault.problem


def test_a_folder_of_images(folder):
    (folder / "a" / "02.jpg").write_bytes(b"no image")
    found = verify(folder)
    assert [(f.kind, Path(f.shard).name) for f in found.faults] == [("image", "02.jpg")] and not found.shards


def test_the_command_names_every_finding_and_exits_with_1(folder, tmp_path):
    app = typer.Typer()
    app.command()(verify_command)
    whole = CliRunner().invoke(app, [str(folder)])
    assert whole.exit_code == 0 and "12 samples" in whole.output and "all whole" in whole.output
    (folder / "a" / "00.jpg").write_bytes(b"")
    damaged = CliRunner().invoke(app, [str(folder)])
    assert damaged.exit_code == 1 and "00.jpg" in damaged.output and "image 1" in damaged.output


def test_real_fixtures(real_data):
    for name in ("imagefolder", "webdataset", "tfrecord", "mds", "imagefolder.zip"):
        assert not verify(real_data / "formats" / name).faults, name
