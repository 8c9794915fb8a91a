"""The GPU's entries in Numba's CUDA simulator, against the CPU's loops; for a process of its own.

The simulator is chosen when Numba is imported, and a thread of the GPU is one of Python's: a few items, odd grids.
"""

from __future__ import annotations

import numba
import numpy as np
from gpuload.kernels import decode_segments
from numba import cuda

from tests.kernels.segment_batch import SegmentBatch, batch_of, every_kind


def batches() -> list[SegmentBatch]:
    """Tiny ones: all samplings; restart intervals and windows; damage."""
    files = every_kind(width=17, height=11)
    whole = batch_of(files, [None] * len(files), 2)
    some = every_kind(restarts=2, width=33, height=25)[2:5]
    cut = batch_of(some, [(0, 0, 2, 1), (1, 1, 1, 1), (0, 1, 2, 1)], 3)
    damaged = batch_of(some, [None] * 3, 4)
    damaged.data[::17] = np.random.default_rng(0).integers(0, 256, len(damaged.data[::17]))
    damaged.definitions[:16] = 255
    return [whole, cut, damaged]


def main() -> None:
    assert numba.config.ENABLE_CUDASIM, "set NUMBA_ENABLE_CUDASIM=1"
    kernels = {name: cuda.jit(entry.function) for name, entry in decode_segments.cuda_entries().items()}
    launched, anomalies = [], 0
    for threads in (1, 5, 8):
        for simulated, expected in zip(batches(), batches(), strict=True):

            def launch(name: str, items: int, *arguments: int, threads: int = threads) -> None:
                blocks = -(-items // threads) + threads // 5  # some with a block of no item at all
                kernels[name][blocks, threads](items, *arguments)
                launched.append((items, blocks * threads))

            simulated.run(launch)
            expected.run(lambda name, *arguments: getattr(decode_segments, name)(*arguments))
            simulated.assert_same(expected)
            anomalies += int((simulated.status.values > 0).sum())
            for array in simulated.written():
                array.assert_untouched_beside()
    assert any(items < threads for items, threads in launched)
    assert any(items == threads for items, threads in launched)
    assert anomalies
    print(f"{len(launched)} launches")


if __name__ == "__main__":
    main()
