"""Segments of many images in one list decode to what each image decodes to alone; damage stays where it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpuload.kernels import decode_segments, entropy
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels.huffman import LIMITS, LONG, TABLE_SIZE, build_table, long_entry

from tests.kernels.segment_batch import SegmentBatch, Window, batch_of, every_kind
from tests.kernels.test_entropy import Scan, encoded, scan_of


def on_cpu(name: str, items: int, *arguments: int) -> None:
    getattr(decode_segments, name)(items, *arguments)


def run(batch: SegmentBatch) -> None:
    batch.run(on_cpu)
    for array in batch.written():
        array.assert_untouched_beside()


def some_window(scan: Scan, rng: np.random.Generator) -> Window:
    high = int(scan.header[jpeg.MCUS_HIGH])
    left, top = int(rng.integers(scan.wide)), int(rng.integers(high))
    return left, top, int(rng.integers(1, scan.wide - left + 1)), int(rng.integers(1, high - top + 1))


def some_windows(files: list[bytes], rng: np.random.Generator) -> list[Window]:
    return [some_window(scan, rng) for scan in map(scan_of, files) if scan is not None]


@pytest.mark.parametrize("restarts", [0, 1, 7])
@pytest.mark.parametrize("spacing", [1, 4, 9, 1000])
def test_every_image_of_a_batch_is_as_if_decoded_alone(restarts: int, spacing: int):
    rng = np.random.default_rng(spacing)
    files = every_kind(restarts)
    for windows in ([None] * len(files), some_windows(files, rng), some_windows(files, rng)):
        batch = batch_of(files, windows, spacing)
        run(batch)
        for image in range(len(files)):
            batch.assert_is_expected(image)


def test_segments_may_stand_in_any_order():
    files = every_kind()
    batch = batch_of(files, [None] * len(files), 5)
    batch.segments = np.random.default_rng(0).permutation(batch.segments)
    run(batch)
    for image in range(len(files)):
        batch.assert_is_expected(image)


def test_tables_are_those_of_the_cpu_wherever_their_definitions_lie():
    batch = batch_of(every_kind(), [None] * 7, 8)
    run(batch)
    assert len(batch.tables) > 4
    for (begin, is_ac), built in zip(batch.tables, batch.built.values.reshape(-1, TABLE_SIZE), strict=True):
        definition, expected = np.zeros(272, np.uint8), built.copy()
        behind = batch.definitions[begin : begin + 272]
        definition[: len(behind)] = behind
        symbols = int(definition[:16].sum(dtype=int))
        definition[16 + symbols :] = 0
        assert build_table(definition, bool(is_ac), expected) == 0
        assert np.array_equal(built, expected)


def definition_of(counts: dict[int, int], symbols: list[int] | None = None) -> np.ndarray:
    table = np.zeros(16, np.uint8)
    for length, count in counts.items():
        table[length - 1] = count
    known = list(range(int(table.sum(dtype=int)))) if symbols is None else symbols
    return np.concatenate([table, np.array(known, np.uint8)])


NO_CODES = {
    "more codes of one bit than there are": (definition_of({1: 3}), False),
    "a code of ones only": (definition_of({1: 2}), False),
    "more than 256 symbols": (definition_of({8: 255, 9: 255}, [0] * 255), True),
    "a DC difference of 16 bits": (definition_of({4: 1}, [16]), False),
}


@pytest.mark.parametrize("wrong", NO_CODES)
def test_a_definition_that_is_no_code_leaves_a_table_that_knows_none(wrong: str):
    definition, is_ac = NO_CODES[wrong]
    batch = batch_of([encoded(40, 24, "grey")], [None], 4)
    batch.definitions = np.concatenate([batch.definitions, definition])
    table = batch.images["ac" if is_ac else "dc"][0][0]
    batch.tables[table]["begin"] = len(batch.definitions) - len(definition)
    run(batch)
    built = batch.built.values.reshape(-1, TABLE_SIZE)[table]
    assert (built[:LIMITS] == LONG).all()
    for bits in np.random.default_rng(0).integers(0, 1 << 64, 200, np.uint64):
        assert long_entry(built, 0, bits) == 0
    assert batch.status.values.tolist() == [entropy.BAD_CODE]


@pytest.mark.parametrize("kept", [0, 1, 15, 16, 17, 27])
def test_a_definition_cut_short_is_none_whatever_memory_stands_behind(kept: int):
    batch = batch_of([encoded(40, 24, "grey")], [None], 4)
    begin, _ = batch.tables[batch.images["dc"][0][0]]
    assert batch.definitions[begin : begin + 16].sum() == 12
    whole = np.concatenate([batch.definitions, batch.definitions[begin : begin + 28]])
    batch.tables["begin"][batch.images["dc"][0][0]] = len(batch.definitions)
    batch.definitions = whole[: len(batch.definitions) + kept]
    run(batch)
    assert batch.status.values.tolist() == [entropy.BAD_CODE]


@pytest.mark.parametrize("begin", [1 << 31, (1 << 32) - 1])
def test_a_definition_far_outside_is_not_read(begin: int):
    batch = batch_of([encoded(40, 24, "grey")], [None], 4)
    batch.tables["begin"] = begin
    run(batch)
    assert batch.status.values.tolist() == [entropy.BAD_CODE]


def test_an_image_of_no_segments_is_clean_and_left_alone():
    batch = batch_of(every_kind(), [None] * 7, 8)
    batch.segments = batch.segments[batch.segments["image"] != 3]
    run(batch)
    coefficients, last = batch.decoded(3)
    assert (coefficients == batch.coefficients.poison).all() and (last == batch.last.poison).all()
    assert batch.status.values.tolist() == [0] * 7
    for image in (0, 1, 2, 4, 5, 6):
        batch.assert_is_expected(image)


def verdicts(batch: SegmentBatch, image: int) -> set[int]:
    """What the CPU's decoder says of each of an image's segments."""
    scan, found = batch.scans[image], set()
    layout = batch.layouts.values.reshape(-1, entropy.LAYOUT_SIZE)[image]
    blocks = int(batch.images["first_block"][image + 1] - batch.images["first_block"][image])
    outputs = np.zeros(blocks * 64, np.int16), np.zeros(blocks, np.uint8)
    for segment in batch.segments[batch.segments["image"] == image]:
        point = np.array([segment["byte"], segment["bit"], *segment["predictors"]], np.int64).astype(np.int32)
        first = int(segment["mcu"])
        found.add(
            entropy.decode_range(batch.data, layout, batch.built.values, point, first, first + int(segment["count"]), 0,
                                 np.zeros((0, 5), np.int32), *outputs)
        )  # fmt: skip
    assert scan.mcus == layout[0] * layout[1]
    return found


@pytest.mark.parametrize("seed", range(24))
def test_damaged_bytes_end_segments_and_touch_no_other_image(seed: int):
    rng = np.random.default_rng(seed)
    files = every_kind(restarts=int(rng.choice([0, 5])))
    batch = batch_of(files, some_windows(files, rng), int(rng.integers(1, 12)), seed)
    hurt = int(rng.integers(len(files)))
    mine = batch.segments[batch.segments["image"] == hurt]
    end = batch.segments["byte"][batch.segments["image"] > hurt].min(initial=len(batch.data) - 16)
    places = rng.integers(mine["byte"][0], end - 3, rng.integers(1, 30))
    batch.data[places] = rng.choice([0, 0xFF, 0xD9, 0xD0, *rng.integers(0, 256, 4)], len(places))
    run(batch)
    found = verdicts(batch, hurt)
    assert batch.status.values[hurt] in found - {0} or (found == {0} and batch.status.values[hurt] == 0)
    for image in set(range(len(files))) - {hurt}:
        batch.assert_is_expected(image)


@pytest.mark.parametrize(
    ("field", "value", "anomaly"),
    [
        ("byte", (1 << 32) - 1, entropy.ENDS_EARLY),
        ("byte", 1 << 31, entropy.ENDS_EARLY),
        ("byte", 1 << 20, entropy.ENDS_EARLY),
        ("mcu", (1 << 32) - 1, entropy.ENDS_EARLY),
        ("mcu", 1 << 31, entropy.ENDS_EARLY),
        ("count", (1 << 16) - 1, entropy.ENDS_EARLY),
        ("bit", (1 << 16) - 1, None),
        ("predictors", [32767, -32768, 32767], None),
    ],
)
def test_a_segment_that_cannot_be_is_an_anomaly_of_its_image(field: str, value: object, anomaly: int | None):
    files = every_kind()
    batch = batch_of(files, [None] * 7, 8)
    batch.segments[field][np.flatnonzero(batch.segments["image"] == 2)[1]] = value
    run(batch)
    assert batch.status.values[2] == anomaly if anomaly else batch.status.values[2] in verdicts(batch, 2)
    for image in (0, 1, 3, 4, 5, 6):
        batch.assert_is_expected(image)


def test_a_segment_of_no_mcus_is_nothing():
    batch = batch_of(every_kind(), [None] * 7, 8)
    batch.segments = np.concatenate([batch.segments, batch.segments[:1]])
    batch.segments["count"][-1] = 0
    run(batch)
    for image in range(7):
        batch.assert_is_expected(image)


def test_a_batch_of_noise_is_all_anomalies_and_writes_nothing_beside():
    rng = np.random.default_rng(0)
    batch = batch_of(every_kind(restarts=3), [None] * 7, 6)
    batch.data[:] = rng.integers(0, 256, len(batch.data))
    batch.segments["byte"] = rng.integers(0, len(batch.data) + 40, len(batch.segments))
    batch.segments["bit"] = rng.integers(0, 1 << 16, len(batch.segments))
    batch.definitions[:] = rng.integers(0, 256, len(batch.definitions))
    run(batch)
    assert (batch.status.values > 0).all() and (batch.status.values < len(entropy.ANOMALIES)).all()


def test_the_end_marker_must_stand_behind_the_last_mcu():
    batch = batch_of([encoded(40, 24, "grey")], [None], 4)
    assert batch.data[-18:-16].tolist() == [0xFF, 0xD9]
    batch.data[-17] = 0xD8
    run(batch)
    assert batch.status.values.tolist() == [entropy.NO_END]


def test_photographs_decode_as_if_alone(photos: Path):
    files = [path.read_bytes() for path in sorted(photos.rglob("*.JPEG"))[::17]]
    files = [file for file in files if scan_of(file) is not None]
    batch = batch_of(files, some_windows(files, np.random.default_rng(0)), 8)
    run(batch)
    assert len(files) > 10
    for image in range(len(files)):
        batch.assert_is_expected(image)
