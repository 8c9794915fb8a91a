"""Paths and URLs: which name a file of this machine, how they are shown, and where what can be made again is kept.

Owns these answers, which indexing and reading must give alike. Opening files is theirs.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_CREDENTIALS = re.compile(r"://([^/\s?\"]+@|[^/\s?\"'\[:@]+:(?!:|\d+[/?#])[^\s\"']*@)")
"""Also of passwords with a slash or question mark that is not escaped, which no port is."""
SERVER_OPTIONS = ("base_url", "endpoint_url", "host", "hostname", "port", "account_name")
"""Of webdav4, s3fs (also in client_kwargs), sftp, ftp and smb, adlfs."""

_FRAGMENT = re.compile(r"(\w[\w+.-]*://[^\s#'\"]*)#[^\s'\"]*=[^\s'\")]*")
_QUERY = re.compile(r"(https?://[^\s?'\"]*|\w[\w+.-]*://[^\s?'\"]*(?=\?[^\s'\"]*=))\?[^\s'\")]+")


def is_local(url: str) -> bool:
    """Whether `url` names a file of this machine: a path or file://."""
    return "://" not in url or (url.startswith("file://") and "::" not in url)


def local_path(url: str) -> str:
    """The path that a local URL means."""
    return url[len("file://") :] if url.startswith("file://") else url


def shown(text: str, *, of: str = "") -> str:
    """A URL, or a text with URLs in it, without what must not get into a log: passwords and signed queries.

    of: a URL that the text is about, and may quote in parts.

    >>> shown("https://me:secret@host/a.tar?X-Amz-Signature=00 is gone")
    'https://host/a.tar?... is gone'
    """
    for credentials in _CREDENTIALS.findall(of):
        text = text.replace(credentials, "").replace(unquote(credentials), "")
    if "://" not in text:
        return text
    return _FRAGMENT.sub(r"\1#...", _QUERY.sub(r"\1?...", _CREDENTIALS.sub("://", text)))


def tells_secret(error: BaseException | None, *, of: str = "") -> bool:
    """Whether a traceback would print what `shown` hides, of this error or of those that it came from."""
    seen: list[BaseException] = []
    while error is not None and not any(error is other for other in seen):
        if shown(str(error), of=of) != str(error):
            return True
        seen.append(error)
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return False


def server_of(url: str, options: Mapping[str, Any]) -> str:
    """A digest of the server that fsspec's options name, which says with the URL what a remote file is; "" for none.

    It tells no secret, and stays when credentials change.
    """
    if is_local(url):
        return ""
    given = [options, options.get("client_kwargs") or {}]
    named = [f"{name}={shown(str(part[name]))}" for part in given for name in SERVER_OPTIONS if part.get(name)]
    return hashlib.blake2b("\n".join(named).encode(), digest_size=8).hexdigest() if named else ""


def is_signed(url: str) -> bool:
    """Whether a URL has a query, which may sign it: then there is no telling how a file beside it is called."""
    return not is_local(url) and _QUERY.search(url) is not None


def bare(url: str) -> str:
    """What a URL names: without password, and without the query that may sign it. A path as it is.

    >>> bare("https://me:secret@host/a.jpg?X-Amz-Signature=00")
    'https://host/a.jpg'
    """
    if is_local(url) or not any(mark in url for mark in "?@#"):
        return url
    return shown(url).removesuffix("#...").removesuffix("?...")


def cache_dir() -> str:
    """$XDG_CACHE_HOME/gpuload, by default ~/.cache/gpuload; a user without a home has it among the temporary files."""
    home = os.path.expanduser("~/.cache")
    if home.startswith("~"):
        home = tempfile.gettempdir()
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or home, "gpuload")
