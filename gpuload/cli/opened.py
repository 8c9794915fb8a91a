"""What commands ask of an open ShardDataset: its shards, the types of its fields.

Owns these answers, which pack, verify and inspect give alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.core.errors import sample_error
from gpuload.core.protocols import RangeReader
from gpuload.core.refs import WHOLE_FILE
from gpuload.shards.arrow import is_huggingface
from gpuload.shards.catalog import shards_of
from gpuload.shards.fields import PICKLED, parse_field
from gpuload.shards.folder import is_image
from gpuload.shards.table import MISSING
from gpuload.shards.urls import expand
from gpuload.shards.write_samples import Field, field_of

if TYPE_CHECKING:
    from gpuload.dataset import ShardDataset

FIRST_VALUES = 64
"""Samples that are asked for a field's type: a TFRecord's lists may be empty, and then have none."""


def shards_behind(source: Any, dataset: ShardDataset) -> list[str]:
    """The shards that it was opened from; [] where samples are files of their own, or rows of an object.

    source: what the data set was made of, as it was given.
    """
    if is_huggingface(source) or dataset.refs(np.arange(1))["length"][0] == WHOLE_FILE:
        return []
    options = dataset.storage_options
    return [shard for url in expand(dataset.urls, options) for shard in shards_of(url, options, dataset.format)]


def extra_members(dataset: ShardDataset) -> dict[str, np.ndarray]:
    """Name -> SAMPLE_REF (n,): the members that are not the samples' images, as some of a tar's are."""
    ids = np.arange(len(dataset))
    images = dataset.refs(ids)
    found = {}
    for name in sorted(dataset.members):
        column = dataset.member_refs(name, ids)
        if may_be_image(dataset, name):
            column = column.copy()
            column["length"][same_place(column, images)] = MISSING
        if (column["length"] >= 0).any():
            found[name] = column
    return found


def may_be_image(dataset: ShardDataset, name: str) -> bool:
    """Whether a member is named as images are, as those of tars are, by their extension."""
    return name not in dataset.encodings and is_image(f".{name}")


def same_place(refs: np.ndarray, images: np.ndarray) -> np.ndarray:
    """bool (n,): whether a member is the sample's image. Both SAMPLE_REF (n,)."""
    return (refs["length"] >= 0) & (refs["file"] == images["file"]) & (refs["offset"] == images["offset"])


def fields_of(dataset: ShardDataset, reader: RangeReader, members: Mapping[str, np.ndarray]) -> list[Field]:
    """The types of these members, by their encodings and first values. Raises SampleError for one that is none."""
    fields = []
    for name, column in members.items():
        has = np.flatnonzero(column["length"] >= 0)
        value = _first_value(dataset, reader, name, has)
        encoding = dataset.encodings.get(name, "")
        fields.append(field_of(name, encoding, value, optional=len(has) < len(dataset)))
    return fields


def _first_value(dataset: ShardDataset, reader: RangeReader, name: str, has: np.ndarray) -> object:
    """The first value that tells a field's type; None where none of the first ones does."""
    encoding = dataset.encodings.get(name, "")
    if encoding == PICKLED:
        return None
    for rows in (has[:1], has[1:FIRST_VALUES]):
        if not len(rows):
            continue
        encoded = reader.read(dataset.files, dataset.member_refs(name, rows))
        for row, sample in enumerate(rows.tolist()):
            try:
                if row in encoded.failures:
                    raise encoded.failures[row]
                value = parse_field(name, encoding, encoded.encoded(row).tobytes())
            except (OSError, ValueError) as error:
                shard, key = dataset.name(sample)
                raise sample_error(shard, sample, key, error) from error
            if not (isinstance(value, list) and not value):
                return value
    return None
