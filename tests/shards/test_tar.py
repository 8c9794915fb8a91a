"""Tar shards against `tarfile`: what it writes is indexed where it lies; damage is named and costs nothing else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile

import fsspec
import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.core.errors import ShardError
from gpuload.shards.expansion import Shard
from gpuload.shards.table import NO_LABEL, ShardScan
from gpuload.shards.tar import parse_label, scan_tar, split_name
from gpuload.shards.tar_headers import Member, Window, scan
from gpuload.shards.urls import stamp

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path, members, format=tarfile.PAX_FORMAT, mode="w") -> None:
    """members: (name, bytes) or TarInfo."""
    with tarfile.open(path, mode, format=format) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))


def scanned(path) -> ShardScan:
    return scan_tar(Shard.at(str(path), stamp(str(path), {}), {}))


def contents(path, scan: ShardScan) -> dict[str, dict[str, bytes]]:
    """key -> extension -> the bytes that the table points to."""
    data = path.read_bytes()
    return {
        key: {
            name: data[m["offset"][row] : m["offset"][row] + m["length"][row]]
            for name, m in scan.table.members.items()
            if m["length"][row] >= 0
        }
        for row, key in enumerate(scan.table.keys)
    }


def samples(n: int) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(n)
    members = []
    for i in range(n):
        image = rng.integers(0, 256, int(rng.integers(1, 3000)), np.uint8).tobytes()
        members += [
            (f"s{i:03d}.cls", str(i * 7).encode()),
            (f"s{i:03d}.jpg", image),
            (f"s{i:03d}.json", b'{"i": %d}' % i),
        ]
    return members


def by_key(members) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    for name, data in members:
        key, _, extension = name.rpartition("/")[2].partition(".")
        found.setdefault(name[: len(name) - len(extension) - 1], {})[extension.lower()] = data
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_members_lie_where_tarfile_says(tmp_path, format):
    members = samples(20)
    write(tmp_path / "a.tar", members, FORMATS[format])
    scan = scanned(tmp_path / "a.tar")
    assert contents(tmp_path / "a.tar", scan) == by_key(members)
    assert scan.table.labels.tolist() == [i * 7 for i in range(20)]
    assert not scan.findings
    with tarfile.open(tmp_path / "a.tar") as tar:
        offsets = [member.offset_data for member in tar if member.name.endswith(".jpg")]
    assert scan.table.images["offset"].tolist() == offsets


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_long_and_foreign_names_are_whole(tmp_path, format):
    members = [("d" * 90 + "/" + "e" * 90 + f"/ü{i}.jpg", bytes([i] * 9)) for i in range(3)]
    write(tmp_path / "a.tar", members, FORMATS[format])
    assert contents(tmp_path / "a.tar", scanned(tmp_path / "a.tar")) == by_key(members)


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_a_long_name_may_have_a_slash_where_the_header_ends(tmp_path, format):
    """tarfile, which writes and reads them, is the reference: a name of 99 bytes and a slash is no folder."""
    members = [("a.jpg", b"1"), ("d" * 99 + "/b.jpg", b"22"), ("d" * 99 + "/b.cls", b"4"), ("c.jpg", b"333")]
    write(tmp_path / "a.tar", members, FORMATS[format])
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert [(m.name, m.isreg()) for m in tar] == [(name, True) for name, _ in members]
    scan = scanned(tmp_path / "a.tar")
    assert contents(tmp_path / "a.tar", scan) == by_key(members) and not scan.findings


def test_a_folder_of_an_old_archive_is_none_of_its_files(tmp_path):
    """V7 has no kind for folders: a slash ends their names."""
    folder, file = (tarfile.TarInfo(name) for name in ("d.jpg/", "d.jpg/a.jpg"))
    folder.type = file.type = tarfile.AREGTYPE
    file.size = 1
    blocks = [info.tobuf(tarfile.USTAR_FORMAT) for info in (folder, file)]
    (tmp_path / "a.tar").write_bytes(b"".join(blocks) + b"x".ljust(512, b"\0") + bytes(1024))
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert [m.isdir() for m in tar] == [True, False]
    assert contents(tmp_path / "a.tar", scanned(tmp_path / "a.tar")) == {"d.jpg/a": {"jpg": b"x"}}


def test_ustar_prefixes_are_joined(tmp_path):
    members = [("d" * 90 + "/" + "e" * 80 + f"{i}.jpg", b"x") for i in range(3)]
    write(tmp_path / "a.tar", members, tarfile.USTAR_FORMAT)
    assert list(scanned(tmp_path / "a.tar").table.keys) == [name[:-4] for name, _ in members]


def test_what_gnu_tar_writes_from_a_folder(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name, data in (
        members := [("sub/a.jpg", b"1"), ("sub/b.jpg", b"22"), ("sub/a.cls", b"4"), ("sub/b.cls", b"5")]
    ):
        (tmp_path / "in" / name).write_bytes(data)
    subprocess.run(["tar", "-cf", tmp_path / "a.tar", "-C", tmp_path / "in", "."], check=True)
    scan = scanned(tmp_path / "a.tar")
    assert contents(tmp_path / "a.tar", scan) == by_key(members)
    assert dict(zip(scan.table.keys, scan.table.labels.tolist(), strict=True)) == {"sub/a": 4, "sub/b": 5}


def test_members_of_a_sample_need_not_be_neighbours(tmp_path):
    members = samples(6)
    members = members[::3] + members[1::3] + members[2::3]
    write(tmp_path / "a.tar", members)
    assert contents(tmp_path / "a.tar", scanned(tmp_path / "a.tar")) == by_key(members)


def test_hard_links_are_followed_and_joined_archives_read_on(tmp_path):
    link = tarfile.TarInfo("b.jpg")
    link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
    write(tmp_path / "a.tar", [("a.jpg", b"one"), link])
    write(tmp_path / "b.tar", [("c.jpg", b"two")])
    joined = tmp_path / "joined.tar"
    joined.write_bytes((tmp_path / "a.tar").read_bytes() + (tmp_path / "b.tar").read_bytes())
    scan = scanned(joined)
    assert contents(joined, scan) == {"a": {"jpg": b"one"}, "b": {"jpg": b"one"}, "c": {"jpg": b"two"}}
    assert not scan.findings


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_shard_may_have_a_name_that_is_no_utf8(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ending = b".tar.gz" if mode == "w:gz" else b".tar"
    names = [os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9" + number + ending) for number in (b"1", b"2")]
    for name in names:
        write(name, [("a.jpg", b"one"), ("a.cls", b"7")], mode=mode)
    for opened in (names[0], names):
        for _ in range(2):  # indexed, and from the index
            dataset = ShardDataset(opened)
            assert dataset.get_encoded(0)[0].data == b"one" and dataset.labels.tolist() == [7] * len(dataset)


def test_hidden_files_and_folders_are_no_samples(tmp_path):
    folder = tarfile.TarInfo("d.jpg/")
    folder.type = tarfile.DIRTYPE
    write(tmp_path / "a.tar", [folder, ("._a.jpg", b"mac"), ("README", b"hello"), ("d/a.jpg", b"x")])
    scan = scanned(tmp_path / "a.tar")
    assert list(scan.table.keys) == ["d/a"] and not scan.findings


def test_the_image_is_chosen_by_name(tmp_path):
    write(tmp_path / "a.tar", [("a.seg.png", b"mask"), ("a.PNG", b"png"), ("a.JPG", b"jpg"), ("b.seg.png", b"b-mask")])
    scan = scanned(tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    images = [data[r["offset"] : r["offset"] + r["length"]] for r in scan.table.images]
    assert images == [b"jpg", b"b-mask"]
    assert sorted(scan.table.members) == ["jpg", "png", "seg.png"]


def test_keys_end_at_the_first_dot_of_the_base_name():
    assert split_name("a.b/c.d.JPG") == ("a.b/c", "d.jpg")
    assert split_name("a/.hidden.jpg") is None and split_name("README") is None


def test_labels_are_integers_or_missing():
    assert [parse_label(text) for text in (b"7", b" -3\n", b"cat", b"", b"9" * 30)] == [
        7,
        -3,
        NO_LABEL,
        NO_LABEL,
        NO_LABEL,
    ]


def test_a_sample_without_image_is_reported(tmp_path):
    write(tmp_path / "a.tar", [("a.cls", b"1"), ("b.jpg", b"x"), ("b.cls", b"2")])
    scan = scanned(tmp_path / "a.tar")
    assert list(scan.table.keys) == ["b"] and scan.table.labels.tolist() == [2]
    assert [(f.key, f.problem) for f in scan.findings] == [("a", "a sample without an image (it has cls)")]


def test_a_name_given_twice_is_reported_and_the_first_is_used(tmp_path):
    write(tmp_path / "a.tar", [("a.jpg", b"one"), ("a.jpg", b"two")])
    scan = scanned(tmp_path / "a.tar")
    assert contents(tmp_path / "a.tar", scan) == {"a": {"jpg": b"one"}}
    assert "two members named a.jpg" in scan.findings[0].problem


def test_wherever_a_tar_is_cut_what_was_whole_is_found_and_the_cut_reported(tmp_path):
    members = samples(5)
    write(tmp_path / "a.tar", members, tarfile.USTAR_FORMAT)
    data = (tmp_path / "a.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        ends = {m.name: m.offset_data + m.size for m in tar}
        end = tar.offset - 512  # of the last member's blocks
    cut = tmp_path / "cut.tar"
    for size in [*range(1, end, 389), *range(512, end + 1, 512)]:
        cut.write_bytes(data[:size])
        if size < 512:
            with pytest.raises(ShardError, match="no tar"):
                scanned(cut)
            continue
        scan = scanned(cut)
        assert scan.findings, size
        keys = {name.partition(".")[0] for name in ends}
        whole = {key for key in keys if ends[f"{key}.jpg"] <= size}
        partly = {key for key in whole if ends[f"{key}.json"] > size}
        assert whole - partly <= set(scan.table.keys) <= whole, size
        found = contents(cut, scan)
        expected = by_key(members)
        assert all(found[key] == expected[key] for key in whole - partly)


def test_a_damaged_header_costs_its_own_sample_only(tmp_path):
    members = samples(9)
    write(tmp_path / "a.tar", members, tarfile.USTAR_FORMAT)
    with tarfile.open(tmp_path / "a.tar") as tar:
        headers = {m.name: m.offset for m in tar}
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[headers["s004.jpg"] + 101] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    scan = scanned(tmp_path / "a.tar")
    assert list(scan.table.keys) == [f"s{i:03d}" for i in range(9) if i != 4]
    [finding] = scan.findings
    assert f"damaged header at byte {headers['s004.jpg']}" in finding.problem and finding.key == "s004"


@pytest.mark.parametrize(
    ("member", "image_bytes", "lost"),
    [
        ("s004.cls", 9000, 512),
        ("s004.jpg", 9000, 512),
        ("s008.jpg", 9000, 512),
        ("s004.cls", 9000, 4096),
        ("s004.jpg", 9000, 4096),
        ("s003.cls", 2500, 4096),  # all of the sample: the next header follows
    ],
)
def test_a_header_that_was_zeroed_is_no_end(tmp_path, member, image_bytes, lost):
    """A sector or a page that a disk lost: it costs the samples that it touches."""
    image = np.random.default_rng(5).bytes(image_bytes)
    members = [(f"s{i:03d}.{name}", data) for i in range(9) for name, data in (("cls", b"%d" % i), ("jpg", image))]
    write(tmp_path / "a.tar", members, tarfile.USTAR_FORMAT)
    with tarfile.open(tmp_path / "a.tar") as tar:
        at = next(m.offset for m in tar if m.name == member)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[at : at + lost] = bytes(lost)
    (tmp_path / "a.tar").write_bytes(data)
    scan = scanned(tmp_path / "a.tar")
    assert f"{lost} bytes of zeros at byte {at}," in scan.findings[0].problem and not scan.findings[0].note
    found = contents(tmp_path / "a.tar", scan)
    found.pop(member[:4], None)
    assert found == {key: value for key, value in by_key(members).items() if key != member[:4]}


@pytest.mark.parametrize("format", ["gnu", "pax"])
@pytest.mark.parametrize("damage", [bytes(512), b"\0", b"x"])
def test_a_damaged_long_name_costs_its_member(tmp_path, format, damage):
    """What stands in the header itself is cut: it may be no image's name, or another one's. tarfile gives up there."""
    members = [
        (f"{'ü' * 60}{i}.{name}", data) for i in range(4) for name, data in (("cls", b"%d" % i), ("jpg", b"image"))
    ]
    write(tmp_path / "a.tar", members, FORMATS[format])
    data = bytearray((tmp_path / "a.tar").read_bytes())
    at = data.index(f"{'ü' * 60}2.jpg".encode()) // 512 * 512
    if damage == b"x" and format == "gnu":
        pytest.skip("a name has no checksum")
    data[at : at + len(damage)] = damage
    (tmp_path / "a.tar").write_bytes(data)
    scan = scanned(tmp_path / "a.tar")
    assert f"damaged extended header at byte {at - 512}" in scan.findings[0].problem
    whole = {key: value for key, value in by_key(members).items() if not key.endswith("2")}
    assert contents(tmp_path / "a.tar", scan) == whole


def test_a_page_of_the_last_image_costs_that_sample(tmp_path):
    """What is left of it looks like a tape's rest; its label says that there was one."""
    members = [(f"{i}.{name}", data) for i in range(3) for name, data in (("cls", b"7"), ("jpg", b"x" * 9000))]
    write(tmp_path / "a.tar", members, tarfile.USTAR_FORMAT)
    with tarfile.open(tmp_path / "a.tar") as tar:
        at = next(m.offset for m in tar if m.name == "2.jpg")
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[at : at + 4096] = bytes(4096)
    (tmp_path / "a.tar").write_bytes(data)
    scan = scanned(tmp_path / "a.tar")
    assert list(scan.table.keys) == ["0", "1"]
    assert [(f.note, f.key) for f in scan.findings] == [(True, ""), (False, "2")]


