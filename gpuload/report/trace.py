"""An epoch as a file for Perfetto (ui.perfetto.dev) or chrome://tracing: every task on its thread, waits, queues.

Owns the file: whole, valid JSON after every write, however the run ends, also where there is no room for more; at most
MOST_EVENTS events, and it says so where there were more. A path is the newest trace's: a loader that is made again, in
a notebook or by a framework, takes it over, and the older one writes no more. What is noted, and when, is
`engine/events.py`'s. Format: "Trace Event Format", JSON object form.
"""

from __future__ import annotations

import io
import json
import os
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from gpuload.core.errors import ConfigError
from gpuload.engine.events import CONSUMER, Events, Lengths, Ranges, Span

MOST_EVENTS = 200_000
"""30 MB of JSON, which the viewers load in seconds: two minutes of 8 busy threads with tasks of 5 ms."""

_HEAD, _TAIL = b'{"displayTimeUnit": "ms", "traceEvents": [\n', b"\n]}\n"
_QUEUES = ("planned", "decode", "finish", "ready")


class TraceFile:
    """The file at `path`, made now, and grown by what `events` has kept at each epoch's end and when Python ends.

    ranges: also told of each task. Raises ConfigError where the file can't be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, ranges: Ranges | None = None, most: int = MOST_EVENTS):
        self.path, self.events = os.path.abspath(path), Events(most, ranges)
        self._writer = _NEWEST[self.path] = _Writer(self.path, self.events)
        try:
            with open(self.path, "wb") as file:
                file.write(_HEAD + _TAIL)
        except OSError as error:
            raise ConfigError(f"trace={os.fspath(path)!r} can't be written: {error}") from error
        self._finalizer = weakref.finalize(self, self._writer.write)

    def epoch_ended(self, number: int, began_s: float, ended_s: float) -> None:
        """Write what this epoch's threads and its consumer did. Consumer's thread."""
        self.events.consumer(f"epoch {number}", began_s, ended_s, -1)
        self._writer.write()


class _Writer:
    """Puts events before the file's last bytes; in the process that made it, and in no child of it."""

    def __init__(self, path: str, events: Events):
        self._path, self._events = path, events
        self._pid = os.getpid()
        self._tracks: dict[str, int] = {}
        self._origin_s: float | None = None
        self._first, self._ended = True, False

    def write(self) -> None:
        if self._ended or self._pid != os.getpid() or _NEWEST.get(self._path) is not self:
            return
        full = self._events.full
        text = ",\n".join(map(json.dumps, self._told(self._events.take(), full)))
        if not text:
            return
        try:
            _put_before_tail(self._path, (b"" if self._first else b",\n") + text.encode())
        except OSError as error:
            self._ended = True
            warnings.warn(f"the trace ends here: {error}", stacklevel=2)
        self._first, self._ended = False, self._ended or full

    def _told(self, found: list[Span | Lengths], full: bool) -> Iterable[dict[str, Any]]:
        if self._origin_s is None:
            starts = (event.at_s if isinstance(event, Lengths) else event.began_s for event in found)
            self._origin_s = min(starts, default=0.0)
        for event in found:
            if isinstance(event, Lengths):
                yield self._event("C", "queues", event.at_s, args=dict(zip(_QUEUES, event.lengths, strict=True)))
                continue
            if event.thread not in self._tracks:
                yield self._track(event.thread)
            yield self._event(
                "X",
                event.name,
                event.began_s,
                tid=self._tracks[event.thread],
                dur=round(1e6 * (event.ended_s - event.began_s), 3),
                args=_args(event),
            )
        if full:
            text = f"the trace is full: after {self._events.most} events nothing was noted"
            ends = (event.at_s if isinstance(event, Lengths) else event.ended_s for event in found)
            yield self._event("i", text, max(ends, default=self._origin_s), s="g")

    def _track(self, thread: str) -> dict[str, Any]:
        track = self._tracks[thread] = 0 if thread == CONSUMER else len(self._tracks) + 1
        return {"ph": "M", "name": "thread_name", "pid": self._pid, "tid": track, "args": {"name": thread}}

    def _event(self, kind: str, name: str, at_s: float, **more: Any) -> dict[str, Any]:
        assert self._origin_s is not None
        ts = round(1e6 * (at_s - self._origin_s), 3)
        return {"ph": kind, "name": name, "cat": "gpuload", "pid": self._pid, "ts": ts, **more}


_NEWEST: weakref.WeakValueDictionary[str, _Writer] = weakref.WeakValueDictionary()


def _put_before_tail(path: str, data: bytes) -> None:
    """All of it, or, where there is no room or Ctrl-C comes, nothing."""
    with open(path, "r+b", buffering=0) as file:
        at = file.seek(-len(_TAIL), os.SEEK_END)
        try:
            _write_all(file, data + _TAIL)
        except BaseException:
            file.truncate(at)
            file.seek(at)
            _write_all(file, _TAIL)
            raise


def _write_all(file: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _args(span: Span) -> dict[str, int]:
    found = {"batch": span.batch} if span.batch >= 0 else {}
    found |= {"images": span.images} if span.images else {}
    return found | ({"bytes": span.nbytes} if span.nbytes else {})
