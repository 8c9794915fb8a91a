"""The images of the proof on a GPU, few of them, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import gpu_images
from bench.gpu_section import Bench, bench_of

IMAGES = 41


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> gpu_images.Made:
    return gpu_images.make(tmp_path_factory.mktemp("gpu-images"), images=IMAGES, threads=2)


@pytest.fixture
def bench(made: gpu_images.Made, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """What a section is given, with two minutes and no photographs."""
    monkeypatch.delenv("GPULOAD_DATA", raising=False)
    folder: Path = made.folder.parent
    return bench_of(folder, seconds=120)
