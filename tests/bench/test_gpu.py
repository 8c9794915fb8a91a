"""The proof on a GPU without one: its order, its time, its lines, its table and its exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, gpu_section
from bench.gpu_report import AIMS, Aim, Journal, exit_code, facts, number, table
from bench.gpu_section import SECTIONS, Bench, Section, rows_of

ROOT = Path(__file__).resolve().parents[2]


def test_all_sections_together_fit_into_nine_minutes():
    assert sum(section.limit_s for section in SECTIONS) + gpu.MAKING_S <= gpu.LIMIT_S <= 9 * 60
    assert all(0 < section.share < 1 for section in SECTIONS)


def test_what_must_be_right_comes_before_how_fast_it_is():
    names = [section.name for section in SECTIONS]
    assert names == ["machine", "kernels", "batches", "streams", "memory", "interop", "speed", "training"]


def test_chosen_sections_keep_their_order_and_the_machine_is_always_there():
    assert [section.name for section in gpu.chosen("speed, kernels")] == ["machine", "kernels", "speed"]
    assert gpu.chosen("") == list(SECTIONS)
    with pytest.raises(ValueError, match="no section peed; there are machine, kernels"):
        gpu.chosen("speed,peed")


def test_without_a_gpu_it_says_what_was_not_checked_and_ends_with_code_2(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "no_gpu", lambda: "no CUDA GPU that this torch can use")
    out = io.StringIO()
    assert gpu.main(["--sections", "kernels"], out) == 2
    assert out.getvalue().startswith("gpu-check: no CUDA GPU")
    assert "nothing was checked: machine, kernels" in out.getvalue()


def test_an_unknown_section_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        gpu.main(["--sections", "seed"])
    assert "no section seed" in capsys.readouterr().err


ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"rich", "typer", "psutil", "cupy", "pynvml", "skimage"} or name == "nvidia.dali":
            raise ModuleNotFoundError(f"absent: {name}")
sys.meta_path.insert(0, Absent())
"""


def test_it_needs_none_of_what_a_bare_checkout_has_not():
    files = sorted(path.stem for path in (ROOT / "bench").glob("gpu*.py"))
    assert len(files) > 10
    program = ABSENT + "".join(f"import bench.{file}\n" for file in files)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# ---- processes


def lines_until_error(command: list[str], limit_s: float) -> tuple[list[dict[str, Any]], Exception]:
    lines = []
    try:
        for line in gpu.run(command, limit_s=limit_s):
            lines.append(line)
    except Exception as error:
        return lines, error
    raise AssertionError("it came to its end")


