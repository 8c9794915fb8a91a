"""Which rank this process is, and whether the other ranks were asked for the same.

Owns what is read from torch.distributed and torchrun's environment, and the agreement through the store that the
ranks share. How an epoch is divided between them is `sampling/ranks.py`'s.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from gpuload.core.errors import ConfigError
from gpuload.sampling.ranks import Rank

MAX_PAUSE_S = 0.05
"""Between two looks into the store: 20 a second from each of 1,000 ranks are nothing to it."""
SHOWN = 80
"""Characters of a setting that an error shows."""

_checks = itertools.count()
_told: set[str] = set()


def rank_of(shard: Any) -> Rank:
    """DataLoader's `shard`: None for all samples on every rank, "auto", or (rank, world). Raises ConfigError."""
    if shard is None:
        return Rank()
    if isinstance(shard, str) and shard == "auto":
        return found_rank()
    if isinstance(shard, Rank):
        return shard
    if isinstance(shard, Sequence) and len(shard) == 2 and all(type(number) is int for number in shard):
        return Rank(*shard)
    raise ConfigError(f'shard must be "auto", (rank, world) or None, got {shard!r}')


def found_rank() -> Rank:
    """torch.distributed's rank where a group is initialised, else that of the environment (RANK and WORLD_SIZE)."""
    if dist.is_available() and dist.is_initialized():
        return Rank(dist.get_rank(), dist.get_world_size())
    world = _number("WORLD_SIZE", 1)
    if world > 1 and not os.environ.get("RANK"):
        raise ConfigError(f"WORLD_SIZE is {world} and RANK is not set: use torchrun, or pass shard=(rank, world)")
    return Rank(_number("RANK", 0), world) if world > 1 else Rank()


def warn_undivided() -> None:
    """Say once that several ranks run and this loader, with neither a sampler nor `shard`, gives each of them all."""
    try:
        world = found_rank().world
    except ConfigError:  # an environment that names no rank divides nothing either
        return
    if world > 1 and "undivided" not in _told:
        _told.add("undivided")
        warnings.warn(
            f'each of the {world} ranks will be given the whole data set; to divide it, pass shard="auto" or '
            "sampler=torch.utils.data.DistributedSampler(dataset). Where that is meant, pass shard=(0, 1)",
            stacklevel=3,
        )


def check_ranks(settings: Mapping[str, Any], timeout_s: float) -> None:
    """`check_same` over torch.distributed's own store; nothing where no group of several ranks is initialised.

    Every rank must call it as often and in the same order: the n-th calls are compared.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    check_same(settings, store, dist.get_rank(), dist.get_world_size(), timeout_s, name=str(next(_checks)))


def check_same(
    settings: Mapping[str, Any], store: Any, rank: int, world: int, timeout_s: float, *, name: str = "0"
) -> None:
    """Return where all ranks give equal settings, else raise the same ConfigError on each.

    store: any of torch's that all ranks reach. name: of this comparison, used once. Rank 0 compares; it waits
    timeout_s for the others, and they twice that for it, so that all hear who was missing.
    """
    prefix = f"gpuload/settings/{name}"
    posts = [f"{prefix}/{number}" for number in range(world)]
    verdict = f"{prefix}/verdict"
    try:
        store.set(posts[rank], json.dumps({key: repr(value) for key, value in settings.items()}))
        if rank == 0:
            if _wait(store, posts, timeout_s):
                problem = difference([json.loads(store.get(post)) for post in posts])
            else:
                missing = [number for number, post in enumerate(posts) if not store.check([post])]
                problem = _unheard(missing, world, timeout_s)
            store.set(verdict, problem)
        elif _wait(store, [verdict], 2 * timeout_s):
            problem = store.get(verdict).decode()
        else:
            problem = _unheard([0], world, 2 * timeout_s)
    except dist.DistError as error:
        raise ConfigError(f"rank {rank} lost the store through which ranks compare their settings: {error}") from error
    if problem:
        raise ConfigError(problem)


def difference(settings: Sequence[Mapping[str, str]]) -> str:
    """What the ranks' settings (one mapping a rank, values as text) differ in, in words; "" where they don't."""
    names = dict.fromkeys(name for given in settings for name in given)
    told = []
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, given in enumerate(settings):
            ranks.setdefault(given.get(name, "(not given)"), []).append(rank)
        if len(ranks) > 1:
            told.append(f"{name} is " + ", ".join(f"{_short(value)} on {_ranks(who)}" for value, who in ranks.items()))
    return f"the ranks' loaders differ: {'; '.join(told)}. All ranks must be given the same" if told else ""


def _unheard(missing: list[int], world: int, timeout_s: float) -> str:
    return (
        f"{_ranks(missing)} of {world} made no loader with shard= within {timeout_s:g} s of the others: every rank "
        "must make the same loaders in the same order, and begin to iterate over them"
    )


def _wait(store: Any, keys: list[str], timeout_s: float) -> bool:
    """Whether all keys were set in time. Asks and asks: a wait inside the store holds Ctrl-C back and logs its end."""
    end, pause_s = monotonic() + timeout_s, 0.001
    while not store.check(keys):
        if monotonic() >= end:
            return False
        sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
    return True


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.strip().isdecimal():
        raise ConfigError(f"the environment's {name} is {text!r}, which is no number: pass shard=(rank, world)")
    return int(text)


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
