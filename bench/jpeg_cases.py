"""The rows of `python -m bench.jpeg`: what is compared with what, on which data, and what is promised of the ratio.

Owns the list, and how a row's rounds become its line. How rows are timed is jpeg_loaders.py's and jpeg_single.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuload.cli.bench.measure import spread

IMAGES_PER_S, GIL_US, CPU_US, MB_PER_S = "images/s", "us of GIL", "us of CPU", "MB/s a core"
LOWER_IS_BETTER = (GIL_US, CPU_US)


@dataclass(frozen=True)
class Case:
    """One row. ours, theirs: names within `work`. floor, aim: of the ratio, None where nothing is promised.

    most_us: (floor, aim) of our own figure, for the row whose promise is not a ratio.
    """

    name: str
    what: str
    work: str
    ours: str
    theirs: str
    unit: str = IMAGES_PER_S
    floor: float | None = None
    aim: float | None = None
    most_us: tuple[float, float] | None = None


CASES = (
    Case("train-dali", "RandomResizedCrop(224), flip, normalise; index learned before; DALI's CPU pipeline",
         "train", "default", "dali", floor=2.5, aim=3.3),
    Case("train-torch", "the same; torch's DataLoader on Pillow", "train", "default", "torch", floor=4.0, aim=5.5),
    Case("train-no-index", 'the same, entropy_index="off"; DALI', "train", "no index", "dali", floor=1.8, aim=2.2),
    Case("train-learning", "the epoch that learns the index; DALI", "train", "learning", "dali"),
    Case("train-exact", 'fidelity="exact", with index; DALI', "train", "exact", "dali", floor=1.6, aim=2.2),
    Case("train-fast", 'fidelity="fast", with index; DALI', "train", "fast", "dali"),
    Case("eval-dali", "Resize(256), CenterCrop(224); DALI", "eval", "default", "dali", floor=2.0, aim=3.0),
    Case("mosaics-dali", "4000 x 3000, 4:2:0, RandomResizedCrop(224); DALI",
         "mosaics", "default", "dali", floor=2.5, aim=5.0),
    Case("tiny-dali", "32 x 32 from packed shards, flip, normalise; DALI on the same shards",
         "tiny", "default", "dali", floor=1.5, aim=3.0),
    Case("tiny-gil", "the same: CPU time an image under Python's lock; DALI",
         "tiny gil", "default", "dali", GIL_US, most_us=(5.0, 3.0)),
    Case("whole-simplejpeg", "whole image, exact, one thread; simplejpeg.decode_jpeg",
         "whole", "gpuload", "simplejpeg", CPU_US, floor=0.8, aim=1.2),
    Case("whole-pillow", "whole image, exact, one thread; Pillow", "whole", "gpuload", "pillow", CPU_US),
    Case("crop-pillow", "random crop to 224 x 224, exact, one thread; Pillow", "crop", "gpuload", "pillow", CPU_US),
    Case("resized-pillow", "whole image to 224 x 224, exact, one thread; Pillow",
         "resized", "gpuload", "pillow", CPU_US),
    Case("index-simplejpeg", "making the entropy index of packed shards; simplejpeg's whole decode",
         "index", "gpuload", "simplejpeg", MB_PER_S, floor=1.3, aim=2.0),
)  # fmt: skip
NAMES = tuple(case.name for case in CASES)


@dataclass(frozen=True)
class Timed:
    """What came of one work: each contender's figure a round, in its case's unit; why others have none."""

    figures: Mapping[str, Sequence[float]]
    missing: Mapping[str, str] = field(default_factory=dict)
    images: int = 0

    def reason(self, case: Case) -> str:
        """Why this row has no figures, "" where it has."""
        return "; ".join(f"{name}: {self.missing[name]}" for name in (case.ours, case.theirs) if name in self.missing)


def line(case: Case, timed: Timed) -> dict[str, Any]:
    """The row's figures: medians over the rounds, of the ratio within each round. Above 1, ours is the better one."""
    pairs = list(zip(timed.figures[case.ours], timed.figures[case.theirs], strict=True))
    lower = case.unit in LOWER_IS_BETTER
    ratio = spread((theirs / ours if lower else ours / theirs) for ours, theirs in pairs)
    found: dict[str, Any] = {
        "case": case.name,
        "what": case.what,
        "ratio": ratio.median,
        "ours": spread(ours for ours, _ in pairs).median,
        "theirs": spread(theirs for _, theirs in pairs).median,
        "unit": case.unit,
        "floor": case.floor,
        "aim": case.aim,
        "peer": case.theirs,
        "ratios": [ratio.low, ratio.high],
        "rounds": len(pairs),
        "images": timed.images,
    }
    if case.most_us is not None:
        found |= {"floor_us": case.most_us[0], "aim_us": case.most_us[1]}
    return found


HEAD = f"{'case':<17} {'ratio':>6} {'rounds':>14} {'floor':>6} {'aim':>6} {'ours':>9} {'theirs':>9}  unit"


def text(found: Mapping[str, Any]) -> str:
    """The row as HEAD's columns."""
    bounds = [
        f"{found[key + '_us']:g} us" if key + "_us" in found else "" if found[key] is None else f"{found[key]:g}"
        for key in ("floor", "aim")
    ]
    low, high = found["ratios"]
    return (
        f"{found['case']:<17} {found['ratio']:>6.2f} {f'{low:.2f} to {high:.2f}':>14} {bounds[0]:>6} {bounds[1]:>6} "
        f"{_number(found['ours']):>9} {_number(found['theirs']):>9}  {found['unit']}"
    )


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
