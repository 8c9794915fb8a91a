"""`Stats` as text, for `print(loader.stats())` and for logs that know no colour.

Owns the layout and the wording of the numbers. What is counted, and when, is engine/stats.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuload.engine.stats import StageStats, Stats


def stats_text(stats: Stats) -> str:
    """`stats` in a few aligned lines of plain ASCII: the verdict first, then where the time went, then what went wrong.

    Example::

        gpuload epoch 0 (accelerated): 5120 images in 2.75 s, 1862 images/s, starved 0.4%
        first batch 0.04 s   ready 4   in flight 12.3 MB
    """
    lines = [
        f"gpuload epoch {stats.epoch} ({stats.path}): {stats.images} images in {stats.elapsed_s:.2f} s, "
        f"{rate(stats.images_per_s)} images/s, starved {percent(stats.starved)}",
        "first batch "
        + ("not yet" if stats.first_batch_s is None else f"{stats.first_batch_s:.2f} s")
        + f"   ready {stats.ready}   in flight {size(stats.bytes_in_flight)}",
    ]
    if stats.gpu_utilisation is not None:
        memory = "" if stats.gpu_memory_bytes is None else f"   GPU memory {size(stats.gpu_memory_bytes)}"
        lines.append(f"GPU busy {percent(stats.gpu_utilisation)}{memory}")
    if stats.stages:
        lines += _stage_lines(stats.stages)
    if stats.decoders:
        lines.append(f"decoded by   {counts(stats.decoders)}")
    if stats.errors:
        where = f"   listed in {stats.error_file}" if stats.error_file else ""
        lines.append(f"errors       {counts(stats.errors)}{where}")
    return "\n".join(lines)


def _stage_lines(stages: tuple[StageStats, ...]) -> list[str]:
    width = max(12, *(len(stage.name) for stage in stages))
    head = f"{'stage':<{width}} {'threads':>7} {'images':>9} {'busy':>9} {'waiting':>9} {'us/image':>9} {'read':>9}"
    rows = [head]
    for stage in stages:
        each = f"{1e6 * stage.busy_s / stage.items:.0f}" if stage.items else "-"
        rows.append(
            f"{stage.name:<{width}} {stage.threads:>7} {stage.items:>9} {stage.busy_s:>7.2f} s {stage.wait_s:>7.2f} s "
            f"{each:>9} {size(stage.bytes) if stage.bytes else '-':>9}"
        )
    return rows


def rate(images_per_s: float) -> str:
    """Three digits that mean something: 0.52, 9.8, 1843."""
    if images_per_s < 1:
        return f"{images_per_s:.2f}"
    return f"{images_per_s:.1f}" if images_per_s < 10 else f"{images_per_s:.0f}"


def percent(share: float) -> str:
    """A share of 0 to 1 as text: 0.4%, 23%."""
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def size(n_bytes: float) -> str:
    """Bytes in decimal units: 512 B, 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n_bytes) < 1000:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def counts(by_name: Mapping[str, int]) -> str:
    """{"dali": 5000, "pillow": 120} -> "dali 5000, pillow 120", most frequent first."""
    return ", ".join(f"{name} {n}" for name, n in sorted(by_name.items(), key=lambda item: (-item[1], item[0])))
