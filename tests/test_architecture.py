"""The house's import rules, held over both trees, and what importing gpuload costs and needs.

The rules are DESIGN's: imports run one way, torch and optional packages stay where they are used.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpuload

ROOT = Path(__file__).resolve().parent.parent

FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(floor.split())
    for floor in (
        "core",
        "config",
        "sampling shards fetch decode augment device",
        "engine tune report",
        "loader",
        "cli testing",
    )
)
"""From the ground up. A room imports itself and lower floors, never a neighbour, but for STAIRS."""

STAIRS = {("report", "engine"), ("tune", "engine")}  # they draw and steer by the engine's snapshots
"""(importer, imported) of neighbours on one floor, in one direction only."""

LOADERS_ROOMS = {path.stem for path in (ROOT / "gpuload").glob("*.py")} - {"__init__", "__main__", "config", "loader"}
LOADERS_ROOMS |= {"adapters"}
"""What stands beside loader.py, on its floor: torch's signature, split by subject. They may import one another."""

TORCH = {"loader", "device", "cli", "testing", "augment.keyed_random", "augment.torchvision"} | LOADERS_ROOMS
KERNEL_CALLERS = {"decode", "augment.run", "batch_transform", "fetch.local", "shards.tfrecord", "shards.write_tfrecord"}
OPTIONAL = {"nvidia", "cupy", "pynvml", "torchvision", "psutil", "skimage", "sklearn", "accelerate", "timm"}
OPTIONAL |= {"pyarrow", "datasets", "zstandard", "aiohttp", "yarl", "botocore", "aiobotocore"}
DEPENDENCIES = {"numpy", "numba", "llvmlite", "torch", "fsspec", "PIL", "rich", "typer", "tomli"}
"""What pyproject.toml requires, by import name; llvmlite comes with numba, at the version that numba pins."""


@dataclass(frozen=True)
class Import:
    """`module` is imported by `importer` (dotted, without "gpuload."). eager: when the importer itself is imported."""

    importer: str
    module: str
    line: int
    eager: bool

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: imports {self.module}"


def imports_of(path: Path, importer: str) -> Iterator[Import]:
    """Every import in a file but those for the type checker alone."""

    def visit(node: ast.AST, eager: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from visit(other, eager)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno, eager)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: write absolute imports"
            for alias in node.names:  # `from gpuload.core import errors`: the last name may be a module
                yield Import(importer, f"{node.module}.{alias.name}", node.lineno, eager)
        inner = eager and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(path.read_text(), str(path)), True)


