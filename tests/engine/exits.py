"""Scenarios in which a process ends in the midst of loading; run as a script, each in a child forked from one parent.

    python exits.py FOLDER SCENARIO...

prints a JSON line for each: how the child ended (its exit code, or "hung" where it had to be killed after LIMIT_S),
and what it wrote to stderr. Forking from a parent that has imported everything and started nothing makes a scenario
cost milliseconds, where a fresh interpreter with torch costs seconds.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuload.decode import dali
from tests.engine.fakes import exit_code
from tests.engine.samples import Numbered, folder_loader, jittered, jpeg, loader_of, random_crop

LIMIT_S = 30.0
SCENARIOS: dict[str, Callable[[Path], None]] = {}
GLOBALS: list[Any] = []
"""What scenarios leave in the module until the interpreter takes it apart."""


def scenario(function: Callable[[Path], None]) -> Callable[[Path], None]:
    SCENARIOS[function.__name__] = function
    return function


def slow(pause_s: float) -> Numbered:
    return Numbered([jpeg(i) for i in range(40)], random_crop(), lambda i: time.sleep(pause_s))


class Sleeps:
    def __call__(self, image: Any) -> Any:
        time.sleep(60)
        return image


@scenario
def before_the_first_batch(folder: Path) -> None:
    GLOBALS.append(iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=2)))


@scenario
def in_mid_epoch(folder: Path) -> None:
    iterator = iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=2))
    GLOBALS.append((next(iterator), iterator))


@scenario
def in_mid_epoch_without_threads(folder: Path) -> None:
    iterator = iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=0))
    GLOBALS.append((next(iterator), iterator))


@scenario
def in_mid_epoch_with_dali(folder: Path) -> None:
    if dali.available() is None:
        iterator = iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=2, decoder="dali"))
        GLOBALS.append((next(iterator), iterator))


@scenario
def in_mid_epoch_per_sample(folder: Path) -> None:
    iterator = iter(folder_loader(folder, jittered(), batch_size=4, num_workers=2))
    GLOBALS.append((next(iterator), iterator))


@scenario
def while_reading(folder: Path) -> None:
    GLOBALS.append(iter(loader_of(slow(0.05), batch_size=4, num_workers=2)))


@scenario
def inside_a_generator(folder: Path) -> None:
    def batches() -> Any:
        yield from folder_loader(folder, random_crop(), batch_size=4, num_workers=2)

    generator = batches()
    next(generator)
    GLOBALS.append(generator)


@scenario
def after_break_with_all_batches_held(folder: Path) -> None:
    loader = folder_loader(folder, random_crop(), batch_size=4, num_workers=2, persistent_workers=True)
    GLOBALS.append(loader)
    for _ in range(2):
        for number, batch in enumerate(loader):
            GLOBALS.append(batch)
            if number == 3:
                break


@scenario
def in_a_reference_cycle(folder: Path) -> None:
    ring: list[Any] = [iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=2))]
    ring.append(ring)


@scenario
def in_a_daemon_thread(folder: Path) -> None:
    begun = threading.Event()

    def train() -> None:
        while True:
            for _ in folder_loader(folder, random_crop(), batch_size=4, num_workers=2):
                begun.set()

    threading.Thread(target=train, daemon=True).start()
    begun.wait()


@scenario
def by_sys_exit_in_the_loop(folder: Path) -> None:
    for _ in folder_loader(folder, random_crop(), batch_size=4, num_workers=2):
        sys.exit(3)


@scenario
def by_an_exception_in_the_loop(folder: Path) -> None:
    for _ in folder_loader(folder, random_crop(), batch_size=4, num_workers=2):
        raise ValueError("the training loop's own")


@scenario
def by_sys_exit_in_a_decode_thread(folder: Path) -> None:
    class Exits:
        def __call__(self, image: Any) -> Any:
            sys.exit(5)

    transform = type(random_crop())([*random_crop().transforms, Exits()])
    for _ in folder_loader(folder, transform, batch_size=4, num_workers=2):
        pass


@scenario
def with_a_read_that_hangs(folder: Path) -> None:
    GLOBALS.append(iter(loader_of(slow(60), batch_size=4, num_workers=2)))
    time.sleep(0.1)


@scenario
def with_a_transform_that_hangs(folder: Path) -> None:
    transform = type(random_crop())([*random_crop().transforms, Sleeps()])
    GLOBALS.append(iter(folder_loader(folder, transform, batch_size=4, num_workers=2)))
    time.sleep(0.2)


@scenario
def in_a_forked_child_and_its_parent(folder: Path) -> None:
    iterator = iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=2))
    GLOBALS.append((next(iterator), iterator))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        next(iterator)


@scenario
def by_ctrl_c_while_waiting(folder: Path) -> None:
    iterator = iter(loader_of(slow(30), batch_size=4, num_workers=2))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    next(iterator)


@scenario
def by_ctrl_c_without_threads(folder: Path) -> None:
    iterator = iter(loader_of(slow(30), batch_size=4, num_workers=0))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    next(iterator)


@scenario
def never_after_a_ctrl_c_that_is_caught(folder: Path) -> None:
    gate = threading.Event()
    data = Numbered([jpeg(i) for i in range(8)], random_crop(), lambda i: (gate.wait(10), None)[1])
    iterator = iter(loader_of(data, batch_size=4, num_workers=2))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        next(iterator)
    except KeyboardInterrupt:
        gate.set()
        assert [labels.tolist() for _, labels in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@dataclass
class Child:
    """A scenario under way in a child, which ends as any interpreter does."""

    name: str
    pid: int
    stderr: IO[bytes]
    until: float

    def outcome(self) -> dict[str, Any]:
        """How it ended, once it has."""
        code = exit_code(self.pid, self.until - time.monotonic())
        with self.stderr:
            self.stderr.seek(0)
            return {"name": self.name, "code": code, "stderr": self.stderr.read().decode()}


def begin(name: str, folder: Path) -> Child:
    stderr = tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        os.dup2(stderr.fileno(), 2)
        SCENARIOS[name](folder)
        sys.exit(0)
    return Child(name, pid, stderr, time.monotonic() + LIMIT_S)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    for warm_up in (random_crop(), jittered()):  # loads and compiles everything before the first fork, on no thread
        next(iter(folder_loader(Path(sys.argv[1]), warm_up, batch_size=4, num_workers=0)))
    gc.freeze()  # else each child's end visits all of torch once more, for 1.5 s
    for child in [begin(name, Path(sys.argv[1])) for name in sys.argv[2:]]:
        sys.stdout.write(json.dumps(child.outcome()) + "\n")
