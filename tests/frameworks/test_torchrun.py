"""Plain DistributedDataParallel under torchrun, gloo, four ranks: all of them together are given each sample once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler

import gpuload
from tests.conformance.sample_data import COUNT
from tests.frameworks.samples import assert_accelerated, cropped, fingerprint, images, tiny_model

pytestmark = pytest.mark.full

RANKS = 4


def rank_program(root: Path) -> dict[str, Any]:
    """What this rank is given: with torch's sampler by class, and with shard="auto"."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(tiny_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: dict[str, Any] = {}
    for kind in (TorchDataLoader, gpuload.DataLoader):
        sampler = DistributedSampler(images(root), seed=3)
        loader = kind(images(root), batch_size=4, sampler=sampler)
        told[kind.__module__.split(".")[0]] = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for inputs, numbers in loader:
                told[kind.__module__.split(".")[0]].append(numbers.tolist())
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), numbers % 2).backward()
                optimizer.step()
    assert_accelerated(loader, COUNT // RANKS)
    for even in ("pad", "drop", "exact"):
        loader = gpuload.DataLoader(
            images(root, cropped()), batch_size=5, shuffle=True, seed=7, shard="auto", even=even
        )
        batches = list(loader)
        assert len(batches) == len(loader)
        assert_accelerated(loader, sum(len(numbers) for _, numbers in batches))
        told[even] = [[numbers.tolist(), fingerprint(inputs)] for inputs, numbers in batches]
    dist.destroy_process_group()
    return told


def test_four_ranks_are_given_each_sample_once_an_epoch(launch, root):
    ranks = launch(RANKS, "test_torchrun", "rank_program")
    for told in ranks:
        assert told["gpuload"] == told["torch"]
    for epoch in (slice(0, 2), slice(2, 4)):
        assert sorted(sum((sum(told["gpuload"][epoch], []) for told in ranks), [])) == list(range(COUNT))
    assert sorted(number for told in ranks for numbers, _ in told["exact"] for number in numbers) == list(range(COUNT))
    alone = gpuload.DataLoader(images(root, cropped()), batch_size=5 * RANKS, shuffle=True, seed=7, device="cpu")
    (pixels, numbers), *_ = list(alone)
    expected = list(zip(numbers.tolist(), fingerprint(pixels), strict=True))
    for even in ("pad", "drop", "exact"):
        first = [pair for told in ranks for pair in zip(*told[even][0], strict=True)]
        assert first == expected, "a global batch does not depend on how many share it"
    assert {len(told["pad"]) for told in ranks} == {2} and {len(told["drop"]) for told in ranks} == {2}
    assert sum(len(numbers) for told in ranks for numbers, _ in told["pad"]) == COUNT
