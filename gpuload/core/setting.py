"""The engine's knobs as one value: what the tuner decides, the engine applies, and a saved configuration holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Setting:
    """How an engine runs; no setting changes a batch.

    fetch_threads: batches read at once. decode_threads: threads that decode, and finish batches. depth: batches let in
    and not yet taken, those in the making included. Each is at least 1.
    """

    fetch_threads: int
    decode_threads: int
    depth: int

    def __str__(self) -> str:
        return f"{self.fetch_threads} fetch threads, {self.decode_threads} decode threads, depth {self.depth}"
