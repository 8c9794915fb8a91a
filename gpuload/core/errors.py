"""Every error that gpuload raises: what was wrong, where (shard, sample), and what to do.

Owns the classes and their wording. A foreign error is wrapped once, where it is met, with `from`;
the wrapper is also an instance of the foreign error's class, so that `except OSError` written for
torch's loader still catches what it caught there.
"""

from __future__ import annotations

import errno
import re
from functools import lru_cache
from typing import Any


class GpuloadError(Exception):
    """Base of all errors that gpuload raises on its own account."""


class ConfigError(GpuloadError, ValueError):
    """An argument, or a combination of arguments, that cannot be carried out."""


class MissingDependencyError(GpuloadError, ImportError):
    """An optional package is needed for what was asked; the message names the extra that installs it."""


class NotAcceleratedError(GpuloadError, RuntimeError):
    """`accelerate="require"` was asked for a loader that would take torch's path; the message says why."""


class EpochCancelledError(GpuloadError, RuntimeError):
    """A batch was asked of an iterator whose work was cancelled (closed, or inherited over a fork)."""


class DeviceMemoryError(GpuloadError, RuntimeError):
    """The GPU has no room for a batch, though no other waits to be taken."""


class DeviceError(GpuloadError, RuntimeError):
    """The GPU refused work, or is lost; the message holds what CUDA said."""


class ShardError(GpuloadError):
    """A shard cannot be read or is not what it should be.

    Attributes: `url` (the shard), `problem` (what was wrong), `cure` (what to do).
    """

    def __init__(self, url: str, problem: str, cure: str = ""):
        self.url, self.problem, self.cure = url, problem, cure
        super().__init__(f"shard {url}: {problem}" + (f". {cure}" if cure else ""))

    def __reduce__(self):
        return (ShardError, (self.url, self.problem, self.cure))


class SampleError(GpuloadError):
    """One sample cannot be delivered.

    Attributes: `shard` (file or URL), `sample` (dataset index), `key` (its name inside the shard,
    or ""), `problem` (what was wrong), `kind` (short name under which it is counted), `cure` (what to do).
    """

    CURE = 'Repair or remove it, or pass on_error="skip" or "replace" to go on without it'
    EXHAUSTED_CURE = (
        "The process is out of memory or of file descriptors, so on_error does not apply: give it more (ulimit -n for "
        "files), or lower batch_size, prefetch_factor or num_workers"
    )

    def __init__(self, shard: str, sample: Any, key: str, problem: str, kind: str = "SampleError", cure: str = CURE):
        self.shard, self.sample, self.key, self.problem, self.kind = shard, sample, key, problem, kind
        self.cure = cure
        super().__init__(f"{self.where}: {problem}. {cure}")

    @property
    def where(self) -> str:
        """The sample, its key and its shard, in words."""
        named = f" ({self.key})" if self.key and self.key != self.shard else ""
        return f"sample {self.sample}{named} in {self.shard}"

    def __str__(self) -> str:  # a foreign class in the bases (OSError, KeyError) would format args its own way
        return self.args[0] if self.args else self.problem

    def __reduce__(self):
        return (SampleError, (self.shard, self.sample, self.key, self.problem, self.kind, self.cure))


def sample_error(shard: str, sample: Any, key: str, cause: BaseException) -> SampleError:
    """The `SampleError` for `cause`, also an instance of `type(cause)` where Python's layouts allow it.

    A cause that is a SampleError already keeps its shard and key, which say more than those of what wraps it.
    """
    if isinstance(cause, SampleError):
        return type(cause)(cause.shard, sample, cause.key, cause.problem, cause.kind, cause.cure)
    cls = _also_a(type(cause))  # type: ignore[arg-type]  # mypy takes metaclass type for unhashable
    name = type(cause).__name__
    text = _BUFFER.sub("", str(cause)) or name
    problem = text if name in text or isinstance(cause, GpuloadError) else f"{name}: {text}"
    return cls(shard, sample, key, problem, name, SampleError.EXHAUSTED_CURE if exhausted(cause) else SampleError.CURE)


_BUFFER = re.compile(r"\s*<_io\.BytesIO object at 0x[0-9A-Fa-f]+>")
"""What Pillow names instead of a file: another text each time for the same sample."""


def exhausted(error: BaseException | None) -> bool:
    """Whether the process ran out of memory or file descriptors, by `error` or its causes: no sample is at fault."""
    seen: list[BaseException] = []
    while error is not None and not any(error is other for other in seen):
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return True
        seen.append(error)
        error = error.__cause__
    return False


@lru_cache(maxsize=256)
def _also_a(cause: type[BaseException]) -> type[SampleError]:
    """SampleError and `cause`, or its nearest base that can be had: a constructor may ask for more than a message."""
    for base in cause.__mro__:
        if base is Exception or not issubclass(base, Exception):
            break
        try:
            combined = type(f"SampleError[{base.__name__}]", (SampleError, base), {})
            combined("shard", 0, "", "probe")
            return combined
        except Exception:  # incompatible layouts, or that constructor: the next base names everything too
            continue
    return SampleError
