"""What is read of torchvision's transforms, what is not, and that nothing is read as known that does something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from gpuload.augment import batch_ops, ops
from gpuload.augment.torchvision import NotUnderstoodError, read_batch_transform, read_transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
BOTH = pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])


def read(*chain: Any) -> Any:
    return read_transform(v2.Compose(list(chain)))


@BOTH
def test_the_usual_training_transform_is_fused_whole(T: Any):
    plan = read_transform(
        T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(0.3), T.ToTensor(), T.Normalize(MEAN, STD)])
    )
    assert plan.geometry == (
        ops.RandomResizedCrop(224, 224, (0.08, 1.0), (3 / 4, 4 / 3)),
        ops.RandomHorizontalFlip(0.3),
    )
    assert plan.pointwise == ("ToTensor", "Normalize") and plan.rest is None
    assert (plan.resampling.interpolation, plan.resampling.domain, plan.dtype) == ("bilinear", "pil", "float32")
    spec = plan.tensor_spec(False)
    assert spec is not None and (spec.shape, spec.dtype) == ((3, 224, 224), "float32")


@BOTH
@pytest.mark.parametrize("size", [7, (7, 9), [7]])
def test_sizes(T: Any, size: Any):
    height, width = (7, 9) if size == (7, 9) else (7, 7)
    assert read(T.CenterCrop(size), T.ToTensor()).geometry == (ops.CenterCrop(height, width),)
    assert read(T.RandomCrop(size), T.ToTensor()).geometry == (ops.RandomCrop(height, width),)
    resize = ops.Resize(height=7, width=9) if size == (7, 9) else ops.Resize(shorter=7)
    assert read(T.Resize(size), T.ToTensor()).geometry == (resize,)


@BOTH
@pytest.mark.parametrize(
    ("padding", "sides"),
    [
        (None, (0, 0, 0, 0)),
        (0, (0, 0, 0, 0)),
        (4, (4, 4, 4, 4)),
        ((1, 2), (1, 2, 1, 2)),
        ([1, 2, 3, 4], (1, 2, 3, 4)),
        ([3], (3, 3, 3, 3)),
    ],
)
def test_paddings_are_left_top_right_bottom(T: Any, padding: Any, sides: tuple[int, int, int, int]):
    plan = read(T.RandomCrop(9, padding=padding, pad_if_needed=True, fill=(9, 8, 7)), T.ToTensor())
    assert plan.geometry == (ops.RandomCrop(9, 9, sides, True),) and plan.resampling.fill == (9, 8, 7)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"])
@BOTH
def test_interpolations(T: Any, mode: str):
    assert read(T.Resize(7, interpolation=InterpolationMode(mode)), T.ToTensor()).resampling.interpolation == mode


def test_v2_takes_interpolations_by_name_and_by_pillows_number():
    for given in ("bicubic", 3, Image.Resampling.BICUBIC, InterpolationMode.BICUBIC):
        assert read(v2.RandomResizedCrop(7, interpolation=given), v2.ToTensor()).resampling.interpolation == "bicubic"


def test_a_padded_crop_after_a_resize_keeps_its_filter():
    for fill in (0, 7):
        plan = read(v2.Resize(9, interpolation="bicubic"), v2.RandomCrop(9, padding=2, fill=fill), v2.ToTensor())
        assert plan.rest is None
        assert (plan.resampling.interpolation, plan.resampling.fill) == ("bicubic", (fill,) * 3)
        plan = read(v2.ToImage(), v2.Resize(9, antialias=False), v2.RandomCrop(9, padding=2, fill=fill))
        assert (plan.resampling.antialias, plan.resampling.domain) == (False, "tensor")


def test_where_two_operations_fill_with_different_values_the_second_runs_per_sample():
    plan = read(v2.RandomCrop(9, padding=2, fill=255), v2.Resize(20), v2.CenterCrop(40), v2.ToTensor())
    assert plan.rest_names == ("CenterCrop", "ToTensor")
    plan = read(v2.CenterCrop(40), v2.Resize(20), v2.RandomCrop(30, padding=9, fill=1), v2.ToTensor())
    assert plan.rest_names == ("RandomCrop", "ToTensor")
    plan = read(v2.CenterCrop(40), v2.Resize(20), v2.RandomCrop(30, padding=9), v2.ToTensor())
    assert plan.rest is None


@pytest.mark.parametrize(
    "crop",
    [
        v1.RandomCrop(9, padding=2, padding_mode="reflect"),
        v2.RandomCrop(9, padding=2, padding_mode="edge"),
        v2.RandomCrop(9, padding=-1),
        v1.RandomCrop(9, padding=(1, 2, 3)),
        v2.RandomCrop(9, padding=2, fill=0.5),
        v2.RandomCrop(9, padding=2, fill=300),
        v2.RandomCrop(9, padding=2, fill={tv_tensors.Image: 1, "others": 2}),
        v1.Resize((7, 9), max_size=20),
        v1.Resize(9, max_size=9),
        v2.RandomResizedCrop(9, scale=(0.0, 1.0)),
    ],
    ids=repr,
)
def test_what_is_beyond_the_fused_operations_runs_as_given(crop: Any):
    plan = read(v2.RandomHorizontalFlip(), crop, v2.ToTensor())
    assert plan.rest_names == (type(crop).__name__, "ToTensor")
    with pytest.raises(NotUnderstoodError, match=f"starts with {type(crop).__name__}, which needs the decoded PIL"):
        read(crop, v2.ToTensor())


def test_padding_that_does_not_pad_may_say_what_it_likes():
    assert read(v1.RandomCrop(9, padding_mode="reflect", fill=0.5), v1.ToTensor()).rest is None


def test_v1_pads_tensors_with_numbers_only():
    by_number, by_three = v1.RandomCrop(9, padding=2, fill=5), v1.RandomCrop(9, padding=2, fill=(5, 5, 5))
    assert read(v1.PILToTensor(), by_number).rest is None
    assert read(v1.PILToTensor(), by_three).rest_names == ("RandomCrop",)
    assert read(by_three, v1.PILToTensor()).rest is None


@pytest.mark.parametrize(
    ("chain", "rest"),
    [
        ([v2.RandomHorizontalFlip(), v2.Resize(9), v1.ToTensor()], ("Resize", "ToTensor")),
        ([v2.CenterCrop(9), v2.RandomResizedCrop(5), v1.ToTensor()], ("RandomResizedCrop", "ToTensor")),
        ([v2.CenterCrop(9), v2.CenterCrop(5), v1.ToTensor()], ("CenterCrop", "ToTensor")),
        ([v2.Resize(9), v2.Resize(5), v1.ToTensor()], ("Resize", "ToTensor")),
        ([v2.Resize(9), v1.ToTensor(), v2.CenterCrop(5)], ("CenterCrop",)),
        ([v2.Resize(9), v2.Normalize(MEAN, STD), v1.ToTensor()], ("Normalize", "ToTensor")),
        ([v2.Resize(9), v1.ToTensor(), v2.ToImage()], ("ToImage",)),
        ([v2.ToImage(), v2.Resize(9, interpolation="lanczos"), v2.ToDtype(torch.float32)], ("Resize", "ToDtype")),
        ([v1.Resize(9), v1.ToTensor(), v1.ColorJitter(), v1.Normalize(MEAN, STD)], ("ColorJitter", "Normalize")),
        ([v1.Resize(9), v1.Lambda(lambda image: image), v1.ToTensor()], ("Lambda", "ToTensor")),
    ],
    ids=lambda value: None if isinstance(value, tuple) else " ".join(type(op).__name__ for op in value),
)
def test_the_rest_begins_with_the_first_that_cannot_be_fused(chain: list[Any], rest: tuple[str, ...]):
    plan = read(*chain)
    assert plan.rest_names == rest
    assert f"{', '.join(rest)}: run as given, one sample at a time" in plan.notes[0]
    assert plan.tensor_spec(False) is None


def test_flips_may_come_after_the_values_have_changed():
    plan = read(v2.Resize(9), v2.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomVerticalFlip(0.5))
    assert plan.geometry[1] == ops.RandomVerticalFlip(0.5) and plan.rest is None


def test_composes_are_flattened_and_identities_passed_over():
    inner = v1.Compose([torch.nn.Identity(), v2.Compose([v2.Resize(9), v2.Identity()])])
    plan = read_transform(v1.Compose([inner, v2.ToPureTensor(), v1.ToTensor()]))
    assert plan.geometry == (ops.Resize(shorter=9),) and plan.pointwise == ("ToTensor",)
    assert read_transform(v1.ToTensor()).pointwise == ("ToTensor",)


class Louder(v2.Resize):
    """A subclass, that could do anything."""


class Steps(v2.Compose):
    """A subclass of what is flattened."""


def with_attribute(op: Any, name: str, value: Any) -> Any:
    setattr(op, name, value)
    return op


def hooked(op: Any, pre: bool = False) -> Any:
    (op.register_forward_pre_hook if pre else op.register_forward_hook)(lambda *args: None)
    return op


def not_itself(image: Any, *rest: Any) -> Any:
    return image


ALTERED: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: Louder(9),
    "a forward hook": lambda: hooked(v1.Resize(9)),
    "a pre-hook": lambda: hooked(v2.Resize(9), pre=True),
    "a patched forward": lambda: with_attribute(v1.Resize(9), "forward", not_itself),
    "a patched transform": lambda: with_attribute(v2.Resize(9), "transform", not_itself),
    "patched parameters, v1": lambda: with_attribute(v1.RandomCrop(9), "get_params", not_itself),
    "patched parameters, v2": lambda: with_attribute(v2.RandomCrop(9), "make_params", not_itself),
    "a hook on a Compose": lambda: hooked(v2.Compose([v2.Resize(9)])),
    "a patched Compose": lambda: with_attribute(v2.Compose([v2.Resize(9)]), "forward", not_itself),
    "a subclass of Compose": lambda: Steps([v2.Resize(9)]),
    "a Sequential": lambda: torch.nn.Sequential(v2.Resize(9)),
    "a function": lambda: not_itself,
    "a hooked identity": lambda: hooked(torch.nn.Identity()),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_does_something_else_than_its_class_is_not_read_as_known(name: str):
    op = ALTERED[name]()
    plan = read(v2.RandomHorizontalFlip(), op, v2.ToTensor())
    assert plan.geometry == (ops.RandomHorizontalFlip(0.5),)
    assert plan.rest_names == (getattr(op, "__name__", type(op).__name__), "ToTensor")


def test_attributes_set_after_construction_count():
    flip, crop = v1.RandomHorizontalFlip(), v1.CenterCrop(9)
    flip.p, crop.size = 0.125, (3, 5)
    flip.eval()
    assert read(flip, crop, v1.ToTensor()).geometry == (ops.RandomHorizontalFlip(0.125), ops.CenterCrop(3, 5))


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (None, "the data set has no transform"),
        (v1.Compose([]), "leaves PIL images"),
        (v1.Resize(9), "leaves PIL images"),
        (v1.Compose([v1.ColorJitter(), v1.ToTensor()]), "starts with ColorJitter, which needs the decoded PIL image"),
        (v1.Compose([v1.Normalize(MEAN, STD), v1.ToTensor()]), "starts with Normalize"),
        (v1.Compose([v1.PILToTensor(), v1.Normalize(MEAN, STD)]), "Normalize raises TypeError: Input tensor should be"),
        (v1.Compose([v1.ToTensor(), v1.Normalize((0.5,) * 4, (1.0,) * 4)]), "Normalize raises RuntimeError"),
        (v1.Compose([v1.PILToTensor(), v2.ToDtype(torch.int32)]), r"of type torch\.int32 are made by torch's path"),
    ],
)
def test_transforms_that_need_torchs_path(transform: Any, reason: str):
    with pytest.raises(NotUnderstoodError, match=reason):
        read_transform(transform)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("made", [v1.ToTensor(), v1.PILToTensor()], ids=["ToTensor", "PILToTensor"])
def test_tables_are_cast_as_tensors_are(made: Any, dtype: torch.dtype):
    plan = read_transform(v1.Compose([v1.CenterCrop(5), made]), dtype=dtype)
    assert plan.dtype == str(dtype).removeprefix("torch.")
    ramp = Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2))
    expected = made(ramp).to(dtype)[:, 0]
    bits = torch.from_numpy(np.array(plan.table))
    assert torch.equal(bits.view(torch.int16).view(dtype) if dtype.itemsize == 2 else bits, expected)


def test_plans_are_the_same_where_they_do_the_same():
    def plan(size: int = 9, fill: int = 0, mean: float = 0.5, dtype: torch.dtype | None = None) -> Any:
        crop = v2.RandomCrop(size, padding=2, fill=fill)
        return read_transform(v2.Compose([crop, v2.ToTensor(), v2.Normalize((mean,) * 3, STD)]), dtype=dtype)

    assert plan().same_as(plan())
    for other in (plan(size=8), plan(fill=3), plan(mean=0.25), plan(dtype=torch.float16)):
        assert not plan().same_as(other) and not other.same_as(plan())
    jitter = v2.ColorJitter()
    first, second = read(v2.Resize(9), jitter), read(v2.Resize(9), jitter)
    assert first.same_as(second) and not first.same_as(read(v2.Resize(9), v2.ColorJitter()))
    assert not read(v2.ToImage()).same_as(read(v2.PILToTensor()))  # what is finished one by one has another class


def test_a_plan_prints_its_steps_with_shapes():
    plan = read(
        v2.Resize(256, max_size=300),
        v2.CenterCrop((224, 192)),
        v2.RandomHorizontalFlip(0.25),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.RandomErasing(value="random"),
    )
    assert str(plan).splitlines() == [
        "decode                             fused       H x W x 3 uint8",
        "Resize(shorter=256, max_size=300)  fused       h x w x 3 uint8",
        "CenterCrop(height=224, width=192)  fused       224 x 192 x 3 uint8",
        "RandomHorizontalFlip(p=0.25)       fused       224 x 192 x 3 uint8",
        "ToImage + ToDtype                  fused       3 x 224 x 192 float32",
        "RandomErasing                      per sample",
    ]
    assert "3 x h x w float32" in str(read(v2.Resize(9), v2.ToTensor()))


@pytest.mark.parametrize(
    ("chain", "size"),
    [
        ([v2.Resize(9)], None),
        ([v2.Resize((9, 7))], (7, 9)),
        ([v2.CenterCrop((3, 4)), v2.Resize(9)], None),
        ([v2.Resize(9), v2.RandomCrop((3, 4), padding=1)], (4, 3)),
        ([v2.RandomHorizontalFlip()], None),
        ([], None),
    ],
)
def test_the_output_size_where_it_is_one(chain: list[Any], size: tuple[int, int] | None):
    plan = read(*chain, v2.ToTensor())
    assert plan.output_size == size
    spec = plan.tensor_spec(True)
    assert spec is not None and spec.open == (size is None)


TO_FLOAT = (v2.CenterCrop(5), v2.ToImage(), v2.ToDtype(torch.float32, scale=True))


@BOTH
def test_erasing_at_the_end_is_fused(T: Any):
    plan = read(*TO_FLOAT, T.RandomErasing(0.3, (0.1, 0.2), (0.5, 2.0), (0.25, 1, -3.0)), v2.ToPureTensor())
    assert plan.erasing == batch_ops.RandomErasing(0.3, (0.1, 0.2), (0.5, 2.0), (0.25, 1.0, -3.0))
    assert plan.rest is None and plan.erased is not None and plan.erased.tolist() == [0.25, 1.0, -3.0]
    assert "RandomErasing(p=0.3, scale=(0.1, 0.2), ratio=(0.5, 2), value=(0.25, 1, -3))  fused" in str(plan)
    assert not plan.same_as(read(*TO_FLOAT, T.RandomErasing(0.3, (0.1, 0.2), (0.5, 2.0), 4), v2.ToPureTensor()))
    assert read(*TO_FLOAT, T.RandomErasing(value=7)).erased.tolist() == [7.0, 7.0, 7.0]


@BOTH
@pytest.mark.parametrize("made", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [None, torch.uint8, torch.bfloat16, torch.float64])
def test_what_is_erased_holds_torchvisions_values_whatever_the_type(T: Any, made: torch.dtype, dtype: Any):
    erasing = T.RandomErasing(1.0, (0.2, 0.3), value=(200.7, -1.9, 0.1))
    chain = v2.Compose([v2.CenterCrop(9), v2.ToImage(), v2.ToDtype(made), erasing])
    plan = read_transform(chain, dtype=dtype)
    pixels = chain(Image.new("RGB", (9, 9), (5, 6, 7))).as_subclass(torch.Tensor).to(dtype or made).reshape(3, -1)
    plain = torch.tensor([5, 6, 7]).to(made).to(dtype or made)[:, None]
    inside = pixels[:, (pixels != plain).any(0)]
    assert inside.shape[1] > 0 and plan.erased is not None
    erased = torch.from_numpy(plan.erased.view(np.int16) if pixels.dtype.itemsize == 2 else plan.erased)
    assert torch.equal(erased.view(pixels.dtype)[:, None].expand_as(inside), inside)


@BOTH
@pytest.mark.parametrize(
    ("chain", "rest"),
    [
        (lambda T: [*TO_FLOAT, T.RandomErasing(value="random")], ("RandomErasing",)),
        (lambda T: [*TO_FLOAT, T.RandomErasing(), v2.Normalize(MEAN, STD)], ("RandomErasing", "Normalize")),
        (
            lambda T: [*TO_FLOAT, T.RandomErasing(), v2.ToPureTensor(), v2.RandomHorizontalFlip()],
            ("RandomErasing", "ToPureTensor", "RandomHorizontalFlip"),
        ),
        (lambda T: [*TO_FLOAT, T.RandomErasing(), T.RandomErasing()], ("RandomErasing", "RandomErasing")),
        (lambda T: [v2.CenterCrop(5), T.RandomErasing(), v2.ToTensor()], ("RandomErasing", "ToTensor")),
        (lambda T: [*TO_FLOAT, T.RandomErasing(value=(1, 2))], ("RandomErasing",)),
    ],
)
def test_erasing_that_is_not_the_end_or_not_by_a_number_runs_per_sample(T: Any, chain: Any, rest: tuple[str, ...]):
    plan = read(*chain(T))
    assert plan.rest_names == rest and plan.erasing is None and plan.erased is None
    assert "ToPureTensor" not in plan.pointwise


def test_torchvisions_batch_transforms_are_read():
    assert read_batch_transform(v2.MixUp(num_classes=9, alpha=0.2)) == batch_ops.MixUp(9, 0.2)
    assert read_batch_transform(v2.CutMix()) == batch_ops.CutMix(None, 1.0)
    several = v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)], p=[3, 1])
    assert read_batch_transform(several) == batch_ops.OneOf((batch_ops.CutMix(3), batch_ops.MixUp(3)), (0.75, 0.25))
    own = batch_ops.MixUp(4, labels="kind")
    assert read_batch_transform(own) is own


class OtherMixUp(v2.MixUp):
    """A subclass, that could do anything."""


@pytest.mark.parametrize(
    "transform",
    [
        OtherMixUp(num_classes=3),
        hooked(v2.MixUp(num_classes=3)),
        v2.MixUp(num_classes=3, labels_getter=lambda batch: batch[1]),
        v2.RandomChoice([v2.MixUp(num_classes=3), v2.Identity()]),
        v2.RandomChoice([v2.MixUp(num_classes=3), v2.RandomChoice([v2.CutMix(num_classes=3)])]),
        v2.Identity(),
        lambda images, labels: (images, labels),
        None,
    ],
)
def test_batch_transforms_that_are_something_else_are_not_read(transform: Any):
    assert read_batch_transform(transform) is None
