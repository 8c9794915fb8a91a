"""A batch's work for the device with RandomErasing behind it: another job's upload, launches and status, and one more.

Owns that one launch and its part of the upload; whose pixels are erased, and what they become, stands in the Target.
"""

from __future__ import annotations

import numpy as np

from gpuload.core.batch import DeviceOutput, Target
from gpuload.core.protocols import DeviceJob, Launcher
from gpuload.kernels.device_batch import ALIGNMENT
from gpuload.kernels.erase import erase_on_device, items_of


class EraseJob:
    """core.protocols.DeviceJob: `job`, then the rectangles of its rows, which go to `places` (by row of the batch)."""

    def __init__(self, job: DeviceJob, places: np.ndarray, target: Target):
        assert target.rectangles is not None and target.erased is not None
        self._job, self._values = job, target.erased
        self.rows = job.rows
        self._items = items_of(places[job.rows], target.rectangles[job.rows], *target.image_size)
        self._begin = -(-job.upload_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def upload_bytes(self) -> int:
        return self._begin + self._items.nbytes

    @property
    def scratch_bytes(self) -> int:
        return self._job.scratch_bytes

    @property
    def status(self) -> slice:
        return self._job.status

    def write(self, upload: np.ndarray) -> None:
        self._job.write(upload[: self._job.upload_bytes])
        upload[self._begin : self.upload_bytes] = self._items.view(np.uint8)

    def launch(self, launcher: Launcher, upload: int, scratch: int, output: DeviceOutput) -> None:
        self._job.launch(launcher, upload, scratch, output)
        erase_on_device(
            launcher.launch, self._items, upload + self._begin, self._values, output.address, output.strides
        )
