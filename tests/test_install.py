"""gpuload imports the same from a checkout, a wheel and an editable install; its extras can be installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

import gpuload

ROOT = Path(__file__).resolve().parent.parent
SITE = sysconfig.get_paths()["purelib"]
KEPT = (".py", ".cu", ".cuh")
PACKAGING = ("pyproject.toml", "README.md", "LICENSE", "gpuload", "kernels")


def load_install_tool():
    spec = importlib.util.spec_from_file_location("install_tool", ROOT / "tools" / "install.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


install = load_install_tool()


def run(*command: str, cwd: Path, path: str = "") -> str:
    """Standard output of a command with nothing of this checkout on its path, and no pip settings changed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PYTHONDONTWRITEBYTECODE": "1"}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments: str, cwd: Path, path: str = "") -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd, path=path)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, and of the folders beside it, so that builds leave nothing in the real checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in PACKAGING:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    for name in ("bench", "tests"):
        (copy / name).mkdir()
        (copy / name / "__init__.py").touch()
    return copy


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")  # setuptools leaves build/ and *.egg-info behind
    shutil.copytree(checkout, source, dirs_exist_ok=True)
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source), cwd=out)
    (built,) = out.glob("*.whl")
    return built


@dataclass(frozen=True)
class Installed:
    """One way to have gpuload: the folder whose `gpuload/` must be found, and how a Python finds it."""

    home: Path
    kernels: Path
    python: Callable[..., str]


def from_checkout(request: pytest.FixtureRequest, elsewhere: Path) -> Installed:
    checkout = request.getfixturevalue("checkout")
    # -S: no .pth file is read, so an editable install of this very project cannot help. The current folder is on the
    # path by itself, as for a person who types `python` in the project's root.
    return Installed(
        checkout / "gpuload",
        checkout / "kernels",
        lambda *a: run(sys.executable, "-S", *a, cwd=checkout, path=SITE),
    )


def from_wheel(request: pytest.FixtureRequest, elsewhere: Path) -> Installed:
    target = elsewhere / "site"
    wheel = str(request.getfixturevalue("wheel"))
    pip("install", "--quiet", "--no-deps", "--target", str(target), wheel, cwd=elsewhere)
    (target / "kernels").mkdir()  # PyPI has a popular package of that name: it must not be taken for ours
    (target / "kernels" / "__init__.py").write_text("raise SystemExit('the other package')")
    return Installed(
        target / "gpuload",
        target / "gpuload" / "kernels",
        lambda *a: run(sys.executable, "-S", *a, cwd=elsewhere, path=f"{target}{os.pathsep}{SITE}"),
    )


def from_editable(request: pytest.FixtureRequest, elsewhere: Path) -> Installed:
    source = elsewhere / "source"
    shutil.copytree(request.getfixturevalue("checkout"), source)
    venv = elsewhere / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=elsewhere)
    python = str(venv / "bin" / "python")
    pip(
        *("--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(source)),
        cwd=elsewhere,
        path=SITE,  # setuptools
    )
    # The dependencies come last on the path, and without their .pth files: where this very project is installed beside
    # them in the same way, its finder has the same name as the one under test.
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "zz_dependencies.pth").write_text(SITE)
    return Installed(source / "gpuload", source / "kernels", lambda *a: run(python, *a, cwd=elsewhere, path=""))


@pytest.fixture(scope="session", params=[from_checkout, from_wheel, from_editable], ids=lambda way: way.__name__)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return request.param(request, tmp_path_factory.mktemp("elsewhere"))


def test_the_package_and_its_kernels_are_found_where_they_belong(installed):
    found = installed.python(
        "-c",
        "import gpuload, gpuload.kernels, json\n"
        "print(json.dumps([gpuload.__file__, gpuload.kernels.__file__, gpuload.__version__]))",
    )
    package, kernels, version = json.loads(found)
    assert Path(package) == installed.home / "__init__.py"
    assert Path(kernels) == installed.kernels / "__init__.py"
    assert version == gpuload.__version__


