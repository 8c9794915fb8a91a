"""DESIGN's promises, each held by tests that bear its number.

Promise 6 (resuming) has no implementation yet; 9 (imports) is tests/test_install.py's and tests/test_architecture.py's;
what bad samples do in every combination is tests/test_errors_policy.py's.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

import gpuload
from gpuload.core.errors import EpochCancelledError
from tests.device.test_memory import VIEWS
from tests.engine.exits import SCENARIOS
from tests.engine.fakes import eventually, exit_code
from tests.engine.samples import (
    COUNT,
    DECODERS,
    Numbered,
    checksum,
    checksums,
    fixed,
    folder_loader,
    jittered,
    loader_of,
    no_threads_left,
    our_threads,
    random_crop,
    write_folder,
    write_tar,
)

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes"),
    pytest.mark.filterwarnings("ignore:bad samples are"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_folder(root)
    return root


@pytest.fixture(scope="module")
def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*/*.jpg"))]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert no_threads_left(), our_threads()


def two_epochs(loader: Any) -> list[Any]:
    torch.manual_seed(11)
    return [checksums(loader), checksums(loader)]


# 1. Same in, same out


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("transform", [random_crop, jittered])
def test_promise_1_same_batches_for_0_1_and_4_threads_and_any_depth(
    folder: Path, transform: Callable[[], Any], decoder: str
):
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "decoder": decoder}
    first = two_epochs(folder_loader(folder, transform(), num_workers=0, **options))
    assert first[0] != first[1]
    for threads, depth in [(1, 1), (4, 1), (4, 3), (1, 8), (4, 8)]:
        loader = folder_loader(folder, transform(), num_workers=threads, prefetch_factor=depth, **options)
        assert two_epochs(loader) == first, (threads, depth)
    assert two_epochs(folder_loader(folder, transform(), **options)) == first  # automatic


def test_promise_1_same_batches_from_any_storage(folder: Path, files: list[bytes], tmp_path: Path):
    write_tar(folder, tmp_path / "shard.tar")
    labels = [target for _, target in ImageFolder(str(folder)).samples]

    class Own(Numbered):
        def get_encoded(self, i: int) -> Any:
            return super().get_encoded(i)[0], labels[i]

    kinds = [
        ImageFolder(str(folder), jittered()),
        Own(files, jittered()),
        Subset(ImageFolder(str(folder), jittered()), range(COUNT)),
        gpuload.ShardDataset(folder, transform=jittered()),
        gpuload.ShardDataset(tmp_path / "shard.tar", transform=jittered()),
    ]
    seen = [two_epochs(loader_of(kind, batch_size=5, shuffle=True, num_workers=2)) for kind in kinds]
    assert all(batches == seen[0] for batches in seen)


def test_promise_1_in_order_false_gives_the_same_batches_in_any_order(folder: Path):
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "num_workers": 4}
    ordered = two_epochs(folder_loader(folder, random_crop(), **options))
    free = two_epochs(folder_loader(folder, random_crop(), in_order=False, **options))
    assert [Counter(epoch) for epoch in free] == [Counter(epoch) for epoch in ordered]


@pytest.mark.parametrize("transform", [random_crop, jittered])
def test_promise_1_a_seed_decides_everything_and_leaves_the_global_generator_alone(
    folder: Path, transform: Callable[[], Any]
):
    def epochs(seed: int, threads: int, global_seed: int) -> list[Any]:
        torch.manual_seed(global_seed)
        loader = folder_loader(folder, transform(), batch_size=5, shuffle=True, num_workers=threads, seed=seed)
        return [checksums(loader), checksums(loader)]

    first = epochs(3, 0, 1)
    assert first[0] != first[1] and epochs(3, 4, 2) == first and epochs(4, 4, 2)[0] != first[0]
    loader = folder_loader(folder, transform(), batch_size=5, shuffle=True, num_workers=2, seed=3)
    loader.set_epoch(1)
    assert checksums(loader) == first[1]


def test_promise_1_a_sample_drawn_twice_is_augmented_twice_differently(files: list[bytes]):
    loader = loader_of(Numbered(files, random_crop()), sampler=[7] * 6, batch_size=3, num_workers=2)
    assert len({checksum(image) for images, _ in loader for image in images}) == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_1_the_same_script_with_either_import_gives_equal_batches_and_losses(folder: Path, workers: int):
    def script(loader_class: Any, **more: Any) -> dict[str, Any]:
        torch.manual_seed(5)
        data = ImageFolder(str(folder), fixed())
        loader = loader_class(data, batch_size=4, shuffle=True, drop_last=True, num_workers=workers, **more)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(3 * 24 * 20, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        seen: dict[str, Any] = {"batches": [], "losses": []}
        for _ in range(3):
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen["batches"].append((checksum(images), checksum(labels)))
                seen["losses"].append(loss.item())
        return seen

    theirs = script(TorchDataLoader)
    ours = script(gpuload.DataLoader, accelerate="require", decoder="pillow", device="cpu")
    assert ours == theirs
    assert sum(theirs["losses"][-9:]) < sum(theirs["losses"][:9])


def test_promise_1_the_loaders_threads_leave_torchs_thread_count_to_the_script(folder: Path):
    """A decode thread computes on one core; the model, on the main thread and on new ones, on as many as before."""
    inside: set[int] = set()

    def count(image: Any) -> Any:
        inside.add(torch.get_num_threads())
        return image

    transform = random_crop()
    transform.transforms.append(count)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        for _ in folder_loader(folder, transform, batch_size=5, num_workers=2):
            pass
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert (inside, torch.get_num_threads(), seen) == ({1}, 3, [3])
    finally:
        torch.set_num_threads(before)


# 2. Every sample exactly once


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize(("shuffle", "drop_last"), [(False, False), (True, False), (True, True)])
def test_promise_2_every_sample_comes_once_an_epoch(files: list[bytes], threads: int, shuffle: bool, drop_last: bool):
    data = Numbered(files, random_crop())
    loader = loader_of(data, batch_size=5, shuffle=shuffle, drop_last=drop_last, num_workers=threads)
    for _ in range(3):
        ids = [i for _, numbers in loader for i in numbers.tolist()]
        assert len(ids) == (COUNT - COUNT % 5 if drop_last else COUNT)
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("drop_last", [False, True])
def test_promise_2_ranks_together_see_each_sample_as_the_sampler_divides_them(files: list[bytes], drop_last: bool):
    data = Numbered(files, random_crop())
    for epoch in range(2):
        seen: list[int] = []
        pixels: set[str] = set()
        for rank in range(3):
            sampler: Any = DistributedSampler(data, 3, rank, seed=4, drop_last=drop_last)  # type: ignore[arg-type]
            sampler.set_epoch(epoch)
            loader = loader_of(data, batch_size=4, sampler=sampler, num_workers=2, seed=9)
            loader.set_epoch(epoch)
            for images, numbers in loader:
                seen += numbers.tolist()
                pixels |= {checksum(image) for image in images}
        assert len(seen) == (36 if drop_last else 39)
        assert set(seen) == set(range(COUNT)) if not drop_last else len(set(seen)) == 36
        assert len(pixels) == len(seen)  # what one rank pads with is augmented differently than on the other


def test_promise_2_what_skip_leaves_out_is_reported(files: list[bytes]):
    broken = list(files)
    for i in (0, 8, 20, 36):
        broken[i] = b"no image"
    loader = loader_of(Numbered(broken, random_crop()), batch_size=5, shuffle=True, num_workers=2, on_error="skip")
    for epoch in range(2):
        ids = [i for _, numbers in loader for i in numbers.tolist()]
        stats = loader.stats()
        assert stats.error_file is not None
        lines = [json.loads(line) for line in Path(stats.error_file).read_text().splitlines()]
        reported = [line["sample"] for line in lines]  # each once, in whichever epoch it was met first
        assert sorted(ids + reported) == list(range(COUNT))
        assert sum(stats.errors.values()) == 4 * (epoch + 1)
    Path(stats.error_file).unlink()


# 3. A batch that the user still holds is never overwritten

LAYOUTS = [(None, None), (torch.bfloat16, None), (torch.float32, torch.channels_last), (torch.uint8, None)]


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS[:3])
@pytest.mark.parametrize("decoder", DECODERS)
def test_promise_3_all_batches_of_an_epoch_can_be_held(folder: Path, dtype: Any, layout: Any, decoder: str):
    more: dict[str, Any] = {"dtype": dtype, "memory_format": layout, "decoder": decoder}
    loader = folder_loader(folder, random_crop(), batch_size=4, num_workers=3, **more)
    held = list(loader)
    before = checksums(held)
    assert len({images.data_ptr() for images, _ in held}) == len(held)
    for _ in range(3):
        for _ in loader:
            pass
    assert checksums(held) == before


@pytest.mark.parametrize("name", [name for name in VIEWS if "graph" not in name and "capsule" not in name])
def test_promise_3_holding_any_view_of_a_batch_holds_the_batch(folder: Path, name: str):
    def bits(view: Any) -> str:
        if isinstance(view, torch.UntypedStorage):
            return checksum(torch.empty(0, dtype=torch.uint8).set_(view).numpy())
        return checksum(view)

    loader = folder_loader(folder, random_crop(), batch_size=4, num_workers=2)
    held = [VIEWS[name](images) for images, _ in loader]
    before = [bits(view) for view in held]
    for _ in range(3):
        for _ in loader:
            pass
    assert [bits(view) for view in held] == before


def test_promise_3_batches_pass_through_dlpack_without_a_copy(folder: Path):
    loader = folder_loader(folder, random_crop(), batch_size=4, num_workers=2)
    held = []
    for images, _ in loader:
        array = np.from_dlpack(images)
        assert array.ctypes.data == images.data_ptr()
        held.append(array)
    before = [checksum(array) for array in held]
    for _ in loader:
        pass
    assert [checksum(array) for array in held] == before


@pytest.mark.parametrize("on_error", ["skip", "replace", "raise"])
@pytest.mark.parametrize("threads", [0, 2])
def test_promise_3_memory_comes_back_when_it_is_dropped_and_needs_no_garbage_collection(
    files: list[bytes], on_error: str, threads: int
):
    """With bad samples in every batch: their errors' tracebacks are what would keep the batches."""
    broken = [b"no image" if i % 4 == 1 else data for i, data in enumerate(files)]
    data = Numbered(broken if on_error != "raise" else files, random_crop())
    loader = loader_of(
        data, batch_size=4, num_workers=threads, prefetch_factor=2 if threads else None, on_error=on_error
    )
    addresses: set[int] = set()
    gc.collect()
    gc.disable()
    try:
        for _ in range(6):
            for images, _ in loader:
                addresses.add(images.data_ptr())
            del images
        assert len(addresses) <= 2 + 2 + 2  # depth, the pool's spare ones, the consumer's own and the next
    finally:
        gc.enable()
    if loader.stats().error_file:
        Path(str(loader.stats().error_file)).unlink()


