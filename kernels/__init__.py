"""The pixel and bit work: one operation a file, with its NumPy reference, its CPU version and its CUDA version.

Imports as `gpuload.kernels`, although it stands beside `gpuload/` in the project (pyproject.toml and
`gpuload/__init__.py` see to that): a folder that people open to read kernels, and no top-level package
of that name in anybody's site-packages. Owns nothing; each file is imported by those who call it.
"""

from __future__ import annotations

if __name__ != "gpuload.kernels":
    # As `kernels` its functions would be other objects than gpuload's, compiled and cached a second time.
    raise ImportError(
        f"this folder is gpuload.kernels, but it was imported as {__name__!r}. "
        "Write `import gpuload.kernels`, from the project's root or after `pip install -e .`"
    )
