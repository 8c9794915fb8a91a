"""Batches of real work for the GPU's kernels, and memory to do them in on either side.

A case is what a loader would make of a batch: files, a transform, an element type, a layout. The CPU's decoder gives
what must come out, and the job (gpuload/decode/device_job.py) is staged as for a loader. A side is one place where its
kernels can run: this host, where they are the same sources called in a loop, or the GPU. Owns these; what is compared
and timed is gpu_kernels.py's.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as t

from bench.gpu_loaders import transform
from gpuload.augment import params
from gpuload.augment.torchvision import read_transform
from gpuload.core.batch import DeviceOutput, EncodedBatch, Target, join_encoded
from gpuload.core.philox import sample_keys
from gpuload.core.protocols import Launcher
from gpuload.decode.device_job import DeviceJob
from gpuload.decode.entropy_file import write_sidecar
from gpuload.decode.entropy_index import EntropyIndex
from gpuload.decode.native import NativeDecoder
from gpuload.decode.pillow import PillowDecoder

DEVICE_BYTES = 4 << 30
LINE = 256
"""Both memories begin at a multiple of it, as CUDA's allocator gives them."""


@dataclass(frozen=True)
class Case:
    """crop: up to pixels, e.g. the first steps of a Compose. dtype: of the batch."""

    name: str
    files: Sequence[bytes]
    transform: Any
    dtype: torch.dtype
    channels_last: bool = False


@dataclass(frozen=True)
class Prepared:
    """expected: what the CPU makes of it, (n, 3, H, W); rows: those of it that the job makes."""

    job: DeviceJob
    expected: np.ndarray
    rows: np.ndarray


def cases(made: Sequence[bytes], photos: Sequence[bytes]) -> list[Case]:
    """Every element size and layout, both orders of passes, several samplings, windows larger than their images."""
    large = t.Compose([t.CenterCrop(420), t.ToTensor()])
    found = [
        Case("random crops", made, transform("train"), torch.float32),
        Case("evaluation", made, transform("eval", uint8=True), torch.uint8, channels_last=True),
        Case("odd files", odd_jpegs(), transform("train"), torch.float16, channels_last=True),
        Case("larger windows", odd_jpegs(), large, torch.float64),
    ]
    return found + ([Case("photographs", photos, transform("train"), torch.float32)] if photos else [])


def odd_jpegs() -> list[bytes]:
    """JPEGs of odd sizes, of every sampling that Pillow writes, with restart intervals and without."""
    files = []
    for number, kind in enumerate(("grey", "4:4:4", "4:2:2", "4:2:0") * 3):
        draw = np.random.default_rng(number)
        width, height = int(draw.integers(301, 600)), int(draw.integers(301, 500))
        coarse = draw.integers(0, 256, (height // 9, width // 9, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        noisy = np.asarray(image) ^ draw.integers(0, 16, (height, width, 3), np.uint8)
        options: dict[str, Any] = {"restart_marker_blocks": 7} if number >= 8 else {}
        picture = Image.fromarray(noisy)
        if kind == "grey":
            picture = picture.convert("L")
        else:
            options["subsampling"] = kind
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=90, **options)
        files.append(out.getvalue())
    return files


def some_files(folder: Path, count: int) -> list[bytes]:
    """The first `count` JPEGs below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    return [path.read_bytes() for path in paths[:count]]


def prepare(case: Case) -> Prepared:
    """The case decoded on the CPU, and staged for the GPU. Raises RuntimeError if nothing of it was."""
    plan = read_transform(case.transform, dtype=case.dtype)
    if plan.table is None or plan.output_size is None:
        raise ValueError(f"{case.name}: this transform does not end in tensors of one size")
    table, (width, height) = plan.table, plan.output_size
    encoded, count = join_encoded(case.files), len(case.files)
    draws = plan.draw(sample_keys(seed=3, epoch=0, positions=np.arange(count)))

    def geometry(rows: Any, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
        return params.resolve(plan.geometry, [u[np.asarray(rows)] for u in draws], widths, heights)

    def target() -> Target:
        if case.channels_last:
            return Target(np.zeros((count, height, width, 3), table.dtype).transpose(0, 3, 1, 2), table)
        return Target(np.zeros((count, 3, height, width), table.dtype), table)

    pillow = PillowDecoder(plan.resampling, plan.resize)
    on_cpu = NativeDecoder(plan.resampling, pillow, plan.resize)
    wanted = target()
    on_cpu.decode(encoded, range(count), geometry, wanted)
    decoder = NativeDecoder(plan.resampling, pillow, plan.resize, _index(on_cpu, encoded), device_bytes=DEVICE_BYTES)
    decoded = decoder.decode(encoded, range(count), geometry, target())
    if decoded.staged is None:
        raise RuntimeError(f"{case.name}: no image was left to the GPU, but {decoded.decoders}")
    job = decoder.device_job([decoded.staged], np.arange(count), wanted)
    return Prepared(job, wanted.array, np.sort(decoded.staged.rows))


def _index(decoder: NativeDecoder, encoded: EncodedBatch) -> EntropyIndex:
    """Seek points of these images alone: what the user's cache directory holds decides nothing here."""
    found = decoder.seek_points(encoded)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "points")
        write_sidecar(path, np.array([key for key, _ in found], np.uint64), [record for _, record in found])
        return EntropyIndex([path], learn=False)


