"""Values that stages hand to each other: encoded bytes in one buffer, references, whole-image geometry."""

from __future__ import annotations

import numpy as np

from gpuload.core.batch import BatchPlan, join_encoded
from gpuload.core.geometry import GEOMETRY, identity
from gpuload.core.refs import SAMPLE_REF, WHOLE_FILE, whole_files


def test_buffers_of_every_kind_are_joined_in_order():
    parts = [b"abc", memoryview(b"de"), b"", np.frombuffer(b"fghi", np.uint8), bytearray(b"j")]
    failures: dict[int, BaseException] = {2: OSError("gone")}
    encoded = join_encoded(parts, ([1, 2, 3, 4, 5],), failures)
    assert [encoded.encoded(row).tobytes() for row in range(len(encoded))] == [bytes(part) for part in parts]
    assert encoded.data.tobytes() == b"abcdefghij"
    assert encoded.offsets.tolist() == [0, 3, 5, 5, 9] and encoded.lengths.tolist() == [3, 2, 0, 4, 1]
    assert encoded.columns == ([1, 2, 3, 4, 5],) and encoded.failures is failures


def test_no_buffers_at_all():
    encoded = join_encoded([])
    assert len(encoded) == 0 and encoded.data.size == 0 and encoded.failures == {}


def test_an_encoded_row_is_a_view():
    encoded = join_encoded([b"ab", b"cd"])
    assert np.shares_memory(encoded.encoded(1), encoded.data)


def test_the_length_of_a_plan_is_its_batchs():
    plan = BatchPlan(4, np.array([9, 9, 2]), np.arange(3))
    assert len(plan) == 3 and not plan.single


def test_whole_files_are_references_without_a_length():
    refs = whole_files(np.array([5, 0, 2]))
    assert refs.dtype == SAMPLE_REF
    assert refs["file"].tolist() == [5, 0, 2]
    assert refs["offset"].tolist() == [0, 0, 0] and refs["length"].tolist() == [WHOLE_FILE] * 3


def test_identity_keeps_whole_images():
    geometry = identity(np.array([7, 1]), np.array([5, 300]))
    assert geometry.dtype == GEOMETRY
    assert geometry["crop"].tolist() == geometry["window"].tolist() == [[0, 0, 7, 5], [0, 0, 1, 300]]
    assert geometry["resize"].tolist() == [[7, 5], [1, 300]]
    assert not geometry["flip_h"].any() and not geometry["flip_v"].any()
