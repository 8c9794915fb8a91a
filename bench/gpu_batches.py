"""Whole batches on the GPU against those of device="cpu", whose pixels are Pillow's: bit for bit, never nearly.

Every type and layout that a batch can have, random crops and the evaluation transform, with an odd last batch. A batch
that a CPU decoded would be right and prove nothing: so the loader must say that the GPU took all of them. Owns the
comparison, which names the first image that is wrong and by how much, since that is where a search begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchvision.datasets import ImageFolder

from bench.gpu_loaders import loader, on_gpu_share, shards, transform
from bench.gpu_section import Bench, Row

BATCH = 37  # odd, so that the last one is short too
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
LAYOUTS = (torch.contiguous_format, torch.channels_last)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GPU_SHARE = 0.99
"""Of the made images at least: all have seek points. Of photographs some don't."""


def rows(bench: Bench) -> Iterator[Row]:
    cases = [(crop, dtype, layout) for crop in ("train", "eval") for dtype in DTYPES for layout in LAYOUTS]
    for crop, dtype, layout in cases:
        name = f"{crop}, {str(dtype).removeprefix('torch.')}, {'NHWC' if layout is torch.channels_last else 'NCHW'}"
        compare = partial(compared, bench, bench.shards, crop, dtype, layout, least_share=GPU_SHARE)
        yield bench.tried(name, compare)
    yield bench.tried("class folders", partial(folders, bench))
    if bench.photos is None:
        yield {"row": "photographs", "passed": None, "left_out": "GPULOAD_DATA is not set"}
        return
    for crop in ("train", "eval"):
        compare = partial(compared, bench, bench.photos, crop, torch.float32, LAYOUTS[0], least_share=0.5)
        yield bench.tried(f"photographs, {crop}", compare)


def compared(
    bench: Bench,
    folder: Path,
    crop: str,
    dtype: torch.dtype,
    layout: torch.memory_format,
    *,
    least_share: float,
    device: str = "cuda",
) -> Row:
    """One epoch on `device` against the same on the CPU; least_share: of the images, decoded by the GPU."""
    dataset = shards(folder, crop, uint8=dtype is torch.uint8)
    options = {"dtype": dtype, "memory_format": layout, "seed": 7, "order": "shuffle", "batch_size": BATCH}
    truth = list(loader(dataset, threads=bench.threads, device="cpu", decoder="native", **options))
    batches = loader(dataset, threads=bench.threads, device=device, decoder="native", **options)
    return held_against(batches, truth, least_share=least_share, layout=layout)


def folders(bench: Bench, device: str = "cuda") -> Row:
    """The same from class folders, in torch's own order, with the defaults of everything else."""
    dataset = ImageFolder(str(bench.classes), transform("eval"))
    truth = list(loader(dataset, threads=bench.threads, batch_size=BATCH, device="cpu"))
    batches = loader(dataset, threads=bench.threads, batch_size=BATCH, device=device)
    return held_against(batches, truth, least_share=GPU_SHARE, layout=LAYOUTS[0])


def held_against(batches: Any, truth: Sequence[Any], *, least_share: float, layout: torch.memory_format) -> Row:
    """One epoch of a loader against batches on the host: values, labels, type, layout, and who decoded."""
    found = differences(batches, truth, layout=layout)
    decoders = dict(batches.stats().decoders)
    share = on_gpu_share(decoders)
    passed = not found and share >= least_share
    return {"passed": passed, "batches": len(truth), "gpu_share": share, "decoders": decoders, **found}


def differences(batches: Any, truth: Sequence[Any], *, layout: torch.memory_format) -> Row:
    """{} where all batches have the same bits, else how many have not, and the first of them."""
    wrong: Row = {}
    count = mistaken = 0
    for number, (batch, true_batch) in enumerate(zip(batches, truth, strict=True)):
        (images, labels), (true_images, true_labels) = batch, true_batch
        same = same_bits(images, true_images) and torch.equal(labels.cpu(), true_labels)
        mistaken += not images.is_contiguous(memory_format=layout)
        if not same:
            count += 1
            wrong = wrong or {"first_wrong_batch": number, **first_wrong_image(images, true_images)}
    if mistaken:
        wrong["wrong_layouts"] = mistaken
    return {"wrong_batches": count, **wrong} if wrong else {}


def same_bits(mine: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether two tensors have one shape, one type and one bit pattern: NaN and -0.0 count as what they are."""
    if mine.shape != truth.shape or mine.dtype != truth.dtype:
        return False
    as_bits = BITS[mine.element_size()]
    return torch.equal(mine.cpu().contiguous().view(as_bits), truth.cpu().contiguous().view(as_bits))


def first_wrong_image(mine: torch.Tensor, truth: torch.Tensor) -> Row:
    """Where a search begins: the row of the batch, its first wrong pixel, how many values are wrong and by how much."""
    if mine.shape != truth.shape or mine.dtype != truth.dtype:
        return {"got": f"{mine.dtype} {tuple(mine.shape)}", "wanted": f"{truth.dtype} {tuple(truth.shape)}"}
    mine, truth = mine.cpu(), truth.cpu()
    rows = [row for row in range(len(mine)) if not same_bits(mine[row], truth[row])]
    if not rows:
        return {"wrong": "labels"}
    as_bits = BITS[mine.element_size()]
    image, true_image = mine[rows[0]].contiguous(), truth[rows[0]].contiguous()
    unequal = image.view(as_bits) != true_image.view(as_bits)
    return {
        "wrong_images": len(rows),
        "first_wrong_image": rows[0],
        "first_wrong_place": torch.nonzero(unequal)[0].tolist(),  # channel, y, x
        "wrong_values": int(unequal.sum()),
        "largest_difference": float((image.double() - true_image.double()).abs().max()),
    }
