"""A batch of JPEGs for the GPU: what tasks staged, joined to one upload and the list of launches that decodes it.

    Staged (a task's images) --joined--> DeviceJob --write--> pinned memory ~~copy~~> device --launch--> the batch

All of it is decided here, as numbers: where each array lies in the upload and in the scratch memory, how many images go
together so that scratch stays within its bound, which launches follow each other with which arguments. Owns that; the
arrays' meaning is kernels/device_batch.py's, memory and streams are device/cuda.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpuload.core.batch import DeviceOutput
from gpuload.core.protocols import Launcher
from gpuload.kernels.device_batch import ALIGNMENT, DATA_PADDING, IMAGE, MOST_IMAGES, SEGMENT, TABLE
from gpuload.kernels.entropy import LAYOUT_SIZE
from gpuload.kernels.huffman import TABLE_SIZE

FIRSTS = {"first_block": 128 + 1 + 64, "first_pixel": 4, "first_middle": 4, "first_row": 0, "first_weight": 4}
"""The fields that count an image's share of the scratch memory, and the bytes of one of each."""

SCRATCH_ALIGNMENT = 128


@dataclass(frozen=True)
class Staged:
    """Some images of a batch, ready for the GPU.

    rows: int64 (k,), the batch's row of each. images: IMAGE (k,), firsts hold the image's own counts. segments:
    SEGMENT (s,), of these images by their number here, in order. tables: TABLE (t,); definitions: uint8.
    quants: uint16 (q, 64). data: uint8.
    """

    rows: np.ndarray
    images: np.ndarray
    segments: np.ndarray
    tables: np.ndarray
    definitions: np.ndarray
    quants: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class _Group:
    """Images that share the scratch memory. images, segments: the first of each among the batch's."""

    images: int
    count: int
    segments: int
    segment_count: int
    totals: tuple[int, ...]  # blocks, pixels, middle, rows, weights


