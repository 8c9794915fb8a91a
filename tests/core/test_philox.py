"""Philox against the published answers and a scalar transcription of the paper; keys and draws built on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.philox import philox, sample_keys, split, uniforms

KNOWN_ANSWERS = (  # Random123's kat_vectors, philox4x32-10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
WORDS = st.integers(0, 2**32 - 1)
WIDE = 2**64


def scalar_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """One block in Python's integers, as the paper writes it."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        low, high = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (high >> 32) ^ b ^ k, high & 0xFFFFFFFF, (low >> 32) ^ d ^ m, low & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def scalar_key(seed: int, epoch: int, position: int) -> tuple[int, ...]:
    seed, epoch = seed % WIDE, epoch % WIDE
    return scalar_philox(
        (position & 0xFFFFFFFF, position >> 32, epoch & 0xFFFFFFFF, epoch >> 32), (seed & 0xFFFFFFFF, seed >> 32)
    )


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]):
    assert philox(np.array(counter, np.uint32), np.array(key, np.uint32)).tolist() == list(answer)
    assert scalar_philox(counter, key) == answer


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[WORDS] * 6), min_size=1, max_size=9))
def test_a_vector_of_blocks_is_block_by_block_the_scalar_one(words: list[tuple[int, ...]]):
    table = np.array(words, np.uint32)
    expected = [list(scalar_philox(row[:4], row[4:])) for row in words]
    assert philox(table[:, :4], table[:, 4:]).tolist() == expected


def test_one_key_serves_many_counters_and_the_output_keeps_their_shape():
    counter = np.arange(3 * 5 * 4, dtype=np.uint32).reshape(3, 5, 4)
    key = np.array([[[7, 8]], [[9, 10]], [[11, 12]]], np.uint32)
    made = philox(counter, key)
    assert made.shape == (3, 5, 4) and made.dtype == np.uint32
    assert made[2, 3].tolist() == list(scalar_philox(tuple(counter[2, 3].tolist()), (11, 12)))


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1, 2**32, 2**63 - 1])
def test_split_gives_low_and_high_words(value: int):
    low, high = split(np.array([value], np.int64))
    assert (int(low[0]), int(high[0])) == (value & 0xFFFFFFFF, value >> 32)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(-(2**70), 2**70),
    positions=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
)
def test_sample_keys_of_any_seed_and_epoch(seed: int, epoch: int, positions: list[int]):
    keys = sample_keys(seed=seed, epoch=epoch, positions=np.array(positions, np.int64))
    assert keys.dtype == np.uint32
    assert keys.tolist() == [list(scalar_key(seed, epoch, position)) for position in positions]


def test_keys_differ_between_seeds_epochs_and_positions():
    positions = np.concatenate([np.arange(500), 2**32 + np.arange(500)])
    keys = [
        sample_keys(seed=seed, epoch=epoch, positions=positions)
        for seed in (0, 1, -1, 2**32, 2**63)
        for epoch in (0, 1, 2**32)
    ]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 15 * 1000


def test_no_positions_give_no_keys():
    assert sample_keys(seed=3, epoch=0, positions=np.empty(0, np.int64)).shape == (0, 4)
    assert uniforms(np.empty((0, 4), np.uint32), stream=0, count=5).shape == (0, 5)


def test_uniforms_are_the_words_of_blocks_numbered_in_the_stream():
    keys = sample_keys(seed=11, epoch=2, positions=np.arange(3))
    drawn = uniforms(keys, stream=6, count=7)
    k = [int(word) for word in keys[1]]
    blocks = [scalar_philox((k[2], k[3], 6, block), (k[0], k[1])) for block in range(2)]
    assert drawn[1].tolist() == [word * 2.0**-32 for word in (*blocks[0], *blocks[1])][:7]


def test_a_draw_depends_on_its_own_key_and_stream_alone():
    keys = sample_keys(seed=4, epoch=0, positions=np.arange(9))
    whole = uniforms(keys, stream=2, count=22)
    assert np.array_equal(uniforms(keys[5:6], stream=2, count=3), whole[5:6, :3])
    assert not np.isin(uniforms(keys, stream=3, count=22), whole).any()


def test_draws_are_uniform_and_not_correlated():
    keys = sample_keys(seed=1, epoch=0, positions=np.arange(20_000))
    drawn = np.concatenate([uniforms(keys, stream=0, count=3), uniforms(keys, stream=1, count=2)], axis=1)
    assert drawn.min() >= 0 and drawn.max() < 1
    cells = 64
    for column in drawn.T:
        counts = np.bincount((column * cells).astype(int), minlength=cells)
        expected = len(column) / cells
        assert ((counts - expected) ** 2 / expected).sum() < cells - 1 + 4 * np.sqrt(2 * (cells - 1))
    off_diagonal = np.corrcoef(drawn.T)[~np.eye(5, dtype=bool)]
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(len(drawn))
