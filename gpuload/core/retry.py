"""Which errors of remote storage are worth another attempt, how many, and after how long.

Owns the classification and the waits: pure. Carrying them out is fetch/link.py's for samples and shards/urls.py's
for everything that is asked before.
"""

from __future__ import annotations

import errno
import random

ATTEMPTS = 4
BACKOFF_S = 0.2
"""A server that restarts or throttles is back within a second or two: waits of 0.2, 0.4 and 0.8 s outlast that."""

TIMEOUT_S = 60.0
"""So long without a byte is a failure. Cold storage and a server under load take tens of seconds."""

PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ImportError,
    AssertionError,
)
"""Answers that stay the same however often one asks, and errors of a program, its arguments or installation."""

PERMANENT_ERRNO = frozenset(
    {
        *(errno.EOPNOTSUPP, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE),
        *(
            errno.ENOENT,
            errno.EACCES,
            errno.EPERM,
            errno.EISDIR,
            errno.ENOTDIR,
        ),  # of libraries with errors of their own
    }
)

REFUSED_LOGINS = frozenset(
    {
        "AuthenticationException",
        "LogonFailure",
        "SMBAuthenticationError",
        "ClientAuthenticationError",
        "NoCredentialsError",
    }
)
"""Classes of paramiko, smbprotocol, azure-core and botocore. To try again may lock the account."""

RETRIED_STATUS = frozenset({408, 425, 429})
"""HTTP's "not now" among the 4xx; the others are final."""


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later: time-outs, broken connections, 5xx, throttling."""
    if isinstance(error, PERMANENT) or not isinstance(error, Exception) or is_denied(error):
        return False
    if isinstance(error, OSError) and error.errno in PERMANENT_ERRNO:
        return False
    status = status_of(error)
    # aiohttp gives its own "400" to an answer that it cannot parse: what is left of one longer than it said, say.
    garbled = type(error.__cause__).__module__ == "aiohttp.http_exceptions"
    if status is not None and 400 <= status < 500 and not garbled:
        return status in RETRIED_STATUS
    return True


def is_denied(error: BaseException) -> bool:
    """Whether the server wants other credentials, or gives none of it to anybody."""
    refused = any(kind.__name__ in REFUSED_LOGINS for kind in type(error).__mro__)
    number = getattr(error, "errno", None)  # smbprotocol's OSErrors are of its own class
    return (
        refused
        or isinstance(error, PermissionError)
        or number in (errno.EACCES, errno.EPERM)
        or (status_of(error) in (401, 403))
    )


def status_of(error: BaseException) -> int | None:
    """HTTP's, by the names that aiohttp and httpx have for it."""
    found = getattr(error, "status", getattr(error, "status_code", None))
    return found if isinstance(found, int) else None


def backoff_s(attempt: int, *, first_s: float) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 0): doubling, 50 to 100% of it by chance."""
    return first_s * 2**attempt * random.uniform(0.5, 1.0)
