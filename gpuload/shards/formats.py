"""Which format a shard has, by its first bytes and its name, and its samples by the reader for that.

Owns the list of formats and what stands around any of them: gzip, zlib, bzip2, xz, zstd. One file a format beside
this one reads it: a function of a Shard to a ShardScan, which raises ShardError for what it cannot use at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuload.core.errors import ShardError
from gpuload.core.location import shown
from gpuload.core.stamp import Stamp
from gpuload.shards import arrow, parquet, zip
from gpuload.shards.expansion import Shard, compression, expand_stream
from gpuload.shards.folder import is_image
from gpuload.shards.mds import scan_mds
from gpuload.shards.table import Finding, ShardScan
from gpuload.shards.tar import REPACK, scan_tar
from gpuload.shards.tar_headers import looks_like_tar
from gpuload.shards.tfrecord import looks_like_tfrecord, scan_tfrecord
from gpuload.shards.urls import Options, reading

FIRST_BYTES = 512
SINGLE_IMAGE = (b"\xff\xd8\xff", b"\x89PNG\r\n")
"""JPEG's and PNG's first bytes: one image where a shard should be is the commonest mistake."""


@dataclass(frozen=True)
class Format:
    """name: as `format=` has it. suffixes: of file names. begins: whether a file with these first bytes is one."""

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    scan: Callable[[Shard], ShardScan]

    def named(self, name: str) -> bool:
        """Whether a file is called like one, compressed or not."""
        return _plain(name).endswith(self.suffixes) or (
            self.name == "tfrecord" and bool(_NUMBERED.search(_plain(name)))
        )


SHARD_FORMATS = (
    Format("tar", (".tar",), looks_like_tar, scan_tar),
    Format("parquet", (".parquet",), lambda first: first.startswith(parquet.MAGIC), parquet.scan_parquet),
    Format("arrow", (".arrow",), lambda first: first.startswith(arrow.MAGIC), arrow.scan_arrow),
    Format("zip", (".zip",), lambda first: first.startswith(zip.MAGIC), zip.scan_zip),
    Format("tfrecord", (".tfrecord", ".tfrecords", ".tfrec"), looks_like_tfrecord, scan_tfrecord),
    Format("mds", (".mds",), lambda first: False, scan_mds),
)
"""In the order in which a folder is searched for them. MDS has no first bytes of its own: its name tells."""

NAMES = tuple(known.name for known in SHARD_FORMATS)
_COMPRESSED = re.compile(r"\.(gz|gzip|z|zlib|bz2|xz|zst|zstd)$")
_NUMBERED = re.compile(r"-\d{5}-of-\d{5}$")
"""What TensorFlow's writers call shards, often without an extension."""


def format_named(name: str, format: str = "auto") -> Format | None:
    """The format whose files are called so; with `format`, that one if it is."""
    return next((known for known in SHARD_FORMATS if format in ("auto", known.name) and known.named(name)), None)


def scan_shard(url: str, stamp: Stamp, options: Options, *, format: str = "auto") -> ShardScan:
    """The samples of one shard of that format, or of the one it has. Raises ShardError, MissingDependencyError."""
    shard = Shard.at(url, stamp, options)
    notes: list[Finding] = []
    with reading(url, options) as read_at:
        first = read_at(0, min(FIRST_BYTES, stamp.size))
        chosen = _chosen(url, first, format)
        kind = compression(first)
        if kind is not None and (chosen is None or not _is_plain(chosen, url, first)):
            shard, problem = expand_stream(shard, kind, read_at)
            if problem:
                notes.append(Finding(url, "", problem, REPACK))
            size = f"{shard.stamp.size} bytes in the cache directory"
            notes.append(Finding(url, "", f"it is compressed ({kind}): expanded once, {size}", note=True))
            with reading(shard.file, options) as read_expanded:
                chosen = _chosen(url, read_expanded(0, FIRST_BYTES), format)
    if chosen is None or (first.startswith(SINGLE_IMAGE) and not chosen.begins(first)):
        raise _unknown(shown(url), first)
    scan = chosen.scan(shard)
    origins = {file: url for file in scan.table.files if file != url}
    return replace(scan, table=replace(scan.table, origins=origins), findings=(*notes, *scan.findings))


def _is_plain(known: Format, url: str, first: bytes) -> bool:
    """Whether bytes that may be those of a compressed file are a plain shard's: so many samples, in MDS."""
    return known.begins(first) or (known.name == "mds" and _plain(url) == url.lower())


def _chosen(url: str, first: bytes, format: str) -> Format | None:
    if format != "auto":
        return next(known for known in SHARD_FORMATS if known.name == format)
    return next((known for known in SHARD_FORMATS if known.begins(first)), None) or format_named(url)


def _unknown(url: str, first: bytes) -> ShardError:
    if not first:
        return ShardError(url, "the file is empty (0 bytes)", "Write it again")
    if is_image(url) or first.startswith(SINGLE_IMAGE):
        cure = "Name the folder that holds it, or a shard of samples"
        return ShardError(url, "it is a single image, and no shard", cure)
    known = ", ".join(NAMES)
    return ShardError(url, f"no shard of a known format ({known}): it begins with {first[:8]!r}", "Pass format=")


def _plain(name: str) -> str:
    """A file's name in lower case, without what says that it is compressed, and without a URL's query."""
    name = name.lower().partition("?")[0] if "://" in name else name.lower()
    return _COMPRESSED.sub("", name) if not name.endswith(".tgz") else name[: -len(".tgz")] + ".tar"
