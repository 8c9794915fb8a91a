"""Keys: what samples are called. No two alike, and UTF-8, where whoever asks needs that.

Owns numbering names that are taken, and what stands for bytes that are no text. What a sample is called at first is its
format's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""How Python spells bytes of file names that are no UTF-8 ("surrogateescape")."""


def as_text(name: str) -> str:
    """A name that can be written as UTF-8: of other bytes, their numbers.

    >>> as_text("caf\\udce9/1")
    'caf%E9/1'
    """
    return _NO_UTF8.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", name)


class Names:
    """Names that are taken, and others in their place: of a second `a` it makes `a-2`."""

    def __init__(self, taken: Iterable[str] = ()):
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def free(self, wanted: str) -> str:
        """`wanted`, or it and the next number that makes a name which is not taken. It is taken from now on."""
        name, number = wanted, self._last.get(wanted, 1)
        while name in self._taken:
            number += 1
            name = f"{wanted}-{number}"
        self._taken.add(name)
        self._last[wanted] = number
        return name
