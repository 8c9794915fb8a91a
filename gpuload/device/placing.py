"""Which row of a batch goes to which place of it, where a part was decoded on the host and a part on the device.

A policy for bad samples leaves out rows or repeats good ones, so places and rows differ. Owns the arithmetic of what is
then to be copied; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Run:
    """`count` places of a batch from `place` on, which take as many rows from `row` on: of the host's, or its own."""

    place: int
    row: int
    count: int
    from_batch: bool


def first_places(keep: np.ndarray, rows: int) -> np.ndarray:
    """The first place at which each row of a batch stands, int64 (rows,); -1 where it does not. keep: a row a place."""
    places = np.full(rows, -1, np.int64)
    places[keep[::-1]] = np.arange(len(keep) - 1, -1, -1)
    return places


def runs_of_others(made: np.ndarray, keep: np.ndarray) -> list[Run]:
    """What is left to copy where the device made these rows, each to its first place. keep: a row a place."""
    places = first_places(keep, int(max(keep.max(initial=-1), made.max(initial=-1))) + 1)
    is_made = np.zeros(len(places), bool)
    is_made[made] = True
    runs: list[Run] = []
    for place, row in enumerate(keep.tolist()):
        source = int(places[row]) if is_made[row] else row
        if is_made[row] and source == place:
            continue
        if runs:
            last = runs[-1]
            together = last.from_batch == is_made[row] and last.place + last.count == place
            if together and last.row + last.count == source:
                runs[-1] = Run(last.place, last.row, last.count + 1, last.from_batch)
                continue
        runs.append(Run(place, source, 1, bool(is_made[row])))
    return runs
