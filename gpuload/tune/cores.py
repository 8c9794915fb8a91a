"""How long this process's threads stood ready and got no core: what a busy machine adds to every stage's time.

Owns reading it from Linux's scheduler (/proc/self/task/*/schedstat: nanoseconds run, nanoseconds waited, time slices).
"""

from __future__ import annotations

from pathlib import Path

TASKS = Path("/proc/self/task")


def core_wait_s(tasks: Path = TASKS) -> float:
    """Seconds, summed over the threads that there are now; 0.0 where the system does not say."""
    total_ns = 0
    try:
        for task in tasks.iterdir():
            try:
                total_ns += int((task / "schedstat").read_text().split()[1])
            except (OSError, ValueError, IndexError):  # a thread that has just ended
                continue
    except OSError:
        return 0.0
    return total_ns / 1e9