def test_kernels_import_by_every_spelling_and_exist_once(installed):
    """`from gpuload import kernels`, importlib, find_spec, `python -m` and a pickle agree on one module."""
    name = next(p.stem for p in sorted((ROOT / "kernels").glob("[a-z]*.py")))
    found = installed.python(
        "-c",
        "import importlib, importlib.util, sys\n"
        f"spec = importlib.util.find_spec('gpuload.kernels.{name}')\n"
        "from gpuload import kernels\n"
        f"module = importlib.import_module('gpuload.kernels.{name}')\n"
        "import gpuload\n"
        f"assert kernels is gpuload.kernels is sys.modules['gpuload.kernels'] and kernels.{name} is module\n"
        "assert kernels.__spec__.name == 'gpuload.kernels' and spec.origin == module.__file__\n"
        "print(module.__file__)",
    )
    assert Path(found.strip()) == installed.kernels / f"{name}.py"
    installed.python("-m", f"gpuload.kernels.{name}")
    pickled = installed.python(
        "-c",
        f"import inspect, pickle\nfrom gpuload.kernels import {name} as module\n"
        "own = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]\n"
        "print(pickle.dumps(own[0]).hex(), module.__name__)",
    )
    data, home = pickled.split()
    loaded = f"import pickle; print(pickle.loads(bytes.fromhex('{data}')).__module__)"  # gpuload not yet imported there
    assert installed.python("-c", loaded).strip() == home


def test_nothing_else_of_the_checkout_becomes_part_of_the_package(installed):
    installed.python(
        "-c",
        "import importlib.util\n"
        "import gpuload\n"
        "found = [n for n in ('bench', 'tests', 'tools', 'docs') if importlib.util.find_spec('gpuload.' + n)]\n"
        "assert not found, found",
    )


def test_kernels_as_a_top_level_package_say_how_to_import_them(checkout):
    with pytest.raises(AssertionError, match=r"gpuload\.kernels, but it was imported as 'kernels'"):
        run(sys.executable, "-S", "-c", "import kernels", cwd=checkout)


def test_the_wheel_holds_both_trees_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    info = f"gpuload-{gpuload.__version__}.dist-info/"
    assert {name.split("/")[0] for name in names} == {"gpuload", info.rstrip("/")}
    sources = [p.relative_to(ROOT) for t in ("gpuload", "kernels") for p in (ROOT / t).rglob("*") if p.suffix in KEPT]
    expected = {p.as_posix() if p.parts[0] == "gpuload" else f"gpuload/{p.as_posix()}" for p in sources}
    assert {name for name in names if not name.startswith(info)} == expected | {"gpuload/py.typed"}
    assert f"{info}licenses/LICENSE" in names


def test_the_packages_listed_are_those_in_the_two_trees():
    """setuptools is told the list, since it cannot find `kernels/` by itself; this is what keeps the list whole."""
    text = (ROOT / "pyproject.toml").read_text()
    listed = text.split("packages = [")[1].split("]")[0].replace('"', "").replace(",", " ").split()
    folders = {p.parent.relative_to(ROOT) for tree in ("gpuload", "kernels") for p in (ROOT / tree).rglob("*.py")}
    missing = [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()]
    assert not missing, f"folders without __init__.py: {missing}"
    dotted = {".".join(folder.parts) for folder in folders}
    assert sorted(listed) == sorted(f"gpuload.{d}" if d.split(".")[0] == "kernels" else d for d in dotted)


@pytest.mark.parametrize(
    ("driver", "torch_cuda", "torch_installed", "extra", "torch"),
    [
        (None, 13, True, "dali", ""),  # a laptop: torch's PyPI build is a CUDA build everywhere
        (None, None, False, "dali", ""),
        (11, None, False, "dali", ""),
        (12, None, False, "cuda12", "torch>=2.6,<2.11"),
        (12, 12, True, "cuda12", ""),
        (12, 13, True, "cuda12", "torch>=2.6,<2.11"),  # that torch cannot run on this driver
        (13, None, False, "cuda13", "torch>=2.11"),
        (13, 13, True, "cuda13", ""),
        (13, 12, True, "cuda12", ""),  # a CUDA 13 driver runs CUDA 12 as well
        (13, None, True, "dali", ""),  # a CPU build of torch
        (13, 11, True, "cuda13", "torch>=2.11"),
        (14, 14, True, "cuda13", "torch>=2.11"),
        (14, 13, True, "cuda13", ""),
    ],
)
def test_the_cuda_extra_follows_torch_and_torch_follows_the_driver(driver, torch_cuda, torch_installed, extra, torch):
    choice = install.choose(driver, torch_cuda, torch_installed)
    assert (choice.extra, choice.torch) == (extra, torch)


