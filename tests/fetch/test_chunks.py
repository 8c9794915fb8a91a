"""Chunks against brute force over bytes: where each row lies, how much is wanted of which chunk."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.refs import SAMPLE_REF
from gpuload.fetch.chunks import WHOLE_SHARE, spans, worth_whole

SIZES = [1000, 64, 999, -1]
"""Of the files; the last one is not cached."""

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 300)), max_size=12)


@given(ROWS, st.integers(1, 400))
def test_rows_lie_in_the_chunks_that_hold_their_bytes(rows, chunk_bytes):
    refs = np.array(rows, SAMPLE_REF)
    found = spans(refs, np.array(SIZES), chunk_bytes=chunk_bytes)
    chunks = found.chunks.tolist()
    wanted: dict[tuple[int, int], int] = {}
    for row, (file, offset, length) in enumerate(rows):
        cached = length > 0 and offset + length <= SIZES[file]
        numbers = sorted({byte // chunk_bytes for byte in range(offset, offset + length)}) if cached else []
        mine = chunks[found.first[row] : found.stop[row]]
        assert [(file, number) for number in numbers] == [chunk[:2] for chunk in mine]
        for byte in range(offset, offset + length) if cached else ():
            wanted[file, byte // chunk_bytes] = wanted.get((file, byte // chunk_bytes), 0) + 1
    assert {chunk[:2]: chunk[3] for chunk in chunks} == wanted
    for file, number, length, _ in chunks:
        assert length == len(range(SIZES[file])[number * chunk_bytes : (number + 1) * chunk_bytes])


def test_a_chunk_is_read_whole_where_enough_of_it_is_wanted():
    chunk_bytes, image = 8_000_000, 110_000
    enough = int(WHOLE_SHARE * chunk_bytes / image) + 1

    def of(images: int, distance: int) -> bool:
        refs = np.array([(0, i * distance, image) for i in range(images)], SAMPLE_REF)
        return bool(worth_whole(spans(refs, np.array([10**9]), chunk_bytes=chunk_bytes).chunks)[0])

    assert not of(1, image)  # a full shuffle
    assert not of(enough - 1, image) and of(enough, image)
    assert of(60, image)  # a block


def test_the_end_of_a_file_is_a_shorter_chunk():
    found = spans(np.array([(0, 950, 50)], SAMPLE_REF), np.array([1000]), chunk_bytes=300)
    assert found.chunks.tolist() == [(0, 3, 100, 50)] and worth_whole(found.chunks).tolist() == [True]
