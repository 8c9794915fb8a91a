"""Which column is the image, the label, the key: by the names in use, where a format has no rule of its own.

Owns the names, in the order in which they are preferred, and the first bytes of encoded images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuload.shards.folder import is_image

IMAGE_NAMES = ("image/encoded", "image", "jpg", "jpeg", "png", "img", "image_raw", "image_bytes", "encoded", "bytes")
"""ImageNet's TFRecords, TFDS and Hugging Face, MDS as its guide writes it, and what people call it else."""

LABEL_NAMES = ("image/class/label", "label", "labels", "cls", "class", "target", "class_id", "label_id", "category")
KEY_NAMES = ("__key__", "key", "image/filename", "filename", "file_name", "image/source_id", "image_id", "id")

IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""JPEG, PNG, WebP, GIF, BMP and TIFF."""


def looks_like_image(first: bytes) -> bool:
    return first.startswith(IMAGE_MAGIC)


def preferred(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Those of `names` that are in `order`, in its order, whatever their case."""
    by_lower = {name.lower(): name for name in names}
    return [by_lower[name] for name in order if name in by_lower]


def as_key(text: str) -> str:
    """A sample's key from its file's name: without an image's extension, and not outside of what it is in.

    >>> as_key("photos/a.b.JPEG"), as_key("../x.jpg")
    ('photos/a.b', 'x')
    """
    parts = [part for part in text.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    path = "/".join(parts)
    return path.rpartition(".")[0] if is_image(path) else path
