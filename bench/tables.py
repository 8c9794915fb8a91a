"""The tables in docs/ that are made of bench/results/: what a page shows is what a run recorded, lost rows included.

Command:  python -m bench.tables [--check]
          Writes each table between its markers, `<!-- table: NAME -->` and `<!-- end of table -->`; --check only says,
          by its exit code, whether a page differs from its results.

Owns which results a table shows and how. A page's text around it, and what the figures mean, are the page's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGES = ROOT / "bench" / "results", ROOT / "docs"
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Line = Mapping[str, Any]


def lines_of(name: str) -> list[Line]:
    """The lines of a results file, oldest first; none where there is no such file yet."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def last_run(lines: Sequence[Line]) -> list[Line]:
    """The lines that were written together at the end."""
    return [line for line in lines if line["at"] == lines[-1]["at"]] if lines else []


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is left-aligned, the others right."""
    aligned = ["---", *("---:" for _ in head[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, aligned, *rows))


def measured_on(line: Line) -> str:
    """The sentence below a table."""
    machine, versions = line["machine"], line["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "dali", "gpuload") if versions.get(name))
    gpu = machine["gpu"] or "no GPU"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {gpu}; {named}, commit {versions['commit']}; {line['at'][:10]}."
    )


def loaders() -> str:
    """The last comparison of loaders, a row for each, timed or not."""
    run = last_run(lines_of("loaders"))
    keys: list[tuple[str, str, Callable[[Any], str]]] = [
        ("x torch", "ratio_to_torch", "{:.2f}".format),
        ("starved", "starved_pct", "{:.1f}%".format),
        ("p99 wait", "wait_p99_s", milliseconds),
        ("first batch", "first_batch_s", milliseconds),
        ("boundary", "epoch_boundary_s", milliseconds),
        ("cold images/s", "cold_images_per_s", "{:.0f}".format),
        ("CPU s per 1000", "cpu_s_per_1000", "{:.2f}".format),
        ("MB", "peak_rss_mb", "{:.0f}".format),
        ("pixels", "pixel_difference", "{:.2f}".format),
    ]
    keys = [column for column in keys if any(line.get(column[1]) is not None for line in run)]
    trained = any(line.get("training") for line in run)
    head = ["loader", "images/s", *(name for name, _, _ in keys), *(["model waits", "step x resident"] * trained)]
    rows = []
    for line in run:
        if line["not_timed"]:
            rows.append([f"`{line['loader']}`", line["not_timed"].replace("|", "\\|"), *[""] * (len(head) - 2)])
            continue
        low, high = line["ranges"]["images_per_s"]
        cells = [f"`{line['loader']}`", f"{line['images_per_s']:.0f} ({low:.0f}-{high:.0f})"]
        cells += ["" if line.get(key) is None else wording(line[key]) for _, key, wording in keys]
        rows.append(cells + (training_cells(line.get("training")) if trained else []))
    asked = run[0]["parameters"]
    how = (
        f"{asked['samples']} photographs, RandomResizedCrop({asked['size']}), flip, normalise, batch "
        f"{asked['batch_size']}, {asked['workers']} workers or threads, {asked['rounds']} rounds of "
        f"{asked['round_images']} images, timed step {asked['step_ms']:.0f} ms"
    )
    return f"{markdown(head, rows)}\n{how}. {measured_on(run[0])}\n"


def training_cells(training: Mapping[str, Any] | None) -> list[str]:
    if training is None:
        return ["", ""]
    inflation = training["step_inflation"]
    return [f"{training['waited_pct']:.1f}%", "" if inflation is None else f"{inflation:.2f}"]


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def history() -> str:
    """Every recorded comparison: the ratio to torch's loader of each of gpuload's rows and of DALI's."""
    lines = lines_of("loaders")
    names = list(dict.fromkeys(line["loader"] for line in lines if line["loader"] != "torch"))
    rows = []
    for at in dict.fromkeys(line["at"] for line in lines):
        run = {line["loader"]: line for line in lines if line["at"] == at}
        cells = [f"{run[n]['ratio_to_torch']:.2f}" if n in run and run[n]["ratio_to_torch"] else "" for n in names]
        commit = next(iter(run.values()))["versions"]["commit"]
        rows.append([f"{at[:10]}, {commit}", f"{run['torch']['images_per_s']:.0f}", *cells])
    return markdown(["run", "torch, images/s", *(f"`{name}`" for name in names)], rows)


