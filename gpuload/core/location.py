"""Paths and URLs: which name a file of this machine, how they are shown, and where what can be made again is kept.

Owns these answers, which indexing and reading must give alike. Opening files is theirs.
"""

from __future__ import annotations

import os
import re
import tempfile

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


def cache_dir() -> str:
    """$XDG_CACHE_HOME/gpuload, by default ~/.cache/gpuload; a user without a home has it among the temporary files."""
    home = os.path.expanduser("~/.cache")
    if home.startswith("~"):
        home = tempfile.gettempdir()
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or home, "gpuload")
