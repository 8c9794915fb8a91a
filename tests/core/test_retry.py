"""Which errors of remote storage are asked again: what may pass, never what stays as it is."""

from __future__ import annotations

import errno

import pytest

from gpuload.core.retry import REFUSED_LOGINS, backoff_s, is_denied, is_transient


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


def test_a_refused_login_is_not_tried_again():
    """Which may lock the account. webdav4's errors have a status_code, others nothing but their class."""
    paramiko = pytest.importorskip("paramiko", reason="its errors are those of SFTP")

    class HTTPError(Exception):
        def __init__(self, status_code):
            self.status_code = status_code

    for error in (HTTPError(401), HTTPError(403), paramiko.BadAuthenticationType("no", ["key"]), PermissionError()):
        assert is_denied(error) and not is_transient(error)
    assert not is_denied(HTTPError(404)) and not is_transient(HTTPError(404)) and is_transient(HTTPError(503))
    assert not is_denied(paramiko.SSHException("reset")) and is_transient(paramiko.SSHException("reset"))
    exceptions = pytest.importorskip("smbprotocol.exceptions", reason="its errors are those of SMB")
    assert any(kind.__name__ in REFUSED_LOGINS for kind in exceptions.LogonFailure.__mro__)


def test_an_answer_that_cannot_be_parsed_is_no_word_of_the_server():
    aiohttp = pytest.importorskip("aiohttp", reason="its errors are those of HTTP and S3")
    garbled = aiohttp.ClientResponseError(None, (), status=400, message="Bad status line")
    garbled.__cause__ = aiohttp.http_exceptions.BadStatusLine("\0")
    assert is_transient(garbled) and not is_transient(aiohttp.ClientResponseError(None, (), status=400))