def test_torchs_cuda_is_read_without_importing_torch():
    import torch

    text = Path(torch.__file__).with_name("version.py").read_text()
    built_for = torch.version.cuda
    assert install.torch_cuda_major(text) == (int(built_for.split(".")[0]) if built_for else None)
    assert install.torch_cuda_major("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\n") is None
    assert install.torch_cuda_major("cuda: Optional[str] = '12.8'\n") == 12


@pytest.mark.full
@pytest.mark.parametrize(
    ("extra", "torch"),
    [
        ("cuda12", "torch==2.10.0"),  # the newest on PyPI built for CUDA 12
        ("cuda12", "torch==2.6.0"),
        ("cuda13", "torch==2.14.1"),
        ("cuda13", "torch==2.11.0"),  # the oldest on PyPI built for CUDA 13
        ("cuda12,bench,dev", "torch>=2.6,<2.11"),
        ("dali,bench,demo,dev,ptx,frameworks,formats,s3,servers,peers", "torch"),
    ],
)
def test_every_extra_resolves_with_the_torch_it_is_for(wheel, tmp_path, extra, torch):
    report = tmp_path / "report.json"
    pip(
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), torch, f"{wheel}[{extra}]"),
        cwd=tmp_path,
    )
    metadata = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    chosen = {entry["name"].lower(): entry["version"] for entry in metadata}
    if extra.startswith("cuda"):
        major = int(extra[4:6])
        assert int(chosen["cuda-bindings"].split(".")[0]) == major
        assert f"cupy-cuda{major}x" in chosen and f"nvidia-dali-cuda{major}0" in chosen
        assert any(name.endswith("-cu12") for name in chosen if name.startswith("nvidia-cudnn")) == (major == 12)
    else:
        assert "nvidia-dali-cuda120" in chosen and "cupy-cuda12x" not in chosen


def named(requirements: Iterable[str]) -> set[str]:
    """The packages in these requirements, as pip compares names."""
    return {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower() for line in requirements}


@pytest.mark.full
def test_what_tensorflow_imports_is_in_the_extra_that_leaves_its_dependencies_out():
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow-cpu is not installed: it has wheels for Linux on x86-64 only")
    assert "tensorflow-cpu" in named(install.WITHOUT_DEPENDENCIES["peers"])
    code = "import sys, tensorflow as tf; list(tf.data.TFRecordDataset([])); print(*sys.modules)"
    imported = {module.split(".")[0] for module in run(sys.executable, "-c", code, cwd=ROOT).split()}
    distributions = metadata.packages_distributions()
    used = named(name for module in imported for name in distributions.get(module, []))
    asked = named(line for line in metadata.requires("tensorflow-cpu") if "extra ==" not in line)
    text = (ROOT / "pyproject.toml").read_text()
    lists = (
        re.search(r"\ndependencies = \[(.*?)\n\]", text, re.DOTALL),
        re.search(r"\npeers = \[(.*?)\n\]", text, re.DOTALL),
    )
    given = named(line for found in lists for line in re.findall(r'^ *"([^"]+)"', found[1], re.MULTILINE))
    assert used & asked and used & asked <= given, used & asked - given


def test_every_extra_is_among_those_resolved():
    text = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = {line.split(" = [")[0] for line in text.splitlines() if " = [" in line}
    resolved = test_every_extra_resolves_with_the_torch_it_is_for.pytestmark
    (cases,) = [mark.args[1] for mark in resolved if mark.name == "parametrize"]
    assert extras == {name for extra, _ in cases for name in extra.split(",")}
