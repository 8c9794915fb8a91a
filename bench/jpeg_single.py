"""Rows of `python -m bench.jpeg` with no loader in them: one JPEG after the other on one thread, and index building.

Owns the calls and their clock: CPU time of the process, so that a busy machine disturbs less. All contenders of a work
take turns within a round, and their pixels have to be Pillow's to the bit before anything is timed.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

import gpuload
from bench.jpeg_cases import Timed
from gpuload.cli.bench.measure import rotations
from gpuload.cli.index import index
from gpuload.cli.pack import pack

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Work:
    """size: (width, height) of the result, None for the crop's own. cropped: a random crop, not the whole image."""

    size: tuple[int, int] | None = None
    cropped: bool = False


WORKS = {"whole": Work(), "crop": Work((224, 224), True), "resized": Work((224, 224))}
CONTENDERS = ("gpuload", "pillow", "simplejpeg")


def decoder(name: str, work: Work) -> Callable[[bytes, Box], np.ndarray]:
    """What this contender does with one file: (bytes, box) -> uint8 (height, width, 3)."""

    def by_gpuload(data: bytes, box: Box) -> np.ndarray:
        return gpuload.decode_jpeg(data, crop=box if work.cropped else None, size=work.size, fidelity="exact")

    def by_pillow(data: bytes, box: Box) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        if work.cropped:
            image = image.crop((box[0], box[1], box[0] + box[2], box[1] + box[3]))
        return np.asarray(image if work.size is None else image.resize(work.size, Image.Resampling.BILINEAR))

    def by_simplejpeg(data: bytes, box: Box) -> np.ndarray:
        import simplejpeg

        return simplejpeg.decode_jpeg(data)

    return {"gpuload": by_gpuload, "pillow": by_pillow, "simplejpeg": by_simplejpeg}[name]


def boxes(files: Sequence[bytes]) -> list[Box]:
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


def time_decoders(work: Work, names: Sequence[str], files: Sequence[bytes], *, rounds: int) -> Timed:
    """CPU microseconds an image."""
    crops = boxes(files)
    missing = absent(names)
    running = {name: decoder(name, work) for name in names if name not in missing}
    truth = decoder("pillow", work)
    for data, box in zip(files, crops, strict=True):
        pixels = truth(data, box)
        for name in list(running):
            reason = wrong(running[name], data, box, pixels)
            if reason:
                missing[name] = reason
                del running[name]

    def cpu_us(name: str) -> float:
        decode = running[name]
        began_s = time.process_time()
        for data, box in zip(files, crops, strict=True):
            decode(data, box)
        return (time.process_time() - began_s) / len(files) * 1e6

    return Timed(_rounds(dict.fromkeys(running, cpu_us), rounds), missing, len(files))


def wrong(decode: Callable[[bytes, Box], np.ndarray], data: bytes, box: Box, pixels: np.ndarray) -> str:
    """Why this contender is not timed, "" where it gives these pixels."""
    try:
        same = np.array_equal(decode(data, box), pixels)
    except Exception as error:  # a contender that fails is a row without figures, not the end of the run
        return f"not timed: {type(error).__name__}: {error}"
    return "" if same else "not timed: its pixels differ from Pillow's"


def time_index(names: Sequence[str], paths: Sequence[Path], *, folder: Path, rounds: int) -> Timed:
    """Encoded megabytes a CPU second, all threads' time counted: packed shards indexed, and the same files decoded."""
    missing = absent(names)
    files = [path.read_bytes() for path in paths]
    megabytes = sum(map(len, files)) / 1e6
    (folder / "photographs").mkdir()
    for number, path in enumerate(paths):
        (folder / "photographs" / f"{number:06d}.jpg").symlink_to(path.resolve())
    shards = pack(str(folder / "photographs"), str(folder / "packed"), shard_size="16MB").shards
    sidecars = [Path(shard + SIDECAR) for shard in shards]
    for sidecar in sidecars:
        sidecar.unlink(missing_ok=True)
    try:
        build_index(shards)
    except gpuload.GpuloadError as error:
        missing["gpuload"] = f"not timed: {error}"
    if "gpuload" not in missing and not all(sidecar.exists() for sidecar in sidecars):
        missing["gpuload"] = f"not timed: `gpuload index` left no {SIDECAR} beside the shards"

    def indexed(name: str) -> float:
        began_s = time.process_time()
        build_index(shards)
        return megabytes / (time.process_time() - began_s)

    def decoded(name: str) -> float:
        decode = decoder(name, WORKS["whole"])
        began_s = time.process_time()
        for data in files:
            decode(data, (0, 0, 0, 0))
        return megabytes / (time.process_time() - began_s)

    ways = {"gpuload": indexed, "simplejpeg": decoded}
    return Timed(_rounds({name: ways[name] for name in names if name not in missing}, rounds), missing, len(files))


SIDECAR = ".gpuload-entropy"


def build_index(shards: Sequence[str]) -> None:
    """The entropy index of these shards, made anew."""
    index(shards, entropy=True, rebuild=True)


def absent(names: Sequence[str]) -> dict[str, str]:
    """Which of these contenders is not installed, and how it is."""
    return {
        name: "absent: pip install 'gpuload[bench]'"
        for name in names
        if name == "simplejpeg" and find_spec("simplejpeg") is None
    }


def _rounds(ways: Mapping[str, Callable[[str], float]], rounds: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for order in rotations(list(ways), rounds):
        for name in order:
            figures[name].append(ways[name](name))
    return figures
