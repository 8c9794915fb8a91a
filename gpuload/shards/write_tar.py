"""Writing WebDataset tars: the same bytes for the same samples.

Owns the layout (USTAR, a PAX header where a name needs one; owner, time and mode fixed, members sorted by extension as
WebDataset does), what fields are called, and the sizes. A tar's own members go through as they are; of other sources,
numbers and JSON become `.json`, texts `.txt`, arrays `.npy`, all of which webdataset decodes.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpuload.shards.folder import is_image
from gpuload.shards.keys import Names
from gpuload.shards.table import Strings
from gpuload.shards.write_samples import Field, Output, Sample, Schema

BLOCK = 512
END = b"\0" * (2 * BLOCK)
USTAR_NAME_BYTES = 100
USTAR_FILE_BYTES = 8**11
NAME, SIZE, CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
"""Fields of a USTAR header that differ from member to member. Format: pax(1), "ustar Interchange Format"."""

READ_BY_NAME = ("cls", "json", "npy", "txt")
"""Extensions of members that are read as more than bytes, see fields.py."""

ENDINGS = {"bytes": "", "str": ".txt", "json": ".json", "number": ".json", "array": ".npy"}


def header(name: str, length: int) -> bytes:
    """The header blocks of a member."""
    if len(name) <= USTAR_NAME_BYTES and length < USTAR_FILE_BYTES and name.isascii():
        return _ustar(name.encode(), length)
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = length, 0o644, 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _template() -> bytes:
    info = tarfile.TarInfo()
    info.mode, info.mtime = 0o644, 0
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[CHECKSUM] = b" " * 8
    block[SIZE] = b"\0" * 12
    return bytes(block)


_TEMPLATE = _template()
_TEMPLATE_SUM = sum(_TEMPLATE)


def _ustar(name: bytes, length: int) -> bytes:
    """What tarfile makes of a plain name, in a tenth of its time."""
    size = b"%011o" % length
    checksum = b"%06o\0 " % (_TEMPLATE_SUM + sum(name) + sum(size))
    block = bytearray(_TEMPLATE)
    block[: len(name)] = name
    block[SIZE], block[CHECKSUM] = size + b"\0", checksum
    return bytes(block)


def padding(length: int) -> bytes:
    """What fills a member's last block."""
    return b"\0" * (-length % BLOCK)


def sample_bytes(keys: Strings, lengths: Mapping[str, np.ndarray]) -> np.ndarray:
    """int64 (n,): what each sample takes in a tar. lengths: extension -> int64 (n,), negative where it has none."""
    total = np.zeros(len(keys), np.int64)
    key_bytes = np.diff(keys.bounds)
    for extension, length in lengths.items():
        has = length >= 0
        total += np.where(has, BLOCK + -(-length // BLOCK) * BLOCK, 0)
        plain = keys.text.isascii() and extension.isascii()
        long = (key_bytes + len(extension) + 1 > USTAR_NAME_BYTES) | (length >= USTAR_FILE_BYTES)
        for row in np.flatnonzero(has & (long if plain else np.True_)).tolist():
            total[row] += len(header(f"{keys[row]}.{extension}", int(length[row]))) - BLOCK
    return total


def unique_keys(keys: Iterable[str]) -> Strings:
    """Keys that survive a tar of samples: no dot in the base name, which would end the key there, no NUL, none twice.

    >>> list(unique_keys(["a/x.y", "a/x_y", "b/x_y"]))
    ['a/x_y', 'a/x_y-2', 'b/x_y']
    """
    names = Names()
    parts = (key.replace("\0", "_").rpartition("/") for key in keys)
    return Strings.of(names.free(f"{folder}{slash}{base.replace('.', '_') or '_'}") for folder, slash, base in parts)


def extensions(fields: Iterable[Field], *, label: bool) -> list[str]:
    """What a tar calls these fields: a tar's own as they are, others without what would end a name, and none twice."""
    taken = {"cls"} if label else set()
    found = []
    for field in fields:
        name = field.name
        if field.encoding:
            name = name.lower().replace("/", "_").replace("\0", "_").strip(".") or "field"
            name = name if name.endswith(ENDINGS[field.kind]) else name + ENDINGS[field.kind]
            is_bytes = field.kind == "bytes"
            if is_image(f".{name}") or (is_bytes and name.rpartition(".")[2] in READ_BY_NAME):
                name = f"{name}.bin"  # readers might take it for the sample's image, or for what bytes are not
        stem, number = name, 1
        while name in taken:
            number += 1
            name = f"{number}.{stem}"
        taken.add(name)
        found.append(name)
    return found


class TarWriter:
    """A write_samples.Writer."""

    suffix = ".tar"
    overhead_bytes = len(END)
    notes: tuple[str, ...] = ()

    def __init__(self, schema: Schema):
        self._schema = schema
        self._extensions = extensions(schema.fields, label=schema.label)

    def sample_bytes(self, keys: Strings, images: np.ndarray, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        names = zip(self._schema.fields, self._extensions, strict=True)
        lengths = {self._schema.image: images} | {name: fields[field.name] for field, name in names}
        if self._schema.label:
            lengths["cls"] = np.ones(len(keys), np.int64)
        return sample_bytes(keys, lengths)

    def open(self, file: Output, samples: int) -> _TarFile:
        return _TarFile(file, self._schema, self._extensions)


class _TarFile:
    def __init__(self, file: Output, schema: Schema, names: list[str]):
        self._file, self._at = file, 0
        self._fields = list(zip(schema.fields, names, strict=True))

    def add(self, sample: Sample) -> int:
        members: list[tuple[str, Any]] = [(sample.extension, sample.image)]
        if sample.label is not None:
            members.append(("cls", b"%d" % sample.label))
        for (field, name), data in zip(self._fields, sample.values, strict=True):
            if data is not None:
                members.append((name, data if not field.encoding else _content(field, data)))
        start, around = -1, list[Any]()  # few pieces to write: all between two images is one
        for name, content in sorted(members, key=lambda member: member[0]):
            around.append(header(f"{sample.key}.{name}", len(content)))
            if content is sample.image:
                self._write(b"".join(around))
                start, around = self._at, []
                self._write(content)
            else:
                around.append(content)
            around.append(padding(len(content)))
        self._write(b"".join(around))
        return start

    def _write(self, data: Any) -> None:
        self._file.write(data)
        self._at += len(data)

    def finish(self) -> None:
        self._file.write(END)


def _content(field: Field, data: memoryview) -> bytes:
    value = field.value(data)
    if field.kind == "bytes":
        return bytes(value)
    if field.kind == "str":
        return str(value).encode()
    if field.kind == "array":
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return file.getvalue()
    return json.dumps(value.item() if field.kind == "number" else value, ensure_ascii=False).encode()
