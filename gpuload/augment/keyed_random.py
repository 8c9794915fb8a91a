"""torch's random functions drawing from a sample's own key, in one thread and for a while.

Exists because operations that are not fused draw from torch's global generator: from several threads that would be
neither reproducible nor safe for the training script's own draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_DRAWING = {
    torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial,
    torch.poisson, torch._sample_dirichlet, torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.random_,
    torch.Tensor.exponential_, torch.Tensor.bernoulli_, torch.Tensor.bernoulli, torch.Tensor.multinomial,
    torch.Tensor.cauchy_, torch.Tensor.geometric_, torch.Tensor.log_normal_,
}  # fmt: skip
_LIKE: dict[Any, Callable[..., torch.Tensor]] = {
    torch.rand_like: torch.Tensor.uniform_,
    torch.randn_like: torch.Tensor.normal_,
    torch.randint_like: torch.Tensor.random_,
}
_LOCAL = threading.local()


class KeyedRandom(TorchFunctionMode):
    """Within it, torch's random functions draw from a generator of the sample's own, in this thread only.

    So per-sample operations are reproducible whatever thread runs them, and never touch the training
    script's global generator. key: uint32 (4,).
    """

    def __init__(self, key: np.ndarray):
        super().__init__()
        generator = getattr(_LOCAL, "generator", None)
        if generator is None:
            generator = _LOCAL.generator = torch.Generator()
        generator.manual_seed(int(key[0]) | int(key[1]) << 32)
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None:
            if func in _DRAWING:
                kwargs = {**kwargs, "generator": self.generator}
            elif func in _LIKE:
                like, *bounds = args
                bounds += [kwargs[name] for name in ("low", "high") if name in kwargs]
                given = {name: value for name, value in kwargs.items() if name not in ("low", "high", "generator")}
                # filled in its own memory's order, as torch does
                return _LIKE[func](torch.empty_like(like, **given), *bounds, generator=self.generator)
        return func(*args, **kwargs)
