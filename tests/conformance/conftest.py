"""Fixtures of the conformance suite: a folder of generated images and the two routes a loader can take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conformance.harness import REQUIRED, Route
from tests.conformance.sample_data import Encoded, Plain, image_folder, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images of odd sizes in three class folders: see `sample_data.write_images`."""
    root = tmp_path_factory.mktemp("images")
    write_images(root)
    return root


@pytest.fixture(params=["torch", "accelerated"])
def route(request: pytest.FixtureRequest, images: Path) -> Route:
    """Both routes: a data set that gpuload does not understand, and one that it must accelerate."""
    encoded = [path.read_bytes() for path in sorted(images.glob("*/*.jpg"))]
    if request.param == "torch":
        return Route("torch", Plain(encoded), Plain, encoded, {})
    return Route("accelerated", image_folder(images), Encoded, encoded, REQUIRED)


@pytest.fixture
def fallback(images: Path) -> Route:
    """The torch route alone, for what only data sets outside gpuload's understanding have."""
    encoded = [path.read_bytes() for path in sorted(images.glob("*/*.jpg"))]
    return Route("torch", Plain(encoded), Plain, encoded, {})


@pytest.fixture
def accelerated(images: Path) -> Route:
    """The accelerated route alone."""
    encoded = [path.read_bytes() for path in sorted(images.glob("*/*.jpg"))]
    return Route("accelerated", image_folder(images), Encoded, encoded, REQUIRED)


@pytest.fixture(autouse=True)
def one_torch_thread():
    """Forked children must not wait for threads of an OpenMP pool that only their parent has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
