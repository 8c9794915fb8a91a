"""CRC32C (Castagnoli) of bytes, as TFRecord, ext4 and iSCSI have it, without the GIL.

    data           uint8 (n,)
    crc32c         the remainder of data[start:stop], lowest bit first, by x^32 + 0x1EDC6F41; begun with, and at the end
                   XORed by, 0xFFFFFFFF
    block          3 * LANE_BYTES bytes

x86 has an instruction for eight bytes, which gives its result three cycles later and can begin one every cycle: three
lanes of a block go side by side. A CRC is linear, so that appending zeros is a matrix: `_SHIFTS` holds it, by byte, for
one lane and for two, and with it the three become one. 20 GB/s on an Emerald Rapids; NumPy and zlib have no CRC32C.
Elsewhere it goes eight bytes at a time through eight tables ("slicing by 8", Kounavis and Berry, 2005): 1.5 GB/s.

Source: RFC 3720, B.4; Intel, "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (2011).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from gpuload.kernels.compile import on_demand
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

POLYNOMIAL = np.uint32(0x82F63B78)
"""0x1EDC6F41, lowest bit first."""

LANE_BYTES = 1 << 10
"""A power of two. Long enough that putting three lanes together, 8 look-ups, is lost beside their 384 steps."""


def has_instruction(cpu_name: Any, cpu_features: Any) -> bool:
    """Whether Numba compiles for a processor with SSE 4.2. cpu_name, cpu_features: Numba's settings, None: this one."""
    triple = llvm.get_default_triple()
    return (
        triple.startswith("x86_64")
        and cpu_name is None
        and cpu_features is None
        and bool(llvm.get_host_cpu_features().get("sse4.2"))
    )


_config: Any = numba.config
_BY_INSTRUCTION = has_instruction(_config.CPU_NAME, _config.CPU_FEATURES)


# Tables


def _tables() -> np.ndarray:
    """uint32 (8, 256): tables[k, b] is what byte b leaves after k more bytes."""
    tables = np.zeros((8, 256), np.uint32)
    rows = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        rows = np.where(rows & 1, (rows >> 1) ^ POLYNOMIAL, rows >> 1)
    tables[0] = rows
    for number in range(1, 8):
        tables[number] = (tables[number - 1] >> 8) ^ rows[tables[number - 1] & 0xFF]
    return tables


def _through(shift: np.ndarray, states: np.ndarray) -> np.ndarray:
    """What states become by a shift: uint32 (4, 256), what byte i of a state, b, becomes by itself."""
    parts = [shift[place][states >> np.uint32(8 * place) & 0xFF] for place in range(4)]
    return parts[0] ^ parts[1] ^ parts[2] ^ parts[3]


def _shifts(tables: np.ndarray) -> np.ndarray:
    """uint32 (2, 4, 256): the shifts behind one lane of zeros and behind two."""
    byte = np.arange(256, dtype=np.uint32)
    shift = np.stack([tables[0], byte, byte << np.uint32(8), byte << np.uint32(16)])  # behind one byte
    for _ in range(LANE_BYTES.bit_length() - 1):
        shift = _through(shift, shift)
    return np.stack([shift, _through(shift, shift)])


_TABLES = _tables()
_SHIFTS = _shifts(_TABLES)


# CPU


@intrinsic
def _word(typingctx: Any, data: Any, at: Any) -> Any:
    """The eight bytes from data[at] on as a uint64, lowest first. The caller proves that they are there."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        pointer = builder.bitcast(builder.gep(array.data, [values[1]]), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def _step(typingctx: Any, crc: Any, word: Any) -> Any:
    """The state behind eight more bytes, by SSE 4.2's instruction."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        wide = ir.IntType(64)
        kind = ir.FunctionType(wide, [wide, wide])
        function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=kind)
        return builder.call(function, values)

    return types.uint64(types.uint64, types.uint64), generate


@numba.njit(nogil=True)
def _shifted(state, lanes):
    """A state behind so many lanes of zeros."""
    table = _SHIFTS[lanes - 1]
    low = np.uint32(state)
    return np.uint64(
        table[0, low & np.uint32(0xFF)]
        ^ table[1, (low >> np.uint32(8)) & np.uint32(0xFF)]
        ^ table[2, (low >> np.uint32(16)) & np.uint32(0xFF)]
        ^ table[3, low >> np.uint32(24)]
    )


@numba.njit(nogil=True)
def _words_by_instruction(data, start, stop, crc):
    """The state behind all whole words."""
    state = np.uint64(crc)
    at = start
    while at + 3 * LANE_BYTES <= stop:
        second, third = np.uint64(0), np.uint64(0)
        for i in range(0, LANE_BYTES, 8):
            state = _step(state, _word(data, at + i))
            second = _step(second, _word(data, at + LANE_BYTES + i))
            third = _step(third, _word(data, at + 2 * LANE_BYTES + i))
        state = _shifted(state, 2) ^ _shifted(second, 1) ^ third
        at += 3 * LANE_BYTES
    while at + 8 <= stop:
        state = _step(state, _word(data, at))
        at += 8
    return np.uint32(state)


@numba.njit(nogil=True)
def _words_by_tables(data, start, stop, crc):
    """The same."""
    at = start
    while at + 8 <= stop:
        word = _word(data, at)
        low = np.uint32(word) ^ crc
        high = np.uint32(word >> np.uint64(32))
        crc = np.uint32(
            _TABLES[7, low & np.uint32(0xFF)]
            ^ _TABLES[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _TABLES[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _TABLES[4, low >> np.uint32(24)]
            ^ _TABLES[3, high & np.uint32(0xFF)]
            ^ _TABLES[2, (high >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _TABLES[1, (high >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _TABLES[0, high >> np.uint32(24)]
        )
        at += 8
    return crc


_words = _words_by_instruction if _BY_INSTRUCTION else _words_by_tables


@numba.njit(nogil=True)
def _finished(data, start, stop, crc):
    """The CRC, from the state behind all whole words."""
    for at in range(stop - (stop - start) % 8, stop):
        crc = np.uint32(_TABLES[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8)))
    return np.uint32(crc ^ np.uint32(0xFFFFFFFF))


@numba.njit(nogil=True)
def crc32c_of(data, start, stop):
    """The CRC32C of data[start:stop], for other kernels: 0 <= start <= stop <= data.size is theirs to prove."""
    return _finished(data, start, stop, _words(data, start, stop, np.uint32(0xFFFFFFFF)))


SIGNATURE = "uint32(Array(uint8, 1, 'C', readonly=True), int64, int64)"


@on_demand([SIGNATURE])
def crc32c(data, start, stop):
    """The CRC32C of data[start:stop], which is cut to what is there."""
    start = min(max(start, 0), data.size)
    return crc32c_of(data, start, min(max(stop, start), data.size))


@on_demand([SIGNATURE])
def crc32c_by_tables(data, start, stop):
    """The same on any processor."""
    start = min(max(start, 0), data.size)
    stop = min(max(stop, start), data.size)
    return _finished(data, start, stop, _words_by_tables(data, start, stop, np.uint32(0xFFFFFFFF)))
