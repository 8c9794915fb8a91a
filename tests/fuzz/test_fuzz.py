"""Damaged JPEGs against Pillow's verdict, some hundreds here and 20,000 in test-full; and that the fuzzer finds things.

What the fuzzer is made of is tested by breaking it: memory that is touched where it must not be, children that die or
stall, decoders that are wrong in each way that is looked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.core.batch import NEVER, DecodedRows, EncodedBatch, Target
from gpuload.core.geometry import Resampling
from gpuload.core.protocols import Resolve
from gpuload.decode.pillow import PillowDecoder
from tests.fuzz import bases, watchdog
from tests.fuzz.__main__ import main
from tests.fuzz.check import Checker
from tests.fuzz.mutate import KINDS, Mutant, mutant
from tests.fuzz.parts import joined, split

ROOT = Path(__file__).resolve().parents[2]


def fuzzed(count: int, summary: Path) -> dict[str, Any]:
    main(["--count", str(count), "--json", str(summary)])
    return json.loads(summary.read_text())


def assert_thorough(summary: dict[str, Any], count: int) -> None:
    """No finding; and every way that a file can take was taken often."""
    assert summary["findings"] == 0, summary["found"]
    assert summary["inputs"] + summary["left_out"] == count
    assert set(summary["kinds"]) == set(KINDS.values())
    outcomes: dict[str, int] = summary["outcomes"]
    for way in ("native", "left to Pillow", "rejected"):
        assert sum(n for outcome, n in outcomes.items() if outcome.startswith(way)) > 0.08 * summary["inputs"], way


def test_damaged_files_have_pillows_verdict_and_pixels(tmp_path: Path):
    assert_thorough(fuzzed(400, tmp_path / "summary.json"), 400)


@pytest.mark.full
def test_many_damaged_files_have_pillows_verdict_and_pixels(tmp_path: Path):
    assert_thorough(fuzzed(20_000, tmp_path / "summary.json"), 20_000)


@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.sampled_from([b"\xff\xd8", b"\xff\xda\0\3.", b"\xff\xc4\0", b"\xff"]))
    )
)
def test_the_parts_of_any_bytes_are_those_bytes(pieces: list[bytes]):
    data = b"".join(pieces)
    assert joined(split(data)) == data


def test_right_files_are_taken_apart_at_their_segments():
    for data in bases.generated().values():
        parts = split(data)
        assert joined(parts) == data and parts[0].marker == 0xD8 and parts[-1].marker == 0xD9
        assert {0xDB, 0xC4, 0xDA} <= {part.marker for part in parts}


def test_a_seed_gives_the_same_file_in_every_process():
    script = (
        "import hashlib; from tests.fuzz.mutate import mutant\n"
        "print(hashlib.sha256(b''.join(mutant(4 * seed).data for seed in range(100))).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    here = hashlib.sha256(b"".join(made.data for seed in range(100) if (made := mutant(4 * seed)))).hexdigest()
    assert other.stdout.strip() == here, other.stderr


def test_files_differ_from_seed_to_seed_and_from_what_they_were_made_of():
    made = [file for seed in range(2000) if (file := mutant(seed))]
    assert len({file.data for file in made}) > 0.97 * len(made)
    assert sum(file.data == bases.generated().get(file.base) for file in made) < 0.03 * len(made)
    assert {kind for file in made for kind in file.kinds} == set(KINDS.values())
    assert all(1 <= len(file.kinds) <= 6 for file in made)


@pytest.mark.parametrize(
    "memory, access",
    [
        ("ending_input(b'abc')", "ctypes.string_at(at + 3, 1)"),
        ("beginning_input(b'abc')", "ctypes.string_at(at - 1, 1)"),
        ("beginning_input(b'abc')", "ctypes.memset(at, 0, 1)"),
        ("ending_array((5, 7), np.int16)", "ctypes.memset(at + 70, 0, 1)"),
        ("allocate(4096)", "ctypes.memset(at + 4096, 0, 1)"),
        ("allocate(0)", "ctypes.memset(at, 0, 1)"),
    ],
)
def test_what_is_beyond_guarded_memory_cannot_be_touched(memory: str, access: str):
    script = (
        "import ctypes, numpy as np\nfrom tests.fuzz import guarded\n"
        f"array = guarded.{memory}\nat = array.ctypes.data\n"
        f"ctypes.string_at(at, array.nbytes)\nprint('so far', flush=True)\n{access}\nprint('too far')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV and done.stdout.split() == ["so", "far"], done.stderr


def child_that(act: str) -> Callable[[range], list[str]]:
    """A command whose child does `act` at seed 13 and answers to all others."""
    script = (
        "import os, sys, time\nprint('ready', flush=True)\nfor seed in range(*map(int, sys.argv[1:])):\n"
        f"    if seed == 13:\n        {act}\n"
        '    print(\'{"outcome": "native", "problems": [], "seed": %d}\' % seed, flush=True)\n'
    )
    return lambda seeds: [sys.executable, "-c", script, str(seeds.start), str(seeds.stop), str(seeds.step)]


@pytest.mark.parametrize(
    "act, said",
    [
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("sys.exit('gave up')", "ended with status 1\ngave up"),
        ("time.sleep(60)", "no result in"),
    ],
)
def test_the_seed_that_ends_or_stalls_a_child_is_named_and_the_rest_done(act: str, said: str):
    seen = list(watchdog.results(range(10, 20, 3), child_that(act), stall_s=0.5))
    assert [result["seed"] for result in seen] == [10, 13, 16, 19]
    assert [bool(result["problems"]) for result in seen] == [False, True, False, False]
    assert seen[1]["problems"][0].startswith(said)


def test_a_child_that_does_not_start_is_no_finding():
    with pytest.raises(RuntimeError, match="no such module"):
        list(watchdog.results(range(3), lambda seeds: [sys.executable, "-c", "raise SystemExit('no such module')"]))


Lie = Callable[[DecodedRows, "Target | None"], None]


class Lying(PillowDecoder):
    """Pillow, but for one thing."""

    def __init__(self, interpolation: str, lie: Lie):
        super().__init__(Resampling(interpolation))
        self._lie = lie

    def decode(
        self,
        encoded: EncodedBatch,
        rows: range,
        resolve: Resolve,
        target: Target | None = None,
        stop: np.ndarray = NEVER,
    ) -> DecodedRows:
        out = super().decode(encoded, rows, resolve)
        out.images = [None if image is None else image.copy() for image in out.images]
        self._lie(out, target)
        return out


def wrong_pixel(out: DecodedRows, target: Target | None) -> None:
    if out.images[0] is not None:
        out.images[0][-1, -1, 2] ^= 1


def wrong_shape(out: DecodedRows, target: Target | None) -> None:
    if out.images[0] is not None:
        out.images[0] = out.images[0][:, :, :2]


def too_lenient(out: DecodedRows, target: Target | None) -> None:
    if out.failures.pop(0, None):
        out.images[0] = np.zeros((4, 4, 3), np.uint8)


def silent(out: DecodedRows, target: Target | None) -> None:
    out.failures.clear()


def too_strict(out: DecodedRows, target: Target | None) -> None:
    out.images[0], out.failures[0] = None, ValueError("no")


def astray(out: DecodedRows, target: Target | None) -> None:
    if target is not None:
        target.array[2, 0, 0, 0] = 3


def wrongly_stored(out: DecodedRows, target: Target | None) -> None:
    if target is not None and out.images[0] is not None:
        out.images[0] = None
        out.stored.add(0)


GOOD, BAD = bases.generated()["420 33x40"], b"\xff\xd8\xff\xd9"


@pytest.mark.parametrize(
    "lie, data, said",
    [
        (wrong_pixel, GOOD, "1 of 40 x 33 pixels differ"),
        (wrong_shape, GOOD, "shape"),
        (too_strict, GOOD, "where Pillow decodes"),
        (too_lenient, BAD, "what Pillow rejects"),
        (silent, BAD, "no error where Pillow has"),
        (astray, BAD, "written outside the rows"),
        (wrongly_stored, GOOD, "pixels differ"),
    ],
)
def test_a_decoder_that_is_wrong_is_found(lie: Lie, data: bytes, said: str):
    file = Mutant(0, "", (), data)
    assert not Checker(lambda name: Lying(name, lambda out, target: None)).check(file).problems
    assert any(said in problem for problem in Checker(lambda name: Lying(name, lie)).check(file).problems)
