"""fsspec's file systems: to a server that nobody has reached yet, one thread goes first.

Owns that. fsspec keeps an object a thread, and threads that log in to a server at once share smbprotocol's half-made
session: they are refused, or wait until their time is over.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gpuload.core.s3_sessions import quicken

_opening: dict[str, threading.Lock] = {}
"""By protocol and server: one that does not answer holds up nobody else."""

_reached: set[str] = set()


_given: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_of_parent: list[Any] = []


def _forget() -> None:
    """In a forked child, where a thread that is not here may hold a lock; and what is collected there of its parent's
    file systems closes connections on whatever loop runs in that thread (s3fs): they are kept.
    """
    _opening.clear()
    _reached.clear()
    _of_parent.extend(_given.values())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def file_system_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """fsspec's own answer: (this thread's file system, the path in it). Raises what opening it raises."""
    from fsspec.core import url_to_fs

    server = _server(url)
    if server in _reached:
        found = url_to_fs(url, **options)
    else:
        with _opening.setdefault(server, threading.Lock()):
            found = url_to_fs(url, **options)
            _reached.add(server)
    quicken(found[0])
    _given[id(found[0])] = found[0]
    return found


def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is no address: fsspec says what is wrong with it
        return ""
    return f"{parts.scheme}://{parts.netloc}"