def test_nothing_is_read_behind_the_end(tmp_path):
    """Servers refuse a range that begins there."""
    write(tmp_path / "a.tar", samples(3))
    whole = (tmp_path / "a.tar").read_bytes()

    def scanned_strictly(data: bytes) -> list:
        def read_at(offset: int, length: int) -> bytes:
            assert offset < len(data) and length
            return data[offset : offset + length]

        return list(scan(Window(read_at, window_bytes=700), len(data), head_suffix=".cls", head_bytes=9))

    for size in (len(whole), len(whole.rstrip(b"\0")), len(whole) - 512, 5 * 512, 6 * 512 + 3):
        names = [item.name for item in scanned_strictly(whole[:size]) if isinstance(item, Member)]
        assert names == [name for name, _ in samples(3)][: len(names)] and names


def test_what_may_follow_the_end_mark(tmp_path):
    """tarfile is the reference for what is no damage: it reads up to the end mark, whatever comes then."""
    members = [("a.jpg", b"one"), ("b.jpg", b"two")]
    write(tmp_path / "a.tar", members, tarfile.USTAR_FORMAT)
    data = (tmp_path / "a.tar").read_bytes().rstrip(b"\0").ljust(2048, b"\0")
    path = tmp_path / "b.tar"
    for rest in (bytes(1024), bytes(1 << 20), bytes(1024 + 77), bytes(512)):
        path.write_bytes(data + rest)
        assert contents(path, scanned(path)) == by_key(members) and not scanned(path).findings
    for rest in (b"\n", b"x" * 5000):
        path.write_bytes(data + bytes(1024) + rest)
        with tarfile.open(path) as tar:
            assert tar.getnames() == ["a.jpg", "b.jpg"]
        [finding] = scanned(path).findings
        assert finding.note and f"{len(rest)} bytes after the archive's end" in finding.problem
        assert contents(path, scanned(path)) == by_key(members)
    path.write_bytes(data + bytes(2 << 20))  # as a download that was stopped leaves a file of its full size
    [finding] = scanned(path).findings
    assert not finding.note and f"{2 << 20} bytes of zeros at byte 2048" in finding.problem


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"", "empty"), (b"hello" * 200, "no tar"), (b"x", "no tar")],
)
def test_what_is_no_tar_is_named(tmp_path, data, problem):
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(ShardError, match=problem) as caught:
        scanned(tmp_path / "a.tar")
    assert caught.value.url == str(tmp_path / "a.tar") and caught.value.cure


