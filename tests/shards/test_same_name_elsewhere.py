"""Servers that storage_options name: a file of the same URL, size and time on another one is another file."""

from __future__ import annotations

import gzip
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gpuload import ShardDataset
from gpuload.shards.write_tar import END, header, padding


class Served(MemoryFileSystem):
    """As webdav4's: base_url says which server it is."""

    protocol = "served"
    stores: ClassVar[dict] = {}

    def __init__(self, base_url=None, **options):
        super().__init__(base_url=base_url, **options)
        self.store = self.stores.setdefault(base_url, {})

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("served://"))

    def info(self, path, **how):
        return {**super().info(path, **how), "mtime": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Served, "stores", {})
    Served.clear_instance_cache()
    fsspec.register_implementation("served", Served, clobber=True)


def image(server: int) -> bytes:
    return b"\xff\xd8\xff" + bytes([server]) * 2000


def tar(server: int) -> bytes:
    parts = [("0.cls", b"%d" % server), ("0.jpg", image(server))]
    return b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in parts) + END


def compressed(server: int) -> bytes:
    return gzip.compress(tar(server), 0, mtime=0)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("urls", "content"),
    [
        (["served://d/a.tar"], tar),
        (["served://d/a.tar", "served://d/b.tar"], tar),
        (["served://d/a.tar.gz"], compressed),
        (["served://d/a.jpg", "served://d/b.jpg"], image),
    ],
)
def test_each_server_gives_its_own(tmp_path, urls, content, cached):
    options = [{"base_url": f"http://server-{server}"} for server in range(2)]
    for server in range(2):
        for url in urls:
            fsspec.filesystem("served", **options[server]).pipe_file(url.removeprefix("served:/"), content(server))
    for server in (0, 1, 0, 1):
        how = {"label": [server] * len(urls)} if content is image else {}
        if cached:
            how["cache"] = f"1GB:{tmp_path}"
        dataset = ShardDataset(urls, storage_options=options[server], **how)
        for index in range(len(urls)):
            encoded, label = dataset.get_encoded(index)
            assert (bytes(encoded.data), label) == (image(server), server)
        dataset.close()
