"""docs/migrating.md: what can run of it here does, and what it calls accelerated is; the rest is at least Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageOps

import gpuload
from gpuload.cli.pack import pack
from tests.conformance.sample_data import COUNT, write_images

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "migrating.md").read_text()
HERE = {"torch", "torchvision", "gpuload"}
"""What is installed wherever the tests run."""
BATCH = 8
READERS = ("torch's DataLoader", "torchvision and timm", "WebDataset", "DALI", "FFCV", "MosaicML Streaming", "LitData")


@dataclass(frozen=True)
class Block:
    """One block of code. section: the heading above it; kind: its first line, "before" or "after" where it says so."""

    section: str
    kind: str
    source: str

    @property
    def needs(self) -> set[str]:
        """Top-level packages that it imports."""
        found = [node for node in ast.walk(ast.parse(self.source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        froms = {node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
        names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
        return {name.partition(".")[0] for name in froms | names}

    def run(self, names: dict[str, Any]) -> None:
        """As it stands, but with batches and workers for the few images of a test."""
        exec(self.source.replace("256", str(BATCH)).replace("num_workers=8", "num_workers=1"), names)


def blocks() -> Iterator[Block]:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        section = part.partition("\n")[0]
        for source in re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL):
            kind = re.match(r"# (before|after)", source)
            yield Block(section, kind[1] if kind else "", source)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A folder that holds what the page speaks of, as the current one; and the names that it takes for granted."""
    (tmp_path / "train").mkdir()
    write_images(tmp_path / "train")
    pack(str(tmp_path / "train"), str(tmp_path / "shards"), name="train", shard_size="32kB")
    monkeypatch.chdir(tmp_path)
    files = sorted((tmp_path / "train").rglob("*.jpg"))
    names: dict[str, Any] = {"records": [{"image": path.read_bytes(), "label": 0} for path in files]}
    next(blocks()).run(names)
    yield names
    names.clear()  # classes that the blocks define keep it, and with it loaders and their threads


def check(block: Block, names: dict[str, Any]) -> None:
    """Run it; its loader gives a batch and, if it is ours, on the accelerated path."""
    block.run(names)
    images, labels = next(iter(names["loader"]))
    assert images.shape == (BATCH, 3, 224, 224) and images.isfinite().all() and len(labels) == BATCH
    if block.kind != "before":
        assert type(names["loader"]) is gpuload.DataLoader
        stats = names["loader"].stats()
        assert stats.path == "accelerated", stats.reasons


@pytest.mark.parametrize("section", sorted({block.section for block in blocks()}))
def test_every_block_that_can_run_here_does_and_loaders_of_ours_are_accelerated(section: str, there: dict[str, Any]):
    for block in blocks():
        if block.section == section and block.needs <= HERE:
            check(block, there)


@pytest.mark.full
@pytest.mark.parametrize("package", ["timm", "webdataset"])
def test_the_blocks_of_packages_that_need_no_gpu_run_too(package: str, there: dict[str, Any], monkeypatch):
    pytest.importorskip(package)
    posterize = ImageOps.posterize  # timm draws 0 bits at times, which Pillow refuses since 13
    monkeypatch.setattr(ImageOps, "posterize", lambda image, bits: posterize(image, max(1, bits)))
    mine = [block for block in blocks() if package in block.needs]
    assert mine
    for block in mine:
        if "create_loader" in block.source:  # which else wants a GPU
            block = replace(
                block, source=block.source.replace("num_workers=8)", "num_workers=8, device=torch.device('cpu'))")
            )
        check(block, there)


def test_the_shards_that_it_names_are_there_to_be_read(there: dict[str, Any]):
    named = re.findall(r'"(shards/[^"]+)"', PAGE)
    assert len(named) >= 3
    for urls in named:
        assert len(gpuload.ShardDataset(urls)) == COUNT, urls


def test_there_is_a_before_and_an_after_for_each_loader():
    for reader in READERS:
        kinds = [block.kind for block in blocks() if block.section == f"From {reader}"]
        assert kinds[:2] == ["before", "after"], reader


def test_arguments_that_it_names_exist():
    """Those in single words of code, such as `shard="auto"`, and those that its own lines give."""
    known = {*signature(gpuload.DataLoader).parameters, *signature(gpuload.ShardDataset).parameters}
    named = {"shard", "even", "order", "seed", "dtype", "memory_format", "on_error", "decoder", "device", "accelerate"}
    for name in named | {"batch_transform", "fields", "transform"}:
        assert name in known and re.search(rf"\b{name}=", PAGE), name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.+)$", (DOCS / file).read_text() if file else PAGE, re.MULTILINE)
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings]
