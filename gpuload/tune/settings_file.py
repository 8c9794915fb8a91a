"""The file in which a setting is kept: TOML that `gpuload tune` writes and `DataLoader(config=...)` reads.

Owns its keys. Beside the setting it holds what was measured with it, as comments: for people, never for a program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from gpuload.core.errors import ConfigError
from gpuload.core.setting import Setting
from gpuload.tune.limits import Limits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS = tuple(field.name for field in fields(Setting))


def save_setting(path: str | os.PathLike[str], setting: Setting, notes: Sequence[str] = ()) -> None:
    """Writes `setting`; notes: lines of comment that stand before it."""
    lines = [*(f"# {_printable(part)}" for note in notes for part in note.splitlines()), "[setting]"]
    lines += [f"{name} = {value}" for name, value in asdict(setting).items()]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _printable(text: str) -> str:
    """What TOML allows in a comment: a folder's name may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def load_setting(path: str | os.PathLike[str]) -> Setting:
    """What `save_setting` wrote. Raises ConfigError that names the file, the key and what is wrong with it."""
    where = os.fspath(path)
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"config={where!r} cannot be read: {error}; `gpuload tune DATA` writes such a file"
        ) from error
    table = content.pop("setting", None)
    if not isinstance(table, dict) or content:
        raise ConfigError(
            f"config={where!r} must hold one table, [setting], and holds {_names(content, table is not None)}; "
            "`gpuload tune DATA` writes such a file"
        )
    missing = [name for name in KEYS if name not in table]
    unknown = [name for name in table if name not in KEYS]
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise ConfigError(f"config={where!r}: [setting] {what}; its keys are {', '.join(KEYS)}")
    return checked_setting(table, f"config={where!r}: ")


def _names(content: dict[str, Any], has_setting: bool) -> str:
    return ", ".join([*(["setting"] if has_setting else []), *content]) or "nothing"


def checked_setting(values: dict[str, Any], where: str = "") -> Setting:
    """A Setting of whole numbers from 1. Raises ConfigError otherwise."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{where}{name} must be a whole number from 1, got {value!r}")
    return Setting(**values)


def check_limits(limits: Limits) -> None:
    """Raises ConfigError where no setting lies within them."""
    for end in ("least", "most"):
        checked_setting(asdict(getattr(limits, end)), f"config: Limits.{end}: ")
    if limits.clipped(limits.least) != limits.least:
        raise ConfigError(f"config: Limits.least ({limits.least}) is above Limits.most ({limits.most})")
    if not limits.cores > 0:
        raise ConfigError(f"config: Limits.cores must be above 0, got {limits.cores!r}")