def test_a_remote_shard_is_scanned_alike(tmp_path):
    members = samples(12)
    write(tmp_path / "a.tar", members)
    data = (tmp_path / "a.tar").read_bytes()
    system = fsspec.filesystem("memory")
    system.pipe_file("/scan/a.tar", data)
    try:
        there, here = (
            scan_tar(Shard.at("memory://scan/a.tar", stamp("memory://scan/a.tar", {}), {})),
            scanned(tmp_path / "a.tar"),
        )
    finally:
        system.rm("/scan", recursive=True)
    assert (there.table.images == here.table.images).all() and there.table.keys == here.table.keys
    assert (there.table.labels == here.table.labels).all()


def test_real_shards_and_damaged_ones(real_data, tmp_path):
    """Against the manifest of shards that other tools wrote and that were damaged on purpose."""
    folder = real_data / "formats"
    manifest = json.loads((folder / "manifest.json").read_text())
    photos = {f"{p['wnid']}_{p['position']:05d}": p for p in manifest["photos"]}
    seen = []
    for shard in sorted((folder / "webdataset").glob("*.tar")):
        for key, label in zip(scanned(shard).table.keys, scanned(shard).table.labels.tolist(), strict=True):
            assert photos[key]["label"] == label
            seen.append(key)
    assert seen == sorted(photos, key=lambda key: photos[key]["position"])
    expected = {"intact": [11, 12, 13, 19, 22], "truncated": [11, 12, 13], "flip_header": [11, 12, 19, 22]}
    for name, positions in expected.items():
        scan = scanned(folder / "damaged" / "tar" / f"{name}.tar")
        assert [int(key[-5:]) for key in scan.table.keys] == positions
        assert bool(scan.findings) == (name != "intact")
