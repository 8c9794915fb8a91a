"""A plan wired to an engine: which source, decoder, device and collate carry out an accelerated loader's epochs.

Owns the choice of implementations and when an engine can serve another epoch. What runs on the consumer's thread is
`accelerated.py`'s.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gpuload.augment.plan import AugmentPlan
from gpuload.batch_transform import known_batch_transform, mixer
from gpuload.collate import DirectCollate, SampleCollate
from gpuload.config import default_threads
from gpuload.core.batch import TensorSpec
from gpuload.core.errors import ConfigError, GpuloadError, MissingDependencyError
from gpuload.core.protocols import Decoder, Launcher, Source
from gpuload.core.setting import Setting
from gpuload.decode.dali import DaliDecoder
from gpuload.decode.pillow import PillowDecoder
from gpuload.device.cuda import make_device, resolve
from gpuload.device.host import ImageMemory, image_bytes, shaped
from gpuload.device.nvtx import nvtx_ranges
from gpuload.engine.badsamples import BadSamples
from gpuload.engine.engine import Engine
from gpuload.engine.meters import Meter
from gpuload.engine.work import Meters, View, Work
from gpuload.plan import LoaderPlan
from gpuload.planning import Ahead
from gpuload.tune.limits import Limits, limits, memory_budget
from gpuload.tune.online import OnlineTuner

USUAL_IMAGE_BYTES = 3 * 224 * 224 * 4
"""How large a finished image is taken to be where only the data says."""

GPU_MEMORY_SHARE = 0.05
"""Of a GPU's memory, for batches that lie ready there: the model wants the rest."""

USUAL_ROWS = 64
"""How large a batch is taken to be where its sampler does not say: it only decides how work is cut."""


class Wiring:
    """An engine and what it was made for: another epoch with the same plan reuses it."""

    def __init__(self, loader: Any, plan: LoaderPlan, bad: BadSamples):
        assert plan.understood is not None
        self.plan = plan
        self._ahead: Ahead | None = None
        self._made_for = _identity(loader)
        device = resolve(loader.device)
        mixing = known_batch_transform(loader.batch_transform)
        source = plan.understood.open_source()
        rows = _batch_size(loader) or USUAL_ROWS
        threads = plan.threads
        decoders: dict[Any, Decoder] = {}  # one for all views that are resampled alike
        views: list[View] = []

        def close() -> None:
            for decoder in decoders.values():
                decoder.close()
            source.close()

        try:
            launcher = _launcher(loader, plan, device)
            device_bytes = loader.max_device_bytes if launcher is not None else 0
            for number, augment in enumerate(plan.augments):
                how = (augment.resampling, augment.resize)
                if how not in decoders:
                    decoders[how] = _decoder(
                        loader, plan, augment, source, device, threads=max(1, threads), rows=rows,
                        device_bytes=device_bytes,
                    )  # fmt: skip
                views.append(View(augment, decoders[how], plan.specs[number] if plan.specs else None))
        except BaseException:
            close()
            raise
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        pinned = bool(loader.pin_memory and accelerator is not None and device.type == "cpu")
        depth = loader.depth
        work = Work(
            source=source,
            views=tuple(views),
            in_list=plan.in_list,
            device=make_device(device, keep=depth + 2, pinned=pinned, launcher=launcher),
            stack=DirectCollate(source),
            collate=SampleCollate(source, loader.collate_fn, accelerator.type if pinned and accelerator else None),
            tensor=_image_memory,
            mixer=None if mixing is None else mixer(mixing),
            on_error=loader.on_error,
            bad=bad,
            meters=Meters(Meter("fetch"), Meter("decode"), Meter("finish")),
        )
        self.device = device
        events = None
        if loader.trace_file is not None:
            events = loader.trace_file.events
            events.ranges = nvtx_ranges(device)
        self.engine = Engine(
            work,
            setting=_setting(loader, source.fetch_threads, threads, depth),
            prepare=_one_thread(),
            close=close,
            events=events,
        )
        memory_bytes = memory_budget() if device.type == "cpu" else int(GPU_MEMORY_SHARE * work.device.memory_bytes)
        self.tuner = _tuner(loader, plan, self.engine.setting, memory_bytes, rows)
        guessed = not plan.specs or any(spec.open for spec in plan.specs) or not _batch_size(loader)
        self.room_bytes = memory_bytes if guessed and loader.config is None else None  # batches tell how large they are
        self.steered: Any = None  # whose batches the tuner hears of: the latest iterator's record

    def keep(self, ahead: Ahead) -> None:
        """Until the epoch comes whose first batches these are."""
        if (older := self.taken_ahead()) is not None:
            older.flow.cancel()
        self._ahead = ahead

    def taken_ahead(self) -> Ahead | None:
        """What was kept, once."""
        ahead, self._ahead = self._ahead, None
        return ahead

    def serves(self, loader: Any, plan: LoaderPlan) -> bool:
        """Whether an epoch of `loader` under `plan` can run on this engine."""
        mine = self.plan
        return (
            not self.engine.forked
            and self._made_for == _identity(loader)
            and (mine.specs, mine.decoder, mine.threads) == (plan.specs, plan.decoder, plan.threads)
            and (mine.in_list, len(mine.augments)) == (plan.in_list, len(plan.augments))
            and all(one.same_as(other) for one, other in zip(mine.augments, plan.augments, strict=True))
        )


def _batch_size(loader: Any) -> int | None:
    return loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)


