"""Hugging Face Accelerate rebuilds torch's class from what it is given; gpuload's loader comes out of it as gpuload's.

Reference: torch's DataLoader through the same calls.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler

import gpuload
from tests.conformance.sample_data import COUNT
from tests.frameworks.samples import assert_accelerated, cropped, fingerprint, images

pytestmark = pytest.mark.full


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield make_accelerator()
    forget_accelerator()


def make_accelerator(**config: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


def forget_accelerator() -> None:
    """Accelerate keeps its settings in the class, for the life of the process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def numbers(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def prints(batches: Any) -> list[list[float]]:
    return [fingerprint(batch[0]) for batch in batches]


def test_a_prepared_loader_is_gpuloads_and_gives_what_torchs_would(accelerator, root):
    torch.manual_seed(3)
    ours = accelerator.prepare(gpuload.DataLoader(images(root), batch_size=5, shuffle=True, dtype=torch.float64))
    got = list(ours)
    assert_accelerated(ours, COUNT)
    torch.manual_seed(3)
    expected = list(accelerator.prepare(TorchDataLoader(images(root), batch_size=5, shuffle=True)))
    assert numbers(got) == numbers(expected)
    for (mine, _), (theirs, _) in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs.double())


def test_the_end_of_an_epoch_is_still_announced(accelerator, root):
    """Accelerate's gradient accumulation and gather_for_metrics read it from the adapter."""
    loader = accelerator.prepare(gpuload.DataLoader(images(root), batch_size=5))
    ends = [(loader.end_of_dataloader, loader.remainder) for _ in loader]
    assert ends == [(False, COUNT % 5)] * 4 + [(True, COUNT % 5)]


def test_skipping_goes_on_where_it_should_with_the_same_crops(accelerator, root):
    loader = accelerator.prepare(gpuload.DataLoader(images(root, cropped()), batch_size=5, shuffle=True, seed=11))
    list(loader)
    whole = list(loader)  # the second epoch
    again = accelerator.prepare(gpuload.DataLoader(images(root, cropped()), batch_size=5, shuffle=True, seed=11))
    again.set_epoch(1)
    rest = accelerator.skip_first_batches(again, 2)
    got = list(rest)
    assert_accelerated(rest, COUNT - 10)
    assert numbers(got) == numbers(whole[2:])
    assert prints(got) == prints(whole[2:])
    fewer = list(accelerator.skip_first_batches(accelerator.skip_first_batches(again, 2), 1))
    assert prints(fewer) == prints(whole[3:])


def test_own_order_follows_the_epoch_that_accelerate_counts(accelerator, root):
    alone = gpuload.DataLoader(images(root), batch_size=5, shuffle=True, seed=4, device="cpu")
    epochs = [numbers(alone) for _ in range(3)]
    prepared = accelerator.prepare(gpuload.DataLoader(images(root), batch_size=5, shuffle=True, seed=4))
    assert [numbers(prepared), numbers(prepared)] == epochs[:2]
    prepared.set_epoch(0)
    assert numbers(prepared) == epochs[0]
    prepared.set_epoch(2)
    assert numbers(prepared) == epochs[2]


def test_torchs_loaders_go_through_as_before(accelerator, root):
    data = images(root)
    sampler = SequentialSampler(data)
    accelerator.prepare(gpuload.DataLoader(data, batch_size=5, sampler=sampler))
    prepared = accelerator.prepare(TorchDataLoader(data, batch_size=5, sampler=sampler))
    assert type(prepared.base_dataloader) is TorchDataLoader
    assert numbers(accelerator.skip_first_batches(prepared, 4)) == [[20, 21, 22, 23]]


def test_a_loader_that_is_not_understood_takes_torchs_path_and_says_so(accelerator):
    prepared = accelerator.prepare(gpuload.DataLoader(range(7), batch_size=3))
    assert [batch.tolist() for batch in prepared] == [[0, 1, 2], [3, 4, 5], [6]]
    assert prepared.stats().path == "torch" and prepared.stats().reasons


def test_batches_of_the_users_own_keep_the_loader(accelerator, root):
    batches = [[3, 1, 4], [1, 5], [9, 2, 6, 5]]
    prepared = accelerator.prepare(gpuload.DataLoader(images(root), batch_sampler=batches))
    assert numbers(prepared) == batches
    assert_accelerated(prepared, 9)
    rest = accelerator.skip_first_batches(prepared, 1)
    assert numbers(rest) == batches[1:]
    assert_accelerated(rest, 6)


def test_a_prepared_loader_can_be_pickled(accelerator, root):
    prepared = accelerator.prepare(gpuload.DataLoader(images(root), batch_size=5))
    copy = pickle.loads(pickle.dumps(prepared.base_dataloader))
    assert numbers(copy) == numbers(prepared)


