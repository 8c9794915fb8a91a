"""What a run of the fuzzer found, counted: by kind of change, by outcome, and whatever must be looked at one by one."""

from __future__ import annotations

import heapq
import platform
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SLOWEST = 20


@dataclass
class Summary:
    """Grows by `add`. kinds: of changes, an input that has several counts under each. slowest: (ms, seed)."""

    inputs: int = 0
    left_out: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    native_by_kind: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest: list[tuple[float, int]] = field(default_factory=list)

    def add(self, result: dict[str, Any]) -> None:
        """One line of a child (see __main__.py)."""
        if result["outcome"] == "left out":
            self.left_out += 1
            return
        self.inputs += 1
        self.outcomes[result["outcome"]] += 1
        for kind in set(result.get("kinds", ())):
            self.kinds[kind] += 1
            self.native_by_kind[kind] += result["outcome"] == "native"
        if "ms" in result:
            heapq.heappush(self.slowest, (result["ms"], result["seed"]))
            if len(self.slowest) > SLOWEST:
                heapq.heappop(self.slowest)
        if result["problems"]:
            self.findings.append(result)

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "inputs": self.inputs,
            "left_out": self.left_out,
            "findings": len(self.findings),
            "outcomes": dict(self.outcomes.most_common()),
            "kinds": {
                kind: {"inputs": count, "native": self.native_by_kind[kind]} for kind, count in self.kinds.most_common()
            },
            "slowest": [{"seed": seed, "ms": ms} for ms, seed in sorted(self.slowest, reverse=True)],
            "found": self.findings,
            "versions": versions(),
        }

    def text(self) -> str:
        """For a terminal."""
        lines = [
            f"{self.inputs} inputs, {len(self.findings)} findings, {self.left_out} left out (no GPULOAD_DATA)",
            "outcomes:",
        ]
        lines += [f"{count:10} {outcome}" for outcome, count in self.outcomes.most_common()]
        lines += ["kinds of changes, and how many of each were decoded natively:"]
        lines += [f"{count:10} {self.native_by_kind[kind]:8} {kind}" for kind, count in self.kinds.most_common()]
        slowest = ", ".join(f"{seed} ({ms:.0f} ms)" for ms, seed in sorted(self.slowest, reverse=True)[:5])
        return "\n".join([*lines, f"slowest seeds: {slowest}"])


def versions() -> dict[str, str]:
    """Of what takes part."""
    import numba
    import numpy
    import PIL
    from PIL import features

    return {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "pillow": PIL.__version__,
        "libjpeg-turbo": features.version("libjpeg_turbo") or "",
    }
