"""Which errors of remote storage are asked again: what may pass, never what stays as it is."""

from __future__ import annotations

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
