"""Closing an engine: its threads, files and decoder in the time of one wait, however it is closed."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gpuload.core.setting import Setting
from gpuload.engine.engine import Engine
from gpuload.engine.meters import Meter
from gpuload.engine.work import Meters
from tests.engine.fakes import eventually

AT_EXIT = """
import threading
from tests.engine.test_engine import DeadServer, engine_on

servers = [DeadServer() for _ in range(2)]
engines = [engine_on(server) for server in servers]
for engine, server in zip(engines, servers):
    engine._pools[0].submit(server.read, rank=0)
    assert server.reading.wait(20)
print("begun", flush=True)
import atexit
atexit._run_exitfuncs()
print([server.closed.is_set() for server in servers], flush=True)
print([t.name for t in threading.enumerate() if t.name.startswith("gpuload")], flush=True)
"""


@dataclass
class DeadServer:
    """A read from it returns when its connection is closed."""

    reading: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        self.reading.set()
        self.closed.wait(60)


def engine_on(server: DeadServer, threads: int = 2) -> Engine:
    meters = Meters(Meter("fetch"), Meter("decode"), Meter("finish"))
    work: Any = SimpleNamespace(meters=meters, decoder=SimpleNamespace(callers=lambda wanted: wanted))
    setting = Setting(1, threads, 2) if threads else None
    return Engine(work, setting=setting, prepare=lambda: None, close=server.closed.set)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_read_that_never_ends_by_itself_ends_with_the_engine(forgotten: bool):
    server = DeadServer()
    engine = engine_on(server)
    engine._pools[0].submit(server.read, rank=0)
    threads = [thread for pool in engine._pools for thread in pool._state.threads]
    assert server.reading.wait(20)
    if forgotten:
        del engine
    else:
        engine.close()
        engine.close()
    assert server.closed.is_set() and len(threads) == 1
    assert eventually(lambda: not any(thread.is_alive() for thread in threads))


def test_without_threads_the_caller_closes():
    server = DeadServer()
    engine = engine_on(server, threads=0)
    engine.close()
    assert server.closed.is_set()


def test_at_interpreter_exit_all_engines_are_closed_before_their_threads_are_waited_for():
    run = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert run.stdout.splitlines() == ["begun", "[True, True]", "[]"], run.stderr
    assert run.returncode == 0 and run.stderr == ""