def jpeg() -> str:
    """The JPEG engine: the last line of each case, those below 1 too."""
    cases = {line["case"]: line for line in lines_of("jpeg") if "what" in line}
    rows = [
        [
            line["what"], f"{line['ratio']:.2f}", f"{line['ratios'][0]:.2f} to {line['ratios'][1]:.2f}",
            figure(line["ours"]), figure(line["theirs"]), line["unit"],
        ]
        for line in cases.values()
    ]  # fmt: skip
    head = ["case; the other", "ratio", "range", "gpuload", "the other", "unit"]
    return f"{markdown(head, rows)}\n{measured_on(next(iter(cases.values())))}\n"


def storage() -> str:
    """The last comparison of storages, both ways each."""
    run = last_run(lines_of("storage"))
    if not run:
        return "No run has been recorded yet.\n"
    rows = []
    for line in run:
        if line["not_timed"]:
            rows.append([line["storage"], line["way"], line["not_timed"].replace("|", "\\|"), *[""] * 4])
            continue
        copied = f"{line['copied_s']:.1f} s" if line["total_bytes"] else ""
        rows.append(
            [line["storage"], line["way"], copied, f"{line['first_batch_s']:.2f} s", f"{line['all_images_s']:.2f} s",
             str(line["images"]), f"{line['images_per_s']:.0f}"]
        )  # fmt: skip
    head = ["storage", "way", "copied after", "first batch", "all images after", "images", "images/s"]
    return f"{markdown(head, rows)}\n{measured_on(run[0])}\n"


def tuning() -> str:
    """The last line of each pipeline, with what it missed."""
    lines = {line["pipeline"]: line for line in lines_of("tuning")}
    if not lines:
        return "No run has been recorded yet.\n"
    rows = []
    for line in lines.values():
        starved = f"{100 * line['starved_30ms']:.1f}%"
        rows.append(
            [line["pipeline"], f"{line['predicted']:.0f}", f"{line['verified']:.0f}",
             f"{100 * (line['predicted'] / line['verified'] - 1):+.0f}%", f"{line['online'] / line['best_fixed']:.2f}",
             starved if line["feedable"] else f"({starved})", "; ".join(line["missed"])]
        )  # fmt: skip
    head = ["pipeline", "predicted", "verified", "apart", "online / best fixed", "starved at 30 ms", "missed"]
    return f"{markdown(head, rows)}\n{measured_on(next(reversed(lines.values())))}\n"


def figures(name: str) -> str:
    """The last run of a benchmark of bench/figures.py, each figure with the bound that is promised."""
    lines = lines_of(name)
    if not lines:
        return "No run has been recorded yet.\n"
    rows = []
    for what, found in lines[-1]["figures"].items():
        value, above, below = found["value"], found.get("above"), found["below"]
        bounds = [f"at least {above:.4g}"] if above is not None else []
        bounds += [f"at most {below:.4g}"] if below is not None else []
        missed = (above is not None and value < above) or (below is not None and value > below)
        rows.append([what, f"{value:.4g} {found['unit']}".strip(), ", ".join(bounds), "missed" if missed else ""])
    return f"{markdown(['figure', 'value', 'bound', ''], rows)}\n{measured_on(lines[-1])}\n"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


TABLES: Mapping[str, Callable[[], str]] = {
    "loaders": loaders,
    "loaders-history": history,
    "jpeg": jpeg,
    "storage": storage,
    "tuning": tuning,
    "order": partial(figures, "order"),
    "remote": partial(figures, "remote"),
    "packing": partial(figures, "packing"),
}


def filled(text: str) -> str:
    """The page with each of its tables made anew. Raises KeyError for a table that TABLES does not know."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main(argv: Sequence[str]) -> int:
    """Writes the pages, or compares them. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 where a page differs")
    asked = parser.parse_args(argv)
    differ = []
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text()
        made = filled(text)
        if made != text:
            differ.append(path.relative_to(ROOT))
            if not asked.check:
                path.write_text(made)
    for path in differ:
        sys.stdout.write(f"{path}: {'differs from its results' if asked.check else 'written'}\n")
    return 1 if asked.check and differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
