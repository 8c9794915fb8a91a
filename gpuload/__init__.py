"""gpuload: a drop-in replacement for torch's DataLoader that keeps the GPU fed with JPEGs.

Owns the public names and where the kernels are found; everything else is done elsewhere. A name is imported
when it is first used, so that `gpuload --help` or a decode of one file does not wait for torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuload.augment.batch_ops import CutMix, MixUp, OneOf
    from gpuload.core.errors import (
        ConfigError,
        DeviceError,
        DeviceMemoryError,
        EpochCancelledError,
        GpuloadError,
        MissingDependencyError,
        NotAcceleratedError,
        SampleError,
        ShardError,
    )
    from gpuload.core.setting import Setting
    from gpuload.core.structure import EncodedImage
    from gpuload.dataset import ShardDataset
    from gpuload.decode.single import decode_jpeg
    from gpuload.loader import DataLoader
    from gpuload.mixed import MixedDataset
    from gpuload.numbered import Numbered
    from gpuload.tune.limits import Limits
    from gpuload.views import Views

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "CutMix",
    "DataLoader",
    "DeviceError",
    "DeviceMemoryError",
    "EncodedImage",
    "EpochCancelledError",
    "GpuloadError",
    "Limits",
    "MissingDependencyError",
    "MixUp",
    "MixedDataset",
    "NotAcceleratedError",
    "Numbered",
    "OneOf",
    "SampleError",
    "ShardDataset",
    "Setting",
    "ShardError",
    "Views",
    "decode_jpeg",
]

_HOMES = {
    "DataLoader": "gpuload.loader",
    "ShardDataset": "gpuload.dataset",
    "EncodedImage": "gpuload.core.structure",
    "decode_jpeg": "gpuload.decode.single",
    "CutMix": "gpuload.augment.batch_ops",
    "MixUp": "gpuload.augment.batch_ops",
    "MixedDataset": "gpuload.mixed",
    "Numbered": "gpuload.numbered",
    "Views": "gpuload.views",
    "OneOf": "gpuload.augment.batch_ops",
    "Setting": "gpuload.core.setting",
    "Limits": "gpuload.tune.limits",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "gpuload.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _adopt_kernels(package: Path) -> None:
    """Make ../kernels importable as gpuload.kernels where it is not inside the package: a checkout, not a wheel.

    One module is registered; the checkout's root does not join `__path__`, or `gpuload.tests` would import too.
    """
    entry = package.parent / "kernels" / "__init__.py"
    if (package / "kernels").is_dir() or not entry.is_file():
        return
    name = f"{__name__}.kernels"
    spec = importlib.util.spec_from_file_location(name, entry, submodule_search_locations=[str(entry.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {entry} as {name}: is it a readable Python file?")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    globals()["kernels"] = module


_adopt_kernels(Path(__file__).resolve().parent)
