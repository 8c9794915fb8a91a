"""What packing reads: files of any size in pieces, and those that are not what they were when it began."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gpuload.cli import pack_plan, pack_read
from gpuload.cli.pack_read import SampleReader, files_alone
from gpuload.core.errors import SampleError
from gpuload.dataset import ShardDataset


@pytest.fixture
def files(tmp_path) -> dict[str, bytes]:
    """In the order of a data set; the second is empty, the last larger than what is read at once."""
    rng = np.random.default_rng(0)
    contents = {f"{tmp_path}/in/c/i{n}.jpg": rng.bytes(size) for n, size in enumerate((900, 0, 1500, 200, 5000))}
    os.makedirs(tmp_path / "in" / "c")
    for path, content in contents.items():
        with open(path, "wb") as file:
            file.write(content)
    return contents


@pytest.fixture(params=["files", "ranges"])
def source(request, files, tmp_path, monkeypatch) -> SampleReader:
    """The same samples, read here and by the data set's reader."""
    monkeypatch.setattr(pack_read, "FILES_BYTES", 2000)
    monkeypatch.setattr(pack_read, "READ_BYTES", 2000)
    dataset = ShardDataset(tmp_path / "in", fields=("image", "key"))
    plan = pack_plan.plan(str(tmp_path / "in"), dataset, dataset.new_reader(), format="mds", shard_bytes=10**6)
    assert files_alone(plan)
    return SampleReader(plan, dataset.new_reader(), alone=request.param == "files")


def test_samples_come_in_pieces_with_labels_and_keys(source, files):
    found, pieces = [], list(source.parts(range(5)))
    assert pieces == [range(0, 2), range(2, 4), range(4, 5)]
    for piece in pieces:
        found += [(s.key, s.label, bytes(s.image), s.extension, s.values) for s in source.samples(piece)]
    expected = [(f"c/i{n}", 0, content, "jpg", ()) for n, content in enumerate(files.values())]
    assert found == expected
    assert [bytes(s.image) for s in source.samples(range(1, 5))] == list(files.values())[1:]


@pytest.mark.parametrize("change", [-1, 1, 100])
@pytest.mark.parametrize("which", [0, 1, 4])
def test_a_file_of_another_length_is_named(source, files, which, change):
    path, content = list(files.items())[which]
    length = max(len(content) + change, 0)
    with open(path, "wb") as file:
        file.write(bytes(length))
    if length == len(content):
        return
    message = f"i{which}.jpg.*it had {len(content)} bytes when packing began and has {length} now"
    with pytest.raises(SampleError, match=message):
        list(source.samples(range(5)))


def test_a_file_that_is_gone_is_named(source, files):
    os.unlink(list(files)[2])
    with pytest.raises(SampleError, match="i2.jpg.*No such file"):
        list(source.samples(range(5)))
