"""Install gpuload and some of its extras into the environment that runs this file, with the CUDA extra that fits.

Exists because the right extra depends on what pip cannot see: the GPU driver. Owns that choice (`choose`, pure) and
the pip call. The Makefile decides when it runs. Standard library only, since nothing is installed yet.

    .venv/bin/python tools/install.py dev bench
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEWEST_CUDA = 13  # the newest CUDA major that an extra exists for; newer drivers run it too
WITHOUT_DEPENDENCIES = {
    "peers": [
        "mosaicml-streaming>=0.10",
        # Wheels exist for these alone; with dependencies it would bring Keras, h5py, gRPC and libclang for TFRecords.
        "tensorflow-cpu>=2.20; sys_platform == 'linux' and platform_machine == 'x86_64' and python_version < '3.14'",
    ]
}
"""What asks for more, or for older versions, than it needs, NumPy's among them: the extra names what it imports."""

TORCH_FOR_CUDA = {12: "torch>=2.6,<2.11", 13: "torch>=2.11"}  # torch's builds on PyPI, by CUDA major


@dataclass(frozen=True)
class Choice:
    """What to install. extra: "cuda12", "cuda13" or "dali"; torch: a requirement, or "" to leave torch to the extra."""

    extra: str
    torch: str
    reason: str


def choose(driver_cuda: int | None, torch_cuda: int | None, torch_installed: bool) -> Choice:
    """The extra for this machine.

    driver_cuda: the newest CUDA major that the driver runs, None without a driver. torch_cuda: the major that the
    installed torch was built for, None for a CPU build. Kernels and CuPy must follow torch, and torch the driver.
    """
    if driver_cuda is None:
        return Choice("dali", "", "no CUDA driver")
    if driver_cuda < min(TORCH_FOR_CUDA):
        return Choice("dali", "", f"the driver runs CUDA {driver_cuda}, and CUDA 12 needs driver 525 or newer")
    if torch_installed and torch_cuda is None:
        return Choice("dali", "", "the installed torch is a CPU build")
    usable = min(driver_cuda, NEWEST_CUDA)
    if torch_cuda in TORCH_FOR_CUDA and torch_cuda <= usable:
        return Choice(f"cuda{torch_cuda}", "", f"the installed torch is a CUDA {torch_cuda} build")
    return Choice(f"cuda{usable}", TORCH_FOR_CUDA[usable], f"the driver runs CUDA {driver_cuda}")


def driver_cuda_major() -> int | None:
    """The newest CUDA major that the driver runs, asked of the driver itself."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if libcuda.cuDriverGetVersion(ctypes.byref(version)) != 0 or not any(Path("/dev").glob("nvidia[0-9]*")):
        return None  # a libcuda without a device: a container started without its GPU, a stub
    return version.value // 1000


def torch_cuda_major(version_file: str) -> int | None:
    """The CUDA major in torch/version.py, read and not imported: importing torch takes seconds."""
    found = re.search(r"^cuda\b[^=]*=\s*['\"](\d+)", version_file, re.MULTILINE)
    return int(found[1]) if found else None


def main(extras: list[str]) -> int:
    spec = importlib.util.find_spec("torch")
    version_file = Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
    choice = choose(driver_cuda_major(), torch_cuda_major(version_file), torch_installed=bool(version_file))
    extras = [extra for extra in extras if extra != "ptx" or not choice.extra.startswith("cuda")]  # it is in those
    wanted = ",".join([*extras, choice.extra])
    print(f"installing gpuload[{wanted}] ({choice.reason})", flush=True)
    # torch is named before the extra: pip then settles its version first, and the CUDA wheels around it.
    requirements = [*([choice.torch] if choice.torch else []), "-e", f"{ROOT}[{wanted}]"]
    quiet = [] if sys.stdout.isatty() else ["-qq"]  # a person sees several GB arrive, a log needs only errors
    pip = [sys.executable, "-m", "pip", "install", *quiet]
    alone = [package for extra in extras for package in WITHOUT_DEPENDENCIES.get(extra, [])]
    return subprocess.call([*pip, *requirements]) or (subprocess.call([*pip, "--no-deps", *alone]) if alone else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
