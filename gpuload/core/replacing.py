"""A file that is replaced in one step: nobody ever reads half of it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file, under a temporary name beside `path`; renamed to it at the end, gone after an exception."""
    # Not mkstemp, whose mode 0600 would hide a shared data set's files from everyone else.
    temporary = os.path.join(os.path.dirname(path) or ".", f".gpuload-{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
