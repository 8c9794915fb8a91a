"""ShardDataset: JPEGs in folders or shards of any format, local or behind a URL, as a map-style data set of torch.

Owns the user's view of a data set: which fields a sample has, what a label is, and the bulk access by which the
loader reads whole batches without a Python object a sample. Where samples lie is `shards/`'s, reading is `fetch/`'s.
"""

from __future__ import annotations

import hashlib
import io
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from gpuload.core.errors import ConfigError, ShardError, sample_error
from gpuload.core.location import server_of, shown
from gpuload.core.protocols import RangeReader
from gpuload.core.structure import IMAGE, Column, EncodedImage, fill
from gpuload.dataset_labels import find_labels
from gpuload.fetch.cache_spec import parse_cache
from gpuload.fetch.reader import reader_for
from gpuload.fetch.whole_files import Listed
from gpuload.shards.arrow import is_huggingface, refuse_other_huggingface
from gpuload.shards.catalog import Catalog, open_catalog
from gpuload.shards.fields import PICKLED, parse_field
from gpuload.shards.index import sidecars_of
from gpuload.shards.table import MIXED, NO_LABEL, Finding


class ShardDataset(Dataset):
    """Images and their fields, by number, from a folder, from shards, or from a list of images.

    urls: a folder, a shard, a glob or brace pattern ("train-{000..099}.tar"), a URL that fsspec opens, a list of these
    or of images; or a Hugging Face `datasets.Dataset`. format: "auto", "folder" (class folders as for ImageFolder, or
    loose images), "images" (a list of them), "tar" (WebDataset), "tfrecord", "parquet", "arrow", "zip" or "mds".
    transform: called with the RGB PIL image.

    fields: None for `(image, label)`; names for a tuple in that order; a mapping {"pixel_values": "image", "labels":
    "label"} for a dict. Names are "image" (once), "label", "key", or one of `members`: a tar's extension (json becomes
    its Python value, txt a str, cls an int, npy an array, else bytes), a column or feature of other formats. label:
    None for the class folder, the `.cls` member or the label column; else the member that holds it ("txt", or
    "json:field" for a field of it), a CSV or JSON file beside the images ("labels.csv", or "labels.csv:column"), a
    function of the key, or a sequence, one a sample. Labels that are names are numbered in their sorted order.

    on_error: "raise", or "skip" to use what is whole of damaged shards: `findings` says what was left out.
    storage_options: for fsspec. cache: of remote shards, "200GB:/nvme", "200GB" in the user's cache directory, or
    "memory:32GB". trust_pickle: pickled fields may be read, which runs code of whoever wrote the shards.

    Samples are numbered in the order of the shards and as they stand in each, in folders as ImageFolder numbers them.
    Raises ConfigError and ShardError when it is made, SampleError when a sample is read.

    >>> dataset = ShardDataset("train-{000..099}.tar", transform=ToTensor())
    >>> image, label = dataset[0]
    """

    encoded_thread_safe = True

    def __init__(
        self,
        urls: Any,
        format: str = "auto",
        transform: Callable[[Image.Image], Any] | None = None,
        fields: Sequence[str] | Mapping[str, str] | None = None,
        label: str | Callable[[str], Any] | Sequence[Any] | None = None,
        *,
        on_error: str = "raise",
        storage_options: Mapping[str, Any] | None = None,
        cache: str | None = None,
        trust_pickle: bool = False,
    ):
        refuse_other_huggingface(urls)
        if is_huggingface(urls):  # its rows are found once, and copies need not carry it
            self.urls: Any = f"datasets.Dataset of {len(urls)} rows"
        else:
            self.urls = os.fspath(urls) if isinstance(urls, (str, os.PathLike)) else [os.fspath(url) for url in urls]
        parse_cache(cache)  # an error here and not at the first batch
        self.cache, self.trust_pickle = cache, trust_pickle
        self.format, self.transform, self.fields, self.label = format, transform, fields, label
        self.on_error, self.storage_options = on_error, dict(storage_options or {})
        self._reader: RangeReader | None = None
        self._reader_pid = 0
        self._reader_lock = threading.Lock()
        self._names, self.slots = _slots(fields)
        self._open(self._open_catalog(urls if is_huggingface(urls) else self.urls))

    # What it holds

    def __len__(self) -> int:
        return len(self._table)

    @property
    def files(self) -> Sequence[str]:
        """Paths or URLs; `refs()["file"]` are rows of it."""
        return self._table.files

    @property
    def labels(self) -> np.ndarray | None:
        """int64 (n,), or None unless every sample has one."""
        labels = self._labels
        return labels if labels is not None and (labels != NO_LABEL).all() else None

    @property
    def known_labels(self) -> np.ndarray | None:
        """int64 (n,), the smallest there is for a sample without one; None where no sample has one."""
        return self._labels

    @property
    def label_member(self) -> str:
        """The one of `members` that the format's own labels stand in; "" where it is none of them."""
        return self._table.label

    @property
    def classes(self) -> list[str] | None:
        """Names by label: of class folders, of labels that are names, of packed shards' `classes.json`; else None."""
        return list(self._classes) if self._classes is not None else None

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        return {name: i for i, name in enumerate(self._classes)} if self._classes is not None else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was left out and why, and notes about how the data was understood."""
        return self._findings

    @property
    def members(self) -> tuple[str, ...]:
        """What samples have beside images, keys and labels: a tar's extensions, all of them; columns or features."""
        return tuple(self._table.members)

    @property
    def encodings(self) -> Mapping[str, str]:
        """How the bytes of members are read, as shards/fields.py names it; one that is missing, by its extension."""
        return dict(self._table.encodings)

    # One sample

    def __getitem__(self, index: int) -> Any:
        row = self._row(index)
        shard, key = self.name(row)
        try:
            with Image.open(io.BytesIO(self._image_bytes(row))) as encoded:
                image: Any = encoded.convert("RGB")
        except Exception as error:  # whatever Pillow's plugins raise: it concerns this sample, and is named once
            raise sample_error(shard, row, key, error) from error
        if self.transform is not None:
            image = self.transform(image)
        return self._assemble(row, image)

    def get_encoded(self, index: int) -> Any:
        """The sample with `EncodedImage(bytes)` in its image's place; no transform. Any thread."""
        row = self._row(index)
        try:
            data = self._image_bytes(row)
        except OSError as error:
            shard, key = self.name(row)
            raise sample_error(shard, row, key, error) from error
        return self._assemble(row, EncodedImage(data))

    def name(self, index: int) -> tuple[str, str]:
        """(shard or file, key) of a sample, for messages: a URL is without its credentials."""
        file = self._table.files[int(self._table.images["file"][index])]
        return shown(self._table.origins.get(file, file)), self._table.keys[index]

    # Many samples

    def refs(self, ids: np.ndarray) -> np.ndarray:
        """SAMPLE_REF (n,): where the images of these samples lie."""
        return self._table.images[ids]

    def columns(self, ids: np.ndarray, failures: dict[int, BaseException] | None = None) -> tuple[Any, ...]:
        """The other fields of these samples, one entry a Column of `slots`: labels int64 (n,), else lists of n.

        A row whose member cannot be read is None in its list and its error in `failures`; without `failures` it is
        raised as a SampleError.
        """
        found: dict[int, BaseException] = {} if failures is None else failures
        columns = tuple(self._column(name, ids, found) for name in self._names if name != "image")
        if failures is None and found:
            row = min(found)
            shard, key = self.name(int(ids[row]))
            raise sample_error(shard, int(ids[row]), key, found[row]) from found[row]
        return columns

    def identity(self, ids: np.ndarray) -> tuple[Any, ...]:
        """What these samples are, as a value: equal as long as their bytes lie there and their labels are those."""
        labels = None if self._labels is None else self._labels[ids].tobytes()
        return (self.refs(ids).tobytes(), labels)

    def member_refs(self, name: str, ids: np.ndarray) -> np.ndarray:
        """SAMPLE_REF (n,): where the member with this extension lies; length -2 where a sample has none."""
        return self._table.members[name][ids]

    def new_reader(self, *, batches: bool = False) -> RangeReader:
        """A reader of `files`, the caller's to close; batches: for many samples at once. The data set has its own."""
        urls = self.files[:1] if self._catalog.format == "folder" else self.files  # a folder's lie in one place
        return reader_for(
            urls,
            storage_options=self.storage_options,
            batches=batches,
            cache=self.cache,
            stamps=self._catalog.stamps,
            listed=self._listed,
        )

    def sidecars(self) -> list[str]:
        """The files of seek points that lie beside its shards (`gpuload index` makes them)."""
        return [] if self._catalog.listed else sidecars_of(self.files)

    def close(self) -> None:
        """Close files and threads; reading opens them again."""
        with self._reader_lock:
            reader, self._reader = self._reader, None
        if reader is not None and self._reader_pid == os.getpid():
            reader.close()

    # Copies for other processes

    def __getstate__(self) -> dict[str, Any]:
        """Shards: what they are called; their manifest is read again. Folders, lists, Datasets: the table too.

        A folder is not listed again: that takes long, and it may have changed, so that numbers mean other samples.
        """
        state = {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}
        if self._catalog.listed:
            state["_catalog"] = self._catalog
        state["_fingerprint"] = self._fingerprint()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        fingerprint = state.pop("_fingerprint")
        catalog = state.pop("_catalog", None)
        self.__dict__.update(state)
        self._reader, self._reader_pid, self._reader_lock = None, 0, threading.Lock()
        self._names, self.slots = _slots(self.fields)  # IMAGE is told by identity
        self._open(catalog if catalog is not None else self._open_catalog(self.urls))
        if self._fingerprint() != fingerprint:
            cure = "Make the data set anew in the process that holds the old one"
            raise ShardError(shown(str(self.urls)), "the shards changed since this data set was opened", cure)

    def __repr__(self) -> str:
        classes = f", {len(self._classes)} classes" if self._classes is not None else ""
        losses = sum(not finding.note for finding in self._findings)
        left_out = f", {losses} findings" if losses else ""
        size = f"{len(self)} samples in {len(self.files)} files"
        return f"ShardDataset({shown(repr(self.urls))}, {self._catalog.format}: {size}{classes}{left_out})"

    # Inside

    def _open_catalog(self, urls: Any) -> Catalog:
        return open_catalog(urls, format=self.format, on_error=self.on_error, options=self.storage_options)

    def _open(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._table, self._classes, self._findings = catalog.table, catalog.classes, catalog.findings
        self._listed = _listed(self.urls, catalog, self.storage_options)
        self._require_members()
        options, urls = self.storage_options, self.urls
        found = find_labels(
            self.label, catalog, self._table, urls, options, lambda name, ids: self._column(name, ids, {})
        )
        if found.findings and self.on_error == "raise":
            first = found.findings[0]
            raise ShardError(first.shard, first.problem, first.cure)
        self._labels, self._classes = found.numbers, found.classes
        self._findings += found.findings
        if "label" in self._names or self.label is not None:
            self._require_labels()

    def _require_members(self) -> None:
        for name in self._names:
            if name in ("image", "label", "key"):
                continue
            if name not in self._table.members:
                known = ", ".join(["image", "label", "key", *self._table.members])
                raise ConfigError(f"fields names {name!r}, and no sample has such a member. There are: {known}")
            encoding = self._table.encodings.get(name, "")
            if encoding.startswith(MIXED):
                ways = encoding.removeprefix(MIXED)
                problem = f"fields names {name!r}, which shards store as {ways}"
                raise ConfigError(f"{problem}. Read them separately, or write them alike")
            if encoding == PICKLED and not self.trust_pickle:
                raise ConfigError(
                    f"fields names {name!r}, which is pickled: reading it runs code of whoever wrote the shards. Pass "
                    "trust_pickle=True if you trust them"
                )
            has = self._table.members[name]["length"] >= 0
            self._leave_out(has, f"it has no .{name}, which fields asks for")

    def _require_labels(self) -> None:
        if self._labels is None:
            cure = 'pass label= (an extension, a function of the key, a sequence), or fields=("image",) to go without'
            raise ConfigError(f"samples of {shown(str(self.urls))} have no labels (no .cls member): {cure}")
        has = self._labels != NO_LABEL
        self._labels = self._labels[has] if self.on_error == "skip" else self._labels
        self._leave_out(has, "it has no label that is an integer")

    def _leave_out(self, keep: np.ndarray, problem: str) -> None:
        """Samples that lack what was asked for: raised or, with on_error="skip", left out and reported."""
        lacking = np.flatnonzero(~keep)
        if not len(lacking):
            return
        cure = "Choose other fields or labels, or pass on_error='skip' to leave such samples out"
        if self.on_error == "raise":
            shard, key = self.name(int(lacking[0]))
            more = f" (and {len(lacking) - 1} more samples)" if len(lacking) > 1 else ""
            raise ShardError(shard, f"sample {key}: {problem}{more}", cure)
        self._findings += tuple(Finding(*self.name(row), problem, cure) for row in lacking.tolist())
        self._table = self._table.keep(keep)

    def _row(self, index: int) -> int:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"sample {row} of a data set of {len(self)}")
        return row % len(self)

    def _image_bytes(self, row: int) -> bytes:
        encoded = self._open_reader().read(self.files, self._table.images[row : row + 1])
        if encoded.failures:
            raise encoded.failures[0]
        if not encoded.lengths[0]:
            raise OSError("the image has 0 bytes")
        return encoded.encoded(0).tobytes()

    def _assemble(self, row: int, image: Any) -> Any:
        columns = self.columns(np.array([row]))
        values = [int(column[0]) if isinstance(column, np.ndarray) else column[0] for column in columns]
        return fill(self.slots, image, values)

    def _column(self, name: str, ids: np.ndarray, failures: dict[int, BaseException]) -> Any:
        if name == "label":
            assert self._labels is not None
            return self._labels[ids]
        if name == "key":
            return [self._table.keys[row] for row in ids.tolist()]
        encoding = self._table.encodings.get(name, "")
        if encoding == PICKLED and not self.trust_pickle:
            raise ConfigError(f"member {name} is pickled, and trust_pickle is False")
        encoded = self._open_reader().read(self.files, self.member_refs(name, ids))
        failures.update(encoded.failures)
        values: list[Any] = []
        for row in range(len(ids)):
            value = None
            if row not in failures:
                try:
                    value = parse_field(name, encoding, encoded.encoded(row).tobytes())
                except Exception as error:  # whatever a damaged value or a pickle raises: it concerns this sample
                    failures[row] = ValueError(f"its .{name} member is not valid: {error}")
            values.append(value)
        return values

    def _open_reader(self) -> RangeReader:
        if self._reader is None or self._reader_pid != os.getpid():
            if self._reader_pid != os.getpid():  # forked: the lock may be held by a thread that is not here
                self._reader_lock = threading.Lock()
            with self._reader_lock:
                if self._reader is None or self._reader_pid != os.getpid():
                    self._reader = self.new_reader()
                    self._reader_pid = os.getpid()
        return self._reader

    def _fingerprint(self) -> str:
        state = hashlib.blake2b(digest_size=16)
        for part in (self._table.images.tobytes(), self._table.keys.text, self._table.files.text):
            state.update(part)
        return state.hexdigest()


