"""How fast does gpuload decode a JPEG on one core, next to Pillow, for the same bytes out?

Command:  python -m bench.jpeg [DATA] [--json FILE] [--rounds 5]
          DATA: a folder of JPEGs; $GPULOAD_DATA/photos where not given.
Machine:  stands in every line of bench/results/jpeg.jsonl.
Result:   a line a case: `case`, `ratio` (Pillow's time over ours), `ours`, `theirs` in microseconds of CPU an image.
Explanation: docs/kernels.md.

Pixels are compared before anything is timed; rounds are interleaved, medians taken, CPU time counted and not wall time.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image

import gpuload

Decode = Callable[[bytes, tuple[int, int, int, int]], np.ndarray]


def by_pillow(size: tuple[int, int] | None, cropped: bool) -> Decode:
    def decode(data: bytes, box: tuple[int, int, int, int]) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        if cropped:
            image = image.crop((box[0], box[1], box[0] + box[2], box[1] + box[3]))
        return np.asarray(image if size is None else image.resize(size, Image.Resampling.BILINEAR))

    return decode


def by_gpuload(size: tuple[int, int] | None, cropped: bool) -> Decode:
    return lambda data, box: gpuload.decode_jpeg(data, crop=box if cropped else None, size=size)


CASES: dict[str, tuple[tuple[int, int] | None, bool]] = {
    "whole image": (None, False),
    "random crop, resized to 224 x 224": ((224, 224), True),
    "whole image, resized to 224 x 224": ((224, 224), False),
}


def boxes(files: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """A crop of each image: RandomResizedCrop's areas, without its aspect ratios."""
    generator = np.random.default_rng(0)
    found = []
    for data in files:
        width, height = Image.open(io.BytesIO(data)).size
        side = float(np.sqrt(generator.uniform(0.08, 1.0)))
        w, h = max(1, int(width * side)), max(1, int(height * side))
        x, y = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
        found.append((x, y, w, h))
    return found


def cpu_us(decode: Decode, files: Sequence[bytes], crops: Sequence[tuple[int, int, int, int]]) -> float:
    began = time.process_time()
    for data, box in zip(files, crops, strict=True):
        decode(data, box)
    return (time.process_time() - began) / len(files) * 1e6


def machine() -> dict[str, str]:
    """What a figure is worth nothing without."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {name: metadata.version(name) for name in ("numba", "numpy", "pillow")}
    return {"cpu": (models or [platform.machine()])[0], "python": platform.python_version(), **versions}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jpeg", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=os.path.join(os.environ.get("GPULOAD_DATA", ""), "photos"))
    parser.add_argument("--json", default=None, help="append the lines to this file")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(argv)
    paths = sorted(path for path in Path(asked.data).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        sys.stderr.write(f"bench: no JPEGs at {asked.data!r}: give a folder, or set GPULOAD_DATA\n")
        return 2
    files = [path.read_bytes() for path in paths]
    crops = boxes(files)
    lines = []
    for case, (size, cropped) in CASES.items():
        ours, theirs = by_gpuload(size, cropped), by_pillow(size, cropped)
        for data, box in zip(files, crops, strict=True):
            if not np.array_equal(ours(data, box), theirs(data, box)):
                sys.stderr.write(f"bench: {case}: pixels differ from Pillow's, so nothing is timed\n")
                return 1
        rounds = [(cpu_us(ours, files, crops), cpu_us(theirs, files, crops)) for _ in range(asked.rounds)]
        mine, pillows = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(b / a for a, b in rounds)
        figures = {"case": case, "ratio": ratio, "ours": mine, "theirs": pillows, "images": len(files)}
        lines.append(figures | {"rounds": asked.rounds, "machine": machine()})
        sys.stdout.write(f"{case:36} {mine:7.0f} us   Pillow {pillows:7.0f} us   {ratio:.2f} x\n")
    if asked.json:
        with Path(asked.json).open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
