"""Rows of `python -m bench.jpeg` that whole loaders run: one process a loader, alive for all rounds, in turns.

Owns what each contender is, the data they share and the state of the entropy index; the processes, the peers and the
clock readings are `gpuload bench`'s own. Pixels and labels are held against Pillow's before anything is timed.

1. Each of our processes has a cache directory of its own, so that one's learned index is not another's. The compiled
   kernels in it are the user's: a link.
2. With an index: an epoch of every image once, which learns it, and an epoch more, both before the first round.
3. While learning: a new process and cache each round. It learns a few other images until everything is loaded, then
   reads all of the data once: the round's figure is that epoch from `iter()` to its last batch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import made_jpegs
from bench.jpeg_cases import Timed
from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import look_at
from gpuload.cli.bench.measure import Epoch, images_per_s, rotations
from gpuload.cli.bench.process import LoaderProcess, LoaderProcessError
from gpuload.cli.bench.run import CHECKED_IMAGES, pixels_wrong


@dataclass(frozen=True)
class Contender:
    """subject: a row of subjects.SUBJECTS. options: more arguments for our DataLoader. learning: see note 3."""

    subject: str
    options: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = False


CONTENDERS = {
    "default": Contender("gpuload"),
    "no index": Contender("gpuload", {"entropy_index": "off"}),
    "learning": Contender("gpuload", {"entropy_index": "learn"}, learning=True),
    "exact": Contender("gpuload", {"fidelity": "exact"}),
    "fast": Contender("gpuload", {"fidelity": "fast"}),
    "dali": Contender("dali"),
    "torch": Contender("torch"),
}


@dataclass(frozen=True)
class Work:
    """data: "photographs", or what data_of makes of them. round_images: about two seconds of the slower contenders.
    gil: the figure is CPU microseconds an image under Python's lock, not images a second."""

    transform: str
    round_images: int
    batch_size: int = 64
    size: int = 224
    data: str = "photographs"
    gil: bool = False


WORKS = {
    "train": Work("train", 24 * 64),
    "eval": Work("eval", 24 * 64),
    "mosaics": Work("train", 12 * 8, batch_size=8, data="mosaics"),  # 64 decoded ones would be 2.3 GB
    "tiny": Work("flip", 60_000, batch_size=256, size=32, data="tiny"),
    "tiny gil": Work("flip", 60_000, batch_size=256, size=32, data="tiny", gil=True),
}
MOSAICS, TINY, OTHERS = 16, 20_000, 16


def data_of(work: Work, given: Path, photos: Sequence[Path], *, folder: Path, tell: Callable[[str], None]) -> Path:
    """The folder to read: the one given, or one that is made within `folder`, once for all works."""
    made = folder / work.data
    if work.data == "photographs":
        return given
    if work.data == "mosaics":
        if not made.exists():
            tell(f"making {MOSAICS} mosaics")
            made_jpegs.mosaics(photos, made, count=MOSAICS)
        return made
    if not made.exists():
        tell(f"making shards of {TINY} tiny JPEGs")
        made_jpegs.tiny_shards(photos, made, count=TINY)
    return made / "shards"


def time_loaders(
    work: Work,
    names: Sequence[str],
    data: Path,
    photos: Sequence[Path],
    *,
    folder: Path,
    threads: int,
    rounds: int,
    tell: Callable[[str], None],
) -> Timed:
    """The contenders `names` on `data`. photos: of which other images are made. folder: for those and for caches."""
    setting = subjects.Setting(look_at(str(data)), "cpu", threads, work.batch_size, work.size)
    missing = {name: subjects.absent(CONTENDERS[name].subject) for name in names}
    images = len(subjects.labels(setting))
    if any(CONTENDERS[name].learning for name in names):
        made_jpegs.mosaics(photos, folder / "others", count=OTHERS, size=made_jpegs.TILE)
    running = {name: _Running(name, work, setting, images, folder) for name in names if not missing[name]}
    try:
        for name, entrant in running.items():
            tell(f"{name}: starting, comparing its pixels with Pillow's, warming up")
            entrant.attempt(entrant.prepare)
        for number, order in enumerate(rotations(list(running), rounds)):
            tell(f"round {number + 1} of {rounds}")
            for name in order:
                running[name].attempt(running[name].round)
    finally:
        for entrant in running.values():
            entrant.close()
    missing |= {name: entrant.reason for name, entrant in running.items()}
    return Timed(
        {name: entrant.figures for name, entrant in running.items() if not entrant.reason},
        {name: reason for name, reason in missing.items() if reason},
        work.round_images,
    )


class _Running:
    """One contender on its way through the rounds. images: of the data. reason: why it has no figures, "" if it has."""

    def __init__(self, name: str, work: Work, setting: subjects.Setting, images: int, folder: Path) -> None:
        self.work, self.contender, self.images = work, CONTENDERS[name], images
        self.setting = replace(setting, options=self.contender.options)
        self.folder = folder
        self.process: LoaderProcess | None = None
        self.figures: list[float] = []
        self.reason = ""

    def attempt(self, step: Callable[[], None]) -> None:
        """Takes a step unless one has failed: a loader that fails is a row without figures, not the end of the run."""
        if self.reason:
            return
        try:
            step()
        except LoaderProcessError as error:
            self.reason = str(error)

    def prepare(self) -> None:
        """Its process, its pixels compared, its index learned (see the notes), its loader built for the rounds."""
        process = self._start(self.setting, self.images)
        self.reason = pixels_wrong(process.ask("check", images=min(CHECKED_IMAGES, self.images)))
        if not self.contender.learning:
            process.ask("build", images=self.work.round_images)
            process.ask("warm_up")

    def round(self) -> None:
        if self.contender.learning:
            self._learn()
            return
        assert self.process is not None
        if self.work.gil:
            answer = self.process.ask("gil")
            self.figures.append(1e6 * answer["held_s"] / answer["images"])
            return
        epoch = Epoch(**self.process.ask("warm_up")["epoch"])
        self.figures.append(images_per_s(epoch, workers=self.setting.workers))

    def _learn(self) -> None:
        self.close()
        others = replace(self.setting, data=look_at(str(self.folder / "others")))
        process = self._start(others, 4 * self.setting.batch_size)
        epoch = Epoch(**self._open(process, self.setting, self.images)["epoch"])
        self.figures.append(sum(epoch.images) / (epoch.ended_s - epoch.started_s))

    def _start(self, setting: subjects.Setting, images: int) -> LoaderProcess:
        cache = Path(tempfile.mkdtemp(dir=self.folder))
        share_kernels(cache)
        self.process = LoaderProcess(self.contender.subject, {"XDG_CACHE_HOME": str(cache)})
        self._open(self.process, setting, images)
        return self.process

    def _open(self, process: LoaderProcess, setting: subjects.Setting, images: int) -> dict[str, Any]:
        return process.ask(
            "open", name=self.contender.subject, setting=asdict(setting), spawned_s=process.spawned_s,
            transform=self.work.transform, images=images,
        )  # fmt: skip

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


def share_kernels(cache: Path) -> None:
    """Links the user's compiled kernels into `cache`, a new cache directory, so that nothing is compiled again."""
    kernels = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuload" / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (cache / "gpuload").mkdir()
    (cache / "gpuload" / "kernels").symlink_to(kernels)
