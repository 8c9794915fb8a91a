"""Many small pieces of open files into one buffer, in one call without the GIL: what packed shards of thumbnails need.

A read of a kilobyte takes half a microsecond once the system has it in memory; asking for it from Python takes three,
most of them with the lock that all decode threads want. Owns the loop around pread; which pieces, which descriptors,
and what to do about one that failed is gpuload/fetch/local.py's.
"""

from __future__ import annotations

import numpy as np
from gpuload.kernels.compile import kernel
from numba import types

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.uint64, types.int64))

FAILED = -1


@kernel(["void(int32[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1])"])
def read_pieces(descriptors, offsets, lengths, places, buffer, got):
    """lengths[i] bytes of a file from its byte offsets[i] on to buffer[places[i] :], for each i.

    got[i]: how many came, fewer than lengths[i] only where the file ends; FAILED where the system had an error, or the
    buffer has no room for them.
    """
    for i in range(descriptors.size):
        got[i] = FAILED
        if places[i] < 0 or lengths[i] < 0 or places[i] + lengths[i] > buffer.size:
            continue
        done = np.int64(0)
        while done < lengths[i]:
            address = np.int64(buffer.ctypes.data) + places[i] + done
            count = _pread(descriptors[i], address, np.uint64(lengths[i] - done), offsets[i] + done)
            if count <= 0:
                break
            done += count
        if done == lengths[i] or count == 0:
            got[i] = done
