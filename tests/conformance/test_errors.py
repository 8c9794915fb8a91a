"""Exceptions of samples, files and user code: raised at their batch, as their own type, and iteration goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import UnidentifiedImageError
from torchvision import transforms

from gpuload.core.errors import SampleError
from tests.conformance.harness import REQUIRED, Make, Raised, Route, assert_same, attempt, outcomes, train
from tests.conformance.sample_data import Counting, image_folder


class Refused(Exception):
    """Has a constructor of its own, which torch cannot call with a message alone."""

    def __init__(self, code: int, reason: str):
        super().__init__(f"{code}: {reason}")
        self.code = code


class Silent(Exception):
    """Has nothing to say."""


CAUSES: dict[str, Callable[[], Exception]] = {
    "KeyError": lambda: KeyError("photo"),
    "IndexError": lambda: IndexError("no such photo"),
    "ValueError": lambda: ValueError("a bad\nvalue in two lines"),
    "OSError": lambda: OSError(5, "Input/output error"),
    "FileNotFoundError": lambda: FileNotFoundError(2, "No such file or directory", "/gone/a.jpg"),
    "PermissionError": lambda: PermissionError("not yours"),
    "ConnectionResetError": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "MemoryError": lambda: MemoryError(),
    "AssertionError": lambda: AssertionError(),
    "NotImplementedError": lambda: NotImplementedError("later"),
    "own, without a message": lambda: Silent(),
    "torch.OutOfMemoryError": lambda: torch.OutOfMemoryError("out"),
}

every_cause = pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())


@every_cause
def test_errors_of_samples_without_workers(route: Route, cause: Callable[[], Exception]):
    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:9], broken={0: cause, 5: cause})
        loaders = [DataLoader(data, batch_size=2, num_workers=0), DataLoader(data, batch_size=None, num_workers=0)]
        return [outcomes(iter(loader)) for loader in loaders]

    route.same(scenario)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=["automatic", "1"])
@pytest.mark.parametrize("name", ["KeyError", "ValueError", "OSError", "own, without a message"])
def test_errors_of_samples_with_workers(route: Route, name: str, workers: dict[str, int]):
    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:9], broken={0: CAUSES[name], 5: CAUSES[name]})
        return outcomes(iter(DataLoader(data, batch_size=2, **workers)))

    route.same(scenario)


@every_cause
def test_sample_errors_name_their_cause(accelerated: Route, cause: Callable[[], Exception]):
    """What gpuload adds: the sample, and the original exception as `__cause__`."""
    data = accelerated.built(files=accelerated.encoded[:9], broken={5: cause})

    def scenario(DataLoader: Make) -> Any:
        batches = outcomes(iter(DataLoader(data, batch_size=4, num_workers=0)))
        error = batches[1].error
        assert isinstance(batches[1], Raised)
        if isinstance(error, SampleError):
            assert error.sample == 5
            assert type(error.__cause__) is type(cause())
            assert error.kind == type(cause()).__name__
        return len(batches)

    accelerated.same(scenario)


@pytest.mark.parametrize(
    ("cause", "caught_as", "text"),
    [
        (lambda: Refused(403, "go away"), Exception, "403: go away"),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd start"), ValueError, "odd start"),
    ],
    ids=["own", "UnicodeDecodeError"],
)
def test_errors_that_cannot_be_extended(route: Route, cause: Any, caught_as: type[Exception], text: str):
    """Such a type's constructor wants more than a message: then the error is of its nearest base that can be."""

    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:6], broken={3: cause})
        batches = outcomes(iter(DataLoader(data, batch_size=2, num_workers=0)))
        failed = batches[1]
        assert isinstance(failed, Raised)
        assert isinstance(failed.error, caught_as), type(failed.error).__mro__
        assert text in failed.message
        return batches[0], batches[2:]

    route.same(scenario)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 0}], ids=["automatic", "0"])
def test_stop_iteration_from_a_sample(route: Route, workers: dict[str, int]):
    """The loop ends there without a word. Not with torch's workers: its shutdown then often waits for 5 s."""

    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:9], broken={4: StopIteration})
        loader = DataLoader(data, batch_size=2, **workers)
        return attempt(lambda: list(loader)), outcomes(iter(loader))

    route.same(scenario)


@pytest.mark.parametrize("cause", [KeyboardInterrupt, SystemExit])
def test_interrupts_in_the_callers_thread_pass_through(route: Route, cause: type[BaseException]):
    def scenario(DataLoader: Make) -> Any:
        data = route.built(files=route.encoded[:9], broken={4: cause})
        iterator = iter(DataLoader(data, batch_size=2, num_workers=0))
        first = next(iterator), next(iterator)
        raised = attempt(lambda: next(iterator), KeyboardInterrupt, SystemExit)
        assert not isinstance(raised.error, SampleError)
        return first, type(raised.error), outcomes(iterator)

    route.same(scenario)


def test_errors_leave_the_order_and_the_generators_as_torchs(route: Route):
    def scenario(DataLoader: Make) -> Any:
        data = route.built(broken={7: lambda: ValueError("seven"), 20: lambda: ValueError("twenty")})
        loader = DataLoader(data, batch_size=5, shuffle=True, num_workers=0)
        return outcomes(iter(loader)), outcomes(iter(loader)), attempt(lambda: train(loader))

    route.same(scenario)


