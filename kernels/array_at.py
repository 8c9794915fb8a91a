"""Arrays over memory of which a kernel knows only the address: what makes an integer an array, on the CPU and in CUDA.

A kernel launch with integers alone costs some 20 us of Python; one with arrays several times that, since Numba looks
at each, and to take over those of another library it may wait for that library's stream. So the GPU path's kernels
take addresses and counts, and say in their first lines what lies there. On the CPU the same functions take addresses
of host memory, so that what tests run is what the GPU runs.

Nothing is checked here: an address and a length are the caller's word that the memory exists, is aligned for its
elements and outlives the call. Owns the intrinsics; the layouts are the business of the files that call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numpy.typing import DTypeLike


def array_at(dtype: DTypeLike, *, readonly: bool = False) -> Any:
    """`(address, length) -> array`, both int64, for compiled code: elements of dtype, contiguous, owned by others.

    A struct must be declared with `align=True`: Numba loads the fields of any other one byte by byte.
    """
    element = np.dtype(dtype)
    if element.names and not element.isalignedstruct:
        raise ValueError(f"{element} is not an aligned struct")
    kind = types.Array(numba.from_dtype(element), 1, "C", readonly=readonly)

    @intrinsic
    def array(typingctx: Any, address: Any, length: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Sequence[ir.Value]) -> Any:
            made = context.make_array(kind)(context, builder)
            size = context.get_constant(types.intp, element.itemsize)
            pointer = builder.inttoptr(values[0], made.data.type)
            populate_array(made, data=pointer, shape=[values[1]], strides=[size], itemsize=size, meminfo=None)
            return made._getvalue()

        return kind(types.int64, types.int64), generate

    return array


bytes_at = array_at(np.uint8, readonly=True)
uint8_at = array_at(np.uint8)
int16_at = array_at(np.int16)
int32_at = array_at(np.int32)
