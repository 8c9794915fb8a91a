"""Runs a script as `python script.py` would, and writes down how long it takes between two batches.

Owns the wrapper around DataLoader's iterators, in the script's process. Usage: OUT STEPS SCRIPT [ARGUMENT...].
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader


class EnoughError(BaseException):
    """Ends the script: not an Exception, so that a training loop which survives errors ends, too."""


class Watch:
    """Steps by iterator; the longest list is the training loop's."""

    def __init__(self, out: Path, enough: int):
        self.out, self.enough, self.pid = out, enough, os.getpid()
        self.most: Steps | None = None

    def seen(self, steps: Steps) -> None:
        if self.most is None or len(steps.steps_s) > len(self.most.steps_s):
            self.most = steps
        if len(steps.steps_s) >= self.enough:
            self.write()
            raise EnoughError

    def write(self) -> None:
        found = self.most
        if found is None or os.getpid() != self.pid:
            return
        count = max(1, len(found.steps_s))
        answer = {"steps_s": found.steps_s, "cpu_s": found.cpu_s / count, "batch_size": found.batch_size}
        self.out.write_text(json.dumps(answer))


class Steps:
    """One loader's steps: from a batch in the script's hands to its asking for the next one."""

    def __init__(self, loader: Any):
        self.batch_size = loader.batch_size
        self.steps_s: list[float] = []
        self.cpu_s = 0.0


class WatchedIterator:
    """A loader's iterator with a clock; everything else is the iterator's own."""

    def __init__(self, inner: Any, watch: Watch, steps: Steps):
        self._inner, self._watch, self._steps = inner, watch, steps
        self._got: tuple[float, float] | None = None

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        if self._got is not None:
            steps, (got_s, cpu_s) = self._steps, self._got
            steps.steps_s.append(time.perf_counter() - got_s)
            steps.cpu_s += time.thread_time() - cpu_s
            self._got = None
            self._watch.seen(steps)
        batch = next(self._inner)
        self._got = (time.perf_counter(), time.thread_time())
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def install(watch: Watch) -> None:
    """From now on every DataLoader's iterators are watched, torch's and those derived from it."""
    plain = DataLoader.__iter__
    by_loader: weakref.WeakKeyDictionary[Any, Steps] = weakref.WeakKeyDictionary()

    def watched(loader: Any) -> Any:
        steps = by_loader.setdefault(loader, Steps(loader))  # of all its epochs
        return WatchedIterator(plain(loader), watch, steps)

    DataLoader.__iter__ = watched  # type: ignore[method-assign,assignment]


def main(arguments: list[str]) -> None:
    out, enough, script, *rest = arguments
    watch = Watch(Path(out), int(enough))
    install(watch)
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except EnoughError:
        os._exit(0)  # loaders' workers and the script's threads are ended by who started this process
    finally:
        watch.write()


if __name__ == "__main__":
    main(sys.argv[1:])