def dies(pid: int) -> bool:
    """Whether a process that was killed is gone: the kernel takes its time, ten seconds at most."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_process_that_hangs_is_killed_with_its_children_and_its_lines_are_kept():
    lines, error = lines_until_error(["sh", "-c", 'sleep 600 & echo "{\\"pid\\": $!}"; wait'], 1.0)
    assert isinstance(error, TimeoutError)
    assert len(lines) == 1
    assert dies(lines[0]["pid"])


def test_a_process_that_dies_is_an_error_and_its_lines_are_kept():
    lines, error = lines_until_error(["sh", "-c", "echo '{\"row\": 1}'; kill -SEGV $$"], 60.0)
    assert lines == [{"row": 1}]
    assert isinstance(error, ChildProcessError) and "-11" in str(error)


def test_a_process_is_killed_when_nobody_reads_on():
    lines = gpu.run(["sh", "-c", 'echo "{\\"pid\\": $$}"; sleep 600'], limit_s=60.0)
    pid = next(lines)["pid"]
    lines.close()  # type: ignore[attr-defined]
    assert dies(pid)


def test_a_section_that_is_killed_leaves_its_rows_and_one_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def run(command: Any, *, limit_s: float) -> Iterator[dict[str, Any]]:
        assert limit_s == 7
        yield {"section": "machine", "row": "environment", "passed": None, "gpu": "H", "driver": "580", "versions": {}}
        raise TimeoutError("killed after 7 s")

    monkeypatch.setattr(gpu, "run", run)
    journal = Journal(io.StringIO(), None)
    assert not gpu.run_section(SECTIONS[0], tmp_path, left_s=7, journal=journal)
    assert [line["row"] for line in journal.lines] == ["environment", "end"]
    assert journal.lines[-1]["passed"] is False
    assert journal.common == {"gpu": "H", "driver": "580", "versions": {}}


def test_a_section_for_which_no_time_is_left_is_left_out(tmp_path: Path):
    journal = Journal(io.StringIO(), None)
    assert not gpu.run_section(SECTIONS[-1], tmp_path, left_s=0.5, journal=journal)
    assert journal.lines[-1]["left_out"] == "no time left"


def test_a_section_in_a_process_prints_json_alone_and_goes_on_after_an_error(bench: Bench):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "bench.gpu_section", "interop", "--data", str(bench.classes.parent)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["section"] for row in rows] == 4 * ["interop"]
    assert [row["row"] for row in rows][0] == "CuPy, DLPack"
    assert not any(row["passed"] for row in rows)


def test_a_section_that_cannot_be_imported_is_a_row(bench: Bench):
    (row,) = rows_of(Section("x", "bench.no_such_file.rows", 1), bench)
    assert row["row"] == "all" and row["passed"] is False and "no_such_file" in row["error"]


def test_a_row_that_raises_is_a_row_and_one_without_time_is_left_out(bench: Bench):
    row = bench.tried("division", lambda: {"passed": 1 / 0 > 0})
    assert row["passed"] is False and row["error"].startswith("ZeroDivisionError")
    late = gpu_section.bench_of(bench.classes.parent, seconds=-1)
    assert late.tried("division", lambda: {"passed": 1 / 0 > 0})["left_out"] == "no time left"


# ---- lines and table


def test_lines_are_written_as_they_come_with_what_is_common_to_them(tmp_path: Path):
    out, file = io.StringIO(), tmp_path / "lines.jsonl"
    journal = Journal(out, file, {"at": "now"})
    journal.add({"section": "a", "row": "b", "passed": True})
    assert json.loads(file.read_text()) == {"section": "a", "row": "b", "passed": True, "at": "now"}
    journal.common["gpu"] = "H200"
    journal.add({"section": "a", "row": "c", "passed": None})
    assert out.getvalue() == file.read_text()
    assert json.loads(out.getvalue().splitlines()[1])["gpu"] == "H200"


def test_the_table_shows_verdicts_facts_and_aims():
    text = table(
        [
            {"section": "kernels", "row": "store", "passed": True, "launches": 4, "took_s": 3.2},
            {"section": "speed", "row": "dali", "passed": None, "left_out": "absent: pip install"},
            {"section": "speed", "row": "gpuload native", "round": 0, "passed": None, "images_per_s": 1.0},
            {"section": "speed", "row": "gpuload native", "passed": None, "images_per_s": 41_250.4},
            {"section": "batches", "row": "eval", "passed": False, "error": "RuntimeError: x", "decoders": {"cpu": 3}},
        ]
    )
    lines = text.splitlines()
    assert lines[0].split() == ["ok", "kernels:", "store", "launches", "4"]
    assert lines[1].split(maxsplit=3) == ["-", "speed:", "dali", "absent: pip install"]
    assert lines[2].endswith("images_per_s 41,250")
    assert lines[3].startswith("FAILED") and lines[3].endswith("RuntimeError: x, decoders {cpu 3}")
    assert lines[4] == ""
    assert "speed: gpuload native: images_per_s 41,250: aim >= 40,000 met" in lines
    assert "speed: gpuload native: ratio_to_dali: not measured" in lines
    assert len(lines) == 5 + len(AIMS)


def test_an_aim_is_met_at_its_bound():
    assert Aim("a", "b", "c", 2, at_least=True).met(2) and not Aim("a", "b", "c", 2, at_least=True).met(1.99)
    assert Aim("a", "b", "c", 0.1).met(0.1) and "MISSED" in Aim("a", "b", "c", 0.1).text(0.11)


@pytest.mark.parametrize(
    ("value", "text"), [(41250.4, "41,250"), (0.08734, "0.08734"), (3, "3"), (12345, "12,345"), (0.1, "0.1")]
)
def test_numbers(value: float, text: str):
    assert number(value) == text


def test_facts_leave_out_what_stands_elsewhere():
    line = {"section": "a", "row": "b", "passed": None, "took_s": 1.0, "places": [1, 2.5], "right": True, "none": None}
    assert facts(line) == "places [1, 2.5], right True, none None"


@pytest.mark.parametrize(
    ("passed", "whole", "code"),
    [([True, None], True, 0), ([True, False], True, 1), ([True], False, 1), ([], True, 1)],
)
def test_the_exit_code_is_0_only_where_everything_was_checked_and_right(passed: list[Any], whole: bool, code: int):
    assert exit_code([{"passed": one} for one in passed], whole=whole) == code