class Side(Protocol):
    """One place to run kernels in. Its memory is one block: the upload, the scratch memory, the batch."""

    address: int

    def launch(self, name: str, items: int, *arguments: int) -> None: ...

    def read(self) -> np.ndarray:
        """All of the memory, once everything launched is done: uint8, not to be written to."""
        ...

    def write(self, memory: np.ndarray) -> None: ...


class HostSide:
    """launcher: of host memory."""

    def __init__(self, nbytes: int, launcher: Launcher):
        whole = np.zeros(nbytes + LINE, np.uint8)
        self._memory = whole[-whole.ctypes.data % LINE :][:nbytes]
        self.address, self.launch = self._memory.ctypes.data, launcher.launch

    def read(self) -> np.ndarray:
        return self._memory

    def write(self, memory: np.ndarray) -> None:
        self._memory[:] = memory


class GpuSide:
    """On the current stream. launcher_on: given a stream's number, what launches there."""

    def __init__(self, nbytes: int, launcher_on: Callable[[int], Launcher]):
        self._memory = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        self.address = self._memory.data_ptr()
        self.launch = launcher_on(torch.cuda.current_stream().cuda_stream).launch

    def read(self) -> np.ndarray:
        return self._memory.cpu().numpy()

    def write(self, memory: np.ndarray) -> None:
        self._memory.copy_(torch.from_numpy(memory))


@dataclass(frozen=True)
class Call:
    """One launch."""

    name: str
    items: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Where a job's parts lie in a side's memory. An address of a call is relative to that memory's begin."""

    scratch: int
    output: int
    end: int

    @classmethod
    def of(cls, prepared: Prepared) -> Plan:
        scratch = _lines(prepared.job.upload_bytes)
        output = scratch + _lines(prepared.job.scratch_bytes)
        return cls(scratch, output, output + _lines(prepared.expected.nbytes))

    def calls(self, prepared: Prepared, address: int) -> list[Call]:
        """The job's launches for memory at this address."""
        found: list[Call] = []

        class Writer:
            def launch(self, name: str, items: int, *arguments: int) -> None:
                found.append(Call(name, items, tuple(map(int, arguments))))

        array = prepared.expected
        n, c, y, x = array.strides
        output = DeviceOutput(address + self.output, array.shape[2], array.shape[3], (n, c, y, x))
        prepared.job.launch(Writer(), address, address + self.scratch, output)
        return found

    def batch(self, prepared: Prepared, memory: np.ndarray) -> np.ndarray:
        """The batch in a side's memory, as `expected`."""
        array = prepared.expected
        flat = memory[self.output : self.output + array.nbytes].view(array.dtype)
        if array.flags.c_contiguous:
            return flat.reshape(array.shape)
        n, c, h, w = array.shape
        return flat.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
