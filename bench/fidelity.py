"""What does `fidelity="fast"` change, what does it save, and does a network notice?

Command:  python -m bench.fidelity [DATA] [--json FILE] [--images N] [--rounds 3] [--picture FILE] [--quick]
          DATA: a folder of JPEGs, or of class folders; $GPULOAD_DATA/photos where not given. --picture: draws it alone.
Machine:  stands in every line of the JSON file, with versions and commit.
Result:   a line a row of CASES, then bench/fidelity_loss.py's. Code 0 where both limits hold everywhere, else 1.
Explanation: docs/fidelity.md.

Both fidelities deliver the same random crops as bytes, through whole loaders without threads. Equal crops would hide
what others differ by: `mean`, `99.9%`, `worst` and `values` are of those crops alone in which something differs, and
`crops` is their share. `ratio`: CPU time of exact by that of fast, of all crops, the median over the rounds; with seek
points and without.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops
from torchvision.transforms import Compose, InterpolationMode, PILToTensor, RandomResizedCrop

import gpuload
from bench import made_jpegs
from bench.fidelity_loss import QUICK, Task, compare_losses
from gpuload import DataLoader, ShardDataset
from gpuload.cli.bench.machine import this_machine, versions
from gpuload.cli.bench.measure import rotations, spread
from gpuload.cli.pack import pack

LIMITS = {"mean": 0.6, "p999": 8}
"""What is promised of fast, in levels of 255."""
MOSAICS = 12
WAYS = {
    "exact": ("exact", "read"),
    "fast": ("fast", "read"),
    "exact off": ("exact", "off"),
    "fast off": ("fast", "off"),
}
"""fidelity and entropy_index of the loaders that take turns."""

PICTURE_SIZE, PICTURE_ENLARGED, PICTURE_GAIN = 112, 2, 16


@dataclass(frozen=True)
class Case:
    """RandomResizedCrop(size) of one data set, "photos" or "mosaics"."""

    data: str
    size: int
    interpolation: str

    @property
    def name(self) -> str:
        return f"{self.data}-{self.size}-{self.interpolation}"


CASES = (
    *(Case("photos", size, kind) for size in (224, 96, 64, 32) for kind in ("bilinear", "bicubic")),
    *(Case("mosaics", 224, kind) for kind in ("bilinear", "bicubic")),
)


@dataclass(frozen=True)
class Difference:
    """crops: share that differs, 0 to 1; all else is of these alone. values: share that differs.

    mean, p999, worst: in levels of 255; 99.9% of the values are no further off than p999.
    """

    crops: float
    mean: float
    p999: int
    worst: int
    values: float


def difference(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Difference:
    """Of pairs of uint8 arrays (n, ...), n crops each."""
    levels, all_crops, other_crops = np.zeros(256, np.int64), 0, 0
    for one, other in pairs:
        apart = np.abs(one.astype(np.int16) - other).reshape(len(one), -1)
        differing = apart[apart.any(axis=1)]
        levels += np.bincount(differing.ravel(), minlength=256)
        all_crops, other_crops = all_crops + len(apart), other_crops + len(differing)
    if not other_crops:
        return Difference(0.0, 0.0, 0, 0, 0.0)
    total = int(levels.sum())
    return Difference(
        other_crops / all_crops,
        float(levels @ np.arange(256)) / total,
        int(np.searchsorted(np.cumsum(levels), 0.999 * total)),
        int(np.flatnonzero(levels)[-1]),
        1 - int(levels[0]) / total,
    )


def packed(paths: Sequence[Path], folder: Path) -> list[str]:
    """Tar shards of these files in their order, seek points beside them; in `folder`, which must be new."""
    (folder / "files").mkdir(parents=True)
    for number, path in enumerate(paths):
        (folder / "files" / f"{number:06d}.jpg").symlink_to(path.resolve())
    return list(pack(str(folder / "files"), str(folder / "shards")).shards)


def measure(case: Case, shards: Sequence[str], *, rounds: int) -> dict[str, Any]:
    """One row: pixels compared and times taken over `rounds` epochs, each of other crops, after one for warming up."""
    crop = RandomResizedCrop(case.size, interpolation=InterpolationMode(case.interpolation))
    dataset = ShardDataset(list(shards), transform=Compose([crop, PILToTensor()]))
    loaders: dict[str, DataLoader] = {
        name: DataLoader(
            dataset, batch_size=16, num_workers=0, device="cpu", seed=0, order="sequential", fidelity=fidelity,
            entropy_index=index, accelerate="require",
        )
        for name, (fidelity, index) in WAYS.items()
    }  # fmt: skip
    cpu_us: dict[str, list[float]] = {name: [] for name in WAYS}

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for epoch, order in enumerate(rotations(list(WAYS), rounds + 1)):
            taken = {}
            for name in order:
                loaders[name].set_epoch(epoch)
                began_s = time.process_time()
                taken[name] = [images.numpy() for images, *_ in loaders[name]]
                cpu_us[name].append(1e6 * (time.process_time() - began_s) / len(dataset))
            yield from zip(taken["exact"], taken["fast"], strict=True)

    apart = difference(batches())
    exact, fast, exact_no_index, fast_no_index = (each[1:] for each in cpu_us.values())
    ratio = spread(one / other for one, other in zip(exact, fast, strict=True))
    no_index = spread(one / other for one, other in zip(exact_no_index, fast_no_index, strict=True))
    return {
        "case": case.name,
        **asdict(apart),
        "ratio": ratio.median,
        "ratios": [ratio.low, ratio.high],
        "ratio_no_index": no_index.median,
        "exact_us": spread(exact).median,
        "fast_us": spread(fast).median,
        "limit_mean": LIMITS["mean"],
        "limit_p999": LIMITS["p999"],
        "images": len(dataset),
        "rounds": rounds,
    }


def within_limits(found: dict[str, Any]) -> bool:
    return all(found[name] <= limit for name, limit in LIMITS.items())


HEAD = (
    f"{'case':<21} {'crops':>6} {'mean':>6} {'limit':>6} {'99.9%':>6} {'limit':>6} {'worst':>6} {'values':>7} "
    f"{'ratio':>6} {'no index':>9} {'exact us':>9} {'fast us':>8}"
)


def text(found: dict[str, Any]) -> str:
    """The row as HEAD's columns."""
    return (
        f"{found['case']:<21} {found['crops']:>6.1%} {found['mean']:>6.3f} {found['limit_mean']:>6} {found['p999']:>6} "
        f"{found['limit_p999']:>6} {found['worst']:>6} {found['values']:>7.1%} {found['ratio']:>6.2f} "
        f"{found['ratio_no_index']:>9.2f} {found['exact_us']:>9.0f} {found['fast_us']:>8.0f}"
    )


