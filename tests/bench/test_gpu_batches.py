"""The comparisons of the proof on a GPU: equal batches pass, and every way of being wrong is seen and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from bench import gpu_batches, gpu_interop, gpu_memory, gpu_streams
from bench.gpu_batches import LAYOUTS, compared, differences, first_wrong_image, folders, held_against, same_bits
from bench.gpu_loaders import on_gpu_share
from bench.gpu_section import Bench

NCHW, NHWC = LAYOUTS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_of_the_cpu_equals_itself_and_does_not_pass_for_the_gpus(bench: Bench, layout: torch.memory_format):
    row = compared(bench, bench.shards, "train", torch.float16, layout, least_share=0, device="cpu")
    assert row["passed"] and row["batches"] == 2 and row["gpu_share"] == 0
    row = compared(bench, bench.shards, "train", torch.float16, layout, least_share=0.99, device="cpu")
    assert not row["passed"] and "wrong_batches" not in row


def test_class_folders_too(bench: Bench):
    row = folders(bench, device="cpu")
    assert not row["passed"] and "wrong_batches" not in row and sum(row["decoders"].values()) == 41


def batches(count: int = 3, rows: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn((rows, 3, 4, 5), generator=draw), torch.arange(rows)) for _ in range(count)]


def test_equal_batches_have_no_differences():
    assert differences(batches(), batches(), layout=NCHW) == {}


def test_one_wrong_value_is_found_and_measured():
    mine = batches()
    mine[1][0][1, 2, 3, 4] += 0.5
    found = differences(mine, batches(), layout=NCHW)
    assert found["wrong_batches"] == 1 and found["first_wrong_batch"] == 1
    assert found["wrong_images"] == 1 and found["first_wrong_image"] == 1
    assert found["first_wrong_place"] == [2, 3, 4] and found["wrong_values"] == 1
    assert found["largest_difference"] == pytest.approx(0.5, abs=1e-6)


def test_a_wrong_label_a_wrong_type_and_a_wrong_layout_are_differences():
    mine = batches()
    mine[2][1][0] = 7
    assert differences(mine, batches(), layout=NCHW)["wrong"] == "labels"
    mine = [(images.half(), labels) for images, labels in batches()]
    assert "float16" in differences(mine, batches(), layout=NCHW)["got"]
    assert differences(batches(), batches(), layout=NHWC) == {"wrong_batches": 0, "wrong_layouts": 3}


def test_too_few_batches_are_an_error():
    with pytest.raises(ValueError):
        differences(batches(2), batches(3), layout=NCHW)


def test_bits_are_compared_and_not_values():
    nan = torch.tensor([float("nan"), 0.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2, 1), torch.zeros(1, 2))
    for dtype in gpu_batches.DTYPES:
        values = torch.arange(24).reshape(1, 2, 3, 4).to(dtype)
        assert same_bits(values, values.to(memory_format=torch.channels_last))
        other = values.clone()
        other[0, 1, 2, 3] += 1
        assert not same_bits(values, other)
        assert first_wrong_image(values, other)["first_wrong_place"] == [1, 2, 3]


@dataclass
class Told:
    """A loader that says who decoded."""

    batches: list[Any]
    decoders: dict[str, int]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def stats(self) -> Told:
        return self


def test_right_pixels_pass_only_where_the_gpu_decoded_them():
    gpu = Told(batches(), {"native, on the GPU": 6})
    assert held_against(gpu, batches(), least_share=0.99, layout=NCHW)["passed"]
    both = Told(batches(), {"native, on the GPU": 3, "native, from seek points": 3})
    row = held_against(both, batches(), least_share=0.99, layout=NCHW)
    assert not row["passed"] and row["gpu_share"] == 0.5
    wrong = Told(batches(), {"native, on the GPU": 6})
    wrong.batches[0][0][0, 0, 0, 0] += 1
    assert not held_against(wrong, batches(), least_share=0.99, layout=NCHW)["passed"]


def test_the_share_of_the_gpu_is_of_all_images():
    assert on_gpu_share({}) == 0 and on_gpu_share({"dali, on the GPU": 1, "pillow": 3}) == 0.25


# ---- streams, memory, interop: what of them is no CUDA


def test_calls_are_counted_by_name_and_copies_by_direction():
    events = [
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync"},
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync"},
        {"cat": "cuda_driver", "name": "cuLaunchKernel"},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {"bytes": 100}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {"bytes": 11}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "args": {"bytes": 5}},
        {"cat": "kernel", "name": "cudaStreamSynchronize"},
        {"name": "a mark without a category"},
    ]
    assert gpu_streams.counted(events) == {"cudaMemcpyAsync": 2, "cuLaunchKernel": 1}
    copies = gpu_streams.copied(events)
    assert copies == {"HtoD": gpu_streams.Copies(2, 111), "DtoD": gpu_streams.Copies(1, 5)}


def test_waits_count_between_the_first_launch_and_the_last():
    def call(ts: float, name: str) -> dict[str, Any]:
        return {"cat": "cuda_runtime", "name": name, "ts": ts}

    events = [
        call(1, "cudaDeviceSynchronize"), call(2, "cudaLaunchKernel"), call(3, "cudaStreamSynchronize"),
        call(4, "cudaEventQuery"), call(5, "cuLaunchKernel"), call(6, "cudaEventSynchronize"),
    ]  # fmt: skip
    assert gpu_streams.waits(events) == {"cudaStreamSynchronize": 1}
    assert gpu_streams.waits(list(reversed(events))) == {"cudaStreamSynchronize": 1}


def test_calls_that_wait_are_told_from_those_that_do_not():
    waits = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cuEventSynchronize", "cudaMemcpy")
    runs = ("cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventQuery", "cudaLaunchKernel", "cuMemcpyHtoDAsync_v2")
    assert all(name.endswith(gpu_streams.SYNCHRONISING) for name in waits)
    assert not any(name.endswith(gpu_streams.SYNCHRONISING) for name in runs)


def test_the_images_of_every_batch_are_the_truth_for_streams(bench: Bench):
    assert [tuple(images.shape) for images in gpu_streams.truth_of(bench)] == [(41, 3, 224, 224)]


def test_a_sampler_whose_order_changes_between_epochs(bench: Bench, tmp_path: Any):
    paths = sorted(bench.classes.rglob("*.jpg"))
    dataset = gpu_memory.with_large(tmp_path / "links", paths[0], paths[1:4])
    assert len(dataset) == 4
    sampler = gpu_memory.Ids([3, 1])
    batches = gpu_memory.loader(dataset, threads=1, batch_size=2, device="cpu", sampler=sampler)
    assert gpu_memory.epoch_of(batches) == 2
    sampler.ids = [0, 1, 2]
    assert len(batches) == 2 and gpu_memory.epoch_of(batches) == 3


def test_a_compact_view_has_the_order_of_its_memory():
    images = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    view = gpu_interop.compact(images, torch.channels_last)
    assert view.is_contiguous() and view.data_ptr() == images.data_ptr()
    assert np.array_equal(view.numpy().transpose(0, 3, 1, 2), images.numpy())
    assert gpu_interop.compact(images, torch.contiguous_format) is images
