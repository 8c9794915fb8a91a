"""One damaged file through the native decoder: Pillow's pixels, or a failure where Pillow has one.

Three times: the whole image from data that ends at a forbidden page; a random crop, resized, from data that begins at
one; and another crop, flipped and looked up, beside a sound file into a batch that ends at one, or has a margin in
which nothing may change. Scratch memory ends at a forbidden page, too, and is as large as what was asked for. Pillow
is asked directly, not through gpuload. Owns what must hold for a file; mutate.py makes the files, kernels_alone.py
looks at the kernels one by one.

Where the file has seek points, a fourth time from them, and from their record when that is damaged: it is refused,
or, where its checksum was mended, nothing but pixels is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from gpuload.kernels.seek_points import content_key_reference
from PIL import Image

from gpuload.core.batch import DecodedRows, EncodedBatch, Target, join_encoded
from gpuload.core.errors import sample_error
from gpuload.core.geometry import GEOMETRY, Resampling
from gpuload.core.protocols import Decoder
from gpuload.decode import native
from gpuload.decode.entropy_file import NO_SLOTS
from gpuload.decode.entropy_index import Tables
from gpuload.decode.native import NativeDecoder
from gpuload.decode.pillow import PillowDecoder
from tests.fuzz import bases, guarded, kernels_alone
from tests.fuzz.mutate import BOMB_PIXELS, CHEAP_PIXELS, Mutant

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
_FLIPS = ((False, False), (True, False), (False, True), (True, True))


@dataclass(frozen=True)
class Verdict:
    """outcome: who decoded the file, or why nobody did; problems: what was wrong with that."""

    outcome: str
    problems: tuple[str, ...]


def native_decoder(interpolation: str, index: Any = None) -> Decoder:
    """NativeDecoder, whose scratch memory ends at a guard page and is never larger than an image needs."""
    native.allocate, native.KEPT_BYTES = guarded.allocate, 0
    resampling = Resampling(interpolation)
    return NativeDecoder(resampling, PillowDecoder(resampling), None, index)


class _OneRecord:
    """An entropy index that holds one record, and that in memory which ends at a guard page."""

    learning = False

    def __init__(self, key: int, record: bytes):
        self._memory = guarded.ending_input(record)
        slot = np.array([[key, self._memory.ctypes.data, len(record)]], np.uint64)
        self.tables = Tables(slot, NO_SLOTS, 0, 0)

    def close(self) -> None:
        """The record stays: a call may be in flight."""


Wanted = Image.Image | Exception


class Checker:
    """decoder: of an interpolation; another one shows that what is checked is checked."""

    def __init__(self, decoder: Callable[[str], Decoder] = native_decoder):
        self._decoders = {name: decoder(name) for name in FILTERS}
        self._ways = {"whole": self._whole, "crop": self._crop, "batch": self._batch}
        sound = [data for name, data in bases.generated().items() if name.startswith(("4", "grey"))]
        self._sound = [(data, _pixels(_opened(data))) for data in sound]

    def check(self, mutant: Mutant) -> Verdict:
        rng = Random(f"check {mutant.seed}")
        opened = _opened(mutant.data)
        if isinstance(opened, Image.Image) and CHEAP_PIXELS < opened.width * opened.height <= BOMB_PIXELS:
            return Verdict("too large to compare", ())
        wanted = _pixels(opened)
        reading = kernels_alone.read(mutant.data, rng)
        problems, native_ways = list(reading.problems), 0
        for name, way in self._ways.items():
            native_ways += way(mutant.data, wanted, rng, _Problems(name, problems))
        self._from_seek_points(mutant.data, wanted, rng, _Problems("seek points", problems))
        if isinstance(wanted, Exception):
            return Verdict(f"rejected: {reading.left or 'for what Pillow alone sees'}", tuple(problems))
        if native_ways == len(self._ways):
            return Verdict("native", tuple(problems))
        kind = "in part left to Pillow" if native_ways else "left to Pillow"
        return Verdict(f"{kind}: {reading.left or 'for other reasons'}", tuple(problems))

    def _whole(self, data: bytes, wanted: Wanted, rng: Random, problems: _Problems) -> bool:
        got = self._decoded([guarded.ending_input(data)], "bilinear", _WHOLE)
        _compare(got, wanted, problems)
        return "pillow" not in got.decoders

    def _crop(self, data: bytes, wanted: Wanted, rng: Random, problems: _Problems) -> bool:
        box, interpolation = _Box.drawn(rng), rng.choice(list(FILTERS))
        got = self._decoded([guarded.beginning_input(data)], interpolation, box)
        if isinstance(wanted, Image.Image):
            wanted = box.cut(wanted, FILTERS[interpolation])
        _compare(got, wanted, problems.at(f"{box}, {interpolation}"))
        return "pillow" not in got.decoders

    def _batch(self, data: bytes, wanted: Wanted, rng: Random, problems: _Problems) -> bool:
        """Rows 0 and 1 of a batch of three: the file, and a sound one that must not notice its neighbour."""
        box = replace(_Box.drawn(rng), size=(rng.randint(1, 48), rng.randint(1, 48)), flips=rng.choice(_FLIPS))
        interpolation, batch = rng.choice(list(FILTERS)), _Batch(box.shape, rng)
        sound, pixels = rng.choice(self._sound)
        got = self._decoded([np.frombuffer(data, np.uint8), np.frombuffer(sound, np.uint8)], interpolation, box, batch)
        problems = problems.at(f"{box}, {interpolation}, {batch}")
        for row, image in enumerate((wanted, pixels)):
            if isinstance(image, Image.Image):
                image = box.cut(image, FILTERS[interpolation])
            if row in got.stored:
                batch.compare(row, image, box, problems)
            else:
                _compare(got, image, problems, row)
        batch.assert_untouched(got.stored, problems)
        return "pillow" not in got.decoders

    def _from_seek_points(self, data: bytes, wanted: Wanted, rng: Random, problems: _Problems) -> None:
        plain = native_decoder("bilinear")
        assert isinstance(plain, NativeDecoder)
        for key, record in plain.seek_points(join_encoded([data])):
            flipped, hostile = bytearray(record), bytearray(record)
            flipped[rng.randrange(len(record))] ^= 1 << rng.randrange(8)
            for _ in range(rng.randint(1, 8)):
                hostile[rng.randrange(4, len(record))] = rng.choice((0, 0x7F, 0xFF, rng.randrange(256)))
            hostile[:4] = (content_key_reference(bytes(hostile[4:]), key) & 0xFFFFFFFF).to_bytes(4, "little")
            box = _Box.drawn(rng)
            for name, kept in (("sound", record), ("flipped", flipped), ("hostile", hostile)):
                decoder = native_decoder("bilinear", _OneRecord(key, bytes(kept)))
                got = self._decoded([guarded.ending_input(data)], "bilinear", box, decoder=decoder)
                if name != "hostile":
                    image = wanted if isinstance(wanted, Exception) else box.cut(wanted, FILTERS["bilinear"])
                    _compare(got, image, problems.at(f"{box}, {name} record"))

    def _decoded(
        self,
        files: list[np.ndarray],
        interpolation: str,
        box: _Box,
        batch: _Batch | None = None,
        decoder: Decoder | None = None,
    ) -> DecodedRows:
        lengths = np.array([file.size for file in files], np.int64)
        data = files[0] if len(files) == 1 else guarded.ending_input(b"".join(file.tobytes() for file in files))
        encoded = EncodedBatch(data, lengths.cumsum() - lengths, lengths)

        def resolve(rows: Sequence[int], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
            return np.concatenate([box.geometry(int(w), int(h)) for w, h in zip(widths, heights, strict=True)])

        target = None if batch is None else batch.target
        decoder = decoder or self._decoders[interpolation]
        got = decoder.decode(encoded, range(len(files)), resolve, target)
        decoder.close()  # what it keeps must not let one seed's verdict depend on another
        return got


@dataclass(frozen=True)
class _Problems:
    """Where to say what is wrong, and with what it begins."""

    name: str
    said: list[str]

    def at(self, place: str) -> _Problems:
        return _Problems(f"{self.name} {place}", self.said)

    def add(self, what: str) -> None:
        self.said.append(f"{self.name}: {what}")


class _Batch:
    """Three rows of a batch within memory that is a margin larger, or ends where it ends; a table to look up."""

    _UNTOUCHED = 0xA5

    def __init__(self, shape: tuple[int, int], rng: Random):
        height, width = shape
        self._dtype = rng.choice((np.uint8, np.uint16, np.float32))
        self._channels_last, self._margin = rng.random() < 0.5, rng.choice((0, 1))
        m = self._margin
        high, wide = height + 2 * m, width + 2 * m
        outer = (3, high, wide, 3) if self._channels_last else (3, 3, high, wide)
        self._memory = guarded.ending_array(outer, self._dtype)
        self._memory.view(np.uint8)[:] = self._UNTOUCHED
        rows = self._memory.transpose(0, 3, 1, 2) if self._channels_last else self._memory
        self._rows = rows[:, :, m : m + height, m : m + width]
        values = np.arange(3 * 256).reshape(3, 256)
        self._table = (values * (1 if self._dtype == np.uint8 else 85) + rng.randrange(256)).astype(self._dtype)
        self.target = Target(self._rows, self._table)

    def __repr__(self) -> str:
        layout = "channels last" if self._channels_last else "channels first"
        return f"{self._dtype.__name__} {layout}, margin {self._margin}"

    def compare(self, row: int, wanted: Wanted, box: _Box, problems: _Problems) -> None:
        """What was stored against Pillow's pixels, flipped and looked up."""
        if isinstance(wanted, Exception):
            problems.add(f"row {row} was stored, and Pillow rejects it: {wanted!r}")
            return
        pixels = np.asarray(wanted)[:: -1 if box.flips[1] else 1, :: -1 if box.flips[0] else 1]
        right = np.stack([self._table[c][pixels[:, :, c]] for c in range(3)])
        wrong = int((self._rows[row] != right).any(0).sum())
        if wrong:
            problems.add(f"row {row}: {wrong} of {pixels.shape[0]} x {pixels.shape[1]} pixels differ from Pillow's")

    def assert_untouched(self, stored: set[int], problems: _Problems) -> None:
        """Everything but these rows is as it was."""
        for row in stored:
            self._rows[row] = np.frombuffer(bytes([self._UNTOUCHED] * 8), self._dtype)[0]
        changed = int((self._memory.view(np.uint8) != self._UNTOUCHED).sum())
        if changed:
            problems.add(f"{changed} bytes were written outside the rows {sorted(stored)}")


