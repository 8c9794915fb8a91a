"""Which names are files of this machine, and that no secret of a URL is shown."""

from __future__ import annotations

from traceback import format_exception

import pytest

from gpuload.core.location import bare, is_local, is_signed, local_path, server_of, shown, tells_secret


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
        ("sftp://me:it's@host/a.tar and 'ftp://x:y@h'", "sftp://host/a.tar and 'ftp://h'"),
        ("s3://AK:wJ/alr+?x@bucket/a@b.tar", "s3://b.tar"),
        ("https://h/a.tar#access_token=s, https://h/a#1", "https://h/a.tar#... https://h/a#1"),
        (
            "https://h:443/a@b, https://[::1]:80/a@b, s3://b/a:c@d",
            "https://h:443/a@b, https://[::1]:80/a@b, s3://b/a:c@d",
        ),
        ("s3://bucket/train-?.tar", "s3://bucket/train-?.tar"),
        ("/data/what?a=b@c.tar", "/data/what?a=b@c.tar"),
    ],
)
def test_secrets_are_not_shown(text, expected):
    assert shown(text) == expected


def test_a_server_in_the_options_is_told_apart_and_no_secret_is_in_its_name():
    options = [
        {},
        {"base_url": "http://me:pass@a"},
        {"base_url": "http://b"},
        {"endpoint_url": "http://b"},
        {"client_kwargs": {"endpoint_url": "http://c"}},
        {"host": "d", "port": 1},
        {"host": "d", "port": 2},
    ]
    servers = [server_of("webdav://x", each) for each in options]
    assert servers[0] == "" and len(set(servers)) == len(servers)
    assert server_of("webdav://x", {"base_url": "http://you:other@a", "password": "x"}) == servers[1]
    assert [server_of(url, options[1]) for url in ("/x", "file:///x")] == ["", ""]


def test_what_a_url_of_its_own_says_is_not_shown_either():
    url = "s3://KEY:SEC%2FRET@data/a.tar"
    assert shown("bad bucket 'KEY:SEC/RET@data', 'KEY:SEC%2FRET@data'", of=url) == "bad bucket 'data', 'data'"
    assert shown("me@host of s3://data", of="s3://data/a@b") == "me@host of s3://data"


def raised(*texts: str, cause: bool) -> Exception:
    """An error with these texts; each came of the next, as its cause or while that was handled."""
    try:
        if texts[1:]:
            raise raised(*texts[1:], cause=cause)
        raise ValueError(texts[0])
    except ValueError as inner:
        if not texts[1:]:
            return inner
        try:
            if cause:
                raise ValueError(texts[0]) from inner
            raise ValueError(texts[0])
        except ValueError as outer:
            return outer


@pytest.mark.parametrize("cause", [True, False])
def test_a_secret_is_found_wherever_a_traceback_would_print_it(cause):
    secret = "at https://me:pass@host"
    for texts in ([secret], [secret, "b", "c"], ["a", secret, "c"], ["a", "b", secret]):
        error = raised(*texts, cause=cause)
        assert tells_secret(error) and "pass" in "".join(format_exception(error))
    assert not tells_secret(raised("a", "b", "at https://host", cause=cause)) and not tells_secret(None)
    assert tells_secret(ValueError("KEY:X@b"), of="s3://KEY:X@b/a") and not tells_secret(ValueError("KEY:X@b"))
    circle = ValueError("a")
    circle.__cause__ = circle
    assert not tells_secret(circle)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:pass@host/a.jpg?sig=x/y.png", "https://host/a.jpg"),
        ("https://host/a@b.jpg", "https://host/a@b.jpg"),
        ("abfs://c/a.csv?sv=1&sig=00", "abfs://c/a.csv"),
        ("s3://bucket/what?.jpg", "s3://bucket/what?.jpg"),
        ("/data/what?a=b@c.jpg", "/data/what?a=b@c.jpg"),
    ],
)
def test_what_a_url_names(url, expected):
    assert bare(url) == expected
    assert is_signed(url) == (url.endswith(("sig=x/y.png", "sig=00")))
