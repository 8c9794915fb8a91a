"""Mixed batches against torchvision's own MixUp and CutMix, on host memory and as the GPU's kernels do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gpuload.kernels import mix as kernels
from torchvision.transforms import v2

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LAYOUTS = [torch.contiguous_format, torch.channels_last]
SHAPES = [(1, 3, 5, 7), (2, 3, 1, 1), (5, 3, 9, 4), (3, 3, 41, 67)]  # the last one's rows are two stretches and a piece
SHARES = [0.0, 0.3141592653589793, 0.5, 1.0]
CLASSES = 6


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bits(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as kernels see it."""
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype.itemsize == 2 else tensor.numpy()


def images_of(dtype: torch.dtype, layout: torch.memory_format, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(len(shape) + shape[0]).standard_normal(shape) * 40)
    return values.to(dtype).contiguous(memory_format=layout)


def labels_of(n: int) -> torch.Tensor:
    return torch.tensor([4, 0, 5, 5, 1])[:n]


def mixed_by_torchvision(op: Any, params: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> Any:
    """Its own code, but for the draw."""
    op.make_params = lambda flat_inputs: params
    return op(images, labels)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", SHARES)
def test_mixup_is_torchvisions_to_the_bit(dtype, layout, shape, share):
    images, labels = images_of(dtype, layout, shape), labels_of(shape[0])
    expected, named = mixed_by_torchvision(v2.MixUp(num_classes=CLASSES), {"lam": share}, images, labels)
    assert np.array_equal(kernels.mix_names(labels.numpy(), CLASSES, share), named.numpy())
    if images.dtype.itemsize > 2:
        assert np.array_equal(kernels.mix_reference(images.numpy(), share), expected.numpy())
    kernels.mix(bits(images), name(dtype), share)
    assert np.array_equal(bits(images), bits(expected))


@pytest.mark.parametrize("dtype", FLOATS)
def test_labels_that_are_probabilities_mix_as_images_do(dtype):
    images, labels = torch.zeros(3, 3, 2, 2), images_of(dtype, torch.contiguous_format, (3, 5))
    expected = mixed_by_torchvision(v2.MixUp(), {"lam": 0.7}, images, labels)[1]
    kernels.mix(bits(labels), name(dtype), 0.7)
    assert np.array_equal(bits(labels), bits(expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("share", SHARES)
def test_every_value_of_16_bits_mixes_as_in_torch(dtype, share):
    every = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(dtype)
    x = torch.stack([every, every.roll(12345), every.flip(0)])
    expected = x.roll(1, 0).mul_(1.0 - share).add_(x.mul(share))
    kernels.mix(bits(x), name(dtype), share)
    same = (bits(x) == bits(expected)) | (x.isnan() & expected.isnan()).numpy()
    assert same.all(), np.argwhere(~same)[:5]


@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_of_the_rows_mixed_one_by_one_give_the_whole(dtype):
    whole = images_of(dtype, torch.channels_last, (4, 3, 40, 41))
    parts = whole.clone(memory_format=torch.preserve_format)
    length = whole[0].numel()
    kernels.mix(bits(whole), name(dtype), 0.3)
    before = bits(parts).copy()
    kernels.mix(bits(parts), name(dtype), 0.3, 100, 100)
    assert np.array_equal(bits(parts), before)
    for begin, end in ((4500, length + 9), (-3, 1), (1, 4500)):
        kernels.mix(bits(parts), name(dtype), 0.3, begin, end)
    assert np.array_equal(bits(parts), bits(whole))


BOXES = [(0, 0, 0, 0), (1, 0, 3, 4), (0, 0, 4, 9), (3, 8, 4, 9), (2, 3, 2, 7)]
ANY = [*FLOATS, torch.uint8, torch.int64]


@pytest.mark.parametrize("dtype", ANY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("box", BOXES)
def test_cutmix_is_torchvisions(dtype, layout, n, box):
    images, labels = images_of(dtype, layout, (n, 3, 9, 4)), labels_of(n)
    params = {"box": box, "lam_adjusted": 0.61}
    expected, named = mixed_by_torchvision(v2.CutMix(num_classes=CLASSES), params, images, labels)
    assert np.array_equal(kernels.mix_names(labels.numpy(), CLASSES, 0.61), named.numpy())
    assert np.array_equal(kernels.cut_reference(bits(images), *box), bits(expected))
    kernels.cut(bits(images), *box)
    assert np.array_equal(bits(images), bits(expected))


def test_a_box_beyond_the_image_is_cut_off_and_nothing_around_the_batch_is_written():
    around = np.arange(4 * 2 * 3 * 5 * 6, dtype=np.int64).astype(np.float32).reshape(8, 3, 5, 6)
    before, batch = around.copy(), around[2:5]
    kernels.cut(batch, -4, 3, 99, 77)
    assert np.array_equal(batch, kernels.cut_reference(before[2:5], 0, 3, 6, 5))
    kernels.mix(batch, "float32", 0.25)
    assert np.array_equal(around[:2], before[:2]) and np.array_equal(around[5:], before[5:])


def test_an_empty_batch_stays_empty():
    nothing = np.empty((0, 3, 4, 4), np.float32)
    kernels.mix(nothing, "float32", 0.5)
    kernels.cut(nothing, 0, 0, 2, 2)
    assert kernels.mix_names(np.empty(0, np.int64), 3, 0.5).shape == (0, 3)


@pytest.mark.parametrize("label", [-1, 6])
def test_a_label_that_is_no_class_is_named(label):
    with pytest.raises(ValueError, match=f"label {label} is none of num_classes=6"):
        kernels.mix_names(np.array([0, 5, label]), 6, 0.5)


def test_memory_with_gaps_is_refused():
    with pytest.raises(ValueError, match="one behind the other"):
        kernels.mix(np.zeros((3, 3, 4, 4), np.float32)[..., :2], "float32", 0.5)
    with pytest.raises(ValueError, match="one behind the other"):
        kernels.cut(np.zeros((3, 3, 4, 4), np.float32)[:, :, ::2], 0, 0, 1, 1)


ANYWHERE = pytest.mark.parametrize(
    "where", [pytest.param("cpu", marks=pytest.mark.full), pytest.param("cuda", marks=pytest.mark.gpu)]
)


def launch_on(where: str) -> Callable[..., None]:
    """The GPU's kernels: as g++ compiles them for host memory, or on a GPU on torch's current stream."""
    if where == "cpu":
        from tests.kernels.host_cuda import host_kernels

        return host_kernels().launch
    from gpuload.kernels.cuda_launch import cuda_kernels

    kernels = cuda_kernels(torch.cuda.current_device(), int(str(torch.version.cuda).split(".")[0]))
    return partial(kernels.launch, stream=torch.cuda.current_stream().cuda_stream)


@ANYWHERE
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gpus_kernel_mixes_the_same(where, dtype, layout, shape):
    n, share, launch = shape[0], SHARES[1], launch_on(where)
    images, labels = images_of(dtype, layout, shape), labels_of(shape[0])
    expected, named = mixed_by_torchvision(v2.MixUp(num_classes=CLASSES), {"lam": share}, images, labels)
    images, labels = images.to(where), labels.to(where)
    out, mixed = torch.empty_like(images), torch.empty(n, CLASSES, device=where)
    kernels.mix_on_device(launch, name(dtype), n, images[0].numel(), images.data_ptr(), share, out.data_ptr())
    assert np.array_equal(bits(out.cpu()), bits(expected))
    kernels.mix_names_on_device(launch, n, CLASSES, labels.data_ptr(), share, mixed.data_ptr())
    assert torch.equal(mixed.cpu(), named)


@ANYWHERE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gpus_kernel_knows_every_value_of_16_bits(where, dtype):
    """A GPU converts float16 by instructions of its own, g++ by others: both are IEEE 754's."""
    every = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(dtype)
    x = torch.stack([every, every.roll(12345)])
    expected, x = x.roll(1, 0).mul_(0.75).add_(x.mul(0.25)), x.to(where)
    out = torch.empty_like(x)
    kernels.mix_on_device(launch_on(where), name(dtype), 2, 1 << 16, x.data_ptr(), 0.25, out.data_ptr())
    out = out.cpu()
    assert ((bits(out) == bits(expected)) | (out.isnan() & expected.isnan()).numpy()).all()


@ANYWHERE
@pytest.mark.parametrize("dtype", ANY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("box", BOXES)
def test_the_gpus_kernel_cuts_the_same(where, dtype, layout, box):
    shape, last = (3, 3, 9, 4), layout is torch.channels_last
    images = images_of(dtype, layout, shape)
    there = images.to(where)
    out = torch.empty_like(there)
    kernels.cut_on_device(launch_on(where), dtype.itemsize, shape, last, there.data_ptr(), box, out.data_ptr())
    assert np.array_equal(bits(out.cpu()), kernels.cut_reference(bits(images), *box))