def test_promise_3_an_error_that_is_kept_keeps_no_batch(files: list[bytes]):
    """Of the threads' batches. Inline an error keeps its frames (tests/engine/test_flow.py): it was the caller's."""
    broken = [b"no image" if i % 4 == 1 else data for i, data in enumerate(files)]
    loader = loader_of(Numbered(broken, random_crop()), batch_size=4, num_workers=2)
    iterator, errors = iter(loader), []
    for _ in range(9):
        with pytest.raises(gpuload.SampleError) as caught:
            next(iterator)
        errors.append(caught.value)
    images = [value for value in _reachable(errors) if isinstance(value, np.ndarray) and value.nbytes > 2000]
    assert not images
    Path(str(loader.stats().error_file)).unlink()


def _reachable(errors: list[BaseException]) -> list[Any]:
    """The variables of all frames behind the errors and their causes, our own files' only, and what these hold."""
    found: list[Any] = []
    for error in errors:
        met: BaseException | None = error
        while met is not None:
            trace = met.__traceback__
            while trace is not None:
                frame: Any = trace.tb_frame
                while frame is not None:
                    if "/gpuload/" in frame.f_code.co_filename:
                        for value in frame.f_locals.values():
                            found += [value, *vars(value).values()] if hasattr(value, "__dict__") else [value]
                    frame = frame.f_back
                trace = trace.tb_next
            met = met.__cause__
    return found


