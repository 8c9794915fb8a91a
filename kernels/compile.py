"""How a kernel becomes machine code for the CPU: compiled once for its signatures, kept on disk, never stale.

Numba's own cache looks only at the file in which a function stands: it serves old machine code after a callee in
another file was edited, and ignores the bounds-check switch. Here a kernel file has a cache directory whose name is a
hash of that source and of all kernel sources that it imports, of Numba's, llvmlite's and NumPy's versions, the
processor and the flags; where nothing is writable, kernels are compiled in memory. Owns those directories; leaves the
kernels to their files.

Compile before threads start: Numba imports a kernel's module while it unpickles, and a thread that waits for
that import's lock would wait for a caller that waits for the thread.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding as llvm
from numba.core import caching

_PACKAGE = "gpuload.kernels"


def sources_of(name: str) -> list[Path]:
    """The kernel file of this name and every kernel file that it imports, at any depth and anywhere in it, sorted."""
    folder, found, left = Path(__file__).parent, set[Path](), [name]
    while left:
        path = folder / f"{left.pop()}.py"
        if path in found or not path.is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
                left.extend(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE + "."):
                left.append(str(node.module).rsplit(".", 1)[-1])
    return sorted(found)


@cache
def cache_directory(name: str) -> Path:
    """Where this version of a kernel file keeps its machine code, for this processor and these versions."""
    digest = hashlib.sha256()
    for source in sources_of(name):
        digest.update(source.name.encode() + source.read_bytes())
    config: Any = numba.config
    flags = (config.BOUNDSCHECK, config.OPT, config.DEBUG, config.ENABLE_AVX)
    machine = (platform.machine(), llvm.get_host_cpu_name(), sorted(llvm.get_host_cpu_features().items()))
    digest.update(repr((numba.__version__, llvmlite.__version__, np.__version__, flags, machine)).encode())
    home = os.path.expanduser("~/.cache")
    if home.startswith("~"):  # a user without a home, as containers have them
        home = tempfile.gettempdir()
    base = Path(os.environ.get("XDG_CACHE_HOME") or home)
    return base / "gpuload" / "kernels" / f"{name}-{digest.hexdigest()[:20]}"


def _name_of(function: Callable[..., Any]) -> str:
    return function.__module__.rsplit(".", 1)[-1]


class _Patience:
    """Says once, when compiling has gone on for a while, what takes so long."""

    AFTER_S = 5.0

    def __init__(self) -> None:
        self._spent_s, self._told = 0.0, False

    def spent(self, seconds: float, kept: Path) -> None:
        self._spent_s += seconds
        if self._spent_s > self.AFTER_S and not self._told:
            self._told = True
            logging.getLogger("gpuload").warning(
                "compiling gpuload's kernels for this processor, once: half a minute; kept in %s", kept.parent
            )


_patience = _Patience()


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]):
        self._directory = cache_directory(_name_of(function))
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func)

    def get_cache_path(self) -> str:
        return str(self._directory)

    def get_source_stamp(self) -> str:
        return self._directory.name

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Locator]  # type: ignore[list-item]


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # what a crash left of a pickle may raise anything: compile again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            try:
                super().save_overload(sig, data)
            except OSError:
                raise
            except Exception:  # the index is damaged (see above): begin a new one
                self.flush()
                super().save_overload(sig, data)
        except OSError:  # a full or read-only cache directory costs time at the next start, nothing else
            return


def on_demand(signatures: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """`kernel` for what no loader calls: the same, compiled when Python first calls it."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = cache(lambda: kernel(signatures)(function))

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return compiled()(*arguments)

        return call

    return decorate


def kernel(signatures: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for the CPU, for exactly these signatures, releasing the GIL while it runs."""

    def decorate(function: Callable[..., Any]) -> Any:
        began = time.perf_counter()
        dispatcher: Any = numba.njit(nogil=True)(function)
        dispatcher._cache = _Cache(function)
        for signature in signatures:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        if dispatcher.stats.cache_misses:
            _patience.spent(time.perf_counter() - began, cache_directory(_name_of(function)))
        return dispatcher

    return decorate