class DeviceJob:
    """core.protocols.DeviceJob for JPEGs.

    staged: what the tasks left, at least one image. places: int64, by row of the batch where its image goes. table:
    (3, 256), fill: (3,), as core.batch.Target's and Resampling's. kind: the filter. most_bytes: of scratch memory,
    more than any image that was staged needs alone.
    """

    def __init__(
        self,
        staged: Sequence[Staged],
        places: np.ndarray,
        *,
        table: np.ndarray,
        fill: Sequence[int],
        kind: int,
        most_bytes: int,
    ):
        self._table, self._fill, self._kind, self._most_bytes = table, [int(value) for value in fill], kind, most_bytes
        self.rows = np.concatenate([part.rows for part in staged])
        self._images, self._segments, self._tables = _joined(staged)
        self._images["place"] = places[self.rows]
        assert (self._images["place"] >= 0).all(), "a staged row cannot fail, so every policy keeps it"
        self._parts = staged
        self._sections = self._upload_sections()

    @property
    def upload_bytes(self) -> int:
        return self._sections["end"]

    @cached_property
    def scratch_bytes(self) -> int:
        return self._scratch["end"] + max(self._scratch_of(group)["end"] for group in self._groups)

    @cached_property
    def _groups(self) -> list[_Group]:
        """As many images together as fit the scratch memory, in order."""
        costs = np.sum([self._images[name] * size for name, size in FIRSTS.items()], axis=0)
        groups, start = [], 0
        while start < len(costs):
            total = np.cumsum(costs[start : start + MOST_IMAGES - 1])
            count = max(1, int(np.searchsorted(total, self._most_bytes, side="right")))
            first, end = np.searchsorted(self._segments["image"], [start, start + count])
            totals = tuple(int(self._images[name][start : start + count].sum()) for name in FIRSTS)
            groups.append(_Group(start, count, int(first), int(end - first), totals))
            start += count
        return groups

    def _upload_sections(self) -> dict[str, int]:
        return _laid_out(
            {
                "images": IMAGE.itemsize * (len(self._images) + len(self._groups)),
                "segments": SEGMENT.itemsize * len(self._segments),
                "tables": TABLE.itemsize * self._table_count,
                "definitions": sum(part.definitions.nbytes for part in self._parts),
                "quant": sum(part.quants.nbytes for part in self._parts),
                "lookup": self._table.nbytes,
                "data": sum(part.data.nbytes for part in self._parts) + DATA_PADDING,
            },
            ALIGNMENT,
        )

    @property
    def _table_count(self) -> int:
        return sum(len(part.tables) for part in self._parts)

    @cached_property
    def _scratch(self) -> dict[str, int]:
        """What all groups share: where it begins, and where the groups' own begins."""
        return _laid_out(
            {"status": 4 * len(self._images), "built": 4 * TABLE_SIZE * self._table_count}, SCRATCH_ALIGNMENT
        )

    def _scratch_of(self, group: _Group) -> dict[str, int]:
        """A group's own, over that of the group before: where each part begins behind what is shared."""
        blocks, pixels, middle, _, weights = group.totals
        return _laid_out(
            {
                "layouts": 4 * LAYOUT_SIZE * group.count,
                "coefficients": 128 * blocks,
                "last": blocks,
                "planes": 64 * blocks,
                "pixels": 4 * pixels,
                "weights": 4 * weights,
                "middle": 4 * middle,
            },
            SCRATCH_ALIGNMENT,
        )

    def write(self, upload: np.ndarray) -> None:
        """Fill the upload, uint8 (upload_bytes,)."""
        at = self._sections
        images = _section(upload, at["images"], IMAGE, len(self._images) + len(self._groups))
        segments = _section(upload, at["segments"], SEGMENT, len(self._segments))
        segments[:] = self._segments
        for number, group in enumerate(self._groups):
            place = group.images + number  # a row of totals stands behind each group before
            images[place : place + group.count] = self._images[group.images : group.images + group.count]
            images[place + group.count] = np.zeros((), IMAGE)
            for name in FIRSTS:
                counts = self._images[name][group.images : group.images + group.count]
                images[name][place] = 0
                images[name][place + 1 : place + 1 + group.count] = np.cumsum(counts)
            segments["image"][group.segments : group.segments + group.segment_count] -= group.images
        for name, parts in (
            ("tables", [self._tables.view(np.uint8)]),
            ("definitions", [part.definitions for part in self._parts]),
            ("quant", [part.quants.reshape(-1).view(np.uint8) for part in self._parts]),
            ("lookup", [np.ascontiguousarray(self._table).reshape(-1).view(np.uint8)]),
            ("data", [part.data for part in self._parts]),
        ):
            end = at[name] + sum(part.nbytes for part in parts)
            np.concatenate(parts, out=upload[at[name] : end])
        upload[at["data"] + self._data_bytes :] = 0

    @property
    def _data_bytes(self) -> int:
        return sum(part.data.nbytes for part in self._parts)

    def launch(self, launcher: Launcher, upload: int, scratch: int, output: DeviceOutput) -> None:
        """Launch everything; upload and scratch are addresses on the device, of scratch_bytes and upload_bytes."""
        up = {name: upload + begin for name, begin in self._sections.items()}
        shared = {name: scratch + begin for name, begin in self._scratch.items()}
        definitions_bytes = self._sections["quant"] - self._sections["definitions"]
        data_bytes = self._data_bytes + DATA_PADDING
        tables = self._table_count
        launcher.launch(
            "build_tables", tables, tables, up["tables"], up["definitions"], definitions_bytes, shared["built"]
        )
        for number, group in enumerate(self._groups):
            n = group.count
            images = up["images"] + IMAGE.itemsize * (group.images + number)
            segments = up["segments"] + SEGMENT.itemsize * group.segments
            at = {name: shared["end"] + begin for name, begin in self._scratch_of(group).items()}
            status = shared["status"] + 4 * group.images
            blocks, pixels, middle, rows, _ = group.totals
            launcher.launch("lay_out_images", n, n, images, at["layouts"], status)
            launcher.launch(
                "decode_segments", group.segment_count, group.segment_count, segments, images, at["layouts"],
                up["data"], data_bytes, shared["built"], tables, at["coefficients"], at["last"], blocks, status,
            )  # fmt: skip
            launcher.launch(
                "transform_blocks", blocks, n, blocks, images, up["quant"], at["coefficients"], at["last"], at["planes"]
            )
            launcher.launch("to_rgb", pixels, n, pixels, images, at["planes"], at["pixels"])
            launcher.launch("fill_weights", rows, n, rows, images, self._kind, at["weights"])
            launcher.launch("first_pass", middle, n, middle, images, at["weights"], at["pixels"], at["middle"])
            items = n * output.height * output.width
            launcher.launch(
                f"store_{self._table.dtype.itemsize}", items, n, items, images, at["weights"], at["pixels"],
                at["middle"], up["lookup"], *self._fill, output.address, output.height, output.width, *output.strides,
            )  # fmt: skip

    @property
    def status(self) -> slice:
        """Where in the scratch memory each image's status is after `launch`: int32 (k,), in the order of `rows`."""
        begin = self._scratch["status"]
        return slice(begin, begin + 4 * len(self._images))

    @property
    def touched_bytes(self) -> int:
        """Encoded bytes of the segments that are decoded."""
        return self._data_bytes


class _Joined(NamedTuple):
    images: np.ndarray
    segments: np.ndarray
    tables: np.ndarray


def _joined(staged: Sequence[Staged]) -> _Joined:
    """All images, segments and tables, numbered and placed as if one task had staged them."""
    images, segments, tables = (
        np.concatenate([getattr(part, name) for part in staged]) for name in ("images", "segments", "tables")
    )
    image = segment = table = quant = byte = definition = 0
    for part in staged:
        mine = images[image : image + len(part)]
        mine["dc"] += table
        mine["ac"] += table
        mine["quant"] += quant
        cut = segments[segment : segment + len(part.segments)]
        cut["image"] += image
        cut["byte"] += byte
        tables["begin"][table : table + len(part.tables)] += definition
        image, segment, table = image + len(part), segment + len(part.segments), table + len(part.tables)
        quant, byte, definition = (
            quant + len(part.quants),
            byte + part.data.nbytes,
            definition + part.definitions.nbytes,
        )
    return _Joined(images, segments, tables)


def _laid_out(sizes: dict[str, int], alignment: int) -> dict[str, int]:
    """Where each part begins, one behind the other, and where the last one ends."""
    begins, end = {}, 0
    for name, size in sizes.items():
        begins[name] = end
        end += -(-size // alignment) * alignment
    return begins | {"end": end}


def _section(memory: np.ndarray, begin: int, dtype: np.dtype, count: int) -> np.ndarray:
    return memory[begin : begin + dtype.itemsize * count].view(dtype)
