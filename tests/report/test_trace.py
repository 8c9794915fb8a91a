"""The trace as a JSON parser sees it: whole after every write, spans where they were, and no more than the bound."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gpuload.core.errors import ConfigError
from gpuload.engine.meters import Consumer, Gauge, Meter
from gpuload.report import trace
from gpuload.report.trace import TraceFile
from tests.engine.fakes import exit_code


def read(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())["traceEvents"]
    assert all({"ph", "name", "pid"} <= event.keys() for event in found)
    return found


def spans(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By the name of their thread."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def check_nesting(found: list[dict[str, Any]]) -> None:
    """On one track two spans are apart or one holds the other."""
    open_until: list[float] = []
    for event in sorted(found, key=lambda e: (e["ts"], -e["dur"])):
        while open_until and open_until[-1] <= event["ts"] + 0.01:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 0.01, event
        open_until.append(end)


def work_on(file: TraceFile, meters: list[Meter], batches: int) -> None:
    """Threads that each do a task of every stage a batch, beside a consumer that is told of the batches."""

    def tasks() -> None:
        for batch in range(batches):
            for meter in meters:
                with meter.task(batch, items=4) as task:
                    task.nbytes = 10 * batch
                    time.sleep(0.0002)

    threads = [threading.Thread(target=tasks, name=f"worker-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    consumer, gauge = Consumer(file.events), Gauge(file.events)
    for _ in range(batches):
        asked_at = time.perf_counter()
        time.sleep(0.0005)
        gauge.add(ready=1)
        consumer.received(asked_at, 4)
        time.sleep(0.0005)
    for thread in threads:
        thread.join()
    file.epoch_ended(3, consumer.started, time.perf_counter())


def test_every_task_is_on_its_thread_and_the_sums_are_the_meters(tmp_path: Path):
    path = tmp_path / "trace.json"
    file = TraceFile(path)
    assert read(path) == []
    meters = [Meter(name, 3, file.events) for name in ("fetch", "decode")]
    work_on(file, meters, 5)
    first = path.read_text()
    work_on(file, meters, 5)
    events = read(path)
    assert path.read_text().startswith(first[: -len("\n]}\n")])  # grown, not written again
    tracks = spans(events)
    assert sorted(tracks) == ["consumer", "worker-0", "worker-1", "worker-2"]
    for track in tracks.values():
        check_nesting(track)
    for meter in meters:
        mine = [e for track in tracks.values() for e in track if e["name"] == meter.name]
        stats = meter.snapshot()
        assert len(mine) == stats.tasks == 30 and sum(e["args"]["images"] for e in mine) == stats.items
        assert sum(e["args"].get("bytes", 0) for e in mine) == stats.bytes
        assert sum(e["dur"] for e in mine) == pytest.approx(1e6 * stats.busy_s, rel=1e-4)
        assert sorted(e["args"]["batch"] for e in mine) == sorted(list(range(5)) * 6)
    told = [(e["name"], e["args"].get("batch")) for e in sorted(tracks["consumer"], key=lambda e: (e["ts"], -e["dur"]))]
    one = [("epoch 3", None), ("wait", 0)] + [
        (name, b + (name == "wait")) for b in range(4) for name in ("step", "wait")
    ]
    assert told == one * 2
    assert [e["args"]["ready"] for e in events if e["ph"] == "C"][:3] == [1, 2, 3]


def test_a_full_trace_says_so_once_and_grows_no_more(tmp_path: Path):
    path = tmp_path / "trace.json"
    file = TraceFile(path, most=20)
    meters = [Meter("fetch", 3, file.events)]
    for _ in range(3):
        work_on(file, meters, 10)
    assert meters[0].snapshot().tasks == 90
    events = read(path)
    told = [e["name"] for e in events if e["ph"] == "i"]
    assert told == ["the trace is full: after 20 events nothing was noted"]
    assert len([e for e in events if e["ph"] in "XC"]) <= 20 + 3  # threads may pass the bound together


def test_a_file_that_cannot_be_written_is_an_error_at_once_and_a_warning_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="trace=.*nowhere.*can't be written"):
        TraceFile(tmp_path / "nowhere" / "trace.json")
    file = TraceFile(tmp_path / "trace.json")
    file.events.consumer("wait", 1.0, 2.0, 0)
    os.unlink(file.path)
    with pytest.warns(UserWarning, match="the trace ends here"):
        file.epoch_ended(0, 1.0, 2.0)
    file.epoch_ended(1, 2.0, 3.0)
    assert not os.path.exists(file.path)


def test_what_was_noted_is_written_when_its_owner_is_gone(tmp_path: Path):
    path = tmp_path / "trace.json"
    file = TraceFile(path)
    file.events.consumer("wait", 1.0, 2.0, 0)
    del file
    gc.collect()
    assert [(e["name"], e["dur"]) for e in read(path) if e["ph"] == "X"] == [("wait", 1e6)]


def test_what_was_noted_is_written_when_python_ends(tmp_path: Path):
    program = (
        "from gpuload.report.trace import TraceFile\n"
        f"file = TraceFile({str(tmp_path / 'trace.json')!r})\n"
        "file.events.consumer('wait', 1.0, 2.0, 0)\n"
        "raise SystemExit(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(trace.__file__).parents[2], timeout=60)
    assert done.returncode == 5
    assert [e["name"] for e in read(tmp_path / "trace.json") if e["ph"] == "X"] == ["wait"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_the_file_alone(tmp_path: Path):
    file = TraceFile(tmp_path / "trace.json")
    file.events.consumer("wait", 1.0, 2.0, 0)
    child = os.fork()
    if child == 0:
        file.epoch_ended(0, 1.0, 2.0)
        os._exit(7)
    assert exit_code(child) == 7 and read(tmp_path / "trace.json") == []


def noted(file: TraceFile, batches: int = 3) -> None:
    """Events that are not written yet."""
    for batch in range(batches):
        file.events.end("fetch", float(batch), batch + 0.5, batch, 4, 0)


def test_a_path_is_the_newest_traces(tmp_path: Path):
    path = tmp_path / "trace.json"
    old = TraceFile(path)
    noted(old)
    old.epoch_ended(0, 0.0, 1.0)
    noted(old)  # not written when the cell of a notebook is run again
    new = TraceFile(path)
    del old
    gc.collect()
    assert read(path) == []
    noted(new)
    new.epoch_ended(7, 0.0, 1.0)
    assert {event["name"] for event in read(path)} >= {"fetch", "epoch 7"}
    assert "epoch 0" not in {event["name"] for event in read(path)}


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files there")
def test_without_room_the_trace_stays_as_it_was(tmp_path: Path):
    import resource

    file = TraceFile(tmp_path / "trace.json")
    noted(file)
    file.epoch_ended(0, 0.0, 1.0)
    before = (tmp_path / "trace.json").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    noted(file, 50)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, limits[1]))
    try:
        with pytest.warns(UserWarning, match="the trace ends here"):
            file.epoch_ended(1, 1.0, 2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "trace.json").read_bytes() == before
