"""What an error says, of which classes it is an instance, and that it survives a trip between processes."""

from __future__ import annotations

import pickle
import struct
import zlib

import pytest
from PIL import UnidentifiedImageError

from gpuload.core.errors import (
    ConfigError,
    GpuloadError,
    MissingDependencyError,
    NotAcceleratedError,
    SampleError,
    ShardError,
    sample_error,
)


class Response:
    text = "403: go away"


class ParticularError(Exception):
    """Its constructor asks for an object that only its own library has."""

    def __init__(self, response: Response):
        super().__init__(response.text)


class TwoArgumentsError(ValueError):
    def __init__(self, code: int, *, url: str):
        super().__init__(f"{code} at {url}")


CAUSES = [
    FileNotFoundError(2, "No such file or directory", "/data/cat.jpg"),
    UnidentifiedImageError("cannot identify image file"),
    KeyError("cls"),
    ValueError("too small"),
    IndexError("index 9 is out of range"),
    zlib.error("bad header"),
    struct.error("unpack requires 4 bytes"),
    RuntimeError("the user's own"),
    TimeoutError("5 s"),
    StopIteration(),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_a_sample_error_is_caught_by_whoever_caught_its_cause(cause: Exception):
    with pytest.raises(type(cause)) as caught:
        raise sample_error("train-003.tar", 17, "n01440764/5", cause) from cause
    error = caught.value
    assert isinstance(error, SampleError) and isinstance(error, GpuloadError)
    assert error.__cause__ is cause


@pytest.mark.parametrize(
    "cause",
    [
        *CAUSES,
        ParticularError(Response()),
        TwoArgumentsError(403, url="s3://x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_it_names_shard_sample_key_cause_and_cure(cause: Exception):
    error = sample_error("train-003.tar", 17, "n01440764/5", cause)
    assert str(error).startswith("sample 17 (n01440764/5) in train-003.tar: ")
    assert type(cause).__name__ in str(error)
    assert str(cause) in str(error)
    assert str(error).endswith(SampleError.CURE)
    assert (error.shard, error.sample, error.key) == ("train-003.tar", 17, "n01440764/5")
    assert error.kind == type(cause).__name__


def test_a_key_that_only_repeats_the_file_is_left_out():
    assert "(" not in str(sample_error("a/cat.jpg", 3, "a/cat.jpg", OSError("gone"))).split(" in ")[0]
    assert str(sample_error("a/cat.jpg", 3, "", OSError("gone"))).startswith("sample 3 in a/cat.jpg: OSError: gone")


def test_interrupts_do_not_become_a_base_of_an_exception():
    error = sample_error("x.tar", 0, "", KeyboardInterrupt())
    assert type(error) is SampleError and error.kind == "KeyboardInterrupt"


def test_an_error_that_names_its_sample_already_is_not_wrapped_in_another():
    inner = sample_error("train-003.tar", 5, "n01440764/5", OSError("truncated"))
    outer = sample_error("MyDataset", 17, "", inner)
    assert isinstance(outer, OSError)
    assert (outer.shard, outer.sample, outer.key, outer.kind) == ("train-003.tar", 17, "n01440764/5", "OSError")
    assert str(outer) == str(sample_error("train-003.tar", 17, "n01440764/5", OSError("truncated")))


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_it_is_picklable(cause: Exception):
    error = sample_error("train-003.tar", 17, "n01440764/5", cause)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, SampleError) and str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_shard_errors():
    error = ShardError("s3://bucket/x.tar", "no tar archive", "Look at its first bytes")
    assert str(error) == "shard s3://bucket/x.tar: no tar archive. Look at its first bytes"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.url, copy.problem, copy.cure, str(copy)) == (error.url, error.problem, error.cure, str(error))
    assert str(ShardError("x.tar", "empty")) == "shard x.tar: empty"


def test_what_else_each_error_is():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(MissingDependencyError, ImportError)
    assert issubclass(NotAcceleratedError, RuntimeError)
