"""Pieces of files against what Python reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from gpuload.kernels.positional_read import FAILED, read_pieces


def pieces(fds: list[int], offsets: list[int], lengths: list[int], places: list[int], buffer: np.ndarray) -> list[int]:
    got = np.full(len(fds), 77, np.int64)
    columns = (np.array(column, np.int64) for column in (offsets, lengths, places))
    read_pieces(np.array(fds, np.int32), *columns, buffer, got)
    return got.tolist()


def test_pieces_of_several_files_land_where_they_should(tmp_path: Path):
    rng = np.random.default_rng(0)
    contents = [rng.bytes(5000), rng.bytes(300)]
    fds = []
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
        fds.append(os.open(tmp_path / str(number), os.O_RDONLY))
    wanted = [(int(rng.integers(2)), int(rng.integers(300)), int(rng.integers(200))) for _ in range(40)]
    lengths = [length for _, _, length in wanted]
    places = (np.cumsum(lengths) - lengths + 3).tolist()
    buffer = np.full(sum(lengths) + 6, 9, np.uint8)
    got = pieces([fds[file] for file, _, _ in wanted], [at for _, at, _ in wanted], lengths, places, buffer)
    expected = bytearray(b"\x09" * buffer.size)
    for (file, at, length), place, count in zip(wanted, places, got, strict=True):
        piece = contents[file][at : at + length]
        assert count == len(piece)
        expected[place : place + len(piece)] = piece
    assert buffer.tobytes() == expected
    for fd in fds:
        os.close(fd)


def test_what_cannot_be_read_is_said_and_the_rest_is_read(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(range(100)))
    fd, closed = os.open(tmp_path / "file", os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)
    os.close(closed)
    buffer = np.zeros(60, np.uint8)
    got = pieces(
        [fd, closed, fd, fd, fd, fd, fd], [0, 0, 90, 200, 0, -5, 40], [10, 10, 20, 5, 30, 5, 0],
        [0, 10, 20, 40, 50, 0, 60], buffer,
    )  # fmt: skip
    assert got == [10, FAILED, 10, 0, FAILED, FAILED, 0]
    assert buffer[:10].tolist() == list(range(10)) and buffer[20:30].tolist() == list(range(90, 100))
    assert not buffer[10:20].any() and not buffer[30:].any()
    os.close(fd)
