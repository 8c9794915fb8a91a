"""On a CUDA GPU: do accelerated batches arrive where, when and as they should, and does the GPU still wait?

Command:  python -m bench.gpu [--json FILE]      (make gpu-check)
Machine:  named in the first line of the output.
Result:   one JSON line a check as it ends, a table last; code 0 if all passed, 1 if one failed, 2 without a GPU.
Needs torch, torchvision, Pillow and Numba only. What it holds against what:

    arrival    batches are CUDA tensors, and equal to the host's where they are read on the consumer's current stream
    checksums  every batch of an epoch on the GPU has the sum of the same batch with device="cpu"
    held       batches that are kept stay as they were while a side stream and later batches keep the GPU busy
    training   a ResNet-18 step under autocast: images/s, and the share of time that it waits; torch's loader beside it
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18

from gpuload import DataLoader

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EVAL = transforms.Compose(
    [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
)
TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)


def make_images(folder: Path, *, classes: int = 4, per_class: int = 96) -> None:
    """Class folders of JPEGs with odd and even sides, smooth shapes under noise: nothing to download."""
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for i in range(per_class):
            draw = np.random.default_rng((label, i))
            width, height = int(draw.integers(300, 601)), int(draw.integers(300, 501))
            coarse = draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
            noisy = np.clip(image + draw.normal(0, 12, image.shape) + 20 * label, 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"class{label}" / f"{i:03d}.jpg", quality=95, subsampling=2 * (i % 2))


def loader(folder: Path, *, device: str, transform: Any = EVAL, batch_size: int = 37, **more: Any) -> Any:
    """gpuload's, on the accelerated path or not at all; 37 leaves an odd last batch."""
    dataset = ImageFolder(str(folder), transform=transform)
    return DataLoader(
        dataset, batch_size=batch_size, num_workers=_threads(), device=device, decoder="pillow", accelerate="require",
        **more,
    )  # fmt: skip


def _threads() -> int:
    return min(16, len(os.sched_getaffinity(0)))


def check_arrival(folder: Path) -> dict[str, Any]:
    """Read on the default stream and on another one, without any synchronisation but the stream's own order."""
    expected = [images.clone() for images, _ in loader(folder, device="cpu")]
    side = torch.cuda.Stream()
    wrong = 0
    for stream in (torch.cuda.default_stream(), side):
        with torch.cuda.stream(stream):
            copies = []
            for images, labels in loader(folder, device="cuda"):
                wrong += images.device.type != "cuda" or labels.device.type != "cuda"
                copies.append(images.to("cpu", copy=True))
        wrong += sum(not torch.equal(mine, truth) for mine, truth in zip(copies, expected, strict=True))
    return {"passed": wrong == 0, "wrong": wrong, "batches": 2 * len(expected)}


def check_checksums(folder: Path) -> dict[str, Any]:
    """Sums of the bit patterns, so that no rounding hides a difference; random crops with the same seed."""

    def sums(device: str) -> list[list[int]]:
        batches = loader(folder, device=device, transform=TRAIN, seed=7, order="shuffle")
        return [
            [int(images.contiguous().view(torch.int32).sum(dtype=torch.int64)), int(labels.sum())]
            for images, labels in batches
        ]

    cpu, cuda = sums("cpu"), sums("cuda")
    different = sum(mine != truth for mine, truth in zip(cuda, cpu, strict=True))
    return {"passed": different == 0, "batches": len(cpu), "different": different}


def check_held(folder: Path) -> dict[str, Any]:
    """All batches of two epochs are kept while matrices are multiplied on a side stream."""
    expected = [images.clone() for images, _ in loader(folder, device="cpu")]
    busy = torch.cuda.Stream()
    matrix = torch.randn(4096, 4096, device="cuda")
    held = []
    batches = loader(folder, device="cuda")
    for _ in range(2):
        for images, _labels in batches:
            busy.wait_stream(torch.cuda.current_stream())  # the consumer's duty, as with any tensor
            with torch.cuda.stream(busy):
                for _ in range(8):
                    matrix = (matrix @ matrix).clamp(-1, 1)
                images.record_stream(busy)
                used = images.mul(1.0)  # a consumer's own work on another stream: its result must be right too
            held.append((images, used))
    torch.cuda.synchronize()
    wrong = sum(
        not torch.equal(tensor.cpu(), truth) for pair, truth in zip(held, expected * 2, strict=True) for tensor in pair
    )
    return {"passed": wrong == 0, "held": len(held), "wrong": wrong}


def check_training(folder: Path, *, batch_size: int = 64, steps: int = 60) -> dict[str, Any]:
    """The same step behind both loaders; starved is the share of time in next(), the first five steps left out."""
    from torch.utils.data import DataLoader as TorchDataLoader

    dataset = ImageFolder(str(folder), transform=TRAIN)
    ours: Any = DataLoader(
        dataset, batch_size, shuffle=True, num_workers=_threads(), device="cuda", accelerate="require"
    )
    theirs = TorchDataLoader(
        dataset, batch_size, shuffle=True, num_workers=_threads(), persistent_workers=True, pin_memory=True
    )
    found: dict[str, Any] = {"passed": True, "batch_size": batch_size}
    for name, batches in (("gpuload", ours), ("torch", theirs)):
        figures = _train(batches, steps)
        found |= {f"{name}_{key}": value for key, value in figures.items()}
        found["passed"] &= np.isfinite(figures["last_loss"])
    found["passed"] = bool(found["passed"])
    return found


def _train(batches: Any, steps: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = resnet18(num_classes=4).cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    waits_s, began_s, images_seen, step = 0.0, 0.0, 0, 0
    loss = torch.zeros(())
    while step < steps:
        iterator = iter(batches)
        while step < steps:
            asked_s = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                break
            got_s = time.perf_counter()
            images, labels = (part.to("cuda", non_blocking=True) for part in batch)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
            optimiser.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
            torch.cuda.current_stream().synchronize()  # so that waiting shows as waiting, not as a queue
            step += 1
            if step == 5:
                began_s = time.perf_counter()
            elif step > 5:
                waits_s += got_s - asked_s
                images_seen += len(images)
    span_s = time.perf_counter() - began_s
    return {
        "images_per_s": images_seen / span_s,
        "starved_pct": 100 * waits_s / span_s,
        "last_loss": float(loss.detach()),
    }


CHECKS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "arrival": check_arrival,
    "checksums": check_checksums,
    "held": check_held,
    "training": check_training,
}


def main(argv: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Runs every check, whatever the others say. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="append the lines to this file too")
    asked = parser.parse_args(argv)
    if not torch.cuda.is_available():
        out.write("gpu-check: no CUDA GPU that this torch can use, so nothing was checked (code 2)\n")
        return 2
    name = torch.cuda.get_device_name()
    out.write(f"gpu-check on {name}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        make_images(images)
        for check, run in CHECKS.items():
            began_s = time.perf_counter()
            try:
                found = run(images)
            except Exception as error:  # one check that breaks must not hide what the others find
                found = {"passed": False, "error": f"{type(error).__name__}: {error}"}
            line = {"check": check, **found, "took_s": round(time.perf_counter() - began_s, 2), "gpu": name}
            lines.append(line)
            text = json.dumps(line) + "\n"
            out.write(text)
            out.flush()
            if asked.json is not None:
                with asked.json.open("a") as file:
                    file.write(text)
    for line in lines:
        facts = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in _facts(line).items())
        out.write(f"{'ok' if line['passed'] else 'FAILED':<7} {line['check']:<10} {facts}\n")
    return 0 if all(line["passed"] for line in lines) else 1


def _facts(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("check", "passed", "gpu")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