_OPENED = {"_catalog", "_table", "_classes", "_findings", "_labels", "_listed", "_names", "slots"}
_NOT_PICKLED = _OPENED | {"_reader", "_reader_pid", "_reader_lock"}


def _listed(urls: str | Sequence[str], catalog: Catalog, options: Mapping[str, Any]) -> Listed | None:
    """What a cache goes by where files are samples."""
    if catalog.format not in ("folder", "images"):
        return None
    names = [urls] if isinstance(urls, str) else urls
    common = os.path.commonprefix(names)
    root = common.rstrip("/") if len(names) == 1 else common.rpartition("/")[0]
    return Listed(server_of(root, options) + root, catalog.versions)


def _slots(fields: Sequence[str] | Mapping[str, str] | None) -> tuple[list[str], Any]:
    """(field names in the order of leaves, slots). Raises ConfigError unless there is exactly one image."""
    wanted: Any = ("image", "label") if fields is None else fields
    if isinstance(wanted, str) or not isinstance(wanted, (Sequence, Mapping)):
        raise ConfigError(f"fields={fields!r} is neither a sequence of names nor a mapping to them")
    names = list(wanted.values()) if isinstance(wanted, Mapping) else list(wanted)
    if not all(isinstance(name, str) for name in names) or names.count("image") != 1:
        raise ConfigError(f'fields={fields!r} must name "image" exactly once, and nothing but strings')
    numbers = iter(range(len(names)))
    leaves = [IMAGE if name == "image" else Column(next(numbers)) for name in names]
    return names, dict(zip(wanted, leaves, strict=True)) if isinstance(wanted, Mapping) else tuple(leaves)
