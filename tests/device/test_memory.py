"""Pooled host memory: a block comes back exactly when nobody can reach it, whatever kind of view they kept."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpuload.core.batch import TensorSpec
from gpuload.device.host import HostDevice, ImagePool, Outgoing
from gpuload.device.memory import HostMemory
from tests.engine.fakes import exit_code

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda t: t,
    "detached": lambda t: t.detach(),
    "a slice": lambda t: t[1:2],
    "an element": lambda t: t[0, 0, 0, 0],
    "another shape": lambda t: t.reshape(-1)[5:],
    "another type": lambda t: t.view(torch.uint8),
    "untyped_storage": lambda t: t.untyped_storage(),
    "typed set_": lambda t: torch.empty(0).set_(t.untyped_storage()),
    "numpy": lambda t: t.numpy(),
    "a NumPy slice": lambda t: t.numpy()[1:, 0],
    "a NumPy view of a view": lambda t: t.numpy().reshape(-1).view(np.uint8)[3:],
    "a memoryview": lambda t: memoryview(t.numpy()),
    "DLPack to NumPy": lambda t: np.from_dlpack(t),
    "DLPack to torch": lambda t: torch.from_dlpack(t.numpy()),
    "DLPack capsule": lambda t: t.__dlpack__(),
    "an autograd graph": lambda t: (t * torch.ones(1, requires_grad=True)).grad_fn,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_block_is_reused_only_after_the_last_view_of_it(name: str):
    pool = ImagePool(keep=2)
    spec = TensorSpec((3, 5, 7), "float32")
    memory = pool.take(spec, 4)
    address = memory.tensor.data_ptr()
    memory.array[:] = 7
    kept = VIEWS[name](memory.tensor)
    del memory
    others = [pool.take(spec, 4) for _ in range(3)]
    assert address not in [other.tensor.data_ptr() for other in others]
    for other in others:
        other.array[:] = 9
    del kept
    assert pool.take(spec, 4).tensor.data_ptr() == address


def test_free_blocks_are_kept_up_to_a_number_and_held_ones_are_not_counted():
    memory = HostMemory(64, keep=2)
    held = [memory.take() for _ in range(7)]
    assert len({block.ctypes.data for block in held}) == 7
    del held
    assert repr(memory) == "HostMemory(64 bytes, 2 free)"


def test_blocks_outlive_their_pool():
    memory = HostMemory(64, keep=2)
    block = memory.take()
    block[:] = 5
    del memory
    gc.collect()
    assert block.tolist() == [5] * 64


def test_a_block_returned_in_a_garbage_collection_is_reused():
    memory = HostMemory(64, keep=2)
    block = memory.take()
    address = block.ctypes.data
    ring: list[Any] = [block]
    ring.append(ring)
    del block, ring
    gc.collect()
    assert memory.take().ctypes.data == address


def test_threads_never_get_the_same_block():
    memory, wrong = HostMemory(4096, keep=4), []

    def use(value: int) -> None:
        for _ in range(400):
            block = memory.take()
            block[:] = value
            if not (block == value).all():
                wrong.append(value)
            del block

    threads = [threading.Thread(target=use, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_childs_blocks_are_its_own():
    memory = HostMemory(64, keep=2)
    block = memory.take()
    block[:] = 1
    child = os.fork()
    if child == 0:
        block[:] = 2
        del block
        other = memory.take()
        other[:] = 3
        os._exit(0)
    assert exit_code(child) == 0
    assert block.tolist() == [1] * 64


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_array_and_tensor_are_one_memory(dtype: str, channels_last: bool, rows: int):
    """rows: also more than the pool's blocks hold."""
    memory = HostDevice(keep=2).image_memory(TensorSpec((3, 5, 7), dtype, channels_last), rows)
    assert memory.array.shape == tuple(memory.tensor.shape) == (rows, 3, 5, 7)
    assert memory.tensor.dtype is getattr(torch, dtype)
    values = torch.arange(rows * 105).reshape(rows, 3, 5, 7).remainder(251).to(memory.tensor.dtype)
    memory.array[:] = values.view(torch.int16).numpy().view(np.uint16) if "16" in dtype else values.numpy()
    assert torch.equal(memory.tensor, values)
    assert memory.tensor.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    assert memory.tensor.data_ptr() == memory.array.ctypes.data


def test_specs_do_not_share_blocks():
    pool = ImagePool(keep=4)
    first = pool.take(TensorSpec((3, 5, 7), "uint8"), 2).tensor.data_ptr()
    other = pool.take(TensorSpec((3, 5, 8), "uint8"), 2)
    assert other.array.nbytes == 2 * 3 * 5 * 8
    assert pool.take(TensorSpec((3, 5, 7), "uint8"), 1).tensor.data_ptr() == first


def test_the_host_device_hands_over_what_it_was_sent():
    device = HostDevice(keep=1)
    batch = {"a": torch.ones(3)}
    assert device.name == "cpu" and device.hand_over(device.send(Outgoing(batch)), deque()) is batch


@pytest.mark.gpu
def test_pinned_batches_are_page_locked():
    device = HostDevice(keep=2, pinned=True)
    memory = device.image_memory(TensorSpec((3, 5, 7), "float32"), 4)
    assert memory.tensor.is_pinned()
    images, labels = device.hand_over(device.send(Outgoing([memory.tensor, torch.arange(4)])), deque())
    assert images.data_ptr() == memory.tensor.data_ptr() and labels.is_pinned()
