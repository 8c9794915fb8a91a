"""Numbers as people read them: rates, shares, sizes, counts. Plain ASCII."""

from __future__ import annotations

from collections.abc import Mapping


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