def test_a_checkpoint_in_the_middle_goes_on_there(root, tmp_path):
    try:
        loader = make_stateful(root)
        whole = list(loader)
    finally:
        forget_accelerator()
    try:
        loader = make_stateful(root)
        taken = []
        for batch in loader:
            taken.append(batch)
            if len(taken) == 2:
                loader.accelerator.save_state(str(tmp_path))
                break
    finally:
        forget_accelerator()
    try:
        loader = make_stateful(root)
        loader.accelerator.load_state(str(tmp_path))
        rest = list(loader)
        assert_accelerated(loader, COUNT - 10)
        assert numbers(taken + rest) == numbers(whole)
        assert prints(taken + rest) == prints(whole)
        assert sorted(sum(numbers(loader), [])) == list(range(COUNT)), "the epoch after it is a whole one"
    finally:
        forget_accelerator()


def make_stateful(root: Path) -> Any:
    """A prepared loader as a script that starts anew makes it, with its Accelerator as an attribute."""
    torch.manual_seed(8)
    accelerator = make_accelerator(use_stateful_dataloader=True)
    loader = accelerator.prepare(gpuload.DataLoader(images(root, cropped()), batch_size=5, shuffle=True))
    loader.accelerator = accelerator
    return loader


def test_a_loader_that_divides_by_itself_is_refused(accelerator, root):
    loader = gpuload.DataLoader(images(root), batch_size=5, shard=(0, 2))
    with pytest.raises(gpuload.ConfigError, match=r"shard=\(0, 2\).*twice.*leave shard out"):
        accelerator.prepare(loader)


MODES: dict[str, dict[str, Any]] = {
    "batches dealt": {},
    "batches split": {"split_batches": True},
    "rank 0 dispatches": {"dispatch_batches": True},
    "seedable sampler": {"use_seedable_sampler": True},
}


def rank_program(root: Path) -> dict[str, Any]:
    """What this rank is given: by mode and class, and with gpuload's own order."""
    import torch.distributed as dist

    told: dict[str, Any] = {}
    for name, config in MODES.items():
        for kind in (TorchDataLoader, gpuload.DataLoader):
            torch.manual_seed(3)
            accelerator = make_accelerator(**config)
            loader = accelerator.prepare(kind(images(root), batch_size=4, shuffle=True))
            two_epochs = numbers(loader) + numbers(loader)
            told[f"{name}, {kind.__module__.split('.')[0]}"] = two_epochs
            if kind is gpuload.DataLoader and (dist.get_rank() == 0 or "dispatch" not in name):
                stats = loader.stats()
                assert stats.path == "accelerated" and sum(stats.decoders.values()) > 0, stats
            if kind is gpuload.DataLoader and "dispatch" not in name:
                rest = accelerator.skip_first_batches(loader, 1)
                list(rest)
                assert_accelerated(rest, sum(map(len, two_epochs[len(loader) + 1 :])))
            forget_accelerator()
        told[f"{name}, resumed"] = resumed(root, config)
    torch.manual_seed(100 + dist.get_rank())
    accelerator = make_accelerator()
    told["drawn order"] = numbers(accelerator.prepare(gpuload.DataLoader(images(root), batch_size=4, order="shuffle")))
    forget_accelerator()
    accelerator = make_accelerator(split_batches=True)
    loader = gpuload.DataLoader(images(root, cropped()), batch_size=8, shuffle=True, seed=6)
    batches = list(accelerator.prepare(loader))
    told["crops"] = dict(zip(sum(numbers(batches), []), sum(prints(batches), []), strict=True))
    dist.destroy_process_group()
    return told


def resumed(root: Path, config: dict[str, Any]) -> list[list[list[int]]]:
    """The rest of a second epoch after one batch: as it went on, and by another loader that was given its state."""
    torch.manual_seed(3)
    loader = make_accelerator(**config).prepare(gpuload.DataLoader(images(root), batch_size=4, shuffle=True))
    list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = numbers(batches)
    forget_accelerator()
    torch.manual_seed(3)  # as a script that starts anew does
    again = make_accelerator(**config).prepare(gpuload.DataLoader(images(root), batch_size=4, shuffle=True))
    again.load_state_dict(state)
    went_on = numbers(again)
    forget_accelerator()
    return [rest, went_on]


def test_two_ranks_are_given_what_torchs_loader_would_give_them_in_every_mode(launch, root):
    ranks = launch(2, "test_accelerate", "rank_program")
    for told in ranks:
        for mode in MODES:
            assert told[f"{mode}, gpuload"] == told[f"{mode}, torch"], mode
            rest, went_on = told[f"{mode}, resumed"]
            assert went_on == rest and rest, mode
    parts = [sum(told["drawn order"], []) for told in ranks]
    assert sorted(parts[0] + parts[1]) == list(range(COUNT)), "parts of one order"
    alone = gpuload.DataLoader(images(root, cropped()), batch_size=8, shuffle=True, seed=6, device="cpu")
    batches = list(alone)
    expected = dict(zip(sum(numbers(batches), []), sum(prints(batches), []), strict=True))
    assert {int(number): value for told in ranks for number, value in told["crops"].items()} == expected
