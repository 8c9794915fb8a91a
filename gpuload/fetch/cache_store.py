"""Chunks of remote shards that are kept: the contract of a store, and the one in this process's memory.

Owns the contract. What is worth keeping, and when it is read, is cached.py's; keeping on disk is disk_cache.py's.

A store that is full keeps what it has. Training reads all data again and again, and then whatever makes room for a
newcomer evicts what will be wanted sooner: the least recently used is the next to come. What stays is hit once an
epoch, so that the hit rate is the share of the data that fits (Mohan et al., "Analyzing and mitigating data stalls in
DNN training", VLDB 2021).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class StoreStats:
    """held_bytes of limit_bytes. stopped: why it does not grow any more, "" while it does."""

    held_bytes: int
    limit_bytes: int
    stopped: str = ""


class ChunkStore(Protocol):
    """Any thread calls any method. A chunk is named by the key of its file's version and its number in the file."""

    def use(self, keys: Iterable[str]) -> None:
        """This process reads these files: what the store has of them stays."""
        ...

    def has(self, key: str, chunk: int) -> bool: ...

    def read(self, key: str, chunk: int, size: int, begin: int, out: np.ndarray) -> bool:
        """Fill out, uint8, from byte `begin` of a chunk of `size` bytes; False where it is not here, or not whole."""
        ...

    def grows(self) -> bool:
        """Whether `put` may succeed."""
        ...

    def put(self, key: str, chunk: int, data: np.ndarray) -> bool:
        """Keep a whole chunk, unless there is no room. data: uint8, the caller's again afterwards."""
        ...

    def stats(self) -> StoreStats: ...


class MemoryStore:
    """In this process alone, until the last reader that uses it is gone."""

    def __init__(self, limit_bytes: int):
        self._limit, self._held, self._full = limit_bytes, 0, False
        self._chunks: dict[tuple[str, int], np.ndarray] = {}
        self._lock = threading.Lock()

    def use(self, keys: Iterable[str]) -> None:
        """Nothing of other files is evicted for them either: there is one epoch after another in a process."""

    def has(self, key: str, chunk: int) -> bool:
        return (key, chunk) in self._chunks

    def read(self, key: str, chunk: int, size: int, begin: int, out: np.ndarray) -> bool:
        held = self._chunks.get((key, chunk))
        if held is None or held.size != size:
            return False
        out[:] = held[begin : begin + out.size]
        return True

    def grows(self) -> bool:
        return not self._full

    def put(self, key: str, chunk: int, data: np.ndarray) -> bool:
        with self._lock:
            if (key, chunk) in self._chunks:
                return True
            if self._held + data.size > self._limit:
                self._full = True
                return False
            self._held += data.size
            self._chunks[key, chunk] = data.copy()
        return True

    def stats(self) -> StoreStats:
        return StoreStats(self._held, self._limit, "it is full" if self._full else "")

    def __repr__(self) -> str:
        return f"MemoryStore({self._held}/{self._limit} bytes)"