@dataclass(frozen=True)
class _Box:
    """A crop in fractions of the image; what it is resized to, in pixels; which part of that is kept; its flips."""

    x: float
    y: float
    width: float
    height: float
    size: tuple[int, int] | None
    window: tuple[int, int, int, int] | None
    flips: tuple[bool, bool] = (False, False)

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of what comes out, where `size` is given."""
        assert self.size is not None
        width, height = self.size if self.window is None else self.window[2:]
        return height, width

    @classmethod
    def drawn(cls, rng: Random) -> _Box:
        x, y = rng.choice((0.0, rng.random())), rng.choice((0.0, rng.random()))
        size = rng.choice((None, (rng.randint(1, 48), rng.randint(1, 48)), (rng.randint(1, 48), rng.randint(1, 48))))
        window = None
        if rng.random() < 0.25:
            window = (rng.randint(-3, 8), rng.randint(-3, 8), rng.randint(1, 20), rng.randint(1, 20))
        return cls(x, y, rng.random(), rng.random(), size, window)

    def geometry(self, width: int, height: int) -> np.ndarray:
        """GEOMETRY (1,) in an image of this size."""
        out = np.zeros(1, GEOMETRY)
        x, y = min(int(self.x * width), width - 1), min(int(self.y * height), height - 1)
        out["crop"] = x, y, max(int(self.width * (width - x)), 1), max(int(self.height * (height - y)), 1)
        out["resize"] = out["crop"][:, 2:] if self.size is None else self.size
        out["window"] = (0, 0, *out["resize"][0]) if self.window is None else self.window
        out["flip_h"], out["flip_v"] = self.flips
        return out

    def cut(self, image: Image.Image, resampling: Image.Resampling) -> Image.Image:
        """By Pillow."""
        geometry = self.geometry(*image.size)[0]
        x, y, w, h = geometry["crop"].tolist()
        image = image.crop((x, y, x + w, y + h))
        if self.size is not None and self.size != image.size:
            image = image.resize(self.size, resampling)
        x, y, w, h = geometry["window"].tolist()
        return image.crop((x, y, x + w, y + h))


_WHOLE = _Box(0, 0, 1, 1, None, None)


def _opened(data: bytes) -> Wanted:
    """By Pillow; or why it cannot be."""
    try:
        return Image.open(io.BytesIO(data))
    except Exception as error:  # a damaged file may raise anything
        return error


def _pixels(image: Wanted) -> Wanted:
    try:
        return image if isinstance(image, Exception) else image.convert("RGB")
    except Exception as error:  # as above
        return error


def _compare(got: DecodedRows, wanted: Wanted, problems: _Problems, row: int = 0) -> None:
    image, failure = got.images[row], got.failures.get(row)
    if isinstance(wanted, Exception):
        if image is not None:
            problems.add(f"row {row}: decoded by {list(got.decoders)} what Pillow rejects: {wanted!r}")
        elif failure is None or not str(sample_error("file", 0, "", failure)):
            problems.add(f"row {row}: no error where Pillow has {wanted!r}")
        return
    if image is None:
        problems.add(f"row {row}: {failure!r} where Pillow decodes")
        return
    pixels = np.asarray(wanted)
    if image.shape != pixels.shape:
        problems.add(f"row {row}: shape {image.shape}, Pillow's {pixels.shape}")
    elif not np.array_equal(image, pixels):
        wrong = np.argwhere((image != pixels).any(2))
        most = int(np.abs(image.astype(int) - pixels).max())
        problems.add(
            f"row {row}: {len(wrong)} of {pixels.shape[0]} x {pixels.shape[1]} pixels differ from Pillow's, by up to "
            f"{most}, the first at row {wrong[0][0]}, column {wrong[0][1]}; by {list(got.decoders)}"
        )
