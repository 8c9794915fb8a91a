"""Memory that ends, or begins, where no access is allowed: what reads or writes one byte beyond it dies at once.

Compiled kernels check no bounds, and a byte read too many from the heap goes unseen. An array from here lies in a
mapping of its own between two pages that cannot be touched, against one of them; input can be read but not written.
Owns the mappings; a kernel that goes astray ends the process, so whoever uses this watches from another one
(watchdog.py).
"""

from __future__ import annotations

import ctypes
import math
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_NOTHING, _READ = 0, mmap.PROT_READ
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def allocate(nbytes: int) -> np.ndarray:
    """uint8 (nbytes,), full of nonsense, in place of `gpuload.decode.native.allocate`: aligned as malloc does it.

    That is to 16 bytes, so up to 15 behind the last one can be touched.
    """
    memory = _between_guards(nbytes + -nbytes % 16, at_end=True)[0] if nbytes else _EMPTY
    memory[:] = 0xA5
    return memory[:nbytes]


def ending_input(data: bytes) -> np.ndarray:
    """`data` as an array whose end is guarded, and which cannot be written."""
    return _input(data, at_end=True)


def beginning_input(data: bytes) -> np.ndarray:
    """`data` as an array whose beginning is guarded, and which cannot be written."""
    return _input(data, at_end=False)


def ending_array(shape: tuple[int, ...], dtype: type, value: int = 0) -> np.ndarray:
    """A C-contiguous array full of `value` whose end is guarded."""
    memory, _, _ = _between_guards(math.prod(shape) * np.dtype(dtype).itemsize, at_end=True)
    out: np.ndarray = memory.view(dtype).reshape(shape)
    out[...] = value
    return out


def _input(data: bytes, *, at_end: bool) -> np.ndarray:
    array, start, size = _between_guards(len(data), at_end=at_end)
    array[:] = np.frombuffer(data, np.uint8)
    _protect(start, size, _READ)
    return array


def _between_guards(nbytes: int, *, at_end: bool) -> tuple[np.ndarray, int, int]:
    """The array, and where its accessible pages are: address and size."""
    inner = max(-(-nbytes // PAGE), 1) * PAGE
    memory = mmap.mmap(-1, inner + 2 * PAGE)  # lives as long as an array over it does
    whole = np.frombuffer(memory, np.uint8)
    address = whole.ctypes.data
    _protect(address, PAGE, _NOTHING)
    _protect(address + PAGE + inner, PAGE, _NOTHING)
    start = PAGE + inner - nbytes if at_end else PAGE
    return whole[start : start + nbytes], address + PAGE, inner


def _protect(address: int, size: int, access: int) -> None:
    if _libc.mprotect(address, size, access):
        raise OSError(ctypes.get_errno(), "mprotect")


_EMPTY = _between_guards(0, at_end=True)[0]
