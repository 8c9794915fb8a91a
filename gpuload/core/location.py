"""Paths and URLs: which of them name a file of this machine, and how they are shown.

Owns these two answers, which indexing and reading must give alike. Opening files is theirs.
"""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"://[^/\s?'\"]*@")
_QUERY = re.compile(r"(https?://[^\s?'\"]*|\w[\w+.-]*://[^\s?'\"]*(?=\?[^\s'\"]*=))\?[^\s'\")]+")


def is_local(url: str) -> bool:
    """Whether `url` names a file of this machine: a path or file://."""
    return "://" not in url or (url.startswith("file://") and "::" not in url)


def local_path(url: str) -> str:
    """The path that a local URL means."""
    return url[len("file://") :] if url.startswith("file://") else url


def shown(text: str) -> str:
    """A URL, or a text with URLs in it, without what must not get into a log: passwords and signed queries.

    >>> shown("https://me:secret@host/a.tar?X-Amz-Signature=00 is gone")
    'https://host/a.tar?... is gone'
    """
    return _QUERY.sub(r"\1?...", _CREDENTIALS.sub("://", text))
