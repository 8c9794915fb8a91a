"""Batches reach JAX by DLPack, without a copy, and stay what they were while JAX holds them.

In a process of its own: JAX's threads would stay in this one, and other tests fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import gpuload
from tests.conformance.sample_data import COUNT
from tests.frameworks.conftest import ROOT
from tests.frameworks.samples import assert_accelerated, images

pytestmark = pytest.mark.full


@pytest.mark.parametrize("program", ["hold", "step"])
def test_jax_takes_batches_as_they_are(root, program):
    """hold: without a copy, and for as long as it likes. step: in a compiled training step."""
    line = f"import sys; from pathlib import Path; from tests.frameworks.test_dlpack import {program} as program; "
    done = subprocess.run(
        [sys.executable, "-c", line + "program(Path(sys.argv[1]))", str(root)],
        cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def hold(root: Path) -> None:
    import jax

    loader = gpuload.DataLoader(images(root), batch_size=4, device="cpu")
    held = []
    for pixels, numbers in loader:
        array = jax.dlpack.from_dlpack(pixels)
        assert array.unsafe_buffer_pointer() == pixels.data_ptr()
        held.append((array, numbers.tolist()))
    assert_accelerated(loader, COUNT)
    for (array, numbers), (expected, expected_numbers) in zip(held, TorchDataLoader(images(root), 4), strict=True):
        assert np.array_equal(np.asarray(array), expected.numpy()) and numbers == expected_numbers.tolist()


def step(root: Path) -> None:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def trained(weights, pixels):
        return weights - 0.1 * jax.grad(lambda w: jnp.square(pixels.mean((2, 3)) @ w).mean())(weights)

    weights, expected = jnp.ones(3), np.ones(3)
    for pixels, _ in gpuload.DataLoader(images(root), batch_size=4, device="cpu"):
        weights = trained(weights, jax.dlpack.from_dlpack(pixels))
        means = pixels.double().mean((2, 3)).numpy()
        expected = expected - 0.1 * 2 * means.T @ (means @ expected) / len(means)
    assert np.allclose(np.asarray(weights), expected, rtol=1e-4)
