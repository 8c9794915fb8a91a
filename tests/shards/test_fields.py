"""What fields' bytes mean: damage is a ValueError whatever the parsers say, and nothing but `pkl` is unpickled."""

from __future__ import annotations

import io
import os
import pickle

import numpy as np
import pytest

from gpuload import ShardDataset
from gpuload.cli.inspect import inspect
from gpuload.cli.pack import pack
from gpuload.cli.verify import verify
from gpuload.shards.fields import parse_field
from tests.shards.containers import IMAGES, mds
from tests.shards.test_tar import write


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Evil:
    """Opened as a pickle, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_only_the_encoding_that_is_asked_about_is_unpickled(tmp_path):
    ran = tmp_path / "ran"
    opened = pickle.dumps(Evil(ran))
    for encoding in ("pkl:1", "pkl:", "pkl:pkl"):
        folder = tmp_path / encoding.replace(":", "_")
        folder.mkdir()
        (folder / "a.mds").write_bytes(mds({"image": "jpeg", "p": encoding}, {}, [{"image": IMAGES[0], "p": opened}]))
        assert parse_field("p", f"mds:{encoding}", opened) == opened
        assert ShardDataset(folder / "a.mds", fields=("image", "p"))[0][1] == opened
        assert not verify(str(folder)).faults
        inspect(str(folder))
        pack(str(folder), tmp_path / f"packed-{folder.name}", make_index=False)
        assert not ran.exists()
    pickle.loads(opened)
    assert ran.exists()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(2))
    return file.getvalue()


def npy(shape: tuple[int, ...]) -> bytes:
    """The head of an array of this shape, and nothing of the array."""
    head = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


DAMAGED = {
    "a type that does not exist": ("mds:ndarray", b"\xff\x04\x01\x00", "KeyError"),
    "no type": ("mds:ndarray", b"", "IndexError"),
    "an encoding of no type": ("mds:ndarray:nonsense", b"\x04\x01", "TypeError"),
    "no decimal": ("mds:str_decimal", b"x", "InvalidOperation"),
    "JSON without an end": ("json", b"[" * 100_000, "RecursionError"),
    "an array larger than memory": ("", npy((10**15,)), "."),
    "an archive of arrays": ("", npz(), "npz archive"),
    "an empty array file": ("", b"", "EOFError"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_a_value_error_that_tells_the_cause(name):
    encoding, data, problem = DAMAGED[name]
    with pytest.raises(ValueError, match=problem):
        parse_field("a.npy", encoding, data)


def test_damaged_fields_are_findings_of_their_samples(tmp_path):
    members = [(f"{i}.{name}", data) for i in range(3) for name, data in (("jpg", IMAGES[i]), ("json", b"[]"))]
    members[3] = ("1.json", b"[" * 100_000)
    write(tmp_path / "a.tar", members)
    [fault] = verify(str(tmp_path / "a.tar")).faults
    assert (fault.kind, fault.key) == ("field", "1") and "RecursionError" in fault.problem
    members[1:2] = [("0.npy", npz())]
    write(tmp_path / "b.tar", members)
    damaged = {field.name: field.type for field in inspect(str(tmp_path / "b.tar")).fields}
    assert "npz archive" in damaged["npy"] and "RecursionError" in damaged["json"]
