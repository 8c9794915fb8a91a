"""The entropy index's files: slots and records that are used where they lie, mapped into memory.

One form for both uses: a shard's sidecar, written once and exactly as long as it must be, and the learned file, which
grows while others read it (entropy_index.py). Little-endian:

    [0, 32)   magic (8) | version, zero: uint32 (8) | slots: uint64 (8) | bytes of the whole file: uint64 (8)
    [32, 40)  BLAKE2b-64 of those
    [40, 64)  where the records end: uint64, the one field that changes | zeros
    [64, ..)  slots, uint64 (slots, 3): key, where in the file the record begins, its bytes
    behind    records (seek_points.py)

Slots and records have no checksum here: each record has its own, in which its key takes part. A sidecar's slots stand
in any order, none empty; opening sidecars merges them into one table with addresses in place of offsets. A file is
replaced by renaming and never shortened: to read a mapping beyond its file's end is SIGBUS.

Owns the form, mappings and their lifetime. Which files there are, and learning, is entropy_index.py's.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.core.replacing import replacing
from gpuload.kernels.seek_points import RECORD_VERSION, RECORD_VERSION_AT, fill_slots

MAGIC = b"entropy\n"
VERSION = 1
HEADER_BYTES = 64
SLOT_BYTES = 24
END_AT = 40
"""Where the header says where the records end."""

_FIXED = struct.Struct("<8sIIQQ")
_END = struct.Struct("<Q")


@dataclass(frozen=True)
class Header:
    """slots: how many; size: of the file, bytes; end: of its records."""

    slots: int
    size: int
    end: int

    @property
    def records_start(self) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots

    def to_bytes(self) -> bytes:
        fixed = _FIXED.pack(MAGIC, VERSION, 0, self.slots, self.size)
        return (fixed + _check(fixed) + _END.pack(self.end)).ljust(HEADER_BYTES, b"\0")


def read_header(fd: int) -> Header:
    """Raises ValueError where the file is not whole, or not of this form."""
    data = os.pread(fd, HEADER_BYTES, 0)
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        raise ValueError("this is no entropy index")
    _, version, _, slots, size = _FIXED.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"its format is version {version}, not {VERSION}")
    if data[_FIXED.size : END_AT] != _check(data[: _FIXED.size]):
        raise ValueError("its header is damaged")
    header = Header(slots, size, *_END.unpack_from(data, END_AT))
    if os.fstat(fd).st_size != size:
        raise ValueError(f"it has {os.fstat(fd).st_size} bytes, not {size}")
    if not header.records_start <= header.end <= size:
        raise ValueError("its header is damaged")
    return header


def _check(fixed: bytes) -> bytes:
    return hashlib.blake2b(fixed, digest_size=END_AT - _FIXED.size).digest()


class Mapping:
    """A file's first `size` bytes, read-only, until nobody holds it or an array of it: `np.asarray(mapping)`.

    Made by libc's mmap and not by Python's, which keeps a descriptor: a data set may have more shards than a process
    may have files open.
    """

    def __init__(self, fd: int, size: int):
        address = _mmap(None, size, _PROT_READ, _MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address, self.size = int(address), size
        finalizer = weakref.finalize(self, _munmap, self.address, size)
        finalizer.atexit = False  # the system does it then, and threads may still be reading

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.size,), "data": (self.address, True)}

    def slots(self, count: int) -> np.ndarray:
        """Uint64 (count, 3), a live view."""
        end = HEADER_BYTES + SLOT_BYTES * count
        return np.asarray(self)[HEADER_BYTES:end].view(np.uint64).reshape(count, 3)


_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_PROT_READ, _MAP_SHARED, _MAP_FAILED = 1, 1, ctypes.c_void_p(-1).value


def replace_file(path: str, header: Header, parts: Sequence[bytes]) -> None:
    """Header and parts to `path` in one step, `header.size` bytes: a hole where they end."""
    with replacing(path) as file:
        file.write(header.to_bytes())
        file.writelines(parts)
        file.truncate(header.size)


def write_sidecar(path: str, keys: np.ndarray, records: Sequence[bytes]) -> None:
    """Write a shard's records, those of length 0 left out, to `path` in one step. keys: uint64 (n,). Raises OSError."""
    if len(keys) != len(records):
        raise ValueError(f"{len(keys)} keys and {len(records)} records")
    kept = [(int(key), record) for key, record in zip(keys, records, strict=True) if key and record]
    slots = np.empty((len(kept), 3), np.uint64)
    sizes = np.array([len(record) for _, record in kept], np.uint64)
    start = HEADER_BYTES + slots.nbytes
    slots[:, 0] = np.array([key for key, _ in kept], np.uint64)
    slots[:, 1] = np.cumsum(sizes) - sizes + np.uint64(start)
    slots[:, 2] = sizes
    size = start + int(sizes.sum())
    replace_file(path, Header(len(kept), size, size), [slots.tobytes(), *(record for _, record in kept)])


class _Mapped:
    """A table that keeps mapped what its addresses point into: `np.asarray` of it is read-only and holds it."""

    def __init__(self, table: np.ndarray, mappings: list[Mapping]):
        self.table, self.mappings = table, mappings

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "<u8", "shape": self.table.shape, "data": (self.table.ctypes.data, True)}


NO_SLOTS = np.zeros((1, 3), np.uint64)
"""A table in which nothing is found."""
NO_SLOTS.flags.writeable = False


def open_sidecars(paths: Sequence[str]) -> np.ndarray:
    """One table, uint64 (n, 3), of all records of these files: key, address, bytes; it keeps them mapped.

    A file that is damaged, foreign or gone is left out, and a line at INFO says so.
    """
    mappings: list[Mapping] = []
    parts: list[np.ndarray] = []
    for path in paths:
        try:
            mapping, rows = _open_sidecar(path)
        except (OSError, ValueError) as error:
            logging.getLogger("gpuload").info("the entropy index %s is left out: %s", path, error)
            continue
        mappings.append(mapping)
        parts.append(rows)
    rows = np.concatenate(parts) if parts else NO_SLOTS[:0]
    if not len(rows):
        return NO_SLOTS
    table = np.zeros((1 << (3 * len(rows) // 2).bit_length(), 3), np.uint64)  # at most two thirds full
    fill_slots(table, rows)
    return np.asarray(_Mapped(table, mappings))


def sidecar_is_whole(path: str) -> bool:
    """Whether a loader would use this sidecar."""
    try:
        mapping, rows = _open_sidecar(path)
    except (OSError, ValueError):
        return False
    first = np.asarray(mapping)[int(rows[0, 1]) - mapping.address :] if len(rows) else None
    return first is None or first[RECORD_VERSION_AT] == RECORD_VERSION


def _open_sidecar(path: str) -> tuple[Mapping, np.ndarray]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = read_header(fd)
        mapping = Mapping(fd, header.size)
    finally:
        os.close(fd)
    rows = mapping.slots(header.slots).copy()
    start, size = np.uint64(header.records_start), np.uint64(header.size)
    if ((rows[:, 1] < start) | (rows[:, 1] > size) | (rows[:, 2] > size - rows[:, 1])).any():
        raise ValueError("its slots are damaged")
    rows[:, 1] += np.uint64(mapping.address)
    return mapping, rows
