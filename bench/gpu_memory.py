"""GPU memory over epochs: it must reach a plateau, and one large image must not raise it for good.

    plateau  after one, two and five epochs of one loader whose batches are dropped at once
    large    the same loader: epochs of ordinary images, one with an image of 50 megapixels among them, ordinary again

Owns these two. Held against each other is what torch's allocator has given out; what it keeps for later (`reserved`)
and what the whole device has in use, CuPy's memory and code included, stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.gpu_loaders import images_of, loader, shards
from bench.gpu_section import Bench, Row
from gpuload import ShardDataset

BATCH = 64
EPOCHS = (1, 2, 5)
SLACK_MIB = 16
"""Of what is given out when an epoch has ended: blocks are rounded."""

RESERVED_SLACK_MIB = 256
"""Of what is kept: how many batches are under way at once is chance, and one has 40. A leak would be a batch each time,
which between the second and the fifth epoch makes 1800."""

ORDINARY = 256


@dataclass(frozen=True)
class Memory:
    """In MiB. allocated, reserved: by torch's allocator. in_use: of the device, by everyone."""

    allocated: int
    reserved: int
    in_use: int

    @classmethod
    def now(cls) -> Memory:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        taken = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total - free)
        return cls(*(nbytes >> 20 for nbytes in taken))


class Ids:
    """A sampler whose order is set between epochs: the loader, and all that it keeps, stays the same."""

    def __init__(self, ids: Sequence[int]):
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)


def rows(bench: Bench) -> Iterator[Row]:
    yield bench.tried("plateau", lambda: plateau(bench))
    yield bench.tried("large", lambda: large(bench))


def epoch_of(batches: Any) -> int:
    """One epoch; returns its images."""
    return sum(len(images_of(batch)) for batch in batches)


def plateau(bench: Bench) -> Row:
    """Epochs with random crops, no two of which take the same room."""
    batches = loader(shards(bench.shards, "train"), threads=bench.threads, batch_size=BATCH, device="cuda")
    found = {}
    for epoch in range(1, max(EPOCHS) + 1):
        epoch_of(batches)
        if epoch in EPOCHS:
            found[epoch] = Memory.now()
    second, last = found[EPOCHS[1]], found[EPOCHS[-1]]
    grown, kept = last.allocated - second.allocated, last.reserved - second.reserved
    after = {f"after_{epoch}": asdict(memory) for epoch, memory in found.items()}
    peak = torch.cuda.max_memory_allocated() >> 20
    passed = grown <= SLACK_MIB and kept <= RESERVED_SLACK_MIB
    return {"passed": passed, "grown_mib": grown, "reserved_grown_mib": kept, "peak_mib": peak, **after}


def large(bench: Bench) -> Row:
    """The evaluation transform, which needs all of the large image."""
    dataset = with_large(bench.classes.parent / "with-large", bench.large, sorted(bench.classes.rglob("*.jpg")))
    sampler = Ids(())
    batches = loader(dataset, threads=bench.threads, batch_size=BATCH, device="cuda", sampler=sampler)
    big = next(i for i in range(len(dataset)) if dataset.name(i)[1].startswith("large"))
    ordinary = [i for i in range(len(dataset)) if i != big]
    found = []
    with_it = [*ordinary, big]
    for ids in (ordinary, ordinary, with_it, with_it, ordinary, ordinary):  # its seek points are known the second time
        sampler.ids = ids
        if epoch_of(batches) != len(ids):
            raise RuntimeError("an epoch did not deliver all of its images")
        found.append(Memory.now())
    before, during, after = found[1], found[3], found[5]
    grown = after.allocated - before.allocated
    names = {"before": before, "with_it": during, "after": after}
    return {
        "passed": grown <= SLACK_MIB,
        "grown_mib": grown,
        "reserved_grown_mib": after.reserved - before.reserved,
        **{name: asdict(memory) for name, memory in names.items()},
    }


def with_large(folder: Path, image: Path, others: Sequence[Path]) -> ShardDataset:
    """A folder of links: the large image, and ordinary ones."""
    folder.mkdir(exist_ok=True)
    for path in (image, *others[:ORDINARY]):
        link = folder / path.name
        if not link.exists():
            link.symlink_to(path)
    return shards(folder, "eval")
