"""A file object over positional reads: what `zipfile` and pyarrow take, for files of any storage.

Owns the position and a few large blocks kept, since those libraries ask for small pieces near each other.
"""

from __future__ import annotations

import io
from collections import OrderedDict

from gpuload.shards.urls import ReadAt

BLOCK_BYTES = 4 << 20
KEPT_BLOCKS = 4


class RangeFile(io.RawIOBase):
    """Read-only. Not thread-safe."""

    def __init__(self, read_at: ReadAt, size: int):
        self._read_at, self._size, self._at = read_at, size, 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, length: int = -1) -> bytes:
        data = self.pread(self._at, self._size - self._at if length is None or length < 0 else length)
        self._at += len(data)
        return data

    def pread(self, offset: int, length: int) -> bytes:
        """The bytes from `offset` on, fewer at the file's end; the position stays."""
        parts = []
        end = min(offset + length, self._size)
        while offset < end:
            number, begin = divmod(offset, BLOCK_BYTES)
            part = self._block(number)[begin : begin + end - offset]
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            start = number * BLOCK_BYTES
            block = self._blocks[number] = self._read_at(start, min(BLOCK_BYTES, self._size - start))
            if len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return block
