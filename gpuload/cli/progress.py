"""A progress bar for commands that work through bytes or shards, on standard error, with the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn


@contextmanager
def bytes_progress(title: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Gives the function to call with the bytes that are done; draws only if `shown` and on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
    with _progress(columns, title, total, shown) as advance:
        yield advance


@contextmanager
def count_progress(title: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """The same for things that are counted."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _progress(columns, title, total, shown) as advance:
        yield advance


@contextmanager
def _progress(columns: tuple, title: str, total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda amount: progress.advance(task, amount)