def all_imports(tree: str) -> list[Import]:
    found = []
    for path in sorted((ROOT / tree).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if tree == "gpuload":
            parts = parts[1:]
        found += imports_of(path, ".".join(p for p in parts if p != "__init__") or "gpuload")
    return found


GPULOAD = all_imports("gpuload")
KERNELS = all_imports("kernels")
BENCH = all_imports("bench") if (ROOT / "bench").is_dir() else []


def room(dotted: str) -> str:
    return dotted.split(".")[0]


def within(dotted: str, places: set[str]) -> bool:
    return any(dotted == place or dotted.startswith(place + ".") for place in places)


def floor_of(name: str) -> int:
    name = "loader" if name in LOADERS_ROOMS else "cli" if name == "__main__" else name
    floors = [number for number, floor in enumerate(FLOORS) if name in floor]
    assert floors, f"gpuload/{name} stands on no floor: give it a place in FLOORS (and in docs/design.md)"
    return floors[0]


def may_import(importer: str, imported: str) -> bool:
    """Whether one room of gpuload may import another."""
    if importer == imported or (importer, imported) in STAIRS | {("__main__", "cli")}:
        return True
    if {importer, imported} <= LOADERS_ROOMS | {"loader"}:
        return True
    return floor_of(imported) < floor_of(importer)


def internal(imports: list[Import]) -> Iterator[tuple[Import, str]]:
    """Imports of gpuload's own rooms, with the dotted path below gpuload."""
    for found in imports:
        if found.module.startswith("gpuload."):
            yield found, found.module.removeprefix("gpuload.")


def test_the_rule_itself_forbids_what_it_should():
    assert may_import("loader", "engine") and may_import("engine", "decode") and may_import("shards", "core")
    assert may_import("report", "engine") and may_import("loader", "sources") and may_import("cli", "loader")
    for importer, imported in [
        ("core", "config"), ("decode", "fetch"), ("augment", "decode"), ("fetch", "engine"), ("engine", "report"),
        ("engine", "loader"), ("loader", "cli"), ("sources", "cli"), ("device", "loader"), ("tune", "report"),
    ]:  # fmt: skip
        assert not may_import(importer, imported), (importer, imported)


def test_imports_inside_functions_and_of_submodules_are_seen(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("from gpuload.core import errors\ndef f():\n    import torch.utils.data\n")
    assert list(imports_of(file, "fetch.a")) == [
        Import("fetch.a", "gpuload.core.errors", 1, True),
        Import("fetch.a", "torch.utils.data", 3, False),
    ]


def test_imports_run_one_way():
    wrong = [
        str(found)
        for found, target in internal(GPULOAD)
        if found.importer != "gpuload" and room(target) != "kernels"
        and room(target) not in ("__version__", "DataLoader", "ShardDataset")
        and not may_import(room(found.importer), room(target))
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_only_decode_and_augment_run_import_kernels():
    wrong = [
        str(found)
        for found, target in internal(GPULOAD)
        if room(target) == "kernels" and not within(found.importer, KERNEL_CALLERS)
    ]
    assert not wrong, "\n".join(wrong)


def test_kernels_import_nothing_of_gpuload_but_kernels_and_never_torch():
    wrong = [str(found) for found, target in internal(KERNELS) if room(target) != "kernels"]
    wrong += [str(found) for found in KERNELS if room(found.module) in {"gpuload", "torch"} - {"gpuload"}]
    wrong += [str(found) for found in KERNELS if room(found.module) == "kernels"]
    assert not wrong, "\n".join(wrong)


def test_torch_is_imported_only_where_the_design_says():
    wrong = [str(found) for found in GPULOAD if room(found.module) == "torch" and not within(found.importer, TORCH)]
    assert not wrong, "\n".join(wrong)


def test_no_optional_package_is_imported_with_gpuload():
    wrong = [str(found) for found in GPULOAD + KERNELS if found.eager and room(found.module) in OPTIONAL]
    wrong += [str(found) for found in GPULOAD if found.eager and found.module.startswith("numba.cuda")]
    assert not wrong, "\n".join(wrong)


def test_every_package_that_is_imported_is_a_dependency_or_named_optional():
    known = DEPENDENCIES | OPTIONAL | {"gpuload", "__future__"} | set(sys.stdlib_module_names)
    wrong = [str(found) for found in GPULOAD + KERNELS if room(found.module) not in known]
    assert not wrong, "\n".join(wrong)


def test_bench_uses_the_public_api_only():
    public = {*gpuload.__all__, "__version__", "cli", "testing"}
    single_kernels = {"bench.gpu_jobs", "bench.gpu_kernels"}  # they launch one kernel at a time, which no loader does
    wrong = [
        str(found)
        for found, target in internal(BENCH)
        if room(target) not in public and found.importer not in single_kernels
    ]
    assert not wrong, "\n".join(wrong)


BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r} or name == "numba.cuda" or name.startswith("numba.cuda."):
            raise ImportError(f"blocked: {{name}}")
sys.meta_path.insert(0, Blocked())
"""


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_gpuload_imports_no_torch_and_no_numba():
    loaded = set(python("import sys, gpuload; print(*sys.modules)").split())
    heavy = {"torch", "numba", "numpy", "PIL", "fsspec", "rich", "typer", "tomli"}
    assert not {name.split(".")[0] for name in loaded} & heavy


def test_the_dataloader_costs_little_more_than_torch():
    """Names count, not seconds: what is heavy (compilers, decoders, terminals, event loops) waits until it is used."""
    extra = python(
        "import sys, torch, torch.utils.data\n"
        "before = set(sys.modules)\n"
        "import gpuload\n"
        "gpuload.DataLoader, gpuload.ShardDataset\n"
        "print(*(set(sys.modules) - before))"
    ).split()
    foreign = {name.split(".")[0] for name in extra if not name.startswith("gpuload")}
    heavy = {"numba", "llvmlite", "rich", "typer", "aiohttp"} | OPTIONAL - {"zstandard"}  # fsspec's own, where it is
    assert not foreign & heavy, sorted(foreign)
    assert len(extra) <= 150, sorted(extra)


@pytest.mark.parametrize("accelerated", [False, True])
def test_gpuload_works_with_every_optional_package_missing(accelerated, tmp_path):
    """Importing gpuload needs no GPU, no driver, no DALI and no CuPy, and neither does a batch."""
    program = BLOCK.format(blocked=OPTIONAL)
    if accelerated:
        program += f"""
from PIL import Image
from gpuload import DataLoader, ShardDataset
import pathlib
folder = pathlib.Path({str(tmp_path)!r}) / "kind"
folder.mkdir()
for number in range(3):
    Image.new("RGB", (33, 17), (number, 100, 200)).save(folder / f"{{number}}.jpg")
batches = list(DataLoader(ShardDataset(str(folder.parent)), batch_size=None, device="cpu"))
assert len(batches) == 3, batches
"""
    else:
        program += """
from gpuload import DataLoader
assert [batch.tolist() for batch in DataLoader(range(3), batch_size=2)] == [[0, 1], [2]]
"""
    python(program)


def test_the_design_page_names_files_and_tests_that_exist():
    named = set(re.findall(r"`((?:gpuload|kernels|tests)/[\w/.]+(?:::\w+)?)`", (ROOT / "docs/design.md").read_text()))
    assert len(named) > 10
    missing = []
    for name in sorted(named):
        path, _, test = name.partition("::")
        if not (ROOT / path).exists() or (test and f"def {test}(" not in (ROOT / path).read_text()):
            missing.append(name)
    assert not missing, missing
