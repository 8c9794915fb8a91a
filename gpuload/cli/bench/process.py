"""The parent's end of one loader's process: start it, ask it, watch its memory, end it.

Owns the pipe and the samples of memory. The answers' meaning is run.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gpuload
from gpuload.core.errors import GpuloadError, MissingDependencyError

SAMPLE_S = 0.25
"""Between two looks at the memory. One look at a process costs it ~5 ms of its memory lock, 2% at most."""


class LoaderProcessError(GpuloadError, RuntimeError):
    """A loader's process answered with an error, died, or did not answer in time."""


class LoaderProcess:
    """One child process with one loader in it. Not thread-safe; `close()` ends it and all that it started.

    environment: variables that are set for the child alone.
    """

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.peak_bytes = self.peak_device_bytes = 0
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - lives as long as the process
        root = str(Path(gpuload.__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self.spawned_s = time.time()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "gpuload.cli.bench.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )  # fmt: skip

    def ask(self, what: str, *, timeout_s: float = 600.0, watch: bool = False, **arguments: Any) -> dict[str, Any]:
        """The answer to one command. watch: keep the peak of the process tree's memory meanwhile."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._failure(what, "its process has ended") from None
        deadline_s = time.monotonic() + timeout_s
        while not select.select([self._child.stdout], [], [], SAMPLE_S)[0]:
            if watch:
                self._look_at_memory()
            if time.monotonic() > deadline_s:
                raise self._failure(what, f"no answer within {timeout_s:.0f} s")
        if watch:  # a command shorter than SAMPLE_S was not looked at yet
            self._look_at_memory()
        line = self._child.stdout.readline()
        if not line:
            raise self._failure(what, "its process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoaderProcessError(f"{self.name}: {answer['error']}")
        return answer

    def _look_at_memory(self) -> None:
        pids = [process.pid for process in _tree(self._child.pid)]
        self.peak_bytes = max(self.peak_bytes, tree_bytes(self._child.pid))
        self.peak_device_bytes = max(self.peak_device_bytes, device_bytes(pids))

    def _failure(self, what: str, problem: str) -> LoaderProcessError:
        self._log.seek(0)
        words = " | ".join(self._log.read().strip().splitlines()[-3:]) or "none"
        return LoaderProcessError(f"{self.name}: {problem} (command {what}). Its last words: {words}")

    def close(self) -> None:
        """Ends the process; one that does not go within 5 s is killed with its children."""
        if self._child.poll() is None and self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.write('{"do": "close"}\n')
                self._child.stdin.close()
            try:
                self._child.wait(5)
            except subprocess.TimeoutExpired:
                for process in reversed(_tree(self._child.pid)):
                    with contextlib.suppress(_psutil().NoSuchProcess):
                        process.kill()
                self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._log.close()


def tree_bytes(pid: int) -> int:
    """Memory of a process and its descendants: PSS, which splits shared pages among their holders; USS without it."""
    total = 0
    for process in _tree(pid):
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:
            with contextlib.suppress(_psutil().Error):
                total += process.memory_full_info().uss
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        total += 1024 * int(found.group(1)) if found else 0
    return total


def device_bytes(pids: Sequence[int]) -> int:
    """GPU memory of these processes by NVML; 0 without it, and where it sees them under other numbers (containers)."""
    nvml = _nvml()
    if nvml is None:
        return 0
    total = 0
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index)):
                total += (process.usedGpuMemory or 0) if process.pid in pids else 0
    except nvml.NVMLError:
        return 0
    return total


@cache
def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:  # comes with the extras for CUDA; without it torch's own figure stands in the table
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _tree(pid: int) -> list[Any]:
    try:
        root = _psutil().Process(pid)
        return [root, *root.children(recursive=True)]
    except _psutil().NoSuchProcess:
        return []


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise MissingDependencyError("measuring processes needs psutil: pip install 'gpuload[bench]'") from error
    return psutil
