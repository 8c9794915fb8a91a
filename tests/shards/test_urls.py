"""What users write for their data: braces as the shell has them, globs sorted, names that only look like patterns."""

from __future__ import annotations

import errno
import subprocess
from traceback import format_exception
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gpuload.core.errors import ConfigError, ShardError
from gpuload.shards.catalog import shards_of
from gpuload.shards.urls import braces, expand, read_optional, stamp


@pytest.mark.parametrize(
    "pattern",
    [
        "t-{000..011}.tar",
        "{9..12}",
        "{3..1}x",
        "{a,b}/{c,d}.tar",
        "x{a,{1..2}}y",
        "plain",
        "{a}",
        "{",
        "{000..002}{a,b}",
        "{a{b,c}}-{1..010}",
        "{0..2}",
    ],
)
def test_braces_are_bashs(pattern):
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {pattern}"], capture_output=True, text=True, check=True)
    assert braces(pattern) == words.stdout.split()


def test_globs_are_sorted_and_files_that_look_like_patterns_are_files(tmp_path):
    for name in ("b.tar", "a.tar", "x[1].tar", "y{1,2}.tar"):
        (tmp_path / name).touch()
    assert expand(f"{tmp_path}/[ab].tar", {}) == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]
    assert expand(tmp_path / "x[1].tar", {}) == [f"{tmp_path}/x[1].tar"]
    assert expand(f"{tmp_path}/y{{1,2}}.tar", {}) == [f"{tmp_path}/y{{1,2}}.tar"]
    assert expand([f"file://{tmp_path}/b.tar", f"{tmp_path}/a*"], {}) == [f"{tmp_path}/b.tar", f"{tmp_path}/a.tar"]


def test_remote_globs():
    system = fsspec.filesystem("memory")
    for name in ("b.tar", "a.tar"):
        system.pipe_file(f"/glob/{name}", b"x")
    try:
        assert expand("memory://glob/*.tar", {}) == ["memory://glob/a.tar", "memory://glob/b.tar"] or expand(
            "memory://glob/*.tar", {}
        ) == ["memory:///glob/a.tar", "memory:///glob/b.tar"]
    finally:
        system.rm("/glob", recursive=True)


@pytest.mark.parametrize(
    ("number", "problem"), [(errno.ENOENT, "it does not exist"), (errno.EACCES, "access is denied")]
)
def test_errors_of_a_librarys_own_class_are_told_by_their_number(monkeypatch, number, problem):
    """smbprotocol raises an OSError that is no FileNotFoundError."""

    class SmbError(OSError):
        pass

    def info(self, path, **_):
        error = SmbError("status 0xc0000034")
        error.errno = number
        raise error

    system = fsspec.filesystem("memory")
    for name in ("info", "cat_file"):
        monkeypatch.setattr(type(system), name, info)
    with pytest.raises(ShardError, match=problem):
        stamp("memory://smb/a.tar", {})
    assert read_optional("memory://smb/classes.json", {}) is None


def test_what_an_error_came_from_shows_no_secret(monkeypatch):
    """httpx's errors, which webdav4's came from, quote base_url."""
    hidden, url = "http://me:PASS@host", "memory://KEY:PASS@bucket/a.tar"

    def info(self, path, **_):
        try:
            raise ValueError(f"401 for url {hidden!r}")
        except ValueError as error:
            raise OSError("HTTP 401") from error

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", info)
    with pytest.raises(ShardError, match="HTTP 401") as caught:
        stamp("memory://bucket/a.tar", {})
    assert "PASS" not in "".join(format_exception(caught.value))
    monkeypatch.setattr(
        type(fsspec.filesystem("memory")), "info", lambda self, path, **_: int(url.partition("//")[2].partition("/")[0])
    )
    with pytest.raises(ShardError, match="'bucket'") as caught:
        stamp(url, {})
    assert "PASS" not in "".join(format_exception(caught.value))


def test_remote_names_that_only_look_like_patterns():
    system = fsspec.filesystem("memory")
    names = ["a?b.tar", "a[1].tar", "axb.tar", "s{1,2}.tar", "*.tar"]
    for name in names:
        system.pipe_file(f"/odd/{name}", b"x")
    try:
        assert expand([f"memory://odd/{name}" for name in names], {}) == [f"memory://odd/{name}" for name in names]
        assert expand("memory://odd/a[x]b.tar", {}) == ["memory:///odd/axb.tar"]
    finally:
        system.rm("/odd", recursive=True)


class Keeping(MemoryFileSystem):
    """Keeps what it was told, as s3fs does."""

    protocol = "keeping"
    told: ClassVar[dict] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("keeping://"))

    def info(self, path, **how):
        return self.told.setdefault(("info", path), super().info(path, **how))

    def ls(self, path, detail=True, **how):
        return self.told.setdefault(("ls", path, detail), super().ls(path, detail=detail, **how))

    def invalidate_cache(self, path=None):
        self.told.clear()


def test_what_a_file_system_keeps_of_files_is_not_believed():
    fsspec.register_implementation("keeping", Keeping, clobber=True)
    system = fsspec.filesystem("keeping")
    try:
        system.pipe_file("/kept/a.tar", b"x")
        assert len(expand("keeping://kept/*.tar", {})) == 1 and stamp("keeping://kept/a.tar", {}).size == 1
        system.pipe_file("/kept/a.tar", b"xx")
        system.pipe_file("/kept/b.tar", b"x")
        assert len(expand("keeping://kept/*.tar", {})) == 2 and stamp("keeping://kept/a.tar", {}).size == 2
        assert shards_of("keeping://kept/", {}) == ["keeping://kept/a.tar", "keeping://kept/b.tar"]
        system.pipe_file("/kept/c.tar", b"x")
        assert len(shards_of("keeping://kept/", {})) == 3
    finally:
        system.rm("/kept", recursive=True)


def test_no_match_no_file_and_no_list_are_errors(tmp_path):
    with pytest.raises(ShardError, match=r"no file matches"):
        expand(f"{tmp_path}/*.tar", {})
    with pytest.raises(ConfigError, match="empty list"):
        expand([], {})
    with pytest.raises(ShardError, match="does not exist"):
        stamp(f"{tmp_path}/gone", {})
    with pytest.raises(ShardError, match="does not exist"):
        stamp("memory://nowhere/gone", {})
    with pytest.raises(ShardError, match="fsspec cannot open"):
        stamp("nosuchprotocol://x", {})


def test_a_signed_url_is_no_pattern():
    assert expand("https://host/a.tar?sig=a", {}) == ["https://host/a.tar?sig=a"]