# 4. What the loader holds is bounded


@pytest.mark.parametrize("ahead", [1, 3])
def test_promise_4_undelivered_batches_never_exceed_the_depth(files: list[bytes], ahead: int):
    read: list[int] = []
    loader = loader_of(
        Numbered(files, random_crop(), read.append), batch_size=3, num_workers=3, prefetch_factor=ahead, shuffle=False
    )
    assert loader.depth == ahead + 3  # those ahead, and one in the making for each thread
    depth = min(loader.depth, 3 * ahead)  # no more ids are pulled than torch's workers would
    iterator = iter(loader)
    for taken in range(len(loader) + 1):
        allowed = min(COUNT, (taken + depth) * 3)
        assert eventually(lambda allowed=allowed: len(read) == allowed)  # type: ignore
        assert eventually(lambda taken=taken: loader.stats().ready == min(depth, len(loader) - taken))  # type: ignore
        assert len(read) == allowed
        next(iterator, None)
    assert sorted(read) == list(range(COUNT))


def test_promise_4_a_small_bound_on_bytes_ahead_slows_and_stops_nothing(
    folder: Path, files: list[bytes], monkeypatch: pytest.MonkeyPatch
):
    options: dict[str, Any] = {"batch_size": 5, "num_workers": 3, "prefetch_factor": 6}
    expected = two_epochs(folder_loader(folder, random_crop(), **options))
    largest = max(sum(map(len, files[i : i + 5])) for i in range(0, COUNT, 5))
    for bound in (1, largest - 1, 2 * largest):  # less than any batch, than the largest one, than three
        monkeypatch.setattr("gpuload.engine.engine.MAX_BYTES_AHEAD", bound)
        loader = folder_loader(folder, random_crop(), **options)
        assert two_epochs(loader) == expected
        assert loader.stats().bytes_in_flight == 0


