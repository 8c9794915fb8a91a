"""Runs one scenario against torch's DataLoader and against gpuload's, and compares all that can be observed.

Observed are: what the scenario returns (values, structure, exact types, dtypes), what it raises (type and message),
the warnings, and the state of torch's, Python's and NumPy's global generators afterwards. A `torch.Generator` in the
result is compared by its state. One difference is meant: an error that a sample causes on the accelerated route is a
`gpuload.SampleError` that is also of torch's type and holds torch's message.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import gpuload
from gpuload.core.errors import SampleError

Make = Callable[..., Any]
"""Called as the class is: Make(dataset, batch_size=...) -> a loader."""

REQUIRED: Mapping[str, Any] = {"accelerate": "require", "decoder": "native", "device": "cpu"}
"""The options under which a loader must accelerate and give torch's bits."""

TORCH_ATTRIBUTES = frozenset(vars(TorchDataLoader([0])))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Raised:
    """An exception that a scenario met, as a value that can stand in its result."""

    error: BaseException
    told: str

    @property
    def message(self) -> str:
        return str(self.error)


@dataclass(frozen=True, eq=False)
class Trace:
    """All that one run of a scenario showed."""

    result: Any
    warnings: list[Any]
    torch_state: torch.Tensor
    python_state: Any
    numpy_state: Any


@dataclass(frozen=True)
class Route:
    """A way through gpuload ("torch" or "accelerated") with data that takes it and the options that ask for it."""

    name: str
    data: Dataset
    kind: Callable[..., Any]
    encoded: Sequence[bytes]
    options: Mapping[str, Any]

    def built(self, *args: Any, files: Sequence[bytes] | None = None, **kwargs: Any) -> Any:
        """A data set of this route's kind over the generated images: see `sample_data.Plain`."""
        return self.kind(self.encoded if files is None else files, *args, **kwargs)

    def same(self, scenario: Callable[[Make], Any]) -> None:
        assert_same(scenario, taken=self.name, **self.options)


def assert_same(scenario: Callable[[Make], Any], *, taken: str | None, **options: Any) -> None:
    """Fails unless `scenario` shows the same with both classes. `taken`: the route that every loader must report."""
    loaders: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        loaders.append(gpuload.DataLoader(*args, **{**options, **kwargs}))
        return loaders[-1]

    theirs, ours = observe(scenario, TorchDataLoader), observe(scenario, make)
    found = list(differences(theirs, ours, "trace"))
    assert not found, "gpuload differs from torch:\n" + "\n".join(found)
    for loader in loaders if taken else ():
        assert loader.plan().accelerated is (taken == "accelerated")
        assert loader.stats().path == taken


def observe(scenario: Callable[[Make], Any], make: Make) -> Trace:
    torch.manual_seed(20)
    random.seed(21)
    np.random.seed(22)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = attempt(lambda: scenario(make))
    seen = [(w.category, str(w.message)) for w in caught if not _of_the_interpreter(w)]
    return Trace(result, seen, torch.get_rng_state(), random.getstate(), np.random.get_state())


def attempt(action: Callable[[], Any], *also: type[BaseException]) -> Any:
    """What `action` returns, or `Raised`. also: exceptions outside `Exception` that are expected."""
    expected: tuple[type[BaseException], ...] = (Exception, *also)
    try:
        return action()
    except expected as error:
        told = "".join(traceback.format_exception(error))
        _forget_frames(error)
        return Raised(error, told)


def _forget_frames(error: BaseException | None) -> None:
    """Frames keep iterators alive, and with them worker processes, until some later collection."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def outcomes(iterator: Iterator[Any], most: int = 40) -> list[Any]:
    """What `next` gives until it has raised StopIteration twice: batches and `Raised`."""
    seen: list[Any] = []
    ends = 0
    while ends < 2 and len(seen) < most:
        seen.append(attempt(lambda: next(iterator)))
        ends += isinstance(seen[-1], Raised) and isinstance(seen[-1].error, StopIteration)
    return seen


def train(loader: Any, epochs: int = 2, generator: torch.Generator | None = None) -> list[Any]:
    """A training loop that draws from every global generator at each step, as dropout and mixup do."""
    seen: list[Any] = []
    for _ in range(epochs):
        for batch in loader:
            seen.append((batch, torch.rand(2), random.random(), float(np.random.rand())))
            if generator is not None:
                seen.append(generator.get_state())
    return seen


def attributes(loader: Any) -> dict[str, Any]:
    """The instance attributes that torch's class has. gpuload's automatic counts are ints of a type of their own."""
    found = {name: value for name, value in vars(loader).items() if name in TORCH_ATTRIBUTES}
    for name in ("num_workers", "prefetch_factor"):
        if isinstance(found[name], int):
            found[name] = int(found[name])
    return found


def named(arguments: Any) -> str:
    """A test's id for keyword arguments, the same in every run: functions and generators by name, not by address."""
    if not isinstance(arguments, Mapping):
        return type(arguments).__name__ if "object at" in repr(arguments) else str(arguments)
    words = {key: getattr(value, "__name__", value) for key, value in arguments.items()}
    return ", ".join(f"{k}={type(v).__name__ if 'object at' in repr(v) else v}" for k, v in words.items()) or "nothing"


