"""Which names are files of this machine, and that no secret of a URL is shown."""

from __future__ import annotations

import pytest

from gpuload.core.location import is_local, local_path, shown


@pytest.mark.parametrize(
    ("url", "path"), [("/a/b", "/a/b"), ("a?b", "a?b"), ("file:///a/b", "/a/b"), ("s3://a/b", None), ("", "")]
)
def test_local_files(url, path):
    assert is_local(url) == (path is not None)
    assert path is None or local_path(url) == path
    assert not is_local("zip://x::file:///a.zip") and not is_local("file:///a.zip::x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:pass@host/a.tar", "https://host/a.tar"),
        ("https://me:p@ss@host/a@b.tar", "https://host/a@b.tar"),
        ("https://h/a.tar?X-Amz-Signature=00&e=1", "https://h/a.tar?..."),
        ("abfs://c/a.tar?sv=1&sig=00", "abfs://c/a.tar?..."),
        ("403, url='https://h/a?sig=00' and https://k:s@h/b?c", "403, url='https://h/a?...' and https://h/b?..."),
        ("zip://x.jpg::https://u:p@h/a.zip?k=v", "zip://x.jpg::https://h/a.zip?..."),
        ("s3://bucket/train-?.tar", "s3://bucket/train-?.tar"),
        ("/data/what?a=b@c.tar", "/data/what?a=b@c.tar"),
    ],
)
def test_secrets_are_not_shown(text, expected):
    assert shown(text) == expected
