"""What `cache=` may say."""

from __future__ import annotations

import pytest

from gpuload.core.errors import ConfigError
from gpuload.fetch.cache_spec import CacheSpec, parse_cache
from gpuload.fetch.reader import CachedReader, LocalReader, RemoteReader, reader_for


def test_sizes_and_places(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_cache(None) is None
    assert parse_cache("200GB:/nvme") == CacheSpec(200 * 10**9, "/nvme")
    assert parse_cache("1.5 TiB:/a:b") == CacheSpec(3 * 2**39, "/a:b")
    assert parse_cache("64kb:~/x") == CacheSpec(64_000, "/home/me/x")
    assert parse_cache("200GB") == CacheSpec(200 * 10**9, "/somewhere/gpuload/shards")
    assert parse_cache("memory:32GB") == CacheSpec(32 * 10**9, None)
    assert parse_cache("Memory: 512MiB") == CacheSpec(2**29, None)


@pytest.mark.parametrize("cache", ["", "lots", "/nvme", "/nvme:200GB", "memory", "memory:", "0GB:/nvme", "-1GB", 5])
def test_anything_else_is_refused_with_an_example(cache):
    with pytest.raises(ConfigError, match="200GB:/nvme"):
        parse_cache(cache)


def test_only_remote_files_are_cached(tmp_path):
    for urls, cache, kind in [
        (["memory://a"], None, RemoteReader),
        (["memory://a"], "memory:1MB", CachedReader),
        (["memory://a"], f"1MB:{tmp_path}/new", CachedReader),
        (["/a", "file:///b"], "memory:1MB", LocalReader),
    ]:
        reader = reader_for(urls, cache=cache)
        assert type(reader) is kind
        reader.close()
    with pytest.raises(ConfigError):
        reader_for(["/a"], cache="lots")
