"""How DALI is set on the GPU at hand: tried in processes that may crash or hang, remembered, then never changed.

Four questions, each asked in a subprocess with a time limit, on generated photographs of every chroma sampling:
* decode: are nvJPEG's pixels the same each time, and how far are they from libjpeg's? Where not, DALI is refused.
* regions: can nvJPEG decode slices (nvImageCodec#55: a crash on H100 and B200), near those cut from whole images? Where
  not, whole images are decoded and the slices cut from them.
* hardware: do the GPU's JPEG engines give exactly the pixels of nvJPEG's CUDA decoder? Where not they stay off: DALI
  shares a run between the two by sizes and counts, so an image's pixels would depend on its company (and
  torchcodec#1634: the engines ran ahead of the stream).
* speed: which hw_decoder_load is fastest here? Only where the engines may be used. Timed once, then kept, so that which
  decoder takes an image does not vary from start to start.

Owns the questions, the processes and the answers in the cache directory, kept by GPU, driver and DALI, the last one
also by threads. What crashed is remembered as a no; what ran out of time or memory, or told an error, is asked again.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.core.errors import ConfigError, MissingDependencyError
from gpuload.core.geometry import Resampling, identity
from gpuload.core.location import cache_dir
from gpuload.core.replacing import replacing
from gpuload.decode.dali import available
from gpuload.decode.dali_pipeline import DaliPipeline, DaliSettings, Output, graph, regions

TIME_LIMIT_S = 90.0  # of a question: CUDA's start and DALI's import take ten seconds on a busy machine
LOADS = (0.0, 0.25, 0.5, 0.65, 0.8)  # of hw_decoder_load: DALI's default among them
LEAST_GAIN = 1.03  # below it a larger load is noise, and nvJPEG's CUDA decoder needs no trust
FAR = 2.0  # of 255, mean: another IDCT and chroma filter are 0.3 to 0.6 away, wrong pixels 20 and more
IMAGES, ROWS, ROUNDS = 48, 128, 6
_MODULE = "gpuload.decode.dali_probe"
_log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class Card:
    """name: "NVIDIA H200". driver: its version. cuda: the newest CUDA that it runs, as 1000 * major + 10 * minor."""

    name: str
    driver: str
    cuda: int


@dataclass(frozen=True)
class Answer:
    """values: what a question's process found, None where it did not end well, and then why. lasting: no other answer
    is to be expected another time."""

    values: dict[str, Any] | None
    why: str = ""
    lasting: bool = True


def card(index: int) -> Card | None:
    """What the driver says of a GPU (torch's index), None without a driver or such a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    if driver.cuDeviceGetName(name, len(name), device) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    told = ""
    with contextlib.suppress(OSError):
        told = Path("/proc/driver/nvidia/version").read_text()
    found = re.search(r"\d+\.\d+(\.\d+)?", told)
    return Card(name.value.decode(errors="replace"), found[0] if found else str(version.value), version.value)


def check(found: Card | None, index: int, dali_cuda: int | None) -> Card:
    """The card, or an error that says why DALI's GPU operators cannot run. dali_cuda: its CUDA, e.g. 12090."""
    if found is None:
        raise ConfigError(
            f'decoder="dali" on GPU {index}: there is no NVIDIA driver, or it has no such GPU. Check `nvidia-smi`, or '
            'pass device="cpu"'
        )
    if dali_cuda is not None and found.cuda // 1000 < dali_cuda // 1000:
        mine, theirs = found.cuda // 1000, dali_cuda // 1000
        raise ConfigError(
            f'decoder="dali": DALI is a build for CUDA {theirs}, but driver {found.driver} runs CUDA {mine}. '
            f'Remove nvidia-dali-cuda{theirs}0 and install pip install "gpuload[cuda{mine}]", or update the driver'
        )
    return found


def dali_settings(index: int, threads: int) -> DaliSettings:
    """The settings for a GPU (torch's index) and CPU threads: remembered, or asked, which takes about a minute.

    Raises MissingDependencyError without DALI, ConfigError without such a GPU or where DALI decodes wrongly on it.
    """
    if reason := available():
        raise MissingDependencyError(
            f'decoder="dali": {reason}. Install it by pip install "gpuload[cuda13]", or "gpuload[cuda12]" if torch is '
            "a CUDA 12 build"
        )
    import nvidia.dali

    here = check(card(index), index, int(nvidia.dali.__cuda_version__))
    kept = Remembered(f"{here.name} {here.driver} {nvidia.dali.__version__}")
    decode = kept.answer("decode", index, threads)
    if decode.values is None or not decode.values["same"] or decode.values["distance"] > FAR:
        raise ConfigError(
            f'decoder="dali" does not decode rightly on {here.name} (driver {here.driver}): '
            f'{decode.why or decode.values}. Pass decoder="native"; {kept} keeps this answer'
        )
    cut = kept.answer("regions", index, threads)
    decode_regions = cut.values is not None and cut.values["same"] and cut.values["distance"] < FAR
    hardware = kept.answer("hardware", index, threads)
    load = 0.0
    if hardware.values is not None and hardware.values["same"]:
        way = "regions" if decode_regions else "whole"
        speed = kept.answer("speed", index, threads, f"{way} {threads} threads", way)
        load = fastest(speed.values["rates"]) if speed.values is not None else 0.0
    return DaliSettings(decode_regions, load, decode.values["distance"])


def fastest(rates: Sequence[float]) -> float:
    """The load to take, given images a second for each of LOADS: more than none only where it gains."""
    best = max(range(len(rates)), key=lambda i: rates[i])
    return LOADS[best] if rates[best] >= LEAST_GAIN * rates[0] else LOADS[0]


class Remembered:
    """Answers for one GPU, driver and DALI, in the cache directory; where nothing can be written, asked each time."""

    def __init__(self, what: str):
        self._path = os.path.join(cache_dir(), "dali", re.sub(r"[^\w.]+", "-", what) + ".json")

    def __str__(self) -> str:
        return self._path

    def answer(self, question: str, index: int | None, threads: int, key: str = "", *arguments: str) -> Answer:
        key = f"{question} {key}".strip()
        known = self._read()
        if key in known:
            return known[key]
        _log.info("asking DALI in a process of its own: %s (up to %.0f s, once)", key, TIME_LIMIT_S)
        found = ask(question, index, threads, *arguments)
        if found.lasting:
            known = self._read() | {key: found}
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                with replacing(self._path) as file:
                    file.write(json.dumps({name: vars(answer) for name, answer in known.items()}, indent=1).encode())
        return found

    def _read(self) -> dict[str, Answer]:
        try:
            known = json.loads(Path(self._path).read_bytes())
            return {name: Answer(**answer) for name, answer in known.items()}
        except (OSError, ValueError, TypeError, AttributeError):  # none yet, or not what was written
            return {}


def ask(question: str, index: int | None, threads: int, *arguments: str, limit_s: float = TIME_LIMIT_S) -> Answer:
    """What a process of its own finds. index: None asks DALI's CPU operators, which shows that the questions work."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [
        sys.executable,
        "-m",
        _MODULE,
        question,
        "cpu" if index is None else str(index),
        str(threads),
        *arguments,
    ]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return Answer(None, f"it took more than {limit_s:.0f} s", lasting=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = " ".join(done.stderr.strip().splitlines()[-1:])
        crashed = done.returncode < 0  # by a signal
        return Answer(None, f"its process ended with code {done.returncode}. {said}"[:500], lasting=crashed)
    return Answer(json.loads(lines[-1]))


def photographs(count: int, side: int = 480) -> list[np.ndarray]:
    """Encoded, uint8 each: a photograph's spectrum, odd sizes, every sampling that Pillow writes, grey, progressive."""
    from PIL import Image

    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        width, height = (int(n) for n in rng.integers(side // 2, side, 2))
        total = np.zeros((height, width, 3), np.float32)
        for cell, weight in ((1, 0.08), (4, 0.15), (16, 0.3), (64, 0.47)):
            small = rng.integers(0, 256, (-(-height // cell) + 1, -(-width // cell) + 1, 3), np.uint8)
            total += weight * np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
        file = io.BytesIO()
        image = Image.fromarray(total.astype(np.uint8)).convert("L" if number % 12 == 11 else "RGB")
        image.save(
            file, "JPEG", quality=90, subsampling=("4:4:4", "4:2:0", "4:2:2")[number % 3], progressive=number % 8 == 7
        )
        made.append(np.frombuffer(file.getvalue(), np.uint8))
    return made


class Trial:
    """Decodes the generated images in several ways on one device. index: None for DALI's CPU operators."""

    def __init__(self, index: int | None, threads: int):
        self._index, self._threads = index, threads
        self.jpegs = photographs(IMAGES)
        sizes = [_size(jpeg) for jpeg in self.jpegs]
        self._widths, self._heights = (np.array(side, np.int64) for side in zip(*sizes, strict=True))
        self._rng = np.random.default_rng(1)

    def pipeline(self, settings: DaliSettings, *, cpu: bool = False) -> DaliPipeline:
        index = None if cpu else self._index
        made = graph(
            Resampling(), device="cpu" if index is None else "gpu", rows=ROWS, threads=self._threads, settings=settings,
            device_id=index,
        )  # fmt: skip
        return DaliPipeline(made)

    def whole(self) -> np.ndarray:
        """REGION that decodes and keeps whole images."""
        return regions(identity(self._widths, self._heights), self._widths, self._heights, Resampling())

    def slices(self) -> np.ndarray:
        """REGION of a random part of each."""
        geometry = identity(self._widths, self._heights)
        w, h = self._rng.integers(1, self._widths + 1), self._rng.integers(1, self._heights + 1)
        geometry["crop"] = np.stack(
            [self._rng.integers(0, self._widths - w + 1), self._rng.integers(0, self._heights - h + 1), w, h], 1
        )
        geometry["resize"] = geometry["window"][:, 2:] = geometry["crop"][:, 2:]
        return regions(geometry, self._widths, self._heights, Resampling())

    def images(self, pipeline: DaliPipeline, planned: np.ndarray, order: np.ndarray | None = None) -> list[np.ndarray]:
        """Copies, in the images' own order whatever the order in which DALI is given them."""
        order = np.arange(IMAGES) if order is None else order
        done = Output(0, IMAGES, pipeline.run([self.jpegs[i] for i in order], planned[order])).arrays()
        return [done[i].copy() for i in np.argsort(order)]

    def in_any_order(self, pipeline: DaliPipeline, planned: np.ndarray) -> set[tuple[int, ...]]:
        """All checksums that ROUNDS of the same images give, in other company each time: one, if all is well."""
        orders = [np.arange(IMAGES), *(self._rng.permutation(IMAGES) for _ in range(ROUNDS - 1))]
        return {tuple(zlib.crc32(image.data) for image in self.images(pipeline, planned, order)) for order in orders}


_WHOLE = DaliSettings(decode_regions=False)


def _decode(trial: Trial) -> dict[str, Any]:
    pipeline, whole = trial.pipeline(_WHOLE), trial.whole()
    far = distance(trial.images(pipeline, whole), trial.images(trial.pipeline(_WHOLE, cpu=True), whole))
    return {"same": len(trial.in_any_order(pipeline, whole)) == 1, "distance": far}


def _regions(trial: Trial) -> dict[str, Any]:
    cutting, pipeline = trial.pipeline(DaliSettings(decode_regions=True)), trial.pipeline(_WHOLE)
    far, same = 0.0, True
    for _ in range(ROUNDS):
        planned = trial.slices()
        far = max(far, distance(trial.images(cutting, planned), trial.images(pipeline, planned)))
        same = same and len(trial.in_any_order(cutting, planned)) == 1
    return {"same": same, "distance": far}


def _hardware(trial: Trial) -> dict[str, Any]:
    whole = trial.whole()
    found = trial.in_any_order(trial.pipeline(_WHOLE), whole)
    for load in (0.5, 1.0):
        found |= trial.in_any_order(trial.pipeline(replace(_WHOLE, hw_decoder_load=load)), whole)
    return {"same": len(found) == 1}


def _speed(trial: Trial, decode_regions: bool) -> dict[str, Any]:
    """Images a second for each of LOADS, medians: two pipelines at once, as DaliGpuDecoder runs them, by turns."""
    order = np.arange(ROWS) % IMAGES
    jpegs, planned = [trial.jpegs[i] for i in order], trial.whole()[order]
    pipelines = [[trial.pipeline(DaliSettings(decode_regions, load)) for _ in range(2)] for load in LOADS]
    times: list[list[float]] = [[] for _ in LOADS]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(1 + ROUNDS):  # the first one allocates
            for pair, taken in zip(pipelines, times, strict=True):
                began = time.perf_counter()
                list(threads.map(lambda pipeline: pipeline.run(jpegs, planned), pair))
                taken.append(time.perf_counter() - began)
    return {"rates": [round(2 * ROWS / statistics.median(taken[1:]), 1) for taken in times]}


def distance(images: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    """Mean absolute difference, of 255; infinite where sizes differ."""
    if [image.shape for image in images] != [image.shape for image in others]:
        return float("inf")
    pairs = zip(images, others, strict=True)
    return float(np.concatenate([np.abs(a.astype(np.int16) - b).ravel() for a, b in pairs]).mean())


def _size(jpeg: np.ndarray) -> tuple[int, int]:
    from gpuload.decode.jpeg_header import read_header

    header = read_header(jpeg)
    assert header is not None
    return header.width, header.height


def main(arguments: Sequence[str]) -> int:
    question, index, threads, *rest = arguments
    trial = Trial(None if index == "cpu" else int(index), max(1, -(-int(threads) // 2)))
    if question == "speed":
        found = _speed(trial, rest == ["regions"])
    else:
        found = {"decode": _decode, "regions": _regions, "hardware": _hardware}[question](trial)
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
