"""Merged ranges bring every row's bytes to where the plan says, whatever the rows and the knobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.refs import SAMPLE_REF, WHOLE_FILE
from gpuload.fetch.coalesce import coalesce, with_sizes

FILES = [
    np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes() for seed, size in enumerate([997, 64, 1])
]


@st.composite
def refs_of_files(draw) -> np.ndarray:
    rows = []
    for _ in range(draw(st.integers(0, 24))):
        file = draw(st.integers(0, len(FILES) - 1))
        if draw(st.integers(0, 5)) == 0:
            rows.append((file, 0, WHOLE_FILE))
        else:
            begin = draw(st.integers(0, len(FILES[file])))
            rows.append((file, begin, draw(st.integers(0, len(FILES[file]) - begin))))
    return np.array(rows, SAMPLE_REF)


@settings(max_examples=250, deadline=None)
@given(refs_of_files(), st.integers(0, 200), st.integers(1, 1200))
def test_every_row_gets_its_bytes(refs, gap_bytes, max_range_bytes):
    plan = coalesce(refs, gap_bytes=gap_bytes, max_range_bytes=max_range_bytes)
    whole = plan.ranges["whole"]
    assert (plan.ranges["length"][whole] == WHOLE_FILE).all() and (plan.ranges["length"][~whole] >= 0).all()
    plan = with_sizes(plan, np.array([len(FILES[file]) for file in plan.ranges["file"][whole]], np.int64))

    buffer = bytearray(plan.total_bytes)
    served = []
    for file, offset, length, at, first, stop, _ in plan.ranges.tolist():
        assert at + length <= plan.total_bytes and stop > first
        buffer[at : at + length] = FILES[file][offset : offset + length]
        served += plan.rows[first:stop].tolist()
    assert sorted(served) == list(range(len(refs)))
    assert plan.total_bytes == plan.ranges["length"].sum()
    for row, (file, offset, length) in enumerate(refs.tolist()):
        expected = FILES[file] if length == WHOLE_FILE else FILES[file][offset : offset + length]
        assert buffer[plan.offsets[row] : plan.offsets[row] + plan.lengths[row]] == expected


@settings(max_examples=100, deadline=None)
@given(refs_of_files(), st.integers(0, 200), st.integers(1, 1200))
def test_a_range_is_longer_than_the_maximum_only_for_one_sample(refs, gap_bytes, max_range_bytes):
    plan = coalesce(refs, gap_bytes=gap_bytes, max_range_bytes=max_range_bytes)
    for _, _, length, _, first, stop, whole in plan.ranges.tolist():
        assert whole or length <= max_range_bytes or stop - first == 1
        assert not whole or stop - first == 1


def in_a_row(n: int, length: int, gap: int) -> np.ndarray:
    refs = np.zeros(n, SAMPLE_REF)
    refs["offset"], refs["length"] = np.arange(n) * (length + gap), length
    return refs


def test_sequential_samples_are_one_read_and_the_gap_decides():
    refs = in_a_row(10, 100, 20)
    assert len(coalesce(refs, gap_bytes=20, max_range_bytes=10_000).ranges) == 1
    assert len(coalesce(refs, gap_bytes=19, max_range_bytes=10_000).ranges) == 10


def test_order_of_rows_does_not_change_what_is_read():
    refs = in_a_row(64, 1000, 512)
    shuffled = np.random.default_rng(3).permutation(64)
    plan, other = (coalesce(r, gap_bytes=512, max_range_bytes=8000) for r in (refs, refs[shuffled]))
    assert (plan.ranges == other.ranges).all()
    assert (plan.offsets[shuffled] == other.offsets).all()


def test_the_same_sample_twice_is_read_once():
    refs = np.repeat(in_a_row(1, 500, 0), 3)
    plan = coalesce(refs, gap_bytes=0, max_range_bytes=1000)
    assert len(plan.ranges) == 1 and plan.total_bytes == 500


def test_long_runs_are_cut_where_the_maximum_is_reached():
    plan = coalesce(in_a_row(10, 100, 0), gap_bytes=0, max_range_bytes=300)
    assert plan.ranges["length"].tolist() == [300, 300, 300, 100]


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (0, -2)])
def test_what_is_no_range_is_refused(offset, length):
    refs = np.array([(0, 0, 5), (0, offset, length)], SAMPLE_REF)
    with pytest.raises(ValueError, match=f"row 1 .*{offset}, length {length}"):
        coalesce(refs, gap_bytes=0, max_range_bytes=10)
