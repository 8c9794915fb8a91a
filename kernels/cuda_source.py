"""The CUDA C++ beside the kernels as a compiler takes it: one text a file, its options, and which kernels it holds.

NVRTC gets each text with image.cuh in it: it then needs no folder to search, and a cache keyed by the text (CuPy's,
the tests') sees every byte that counts. Owns that list and the number of threads a block; compiling and launching
are cuda_launch.py's.

Kernels have C names. Their parameters are counts and addresses of 8 bytes each (n_images, items, then the kernel's
own): launched with int64 throughout, whether C++ calls them i64 or pointers. Where it calls them pointers, the compiler
knows that they are to global memory and, by `const` and `__restrict__`, which of it stays the same.
"""

from __future__ import annotations

from pathlib import Path

NAMES: dict[str, tuple[str, ...]] = {
    "idct": ("transform_blocks",),
    "color": ("to_rgb",),
    "resample": ("fill_weights", "first_pass", "store_1", "store_2", "store_4", "store_8"),
    "erase": ("erase_1", "erase_2", "erase_4", "erase_8"),
    "mix": (
        *("mix_float16", "mix_bfloat16", "mix_float32", "mix_float64", "mix_names"),
        *("cut_1", "cut_2", "cut_4", "cut_8"),
    ),
}
"""The .cu files, and the kernels of each."""

BLOCK = 128
"""Threads a block, for all of them, and never more: the compiler is told. Threads don't cooperate, so that a block is
only a unit of scheduling: four warps, one for each of a multiprocessor's schedulers. Blocks of one warp could fill but
half of a multiprocessor, which has room for 64 warps and 32 blocks; in larger ones a warp that is done keeps its place
until the slowest is, and of 80 registers a thread, 24 warps fit in blocks of 4 but 16 in blocks of 16."""

OPTIONS = ("-std=c++17", f"-DBLOCK={BLOCK}")
"""For NVRTC; g++ takes the same. Where a product and a sum may not become one operation, the code says so itself."""

_INCLUDE = '#include "image.cuh"\n'


def source(name: str) -> str:
    """The whole text of `name`.cu: it includes nothing."""
    folder = Path(__file__).parent
    text = (folder / f"{name}.cu").read_text(encoding="utf-8")
    return text.replace(_INCLUDE, (folder / "image.cuh").read_text(encoding="utf-8"))
