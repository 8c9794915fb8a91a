"""Which rank this is, and ranks that were asked for different things: real processes over a store on 127.0.0.1."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from gpuload import ranks_here
from gpuload.core.errors import ConfigError
from gpuload.ranks_here import check_ranks, check_same, difference, found_rank, rank_of, warn_undivided
from gpuload.sampling.ranks import Rank

ROOT = Path(__file__).resolve().parent.parent
SAME = {"seed": 3, "order": "shuffle", "batch_size": 64}


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_shard_names_a_rank(monkeypatch):
    assert rank_of(None) == rank_of("auto") == Rank(0, 1)
    assert rank_of((2, 3)) == rank_of([2, 3]) == rank_of(Rank(2, 3)) == Rank(2, 3)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_of("auto") == Rank(5, 8) and rank_of(None) == Rank(0, 1)
    with pytest.raises(ConfigError, match="rank 3 of 3"):
        rank_of((3, 3))


@pytest.mark.parametrize("shard", ["all", 4, (1,), (1, 2, 3), ("0", "1"), (0.0, 1), (False, True)])
def test_what_names_no_rank_is_refused(shard):
    with pytest.raises(ConfigError, match='shard must be "auto", \\(rank, world\\) or None, got'):
        rank_of(shard)


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4 and RANK is not set"),
        ({"WORLD_SIZE": "4", "RANK": "x"}, "RANK is 'x', which is no number"),
        ({"WORLD_SIZE": "-4", "RANK": "0"}, "WORLD_SIZE is '-4', which is no number"),
        ({"WORLD_SIZE": "4", "RANK": "4"}, "rank 4 of 4"),
    ],
)
def test_an_environment_that_names_no_rank(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        found_rank()


def test_an_empty_environment_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")
    assert found_rank() == Rank(0, 1)
    monkeypatch.setenv("RANK", "3")  # left over from something else: a world of one has one rank
    assert found_rank() == Rank(0, 1)


def test_a_group_that_is_initialised_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert found_rank() == Rank(0, 1)
        check_ranks(SAME, timeout_s=0.1)  # one rank has nobody to agree with
    finally:
        dist.destroy_process_group()


def test_several_ranks_that_divide_nothing_are_told_once(monkeypatch):
    monkeypatch.setattr(ranks_here, "_told", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_undivided()
        monkeypatch.setenv("WORLD_SIZE", "4")
        warn_undivided()  # names no rank: nothing to divide by
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(UserWarning, match="each of the 4 ranks will be given the whole data set"):
            warn_undivided()
        warn_undivided()


def test_a_difference_names_settings_values_and_ranks():
    assert difference([{"seed": "1"}, {"seed": "1"}]) == difference([{"seed": "1"}]) == ""
    text = difference([{"seed": "1", "a": "2"}, {"seed": "4", "a": "2"}, {"seed": "1", "a": "2"}])
    assert "seed is 1 on ranks 0, 2, 4 on rank 1" in text and "a is" not in text
    assert "b is (not given) on rank 0, 1 on rank 1" in difference([{}, {"b": "1"}])
    long = difference([{"transform": "x" * 500}, {"transform": "y"}])
    assert "x" * 50 in long and len(long) < 300
    many = difference([{"seed": str(min(rank, 1))} for rank in range(40)])
    assert "1 on ranks 1, 2, 3, 4, 5, 6, 7, 8 and 31 more" in many


def outcomes(settings: list[dict | None], timeout_s: float = 20) -> list[str]:
    """What each rank of a world raises, or ""; a rank without settings never comes. Threads over one store."""
    store = dist.HashStore()
    told = ["never came"] * len(settings)

    def one(rank: int) -> None:
        try:
            check_same(settings[rank], store, rank, len(settings), timeout_s)
            told[rank] = ""
        except ConfigError as error:
            told[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank, given in enumerate(settings) if given is not None]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return told


def test_ranks_that_agree_go_on():
    assert outcomes([SAME] * 5) == [""] * 5
    assert outcomes([SAME]) == [""]


def test_one_that_differs_is_named_on_every_rank():
    told = outcomes([SAME, SAME, {**SAME, "seed": 4}, SAME])
    assert len(set(told)) == 1
    assert told[0].startswith("the ranks' loaders differ: seed is 3 on ranks 0, 1, 3, 4 on rank 2.")


@pytest.mark.parametrize("missing", [1, 2])
def test_a_rank_that_never_comes_is_named_by_those_that_wait(missing: int):
    settings: list[dict | None] = [SAME] * 3
    settings[missing] = None
    told = outcomes(settings, timeout_s=0.3)
    assert told.pop(missing) == "never came"
    assert len(set(told)) == 1 and f"rank {missing} of 3 made no loader with shard= within 0.3 s" in told[0]


def test_without_rank_0_the_others_say_that():
    told = outcomes([None, SAME, SAME], timeout_s=0.1)
    assert told[1] == told[2] and "rank 0 of 3 made no loader with shard= within 0.2 s" in told[1]


def test_later_comparisons_do_not_see_earlier_ones():
    store = dist.HashStore()
    check_same({"seed": 1}, store, 0, 1, 1, name="0")
    check_same({"seed": 2}, store, 0, 1, 1, name="1")


def tcp_rank(rank: int, world: int, port: int, settings: dict, queue) -> None:
    store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=30))
    try:
        check_same(settings, store, rank, world, timeout_s=60)
        queue.put((rank, ""))
    except ConfigError as error:
        queue.put((rank, str(error)))


@pytest.mark.full
@pytest.mark.parametrize("seeds", [(3, 3, 3), (3, 4, 3)])
def test_processes_over_a_tcp_store(seeds):
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [
        context.Process(target=tcp_rank, args=(rank, len(seeds), server.port, {**SAME, "seed": seed}, queue))
        for rank, seed in enumerate(seeds)
    ]
    for rank in ranks:
        rank.start()
    told = dict(queue.get(timeout=60) for _ in ranks)
    for rank in ranks:
        rank.join(30)
    if len(set(seeds)) == 1:
        assert told == {0: "", 1: "", 2: ""}
    else:
        assert len(set(told.values())) == 1 and "seed is 3 on ranks 0, 2, 4 on rank 1" in told[0]


def test_a_store_that_is_gone_is_said_to_be():
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=5))
    del server
    with pytest.raises(ConfigError, match="rank 1 lost the store through which ranks compare their settings"):
        check_same(SAME, client, 1, 2, timeout_s=1)


PROGRAM = """
import os, sys
import torch.distributed as dist
from gpuload.core.errors import ConfigError
from gpuload.ranks_here import check_ranks, found_rank
assert found_rank().world == 4
dist.init_process_group("gloo")
here = found_rank()
assert (here.rank, here.world) == (int(os.environ["RANK"]), 4)
check_ranks({"seed": 1}, timeout_s=60)
check_ranks({"seed": 2}, timeout_s=60)
try:
    check_ranks({"seed": 3, "batch_size": 7 + (here.rank == 2)}, timeout_s=60)
except ConfigError as error:
    assert "batch_size is 7 on ranks 0, 1, 3, 8 on rank 2" in str(error), error
    open(os.path.join(sys.argv[1], str(here.rank)), "w").close()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.full
def test_torchrun_with_four_ranks(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "program.py", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1", "2", "3"}
