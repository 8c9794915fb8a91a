"""What `gpuload pack` says of its shards beside them: NAME.pack.json, and the class names that all shards there share.

Owns whether these shards may lie in a folder: a second run must find the note of the same plan, and nobody's shards or
class names are replaced. By the note `gpuload verify` knows which shards are gone.

    NAME.pack.json    {"plan": digest of all that decides, "samples": n, "shards": n, "labels": there may be some,
                       "classes": digest of their names}
    classes.json      {"classes": ["name of 0", ...]}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from gpuload.cli.pack_file import new_file
from gpuload.core.errors import ConfigError, ShardError
from gpuload.core.location import shown
from gpuload.shards.catalog import CLASSES_FILE
from gpuload.shards.formats import format_named
from gpuload.shards.urls import Options, read_optional, stamps

SUFFIX = ".pack.json"
CURE = "Choose an empty folder or another name, or delete what is there"
SHARD_NAME = re.compile(r"(.+)-\d{6}(\.\w+)")
MOST_SHARDS = 10**6
"""As many have names; a note may be damaged."""


@dataclass(frozen=True)
class Note:
    """plan: Plan.digest. labels: whether samples may have some. classes: a digest of their names, "" for none."""

    plan: str
    samples: int
    shards: int
    labels: bool
    classes: str


def shard_name(stem: str, number: int, suffix: str) -> str:
    """Path or URL of a shard. stem: FOLDER/NAME."""
    return f"{stem}-{number:06d}{suffix}"


def read_note(stem: str, options: Options) -> Note | None:
    """Of FOLDER/NAME; None where there is none. Raises ShardError for a damaged one."""
    url = stem + SUFFIX
    text = read_optional(url, options)
    if text is None:
        return None
    try:
        found = json.loads(text)
        labels, classes = bool(found.get("labels", True)), str(found.get("classes", ""))
        return Note(str(found["plan"]), int(found["samples"]), int(found["shards"]), labels, classes)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"no note of what was packed, or damaged: {error!r}"
        raise ShardError(shown(url), problem, "Delete it, and pack to an empty folder") from error


def record(stem: str, note: Note, mine: Sequence[str], classes: Sequence[str] | None) -> None:
    """Note what is being packed to FOLDER/NAME, or find the same note; keep the class names, where there are some.

    mine: what will be written. Raises ConfigError where the folder holds something else, ShardError for a damaged note.
    """
    folder, name = os.path.split(stem)
    named = f"{folder}/{CLASSES_FILE}"
    content = None if classes is None else {"classes": list(classes)}
    with _locked(folder):  # another name may be recorded at the same time
        there = read_note(stem, {})
        if there is not None and there != note:
            what = "other samples, from files that changed since, or with another size or format"
            raise ConfigError(f"{folder} holds {name!r} packed from {what}. {CURE}")
        if there is None:
            taken = sorted({*filter(os.path.exists, mine), *_shards_called(stem)})
            if taken:
                raise ConfigError(f"{taken[0]} exists and was not written by gpuload pack {name!r}. {CURE}")
        if note.labels and not _names_fit(named, content, others=there is None and _holds_labels(folder)):
            problem = f"the labels of all shards in {folder} are named by one {CLASSES_FILE}, and those of the source"
            raise ConfigError(f"{problem} mean something else. Choose another folder")
        if there is None:
            _write(stem + SUFFIX, asdict(note))
        if content is not None and not os.path.exists(named):
            _write(named, content)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # file systems that lock no folders
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _shards_called(stem: str) -> list[str]:
    folder, name = os.path.split(stem)
    matches = map(SHARD_NAME.fullmatch, filter(format_named, os.listdir(folder)))
    return [f"{folder}/{match[0]}" for match in matches if match and match[1] == name]


def _holds_labels(folder: str) -> bool:
    """Whether shards are there whose samples may have labels, or will be: those without a note are taken for such."""
    files = os.listdir(folder)
    names = [file.removesuffix(SUFFIX) for file in files if file.endswith(SUFFIX)]
    unlabelled = {name for name in names if not _may_have_labels(f"{folder}/{name}")}
    matches = map(SHARD_NAME.fullmatch, filter(format_named, files))
    return len(unlabelled) < len(names) or any(match is None or match[1] not in unlabelled for match in matches)


def _may_have_labels(stem: str) -> bool:
    note = read_note(stem, {})
    return note is None or note.labels


def _names_fit(path: str, content: object, *, others: bool) -> bool:
    """Whether the class names there, if any, are these. others: labels are there, to which new names would apply."""
    text = read_optional(path, {})
    if text is None:
        return content is None or not others
    try:
        return json.loads(text) == content
    except ValueError:
        return False


def names_digest(classes: object) -> str:
    """Of a list of class names, or of what is in its place; "" for None."""
    return "" if classes is None else hashlib.blake2b(json.dumps(classes).encode(), digest_size=8).hexdigest()


def not_as_noted(shards: Sequence[str], options: Options) -> list[ShardError]:
    """Why shards cannot be read that were packed together with these, and class names that are others by now."""
    failed: list[ShardError] = []
    known = set(shards)
    packs = {(match[1], match[2]) for match in map(SHARD_NAME.fullmatch, shards) if match}
    for stem, suffix in sorted(packs):
        try:
            note = read_note(stem, options)
        except ShardError as error:
            failed.append(error)
            continue
        count = 0 if note is None else min(note.shards, MOST_SHARDS)
        names = (shard_name(stem, number, suffix) for number in range(count))
        lost: list[ShardError] = []
        stamps([name for name in names if name not in known], options, failed=lost)
        failed += [ShardError(e.url, f"it is one of {count} that were packed, and {e.problem}", e.cure) for e in lost]
        if note is not None and note.classes:
            failed += _other_names(f"{stem.rpartition('/')[0] or '.'}/{CLASSES_FILE}", note, options)
    return failed


def _other_names(url: str, note: Note, options: Options) -> list[ShardError]:
    try:
        found = json.loads(read_optional(url, options) or b"{}")
        same = names_digest(found.get("classes")) == note.classes
    except (ValueError, AttributeError):
        same = False
    return [] if same else [ShardError(shown(url), "its class names are not those that were packed", "")]


def _write(path: str, content: object) -> None:
    with new_file(path) as file:
        file.write(json.dumps(content).encode())
