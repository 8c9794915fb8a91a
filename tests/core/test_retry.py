"""Which errors of remote storage are asked again: what may pass, never what stays as it is."""

from __future__ import annotations

import errno

import pytest

from gpuload.core.retry import backoff_s, is_transient


def test_what_is_transient():
    class Status(Exception):
        def __init__(self, status):
            self.status = status

    assert [is_transient(Status(s)) for s in (404, 403, 416, 408, 429, 500, 503)] == [False] * 3 + [True] * 4
    assert is_transient(ConnectionResetError()) and is_transient(TimeoutError())
    assert not is_transient(FileNotFoundError()) and not is_transient(KeyboardInterrupt())


def test_waits_double():
    for attempt in range(4):
        assert 0.5 * 2**attempt <= backoff_s(attempt, first_s=1.0) <= 2**attempt


def test_errors_of_libraries_with_classes_of_their_own():
    class SmbError(OSError):
        """smbprotocol's are no FileNotFoundError."""

    assert not is_transient(SmbError(errno.ENOENT, "no such file")) and not is_transient(SmbError(errno.EACCES, "no"))
    assert is_transient(SmbError(errno.EIO, "try again"))


def test_an_answer_that_cannot_be_parsed_is_no_word_of_the_server():
    aiohttp = pytest.importorskip("aiohttp", reason="its errors are those of HTTP and S3")
    garbled = aiohttp.ClientResponseError(None, (), status=400, message="Bad status line")
    garbled.__cause__ = aiohttp.http_exceptions.BadStatusLine("\0")
    assert is_transient(garbled) and not is_transient(aiohttp.ClientResponseError(None, (), status=400))
