"""How long Python's interpreter lock (GIL) is held: what bounds a loader on many cores.

The kernel sends SIGPROF as the process uses up CPU time, to the thread that is using it. The handler asks whether that
thread holds the lock: Python does, and C code that keeps it; a kernel that released it does not. The share of signals
that found it held, times the process's CPU time, is the CPU time under the lock. Counting CPU time and not wall time,
it is right on a busy machine too: neither a suspended thread nor one that waits for the lock is counted.

The handler is four instructions of machine code, since one in Python would wait for the lock that it asks about. CPU
time is looked at on the kernel's clock tick, 100 to 1000 times a second: the figure wants some seconds of it.
"""

from __future__ import annotations

import ctypes
import signal
import time
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir

PERIOD_S = 0.001
"""Of CPU time between signals; the kernel rounds up to its tick."""

_counts = np.zeros(2, np.int64)
"""(signals, those that found the lock held): written by the handler, which stays as long as the process."""


class GilMeter:
    """Measures from the beginning of a `with` to its end, all threads of this process, on the main thread; Linux.

    held_s: CPU seconds under the lock, of cpu_s. looks: how many signals that is known from.
    """

    def __enter__(self) -> GilMeter:
        _handler()
        self._before = _counts.copy()
        self._began_s = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)
        return self

    def __exit__(self, *error: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.cpu_s = time.process_time() - self._began_s
        looks, held = (_counts - self._before).tolist()
        self.looks = looks
        self.held_s = self.cpu_s * held / max(1, looks)


@cache
def _handler() -> Any:
    """Compiles and installs the handler. It is never taken away: a signal that comes late would end the process."""
    long, check = ir.IntType(64), ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p).value
    module = ir.Module()
    look = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(32)]), "look")
    builder = ir.IRBuilder(look.append_basic_block())
    ask = builder.inttoptr(long(check), ir.FunctionType(ir.IntType(32), []).as_pointer())
    held = builder.zext(builder.call(ask, []), long)
    for place, value in enumerate((long(1), held)):
        count = builder.inttoptr(long(_counts[place:].ctypes.data), long.as_pointer())
        builder.atomic_rmw("add", count, value, "monotonic")
    builder.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    code = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    code.finalize_object()
    install = ctypes.CDLL(None).signal  # the C library's: Python's own would call Python, and this one restarts reads
    install.argtypes, install.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    install(signal.SIGPROF, code.get_function_address("look"))
    return code