def _identity(loader: Any) -> tuple[Any, ...]:
    """What else, beside the plan, an engine is made of. Held strongly, so that no id is used twice."""
    dataset = loader.dataset
    engine = (loader.device, loader.config, loader.depth, loader.pin_memory)
    settings = (loader.on_error, loader.fidelity, loader.entropy_index, loader.max_device_bytes)
    given = (dataset, loader.collate_fn, loader.batch_transform)
    return (*map(_Same, given), *engine, *settings)


def _image_memory(dtype: str, height: int, width: int) -> ImageMemory:
    """Memory for one image that is finished by itself."""
    spec = TensorSpec((3, height, width), dtype)
    memory = shaped(torch.empty(image_bytes(spec), dtype=torch.uint8), spec, 1)
    return ImageMemory(memory.array[0], memory.tensor[0])


def _setting(loader: Any, fetch_threads: int, threads: int, depth: int) -> Setting | None:
    """With which the engine begins; None where the caller's thread does all work."""
    if not threads:
        return None
    setting = Setting(fetch_threads, threads, depth)
    if isinstance(loader.config, Setting):
        setting = loader.config
    elif isinstance(loader.config, Limits):
        setting = loader.config.clipped(setting)
    return replace(setting, fetch_threads=1) if fetch_threads == 1 else setting  # a data set for one thread


def _tuner(loader: Any, plan: LoaderPlan, setting: Setting | None, memory_bytes: int, rows: int) -> OnlineTuner | None:
    """What finds a better setting while the loader runs; None where the user has said all of it."""
    if setting is None or not loader.tunes:
        return None
    allowed = loader.config or limits(
        cores=default_threads(),
        batch_bytes=rows * sum(_image_bytes(plan)),
        memory_bytes=memory_bytes,
        fetch_at_once=True,
        depth=None if loader.prefetch_factor is None else setting.depth,
    )
    if setting.fetch_threads == 1:
        allowed = replace(allowed, least=replace(allowed.least, fetch_threads=1)).capped(fetch_threads=1)
    if plan.decoder == "dali":  # its threads are its own
        allowed = replace(allowed, least=replace(allowed.least, decode_threads=setting.decode_threads))
        allowed = allowed.capped(decode_threads=setting.decode_threads)
    return OnlineTuner(allowed.clipped(setting), allowed)


def _image_bytes(plan: LoaderPlan) -> list[int]:
    """Of each view of a finished image."""
    return [image_bytes(spec) for spec in plan.specs if not spec.open] or [USUAL_IMAGE_BYTES] * len(plan.augments)


class _Same:
    """Equal to another only where both hold the same object."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _launcher(loader: Any, plan: LoaderPlan, device: torch.device) -> Callable[[int], Launcher] | None:
    """What runs the GPU's kernels; None where the plan has none, or they can't run and device="auto" allows it."""
    if device.type != "cuda" or not plan.on_gpu:
        return None
    from gpuload.decode.launching import launcher_on

    try:
        return launcher_on(device.index or 0, int((torch.version.cuda or "0").split(".")[0]))
    except MissingDependencyError as error:
        _on_the_cpu(loader, error)
        return None


def _on_the_cpu(loader: Any, error: GpuloadError) -> None:
    """What becomes of a GPU that cannot decode: an error where it was asked for, else said and counted as the CPU's."""
    if loader.device != "auto":
        raise error
    warnings.warn(f"the CPU decodes, since {error}", stacklevel=7)


def _decoder(
    loader: Any, plan: LoaderPlan, augment: AugmentPlan, source: Source, device: torch.device, *, threads: int,
    rows: int, device_bytes: int,
) -> Decoder:  # fmt: skip
    resampling = augment.resampling
    pillow = PillowDecoder(resampling, augment.resize)
    if plan.decoder == "pillow":
        return pillow
    if plan.decoder == "native":
        # Here, since its kernels take 0.4 s to load, and half a minute to compile for the first time.
        from gpuload.decode.entropy_index import EntropyIndex
        from gpuload.decode.native import NativeDecoder

        index = None
        if loader.entropy_index != "off":
            index = EntropyIndex(source.sidecars(), learn=loader.entropy_index == "learn")
        return NativeDecoder(
            resampling, pillow, augment.resize, index, fidelity=loader.fidelity, device_bytes=device_bytes
        )
    if device_bytes:
        from gpuload.decode.dali_gpu import DaliGpuDecoder  # here: what it stores with takes 0.4 s to load
        from gpuload.decode.dali_probe import dali_settings

        number = device.index or 0
        try:
            settings = dali_settings(number, threads)
        except ConfigError as error:
            _on_the_cpu(loader, error)
        else:
            return DaliGpuDecoder(
                threads=threads, resampling=resampling, max_rows=rows, device_bytes=device_bytes, settings=settings,
                device_id=number, fallback=pillow,
            )  # fmt: skip
    return DaliDecoder(threads=threads, resampling=resampling, max_rows=rows, fallback=pillow)


def _one_thread() -> Callable[[], None]:
    """Called in each decode thread: torch's operations there stay in it, as it is the samples that are parallel.

    The setting is the thread's own, but torch also gives the last one made to threads that it has not met before: the
    caller's is fixed by asking for it here, and given back for all others by a thread made for that.
    """
    for_others = torch.get_num_threads()

    def prepare() -> None:
        torch.get_num_threads()  # a thread that torch meets later would be given what the others have
        torch.set_num_threads(1)
        giver = threading.Thread(target=torch.set_num_threads, args=(for_others,), daemon=True)
        giver.start()
        giver.join()

    return prepare