def test_promise_4_threads_files_and_memory_stay_flat_over_epochs(folder: Path, tmp_path: Path):
    write_tar(folder, tmp_path / "shard.tar")
    process = psutil.Process()
    data = gpuload.ShardDataset(tmp_path / "shard.tar", transform=fixed_large())
    loader = loader_of(data, batch_size=5, num_workers=3, shuffle=True)
    threads, descriptors, resident = [], [], []
    for epoch in range(26):
        for number, _ in enumerate(loader):
            if epoch % 3 == 1 and number == 2:
                break
        threads.append(process.num_threads())
        descriptors.append(process.num_fds())
        resident.append(process.memory_info().rss)
    assert max(threads[5:]) <= max(threads[:5])
    assert max(descriptors[5:]) <= max(descriptors[:5])
    assert max(resident[6:]) - max(resident[:6]) < 8 << 20  # an epoch's batches are 17 MB


def fixed_large() -> Any:
    transform = fixed()
    transform.transforms[0].size = (192, 208)
    return transform


# 5. Stopping is clean


def test_promise_5_a_process_ends_from_any_state_within_its_time_and_says_nothing(folder: Path, tmp_path: Path):
    command = [sys.executable, "-m", "tests.engine.exits", str(folder), *SCENARIOS]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    outcomes = {line["name"]: line for line in map(json.loads, ended.stdout.splitlines())}
    assert outcomes.keys() == SCENARIOS.keys(), ended.stderr
    codes = {"by_sys_exit_in_the_loop": 3, "by_sys_exit_in_a_decode_thread": 5, "by_an_exception_in_the_loop": 1}
    codes |= {"by_ctrl_c_while_waiting": -signal.SIGINT, "by_ctrl_c_without_threads": -signal.SIGINT}
    last_lines = {"by_an_exception_in_the_loop": "ValueError: the training loop's own"}
    last_lines |= {"by_ctrl_c_while_waiting": "KeyboardInterrupt", "by_ctrl_c_without_threads": "KeyboardInterrupt"}
    for name, outcome in outcomes.items():
        assert outcome["code"] == codes.get(name, 0), outcome
        last = last_lines.get(name)
        told = outcome["stderr"].strip().splitlines()
        assert told[-1:] == ([last] if last else []), outcome
        assert outcome["stderr"].count("Traceback") == (1 if last else 0), outcome
    assert not list(temporary.iterdir())


