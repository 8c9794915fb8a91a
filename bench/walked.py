"""How much of a JPEG's scan is decoded for a random crop: from its start, from starts of rows, from points in rows?

Command:  python -m bench.walked [DATA] [--draws 20] [--json FILE]
          DATA: a folder of JPEGs, or of class folders; $GPULOAD_DATA/photos where not given.
Result:   a line a way: the mean share of MCUs that is walked for RandomResizedCrop(224), as torchvision draws it. From
          the files' headers alone, the same on every machine.
Explanation: docs/kernels.md.

A row of MCUs is entered at the last seek point before the crop, or where the row above was left if that is later, and
left at the crop's right edge. Without points, one walk leads from the scan's start to the crop's last MCU. Points stand
every so many MCUs of the scan, whether or not that falls into step with rows. Progressive files have no such scan, and
are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

SPACINGS = 32, 16, 8, 4
"""MCUs from point to point, the same for all images."""
FINEST, RECORD_SHARE, POINT_BYTES = 4, 0.02, 4.75
"""gpuload's own points stand every 4 MCUs or a multiple of that, the least with which they fit in 2% of the file.
How many bytes a point takes is the image's: this is what most photographs come to."""


@dataclass(frozen=True)
class Window:
    """MCUs [top, bottom) x [left, right) of an image of `wide` x `high`. spacing: of points that fit 2% of its file."""

    wide: int
    high: int
    left: int
    top: int
    right: int
    bottom: int
    spacing: int = FINEST


@dataclass(frozen=True)
class Frame:
    """An image's size, and an MCU's, in pixels; its file's in bytes."""

    width: int
    height: int
    mcu_width: int
    mcu_height: int
    nbytes: int


def frame_of(path: Path) -> Frame | None:
    """None for what is no sequential JPEG."""
    with Image.open(path) as image:
        layers = getattr(image, "layer", None)
        if image.format != "JPEG" or not layers or "progression" in image.info:
            return None
        h, v = (max(layer[axis] for layer in layers) for axis in (1, 2)) if len(layers) > 1 else (1, 1)
        return Frame(image.width, image.height, 8 * h, 8 * v, path.stat().st_size)


def window_of(frame: Frame, x: int, y: int, w: int, h: int) -> Window:
    """The MCUs of a crop: with one more sample of subsampled colour on each side, which upsampling reads."""

    def span(start: int, length: int, size: int, mcu: int) -> tuple[int, int, int]:
        margin, count = mcu // 8, -(-size // mcu)
        return count, max(start - margin, 0) // mcu, min(-(-(start + length + margin) // mcu), count)

    wide, left, right = span(x, w, frame.width, frame.mcu_width)
    high, top, bottom = span(y, h, frame.height, frame.mcu_height)
    points = max(1, int(frame.nbytes * RECORD_SHARE / POINT_BYTES))
    return Window(wide, high, left, top, right, bottom, -(-wide * high // (FINEST * points)) * FINEST)


def walked(window: Window, spacing: int | None) -> int:
    """MCUs that are decoded with a seek point every `spacing` MCUs; with the scan's start alone if that is None."""
    total, at = 0, 0
    for row in range(window.top, window.bottom):
        first, end = row * window.wide + window.left, row * window.wide + window.right
        at = max(at, first - first % spacing) if spacing else at
        total, at = total + end - at, end
    return total


def needed(window: Window) -> int:
    """MCUs that the crop is in."""
    return (window.right - window.left) * (window.bottom - window.top)


WAYS: dict[str, Callable[[Window], int]] = {
    "no index": lambda window: walked(window, None),
    "row starts": lambda window: walked(window, window.wide),
    **{f"every {spacing} MCUs": partial(walked, spacing=spacing) for spacing in SPACINGS},
    "points in 2%": lambda window: walked(window, window.spacing),
    "the crop itself": needed,
}


def windows(frames: Sequence[Frame], draws: int) -> Iterator[Window]:
    """Random crops of each image, with torchvision's defaults."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for frame in frames:
            blank = torch.empty(1, frame.height, frame.width, device="meta")
            for _ in range(draws):
                y, x, h, w = RandomResizedCrop.get_params(blank, scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3])
                yield window_of(frame, x, y, w, h)


def main(argv: Sequence[str]) -> int:
    """Prints the shares. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.walked", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=os.path.join(os.environ.get("GPULOAD_DATA", ""), "photos"))
    parser.add_argument("--draws", type=int, default=20, help="crops of each photograph")
    parser.add_argument("--json", type=Path, default=None, help="append the lines to this file")
    asked = parser.parse_args(argv)
    if asked.draws < 1:
        parser.error("--draws starts at 1")
    paths = sorted(path for path in Path(asked.data).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    frames = [frame for frame in map(frame_of, paths) if frame is not None]
    if not frames:
        sys.stderr.write(
            f"bench: no sequential JPEGs at {asked.data!r}: give a folder, or set GPULOAD_DATA to one with photos/\n"
        )
        return 2
    drawn = list(windows(frames, asked.draws))
    sys.stdout.write(f"{len(frames)} photographs, {asked.draws} crops each: MCUs walked\n")
    for name, count in WAYS.items():
        share = sum(count(window) / (window.wide * window.high) for window in drawn) / len(drawn)
        sys.stdout.write(f"{name:<16} {share:6.1%}\n")
        if asked.json is not None:
            with asked.json.open("a") as out:
                out.write(json.dumps({"case": name, "share": share, "photographs": len(frames), "draws": asked.draws}))
                out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
