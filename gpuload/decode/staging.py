"""A task's images staged for the GPU: what kernels/stage_jpeg.py is given, and what it leaves.

Owns the memory that the call writes to, and the rule that decides which images the GPU gets: those that the kernels
decode, whose seek points are known, whose filter the GPU's kernels compute, and that take no more device memory than
one image may. Pixels are the CPU's, bit for bit, so it decides nothing else.
"""

from __future__ import annotations

import threading

import numpy as np

from gpuload.decode.device_job import Staged
from gpuload.decode.entropy_index import EntropyIndex
from gpuload.kernels import stage_jpeg as kernels
from gpuload.kernels.decode_jpeg import NOT_BEGUN, OUTSIDE
from gpuload.kernels.device_batch import IMAGE, MOST_IMAGES, SEGMENT, TABLE
from gpuload.kernels.entropy import POINT_SIZE
from gpuload.kernels.jpeg_header import HUFFMAN_SIZE, MCUS_HIGH, MCUS_WIDE
from gpuload.kernels.seek_points import FINEST_SPACING


class Stager:
    """kind, rule: filter and order of passes (resample_weights.py). most_bytes: of device memory, for one image."""

    def __init__(self, kind: int, rule: int, index: EntropyIndex, *, most_bytes: int):
        self._kind, self._rule, self._index, self._most_bytes = kind, rule, index, most_bytes
        self._memory = _Memory()

    def stage(
        self,
        data: np.ndarray,
        offsets: np.ndarray,
        lengths: np.ndarray,
        header: np.ndarray,
        quant: np.ndarray,
        huffman: np.ndarray,
        *,
        ours: np.ndarray,
        jobs: np.ndarray,
        first_row: int,
        size: tuple[int, int],
        stop: np.ndarray,
    ) -> Staged:
        """Those of the images `ours` (their places here) that the GPU gets; their rows count from first_row.

        data to huffman: as kernels.read_headers has them. jobs: int32 (n, JOB_SIZE). size: (height, width) of the
        batch's images.
        """
        count = len(lengths)
        status = np.full(count, OUTSIDE, np.int64)
        status[ours[ours + first_row < MOST_IMAGES - 1]] = NOT_BEGUN
        mine = header[ours]
        words = np.zeros((count, kernels.IMAGE_WORDS), np.int32)
        segments = np.empty((kernels.room_for(mine), kernels.SEGMENT_WORDS), np.uint32)
        tables = np.empty((6 * count, 2), np.uint32)
        definitions = np.empty(6 * count * HUFFMAN_SIZE, np.uint8)
        quants = np.empty((3 * count, 64), np.uint16)
        pieces = np.empty(int(lengths.sum()), np.uint8)
        counts = np.zeros(kernels.COUNTS, np.int64)
        mcus = mine[:, MCUS_WIDE].astype(np.int64) * mine[:, MCUS_HIGH]
        points = self._memory.points(int(mcus.max(initial=0)) // FINEST_SPACING + 1)
        kernels.stage_images(
            data, offsets, lengths, header, quant, huffman, jobs, self._kind, self._rule, *size, *self._index.tables,
            self._most_bytes, points, words, words.view(np.int64), segments, segments.view(np.uint16), tables,
            definitions, quants, pieces, counts, stop, status,
        )  # fmt: skip
        places = np.flatnonzero(status == kernels.STAGED)
        number = np.zeros(count, np.uint16)
        number[places] = np.arange(len(places))
        ends = counts.tolist()
        cut = segments[: ends[kernels.SEGMENTS]].reshape(-1).view(SEGMENT)
        cut["image"] = number[cut["image"]]
        return Staged(
            rows=first_row + places,
            images=words.reshape(-1).view(IMAGE)[places],
            segments=cut,
            tables=tables[: ends[kernels.TABLES]].reshape(-1).view(TABLE),
            definitions=definitions[: ends[kernels.DEFINITIONS]],
            quants=quants[: ends[kernels.QUANTS]],
            data=pieces[: ends[kernels.BYTES]],
        )


class _Memory(threading.local):
    """A thread's own room for seek points."""

    def __init__(self) -> None:
        self._points = np.empty((0, POINT_SIZE), np.int32)

    def points(self, rows: int) -> np.ndarray:
        if len(self._points) < rows:
            self._points = np.empty((rows, POINT_SIZE), np.int32)
        return self._points