BAD_FILES: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: path.rename(path.with_suffix(".old")).parent.joinpath(path.name).mkdir(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:300]),
    "empty": lambda path: path.write_bytes(b""),
    "no image": lambda path: path.write_text("<html>404</html>"),
    "header alone": lambda path: path.write_bytes(path.read_bytes()[:3]),
}


@pytest.mark.parametrize("workers", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=["automatic", "0", "1"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_cannot_be_read(images: Path, tmp_path: Path, name: str, workers: dict[str, int]):
    """The type is torch's and the file is named; Pillow's words depend on whether it sees a file or bytes."""
    root = tmp_path / "images"
    shutil.copytree(images, root)
    data = image_folder(root)
    bad = Path(data.samples[6][0])
    BAD_FILES[name](bad)

    def scenario(DataLoader: Make) -> Any:
        batches = outcomes(iter(DataLoader(data, batch_size=4, **workers)))
        failed = batches[1]
        assert isinstance(failed, Raised), failed
        if isinstance(failed.error, SampleError):
            assert bad.name in failed.message
        kinds = (FileNotFoundError, IsADirectoryError, UnidentifiedImageError, OSError, SyntaxError)
        return batches[0], batches[2:], [isinstance(failed.error, kind) for kind in kinds]

    assert_same(scenario, taken="accelerated", **REQUIRED)


@pytest.mark.parametrize("mend", [False, True])
def test_a_file_that_is_repaired_between_epochs(images: Path, tmp_path: Path, mend: bool):
    shutil.copytree(images, tmp_path / "images")
    data = image_folder(tmp_path / "images")
    bad = Path(data.samples[6][0])
    whole = bad.read_bytes()

    def scenario(DataLoader: Make) -> Any:
        bad.write_bytes(b"damaged")
        loader = DataLoader(data, batch_size=4)
        kinds = [type(batch) for batch in outcomes(iter(loader))]
        if mend:
            bad.write_bytes(whole)
        return kinds, [batch if type(batch) is list else type(batch) for batch in outcomes(iter(loader))]

    assert_same(scenario, taken="accelerated", **REQUIRED)


def raise_on_large(image: torch.Tensor) -> torch.Tensor:
    if image.mean() > 0.55:
        raise ArithmeticError("too bright")
    return image


@pytest.mark.parametrize("workers", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=["automatic", "0", "1"])
def test_errors_of_the_users_own_transform(images: Path, workers: dict[str, int]):
    chain = transforms.Compose([transforms.Resize((9, 9)), transforms.ToTensor(), transforms.Lambda(raise_on_large)])

    def scenario(DataLoader: Make) -> Any:
        data = image_folder(images)
        data.transform = chain
        seen = outcomes(iter(DataLoader(data, batch_size=1, **workers)))
        assert 2 < sum(isinstance(s, Raised) for s in seen) < 20, "some images must be too bright and some not"
        return seen

    assert_same(scenario, taken="accelerated", **REQUIRED)


def test_normalize_with_a_zero_deviation(images: Path):
    def scenario(DataLoader: Make) -> Any:
        data = image_folder(images)
        data.transform = transforms.Compose(
            [transforms.Resize((9, 9)), transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5, 0.0, 0.5))]
        )
        return outcomes(iter(DataLoader(data, batch_size=8, num_workers=0)))

    assert_same(scenario, taken=None, device="cpu", decoder="native")


def test_datasets_whose_len_fails(fallback: Route):
    class Endless(fallback.kind):  # type: ignore[name-defined,misc]
        def __len__(self) -> int:
            raise TypeError("nobody knows")

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(Endless(fallback.encoded), batch_size=2)
        listed = DataLoader(Endless(fallback.encoded), batch_size=2, sampler=[1, 2, 3])
        return [attempt(lambda: len(loader)), attempt(lambda: list(loader)), len(listed), list(listed)]

    fallback.same(scenario)


def test_encoded_datasets_whose_len_fails(accelerated: Route):
    """A sampler of the user's own needs no length."""

    class Endless(accelerated.kind):  # type: ignore[name-defined,misc]
        def __len__(self) -> int:
            raise TypeError("nobody knows")

    def scenario(DataLoader: Make) -> Any:
        loader = DataLoader(Endless(accelerated.encoded), batch_size=2)
        listed = DataLoader(Endless(accelerated.encoded), batch_size=2, sampler=[1, 2, 3])
        return [attempt(lambda: len(loader)), attempt(lambda: list(loader)), len(listed), list(listed)]

    assert_same(scenario, taken=None, device="cpu", decoder="native")


def test_data_with_keys_for_ids(accelerated: Route):
    """torch hands whatever the sampler yields to the data set."""

    class Keyed(accelerated.kind):  # type: ignore[name-defined,misc]
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(int(key[1:]))

        def get_encoded(self, key: str) -> Any:
            return super().get_encoded(int(key[1:]))

    def scenario(DataLoader: Make) -> Any:
        return list(DataLoader(Keyed(accelerated.encoded), batch_size=2, sampler=["p3", "p0", "p9"]))

    assert_same(scenario, taken=None, device="cpu", decoder="native")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_of_iterable_data(fallback: Route, num_workers: int):
    class Failing(Counting):
        def __iter__(self):
            for i in super().__iter__():
                if i == 5:
                    raise RuntimeError("five")
                yield i

    def scenario(DataLoader: Make) -> Any:
        return outcomes(iter(DataLoader(Failing(9), batch_size=2, num_workers=num_workers)))

    fallback.same(scenario)