def test_promise_5_a_consumer_that_is_killed_leaves_nothing(folder: Path, tmp_path: Path):
    code = """
import sys
from pathlib import Path
from tests.engine.samples import folder_loader, random_crop
iterator = iter(folder_loader(Path(sys.argv[1]), random_crop(), batch_size=4, num_workers=2))
next(iterator)
sys.stdout.write("in mid epoch\\n"); sys.stdout.flush()
sys.stdin.read()
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    shared = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    consumer = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    assert consumer.stdout is not None and consumer.stdout.readline() == b"in mid epoch\n"
    assert psutil.Process(consumer.pid).children(recursive=True) == []
    consumer.kill()
    consumer.communicate(timeout=20)
    assert not [p for p in psutil.pids() if _session(p) == consumer.pid]
    assert not list(tmp_path.iterdir())
    if shared:
        ours = {path for path in set(Path("/dev/shm").iterdir()) - shared if "gpuload" in path.name}
        assert not ours


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # ended meanwhile, or not ours to ask about
        return -1


@pytest.mark.parametrize("threads", [0, 2])
def test_promise_5_break_and_exceptions_leave_the_loader_usable(folder: Path, threads: int):
    loader = folder_loader(folder, fixed(), batch_size=4, num_workers=threads)
    whole = checksums(loader)
    for batches in (1, 3):
        for number, _ in enumerate(loader):
            if number == batches:
                break
        with pytest.raises(ZeroDivisionError):
            for number, _ in enumerate(loader):
                1 / (batches - number)  # noqa: B018
        assert checksums(loader) == whole
    assert len(our_threads()) <= 2 + 2


@pytest.mark.parametrize("first", ["loader", "iterator"])
@pytest.mark.parametrize("state", ["before the first batch", "in mid epoch", "at the end"])
def test_promise_5_loader_and_iterator_can_go_in_any_order(folder: Path, first: str, state: str):
    held: dict[str, Any] = {"loader": folder_loader(folder, random_crop(), batch_size=4, num_workers=2)}
    held["iterator"] = iter(held["loader"])
    for _ in range({"before the first batch": 0, "in mid epoch": 2, "at the end": 99}[state]):
        next(held["iterator"], None)
    del held[first]
    if first == "loader" and state == "in mid epoch":
        assert next(held["iterator"])[0].shape == (4, 3, 24, 20)
    held.clear()
    assert no_threads_left()


def test_promise_5_an_epoch_that_is_let_go_stops_reading(files: list[bytes]):
    read: list[int] = []
    gate = threading.Event()
    data = Numbered(files, random_crop(), lambda i: (read.append(i), gate.wait(10), None)[2])
    loader = loader_of(data, batch_size=2, num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    assert eventually(lambda: len(read) == 2)
    del iterator
    gate.set()
    assert eventually(lambda: all(not p._state.tasks and p._state.idle for p in loader._wiring.engine._pools))
    assert len(read) <= 2 * 2  # the two fetch threads end their batches


def test_promise_5_a_closed_iterator_says_so(folder: Path):
    for threads in (0, 2):
        iterator = iter(folder_loader(folder, random_crop(), batch_size=4, num_workers=threads))
        next(iterator)
        iterator.close()
        with pytest.raises(EpochCancelledError, match="make a new one"):
            next(iterator)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("decoder", DECODERS)
def test_promise_5_a_fork_in_mid_epoch_leaves_the_parent_going_and_lets_the_child_start_anew(
    folder: Path, decoder: str
):
    loader = folder_loader(folder, fixed(), batch_size=4, num_workers=2, decoder=decoder)
    whole = checksums(loader)
    iterator = iter(loader)
    seen = checksums([next(iterator)])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told: dict[str, Any] = {}
        try:
            next(iterator)
        except EpochCancelledError as error:
            told["error"] = str(error)
        told["stats"] = loader.stats().path
        del iterator
        told["batches"] = checksums(loader)
        os.write(writer, pickle.dumps(told))
        os._exit(0)
    os.close(writer)
    assert exit_code(child) == 0
    with open(reader, "rb") as pipe:
        told = pickle.loads(pipe.read())
    assert "before a fork" in told["error"] and "iter(loader)" in told["error"]
    assert told["batches"] == whole and told["stats"] == "accelerated"
    assert seen + checksums(iterator) == whole


def test_promise_5_two_iterators_and_other_threads_do_not_disturb_each_other(folder: Path):
    loader = folder_loader(folder, fixed(), batch_size=4, num_workers=2)
    whole = checksums(loader)
    first, second = iter(loader), iter(loader)
    together = [checksums([a, b]) for a, b in zip(first, second, strict=True)]
    assert [a for a, _ in together] == [b for _, b in together] == whole
    iterator = iter(loader)
    seen = checksums([next(iterator)])
    other = threading.Thread(target=lambda: seen.extend(checksums([next(iterator), next(iterator)])))
    other.start()
    other.join(30)
    assert seen + checksums(iterator) == whole


# 7. An error says which shard and which sample, what was wrong, what to do


def test_promise_7_errors_name_shard_sample_cause_and_cure(folder: Path, tmp_path: Path):
    write_folder(tmp_path, 9)
    broken = sorted(tmp_path.glob("*/*.jpg"))[4]
    broken.write_bytes(broken.read_bytes()[:60])
    for data in (ImageFolder(str(tmp_path), fixed()), gpuload.ShardDataset(tmp_path, transform=fixed())):
        loader = loader_of(data, batch_size=3, num_workers=2)
        with pytest.raises(gpuload.SampleError) as caught:
            list(loader)
        message = str(caught.value)
        assert str(broken) in message and "sample 4" in message
        assert "OSError: Truncated File Read" in message
        assert 'on_error="skip"' in message
        assert caught.value.sample == 4 and caught.value.__cause__ is not None
        Path(str(loader.stats().error_file)).unlink()


# 8. No silent slow path


def test_promise_8_explain_and_stats_name_what_is_not_accelerated(folder: Path, capsys: pytest.CaptureFixture[str]):
    data = ImageFolder(str(folder), fixed())
    cases: dict[str, Any] = {
        "worker_init_fn was given": {"worker_init_fn": lambda number: None},
        "is not a data set that gpuload knows": {"dataset": [(torch.zeros(1), 0)] * 8},
        "starts with Grayscale": {"dataset": ImageFolder(str(folder), _grey_first())},
        "accelerate=False was given": {"accelerate": False},
    }
    for reason, options in cases.items():
        options = {"dataset": data, "batch_size": 4, "decoder": "pillow", **options}
        loader: Any = gpuload.DataLoader(**options)
        loader.explain()
        told = capsys.readouterr().out
        assert "not accelerated" in told and reason in told
        batches = list(loader)
        stats = loader.stats()
        assert stats.path == "torch" and stats.batches == len(batches) and stats.images == len(loader.dataset)
        if "accelerate" not in options:
            with pytest.raises(gpuload.NotAcceleratedError, match=reason):
                iter(gpuload.DataLoader(**options, accelerate="require"))


def _grey_first() -> Any:
    from torchvision import transforms

    return transforms.Compose([transforms.Grayscale(3), *fixed().transforms])


def test_promise_8_what_runs_per_sample_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    loader = folder_loader(folder, jittered(), batch_size=4)
    loader.explain()
    told = capsys.readouterr().out
    assert "accelerated" in told and "not accelerated" not in told
    for name in ("ColorJitter", "RandAugment"):
        assert any(name in line and "per sample" in line for line in told.splitlines())