def picture(source: Image.Image) -> Image.Image:
    """The picture made small in exact, in fast, and their difference times PICTURE_GAIN, side by side."""
    encoded = io.BytesIO()
    source.convert("RGB").save(encoded, "JPEG", quality=made_jpegs.QUALITY, subsampling="4:2:0")
    size = (PICTURE_SIZE, PICTURE_SIZE * source.height // source.width)
    exact, fast = (
        Image.fromarray(gpuload.decode_jpeg(encoded.getvalue(), size=size, fidelity=fidelity))
        for fidelity in ("exact", "fast")
    )
    apart = ImageChops.difference(exact, fast).point([min(255, PICTURE_GAIN * level) for level in range(256)] * 3)
    wide, high, gap = size[0] * PICTURE_ENLARGED, size[1] * PICTURE_ENLARGED, 8
    sheet = Image.new("RGBA", (3 * wide + 2 * gap, high))
    for place, part in enumerate((exact, fast, apart)):
        sheet.paste(part.resize((wide, high), Image.Resampling.NEAREST), (place * (wide + gap), 0))
    return sheet


def draw(file: Path) -> None:
    """The picture of docs/fidelity.md, of NASA's astronaut: in the public domain, and shipped by scikit-image."""
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SystemExit("bench: the picture is made of one that scikit-image ships: pip install 'gpuload[demo]'")
    picture(Image.open(Path(spec.origin).parent / "data" / "astronaut.png")).save(file, optimize=True)


def tell(sentence: str) -> None:
    sys.stderr.write(f"bench: {sentence}\n")


def main(argv: Sequence[str]) -> int:
    """Measures every row, then compares losses. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=os.path.join(os.environ.get("GPULOAD_DATA", ""), "photos"))
    parser.add_argument("--json", type=Path, default=None, help="append the lines to this file")
    parser.add_argument("--images", type=int, default=None, help="only the first so many photographs")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each row")
    parser.add_argument("--picture", type=Path, default=None, help="draw the page's picture to this PNG, nothing else")
    parser.add_argument("--quick", action="store_true", help="few and small: that everything runs, no figures to quote")
    asked = parser.parse_args(argv)
    if asked.picture is not None:
        draw(asked.picture)
        return 0
    if asked.rounds < 1 or (asked.images is not None and asked.images < 1):
        parser.error("--rounds and --images start at 1")
    photos = sorted(path for path in Path(asked.data).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photos = photos[: asked.images]
    if not photos:
        tell(f"no JPEGs at {asked.data!r}: give a folder, or set GPULOAD_DATA to one that holds photos/")
        return 2
    common = {
        "machine": asdict(this_machine()),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }

    def record(found: dict[str, Any], shown: str) -> None:
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()
        if asked.json is not None:
            with asked.json.open("a") as out:
                out.write(json.dumps({**found, **common}) + "\n")

    sys.stdout.write(f"{this_machine()}; {len(photos)} photographs\n{HEAD}\n")
    cases = CASES[-3:] if asked.quick else CASES
    sound = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tell("packing the photographs, making mosaics")
        shards = {"photos": packed(photos, folder / "photos")}
        size = made_jpegs.TILE if asked.quick else made_jpegs.MOSAIC
        made_jpegs.mosaics(photos, folder / "made", count=1 if asked.quick else MOSAICS, size=size)
        shards["mosaics"] = packed(sorted((folder / "made").iterdir()), folder / "mosaics")
        for case in cases:
            found = measure(case, shards[case.data], rounds=asked.rounds)
            record(found, text(found))
            sound = sound and within_limits(found)
        task = QUICK if asked.quick else Task()
        tell(f"training {2 * task.seeds} small networks to tell {len(photos)} photographs apart")
        for found, shown in compare_losses(shards["photos"], task).lines():
            record(found, shown)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