def in_forked_child(action: Callable[[], Any]) -> Any:
    """What `action` returns in a forked child, tensors as arrays; an exception there as its text."""
    context = multiprocessing.get_context("fork")
    inlet, outlet = context.Pipe(duplex=False)

    def run() -> None:
        result = attempt(action)
        outlet.send_bytes(pickle.dumps(result.told if isinstance(result, Raised) else _without_tensors(result)))

    process = context.Process(target=run)
    process.start()
    try:
        assert inlet.poll(60), "the forked child gave no answer within a minute"
        return pickle.loads(inlet.recv_bytes())
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()


def differences(theirs: Any, ours: Any, where: str) -> Iterator[str]:
    """Each place in which two results differ, in words."""
    if isinstance(theirs, Raised) or isinstance(ours, Raised):
        yield from _error_differences(theirs, ours, where)
    elif type(theirs) is not type(ours):
        yield f"{where}: {type(theirs)} became {type(ours)}: {_short(theirs)} / {_short(ours)}"
    elif isinstance(theirs, torch.Tensor):
        yield from _tensor_differences(theirs, ours, where)
    elif isinstance(theirs, torch.Generator):
        yield from _tensor_differences(theirs.get_state(), ours.get_state(), f"state of {where}")
    elif isinstance(theirs, np.ndarray):
        if theirs.dtype != ours.dtype or not np.array_equal(theirs, ours):
            yield f"{where}: arrays {theirs.dtype} {theirs.shape} and {ours.dtype} {ours.shape} differ"
    elif isinstance(theirs, Mapping):
        if list(theirs) != list(ours):
            yield f"{where}: keys {list(theirs)} became {list(ours)}"
        for key in [k for k in theirs if k in ours]:
            yield from differences(theirs[key], ours[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        if len(theirs) != len(ours):
            yield f"{where}: {len(theirs)} items became {len(ours)}"
        for i, (a, b) in enumerate(zip(theirs, ours, strict=False)):
            yield from differences(a, b, f"{where}[{i}]")
    elif theirs is ours or _equal(theirs, ours):
        return
    elif type(theirs).__eq__ is object.__eq__ and hasattr(theirs, "__dict__"):
        for name, value in vars(theirs).items():
            yield from differences(value, getattr(ours, name, "missing"), f"{where}.{name}")
    else:
        yield f"{where}: {_short(theirs)} became {_short(ours)}"


def _tensor_differences(theirs: torch.Tensor, ours: torch.Tensor, where: str) -> Iterator[str]:
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        if getattr(theirs, name) != getattr(ours, name):
            yield f"{where}.{name}: {getattr(theirs, name)} became {getattr(ours, name)}"
            return
    if theirs.layout is torch.strided and theirs.is_contiguous() and not ours.is_contiguous():
        yield f"{where}: strides {theirs.stride()} became {ours.stride()}"
    theirs, ours = theirs.to_dense(), ours.to_dense()
    if not torch.allclose(theirs, ours, rtol=0, atol=0, equal_nan=True):
        worst = (theirs.double() - ours.double()).abs().max().item()
        yield f"{where}: values differ, by {worst:.3g} at most"


def _error_differences(theirs: Any, ours: Any, where: str) -> Iterator[str]:
    if not isinstance(theirs, Raised):
        yield f"{where}: gpuload alone raised\n{ours.told}"
    elif not isinstance(ours, Raised):
        yield f"{where}: torch alone raised {theirs.told}\ngpuload gave {_short(ours)}"
    elif isinstance(ours.error, SampleError):
        if not isinstance(ours.error, type(theirs.error)):
            yield f"{where}: {type(ours.error)} is no {type(theirs.error)}\n{ours.told}"
        elif _cause(theirs) not in ours.message:
            yield f"{where}: {ours.message!r} does not hold {_cause(theirs)!r}"
    elif type(theirs.error) is not type(ours.error):
        yield f"{where}: {type(theirs.error)} became {type(ours.error)}\n{theirs.told}\n{ours.told}"
    elif theirs.message != ours.message and not _told_by_a_thread(theirs.message, ours.message):
        yield f"{where}: {theirs.message!r} became {ours.message!r}\n{ours.told}"


def _cause(raised: Raised) -> str:
    """The message itself, or the last line of what a torch worker process reports, its class without the module."""
    if not raised.message.startswith("Caught "):
        return raised.message
    return raised.message.strip().splitlines()[-1].removeprefix(f"{type(raised.error).__module__}.")


def _told_by_a_thread(theirs: str, ours: str) -> bool:
    """torch wraps a worker process's message in its traceback; a thread's exception arrives as it is."""
    return theirs.startswith("Caught ") and bool(ours) and ours in theirs


def _equal(a: Any, b: Any) -> bool:
    same = a == b
    return bool(same) if isinstance(same, (bool, np.bool_)) else False


def _of_the_interpreter(warning: warnings.WarningMessage) -> bool:
    """Warnings about the process (Python 3.12 on forks of threaded ones, unclosed files), not about the loader."""
    return issubclass(warning.category, ResourceWarning) or "use of fork()" in str(warning.message)


def _without_tensors(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.numpy()
    if isinstance(tree, (list, tuple)):
        return [_without_tensors(item) for item in tree]
    return tree


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."
